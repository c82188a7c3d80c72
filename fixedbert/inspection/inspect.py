"""`fixedbert inspect`: computes statistics of the attention heads of one or two checkpoints on real text."""

from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from tqdm.auto import tqdm
from transformers import AutoModel, PreTrainedTokenizerBase

from ..conversion.checkpoints import read_config
from ..conversion.families import max_tokens
from ..conversion.weights import load_weights, report_float32
from ..data.corpora import Corpus, CorpusReader
from ..data.sentences import ends_sentence, split_document
from ..data.sequences import read_sequences
from ..data.tokenizers import check_vocab_size, encode, load_tokenizer
from ..support.errors import InputError, require_package
from ..support.files import error_reason, finite, new_directory, reading, to_json
from .page import draw_maps, inspection_html
from .recorder import Recorder
from .results import Example, Inspection, json_fields

EXAMPLES = 3  # number of sentences whose attention the page shows
EXAMPLE_TOKENS = 7, 32  # minimum and maximum length of an example, including [CLS] and [SEP]
EXAMPLE_TEXT = 100, 20_000  # number of lines and characters searched for examples, from the start of the text


@dataclass(frozen=True)
class Checkpoint:
    name: str
    recorder: Recorder
    tokenizer: PreTrainedTokenizerBase
    example_length: int  # maximum number of tokens in an example


def inspect(  # noqa: PLR0913  one argument per command-line option
    model: str | Path,
    output_dir: str | Path,
    validation_file: str | Path,
    max_seq_length: int = 128,
    max_samples: int = 1000,
    importance_samples: int = 8,
    batch_size: int = 16,
    compare: str | Path | None = None,
    revision: str = "main",
    cache_dir: str | None = None,
    token: str | None = None,
) -> Inspection:
    """
    Computes statistics of attention heads on text. Writes inspection.html, inspection.json and inspection.png.

    Args:
        model: Directory or Hub id of a BERT-like encoder.
        output_dir: New directory for the written files.
        validation_file: Text file, directory or glob pattern. Supports all formats that pretraining reads.
        max_seq_length, batch_size: Number of tokens per sequence, and of sequences per batch.
        max_samples: Maximum number of sequences to run the model on.
        importance_samples: Number of sequences for measuring `importance`, which takes one forward pass per head.
        compare: Directory or Hub id of a second encoder. It is inspected on the same text and shown on the same page.
            Its results are written to compared.json and compared.png.
        revision, cache_dir, token: Options for models on the Hub. `revision` applies only to `model`.

    Raises:
        InputError: If the model or text does not exist, the text is too short, or attention cannot be recorded.
    """
    text = str(validation_file)
    hub_options = {"revision": revision, "cache_dir": cache_dir, "token": token}
    for name, value in (("max_samples", max_samples), ("importance_samples", importance_samples)):
        if value < 1:
            raise InputError(f"{value}: must be at least 1.", name)
    require_package("matplotlib", "plots")
    CorpusReader(Corpus(text))  # fails early if no text is found
    with new_directory(output_dir) as directory:
        checkpoints = [load_checkpoint(str(model), max_seq_length, **hub_options)]
        if compare is not None:
            checkpoints.append(load_checkpoint(str(compare), max_seq_length, **{**hub_options, "revision": "main"}))
        sentences = example_sentences(checkpoints[0], text)
        samples = (max_seq_length, batch_size, max_samples, importance_samples)
        inspections = [inspect_checkpoint(checkpoint, text, sentences, *samples) for checkpoint in checkpoints]
        for name, inspection in zip(("inspection", "compared"), inspections, strict=False):
            (directory / f"{name}.json").write_text(to_json(json_fields(inspection), indent=1) + "\n")
            draw_maps(inspection, directory / f"{name}.png")
        (directory / "inspection.html").write_text(inspection_html(inspections), encoding="utf-8")
    first, *others = inspections
    return replace(first, compared=others[0] if others else None, directory=str(output_dir))


def inspect_checkpoint(
    checkpoint: Checkpoint,
    text: str,
    sentences: list[str],
    length: int,
    batch_size: int,
    max_samples: int,
    importance_samples: int,
) -> Inspection:
    """
    Computes statistics of the heads on sequences of `length` tokens from the text and on the example sentences.

    Raises:
        InputError: If the text is shorter than one sequence, or if a measure is NaN or infinite.
    """
    recorder = checkpoint.recorder
    error = InputError(f"{checkpoint.name}: attention outputs contain NaN or infinity; are the weights corrupted?")
    sequences = read_sequences([text], checkpoint.tokenizer, length, max_samples)
    if not len(sequences):
        raise InputError(f"{text}: shorter than {length} tokens; pass more text or a lower `max_seq_length`.")
    try:
        for ids in tqdm(sequences.split(batch_size), desc="computing measures", unit="batch"):
            recorder.add_sequences(ids)
    except torch.linalg.LinAlgError:  # raised for matrices that contain infinity
        raise error from None
    first = sequences[:importance_samples]
    rounds = 1 + len(sentences)
    with tqdm(total=rounds * sum(recorder.counts), desc="ablating heads", unit="head") as progress:
        importance = recorder.importance(first, progress)
        examples = [record_example(sentence, checkpoint, progress) for sentence in sentences]
    inspection = Inspection(
        model=checkpoint.name,
        layers=recorder.layers,
        heads=recorder.heads,
        head_counts=recorder.counts,
        head_sizes=recorder.sizes,
        width=recorder.model.config.hidden_size,
        max_seq_length=length,
        sequences=recorder.sequences,
        importance_sequences=len(first),
        importance=importance,
        examples=examples,
        compared=None,
        **recorder.means(length),
    )
    fields = json_fields(inspection)
    if finite(fields) != fields:
        raise error
    return inspection


def example_sentences(checkpoint: Checkpoint, text: str) -> list[str]:
    """Returns up to EXAMPLES different sentences of suitable length from the start of the text."""
    rows = (str(row).rstrip("\n") for row in CorpusReader(Corpus(text, document_boundary="line")))
    beginning = "\n".join(islice(rows, EXAMPLE_TEXT[0]))[: EXAMPLE_TEXT[1]]
    sentences: dict[str, None] = {}
    for sentence in (" ".join(one.split()) for one in split_document(beginning)):
        tokens = len(encode(checkpoint.tokenizer, sentence, verbose=False)["input_ids"])
        if ends_sentence(sentence) and EXAMPLE_TOKENS[0] <= tokens <= checkpoint.example_length:
            sentences[sentence] = None
    return [*sentences][:EXAMPLES]


def record_example(sentence: str, checkpoint: Checkpoint, progress: tqdm) -> Example:
    recorder, tokenizer = checkpoint.recorder, checkpoint.tokenizer
    options = {"truncation": True, "max_length": checkpoint.example_length, "return_tensors": "pt"}
    ids = encode(tokenizer, sentence, **options)["input_ids"]
    tokens = [token.strip() for token in tokenizer.batch_decode(ids[0][:, None])]
    return Example(sentence, tokens, recorder.attention(ids), recorder.token_changes(ids, progress))


def load_checkpoint(name: str, length: int, **hub_options) -> Checkpoint:
    """Loads a model and its tokenizer. Raises InputError if the model is not an encoder or `length` is invalid."""
    with reading(name, "pass a complete model of a type that transformers supports", "the model cannot be loaded"):
        config = read_config(name, **hub_options)
        model, _ = load_weights(AutoModel, name, config, trust_remote_code=False, **hub_options)
    report_float32(name, model)
    tokenizer = load_tokenizer(name, **hub_options)
    check_vocab_size(tokenizer, config.vocab_size, name)
    if getattr(config, "is_decoder", False) or not hasattr(getattr(model, "encoder", None), "layer"):
        raise InputError(f"{name}: only encoders like BERT can be inspected; convert a DistilBERT first.")
    longest = max_tokens(config)
    if not 3 <= length <= longest:
        raise InputError(f"{length}: must be between 3 and {longest} for {name}.", "max_seq_length")
    try:
        recorder = Recorder(model.float().eval())
    except (AttributeError, ValueError) as error:
        raise InputError(f"{name}: the attention cannot be recorded ({error_reason(error)}).") from error
    return Checkpoint(name, recorder, tokenizer, min(length, EXAMPLE_TOKENS[1]))
