"""
Definitions of the GLUE tasks: their columns, labels and files.

To add a task, add an entry to TASKS here and to METRICS in fixedbert/tasks/glue_metrics.py.
"""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class GlueTask:
    """A GLUE task (Wang et al., 2018) and its format on the Hub, in the downloaded files and in submission files."""

    folder: str  # directory name in the download
    texts: tuple[str, ...]  # one or two text columns on the Hub
    labels: tuple[str, ...]  # label names in the order of their ids on the Hub; empty for regression
    file_texts: tuple[str, ...] = ()  # text columns in the .tsv files, if different from the Hub
    label: str = "label"  # label column in the .tsv files
    header: tuple[str, ...] | None = None  # column names, if the train and dev files have no header line
    numbered: bool = False  # True if files and submissions contain label ids instead of names
    # Maps each split to its file in the download. The main metrics are those for the first validation split.
    files: dict[str, str] = field(
        default_factory=lambda: {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
    )
    submissions: dict[str, str] | None = None  # maps each test split to its submission file
    dataset_name: str = "nyu-mll/glue"  # Hub id; the configuration has the name of the task

    def __post_init__(self):
        object.__setattr__(self, "file_texts", self.file_texts or self.texts)  # the dataclass is frozen

    def submission(self, split: str) -> str:
        """Returns the name of the submission file for a split, or "" if the split is not submitted."""
        return (self.submissions or {"test": f"{self.folder}.tsv"}).get(split, "")


MNLI = GlueTask(
    "MNLI",
    texts=("premise", "hypothesis"),
    labels=("entailment", "neutral", "contradiction"),
    file_texts=("sentence1", "sentence2"),
    label="gold_label",
    files={
        "train": "train.tsv",
        "validation_matched": "dev_matched.tsv",
        "validation_mismatched": "dev_mismatched.tsv",
        "test_matched": "test_matched.tsv",
        "test_mismatched": "test_mismatched.tsv",
    },
    submissions={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
)
TASKS = {
    "cola": GlueTask(
        "CoLA",
        texts=("sentence",),
        labels=("unacceptable", "acceptable"),
        header=("source", "label", "mark", "sentence"),
        numbered=True,
    ),
    "sst2": GlueTask("SST-2", texts=("sentence",), labels=("negative", "positive"), numbered=True),
    "mrpc": GlueTask(
        "MRPC",
        texts=("sentence1", "sentence2"),
        labels=("not_equivalent", "equivalent"),
        file_texts=("#1 String", "#2 String"),
        label="Quality",
        numbered=True,
    ),
    "stsb": GlueTask("STS-B", texts=("sentence1", "sentence2"), labels=(), label="score"),
    "qqp": GlueTask(
        "QQP",
        texts=("question1", "question2"),
        labels=("not_duplicate", "duplicate"),
        label="is_duplicate",
        numbered=True,
    ),
    "mnli": MNLI,
    "qnli": GlueTask("QNLI", texts=("question", "sentence"), labels=("entailment", "not_entailment")),
    "rte": GlueTask("RTE", texts=("sentence1", "sentence2"), labels=("entailment", "not_entailment")),
    "wnli": GlueTask("WNLI", texts=("sentence1", "sentence2"), labels=("not_entailment", "entailment"), numbered=True),
    # The diagnostic dataset for MNLI models.
    "ax": replace(MNLI, folder="AX", files={"test": "diagnostic.tsv"}, submissions=None),
}
