"""The files of a report: report.md and the pictures."""

from collections.abc import Sequence
from pathlib import Path

from ..support.errors import InputError, needs
from ..support.files import new_directory, write_whole
from .pictures import pictures_of
from .records import read_records
from .report import Report, make_report
from .report_text import report_markdown


def report_runs(files: Sequence[str | Path], output_dir: str | Path) -> Report:
    """
    Report the runs of a study, and write the files of the report into `output_dir`, a new directory.

    Args:
        files: runs.jsonl of one study, from one or more machines.

    Raises:
        InputError: nothing in the files, or runs of different studies.
    """
    needs("matplotlib", "study")
    if not files:
        raise InputError("no runs to report: give the runs.jsonl of a study.")
    with new_directory(output_dir) as folder:
        records = read_records(files)
        try:
            report = make_report(records)
        except InputError as error:
            raise InputError(f"{', '.join(map(str, files))}: {error}") from error
        write_report(report, folder)
    return report


def write_report(report: Report, folder: Path):
    """
    Write report.md and the pictures: report.png, differences.png where shapes are compared, and curves.png where runs
    have curves.
    """
    for name, picture in pictures_of(report).items():
        write_whole(folder / name, picture)
    write_whole(folder / "report.md", report_markdown(report))
