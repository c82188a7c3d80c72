"""Damaged files through the loading functions: what came of each, and why some that load differently may."""

import contextlib
import importlib
import random
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path

from .damage import mutate
from .explained import EXPLAINED
from .forks import Job, Verdict, verdicts
from .kinds import KINDS, build
from .results import Results

OUTCOMES = ("same", "clear", "explained", "raw", "hang", "crash", "other")
BAD = ("raw", "hang", "crash", "other")


def planned(total: int) -> list[tuple[str, int]]:
    """`total` mutations, (kind, number), by the shares of the kinds, in a mixed order that is always the same."""
    shares = sum(kind.share for kind in KINDS.values())
    plan = [(name, number) for name, kind in KINDS.items() for number in range(round(total * kind.share / shares))]
    random.Random(total).shuffle(plan)
    return plan


def run(folder: Path, plan: list[tuple[str, int]], results: Results, seed: int, parallel: int, keep: bool = False):
    """Do the mutations of `plan` that have no result yet."""
    done = {(line["kind"], line["number"]) for line in results.of("mutation") if line["seed"] == seed}
    plan = [place for place in plan if place not in done]
    if not plan:
        return
    folder = folder.resolve()
    valid = folder / "valid"
    shutil.rmtree(folder, ignore_errors=True)
    build_apart(valid)
    expected = references(folder, valid, sorted({name for name, _ in plan}), parallel)
    jobs = (job(folder, valid, name, number, seed) for name, number in plan)
    for number, (each, verdict, change) in enumerate(verdicts(jobs, parallel), start=1):
        name, place = each.name
        verdict = judged(verdict, name, change, expected[name], each.folder)
        record = {"kind": name, "number": place, "seed": seed, "change": change, "outcome": verdict.outcome}
        results.add("mutation", record | {"said": verdict.said})
        if verdict.outcome in BAD or keep:
            print(f"{verdict.outcome}: {name} --number {place} ({change}): {verdict.said}", flush=True)
        if not keep:
            shutil.rmtree(each.folder, ignore_errors=True)
            each.folder.with_name(each.folder.name + ".log").unlink()
        if number % 500 == 0:
            print(f"{number:,} of {len(plan):,} mutations", flush=True)


def build_apart(valid: Path, build: Callable[[Path], None] = build):
    """The valid files, written by a child: this process has used no thread when it forks the others."""

    def prepare() -> tuple[str, list[str]]:
        build(valid)
        return "built", []

    list(verdicts([Job(("build",), valid.parent / "build", prepare, list)], 1, 300))


def references(folder: Path, valid: Path, names: list[str], parallel: int) -> dict[str, str]:
    """The digest of what each kind loads from its valid file; all that these loads import is imported here."""
    jobs = [job(folder, valid, name, None, 0) for name in names]
    expected = {}
    for each, verdict, _ in verdicts(jobs, parallel, 300):
        if verdict.outcome != "loaded":
            raise RuntimeError(f"{each.name[0]}: the valid file itself is {verdict.outcome}: {verdict.said}")
        expected[each.name[0]] = verdict.said
        import_modules(each.folder)
    return expected


def import_modules(folder: Path):
    """Import what the load in `folder` has imported, so that the next children need not."""
    for module in (folder / "modules").read_text().split():
        if module not in sys.modules:
            with contextlib.suppress(Exception):  # made at run time, or not importable by itself
                importlib.import_module(module)


def job(folder: Path, valid: Path, name: str, number: int | None, seed: int) -> Job:
    """A mutation of a kind; without a number, its valid file."""
    kind = KINDS[name]
    where = folder / f"{list(KINDS).index(name)}-{'valid' if number is None else number}"

    def prepare() -> tuple[str, list[str]]:
        shutil.copytree(valid, ".", dirs_exist_ok=True)
        if kind.written_by_load:
            kind.load()
        (file,) = Path().glob(kind.file)
        change = "nothing" if number is None else mutate(file, kind.form, number, f"{seed} {name}")
        # A recipe's entries are arguments, which their messages name; a study has the name of its file.
        names = {"recipe.yaml": ["--"], "recipe.json": ["--"], "study.yaml": ["study study"]}.get(file.name, [])
        return change, [*names, file.name, *(f"{part}{after}" for part in file.parts[:-1] for after in "/:,")]

    def load() -> object:
        loaded = kind.load()
        if number is None:
            Path("modules").write_text("\n".join(sys.modules))
        return loaded

    return Job((name, number), where, prepare, load)


def judged(verdict: Verdict, name: str, change: str, expected: str, folder: Path) -> Verdict:
    if (folder / "ran").exists():
        return Verdict("raw", "the code in the file was run")
    if verdict.outcome != "loaded":
        return verdict
    if verdict.said == expected:
        return Verdict("same", "")
    for kinds, changes, reason in EXPLAINED:
        if any(fnmatch(name, kind) for kind in kinds) and any(fnmatch(change, pattern) for pattern in changes):
            return Verdict("explained", reason)
    if (found := re.match(r"(?:.*\.)?(\w{4,}) (becomes|renamed|gone|deep)", change)) and found[1] in told(folder):
        return Verdict("explained", "a warning speaks of the field")
    return Verdict("other", "loaded something else without a word")


def told(folder: Path) -> str:
    """What a load printed beyond what the valid file's load prints."""
    valid = folder.with_name(f"{folder.name.split('-')[0]}-valid.log").read_text(errors="replace").splitlines()
    lines = folder.with_name(f"{folder.name}.log").read_text(errors="replace").splitlines()
    return "\n".join(line for line in lines if line not in valid)


def table(lines: list[dict]) -> Iterator[str]:
    """Kinds by outcomes."""
    row = ("{:<32}" + " {:>9}" * len(OUTCOMES)).format
    yield row("mutations", *OUTCOMES)
    counts = Counter((line["kind"], line["outcome"]) for line in lines)
    for kind in KINDS:
        if any(counts[kind, outcome] for outcome in OUTCOMES):
            yield row(kind, *(counts[kind, outcome] for outcome in OUTCOMES))
    yield row("all", *(sum(counts[kind, outcome] for kind in KINDS) for outcome in OUTCOMES))
