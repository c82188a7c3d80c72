"""The papers' tables and figures at any scale, with the controls they lack: `fixedbert study`."""

from ..support.checkout import experiment
from .cost import study_cost_text
from .records import read_records
from .report import Report, make_report
from .report_files import report_runs
from .report_text import report_markdown
from .scheduler import run_study
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

experiment("head_size")  # tasks without a text, in a checkout
