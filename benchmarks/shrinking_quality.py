"""
python -m benchmarks.shrinking_quality MODEL --output_dir DIR

What a trained encoder loses when its heads are cut: in the size of queries and keys, of values, of both, and by
leaving heads out; by the text, as `fixedbert shrink` does, and by the weights alone. With --distil_steps it is also
trained towards the original after a cut by the text. Beside them is the model without attention, where each layer adds
its mean over the text. Quality is Spearman's correlation on all of STS-B's dev set with means over tokens as
embeddings, and the masked-LM loss on novels where the checkpoint has that head. Needs FIXEDBERT_DATA with wikipedia/,
books/ and glue/STS-B. Writes results.jsonl and a picture; a second call continues.
"""

import argparse
import copy
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import transformers
from torch import Tensor
from torch.nn.functional import cosine_similarity
from tqdm import tqdm
from transformers import DataCollatorForLanguageModeling

from benchmarks.sentence_similarity import SentencePairs
from fixedbert.conversion.growing import Heads, set_heads
from fixedbert.publishing.pooling import SentencePooling
from fixedbert.shrinking.cut import Moments
from fixedbert.shrinking.layers import LayerByLayer, tensors_of
from fixedbert.shrinking.shrink import Distillation, Sizes, Text, load, shrink
from fixedbert.support.figures import drawing

HELD_OUT, LENGTH = 200, 128  # sequences of novels for the masked-LM loss
PARTS = {"scores": ("size",), "values": ("value_size",), "both": ("size", "value_size"), "heads": ("number",)}


@torch.no_grad()
def cut_by_weights(model, heads: list[Heads]):
    """
    Cut as for inputs that are alike in all directions about a mean of zero, biases included. Heads go by the norm of
    their weights, and what their values' biases add to the output stays.
    """
    work = LayerByLayer(model, iter)
    for layer, old, new in zip(work.layers, work.heads, heads, strict=True):
        moments = Moments(old)
        part = layer.attention.get_submodule("self")
        for name, sums in (("query", moments.queries), ("key", moments.keys), ("value", moments.z)):
            linear = part.get_submodule(name)
            weight, bias = (x.double().unflatten(0, (old.number, -1)) for x in (linear.weight, linear.bias))
            if name == "key":  # less their mean, which is the bias
                bias = torch.zeros_like(bias)
            sums.raw = weight @ weight.mT + bias[:, :, None] * bias[:, None, :]
            sums.sum, sums.tokens = bias, 1
        if new.number < old.number:
            tensors = by_magnitude(tensors_of(layer.attention), old, new.number)
            layer.attention = work.attention_of(tensors, new)
        else:
            layer.attention = work.with_heads(layer.attention, new, moments)
    set_heads(model.config, heads)


def by_magnitude(tensors: dict[str, Tensor], old: Heads, number: int) -> dict[str, Tensor]:
    """An attention with the `number` heads whose weights have the largest norm, and the biases of the others."""
    names = [f"self.{name}.{kind}" for name in ("query", "key", "value") for kind in ("weight", "bias")]
    by_head = {name: tensors[name].unflatten(0, (old.number, -1)) for name in names}
    outputs = tensors["output.dense.weight"].unflatten(1, (old.number, -1))  # (D, H, V)
    norms = outputs.square().sum(dim=(0, 2))
    norms = norms + sum(by_head[name].square().sum(dim=(1, 2)) for name in names if name.endswith("weight"))
    kept = sorted(norms.topk(number).indices.tolist())
    cut = {name: tensor[kept].flatten(0, 1) for name, tensor in by_head.items()}
    added = torch.einsum("dhv,hv->hd", outputs, by_head["self.value.bias"])  # by each head, whatever it looks at
    lost = added.sum(dim=0) - added[kept].sum(dim=0)
    cut["output.dense.bias"] = tensors["output.dense.bias"] + lost
    return tensors | cut | {"output.dense.weight": outputs[:, kept].flatten(1)}


def distilled(source: str, text: Text, heads: Heads, steps: int):
    """The model cut by the text and trained towards the original, with the relative errors that are left."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "distilled"
        found = shrink(source, output, text, Sizes(heads.size, heads.value_size, heads.number), Distillation(steps))
        return load(output)[0], found.repaired


@torch.no_grad()
def without_attention(model, batches: Callable[[], Iterator[Tensor]]):
    """Each layer's attention gives its mean over the text, layer after layer."""
    for layer in model.base_model.encoder.layer:
        output, seen = layer.attention.output.dense, []
        hook = output.register_forward_hook(lambda _module, _args, states, seen=seen: seen.append(states.mean((0, 1))))
        for ids in batches():
            model.base_model(ids)
        hook.remove()
        output.weight.zero_()
        output.bias.copy_(torch.stack(seen).mean(dim=0))


class Quality:
    """
    What is measured on a model, in percent, cosines and nats.

    Args:
        original: the model that embeddings are compared with.
    """

    def __init__(self, original, tokenizer, data: Path):
        self.pairs, self.tokenizer, self.batches = SentencePairs(data), tokenizer, []
        if hasattr(original, "cls"):
            transformers.set_seed(0)
            mask = DataCollatorForLanguageModeling(tokenizer)
            text = Text([str(data / "books")], LENGTH, HELD_OUT, 50).batches(tokenizer)
            self.batches = [mask([{"input_ids": row} for row in ids.tolist()]) for ids in text]
        self.reference = self.embed(original)

    def embed(self, model) -> Tensor:
        """Means of the last hidden states over the real tokens, (texts, D)."""
        pooling = SentencePooling(["mean"], normalize=False)
        return self.pairs.embed(
            lambda batch: pooling(model.base_model(**batch)[0], batch["attention_mask"]), self.tokenizer
        )

    @torch.no_grad()
    def of(self, model) -> dict[str, float]:
        found = self.embed(model)
        quality = {
            "stsb_spearman": self.pairs.spearman(found),
            "cosine_to_original": float(cosine_similarity(found, self.reference).mean()),
        }
        if self.batches:
            labelled = [int(batch["labels"].ne(-100).sum()) for batch in self.batches]
            losses = [float(model(**batch).loss) * count for batch, count in zip(self.batches, labelled, strict=True)]
            quality["mlm_loss"] = sum(losses) / sum(labelled)
        return quality


def shapes(heads: Heads, sizes: list[int]) -> Iterator[tuple[str, int, Heads]]:
    """What is cut, the size, and the heads of a layer; heads are left out until as many dimensions are there."""
    for size in sizes:
        for name, fields in PARTS.items():
            number = max(1, round(heads.number * size / heads.size))
            values = {"size": size, "value_size": size, "number": number}
            yield name, size, heads._replace(**{field: values[field] for field in fields})


MEASURES = {
    "stsb_spearman": "STS-B dev, Spearman x 100",
    "cosine_to_original": "cosine to the original's embeddings",
    "mlm_loss": "masked-LM loss on novels (nats)",
}
NO_ATTENTION = "no attention"
METHODS = {
    "text": ("o-", "by the text"),
    "weights": ("x--", "by the weights"),
    "distilled": ("^:", "by the text, distilled"),
}
LABELS = {"scores": "queries and keys", "values": "values", "both": "both", "heads": "as many dimensions, fewer heads"}


def draw(records: list[dict], title: str, file: Path):
    """Each measure by size: lines for what is cut, solid by the text, dashed by the weights."""
    original = next(record for record in records if record["part"] == "none")
    measures = [name for name in MEASURES if name in original]
    with drawing(6.5 * len(measures), 5, file) as figure:
        for axes, name in zip(figure.subplots(1, len(measures), squeeze=False)[0], measures, strict=True):
            for color, (part, label) in enumerate(LABELS.items()):
                for method, (style, how) in METHODS.items():
                    cuts = [record for record in records if (record["part"], record["method"]) == (part, method)]
                    points = sorted((record["size"], record[name]) for record in [original, *cuts])
                    if cuts:
                        axes.plot(*zip(*points, strict=True), style, color=f"C{color}", label=f"{label}, {how}")
            null = next(record[name] for record in records if record["part"] == NO_ATTENTION)
            axes.axhline(null, color="black", linewidth=1, label="no attention, its mean alone")
            axes.set_xscale("log", base=2)
            sizes = sorted({record["size"] for record in records} - {0})
            axes.set_xticks(sizes, map(str, sizes))
            axes.minorticks_off()
            axes.set(xlabel="head size that is kept", ylabel=MEASURES[name])
            axes.grid()
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
        figure.suptitle(title)


def conditions(arguments: argparse.Namespace, method: str) -> dict[str, int | str]:
    """What records of one folder share: the model, the text that it is cut by, and the steps of training."""
    model = str(Path(arguments.model).resolve())
    found = {"model": model, "max_seq_length": arguments.max_seq_length, "tokens": arguments.tokens}
    return found | ({"distil_steps": arguments.distil_steps} if method == "distilled" else {})


def earlier_records(file: Path, arguments: argparse.Namespace) -> list[dict]:
    """Records of earlier calls. One of other conditions ends the benchmark with a sentence."""
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for number, record in enumerate(records, start=1):
        for name, value in conditions(arguments, record["method"]).items():
            if value is not None and record.get(name) != value:  # no steps are asked for where none are to be done
                sys.exit(
                    f"error: {file}, line {number}: {name} is {record.get(name, 'not there')} and not {value}; give "
                    "another --output_dir."
                )
    return records


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shrinking_quality", description=__doc__)
    parser.add_argument("model", help="directory of an encoder whose layers have the same heads")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--sizes", type=int, nargs="*", default=[24, 16, 12, 8, 4, 2, 1])
    parser.add_argument("--max_seq_length", type=int, default=128, help="tokens of a sequence to cut by")
    parser.add_argument("--tokens", type=int, default=64_000, help="of Wikipedia, to cut by")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="what is cut (default: all)")
    parser.add_argument("--distil_steps", type=int, help="also train the cut models for so many steps")
    parser.add_argument("--save_models", action="store_true", help="each in a directory of its own, to train on")
    arguments = parser.parse_args()
    if "FIXEDBERT_DATA" not in os.environ:
        sys.exit("error: FIXEDBERT_DATA does not say where wikipedia/, books/ and glue/ are.")
    transformers.utils.logging.disable_progress_bar()
    data = Path(os.environ["FIXEDBERT_DATA"])
    original, tokenizer = load(arguments.model)
    wikipedia = str(min((data / "wikipedia").glob("*.parquet")))
    length = arguments.max_seq_length
    text = Text([wikipedia], length, arguments.tokens // length, 2048 // length)
    batches = partial(text.batches, tokenizer)
    file = Path(arguments.output_dir) / "results.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    done = earlier_records(file, arguments)
    keys = {(record["part"], record["size"], record["method"]) for record in done}
    with torch.no_grad():
        quality = Quality(original, tokenizer, data)
    heads = LayerByLayer(original, batches).heads
    methods = list(METHODS)[: 3 if arguments.distil_steps else 2]
    cuts = [cut for cut in shapes(heads[0], arguments.sizes) if cut[0] in arguments.parts]
    wanted = [("none", heads[0].size, "text", heads[0]), (NO_ATTENTION, 0, "text", heads[0])]
    wanted += [(part, size, method, new) for method in methods for part, size, new in cuts]
    with open(file, "a") as lines:
        for part, size, method, new in tqdm(wanted, unit="cut"):
            if (part, size, method) in keys:
                continue
            model, errors = copy.deepcopy(original), []
            if method == "weights":
                cut_by_weights(model, [new] * len(heads))
            elif method == "distilled":
                model, errors = distilled(arguments.model, text, new, arguments.distil_steps)
            elif part == NO_ATTENTION:
                without_attention(model, batches)
            elif new != heads[0]:
                with tempfile.TemporaryDirectory() as folder:
                    layers = LayerByLayer(model, batches).cut(Path(folder) / "states", [new] * len(heads))
                errors = [layer.error for layer in layers]
            record = {
                **conditions(arguments, method),
                "part": part,
                "size": size,
                "method": method,
                "heads": new._asdict(),
                "errors": errors,
            }
            record |= {"parameters": model.num_parameters(), **quality.of(model)}
            print(json.dumps(record), file=lines, flush=True)
            if arguments.save_models:
                folder = file.parent / f"{part}-{size}-{method}"
                model.save_pretrained(folder)
                tokenizer.save_pretrained(folder)
    records = [json.loads(line) for line in file.read_text().splitlines()]
    title = f"{Path(arguments.model).name}, cut by {arguments.tokens:,} tokens in sequences of {length}"
    draw(records, title, file.with_name("quality.png"))


if __name__ == "__main__":
    main()
