"""`fixedbert inspect`: a checkpoint, or two, on real text. `results.py` says what is measured."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from ..conversion.checkpoints import model_directory, read_config
from ..conversion.families import FAMILIES, fixed_head_config
from ..conversion.weights import load_body
from ..data.corpora import Corpus, CorpusReader
from ..data.sentences import ends_sentence, split_document
from ..data.sequences import read_sequences
from ..data.tokenizers import check_vocab_size, encode, load_tokenizer
from ..support.errors import InputError, require_package
from ..support.files import error_reason, finite, new_directory, reading, to_json
from .page import inspection_html
from .picture import draw
from .recorder import Recorder
from .results import Example, Inspection, json_of

EXAMPLES = 3  # sentences that the page shows the attention over
EXAMPLE_TOKENS = 7, 32  # the fewest and the most of such a sentence, with [CLS] and [SEP]
EXAMPLE_WEIGHTS = 1_000_000  # of attention, a byte each: the page of two checkpoints stays below 5 MB
EXAMPLE_TEXT = 20_000  # characters in which they are looked for


@dataclass(frozen=True)
class Sample:
    """Which text is looked at, and how much of it: the arguments of `inspect` with these names."""

    validation_file: str
    max_seq_length: int
    max_samples: int
    importance_samples: int
    batch_size: int

    def __post_init__(self):
        for field in ("max_samples", "importance_samples", "batch_size"):
            if (count := getattr(self, field)) < 1:
                raise InputError(f"{count}: must be at least 1.", field)

    def beginning(self) -> str:
        """The first EXAMPLE_TEXT characters of the text."""
        rows, size = [], 0
        for row in CorpusReader(Corpus(self.validation_file, document_boundary="line")):
            assert isinstance(row, str)  # with this boundary
            rows.append(row.rstrip("\n"))
            size += len(row)
            if size >= EXAMPLE_TEXT:
                break
        return "\n".join(rows)[:EXAMPLE_TEXT]


@dataclass(frozen=True)
class Checkpoint:
    name: str
    recorder: Recorder
    tokenizer: PreTrainedTokenizerBase
    longest_example: int  # tokens


def inspect(  # noqa: PLR0913  the options of the command
    model: str | Path | PreTrainedModel,
    output_dir: str | Path,
    validation_file: str | Path,
    max_seq_length: int = 128,
    max_samples: int = 1000,
    importance_samples: int = 8,
    batch_size: int = 16,
    compare: str | Path | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    revision: str = "main",
    cache_dir: str | None = None,
    token: str | None = None,
) -> Inspection:
    """
    Write inspection.html, a page with all that is found, inspection.json and inspection.png into `output_dir`, a new
    directory.

    Args:
        model: a BERT-like encoder, or the directory or Hub id of one.
        validation_file: file, folder or glob of the formats that pretraining reads; sequences are cut from its
            documents.
        max_samples: sequences to measure, the first ones.
        importance_samples: of these, sequences for `importance`, which runs the model once for each head.
        compare: directory or Hub id of a second encoder, inspected on the same text. The page shows both;
            compared.json and compared.png are of the second.
        tokenizer: of a model in memory.
        revision, cache_dir, token: for models on the Hub; `revision` is of `model` alone.

    Raises:
        InputError: no such model or text, text shorter than one sequence, or a model whose attention cannot be seen.
    """
    validation_file = str(validation_file)
    sample = Sample(validation_file, max_seq_length, max_samples, importance_samples, batch_size)
    hub_options = {"revision": revision, "cache_dir": cache_dir, "token": token}
    require_package("matplotlib", "plots")
    CorpusReader(Corpus(validation_file))  # it is there, which is said before the model is loaded
    with new_directory(output_dir) as folder, model_directory(model, tokenizer) as place:
        checkpoints = [load(place, max_seq_length, **hub_options)]
        if isinstance(model, PreTrainedModel):  # not in a place that somebody can look at
            checkpoints = [replace(checkpoint, name=Path(place).name) for checkpoint in checkpoints]
        if compare is not None:
            checkpoints.append(load(str(compare), max_seq_length, **{**hub_options, "revision": "main"}))
        sentences = example_sentences(checkpoints[0], sample)
        try:
            inspections = [inspect_checkpoint(checkpoint, sample, sentences) for checkpoint in checkpoints]
        except torch.linalg.LinAlgError as error:  # of products that overflow
            raise not_finite(" or ".join(checkpoint.name for checkpoint in checkpoints)) from error
        for name, inspection in zip(("inspection", "compared"), inspections, strict=False):
            found = json_of(inspection)
            if finite(found) != found:
                raise not_finite(inspection.model)
            (folder / f"{name}.json").write_text(to_json(found, indent=1) + "\n")
            draw(inspection, folder / f"{name}.png")
        (folder / "inspection.html").write_text(inspection_html(inspections), encoding="utf-8")
    first, *others = inspections
    return replace(first, compared=others[0] if others else None, folder=str(output_dir))


def not_finite(name: str) -> InputError:
    return InputError(f"{name}: what its heads do is not finite; its weights are damaged.")


def inspect_checkpoint(checkpoint: Checkpoint, sample: Sample, sentences: list[str]) -> Inspection:
    """What the heads do with the sample, and as examples with the sentences."""
    recorder, length = checkpoint.recorder, sample.max_seq_length
    batches = read_sequences([sample.validation_file], checkpoint.tokenizer, length, sample.batch_size)
    first = measure_sequences(recorder, batches, sample.max_samples, sample.importance_samples)
    if first is None:
        raise InputError(
            f"{sample.validation_file}: shorter than {length} tokens; give more text, or a lower max_seq_length."
        )
    rounds = 1 + len(sentences)
    with tqdm(total=rounds * sum(recorder.counts), desc="silencing heads", unit="head") as progress:
        importance = recorder.importance(first, progress)
        examples = [example_of(sentence, checkpoint, progress) for sentence in sentences]
    config = recorder.model.config
    return Inspection(
        model=checkpoint.name,
        layers=recorder.layers,
        heads=recorder.heads,
        head_counts=recorder.counts,
        head_sizes=recorder.sizes,
        can_grow=config.model_type in FAMILIES and not getattr(config, "qk_norm", False),
        width=config.hidden_size,
        max_seq_length=length,
        sequences=recorder.sequences,
        importance_sequences=len(first),
        importance=importance,
        examples=examples,
        compared=None,
        **recorder.means(length),
    )


def measure_sequences(recorder: Recorder, batches: Iterator[Tensor], most: int, kept: int) -> Tensor | None:
    """Record the first `most` sequences; returns the first `kept` of them (kept, n), or None if there are none."""
    first: list[Tensor] = []
    with tqdm(total=most, desc="measuring sequences", unit="sequence") as progress:
        for ids in batches:
            ids = ids[: most - recorder.sequences]
            recorder.add_sequences(ids)
            first += ids[: kept - len(first)]
            progress.update(len(ids))
            if recorder.sequences >= most:
                break
    return torch.stack(first) if first else None


def example_sentences(checkpoint: Checkpoint, sample: Sample) -> list[str]:
    """The first EXAMPLES different sentences of the text that have neither too few nor too many tokens."""
    found: dict[str, None] = {}
    for sentence in (" ".join(one.split()) for one in split_document(sample.beginning())):
        tokens = len(encode(checkpoint.tokenizer, sentence, verbose=False)["input_ids"])
        if ends_sentence(sentence) and EXAMPLE_TOKENS[0] <= tokens <= checkpoint.longest_example:
            found[sentence] = None
    return [*found][:EXAMPLES]


def example_of(sentence: str, checkpoint: Checkpoint, progress: tqdm) -> Example:
    recorder, tokenizer = checkpoint.recorder, checkpoint.tokenizer
    options = {"truncation": True, "max_length": checkpoint.longest_example, "return_tensors": "pt"}
    ids = encode(tokenizer, sentence, **options)["input_ids"]
    tokens = [token.strip() for token in tokenizer.batch_decode(ids[0][:, None])]
    return Example(sentence, tokens, recorder.attention(ids), recorder.token_changes(ids, progress))


def load(name: str, length: int, **hub_options) -> Checkpoint:
    with reading(name, "give a model that is whole, and of a kind that transformers knows", "no model can be read"):
        config = read_config(name, **hub_options)
        model, _ = load_body(AutoModel, name, config, dtype=torch.float32, trust_remote_code=False, **hub_options)
    tokenizer = load_tokenizer(name, **hub_options)
    check_vocab_size(tokenizer, config.vocab_size, name)
    if getattr(config, "is_decoder", False) or not hasattr(getattr(model, "encoder", None), "layer"):
        remedy = "; put it through fixedbert convert first" if config.model_type == "distilbert" else ""
        raise InputError(f"{name}: only encoders like BERT, which look both ways, can be inspected{remedy}.")
    longest = config.max_position_embeddings
    if config.model_type in FAMILIES:  # of RoBERTa's positions some are not for tokens
        longest = fixed_head_config(config).max_position_embeddings
    if not 3 <= length <= longest:
        raise InputError(f"{length}: {name} takes 3 to {longest} tokens.", "max_seq_length")
    try:
        recorder = Recorder(model.eval())
    except (AttributeError, ValueError) as error:
        raise InputError(f"{name}: its attention cannot be seen: {error_reason(error)}.") from error
    return Checkpoint(name, recorder, tokenizer, longest_example(sum(recorder.counts), length))


def longest_example(heads: int, length: int) -> int:
    """The most tokens of an example for a model with so many heads in all layers, and sequences of `length`."""
    fitting = math.isqrt(EXAMPLE_WEIGHTS // (EXAMPLES * heads))
    return min(length, EXAMPLE_TOKENS[1], max(fitting, EXAMPLE_TOKENS[0]))
