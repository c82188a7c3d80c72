"""Documents as token ids with their sentence boundaries, memory-mapped."""

import datasets
import numpy as np
import sentencex
from transformers import PreTrainedTokenizerBase


def tokenize_documents(
    corpus: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, language: str = "en", num_proc: int | None = None
) -> datasets.Dataset:
    """
    Text to token ids, document by document: `input_ids`, all tokens of the document without special ones, and
    `sentence_ends`, after how many tokens each sentence ends. `datasets` caches the result by corpus and tokenizer.
    """
    return corpus.map(
        split_and_tokenize,
        batched=True,
        batch_size=32,  # a document may be a whole book
        writer_batch_size=32,
        num_proc=num_proc,
        remove_columns=corpus.column_names,
        fn_kwargs={"tokenizer": tokenizer, "language": language},
        features=datasets.Features(
            {
                "input_ids": datasets.List(datasets.Value("int32")),
                "sentence_ends": datasets.List(datasets.Value("int32")),
            }
        ),
        desc="Splitting into sentences and tokenizing",
    )


def split_and_tokenize(batch: dict[str, list], tokenizer: PreTrainedTokenizerBase, language: str) -> dict[str, list]:
    sentences = [list(sentencex.segment(language, text)) if text else [] for text in batch["text"]]
    flat = [sentence for document in sentences for sentence in document]
    # verbose=False: a sentence longer than the model's limit is no reason to warn, pairs are cut to size later
    encoded = tokenizer(flat, add_special_tokens=False, return_attention_mask=False, verbose=False) if flat else None
    columns = {"input_ids": [], "sentence_ends": []}
    first = 0
    for document in sentences:
        ids, ends = [], []
        for sentence in range(first, first + len(document)):
            tokens = encoded["input_ids"][sentence]
            if tokens:
                ids.extend(tokens)
                ends.append(len(ids))
        first += len(document)
        columns["input_ids"].append(ids)
        columns["sentence_ends"].append(ends)
    return columns


class Documents:
    """
    Random access to the tokens and sentences of the documents in `tokenize_documents`'s result.

    Reads the Arrow buffers in place: opening a part of a document costs nothing but the part. `len` is the number of
    documents.
    """

    def __init__(self, dataset: datasets.Dataset):
        if dataset._indices is not None:  # a selection; its rows do not stand where the table has them
            dataset = dataset.flatten_indices()
        self.dataset = dataset  # keeps the memory map open
        self.input_ids = [as_arrays(chunk) for chunk in dataset.data.column("input_ids").chunks]
        self.sentence_ends = [as_arrays(chunk) for chunk in dataset.data.column("sentence_ends").chunks]
        self.chunk_starts = np.cumsum([0] + [len(offsets) - 1 for _, offsets in self.input_ids])

    def __len__(self) -> int:
        return int(self.chunk_starts[-1])

    def _row(self, column: list, document: int) -> np.ndarray:
        chunk = int(np.searchsorted(self.chunk_starts, document, side="right")) - 1
        values, offsets = column[chunk]
        row = document - self.chunk_starts[chunk]
        return values[offsets[row] : offsets[row + 1]]

    def tokens(self, document: int) -> np.ndarray:
        """All token ids of a document, a view (tokens,)."""
        return self._row(self.input_ids, document)

    def ends(self, document: int) -> np.ndarray:
        """After how many tokens each sentence of a document ends, a view (sentences,)."""
        return self._row(self.sentence_ends, document)


def as_arrays(column) -> tuple[np.ndarray, np.ndarray]:
    """Values and offsets of an Arrow list array, without a copy."""
    return column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy(zero_copy_only=True)
