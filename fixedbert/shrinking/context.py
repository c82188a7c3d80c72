"""The inputs of `shrink`: the original model, the target speed or size, the data, and the inference settings."""

from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
from accelerate import PartialState
from torch import Tensor
from transformers import PreTrainedModel

from ..conversion.convert import check_equivalence
from ..conversion.growing import resized, to_fixed_head_bert
from ..counts import forward_flops
from ..loading.loaded_model import LoadedModel
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..options import ShrinkOptions
from ..support.errors import InputError
from ..support.timing import interleaved
from ..tasks.calibration import load_batches, mean_tokens
from ..tasks.fidelity import Fidelity, measure_fidelity
from ..tasks.predictions import Batch, Predictions, predict
from .budget import LayerSize
from .fisher_information import layer_sizes
from .pruning import TOKENS_PER_DIMENSION
from .report import Cost
from .serving import Serving, fastest_serving, random_batches

ROUNDS = 7  # number of measurements of the speedup


class Speedup(NamedTuple):
    """Median seconds before and after pruning, their ratio, and its lowest and highest value in a round."""

    before: float
    after: float
    ratio: float
    lowest: float
    highest: float


@dataclass(frozen=True, kw_only=True)
class ShrinkContext:
    """
    The inputs of `shrink`.

    Args:
        options: The options of `shrink`, with at most one speedup.
        original: The original as a FixedHeadBert in float32. It is also the model in `loaded`.
        calibration, held_out, distillation: Batches of tokenized rows.
        batches: Batches for timing models.
        serving: The inference settings of the new model.
        references: For sentence embeddings: scaled embeddings (D, n) of n texts by the original.
    """

    options: ShrinkOptions
    original: FixedHeadBertPreTrainedModel
    loaded: LoadedModel
    calibration: list[Batch]
    held_out: list[Batch]
    distillation: list[Batch]
    batches: list[Batch]
    serving: Serving
    references: Tensor | None

    @classmethod
    def load(cls, options: ShrinkOptions) -> "ShrinkContext":
        """
        Loads the model, the tokenizer and the data, and chooses the inference settings of the new model.

        Raises:
            InputError: If the model cannot be shrunk, or the calibration rows contain too few tokens.
        """
        loaded = LoadedModel.load(options.model, any_family=False, **options.hub_options())
        stored_dtype = loaded.model.dtype
        original = fixed_head_model(loaded.model, options.model)
        loaded = replace(loaded, model=original)
        distilled_rows = (options.distil_steps or 0) * options.batch_size
        calibration, held_out, distillation = load_batches(options, loaded, distilled_rows)
        check_tokens(original, calibration)
        batches = random_batches(calibration, options.batch_size)
        dtype = getattr(torch, options.dtype) if options.dtype else None
        if options.speedup is None:
            serving = Serving(options.unpad_inputs is not False, dtype or stored_dtype)
        else:
            serving = fastest_serving(original, batches[:1], options.unpad_inputs, dtype)
        PartialState().print(f"the new model runs {serving}")
        return cls(
            options=options,
            original=original,
            loaded=loaded,
            calibration=calibration,
            held_out=held_out,
            distillation=distillation,
            batches=batches,
            serving=serving,
            references=reference_embeddings(loaded, calibration),
        )

    @property
    def speedup(self) -> float | None:
        """The target speedup; None for other targets."""
        return self.options.speedup[0] if self.options.speedup else None

    @property
    def target_shapes(self) -> list[LayerSize]:
        """
        The shape of each layer after pruning if the target is layer sizes, otherwise an empty list.

        Raises:
            InputError: If a layer would grow.
        """
        if not (sizes := self.options.sizes()):
            return []
        shapes = [LayerSize(*shape) for shape in resized(self.original.config, **sizes)]
        for index, (old, new) in enumerate(zip(self.shapes, shapes, strict=True)):
            pairs = zip((*old.heads, old.neurons), (*new.heads, new.neurons), strict=True)
            if any(before < after for before, after in pairs):
                raise InputError(f"layer {index} with {old} cannot shrink to {new}.")
        return shapes

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Predictions]:
        """
        Returns the predictions of a pruned copy of the original for a batch.

        Sentence embeddings are used for their similarities to other embeddings. Therefore, such a model predicts which
        of the reference texts is the nearest: the logits are the similarities to these texts, in standard deviations.
        """
        predictions = predict(model, batch, self.loaded.pooling)
        if self.references is None:
            return predictions
        return [Predictions(predictions[0].values.float() @ self.references, "classes")]

    @property
    def shapes(self) -> list[LayerSize]:
        return layer_sizes(self.original)

    def divergence(self, model: FixedHeadBertPreTrainedModel) -> float:
        """Returns the KL divergence of a model's predictions on the held-out rows, which distillation reduces."""
        return measure_fidelity(self.original, self.serving.model(model), self.held_out, self.predict).divergence

    def fidelity(self, model: FixedHeadBertPreTrainedModel) -> Fidelity:
        """Runs a model with the settings in `serving`, and returns its fidelity on the held-out rows."""
        return measure_fidelity(
            self.original, self.serving.model(model), self.held_out, partial(predict, pooling=self.loaded.pooling)
        )

    def operations(self, model: FixedHeadBertPreTrainedModel) -> int:
        """Returns the FLOPs of the layers for a row of average length."""
        length = round(mean_tokens(self.calibration))
        return length * forward_flops(model.config, length)

    def cost(self, model: FixedHeadBertPreTrainedModel, seconds: float) -> Cost:
        """Returns the size of a model, and its latency if all of `batches` take this many seconds."""
        return Cost(
            layers=layer_sizes(model),
            parameters=model.num_parameters(),
            operations=self.operations(model),
            seconds=seconds / len(self.batches),
        )

    def measure_speedup(self, pruned: FixedHeadBertPreTrainedModel) -> Speedup:
        """Measures how long the original and the pruned model take for all of `batches`."""
        runs = [self.serving.forward_passes(model, self.batches) for model in (self.original, pruned)]
        before, after = interleaved(runs, ROUNDS, self.original.device)
        ratios = [old / new for old, new in zip(before, after, strict=True)]
        return Speedup(
            median(before), median(after), median(before) / median(after), lowest=min(ratios), highest=max(ratios)
        )


@torch.no_grad()
def reference_embeddings(loaded: LoadedModel, batches: list[Batch]) -> Tensor | None:
    """
    Returns the embeddings (D, n) of a fifth of the texts by the original, or None for other models.

    They are divided by the standard deviation of the similarities between these texts.
    """
    if loaded.pooling is None:
        return None
    embeddings = torch.cat([predict(loaded.model, batch, loaded.pooling)[0].values for batch in batches[::5]])
    return embeddings.T / (embeddings @ embeddings.T).std()


def check_tokens(original: FixedHeadBertPreTrainedModel, calibration: list[Batch]):
    """Raises InputError if there are too few tokens for a least-squares fit of the largest sublayer."""
    shapes = layer_sizes(original)
    inputs = max(max(shape.neurons, shape.heads.num_heads * shape.heads.value_size) for shape in shapes)
    tokens = sum(int(batch["attention_mask"].bool().sum()) for batch in calibration)
    needed = TOKENS_PER_DIMENSION * inputs
    if tokens < needed:
        short = f"contain {tokens:,} tokens, but a layer with {inputs:,} neurons needs at least {needed:,}"
        raise InputError(f"the calibration rows {short}; provide more rows.")


def fixed_head_model(model: PreTrainedModel, source: str) -> FixedHeadBertPreTrainedModel:
    """
    Converts the model to a FixedHeadBert in float32 and moves it to the GPU, if one is available.

    Raises:
        InputError: If the model uses unsupported features, or a layer has no heads or no neurons.
    """
    for name in ("head_embedding", "qk_norm"):
        if getattr(model.config, name, None):
            raise InputError(f"{source}: models that use {name} cannot be shrunk.")
    model.float()
    fixed = model if isinstance(model, FixedHeadBertPreTrainedModel) else to_fixed_head_bert(model)
    if fixed is not model:
        check_equivalence(model, fixed)
    if 0 in (*fixed.config.head_counts, *fixed.config.neuron_counts):
        raise InputError(f"{source}: already pruned (a layer has no heads or no neurons); shrink the unpruned model.")
    fixed.config.unpad_inputs = False
    # Only gradients of hidden states are needed. Those of weights would keep the inputs of all layers in memory.
    fixed.requires_grad_(False).base_model.get_submodule("embeddings").requires_grad_()
    return fixed.eval().to("cuda" if torch.cuda.is_available() else "cpu")
