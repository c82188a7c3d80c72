"""Trains models of many shapes under the same conditions and reports how they differ."""

from .cost import study_cost_text
from .execution import run_study
from .records import read_records
from .report import Report, make_report
from .report_files import report_runs
from .report_text import report_markdown
from .sources import DataSources
from .studies import load_study

__all__ = [
    "DataSources",
    "Report",
    "load_study",
    "make_report",
    "read_records",
    "report_markdown",
    "report_runs",
    "run_study",
    "study_cost_text",
]
