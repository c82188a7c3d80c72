"""
`fixedbert inspect`: what the heads of a checkpoint do with real text, and how evenly they use their size.

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
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..checkpoints import read_config
from ..conversion import FAMILIES, fixed_head_config
from ..data.corpora import Corpus, CorpusReader
from ..data.tokenizers import load_tokenizer
from ..errors import InputError
from ..files import check_place, reading
from ..tensorflow_checkpoint import listed
from ..training.output import new_directory
from .counts import head_sizes, size_text

NAME = "fixedbert_inspection"  # of the attention function among those of transformers
NUMERICAL = 1e-6  # of the largest singular value; float32 leaves no more
AT_THE_CEILING = 0.8  # the share above which a larger head is worth a try: a convention
MEASURES = {  # those that are drawn, with what they say
    "ceiling": "evenness of the head's dimensions (1: all alike)",
    "effective_pattern_rank": "effective rank of patterns (dimensions)",
    "entropy": "entropy of attention (nats)",
    "distance": "distance of attention (tokens)",
    "similarity": "likeness to the nearest head of the layer (cosine)",
    "importance": "change of the output without the head (relative)",
}


# The inspection, and the number of the layer, to which an attention module belongs.
OBSERVED: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def attend(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """Attention (B, n, H, P) of queries, keys and values (B, H, n, P), looked at on the way."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    patterns = (query @ key.mT * scaling).softmax(dim=-1)  # (B, H, n, n)
    reference, layer = OBSERVED[module]
    inspection = reference()
    inspection.seen += 1
    if inspection.measuring:
        inspection.measure(layer, query * scaling, key, patterns)
    return (patterns @ value).transpose(1, 2).contiguous(), patterns


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, eager_mask)


class Inspection:
    """
    Sums of the measures over sequences, collected by an attention function that every model of transformers calls.

    Args:
        model: bare, bidirectional, in evaluation mode, with BERT's names of modules.
    """

    def __init__(self, model: PreTrainedModel):
        self.model, config = model, model.config
        self.layers, self.heads, self.sizes = config.num_hidden_layers, config.num_attention_heads, head_sizes(config)
        self.sums: dict[str, Tensor] = {}
        self.log_condition = torch.zeros(self.layers, dtype=torch.float64)
        self.sequences = self.seen = 0
        self.measuring, self.silent = True, None
        for number, layer in enumerate(model.encoder.layer):
            OBSERVED[layer.attention.self] = weakref.ref(self), number
            layer.attention.output.dense.register_forward_pre_hook(partial(self.concatenated, number))
        model.set_attn_implementation(NAME)

    def concatenated(self, layer: int, module, args: tuple[Tensor]):
        """The heads' output (B, n, H P), on its way to the output projection: silenced, or its condition measured."""
        (output,) = args
        if self.silent is not None and self.silent[0] == layer:
            size = self.sizes[layer]
            output = output.clone()
            output[..., self.silent[1] * size : (self.silent[1] + 1) * size] = 0
            return (output,)
        if self.measuring:
            singular = svd(output.double())
            floor = singular[:, 0] * torch.finfo(torch.float32).eps
            self.log_condition[layer] += (singular[:, 0] / singular[:, -1].maximum(floor)).log().sum().cpu()

    def measure(self, layer: int, query: Tensor, key: Tensor, patterns: Tensor):
        n = query.shape[2]
        query, key = query.double(), key.double().expand_as(query)
        rows = gram(query)
        for prefix, keys in (("", key), ("pattern_", key - key.mean(dim=2, keepdim=True))):
            singular = product_singular_values(rows, gram(keys)) if query.shape[-1] < n else svd(query @ keys.mT)
            self.add(layer, f"{prefix}rank", (singular > NUMERICAL * singular.amax(-1, keepdim=True)).sum(-1))
            self.add(layer, f"effective_{prefix}rank", effective_rank(singular))
        self.add(layer, "entropy", torch.special.entr(patterns).sum(-1).mean(-1))
        places = torch.arange(n, device=patterns.device)
        apart = (places[:, None] - places).abs().to(patterns.dtype)
        self.add(layer, "distance", (patterns * apart).sum(-1).mean(-1))
        flat = (patterns - 1 / n).flatten(2)
        flat = flat / flat.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        likeness = flat @ flat.mT  # (B, H, H)
        likeness.diagonal(dim1=1, dim2=2).fill_(-1)
        self.add(layer, "similarity", likeness.amax(-1) if self.heads > 1 else torch.zeros_like(likeness[..., 0]))

    def add(self, layer: int, name: str, values: Tensor):
        """Sum `values` (B, H) over the batch."""
        if name not in self.sums:
            self.sums[name] = torch.zeros(self.layers, self.heads, dtype=torch.float64)
        self.sums[name][layer] += values.double().sum(dim=0).cpu()

    @torch.no_grad()
    def run(self, ids: Tensor) -> tuple[Tensor, ...]:
        """What goes into each layer, and comes out of the last (B, n, D)."""
        self.seen = 0
        states = self.model(input_ids=ids.to(self.model.device), output_hidden_states=True).hidden_states
        if self.seen != self.layers:
            raise InputError(f"of {self.layers} layers the attention of {self.seen} can be seen: no BERT inside.")
        return states

    def look(self, ids: Tensor):
        """Add the measures of sequences `ids` (B, n)."""
        self.measuring = True
        self.run(ids)
        self.sequences += len(ids)

    @torch.no_grad()
    def importance(self, ids: Tensor, progress: tqdm) -> Tensor:
        """(layers, heads): the change of the last hidden states without a head, relative to their size."""
        self.measuring = False
        states = self.run(ids)
        changes = torch.zeros(self.layers, self.heads)
        for number in range(self.layers):
            for head in range(self.heads):
                self.silent = number, head
                hidden = states[number]  # layers before this one do not change
                for layer in self.model.encoder.layer[number:]:
                    hidden = layer(hidden)
                    hidden = hidden[0] if isinstance(hidden, tuple) else hidden
                changes[number, head] = (hidden - states[-1]).norm() / states[-1].norm()
                progress.update()
        self.silent = None
        return changes

    def means(self, n: int) -> dict[str, Tensor]:
        """Each measure (layers, heads), and "condition" (layers)."""
        found = {name: values / self.sequences for name, values in self.sums.items()}
        most = torch.tensor([min(size, n - 1) for size in self.sizes], dtype=torch.float64)
        found["ceiling"] = found["effective_pattern_rank"] / most[:, None]
        return found | {"condition": (self.log_condition / self.sequences).exp()}


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


def sequences(text: str, tokenizer: PreTrainedTokenizerBase, length: int, batch: int) -> Iterator[Tensor]:
    """Batches (B, length) of [CLS], text without a break, [SEP], from the documents of a file, folder or glob."""
    rows, tokens = [], []
    for document in CorpusReader(Corpus(text)):
        tokens += tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"]
        whole = len(tokens) // (length - 2) * (length - 2)
        for start in range(0, whole, length - 2):
            rows.append([tokenizer.cls_token_id, *tokens[start : start + length - 2], tokenizer.sep_token_id])
            if len(rows) == batch:
                yield torch.tensor(rows)
                rows = []
        tokens = tokens[whole:]
    if rows:
        yield torch.tensor(rows)


def inspect(
    model: str,
    output_dir: str | Path,
    validation_file: str,
    max_seq_length: int = 128,
    max_samples: int = 1000,
    importance_samples: int = 8,
    batch_size: int = 16,
    **hub_options,
) -> str:
    """
    Write inspection.json and inspection.png into `output_dir`, a new directory.

    Args:
        model: directory or Hub id of a BERT-like encoder.
        validation_file: file, folder or glob of the formats that pretraining reads; sequences are cut from its
            documents.
        max_samples: sequences to look at, the first ones.
        importance_samples: of these, sequences for `importance`, which runs the model once for each head.
        hub_options: `revision`, `token` and `cache_dir` of from_pretrained.

    Returns:
        The table, with where larger heads are worth a try.

    Raises:
        InputError: no such model or text, text shorter than one sequence, or a model whose attention cannot be seen.
    """
    if min(max_samples, importance_samples, batch_size) < 1:
        raise InputError("--max_samples, --importance_samples and --batch_size must be at least 1.")
    CorpusReader(Corpus(validation_file))  # it is there, which is said before the model is loaded
    with new_directory(output_dir) as folder:
        inspection, tokenizer = load(model, max_seq_length, **hub_options)
        first = None
        with tqdm(total=max_samples, desc="looking at sequences", unit="sequence") as progress:
            for ids in sequences(validation_file, tokenizer, max_seq_length, batch_size):
                ids = ids[: max_samples - inspection.sequences]
                inspection.look(ids)
                first = ids if first is None else torch.cat([first, ids])[:importance_samples]
                progress.update(len(ids))
                if inspection.sequences >= max_samples:
                    break
        if not inspection.sequences:
            raise InputError(
                f"{validation_file}: shorter than {max_seq_length} tokens; give more text, or --max_seq_length."
            )
        found = inspection.means(max_seq_length)
        with tqdm(total=inspection.layers * inspection.heads, desc="silencing heads", unit="head") as progress:
            found["importance"] = inspection.importance(first[:importance_samples], progress)
        about = {
            "model": model,
            "layers": inspection.layers,
            "heads": inspection.heads,
            "head sizes": inspection.sizes,
            "can grow": can_grow(inspection.model.config),
            "width": inspection.model.config.hidden_size,
            "tokens in a sequence": max_seq_length,
            "sequences": inspection.sequences,
            "sequences for importance": min(importance_samples, len(first)),
        }
        content = about | {name: values.tolist() for name, values in found.items()}
        (folder / "inspection.json").write_text(json.dumps(content, indent=1) + "\n")
        draw(about, found, folder / "inspection.png")
    return "\n".join([*table(about, found), "", suggestion(about, found)])


def load(name: str, length: int, **hub_options) -> tuple[Inspection, PreTrainedTokenizerBase]:
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
        raise InputError(f"--max_seq_length {length}: the model takes 3 to {longest} tokens.")
    try:
        return Inspection(model.eval()), tokenizer
    except (AttributeError, ValueError) as error:  # modules of other names, or an attention that cannot be exchanged
        raise InputError(f"{name}: its attention cannot be seen: {str(error).splitlines()[0]}") from error


def table(about: dict, found: dict[str, Tensor]) -> list[str]:
    names = ("rank", "pattern_rank", "effective_rank", "effective_pattern_rank", "ceiling", "entropy", "distance")
    names += ("similarity", "importance")
    short = ("rank", "pattern", "eff.rank", "eff.pattern", "ceiling", "entropy", "distance", "similar", "importance")
    lines = [
        f"{about['model']}: {about['layers']} layers of width {about['width']}, {about['heads']} heads of "
        f"{size_text(about['head sizes'])}; {about['sequences']:,} sequences of "
        f"{about['tokens in a sequence']} tokens",
        "layer head " + " ".join(f"{name:>11}" for name in short),
    ]
    for layer in range(about["layers"]):
        for head in range(about["heads"]):
            values = " ".join(f"{float(found[name][layer, head]):>11.3g}" for name in names)
            lines.append(f"{layer:>5} {head:>4} {values}")
        lines.append(f"{layer:>5}      condition number of all heads' output: {float(found['condition'][layer]):.3g}")
    return lines


def can_grow(config: PreTrainedConfig) -> bool:
    """Whether `fixedbert convert` gives a model like this one larger heads."""
    return config.model_type in FAMILIES and not getattr(config, "qk_norm", False)


def suggestion(about: dict, found: dict[str, Tensor]) -> str:
    """Which layers use their heads' size most evenly, and the command that grows just those."""
    n, sizes = about["tokens in a sequence"], about["head sizes"]
    share = f"{AT_THE_CEILING:.0%}"
    if min(sizes) >= n - 1:
        return f"Heads of {size_text(sizes)} have room for every pattern over {n} tokens: larger add nothing here."
    used = found["ceiling"].mean(dim=1)
    full = [layer for layer, size in enumerate(sizes) if used[layer] >= AT_THE_CEILING and size < n - 1]
    if not full:
        return f"In no layer has the mean effective rank {share} of the most there can be; no bottleneck is ruled out."
    layers = ", ".join(map(str, full))
    said = f"In layers {layers} the mean effective rank is {share} or more of the most there can be."
    if not about["can grow"]:
        return said
    larger = " ".join(str(2 * size if layer in full else size) for layer, size in enumerate(sizes))
    command = f"fixedbert convert {about['model']} OUTPUT --attention_head_size {larger}"
    return f"{said} More room just there: `{command}`; whether it helps, training shows."


def draw(about: dict, found: dict[str, Tensor], file: Path):
    """A page of heat maps, layers x heads, and the condition numbers by layer."""
    figure = Figure(figsize=(14, 3.2 + 0.45 * about["layers"] * 2), layout="constrained")
    panels = figure.subplots(2, 4).flat
    n = about["tokens in a sequence"]
    limits = {"ceiling": (0, 1), "entropy": (0, math.log(n)), "similarity": (0, 1)}
    for panel, (name, title) in zip(panels, MEASURES.items(), strict=False):
        low, high = limits.get(name, (0, None))
        image = panel.imshow(found[name].numpy(), aspect="auto", cmap="viridis", vmin=low, vmax=high)
        panel.set(xlabel="head", ylabel="layer", yticks=range(about["layers"]))
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set_title(title, fontsize=8)
        figure.colorbar(image, ax=panel)
    panels = list(figure.axes)
    condition, notes = panels[6], panels[7]
    condition.barh(range(about["layers"]), found["condition"].numpy(), color="C0")
    condition.set(
        xlabel="condition number", ylabel="layer", xscale="log", xlim=(1, None), yticks=range(about["layers"])
    )
    condition.invert_yaxis()
    condition.set_title("output of all heads (1: all directions alike)", fontsize=8)
    notes.axis("off")
    sizes, most = size_text(about["head sizes"]), min(max(about["head sizes"]), n - 1)
    notes.text(
        0,
        1,
        f"{Path(about['model']).name}\n{about['layers']} layers, width {about['width']}\n"
        f"{about['heads']} heads of {sizes}; at most {most} dimensions\n"
        f"{about['sequences']:,} sequences of {n} tokens\n\n"
        f"uniform attention would have\n  entropy {math.log(n):.2f} nats\n  distance {(n * n - 1) / 3 / n:.1f} tokens",
        va="top",
        fontsize=10,
    )
    figure.savefig(file, dpi=110)
