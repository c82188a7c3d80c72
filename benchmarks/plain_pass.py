"""A plain forward pass over Wikipedia, beside which other work on the same text is measured."""

import os
import sys
from pathlib import Path

import torch
from transformers import AutoModel, BertTokenizer, PreTrainedModel

from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.shrinking.shrink import Text

LENGTH, BATCH = 128, 16


def data_folder() -> Path:
    if "FIXEDBERT_DATA" not in os.environ:
        sys.exit("error: FIXEDBERT_DATA does not say where wikipedia/ and vocab/ are.")
    return Path(os.environ["FIXEDBERT_DATA"])


def wikipedia(sequences: int) -> Text:
    return Text([str(min((data_folder() / "wikipedia").glob("*.parquet")))], LENGTH, sequences, BATCH)


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
