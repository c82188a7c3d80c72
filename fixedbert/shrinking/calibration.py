"""Rows of a model's task, without labels, with their segments and real lengths, in batches."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..data.corpora import Corpus, CorpusReader
from ..data.glue import TASKS
from ..data.sequences import read_sequences
from ..data.tokenizers import encode
from ..fine_tuning.labels import default_names, label_names, same_names, shorten
from ..fine_tuning.questions import load_squad, squad_windows
from ..fine_tuning.texts import TextData, load_files, load_task
from ..support.errors import InputError
from .predictions import MASKED_LM, PLACES, Batch, head_in

TABLES = {".csv", ".tsv", ".jsonl", ".parquet"}
LONGEST = 512  # tokens of a row, where no length is given
MASKED = 0.15  # of the tokens, for a masked LM
DOC_STRIDE = 128  # tokens that two windows of a question's text share


@dataclass(frozen=True)
class Rows:
    """
    The rows of a task. Labels are not needed.

    Args:
        task_name: a task of GLUE, whose training rows are taken; else `files`.
        data_dir: its folder; by default the Hub.
        files: texts or pairs of texts (.csv, .tsv, .jsonl, .parquet, or a text in each line of .txt); questions in
            SQuAD's layout for a model that answers them; running text for a masked LM, and for an encoder without
            pooling.
        length: tokens of a row, at most; by default as many as the model takes, at most 512.
        most: rows to take, in a random order.
        batch_size: rows at once; also what times are measured with.
        seed: for the order.
        do_lower_case: as in `load_tokenizer`.
        text_columns: one or two columns of tables; by default as in `load_files`.
    """

    task_name: str | None = None
    data_dir: str | None = None
    files: list[str] | None = None
    length: int | None = None
    most: int = 1500
    batch_size: int = 32
    seed: int = 0
    do_lower_case: bool | None = None
    text_columns: tuple[str, ...] | None = None

    def __post_init__(self):
        for name, count in (("max_samples", self.most), ("batch_size", self.batch_size)):
            if count < 1:
                raise InputError(f"{count}: must be at least 1.", name)
        if (self.task_name is None) == (self.files is None):
            raise InputError("give `task_name` or `train_file`: the rows of the model's own task.")
        if self.data_dir is not None and self.task_name is None:
            raise InputError("is the folder of a GLUE task: give `task_name` too.", "data_dir")
        tables = self.files is not None and all(Path(file).suffix in TABLES for file in self.files)
        if self.text_columns is not None and (not tables or len(self.text_columns) > 2):
            raise InputError("are one or two, of tables in `train_file`.", "text_column_names")

    def length_for(self, model: PreTrainedModel) -> int:
        longest = model.config.max_position_embeddings
        length = min(LONGEST, longest) if self.length is None else self.length
        if not 3 <= length <= longest:
            raise InputError(f"{length}: the model takes 3 to {longest} tokens.", "max_seq_length")
        return length

    def read(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pooled: bool, most: int, kind: str = "train"
    ) -> list[dict]:
        """
        Token ids of at most `most` rows, in a random order.

        Args:
            pooled: whether the model's answer is one embedding of a row.
            kind: of a task of GLUE, "train" or "validation".
        """
        head, length = head_in(model), self.length_for(model)
        if head == "MultipleChoice":
            raise InputError("a model that chooses among several texts cannot be cut by rows yet.")
        if head == "QuestionAnswering":
            features = self.questions(tokenizer, length)
        elif head in MASKED_LM or not (head or pooled):
            features = self.running_text(tokenizer, length, most, kind)
        else:
            self.check_labels(model.config, head)
            features = self.texts(tokenizer, length, kind, alone=pooled)
        rows = list(features)
        if (count := min(len(rows), most)) < 2 * self.batch_size and kind == "train":
            raise InputError(
                f"{count} rows are too few: give {2 * self.batch_size} or more, with a `max_samples` that takes them, "
                "or a lower `batch_size`."
            )
        random.Random(self.seed).shuffle(rows)
        return rows[:most]

    def batches(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict]) -> list[Batch]:
        """The rows in batches, those of like length together, on the model's device."""
        rows = sorted(rows, key=lambda row: len(row["input_ids"]))
        generator = torch.Generator().manual_seed(self.seed)
        batches = []
        for begin in range(0, len(rows), self.batch_size):
            batch: Batch = dict(tokenizer.pad(rows[begin : begin + self.batch_size], return_tensors="pt"))
            if head_in(model) in MASKED_LM:
                batch = masked(batch, tokenizer, generator)
            batches.append({name: x.to(model.device) for name, x in batch.items()})
        return batches

    def check_labels(self, config: PreTrainedConfig, head: str):
        """Refuse a task of GLUE with other labels than a classifier's."""
        task = TASKS.get((self.task_name or "").lower())
        if task is None or head != "SequenceClassification":
            return
        known, labels = label_names(config), list(task.labels)
        if known is None or all(name.isdecimal() for name in known):  # of which the number alone says something
            same = config.num_labels == max(1, len(labels))
        else:
            same = len(known) == len(labels) and same_names(labels, known)
        if not same:
            own = shorten(default_names(config) if known is None else known)
            raise InputError(
                f"{self.task_name}: its labels are {shorten(labels) or 'numbers'}, and the model's are "
                f"{own or 'numbers'}: give the rows of its own task, or texts by `train_file`.",
                "task_name",
            )

    def texts(self, tokenizer: PreTrainedTokenizerBase, length: int, kind: str, alone: bool) -> Iterator[dict]:
        """Token ids of texts, or of pairs of texts; each text `alone` where it has an embedding of its own."""
        for texts in self.raw_texts(kind):
            for row in [[text] for text in texts] if alone else [texts]:
                yield dict(encode(tokenizer, *row, max_length=length, truncation=True))

    def raw_texts(self, kind: str = "train") -> Iterator[tuple[str, ...]]:
        if self.task_name is not None:
            yield from columns_of(load_task(self.task_name.lower(), self.data_dir, (kind,)))
        for file in self.files or ():
            if Path(file).suffix in TABLES:
                yield from columns_of(load_files({"test": file}, text_columns=self.text_columns))
            else:
                lines = CorpusReader(Corpus(file, document_boundary="line"))
                yield from ((line,) for line in lines if isinstance(line, str) and line.strip())

    def questions(self, tokenizer: PreTrainedTokenizerBase, length: int) -> Iterator[dict]:
        """Windows of questions with their texts."""
        if self.files is None:
            raise InputError("the model answers questions, which GLUE has not: give `train_file` in SQuAD's layout.")
        for file in self.files:
            rows = load_squad(file, version_2_with_negative=True, answered=False)
            windows = squad_windows(rows, tokenizer, length, min(DOC_STRIDE, length // 2), for_training=False)
            names = [name for name in tokenizer.model_input_names if name in windows.column_names]
            yield from ({name: window[name] for name in names} for window in windows)

    def running_text(self, tokenizer: PreTrainedTokenizerBase, length: int, most: int, kind: str) -> Iterator[dict]:
        """Sequences without a break."""
        if self.text_columns is not None:
            raise InputError(
                "are for texts and pairs; this model takes running text, of the column text.", "text_column_names"
            )
        if self.files is None:
            texts = (text for texts in self.raw_texts(kind) for text in texts)
            yield from (dict(encode(tokenizer, text, max_length=length, truncation=True)) for text in texts)
            return
        found = 0
        for ids in read_sequences(self.files, tokenizer, length, self.batch_size):
            yield from ({"input_ids": row.tolist(), "attention_mask": [1] * length} for row in ids)
            found += len(ids)
            if found >= 4 * most:
                return


def columns_of(data: TextData) -> Iterator[tuple[str, ...]]:
    for rows in data.splits.values():
        names = [name for name in ("sentence1", "sentence2") if name in rows.column_names]
        yield from zip(*(rows[name] for name in names), strict=True)


def masked(batch: Batch, tokenizer: PreTrainedTokenizerBase, generator: torch.Generator) -> Batch:
    """The batch with MASKED of its tokens replaced by [MASK], at least one in a row, and where they are."""
    ids = batch["input_ids"]
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    chances = torch.rand(ids.shape, generator=generator).masked_fill(special, 2.0)
    places = (chances < MASKED) | (chances == chances.min(dim=1, keepdim=True).values) & ~special
    return batch | {"input_ids": ids.masked_fill(places, int(tokenizer.mask_token_id)), PLACES: places}


def shapes_of_batches(batches: list[Batch]) -> list[tuple[int, int]]:
    """Rows and tokens of three batches: of short, of middling and of long rows."""
    places = [len(batches) // 6, len(batches) // 2, len(batches) - 1 - len(batches) // 6]
    shapes: list[Tensor] = [batches[place]["input_ids"] for place in places]
    return sorted({(ids.shape[0], ids.shape[1]) for ids in shapes})
