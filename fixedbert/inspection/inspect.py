"""`fixedbert inspect`: computes statistics of the attention heads of a checkpoint on real text."""

from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from tqdm.auto import tqdm
from transformers import AutoModel, PreTrainedTokenizerBase

from ..commands import takes_options
from ..data.corpora import Corpus, CorpusReader
from ..data.sentences import ends_sentence, split_document
from ..data.sequences import read_sequences
from ..data.tokenizers import check_vocab_size, load_tokenizer
from ..loading.checkpoints import read_config
from ..loading.families import check_length
from ..loading.weights import load_weights, report_float32
from ..options import InspectOptions
from ..support.errors import InputError, require_package
from ..support.files import error_reason, new_directory, reading, to_json
from .page import draw_maps, inspection_html
from .recorder import Recorder
from .results import Example, Inspection, json_fields

BATCH_SIZE = 16
IMPORTANCE_SEQUENCES = 8  # for which the model runs once per head
EXAMPLES = 3  # number of sentences whose attention the page shows
EXAMPLE_TOKENS = 7, 32  # minimum and maximum length of an example, including [CLS] and [SEP]
EXAMPLE_TEXT = 100, 20_000  # number of lines and characters searched for examples, from the start of the text


class Checkpoint(NamedTuple):
    name: str
    recorder: Recorder
    tokenizer: PreTrainedTokenizerBase
    example_length: int  # maximum number of tokens in an example


@takes_options("inspect")
def inspect(options: InspectOptions) -> Inspection:
    """
    Computes statistics of attention heads on text. Writes inspection.html, inspection.json and inspection.png.

    Raises:
        InputError: If the model or text does not exist, the text is too short, or attention cannot be recorded.
    """
    text, length = options.validation_file, options.max_seq_length
    require_package("matplotlib", "plots")
    CorpusReader(Corpus(text))  # fails early if no text is found
    with new_directory(options.output_dir) as directory:
        checkpoint = load_checkpoint(options.model, length, **options.hub_options())
        inspection = inspect_checkpoint(checkpoint, example_sentences(checkpoint, text), options)
        (directory / "inspection.json").write_text(to_json(json_fields(inspection), indent=1) + "\n")
        (directory / "inspection.html").write_text(inspection_html(inspection), encoding="utf-8")
        draw_maps(inspection, directory / "inspection.png")
    return replace(inspection, directory=options.output_dir)


def inspect_checkpoint(checkpoint: Checkpoint, sentences: list[str], options: InspectOptions) -> Inspection:
    """
    Computes statistics of the heads on sequences of `max_seq_length` tokens from the text and on example sentences.

    Raises:
        InputError: If the text is shorter than one sequence.
    """
    recorder, text, length = checkpoint.recorder, options.validation_file, options.max_seq_length
    sequences = read_sequences([text], checkpoint.tokenizer, length, options.max_eval_samples)
    if not len(sequences):
        raise InputError(f"{text}: shorter than {length} tokens; pass more text or a lower `max_seq_length`.")
    for ids in tqdm(sequences.split(BATCH_SIZE), desc="computing measures", unit="batch"):
        recorder.add_sequences(ids)
    first = sequences[:IMPORTANCE_SEQUENCES]
    rounds = 1 + len(sentences)
    with tqdm(total=rounds * sum(recorder.counts), desc="ablating heads", unit="head") as progress:
        importance = recorder.importance(first, progress)
        examples = [record_example(sentence, checkpoint, progress) for sentence in sentences]
    return Inspection(
        model=checkpoint.name,
        layers=len(recorder.counts),
        heads=max(recorder.counts),
        head_counts=recorder.counts,
        head_sizes=recorder.sizes,
        width=recorder.model.config.hidden_size,
        max_seq_length=length,
        sequences=recorder.sequences,
        importance_sequences=len(first),
        importance=importance,
        examples=examples,
        **recorder.means(length),
    )


def example_sentences(checkpoint: Checkpoint, text: str) -> list[str]:
    """Returns up to EXAMPLES different sentences of suitable length from the start of the text."""
    rows = (str(row).rstrip("\n") for row in CorpusReader(Corpus(text, document_boundary="line")))
    beginning = "\n".join(islice(rows, EXAMPLE_TEXT[0]))[: EXAMPLE_TEXT[1]]
    sentences: dict[str, None] = {}
    for sentence in (" ".join(one.split()) for one in split_document(beginning)):
        tokens = len(checkpoint.tokenizer(sentence, verbose=False)["input_ids"])
        if ends_sentence(sentence) and EXAMPLE_TOKENS[0] <= tokens <= checkpoint.example_length:
            sentences[sentence] = None
    return [*sentences][:EXAMPLES]


def record_example(sentence: str, checkpoint: Checkpoint, progress: tqdm) -> Example:
    _, recorder, tokenizer, longest = checkpoint
    ids = tokenizer(sentence, truncation=True, max_length=longest, return_tensors="pt")["input_ids"]
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
    check_length(length, config)
    try:
        recorder = Recorder(model.float().eval())
    except (AttributeError, ValueError) as error:
        raise InputError(f"{name}: the attention cannot be recorded ({error_reason(error)}).") from error
    return Checkpoint(name, recorder, tokenizer, min(length, EXAMPLE_TOKENS[1]))
