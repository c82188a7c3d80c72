"""
Prunes a BERT to a target speed or size while preserving its predictions.

1. calibration.py loads unlabeled rows for the model's task.
2. fisher_information.py collects statistics for each layer: activations, and the Fisher information.
3. pruning.py computes the cost of pruning heads, head dimensions and neurons. latency.py measures the time saved.
4. budget.py chooses the shapes of all layers so that they meet the target at the lowest cost.
5. layers.py refits the remaining weights to the hidden states of the original by least squares.
6. fine_tuning/distillation.py optionally trains the pruned model to make the same predictions as the original.
"""

import copy
import hashlib
import shutil
from dataclasses import asdict, replace
from math import inf
from pathlib import Path

import torch
from accelerate import PartialState

from ..conversion.auxiliary_files import CARD, copy_auxiliary_files
from ..conversion.convert import DTYPES
from ..conversion.families import build_model
from ..conversion.growing import Heads, int_or_list, set_heads
from ..fine_tuning.distillation import DistillationTrainer, distillation_arguments
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..publishing.model_card import checkpoint_card
from ..support.errors import InputError
from ..support.files import check_output_free, new_directory, output_path
from ..training.arguments import CommonArguments
from ..training.interruption import train
from ..training.output import check_same_data, output_directory
from .budget import LayerPrices, LayerSize, Option, Prices, head_choices, neuron_choices, solve_knapsack
from .calibration import CalibrationData, mean_tokens
from .context import ShrinkContext, Target
from .fisher_information import collect_statistics, layers_of
from .latency import machine_name, measure_latencies
from .layers import LayerPruner, refit
from .report import FAMILY, FAMILY_PLOT, PLOT, ShrinkFamily, ShrinkResult, plot, plot_family

PRUNED = "pruned"  # subdirectory that contains the pruned model during distillation
TRIES = 6  # maximum number of attempts to meet a target latency
NEAR, ENOUGH = 0.99, 1.04  # a ratio of measured to target speed in this range ends the search
LEARNING_RATE = 5e-5  # default for distillation; 2e-4 made mildly pruned models worse


def shrink(  # noqa: PLR0913  the options of the command
    model: str | Path,
    output_dir: str | Path,
    speedup: float | list[float] | None = None,
    params: float | None = None,
    flops: float | None = None,
    attention_head_size: int | list[int] | None = None,
    value_head_size: int | list[int] | None = None,
    num_attention_heads: int | list[int] | None = None,
    intermediate_size: int | list[int] | None = None,
    unpad_inputs: bool | None = None,
    dtype: str | None = None,
    task_name: str | None = None,
    data_dir: str | Path | None = None,
    train_file: str | Path | list[str] | list[Path] | None = None,
    text_column_names: str | None = None,
    skip_bad_rows: bool = False,
    max_seq_length: int | None = None,
    max_samples: int = 1500,
    batch_size: int = 32,
    distil_steps: int | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    revision: str = "main",
    cache_dir: str | None = None,
    token: str | None = None,
) -> ShrinkResult | ShrinkFamily:
    """
    Prunes the heads, head dimensions and neurons of a model to a target speed or size, and writes the new model.

    Specify one target (speedup, params, flops, or layer sizes) and calibration rows from the model's
    task (task_name or train_file). Labels are ignored.

    Args:
        model: The directory or Hub id of any model that `fixedbert.convert` supports.
        output_dir: A new directory for the model, its tokenizer and model card, shrinking.json and shrinking.png.
        speedup: Target speed relative to the original, measured on this machine. If there are several targets,
            `output_dir` contains a directory for each of them, such as 1.5x, and the result is a `ShrinkFamily`.
        params: Maximum number of parameters.
        flops: Maximum number of FLOPs for a row of average length.
        attention_head_size, value_head_size, num_attention_heads, intermediate_size: One number for all layers, or a
            list with one number per layer.
        unpad_inputs, dtype: Whether the new model skips padding, and the dtype of its weights, such as "bfloat16".
            The original is timed with the same settings. For `speedup`, the default is the fastest combination on
            this machine. Otherwise, the new model skips padding and keeps the dtype of the original.
        task_name, data_dir: A GLUE task, and a directory with its files. By default, they are loaded from the Hub.
        train_file: One or more files with calibration rows.
        text_column_names: Names of the text columns, such as "premise,hypothesis". For token classification, the
            column with lists of words, "tokens" by default.
        skip_bad_rows: Print and skip invalid rows.
        max_seq_length, max_samples, batch_size: Maximum tokens per row, maximum number of rows, and rows per batch.
        distil_steps: Number of distillation steps after pruning. 600 steps take about ten minutes on two cores.
        learning_rate: Learning rate for the distillation, 5e-5 by default.
        seed: Seed for the order of the rows and for sampling predictions.
        revision, cache_dir, token: Options for a model on the Hub.

    Raises:
        InputError: If the model cannot be shrunk, the calibration data is unsuitable, or the target is out of reach.
        KeyboardInterrupt: If Ctrl-C was pressed. The same call resumes an interrupted distillation.
    """
    speedups = speedup if isinstance(speedup, list) else [speedup]
    targets = [
        Target(
            speedup=value,
            params=params,
            flops=flops,
            attention_head_size=attention_head_size,
            value_head_size=value_head_size,
            num_attention_heads=num_attention_heads,
            intermediate_size=intermediate_size,
        )
        for value in speedups
    ]
    target = targets[0]
    if dtype not in (None, *DTYPES):
        raise InputError(f"{dtype!r}: must be one of {', '.join(DTYPES)}.", "dtype")
    files = [train_file] if isinstance(train_file, str | Path) else train_file
    data = CalibrationData(
        task_name=task_name,
        data_dir=None if data_dir is None else str(data_dir),
        train_file=None if files is None else [str(file) for file in files],
        text_column_names=None if text_column_names is None else tuple(text_column_names.split(",")),
        skip_bad_rows=skip_bad_rows,
        max_seq_length=max_seq_length,
        max_samples=max_samples,
        batch_size=batch_size,
        seed=seed,
    )
    if learning_rate is not None and distil_steps is None:
        raise InputError("requires `distil_steps`.", "learning_rate")
    if distil_steps is not None and len(targets) > 1:
        raise InputError("requires a single target.", "distil_steps")
    if PartialState(cpu=not torch.accelerator.is_available()).num_processes > 1:
        raise InputError("fixedbert shrink runs in a single process; start it without accelerate launch.")
    if distil_steps is None:  # distillation resumes in its directory
        check_output_free(output_path(output_dir))
    context = ShrinkContext.load(
        str(model),
        data,
        target,
        unpad_inputs=unpad_inputs,
        dtype=None if dtype is None else getattr(torch, dtype),
        distillation_rows=(distil_steps or 0) * batch_size,
        revision=revision,
        cache_dir=cache_dir,
        token=token,
    )
    if len(targets) > 1:
        return shrink_family(context, targets, output_dir)
    if distil_steps is None:
        with new_directory(output_dir) as directory:
            pruned, result = prune(context, *statistics_for(context))
            write_model(directory, output_path(output_dir).name, context, pruned, result)
    else:
        training_args = distillation_arguments(output_dir, distil_steps, learning_rate or LEARNING_RATE, seed)
        arguments = {"model": str(model), "revision": revision} | asdict(data) | asdict(target)
        arguments |= {"unpad_inputs": unpad_inputs, "dtype": dtype}
        result = prune_and_distil(context, training_args, arguments)
    return replace(result, folder=str(output_dir))


def statistics_for(context: ShrinkContext) -> tuple[Prices | None, list[LayerPruner]]:
    """Returns the prices of all sublayers (None if the target is layer sizes), and a pruner for each layer."""
    prices = None if context.target.is_shape else prices_for(context)
    return prices, layer_pruners(context)


def shrink_family(context: ShrinkContext, targets: list[Target], output_dir: str | Path) -> ShrinkFamily:
    """Prunes the original to several targets with the same statistics and writes a directory for each target."""
    with new_directory(output_dir) as directory:
        prices, pruners = statistics_for(context)
        results = []
        for target in targets:
            name = f"{target.speedup:g}x"
            (directory / name).mkdir()
            pruned, result = prune(replace(context, target=target), prices, pruners)
            write_model(directory / name, name, context, pruned, result)
            results.append(replace(result, folder=f"{output_dir}/{name}"))
        family = ShrinkFamily(results)
        (directory / FAMILY).write_text(str(family) + "\n")
        plot_family(results, directory / FAMILY_PLOT)
    return family


def prune(
    context: ShrinkContext, prices: Prices | None, pruners: list[LayerPruner]
) -> tuple[FixedHeadBertPreTrainedModel, ShrinkResult]:
    """Prunes a copy of the original model to the target and refits the copy. Returns the copy and the result."""
    original = context.original
    if prices is None:
        pruned = prune_layers(original, pruners, context.target.shapes(original.config))
    else:
        pruned = prune_to_budget(context, pruners, prices)
    refit(original, pruned, context.calibration)
    before, after, speedup = context.measure_speedup(pruned)
    result = ShrinkResult(
        model=context.source,
        rows=sum(len(batch["input_ids"]) for batch in context.calibration),
        tokens=mean_tokens(context.calibration),
        before=context.cost(original, before),
        after=context.cost(pruned, after),
        fidelity=context.fidelity(pruned),
        speedup=speedup,
        target_speedup=context.target.speedup,
        machine=machine_name(),
        serving=str(context.serving),
    )
    return pruned, result


def prune_and_distil(context: ShrinkContext, training_args: CommonArguments, arguments: dict) -> ShrinkResult:
    """
    Prunes a copy of the original and distills the original into the copy, or resumes an interrupted distillation.
    Writes the model from before distillation if distillation does not reduce the KL divergence on held-out rows.
    """
    steps, name = training_args.max_steps, training_args.directory.name
    arguments = arguments | {"distil_steps": steps, "learning_rate": training_args.learning_rate}
    with output_directory(training_args, arguments) as checkpoint:
        folder, kept = training_args.directory, training_args.directory / PRUNED
        if not kept.exists():
            with new_directory(kept) as directory:
                pruned, result = prune(context, *statistics_for(context))
                pruned.save_pretrained(directory)
                result.write(directory)
        # Always load from the file: AdamW states have the strides of the weights, which must match in a resumed run.
        student, result = pruned_model(context, kept), replace(ShrinkResult.read(kept), model=context.source)
        examples = [{name: x.cpu() for name, x in batch.items()} for batch in context.distillation]
        content = b"".join(batch["input_ids"].numpy().tobytes() for batch in examples)
        check_same_data(folder, hashlib.sha256(content).hexdigest())
        options = {"args": training_args, "train_dataset": examples}
        train(DistillationTrainer(student, context.original, context.loaded.predict, **options), checkpoint)
        student.requires_grad_().eval()
        distilled = context.fidelity(student)
        result = replace(result, distil_steps=steps)
        if distilled.divergence < result.fidelity.divergence:
            result = replace(result, distilled=distilled)
        else:
            PartialState().print(f"distillation did not help ({distilled}); writing the pruned model instead.")
            student = pruned_model(context, kept)
        write_model(folder, name, context, student, result)
        for directory in (*folder.glob("checkpoint-*"), kept):  # last, because a killed run resumes from them
            shutil.rmtree(directory)
    return result


def pruned_model(context: ShrinkContext, directory: Path) -> FixedHeadBertPreTrainedModel:
    model = type(context.original).from_pretrained(directory)
    return model.eval().to(context.original.device)


def layer_pruners(context: ShrinkContext) -> list[LayerPruner]:
    """Collects statistics and returns a pruner for each layer. Covers all sizes if the target does not set any."""
    if context.target.is_shape:
        sizes = [{shape.heads.size} for shape in context.target.shapes(context.original.config)]
    else:
        sizes = [{choice.size for choice in head_choices(shape.heads)} for shape in context.shapes]
    with torch.random.fork_rng():
        torch.manual_seed(context.seed)  # predictions are sampled
        statistics = collect_statistics(context.original, context.calibration, sizes, context.loaded.predict)
    tokens = mean_tokens(context.calibration)
    return [
        LayerPruner(layer, shape, sums, tokens)
        for layer, shape, sums in zip(layers_of(context.original), context.shapes, statistics, strict=True)
    ]


def prices_for(context: ShrinkContext) -> Prices:
    """Returns the prices of all sublayers in the unit of the target: seconds, parameters or FLOPs."""
    original, shapes = context.original, context.shapes
    width, length = original.config.hidden_size, round(mean_tokens(context.calibration))
    if context.target.speedup is not None:
        served, masks = context.serving.model(original), [batch["attention_mask"] for batch in context.batches]
        return measure_latencies(served, shapes, masks).prices(shapes)

    def parameters(heads: Heads) -> float:
        return heads.num_heads * ((2 * heads.size + heads.value_size) * (width + 1) + heads.value_size * width)

    def operations(heads: Heads) -> float:
        return 2 * length * heads.num_heads * (2 * width + length) * (heads.size + heads.value_size)

    if context.target.params is not None:
        layers = [LayerPrices(parameters, lambda neurons: neurons * (2 * width + 1))] * len(shapes)
        return Prices.of_model(layers, shapes, original.num_parameters(), "parameters")
    layers = [LayerPrices(operations, lambda neurons: 4 * length * width * neurons)] * len(shapes)
    return Prices.of_model(layers, shapes, context.operations(original), "operations")


def prune_to_budget(
    context: ShrinkContext, pruners: list[LayerPruner], prices: Prices
) -> FixedHeadBertPreTrainedModel:
    """Prunes a copy of the original to the shapes that the budget allows. The remaining weights are not refitted."""
    options = sublayer_options(pruners, prices)
    least = prices.rest + sum(min(option.price for option in sublayer) for sublayer in options)
    wanted = budget_for(context.target, prices, least)

    def pruned_within(budget: float) -> FixedHeadBertPreTrainedModel:
        chosen = [option.choice for option in solve_knapsack(options, budget - prices.rest)]
        shapes = [LayerSize(heads, neurons) for heads, neurons in zip(chosen[::2], chosen[1::2], strict=True)]
        return prune_layers(context.original, pruners, shapes)

    if context.target.speedup is None:
        return pruned_within(wanted)
    # The sum of the sublayers' latencies is only an estimate, so the copy is measured and the budget corrected.
    budget, best, smallest_error = wanted, None, (True, inf)
    for _ in range(TRIES):
        pruned = pruned_within(budget)
        *_, speedup = context.measure_speedup(pruned)
        reached = speedup / context.target.speedup
        error = (reached < NEAR, abs(reached - 1))  # any model that is fast enough is better than all that are not
        if best is None or error < smallest_error:
            best, smallest_error = pruned, error
        if NEAR <= reached <= ENOUGH:
            break
        halved = prices.rest + (budget - prices.rest) / 2
        budget = max(budget * reached, halved, least)
    assert best is not None
    return best


def sublayer_options(pruners: list[LayerPruner], prices: Prices) -> list[list[Option]]:
    """Returns the options for the heads and then the neurons of the first layer, of the second layer, and so on."""
    options = []
    for pruner, (price_of_heads, price_of_neurons) in zip(pruners, prices.layers, strict=True):
        heads, neurons = head_choices(pruner.shape.heads), neuron_choices(pruner.shape.neurons)
        options.append([Option(choice, pruner.cost_of_heads(choice), price_of_heads(choice)) for choice in heads])
        options.append(
            [Option(choice, pruner.cost_of_neurons(choice), price_of_neurons(choice)) for choice in neurons]
        )
    return options


def budget_for(target: Target, prices: Prices, least: float) -> float:
    """
    Returns the budget for the entire model. `least` is the price of the smallest possible model.

    Raises:
        InputError: If the budget is not between the prices of the smallest possible model and the original.
    """
    needed = prices.original + prices.rest
    wanted = needed / target.speedup if target.speedup else target.params or target.flops or 0
    if not least <= wanted < needed:
        raise InputError(
            f"the target is {wanted:.4g} {prices.unit}, but the original needs {needed:.4g} and the smallest possible "
            f"model needs {least:.4g}; choose a target in between."
        )
    return wanted


def prune_layers(
    original: FixedHeadBertPreTrainedModel, pruners: list[LayerPruner], shapes: list[LayerSize]
) -> FixedHeadBertPreTrainedModel:
    """Returns a copy of the original with its layers pruned to `shapes`."""
    config = copy.deepcopy(original.config)
    set_heads(config, [shape.heads for shape in shapes])
    config.intermediate_size = int_or_list([shape.neurons for shape in shapes])
    tensors = {name: tensor.detach().clone() for name, tensor in original.state_dict().items()}
    prefix = next(name for name in tensors if "encoder.layer.0." in name).split("encoder.layer.0.")[0]
    for index, (pruner, shape) in enumerate(zip(pruners, shapes, strict=True)):
        for name, tensor in pruner.parameters(shape).items():
            tensors[f"{prefix}encoder.layer.{index}.{name}"] = tensor.to(original.dtype)
    # A sublayer without inputs keeps only its bias.
    tensors = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    return build_model(type(original), config, tensors, original).eval()


def write_model(
    directory: Path, name: str, context: ShrinkContext, model: FixedHeadBertPreTrainedModel, result: ShrinkResult
):
    """Writes the model, its tokenizer and pooling configuration, the results, the plot and the model card."""
    context.serving.model(model).save_pretrained(directory)
    _, metadata = copy_auxiliary_files(context.source, context.loaded.directory, directory)
    result.write(directory)
    plot(result, directory / PLOT)
    checkpoint_card(model, name, result.provenance(), **metadata).save(directory / CARD)
