"""
Prunes a BERT to a target speed or size while preserving its predictions.

1. context.py loads the model and unlabeled rows for its task (tasks/calibration.py).
2. fisher_information.py collects statistics for each layer: activations, and the Fisher information.
3. pruning.py computes the cost of pruning heads, head dimensions and neurons. latency.py measures the time saved.
4. target.py chooses the shapes of all layers so that they meet the target at the lowest cost (budget.py).
5. layers.py refits the remaining weights to the hidden states of the original by least squares.
6. distillation.py optionally trains the pruned model to make the same predictions as the original.
"""

import hashlib
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import torch
from accelerate import PartialState

from ..commands import takes_options
from ..loading.auxiliary_files import CARD, copy_auxiliary_files
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..options import ShrinkOptions
from ..publishing.model_card import checkpoint_card
from ..support.errors import InputError
from ..support.files import check_output_free, new_directory, reading
from ..support.machine import machine_name
from ..tasks.calibration import mean_tokens
from ..training.interruption import train
from ..training.output import check_same_data, output_directory
from .budget import Prices, head_choices
from .context import ShrinkContext
from .distillation import DistillationTrainer, distillation_arguments
from .fisher_information import collect_statistics, layers_of
from .layers import LayerPruner, prune_layers, refit
from .report import FAMILY, PLOT, ShrinkFamily, ShrinkResult, plot
from .target import budget_for, prices_for, prune_to_budget

PRUNED = "pruned"  # subdirectory that contains the pruned model during distillation
NOT_COMPARED = ("output_dir", "cache_dir", "token")  # options that may change when an interrupted run resumes
LEARNING_RATE = 5e-5  # default for distillation; 2e-4 made mildly pruned models worse


@takes_options("shrink")
def shrink(options: ShrinkOptions) -> ShrinkResult | ShrinkFamily:
    """
    Prunes the heads, head dimensions and neurons of a model to a target speed or size, and writes the new model.

    Specify one target (speedup, params, or layer sizes) and calibration rows from the model's task (task_name
    or train_file). The original is timed with the inference settings of the new model.

    Returns:
        The result, or a `ShrinkFamily` if there are several speedups. Then `output_dir` contains a directory for each.

    Raises:
        InputError: If the model cannot be shrunk, the calibration data is unsuitable, or the target is out of reach.
        KeyboardInterrupt: If Ctrl-C was pressed. The same call resumes an interrupted distillation.
    """
    if PartialState(cpu=not torch.accelerator.is_available()).num_processes > 1:
        raise InputError("fixedbert shrink runs in a single process; start it without accelerate launch.")
    if options.distil_steps is not None:  # distillation resumes in its directory
        return prune_and_distil(ShrinkContext.load(options), options.distil_steps)
    check_output_free(Path(options.output_dir))
    context = ShrinkContext.load(options)
    with new_directory(options.output_dir) as directory:
        if options.speedup is None or len(options.speedup) == 1:
            pruned = prune(context, *statistics_for(context))  # frees the statistics, which are large
            return refit_and_write(directory, options.output_dir, context, pruned)
        prices, pruners = statistics_for(context)
        results = []
        for speedup in options.speedup:
            name, one = f"{speedup:g}x", replace(context, options=replace(options, speedup=[speedup]))
            (directory / name).mkdir()
            pruned = prune(one, prices, pruners)
            results.append(refit_and_write(directory / name, f"{options.output_dir}/{name}", one, pruned))
        family = ShrinkFamily(results)
        (directory / FAMILY).write_text(str(family) + "\n")
    return family


def statistics_for(context: ShrinkContext) -> tuple[Prices | None, list[LayerPruner]]:
    """Returns the prices of all sublayers (None if the target is layer sizes), and a pruner for each layer."""
    if context.target_shapes:
        return None, layer_pruners(context)
    prices = prices_for(context)
    for speedup in context.options.speedup or (None,):
        budget_for(context.options, prices, speedup)  # refuses a target that is out of reach before the slow part
    return prices, layer_pruners(context)


def refit_and_write(
    directory: Path, folder: str, context: ShrinkContext, pruned: FixedHeadBertPreTrainedModel
) -> ShrinkResult:
    """Refits a pruned model to the original and writes it to `directory`, which will become `folder`."""
    refit(context.original, pruned, context.calibration)
    result = measure(context, pruned, folder)
    write_model(directory, context, pruned, result)
    return result


def prune(context: ShrinkContext, prices: Prices | None, pruners: list[LayerPruner]) -> FixedHeadBertPreTrainedModel:
    """Prunes a copy of the original model to the target and returns it."""
    if prices is None:
        return prune_layers(context.original, pruners, context.target_shapes)
    return prune_to_budget(context, pruners, prices)


def measure(context: ShrinkContext, pruned: FixedHeadBertPreTrainedModel, folder: str) -> ShrinkResult:
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
        folder=folder,
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
                student = prune(context, *statistics_for(context))
                refit(context.original, student, context.calibration)
                student.save_pretrained(directory)
        # Always load from the file: AdamW states have the strides of the weights, which must match in a resumed run.
        student = pruned_model(context, kept)
        examples = [{name: x.cpu() for name, x in batch.items()} for batch in context.distillation]
        content = b"".join(batch["input_ids"].numpy().tobytes() for batch in examples)
        check_same_data(folder, hashlib.sha256(content).hexdigest())
        models = (student, context.original, context.predict)
        trainer = DistillationTrainer(*models, args=training_args, train_dataset=examples)
        train(trainer, checkpoint)
        trainer.accelerator.unwrap_model(student, keep_fp32_wrapper=False)  # copies for serving must not use autocast
        student.requires_grad_().eval()
        pruned, distilled = pruned_model(context, kept), context.fidelity(student)
        result = replace(measure(context, pruned, options.output_dir), distil_steps=steps)
        if context.divergence(student) < context.divergence(pruned):
            result = replace(result, distilled=distilled)
        else:
            PartialState().print(f"distillation did not help ({distilled}); writing the pruned model instead.")
            student = pruned
        write_model(folder, context, student, result)
        unfinished = folder.glob(f"{PRUNED}.*.partial")
        for directory in (*folder.glob("checkpoint-*"), *unfinished, kept):  # last: a killed run resumes from them
            shutil.rmtree(directory)
    return result


def pruned_model(context: ShrinkContext, directory: Path) -> FixedHeadBertPreTrainedModel:
    with reading(directory, f"remove {directory.parent} and run the same command again"):
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


def write_model(directory: Path, context: ShrinkContext, model: FixedHeadBertPreTrainedModel, result: ShrinkResult):
    """Writes the model, its tokenizer and pooling configuration, the results, the plot and the model card."""
    context.serving.model(model).save_pretrained(directory)
    _, metadata = copy_auxiliary_files(context.options.model, context.loaded.directory, directory)
    result.write(directory)
    plot(result, directory / PLOT)
    checkpoint_card(model, Path(result.folder).name, result.provenance(), **metadata).save(directory / CARD)
