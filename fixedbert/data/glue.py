"""
The tasks of GLUE: their columns, labels and files.

To add a task, give it an entry in TASKS, and its metrics in METRICS of fixedbert/fine_tuning/glue_metrics.py.
"""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class GlueTask:
    """
    A task of GLUE (Wang et al., 2018), or one like it: on the Hub, in the original download, and in a submission.

    Its metrics are in METRICS of fixedbert/fine_tuning/glue_metrics.py.

    Raises:
        ValueError: the fields do not fit one another.
    """

    folder: str  # of the download
    texts: tuple[str, ...]  # columns of the texts on the Hub
    labels: tuple[str, ...]  # names in the order of their numbers, as on the Hub; none for a regression
    file_texts: tuple[str, ...] = ()  # columns of the texts in the tsv files, where they are others
    label: str = "label"  # column in the tsv files
    header: tuple[str, ...] | None = None  # columns of the files that have no header line
    numbered: bool = False  # whether files and submissions have the numbers of the labels and not their names
    # Files of the download, by split of the Hub. Of several validation splits the first is the main one.
    files: dict[str, str] = field(
        default_factory=lambda: {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
    )
    submissions: dict[str, str] | None = None  # files of a submission, by split of the Hub
    dataset_name: str = "nyu-mll/glue"  # of the Hub
    dataset_config_name: str | None = None  # by default the name of the task

    def __post_init__(self):
        object.__setattr__(self, "file_texts", self.file_texts or self.texts)  # the dataclass is frozen
        if len(self.texts) not in (1, 2) or len(self.texts) != len(self.file_texts):
            raise ValueError(f"{self.folder}: texts and file_texts: name one or two columns, as many in both.")
        if len(self.labels) == 1:
            raise ValueError(f"{self.folder}: labels: name two or more, or none for a regression.")
        if absent := [split for split in self.files if split.startswith("test") and not self.submission(split)]:
            raise ValueError(f"{self.folder}: submissions: name the file for {absent[0]}.")

    def submission(self, split: str) -> str:
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
    # The diagnostics: to be predicted by a model of MNLI.
    "ax": replace(MNLI, folder="AX", files={"test": "diagnostic.tsv"}, submissions=None),
}
