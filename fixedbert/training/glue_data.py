"""From the arguments of fine-tuning on texts to the texts."""

from dataclasses import dataclass, field

from ..data import glue
from ..errors import InputError
from .fine_tuning import FineTuningDataArguments


@dataclass
class GlueDataArguments(FineTuningDataArguments):
    """Which texts, and how they become tokens."""

    task_name: list[str] | None = field(
        default=None, metadata={"help": f"Tasks of GLUE, of {', '.join(glue.TASKS)}; or all."}
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "Folder with the tasks in the layout of the GLUE download; default: the Hub."}
    )
    train_file: str | None = field(default=None, metadata={"help": "A .csv, .tsv, .jsonl or .parquet file."})
    test_file: str | None = field(default=None, metadata={"help": "The same, to predict, with or without labels."})
    text_column_names: str | None = field(
        default=None, metadata={"help": "The column with the text, or the two of a pair, with a comma between them."}
    )
    label_column_name: str = field(default="label", metadata={"help": "The column with the label."})
    do_regression: bool | None = field(
        default=None, metadata={"help": "Whether labels are numbers to predict; default: if some have fractions."}
    )

    def columns(self) -> dict:
        """The columns of one's own files, for `load_files`."""
        texts = tuple(self.text_column_names.split(",")) if self.text_column_names else None
        if texts and (len(texts) > 2 or self.label_column_name in texts):
            raise InputError(f"--text_column_names {self.text_column_names}: one or two columns, and not the label's.")
        return {"text_columns": texts, "label_column": self.label_column_name}

    def tasks(self, predict: bool) -> list[str | None]:
        """The tasks in the order of their runs: the diagnostics after MNLI, by whose model they are predicted."""
        if not self.task_name:
            return [None]
        names = [name.lower() for name in self.task_name]
        if names == ["all"]:
            names = [name for name in glue.TASKS if name != "ax" or predict]
        for name in names:
            if name not in glue.TASKS:
                raise InputError(f"--task_name {name}: no such task; there are {', '.join(glue.TASKS)}, and all.")
        return sorted(dict.fromkeys(names), key=lambda name: name == "ax")


def load_texts(task: str | None, arguments: GlueDataArguments, kinds: tuple[str, ...], **hub_options) -> glue.TextData:
    """The splits of `kinds`: of the task, or else of the data set, or else of the files."""
    skip = arguments.skip_bad_rows
    named = [name for name in ("task_name", "dataset_name", "train_file") if getattr(arguments, name)]
    if len(named) > 1:
        raise InputError(f"--{named[0]} and --{named[1]}: give one of the two.")
    columns = arguments.columns()
    if task:
        if arguments.text_column_names or arguments.label_column_name != "label":
            raise InputError(
                f"--task_name {task}: its columns are known; leave --text_column_names and --label_column_name out."
            )
        return glue.load_task(task, arguments.data_dir, kinds, skip, **hub_options)
    if arguments.dataset_name:
        name, config = arguments.dataset_name, arguments.dataset_config_name
        return glue.load_dataset(name, config, kinds, arguments.do_regression, skip, **columns, **hub_options)
    files = {kind: getattr(arguments, f"{kind}_file") for kind in kinds}
    if not any(files.values()):
        raise InputError("no data: give --task_name, --dataset_name, or --train_file and --validation_file.")
    for kind, file in files.items():
        if file is None:
            raise InputError(f"no rows for {kind}: give --{kind}_file.")
    return glue.load_files(files, arguments.do_regression, skip, **columns)
