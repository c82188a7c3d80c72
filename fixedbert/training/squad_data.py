"""From the arguments of fine-tuning on questions to the questions."""

from dataclasses import dataclass, field

import datasets

from ..data.hub import load_from_hub
from ..data.squad import load_squad, question_rows
from ..errors import InputError
from .fine_tuning import FineTuningDataArguments


@dataclass
class SquadDataArguments(FineTuningDataArguments):
    """Which questions, and how they become windows of tokens."""

    dataset_name: str | None = field(default=None, metadata={"help": "Hub id: rajpurkar/squad, rajpurkar/squad_v2."})
    train_file: str | None = field(
        default=None, metadata={"help": "SQuAD's JSON, or rows with its columns in .json, .jsonl or .parquet."}
    )
    test_file: str | None = field(default=None, metadata={"help": "The same, to answer; it needs no answers."})
    max_seq_length: int = field(default=384, metadata={"help": "Tokens of a window."})
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Use so many training questions only, and so many of their windows."}
    )
    version_2_with_negative: bool = field(
        default=False, metadata={"help": "Questions may have no answer, as in SQuAD 2.0."}
    )
    null_score_diff_threshold: str = field(
        default="0.0",
        metadata={"help": "No answer where [CLS] is more than this above the best span; best: chosen for F1."},
    )
    doc_stride: int = field(default=128, metadata={"help": "Tokens of the context that two windows share."})
    n_best_size: int = field(default=20, metadata={"help": "Starts and ends looked at in a window, answers kept."})
    max_answer_length: int = field(default=30, metadata={"help": "Tokens of the longest answer."})

    def threshold(self) -> float | str:
        if self.null_score_diff_threshold == "best":
            return "best"
        try:
            return float(self.null_score_diff_threshold)
        except ValueError:
            raise InputError(
                f"--null_score_diff_threshold {self.null_score_diff_threshold}: a number, or best."
            ) from None

    def source(self, kind: str) -> str:
        """Where the questions for "train", "validation" or "test" are; InputError if no argument says."""
        if self.dataset_name:
            return f"{self.dataset_name}, {kind}"
        file = getattr(self, f"{kind}_file")
        if file is None:
            raise InputError(f"no questions for {kind}: give --{kind}_file or --dataset_name.")
        return file


def load_questions(arguments: SquadDataArguments, kind: str, **hub_options) -> datasets.Dataset:
    """The questions for "train", "validation" or "test"."""
    options = (arguments.version_2_with_negative, kind != "test", arguments.skip_bad_rows)
    if not arguments.dataset_name:
        return load_squad(arguments.source(kind), *options)
    if arguments.train_file or arguments.validation_file or arguments.test_file:
        raise InputError("--dataset_name and files: give one of the two.")
    splits = load_from_hub(arguments.dataset_name, arguments.dataset_config_name, **hub_options)
    if kind not in splits:
        raise InputError(f"{arguments.dataset_name}: it has no split {kind}; there are {', '.join(splits)}.")
    return question_rows(((row, row, row) for row in splits[kind]), arguments.source(kind), *options)
