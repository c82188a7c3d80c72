"""Shrink: a BERT with fewer and smaller heads, cut to what a text uses."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..checkpoint_conversion import copy_sentence_modules, copy_tokenizer, files_beside, one_for_all
from ..checkpoints import is_tensorflow, load_bert
from ..configuration_fixed_head_bert import FixedHeadBertConfig
from ..conversion import Heads, convert, numbers
from ..data.corpora import Corpus, CorpusReader
from ..data.sequences import sequences
from ..data.tokenizers import load_tokenizer
from ..errors import InputError
from ..files import new_directory
from ..modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..shrinking import heads_for_parameters, parameters
from .layer_by_layer import LayerByLayer, LayerErrors, heads_of


@dataclass(frozen=True)
class Sizes:
    """
    What a model is to be cut to: by sizes, by `keep`, or by `tolerance`.

    Args:
        attention_head_size: of all layers or of each, at most the old.
        value_head_size: likewise; by default attention_head_size, or the old one where it was another.
        num_attention_heads: likewise; by default the old.
        keep: share of the attention's parameters. Sizes and heads of each layer follow from the errors that they add.
        tolerance: largest relative error of each layer's attention output on the text. Sizes and heads follow.
        multiple_of: what sizes that follow are multiples of.
        intermediate_size: neurons of the feed-forward networks, at most the old.
    """

    attention_head_size: int | list[int] | None = None
    value_head_size: int | list[int] | None = None
    num_attention_heads: int | list[int] | None = None
    keep: float | None = None
    tolerance: float | None = None
    multiple_of: int = 1
    intermediate_size: int | None = None

    def __post_init__(self):
        given = any([self.attention_head_size, self.value_head_size, self.num_attention_heads])
        ways = given + (self.keep is not None) + (self.tolerance is not None)
        if ways > 1:
            raise InputError("sizes, --keep and --tolerance exclude each other: give one.")
        if not ways and self.intermediate_size is None:
            raise InputError("nothing to cut: give --attention_head_size, --keep, --tolerance or --intermediate_size.")
        for field in ("keep", "tolerance"):
            share = getattr(self, field)
            if share is not None and not 0 < share < 1:
                raise InputError(f"{share}: give a share between 0 and 1.", field)
        if self.multiple_of < 1 or given and self.multiple_of > 1:
            raise InputError(f"{self.multiple_of}: give at least 1, with --keep or --tolerance.", "multiple_of")

    def heads(self, config: FixedHeadBertConfig) -> list[Heads]:
        """
        Those of each layer that the sizes ask for, of a model with this configuration.

        Raises:
            InputError: they are no cut of what it has.
        """
        old = heads_of(config)
        size, value_size = one_for_all(self.attention_head_size), one_for_all(self.value_head_size)
        if value_size is None and config.value_head_size is None:
            value_size = size
        counts = numbers(one_for_all(self.num_attention_heads), "num_attention_heads", [heads.number for heads in old])
        sizes = numbers(size, "attention_head_size", [heads.size for heads in old])
        value_sizes = numbers(value_size, "value_head_size", [heads.value_size for heads in old])
        new = [Heads(*shape) for shape in zip(counts, sizes, value_sizes, strict=True)]
        if not 1 <= (self.intermediate_size or 1) <= config.intermediate_size:
            raise InputError(f"{self.intermediate_size}: give 1 to {config.intermediate_size}.", "intermediate_size")
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            if min(after) < 1 or any(new > old for old, new in zip(before, after, strict=True)):
                raise InputError(
                    f"{after} for {before} in layer {number}: shrinking leaves at most what was there, and at least 1 "
                    "of each; fixedbert convert makes heads more and larger."
                )
        return new


@dataclass(frozen=True)
class Shrinking:
    """
    What `shrink` predicts and measures.

    Attributes:
        model: as it was given.
        tokens: of the text, in sequences of `max_seq_length`.
        layers: the heads and errors of each.
        intermediate_size: before and after.
    """

    model: str
    tokens: int
    max_seq_length: int
    layers: list[LayerErrors]
    intermediate_size: tuple[int, int]


def shrink(
    model: str | Path,
    output_dir: str | Path | None,
    train_file: str | list[str],
    sizes: Sizes | None = None,
    max_seq_length: int = 128,
    max_samples: int = 1000,
    batch_size: int = 16,
    **hub_options,
) -> Shrinking:
    """
    Cut a BERT, a RoBERTa-like model or a FixedHeadBert, and write it into a new directory, with its tokenizer, a card,
    shrinking.json and shrinking.png.

    Args:
        model: directory or Hub id.
        output_dir: not needed for a prediction.
        train_file: files, folders or globs of the formats that pretraining reads, by which is cut.
        sizes: what to cut to; None only predicts errors by size, and writes nothing.
        max_seq_length: tokens of a sequence.
        max_samples: sequences, the first ones.
        batch_size: sequences at once.
        hub_options: `revision`, `token` and `cache_dir` of from_pretrained.

    Raises:
        InputError: no such model or text, a model that cannot be cut (MHE, qk_norm, cross-attention), sizes that are
            no cut, or too little text.
    """
    texts = [train_file] if isinstance(train_file, str) else train_file
    for field, count in (("max_samples", max_samples), ("batch_size", batch_size)):
        if count < 1:
            raise InputError(f"{count}: must be at least 1.", field)
    for text in texts:
        CorpusReader(Corpus(text))  # it is there, which is said before the model is loaded
    original = load(model, **hub_options)
    config = original.config
    if sizes is not None:
        sizes.heads(config)  # wrong sizes are found before the work begins
    if not 3 <= max_seq_length <= config.max_position_embeddings:
        longest = config.max_position_embeddings
        raise InputError(f"{max_seq_length}: the model takes 3 to {longest} tokens.", "max_seq_length")
    beside = files_beside(model, **hub_options)
    tokenizer = load_tokenizer(str(beside / "vocab.txt" if is_tensorflow(model) else beside), trust_remote_code=False)
    text = partial(first_sequences, texts, tokenizer, max_seq_length, max_samples, batch_size)
    work, dtype = LayerByLayer(original.float(), text), original.dtype
    if sizes is None:
        _, layers = work.curves()
        return Shrinking(str(model), work.tokens, max_seq_length, layers, (config.intermediate_size,) * 2)
    before = config.intermediate_size
    with new_directory(output_dir) as folder:
        layers = cut(work, sizes, folder / "hidden_states")
        found = Shrinking(str(model), work.tokens, max_seq_length, layers, (before, config.intermediate_size))
        original.to(dtype).save_pretrained(folder)
        copy_tokenizer(beside, folder, do_lower_case=True)
        copy_sentence_modules(beside, folder)
        (folder / "shrinking.json").write_text(json.dumps(asdict(found), indent=1) + "\n")
    return found


def cut(work: LayerByLayer, sizes: Sizes, folder: Path) -> list[LayerErrors]:
    """Cut the model to these sizes, with the text's hidden states in `folder`, which is removed."""
    config = work.model.config
    if sizes.keep is not None:
        budget = sizes.keep * sum(parameters(heads, config.hidden_size) for heads in heads_of(config))
        heads = heads_for_parameters(work.curves()[0], budget, sizes.multiple_of)
    elif sizes.tolerance is not None:
        heads = None
    else:
        heads = sizes.heads(config)
    layers = work.cut(folder, heads, sizes.tolerance or 0.0, sizes.multiple_of, sizes.intermediate_size)
    shutil.rmtree(folder)
    return layers


def load(model: str | Path, **hub_options) -> FixedHeadBertPreTrainedModel:
    """
    A model to cut, as a FixedHeadBert.

    Raises:
        InputError: as `load_bert`; or its heads cannot be cut.
    """
    found = load_bert(model, **hub_options)
    config = found.config
    reasons = {
        "head_embedding": "all heads share one projection, so that none can be cut by itself",
        "qk_norm": "queries and keys are normalised, which a cut would change",
        "add_cross_attention": "the second moments of another text would be needed for cross-attention",
    }
    for field, reason in reasons.items():
        if getattr(config, field, None):
            raise InputError(f"{model}: {field} {getattr(config, field)!r}: {reason}; it cannot be shrunk.")
    fixed = found if isinstance(found, FixedHeadBertPreTrainedModel) else convert(found)
    return fixed.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def first_sequences(
    texts: list[str], tokenizer: PreTrainedTokenizerBase, length: int, most: int, batch: int
) -> Iterator[Tensor]:
    """Batches of ids (B, length), `most` sequences in all."""
    seen = 0
    for ids in sequences(texts, tokenizer, length, batch):
        yield ids[: most - seen]
        seen += len(ids)
        if seen >= most:
            return
    if not seen:
        raise InputError(
            f"{', '.join(texts)}: shorter than {length} tokens; give more text, or a lower --max_seq_length."
        )
