"""
How many dimensions per head explain the variance of the attention scores, and how many do the predictions need?

    python -m experiments.score_variance MINILM MNLI_1 MNLI_2 MNLI_3 --others MINI --data_dir glue/ --output_dir scores

All models are run on MNLI pairs. MNLI_1 and those after it are fine-tuned on MNLI, and their scores are truncated as
well. For MINILM and the models after --others, only the variance is measured.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from fixedbert.conversion.growing import to_fixed_head_bert
from fixedbert.loading.loaded_model import LoadedModel
from fixedbert.model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from fixedbert.options import ShrinkOptions
from fixedbert.shrinking.budget import LayerSize
from fixedbert.shrinking.context import ShrinkContext
from fixedbert.shrinking.distillation import recorded
from fixedbert.shrinking.fisher_information import layers_of, minus_row_mean, self_attention
from fixedbert.shrinking.layers import prune_layers, refit
from fixedbert.shrinking.pruning import SecondMoments, square_root
from fixedbert.shrinking.shrink import layer_pruners
from fixedbert.support.figures import PAGE, new_figure
from fixedbert.tasks.calibration import batches_of, task_rows, tokenize
from fixedbert.tasks.predictions import Batch
from fixedbert.tasks.text_rows import TextRows
from fixedbert.tasks.texts import load_task

EXPLAINED = 0.9  # fraction of the variance that the components have to explain
ROWS = 500  # rows on which the variances are measured


def components(singular: Tensor) -> Tensor:
    """Returns how many of the descending singular values (..., P) explain 90% of the sum of their squares."""
    energy = singular.double().square().cumsum(-1)
    return (energy < EXPLAINED * energy[..., -1:]).sum(-1) + 1


@torch.no_grad()
def measure_variance(options: ShrinkOptions) -> dict:
    """
    Returns, for each layer and head, how many components explain 90% of the sum of squares of three matrices.

    - text: the scores for one text, minus each query's average over keys (which the softmax ignores). The number of
      components is averaged over texts.
    - all_texts: the same scores, with components that all texts share.
    - weights: the product W_q^T W_k of the weights.

    `variance` lists the fractions of the variance over all texts explained by 1, 2, ..., P components (head average).
    """
    source, loaded = options.model, LoadedModel.load(options.model)
    model = loaded.model
    if not isinstance(model, FixedHeadBertPreTrainedModel):
        model = to_fixed_head_bert(model)
    model.config.unpad_inputs = False
    modules = [self_attention(layer.attention) for layer in layers_of(model.eval())]
    H, P = modules[0].num_attention_heads, modules[0].attention_head_size
    moments = [(SecondMoments(H, P), SecondMoments(H, P)) for _ in modules]
    texts, rows = torch.zeros(len(modules), H), 0
    for batch in batches_of(options, loaded, task_rows(options, loaded, options.max_train_samples or ROWS)):
        with recorded(*(projection for x in modules for projection in (x.query, x.key))) as seen:
            model.base_model(**batch)
        mask = batch["attention_mask"].bool()
        for layer, module in enumerate(modules):
            queries, keys = seen[module.query][1], minus_row_mean(seen[module.key][1], mask)
            for second_moments, x in zip(moments[layer], (queries, keys), strict=True):
                second_moments.add(x[mask])
            for row in range(len(mask)):
                q, k = (x[row][mask[row]].unflatten(-1, (H, P)).transpose(0, 1) for x in (queries, keys))
                texts[layer] += components(torch.linalg.svdvals(q @ k.mT))
        rows += len(mask)
    joint = torch.stack([head_singular_values(q.uncentered, k.uncentered) for q, k in moments])  # (layers, H, P)
    projections = [[x.weight.unflatten(0, (H, P)) for x in (module.query, module.key)] for module in modules]
    weights = torch.stack([head_singular_values(q @ q.mT, k @ k.mT) for q, k in projections])
    energy = joint.square().cumsum(-1)
    return {
        "model": Path(source).name,
        "rows": rows,
        "head_size": P,
        "text": (texts / rows).tolist(),
        "all_texts": components(joint).tolist(),
        "weights": components(weights).tolist(),
        "variance": (energy / energy[..., -1:]).mean(dim=(0, 1)).tolist(),
    }


def head_singular_values(left: Tensor, right: Tensor) -> Tensor:
    """Returns the singular values of A^T B for each head, given A A^T (H, P, P) and B B^T (H, P, P)."""
    roots = zip(map(square_root, left), map(square_root, right), strict=True)
    return torch.stack([torch.linalg.svdvals(a @ b) for a, b in roots])


def measure_accuracy(options: ShrinkOptions) -> list[dict]:
    """Truncates the scores of all heads to 3/4, 1/2 and 1/4 of the head size. Returns accuracies on the dev set."""
    context = ShrinkContext.load(options)
    pruners = layer_pruners(context)
    batches, labels = dev_set(context.loaded, options)
    results, all_predictions = [], []
    for quarters in (4, 3, 2, 1):
        sizes = [shape.heads.size * quarters // 4 for shape in context.shapes]
        pairs = zip(context.shapes, sizes, strict=True)
        shapes = [LayerSize(shape.heads._replace(size=size), shape.neurons) for shape, size in pairs]
        model = prune_layers(context.original, pruners, shapes)
        if quarters < 4:
            refit(context.original, model, context.calibration)
        with torch.no_grad():
            predictions = torch.cat([model(**batch).logits.argmax(-1) for batch in batches])
        all_predictions.append(predictions)
        result = {"size": sizes[0], "accuracy": float((predictions == labels).float().mean())}
        results.append(result | {"agreement": float((predictions == all_predictions[0]).float().mean())})
        print(results[-1], flush=True)
    return results


def dev_set(loaded: LoadedModel, options: ShrinkOptions) -> tuple[list[Batch], Tensor]:
    """Returns the matched dev set of MNLI as batches, and its label ids in the same order."""
    rows = load_task("mnli", options.data_dir, ("validation",)).splits["validation_matched"]
    encoded = tokenize([TextRows(rows)], loaded, options.max_seq_length or 512)
    order = sorted(range(len(encoded)), key=lambda index: len(encoded[index].tokens["input_ids"]))
    ids, names = dict(loaded.model.config.label2id or {}), rows["label"]
    return batches_of(options, loaded, [encoded[index] for index in order]), torch.tensor(
        [ids[names[i]] for i in order]
    )


def draw(record: dict, file: Path):
    """Plots the components per head of every model, and predictions and variance against the number of dimensions."""
    kinds = {"text": "scores of one text", "all_texts": "scores of all texts", "weights": "weights"}
    size, fine_tuned = record["models"][0]["head_size"], record["models"][1:]
    with new_figure(PAGE, 3.2, file) as figure:
        components_axes, accuracy_axes = figure.subplots(1, 2)
        for color, (kind, label) in enumerate(kinds.items()):
            for index, model in enumerate(record["models"]):
                values = sorted(x for layer in model[kind] for x in layer)
                heads = [100 * (rank + 1) / len(values) for rank in range(len(values))]
                style = {"linestyle": "-", "label": label} if index == 1 else {"linestyle": "-" if index else "--"}
                components_axes.step(values, heads, color=f"C{color}", where="post", **style)
        components_axes.set(xlabel=f"components for 90% (of {size})", ylabel="heads (%)", xlim=(0, size))
        components_axes.legend(loc="center right", bbox_to_anchor=(0.73, 0.35), fontsize="small")
        for index, (model, results) in enumerate(zip(fine_tuned, record["accuracy"], strict=True)):
            names = {"agreement": ("C1o-", "identical predictions"), "accuracy": ("C2s-", "accuracy")}
            sizes = [x["size"] for x in results]
            accuracy_axes.plot(
                range(1, size + 1), [100 * x for x in model["variance"]], "C0-", label="variance of the scores"
            )
            for name, (line, label) in names.items():
                accuracy_axes.plot(sizes, [100 * x[name] for x in results], line, label=label)
            if index == 0:
                accuracy_axes.legend(loc="lower right")
        accuracy_axes.set(xlabel=f"dimensions of the scores per head (of {size})", ylabel="%", ylim=(0, 102))
        components_axes.set_title("Components that explain the scores")
        accuracy_axes.set_title("MNLI, scores truncated")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="a pretrained model, then models fine-tuned on MNLI (directories)")
    parser.add_argument("--others", nargs="*", default=[], help="directories of other pretrained models")
    parser.add_argument("--data_dir", required=True, help="directory with the GLUE tasks")
    parser.add_argument("--output_dir", type=Path, required=True, help="directory for the record and the figure")
    args = parser.parse_args()
    data = {"task_name": "mnli", "data_dir": args.data_dir, "max_seq_length": 128, "output_dir": "unused"}
    data |= {"speedup": [2.0], "unpad_inputs": True, "dtype": "float32"}

    def variance(source: str) -> dict:
        return measure_variance(ShrinkOptions(model=source, max_train_samples=ROWS, **data))

    models = [variance(source) for source in args.models]
    record = {
        "models": models,
        "others": [variance(source) for source in args.others],
        "accuracy": [measure_accuracy(ShrinkOptions(model=source, **data)) for source in args.models[1:]],
    }
    args.output_dir.mkdir(parents=True, exist_ok=True)
    (args.output_dir / "score_variance.json").write_text(json.dumps(record) + "\n")
    draw(record, args.output_dir / "score_variance.png")


if __name__ == "__main__":
    main()
