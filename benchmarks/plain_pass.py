"""A plain forward pass over Wikipedia, beside which other work on the same text is measured."""

import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import AutoModel, BertTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from fixedbert.data.sequences import sequences
from fixedbert.data.tokenizers import load_tokenizer

LENGTH, BATCH = 128, 16


def data_folder() -> Path:
    if "FIXEDBERT_DATA" not in os.environ:
        sys.exit("error: FIXEDBERT_DATA does not say where wikipedia/ and vocab/ are.")
    return Path(os.environ["FIXEDBERT_DATA"])


class Text(NamedTuple):
    """The first `sequences` of LENGTH tokens of a file."""

    file: str
    sequences: int

    def batches(self, tokenizer: PreTrainedTokenizerBase) -> Iterator[Tensor]:
        yield from islice(sequences([self.file], tokenizer, LENGTH, BATCH), -(-self.sequences // BATCH))


def wikipedia(sequences: int) -> Text:
    return Text(str(min((data_folder() / "wikipedia").glob("*.parquet"))), sequences)


def save(model: PreTrainedModel, folder: str | Path):
    """The model as a directory, with BERT's tokenizer."""
    BertTokenizer(vocab=str(next((data_folder() / "vocab").glob("*.txt")))).save_pretrained(folder)
    model.save_pretrained(folder)


@torch.no_grad()
def plain_pass(folder: str | Path, text: Text, attn_implementation: str | None = None, **options):
    """Load the model, read the text and run the model on it."""
    model = AutoModel.from_pretrained(folder, attn_implementation=attn_implementation).eval()
    for ids in text.batches(load_tokenizer(str(folder))):
        model(input_ids=ids, **options)
