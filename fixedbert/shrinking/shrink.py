"""
Prunes a BERT to a target speed or size while preserving its predictions.

1. context.py loads the model and unlabeled rows for its task (tasks/calibration.py).
2. fisher_information.py collects statistics for each layer: activations, and the Fisher information.
3. pruning.py computes the cost of pruning heads, head dimensions and neurons. latency.py measures the time saved.
4. budget.py chooses the shapes of all layers so that they meet the target at the lowest cost.
5. layers.py refits the remaining weights to the hidden states of the original by least squares.
6. distillation.py optionally trains the pruned model to make the same predictions as the original.
"""

import copy
import hashlib
import shutil
from dataclasses import asdict, replace
from math import inf
from pathlib import Path

import torch
from accelerate import PartialState

from ..loading.auxiliary_files import CARD, copy_auxiliary_files
from ..loading.families import build_model
from ..loading.heads import Heads, int_or_list, set_heads
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..options import ShrinkOptions, takes_options
from ..publishing.model_card import checkpoint_card
from ..support.errors import InputError
from ..support.files import check_output_free, new_directory
from ..support.machine import machine_name
from ..tasks.calibration import check_files, mean_tokens
from ..training.interruption import train
from ..training.output import check_same_data, output_directory
from .budget import LayerPrices, LayerSize, Option, Prices, head_choices, neuron_choices, solve_knapsack
from .context import ShrinkContext
from .distillation import DistillationTrainer, distillation_arguments
from .fisher_information import collect_statistics, layers_of
from .latency import measure_prices
from .layers import LayerPruner, refit
from .report import FAMILY, FAMILY_PLOT, PLOT, ShrinkFamily, ShrinkResult, plot, plot_family

PRUNED = "pruned"  # subdirectory that contains the pruned model during distillation
TRIES = 6  # maximum number of attempts to meet a target latency
NEAR, ENOUGH = 0.99, 1.04  # a ratio of measured to target speed in this range ends the search
NOT_COMPARED = ("output_dir", "cache_dir", "token")  # options that may change when an interrupted run resumes
LEARNING_RATE = 5e-5  # default for distillation; 2e-4 made mildly pruned models worse


@takes_options("shrink")
def shrink(options: ShrinkOptions) -> ShrinkResult | ShrinkFamily:
    """
    Prunes the heads, head dimensions and neurons of a model to a target speed or size, and writes the new model.

    Specify one target (speedup, params, flops, or layer sizes) and calibration rows from the model's task (task_name
    or train_file). The original is timed with the inference settings of the new model.

    Returns:
        The result, or a `ShrinkFamily` if there are several speedups. Then `output_dir` contains a directory for each.

    Raises:
        InputError: If the model cannot be shrunk, the calibration data is unsuitable, or the target is out of reach.
        KeyboardInterrupt: If Ctrl-C was pressed. The same call resumes an interrupted distillation.
    """
    check_files(options)
    if PartialState(cpu=not torch.accelerator.is_available()).num_processes > 1:
        raise InputError("fixedbert shrink runs in a single process; start it without accelerate launch.")
    output = Path(options.output_dir)
    if options.distil_steps is None:  # distillation resumes in its directory
        check_output_free(output)
    context = ShrinkContext.load(options)
    if options.speedup and len(options.speedup) > 1:
        return shrink_family(context)
    if options.distil_steps is None:
        with new_directory(output) as directory:
            pruned = prune(context, *statistics_for(context))
            result = measure(context, pruned)
            write_model(directory, output.name, context, pruned, result)
    else:
        result = prune_and_distil(context, options.distil_steps)
    return replace(result, folder=str(output))


def statistics_for(context: ShrinkContext) -> tuple[Prices | None, list[LayerPruner]]:
    """Returns the prices of all sublayers (None if the target is layer sizes), and a pruner for each layer."""
    prices = None if context.target_shapes else prices_for(context)
    return prices, layer_pruners(context)


def shrink_family(context: ShrinkContext) -> ShrinkFamily:
    """Prunes the original to several speedups with the same statistics and writes a directory for each."""
    options = context.options
    with new_directory(options.output_dir) as directory:
        prices, pruners = statistics_for(context)
        results = []
        for speedup in options.speedup or ():
            name, one = f"{speedup:g}x", replace(context, options=replace(options, speedup=[speedup]))
            (directory / name).mkdir()
            pruned = prune(one, prices, pruners)
            result = measure(one, pruned)
            write_model(directory / name, name, one, pruned, result)
            results.append(replace(result, folder=f"{options.output_dir}/{name}"))
        family = ShrinkFamily(results)
        (directory / FAMILY).write_text(str(family) + "\n")
        plot_family(results, directory / FAMILY_PLOT)
    return family


def prune(context: ShrinkContext, prices: Prices | None, pruners: list[LayerPruner]) -> FixedHeadBertPreTrainedModel:
    """Prunes a copy of the original model to the target, refits the copy, and returns it."""
    if prices is None:
        pruned = prune_layers(context.original, pruners, context.target_shapes)
    else:
        pruned = prune_to_budget(context, pruners, prices)
    refit(context.original, pruned, context.calibration)
    return pruned


def measure(context: ShrinkContext, pruned: FixedHeadBertPreTrainedModel) -> ShrinkResult:
    """Measures the size, the speed and the fidelity of a pruned model."""
    speedup = context.measure_speedup(pruned)
    return ShrinkResult(
        model=context.options.model,
        rows=sum(len(batch["input_ids"]) for batch in context.calibration),
        tokens=mean_tokens(context.calibration),
        before=context.cost(context.original, speedup.before),
        after=context.cost(pruned, speedup.after),
        fidelity=context.fidelity(pruned),
        speedup=speedup.ratio,
        speedup_range=(speedup.lowest, speedup.highest),
        target_speedup=context.speedup,
        machine=machine_name(),
        serving=str(context.serving),
    )


def prune_and_distil(context: ShrinkContext, steps: int) -> ShrinkResult:
    """
    Prunes a copy of the original and distills the original into the copy, or resumes an interrupted distillation.
    Writes the model from before distillation if distillation does not reduce the KL divergence on held-out rows.
    """
    options = context.options
    learning_rate = options.learning_rate or LEARNING_RATE
    training_args = distillation_arguments(options.output_dir, steps, learning_rate, options.seed)
    arguments = {name: value for name, value in asdict(options).items() if name not in NOT_COMPARED}
    with output_directory(training_args, arguments) as checkpoint:
        folder, kept = training_args.directory, training_args.directory / PRUNED
        if not kept.exists():
            with new_directory(kept) as directory:
                prune(context, *statistics_for(context)).save_pretrained(directory)
        # Always load from the file: AdamW states have the strides of the weights, which must match in a resumed run.
        student = pruned_model(context, kept)
        examples = [{name: x.cpu() for name, x in batch.items()} for batch in context.distillation]
        content = b"".join(batch["input_ids"].numpy().tobytes() for batch in examples)
        check_same_data(folder, hashlib.sha256(content).hexdigest())
        models = (student, context.original, context.predict)
        train(DistillationTrainer(*models, args=training_args, train_dataset=examples), checkpoint)
        student.requires_grad_().eval()
        pruned, distilled = pruned_model(context, kept), context.fidelity(student)
        result = replace(measure(context, pruned), distil_steps=steps)
        if distilled.divergence < result.fidelity.divergence:
            result = replace(result, distilled=distilled)
        else:
            PartialState().print(f"distillation did not help ({distilled}); writing the pruned model instead.")
            student = pruned
        write_model(folder, folder.name, context, student, result)
        for directory in (*folder.glob("checkpoint-*"), kept):  # last, because a killed run resumes from them
            shutil.rmtree(directory)
    return result


def pruned_model(context: ShrinkContext, directory: Path) -> FixedHeadBertPreTrainedModel:
    model = type(context.original).from_pretrained(directory)
    return model.eval().to(context.original.device)


def layer_pruners(context: ShrinkContext) -> list[LayerPruner]:
    """Collects statistics and returns a pruner for each layer. Covers all sizes if the target does not set any."""
    if shapes := context.target_shapes:
        sizes = [{shape.heads.size} for shape in shapes]
    else:
        sizes = [{choice.size for choice in head_choices(shape.heads)} for shape in context.shapes]
    with torch.random.fork_rng():
        torch.manual_seed(context.options.seed)  # predictions are sampled
        statistics = collect_statistics(context.original, context.calibration, sizes, context.predict)
    tokens = mean_tokens(context.calibration)
    return [
        LayerPruner(layer, shape, sums, tokens)
        for layer, shape, sums in zip(layers_of(context.original), context.shapes, statistics, strict=True)
    ]


def prices_for(context: ShrinkContext) -> Prices:
    """Returns the prices of all sublayers in the unit of the target: seconds for all batches, parameters or FLOPs."""
    original, shapes = context.original, context.shapes
    width, length = original.config.hidden_size, round(mean_tokens(context.calibration))
    if context.speedup is not None:
        return measure_prices(context.serving.model(original), shapes, context.batches)

    def parameters(heads: Heads) -> float:
        return heads.num_heads * ((2 * heads.size + heads.value_size) * (width + 1) + heads.value_size * width)

    def operations(heads: Heads) -> float:
        return 2 * length * heads.num_heads * (2 * width + length) * (heads.size + heads.value_size)

    if context.options.params is not None:
        layers = [LayerPrices(parameters, lambda neurons: neurons * (2 * width + 1))] * len(shapes)
        return Prices(layers, shapes, original.num_parameters())
    layers = [LayerPrices(operations, lambda neurons: 4 * length * width * neurons)] * len(shapes)
    return Prices(layers, shapes, context.operations(original))


def prune_to_budget(
    context: ShrinkContext, pruners: list[LayerPruner], prices: Prices
) -> FixedHeadBertPreTrainedModel:
    """Prunes a copy of the original to the shapes that the budget allows. The remaining weights are not refitted."""
    options = sublayer_options(pruners, prices)
    least = prices.rest + sum(min(option.price for option in sublayer) for sublayer in options)
    wanted = budget_for(context, prices, least)

    def pruned_within(budget: float) -> FixedHeadBertPreTrainedModel:
        chosen = [option.choice for option in solve_knapsack(options, budget - prices.rest)]
        shapes = [LayerSize(heads, neurons) for heads, neurons in zip(chosen[::2], chosen[1::2], strict=True)]
        return prune_layers(context.original, pruners, shapes)

    if context.speedup is None:
        return pruned_within(wanted)
    # The sum of the sublayers' latencies is only an estimate, so the copy is measured and the budget corrected.
    budget, best, smallest_error = wanted, None, (True, inf)
    for _ in range(TRIES):
        pruned = pruned_within(budget)
        reached = context.measure_speedup(pruned).ratio / context.speedup
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


def budget_for(context: ShrinkContext, prices: Prices, least: float) -> float:
    """
    Returns the budget for the entire model. `least` is the price of the smallest possible model.

    Raises:
        InputError: If the budget is not between the prices of the smallest possible model and the original.
    """
    needed = prices.of_layers(prices.original) + prices.rest
    options = context.options
    wanted = needed / context.speedup if context.speedup else options.params or options.flops or 0
    if not least <= wanted < needed:
        unit = "seconds" if context.speedup else "parameters" if options.params else "FLOPs"
        raise InputError(
            f"the target is {wanted:.4g} {unit}, but the original needs {needed:.4g} and the smallest possible model "
            f"needs {least:.4g}; choose a target in between."
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
    _, metadata = copy_auxiliary_files(context.options.model, context.loaded.directory, directory)
    result.write(directory)
    plot(result, directory / PLOT)
    checkpoint_card(model, name, result.provenance(), **metadata).save(directory / CARD)
