"""
Shrink: a BERT with fewer and smaller heads, cut to what a text uses, and trained to repair what is lost.

Layers are cut from the first to the last (`LayerByLayer.cut` of layers.py): whole heads, then scores, then values
(`cut_attention` of cut.py, which has the mathematics), then neurons. budget.py chooses sizes for `keep` and
`tolerance`.
"""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from accelerate import PartialState
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..conversion.checkpoints import is_tensorflow, load_bert
from ..conversion.convert import (
    CARD,
    copy_beside,
    files_beside,
)
from ..conversion.growing import Heads, convert, heads_of, numbers
from ..data.corpora import Corpus, CorpusReader
from ..data.sequences import report_sequences, sequences
from ..data.tokenizers import check_size, load_tokenizer
from ..model.configuration_fixed_head_bert import FixedHeadBertConfig
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..model_card import checkpoint_card, table
from ..support.errors import InputError
from ..support.figures import drawing, with_matplotlib
from ..support.files import json_text, new_directory, output_path, read_object
from ..training.arguments import CommonArguments, check_seeds
from ..training.interruption import train
from ..training.output import check_same_data, output_directory
from ..training.precision import has_bf16
from .budget import heads_for_parameters, parameters
from .layers import LayerByLayer, LayerErrors, errors_from_original
from .repair import HiddenStateTrainer

LONGEST = 512  # tokens of a sequence, where no length is given
CUT = "cut"  # where the cut model is kept while it is trained
ERRORS = "shrinking.json"


@dataclass(frozen=True)
class Text:
    """
    What a model is cut by: the first `most` sequences of `length` tokens, `batch_size` at once.

    Args:
        files: files, folders or globs of the formats that pretraining reads.
        length: by default as many as the model takes, at most LONGEST.
        do_lower_case: of `load_tokenizer`; a TensorFlow checkpoint does not say.

    Raises:
        InputError: there are no such files, or a number is below 1.
    """

    files: list[str]
    length: int | None = None
    most: int = 250
    batch_size: int = 16
    do_lower_case: bool | None = None

    def __post_init__(self):
        for name, count in (("max_samples", self.most), ("batch_size", self.batch_size)):
            if count < 1:
                raise InputError(f"{count}: must be at least 1.", name)
        for file in self.files:
            CorpusReader(Corpus(file))

    def length_for(self, config: FixedHeadBertConfig) -> int:
        """
        The length of sequences for a model with this configuration.

        Raises:
            InputError: it does not take sequences of this length.
        """
        longest = config.max_position_embeddings
        length = min(LONGEST, longest) if self.length is None else self.length
        if not 3 <= length <= longest:
            raise InputError(f"{length}: the model takes 3 to {longest} tokens.", "max_seq_length")
        return length

    def batches(self, tokenizer: PreTrainedTokenizerBase) -> Iterator[Tensor]:
        """Ids (B, length)."""
        assert self.length is not None  # that of `length_for`
        seen = 0
        for ids in sequences(self.files, tokenizer, self.length, self.batch_size):
            yield ids[: self.most - seen]
            seen += len(ids)
            if seen >= self.most:
                return
        if not seen:
            files = ", ".join(self.files)
            raise InputError(f"{files}: shorter than {self.length} tokens; give more, or a lower `max_seq_length`.")


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
            raise InputError("sizes, `keep` and `tolerance` exclude each other: give one.")
        if not ways and self.intermediate_size is None:
            raise InputError("nothing to cut: give `attention_head_size`, `keep`, `tolerance` or `intermediate_size`.")
        for name in ("keep", "tolerance"):
            share = getattr(self, name)
            if share is not None and not 0 < share < 1:
                raise InputError(f"{share}: give a share between 0 and 1.", name)
        if self.multiple_of < 1 or given and self.multiple_of > 1:
            raise InputError(f"{self.multiple_of}: give at least 1, with `keep` or `tolerance`.", "multiple_of")

    def heads(self, config: FixedHeadBertConfig) -> list[Heads]:
        """
        Heads of each layer that the sizes ask for, in a model with this configuration.

        Raises:
            InputError: they are no cut of what it has.
        """
        old = heads_of(config)
        size, value_size = self.attention_head_size, self.value_head_size
        if value_size is None and config.value_head_size is None:
            value_size = size
        counts = numbers(self.num_attention_heads, "num_attention_heads", [heads.number for heads in old])
        sizes = numbers(size, "attention_head_size", [heads.size for heads in old])
        value_sizes = numbers(value_size, "value_head_size", [heads.value_size for heads in old])
        new = [Heads(*shape) for shape in zip(counts, sizes, value_sizes, strict=True)]
        if self.intermediate_size is not None and not 1 <= self.intermediate_size <= config.intermediate_size:
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
        positions: most tokens that the model takes.
        intermediate_size, parameters: before and after; parameters are of the whole model.
        cut: whether the model was cut, or errors predicted alone.
        distil_steps: of training after the cut.
        repaired: after training, as `LayerErrors.from_original`, of each layer; without training none.
    """

    model: str
    tokens: int
    max_seq_length: int
    positions: int
    layers: list[LayerErrors]
    intermediate_size: tuple[int, int]
    parameters: tuple[int, int]
    cut: bool = True
    distil_steps: int = 0
    repaired: list[float] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """What training after the cut did to the errors, in words."""
        pairs = enumerate(zip(self.layers, self.repaired, strict=True))
        worse = [str(number) for number, (layer, after) in pairs if after > layer.from_original]
        if not worse:
            return "all layers are nearer to the original"
        return f"the errors of layers {', '.join(worse)} are larger than before: give more text, or more steps"

    @property
    def limit(self) -> str:
        """A sentence where the model takes longer inputs than the text had."""
        if self.max_seq_length >= self.positions:
            return ""
        return (
            f"Inputs of more than {self.max_seq_length} tokens, of the {self.positions} that the model takes, were "
            "not in the text: their errors can be larger."
        )


@dataclass(frozen=True)
class Distillation:
    """
    How a cut model is trained to give the original's hidden states and attention outputs on the text, without labels.

    Args:
        steps: of `Text.batch_size` sequences each, which begin anew where the text ends.
        learning_rate: the highest; it rises for a tenth of the steps and falls to zero.
        seed: of the order of sequences.

    Raises:
        InputError: fewer steps than 1, or no such seed.
    """

    steps: int
    learning_rate: float = 3e-4
    seed: int = 0

    def __post_init__(self):
        if self.steps < 1:
            raise InputError(f"{self.steps}: give at least 1, or leave it out.", "distil_steps")
        check_seeds([self.seed])

    def arguments(self, output_dir: str | Path, batch_size: int) -> CommonArguments:
        use_cpu = not torch.cuda.is_available()  # errors are measured in float64, which other devices may not have
        arguments = CommonArguments(
            output_dir=str(output_dir),
            do_train=True,
            max_steps=self.steps,
            per_device_train_batch_size=batch_size,
            learning_rate=self.learning_rate,
            warmup_steps=0.1,
            seed=self.seed,
            logging_steps=max(1, self.steps // 30),
            save_steps=100,
            save_total_limit=1,
            bf16=has_bf16(use_cpu),
            use_cpu=use_cpu,
            report_to=["none"],
        )
        if arguments.n_gpu > 1:
            arguments._n_gpu = 1  # a step has `batch_size` sequences, however many devices there are
        return arguments


def shrink(
    model: str | Path,
    output_dir: str | Path | None,
    text: Text,
    sizes: Sizes,
    distillation: Distillation | None = None,
    **hub_options,
) -> Shrinking:
    """
    Cut a BERT, a RoBERTa-like model or a FixedHeadBert, and write it into a new directory, with its tokenizer, a card,
    shrinking.json and shrinking.png. With `distillation` it is trained after that; the same call goes on with a
    training that was interrupted.

    Args:
        model: directory or Hub id.
        hub_options: `revision`, `token` and `cache_dir` of from_pretrained.

    Raises:
        InputError: no such model, a model that cannot be cut (MHE, qk_norm, cross-attention), sizes that are no cut,
            too little text, or several processes.
    """
    name = output_path(output_dir).name
    if distillation is None:
        with new_directory(output_dir) as folder:
            return cut_into(folder, name, model, text, sizes, **hub_options)
    args = distillation.arguments(output_path(output_dir), text.batch_size)
    given = {"model": str(model), "revision": hub_options.get("revision")}
    given |= asdict(text) | asdict(sizes) | asdict(distillation)
    with output_directory(args, given) as checkpoint:
        cut = args.folder / CUT
        if not cut.exists():
            partial_cut = args.folder / f"{CUT}.partial"
            shutil.rmtree(partial_cut, ignore_errors=True)  # of a run that was killed
            partial_cut.mkdir()
            cut_into(partial_cut, name, model, text, sizes, **hub_options)
            partial_cut.rename(cut)
        original, tokenizer = load(model, text.do_lower_case, **hub_options)
        student, _ = load(cut)
        text = replace(text, length=text.length_for(original.config))
        dtype = student.dtype
        ids = torch.cat(list(replace(text, most=distillation.steps * text.batch_size).batches(tokenizer)))
        weights = (tensor.cpu().view(torch.uint8) for tensor in original.state_dict().values())
        content = hashlib.sha256(ids.numpy().tobytes())
        for tensor in weights:
            content.update(tensor.numpy().tobytes())
        check_same_data(args.folder, content.hexdigest())
        trainer = HiddenStateTrainer(
            for_calculation(student),
            for_calculation(original),
            args=args,
            train_dataset=[{"input_ids": row} for row in ids],
            processing_class=tokenizer,
        )
        train(trainer, checkpoint)
        if student.dtype != dtype:
            in_dtype(student, dtype).save_pretrained(args.folder)
        repaired = errors_from_original(for_calculation(student), original, text.batches(tokenizer))
        found = replace(read_shrinking(cut), distil_steps=distillation.steps, repaired=repaired)
        write_beside(args.folder, name, found, student, text.do_lower_case, **hub_options)
        for folder in (args.folder / CUT, *args.folder.glob("checkpoint-*")):
            shutil.rmtree(folder)
    return found


def read_shrinking(folder: Path) -> Shrinking:
    """What `shrink` wrote there."""
    fields = read_object(folder / ERRORS, "remove the directory")
    layers = [
        LayerErrors(**layer | {name: Heads(*layer[name]) for name in ("before", "after")})
        for layer in fields["layers"]
    ]
    pairs = {name: tuple(fields[name]) for name in ("intermediate_size", "parameters")}
    return Shrinking(**fields | pairs | {"layers": layers})


def predict(model: str | Path, text: Text, **hub_options) -> Shrinking:
    """
    Predict the errors of a model by size. Nothing is cut or written.

    Raises:
        InputError: as `shrink`.
    """
    original, tokenizer = load(model, text.do_lower_case, **hub_options)
    length = text.length_for(original.config)
    text = replace(text, length=length)
    report_sequences(text.files, tokenizer, length, text.most)
    work = LayerByLayer(for_calculation(original), partial(text.batches, tokenizer))
    _, layers = work.curves()
    config = original.config
    return Shrinking(
        str(model),
        work.tokens,
        length,
        config.max_position_embeddings,
        layers,
        intermediate_size=(config.intermediate_size,) * 2,
        parameters=(original.num_parameters(),) * 2,
        cut=False,
    )


def cut_into(folder: Path, name: str, model: str | Path, text: Text, sizes: Sizes, **hub_options) -> Shrinking:
    """Cut a model, and write all of it into `folder`; `name` is for the card."""
    cut, tokenizer = load(model, text.do_lower_case, **hub_options)
    length = text.length_for(cut.config)
    text = replace(text, length=length)
    report_sequences(text.files, tokenizer, length, text.most)
    config, dtype = cut.config, cut.dtype
    neurons, parameters_before = config.intermediate_size, cut.num_parameters()
    heads: list[Heads] | None = sizes.heads(config)  # sizes that are no cut are refused before the work begins
    work = LayerByLayer(for_calculation(cut), partial(text.batches, tokenizer), dtype)
    if sizes.keep is not None:
        budget = sizes.keep * sum(parameters(of_layer, config.hidden_size) for of_layer in work.heads)
        heads = heads_for_parameters(work.curves()[0], budget, sizes.multiple_of)
    if sizes.tolerance is not None:
        heads = None
    states = folder / "hidden_states"
    layers = work.cut(states, heads, sizes.tolerance or 0.0, sizes.multiple_of, sizes.intermediate_size)
    shutil.rmtree(states)
    found = Shrinking(
        str(model),
        work.tokens,
        length,
        config.max_position_embeddings,
        layers,
        intermediate_size=(neurons, config.intermediate_size),
        parameters=(parameters_before, cut.num_parameters()),
    )
    in_dtype(cut, dtype).save_pretrained(folder)
    write_beside(folder, name, found, cut, text.do_lower_case, **hub_options)
    return found


def for_calculation(model: FixedHeadBertPreTrainedModel) -> FixedHeadBertPreTrainedModel:
    """The model itself, in float32 where it has half precision."""
    return model if model.dtype == torch.float64 else model.float()


def in_dtype(model: FixedHeadBertPreTrainedModel, dtype: torch.dtype) -> FixedHeadBertPreTrainedModel:
    return model.to(dtype)  # type: ignore[arg-type]  # transformers' decorator loses the method's signature


def write_beside(
    folder: Path,
    name: str,
    found: Shrinking,
    cut: FixedHeadBertPreTrainedModel,
    do_lower_case: bool | None,
    **hub_options,
):
    """Write what belongs beside the weights: tokenizer, pooling of sentences, errors, picture and card."""
    _, metadata = copy_beside(found.model, files_beside(found.model, **hub_options), folder, do_lower_case)
    (folder / ERRORS).write_text(json_text(asdict(found), indent=1) + "\n")
    draw(found, folder / "shrinking.png")
    names, count = (type(cut).__name__, name), cut.num_parameters()
    checkpoint_card(cut.config, *names, making(found), count=count, **metadata).save(folder / CARD)


def load(
    model: str | Path, do_lower_case: bool | None = None, **hub_options
) -> tuple[FixedHeadBertPreTrainedModel, PreTrainedTokenizerBase]:
    """
    A model to cut, as a FixedHeadBert, and its tokenizer.

    Args:
        do_lower_case: as that of `Text`.

    Raises:
        InputError: as `load_bert`; its heads cannot be cut; or the tokenizer is not its own.
    """
    if PartialState().num_processes > 1:
        raise InputError("shrinking takes one process: start it without accelerate launch.")
    found = load_bert(model, **hub_options)
    config = found.config
    reasons = {
        "head_embedding": "all heads share one projection, so that none can be cut by itself",
        "qk_norm": "queries and keys are normalised, and their norms would change",
        "add_cross_attention": "what cross-attention sees is not in the text",
    }
    for name, reason in reasons.items():
        if getattr(config, name, None):
            raise InputError(f"{model}: cannot be shrunk with {name}={getattr(config, name)!r}: {reason}.")
    fixed = found if isinstance(found, FixedHeadBertPreTrainedModel) else convert(found)
    beside = files_beside(model, **hub_options)
    vocabulary = beside / "vocab.txt" if is_tensorflow(model) else beside
    tokenizer = load_tokenizer(str(vocabulary), do_lower_case, trust_remote_code=False)
    check_size(tokenizer, fixed.config.vocab_size, model)
    return fixed.eval().to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def making(found: Shrinking) -> str:
    """How the model was made, for its card: the heads and errors of each layer, in Markdown."""
    name = Path(found.model).resolve().name if Path(found.model).exists() else found.model
    repaired: list[float | None] = [*found.repaired] or [None] * len(found.layers)
    before, after = found.intermediate_size
    rows = [
        (
            number,
            layer.before,
            layer.after,
            f"{layer.scores[layer.after.size]:.3f}",
            f"{layer.values[layer.after.value_size]:.3f}",
            f"{layer.error:.3f}",
            f"{layer.from_original:.3f}",
            *([f"{after_training:.3f}"] if after_training is not None else []),
            *([f"{layer.feed_forward_error:.3f}"] if after < before else []),
        )
        for number, (layer, after_training) in enumerate(zip(found.layers, repaired, strict=True))
    ]
    header = ["layer", "before", "after", "scores", "values", "attention", "from the original"]
    header += ["after training"] * bool(found.repaired)
    header += ["feed-forward"] * (after < before)
    neurons = f" The feed-forward networks have {after} neurons for {before}." if after < before else ""
    training = (
        f" Then {found.distil_steps:,} steps of training without labels: {found.outcome}." if found.repaired else ""
    )
    return f"""
Cut from `{name}`, layer after layer, to what {found.tokens:,} tokens of text use, in sequences of \
{found.max_seq_length}.{neurons}{training}

{table(rows, tuple(header))}

Relative errors on this text, in the Frobenius norm. Predicted from the singular values on the uncut model: `scores`, \
and `values`, that of the attention's output by the size of values. Measured: `attention`, that of its output on the \
same inputs; `from the original`, the same in the whole model. {found.limit}

![Errors by size](shrinking.png)
"""


@with_matplotlib
def draw(found: Shrinking, file: Path):
    """Predicted errors by size, with the sizes that were chosen, and measured errors by layer."""
    with drawing(13, 4.2, file) as figure:
        scores, values, measured = figure.subplots(1, 3)
        layers = found.layers
        for number, layer in enumerate(layers):
            color = f"C{number}" if len(layers) <= 10 else str(0.8 * number / len(layers))
            for axes, errors, size in (
                (scores, layer.scores, layer.after.size),
                (values, layer.values, layer.after.value_size),
            ):
                axes.plot(range(len(errors)), errors, color=color, linewidth=1, label=f"layer {number}")
                axes.plot(size, errors[size], "o", color=color)
        scores.set(xlabel="size of queries and keys", ylabel="relative error", title="scores, predicted")
        values.set(xlabel="size of values", ylabel="relative error", title="attention's output, predicted")
        places = range(len(layers))
        measured.plot(places, [layer.error for layer in layers], "o-", label="after the cut, on the same inputs")
        measured.plot(places, [layer.from_original for layer in layers], "s--", label="against the original model")
        if any(layer.feed_forward_error for layer in layers):
            errors = [layer.feed_forward_error for layer in layers]
            measured.plot(places, errors, "^:", label="feed-forward network, on the same inputs")
        measured.set(xlabel="layer", ylabel="relative error", title="attention's output, measured", xticks=places)
        for axes in (scores, values, measured):
            axes.set_ylim(0, None)
            axes.grid()
        scores.legend(ncols=2)
        measured.legend()
