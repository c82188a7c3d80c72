"""Inference settings: with or without padding, and the dtype. Finds the fastest settings on this machine."""

import copy
import random
from collections.abc import Callable
from itertools import product
from statistics import median
from typing import NamedTuple, TypeVar

import torch
from transformers import PreTrainedModel

from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..support.machine import has_bf16
from ..support.timing import interleaved
from ..tasks.predictions import Batch, encode

ROUNDS = 5  # number of measurements to choose settings
Model = TypeVar("Model", bound=PreTrainedModel)
BATCHES = 3  # number of random batches for timing models


class Serving(NamedTuple):
    """Inference settings: whether a model skips padding, and the dtype of its weights."""

    unpad_inputs: bool = True
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        return f"{'without' if self.unpad_inputs else 'with'} padding, in {str(self.dtype).removeprefix('torch.')}"

    def model(self, model: Model) -> Model:
        """
        Returns a copy of the model with these settings, in evaluation mode. Its config contains `unpad_inputs`. Other
        models than FixedHeadBerts always compute padding. The copy shares weights that already have the dtype.
        """
        shared = {id(weight): weight for weight in model.parameters() if weight.dtype == self.dtype}
        served = copy.deepcopy(model, shared)
        for weight in served.parameters():  # not buffers: frequencies of rotary positions stay in float32
            weight.data = weight.data.to(self.dtype)
        if isinstance(served, FixedHeadBertPreTrainedModel):
            served.config.unpad_inputs = vars(served.base_model)["unpad_inputs"] = self.unpad_inputs
        return served.eval()

    def forward_passes(self, model: FixedHeadBertPreTrainedModel, batches: list[Batch]) -> Callable[[], object]:
        """Returns a function that runs the encoder of a copy of the model with these settings on all batches."""
        encoder = encode(self.model(model))
        return lambda: [encoder(**batch) for batch in batches]


def random_batches(batches: list[Batch], size: int) -> list[Batch]:
    """
    Returns up to three batches of ids and attention masks (B, L) with `size` rows, whose lengths are sampled from
    `batches`.
    """
    lengths = [length for batch in batches for length in batch["attention_mask"].sum(1).tolist()]
    random.Random(0).shuffle(lengths)
    size, device = min(size, len(lengths)), batches[0]["attention_mask"].device
    drawn = []
    for begin in range(0, min(BATCHES, max(1, len(lengths) // size)) * size, size):
        rows = torch.tensor(lengths[begin : begin + size], device=device)
        mask = (torch.arange(int(rows.max()), device=device) < rows[:, None]).long()
        drawn.append({"input_ids": 5 * mask, "attention_mask": mask})
    return drawn


def fastest_serving(
    model: FixedHeadBertPreTrainedModel, batches: list[Batch], unpad_inputs: bool | None, dtype: torch.dtype | None
) -> Serving:
    """Returns the fastest settings for the model on these batches. Keeps `unpad_inputs` and `dtype` unless None."""
    dtypes = [torch.float32, torch.bfloat16] if dtype is None else [dtype]
    if dtype is None and model.device.type == "cpu" and not has_bf16(use_cpu=True):
        dtypes = [torch.float32]
    paddings = [True, False] if unpad_inputs is None else [unpad_inputs]
    choices = [Serving(*choice) for choice in product(paddings, dtypes)]
    if len(choices) == 1:
        return choices[0]
    runs = [choice.forward_passes(model, batches) for choice in choices]
    seconds = [median(times) for times in interleaved(runs, ROUNDS, model.device)]
    return choices[seconds.index(min(seconds))]
