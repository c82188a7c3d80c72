"""Rows that cannot be used: one sentence with their place, or left out, counted and named."""

from collections.abc import Mapping

from accelerate import PartialState

from ..errors import InputError

NAMED = 20  # of the rows that are left out


def check_usable(name: str, problems: Mapping[int, str], total: int, skip_bad_rows: bool):
    """
    Tell which of the `total` rows of `name` are left out.

    Args:
        problems: by number of the row, its place and what is wrong with it.

    Raises:
        InputError: there are such rows, and they are not to be left out.
    """
    if not problems:
        return
    places = [problems[number] for number in sorted(problems)]
    if not skip_bad_rows:
        more = f"; {len(places) - 1:,} more rows cannot be used either" if len(places) > 1 else ""
        raise InputError(f"{name}, {places[0]}{more}. Mend it, or leave such rows out with --skip_bad_rows.")
    if len(places) > NAMED:
        places = [*places[:NAMED], f"and {len(places) - NAMED:,} more"]
    PartialState().print(f"{name}: {len(problems):,} of {total:,} rows left out ({'; '.join(places)})")
