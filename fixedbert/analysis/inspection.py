"""
What the heads of a checkpoint do with real text, and how evenly they use their size.

For each layer and head, in means over sequences of n tokens, with queries Q and keys K (n, p) of a head of size p:

    rank           numerical rank of the scores S = Q K^T / sqrt(p), singular values above 1e-6 of the largest
    pattern_rank   the same of C log P, which is S less the mean over the keys of each query: what the softmax sees
    effective_rank, effective_pattern_rank
                   exp of the entropy of the singular values as shares of their sum (Roy and Vetterli, 2007)
    ceiling        effective_pattern_rank as a share of min(p, n - 1), the most there can be; it says how evenly the
                   head uses its size, and not what it could not express
    entropy        of the attention of a query (nats; ln n is uniform)
    distance       between a query and what it attends to (tokens)
    similarity     cosine of the head's pattern, less uniform attention, to that of the most similar head of its layer
    importance     how far the last hidden states move when the head gives zeros, relative to their size

and for each layer the condition number of the heads' concatenated output (n, h p), whose mean is geometric: with
directions that the output projection ignores, and at most 1 / eps of float32.
"""

import json
import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import fill

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..checkpoints import read_config
from ..counts import head_counts, head_sizes, size_text, value_head_sizes
from ..data.corpora import Corpus, CorpusReader
from ..data.hub import check_place
from ..data.sequences import sequences
from ..data.tokenizers import load_tokenizer
from ..errors import InputError, listed, needs
from ..families import FAMILIES, fixed_head_config
from ..files import new_directory, reading

NAME = "fixedbert_inspection"  # of the attention function among those of transformers
NUMERICAL = 1e-6  # of the largest singular value; float32 leaves no more
EVEN_SHARE = 0.8  # of the ceiling, from which a larger head is worth a try: a convention
PANELS = {  # the measures that are drawn, with what they say
    "ceiling": "evenness of the head's dimensions (1: all alike)",
    "effective_pattern_rank": "effective rank of patterns (dimensions)",
    "entropy": "entropy of attention (nats)",
    "distance": "distance of attention (tokens)",
    "similarity": "likeness to the nearest head of the layer (cosine)",
    "importance": "change of the output without the head (relative)",
}


# The recorder, and the number of the layer, to which an attention module belongs.
RECORDED: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def attend(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """Attention (B, n, H, P) of queries, keys and values (B, H, n, P), recorded on the way."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    patterns = (query @ key.mT * scaling).softmax(dim=-1)  # (B, H, n, n)
    reference, layer = RECORDED[module]
    recorder = reference()
    recorder.attention_calls += 1
    if recorder.measuring:
        recorder.measure(layer, query * scaling, key, patterns)
    return (patterns @ value).transpose(1, 2).contiguous(), patterns


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, eager_mask)


@dataclass(frozen=True, eq=False)  # tensors have no one truth value
class Inspection:
    """
    What `inspect` finds: the measures above, each (layers, heads), and `condition`, (layers,). Where a layer has fewer
    heads than another, the rest of its row is NaN.

    Attributes:
        model: as it was given.
        heads: the most that a layer has.
        head_counts, head_sizes: of each layer.
        can_grow: whether `fixedbert convert` gives a model like this one larger heads.
        width: hidden_size.
        max_seq_length: tokens of a sequence.
        sequences: how many were measured.
        importance_sequences: how many of these were measured for `importance`.
        rank, effective_rank, pattern_rank, effective_pattern_rank: dimensions.
        entropy: nats.
        distance: tokens.
        similarity, ceiling, importance: shares; `condition` has no unit.
    """

    model: str
    layers: int
    heads: int
    head_counts: list[int]
    head_sizes: list[int]
    can_grow: bool
    width: int
    max_seq_length: int
    sequences: int
    importance_sequences: int
    rank: Tensor
    effective_rank: Tensor
    pattern_rank: Tensor
    effective_pattern_rank: Tensor
    entropy: Tensor
    distance: Tensor
    similarity: Tensor
    ceiling: Tensor
    condition: Tensor
    importance: Tensor

    @property
    def even_layers(self) -> list[int]:
        """Layers that use their heads' size evenly, and whose heads have less than room for every pattern."""
        used = self.ceiling.nanmean(dim=1)
        room = self.max_seq_length - 1
        return [layer for layer, size in enumerate(self.head_sizes) if used[layer] >= EVEN_SHARE and size < room]


class Recorder:
    """
    Sums of the measures over sequences, collected by an attention function that every model of transformers calls.

    Args:
        model: bare, bidirectional, in evaluation mode, with BERT's names of modules.

    Raises:
        AttributeError, ValueError: modules of other names, or an attention that cannot be exchanged.
    """

    def __init__(self, model: PreTrainedModel):
        self.model, config = model, model.config
        self.layers, self.heads = config.num_hidden_layers, config.num_attention_heads
        self.counts, self.sizes, self.value_sizes = head_counts(config), head_sizes(config), value_head_sizes(config)
        self.sums: dict[str, Tensor] = {}
        self.log_condition = torch.zeros(self.layers, dtype=torch.float64)
        self.sequences = self.attention_calls = 0
        self.measuring = True
        self.ablated: tuple[int, int] | None = None  # layer and head
        for number, layer in enumerate(self.encoder_layers):
            RECORDED[layer.get_submodule("attention.self")] = weakref.ref(self), number
            projection = layer.get_submodule("attention.output.dense")
            projection.register_forward_pre_hook(partial(self.on_heads_output, number))
        model.set_attn_implementation(NAME)

    @property
    def encoder_layers(self) -> list[nn.Module]:
        return list(self.model.get_submodule("encoder.layer").children())

    def on_heads_output(self, layer: int, module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor] | None:
        """Of the heads' output (B, n, H V), set the ablated head's part to zero, or measure the condition number."""
        (output,) = args
        if self.ablated is not None and self.ablated[0] == layer:
            size = self.value_sizes[layer]
            output = output.clone()
            output[..., self.ablated[1] * size : (self.ablated[1] + 1) * size] = 0
            return (output,)
        if self.measuring:
            singular = svd(output.double())
            floor = singular[:, 0] * torch.finfo(torch.float32).eps
            self.log_condition[layer] += (singular[:, 0] / singular[:, -1].maximum(floor)).log().sum().cpu()
        return None

    def measure(self, layer: int, query: Tensor, key: Tensor, patterns: Tensor):
        n = query.shape[2]
        query, key = query.double(), key.double().expand_as(query)
        rows = gram(query)
        for prefix, keys in (("", key), ("pattern_", key - key.mean(dim=2, keepdim=True))):
            singular = product_singular_values(rows, gram(keys)) if query.shape[-1] < n else svd(query @ keys.mT)
            self.add(layer, f"{prefix}rank", (singular > NUMERICAL * singular.amax(-1, keepdim=True)).sum(-1))
            self.add(layer, f"effective_{prefix}rank", effective_rank(singular))
        self.add(layer, "entropy", torch.special.entr(patterns).sum(-1).mean(-1))
        positions = torch.arange(n, device=patterns.device)
        distances = (positions[:, None] - positions).abs().to(patterns.dtype)
        self.add(layer, "distance", (patterns * distances).sum(-1).mean(-1))
        flat = (patterns - 1 / n).flatten(2)
        flat = flat / flat.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        cosine = flat @ flat.mT  # (B, H, H)
        cosine.diagonal(dim1=1, dim2=2).fill_(-1)
        self.add(layer, "similarity", cosine.amax(-1) if len(cosine[0]) > 1 else torch.zeros_like(cosine[..., 0]))

    def add(self, layer: int, name: str, values: Tensor):
        """Sum `values` (B, H) over the batch."""
        if name not in self.sums:
            self.sums[name] = self.zeros()
        self.sums[name][layer, : self.counts[layer]] += values.double().sum(dim=0).cpu()

    def zeros(self) -> Tensor:
        """(layers, heads), NaN where a layer has no such head."""
        absent = torch.arange(self.heads) >= torch.tensor(self.counts)[:, None]
        return torch.zeros(absent.shape, dtype=torch.float64).masked_fill(absent, math.nan)

    @torch.no_grad()
    def run(self, ids: Tensor) -> tuple[Tensor, ...]:
        """The hidden states before each layer, and after the last (B, n, D)."""
        self.attention_calls = 0
        states = self.model(input_ids=ids.to(self.model.device), output_hidden_states=True).hidden_states
        if self.attention_calls != self.layers:
            raise InputError(
                f"of {self.layers} layers the attention of {self.attention_calls} can be seen: no BERT inside."
            )
        return states

    def add_sequences(self, ids: Tensor):
        """Add the measures of sequences `ids` (B, n)."""
        self.measuring = True
        self.run(ids)
        self.sequences += len(ids)

    @torch.no_grad()
    def importance(self, ids: Tensor, progress: tqdm) -> Tensor:
        """(layers, heads): the change of the last hidden states without a head, relative to their size."""
        self.measuring = False
        states = self.run(ids)
        changes = self.zeros()
        for number, count in enumerate(self.counts):
            for head in range(count):
                self.ablated = number, head
                hidden = states[number]  # layers before this one do not change
                for layer in self.encoder_layers[number:]:
                    hidden = layer(hidden)
                    hidden = hidden[0] if isinstance(hidden, tuple) else hidden
                changes[number, head] = (hidden - states[-1]).norm() / states[-1].norm()
                progress.update()
        self.ablated = None
        return changes

    def means(self, n: int) -> dict[str, Tensor]:
        """Each measure (layers, heads), and "condition" (layers)."""
        means = {name: values / self.sequences for name, values in self.sums.items()}
        most = torch.tensor([min(size, n - 1) for size in self.sizes], dtype=torch.float64)
        means["ceiling"] = means["effective_pattern_rank"] / most[:, None]
        return means | {"condition": (self.log_condition / self.sequences).exp()}


def gram(rows: Tensor) -> Tensor:
    return rows.mT @ rows  # (B, H, P, P)


def product_singular_values(rows: Tensor, columns: Tensor) -> Tensor:
    """Of Q K^T, from Q^T Q and K^T K (B, H, P, P), which are smaller: roots of the eigenvalues of their product."""
    values, vectors = torch.linalg.eigh(rows)
    root = vectors * values.clamp_min(0).sqrt()[..., None, :]
    return torch.linalg.eigvalsh(root.mT @ columns @ root).clamp_min(0).sqrt().flip(-1)


def svd(matrix: Tensor) -> Tensor:
    """Singular values, largest first, of (..., n, m), from the smaller of the two products with its transpose."""
    square = matrix @ matrix.mT if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT @ matrix
    return torch.linalg.eigvalsh(square).clamp_min(0).sqrt().flip(-1)


def effective_rank(singular: Tensor) -> Tensor:
    shares = singular / singular.sum(-1, keepdim=True).clamp_min(1e-300)
    return torch.special.entr(shares).sum(-1).exp()


def inspect(
    model: str,
    output_dir: str | Path,
    validation_file: str,
    max_seq_length: int = 128,
    max_samples: int = 1000,
    importance_samples: int = 8,
    batch_size: int = 16,
    **hub_options,
) -> Inspection:
    """
    Write inspection.json and inspection.png into `output_dir`, a new directory.

    Args:
        model: directory or Hub id of a BERT-like encoder.
        validation_file: file, folder or glob of the formats that pretraining reads; sequences are cut from its
            documents.
        max_samples: sequences to measure, the first ones.
        importance_samples: of these, sequences for `importance`, which runs the model once for each head.
        hub_options: `revision`, `token` and `cache_dir` of from_pretrained.

    Raises:
        InputError: no such model or text, text shorter than one sequence, or a model whose attention cannot be seen.
    """
    counts = {"max_samples": max_samples, "importance_samples": importance_samples, "batch_size": batch_size}
    for field, count in counts.items():
        if count < 1:
            raise InputError(f"{count}: must be at least 1.", field)
    needs("matplotlib", "plots")
    CorpusReader(Corpus(validation_file))  # it is there, which is said before the model is loaded
    with new_directory(output_dir) as folder:
        recorder, tokenizer = load(model, max_seq_length, **hub_options)
        batches = sequences([validation_file], tokenizer, max_seq_length, batch_size)
        first = measure_sequences(recorder, batches, max_samples, importance_samples)
        if first is None:
            raise InputError(
                f"{validation_file}: shorter than {max_seq_length} tokens; give more text, or a lower max_seq_length."
            )
        with tqdm(total=sum(recorder.counts), desc="ablating heads", unit="head") as progress:
            importance = recorder.importance(first, progress)
        inspection = Inspection(
            model=model,
            layers=recorder.layers,
            heads=recorder.heads,
            head_counts=recorder.counts,
            head_sizes=recorder.sizes,
            can_grow=can_grow(recorder.model.config),
            width=recorder.model.config.hidden_size,
            max_seq_length=max_seq_length,
            sequences=recorder.sequences,
            importance_sequences=len(first),
            importance=importance,
            **recorder.means(max_seq_length),
        )
        (folder / "inspection.json").write_text(json.dumps(json_of(inspection), indent=1) + "\n")
        draw(inspection, folder / "inspection.png")
    return inspection


def measure_sequences(recorder: Recorder, batches: Iterator[Tensor], most: int, kept: int) -> Tensor | None:
    """Record the first `most` sequences; returns the first `kept` of them (kept, n), or None if there are none."""
    first: Tensor | None = None
    with tqdm(total=most, desc="measuring sequences", unit="sequence") as progress:
        for ids in batches:
            ids = ids[: most - recorder.sequences]
            recorder.add_sequences(ids)
            first = (ids if first is None else torch.cat([first, ids]))[:kept]
            progress.update(len(ids))
            if recorder.sequences >= most:
                break
    return first


def json_of(inspection: Inspection) -> dict[str, object]:
    """The fields of inspection.json, which has some under longer names, and lists only heads that are there."""
    names = {
        "head_counts": "heads by layer",
        "head_sizes": "head sizes",
        "can_grow": "can grow",
        "max_seq_length": "tokens in a sequence",
        "importance_sequences": "sequences for importance",
    }

    def listed_values(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        rows = value.tolist()
        return rows if value.ndim == 1 else [row[:n] for row, n in zip(rows, inspection.head_counts, strict=True)]

    return {names.get(name, name): listed_values(value) for name, value in vars(inspection).items()}


def load(name: str, length: int, **hub_options) -> tuple[Recorder, PreTrainedTokenizerBase]:
    check_place(name)
    with reading(name, "give a model that is whole, and of a kind that transformers knows", "no model can be read"):
        config = read_config(name, **hub_options)
        options = {"config": config, "dtype": torch.float32, "trust_remote_code": False, "output_loading_info": True}
        model, loaded = AutoModel.from_pretrained(name, **options, **hub_options)
    absent = sorted(key for key in loaded["missing_keys"] if "pooler" not in key)  # which no measure reads
    if absent:
        raise InputError(f"{name}: there are no weights for {listed(absent)}; give a model that is whole.")
    tokenizer = load_tokenizer(name, **hub_options)
    if getattr(config, "is_decoder", False) or not hasattr(getattr(model, "encoder", None), "layer"):
        raise InputError(f"{name}: only encoders like BERT, which look both ways, can be inspected.")
    longest = config.max_position_embeddings
    if config.model_type in FAMILIES:  # of RoBERTa's positions some are not for tokens
        longest = fixed_head_config(config).max_position_embeddings
    if not 3 <= length <= longest:
        raise InputError(f"{length}: the model takes 3 to {longest} tokens.", "max_seq_length")
    try:
        return Recorder(model.eval()), tokenizer
    except (AttributeError, ValueError) as error:
        raise InputError(f"{name}: its attention cannot be seen: {str(error).splitlines()[0]}") from error


def can_grow(config: PreTrainedConfig) -> bool:
    """Whether `fixedbert convert` gives a model like this one larger heads."""
    return config.model_type in FAMILIES and not getattr(config, "qk_norm", False)


def draw(inspection: Inspection, file: Path):
    """A page of heat maps, layers x heads, and the condition numbers by layer."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    layers, n = range(inspection.layers), inspection.max_seq_length
    figure = Figure(figsize=(14, 3.2 + 0.45 * inspection.layers * 2), layout="constrained")
    axes = figure.subplots(2, 4).flat
    limits = {"ceiling": (0, 1), "entropy": (0, math.log(n)), "similarity": (0, 1)}
    for panel, (name, title) in zip(axes, PANELS.items(), strict=False):
        low, high = limits.get(name, (0, None))
        image = panel.imshow(getattr(inspection, name).numpy(), aspect="auto", cmap="viridis", vmin=low, vmax=high)
        panel.set(xlabel="head", ylabel="layer", yticks=layers)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set_title(title, fontsize=8)
        figure.colorbar(image, ax=panel)
    condition, notes = figure.axes[6], figure.axes[7]
    condition.barh(layers, inspection.condition.numpy(), color="C0")
    condition.set(xlabel="condition number", ylabel="layer", xscale="log", xlim=(1, None), yticks=layers)
    condition.invert_yaxis()
    condition.set_title("output of all heads (1: all directions alike)", fontsize=8)
    notes.axis("off")
    most = min(max(inspection.head_sizes), n - 1)
    lines = (
        Path(inspection.model).name,
        f"{inspection.layers} layers, width {inspection.width}",
        f"{size_text(inspection.head_counts)} heads of {size_text(inspection.head_sizes)}; at most {most} dimensions",
        f"{inspection.sequences:,} sequences of {n} tokens",
        "",
        "uniform attention would have",
        f"  entropy {math.log(n):.2f} nats",
        f"  distance {(n * n - 1) / 3 / n:.1f} tokens",
    )
    notes.text(0, 1, "\n".join(fill(line, 36) for line in lines), va="top", fontsize=10)  # a panel's width
    figure.savefig(file, dpi=110)
