"""Training a cut model to give the original's hidden states and attention outputs, on text without labels."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..training.trainer import CommonTrainer


class HiddenStateTrainer(CommonTrainer):
    """
    Trainer of the encoder's layers, without dropout. The loss is the mean over layers of the relative squared error of
    the hidden states after the layer, and of its attention's output before the residual, one added to the other.

    Args:
        teacher: the original, with as many layers of the same width. It is not trained.
    """

    def __init__(self, model: PreTrainedModel, teacher: PreTrainedModel, **kwargs):
        model.requires_grad_(False)
        model.base_model.get_submodule("encoder").requires_grad_(True)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        super().__init__(model=model, **kwargs)
        self.teacher = teacher.base_model.eval().to(self.args.device)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        with torch.no_grad(), watched_states(self.teacher) as wanted:
            self.teacher(**inputs)
        encoder = self.model.base_model  # heads take other shapes, or compute the last layer at some tokens alone
        with watched_states(encoder) as states, self.accelerator.autocast():
            outputs = encoder(**inputs)
        errors = [relative_error(state, right) for state, right in zip(states, wanted, strict=True)]
        loss = 2 * torch.stack(errors).mean()  # of a layer there are two
        return (loss, outputs) if return_outputs else loss


def relative_error(states: Tensor, wanted: Tensor) -> Tensor:
    """Squared, in float32."""
    wanted = wanted.float()
    return (states.float() - wanted).square().sum() / wanted.square().sum()


@contextmanager
def watched_states(encoder: nn.Module) -> Iterator[list[Tensor]]:
    """The outputs (B, L, D) of each layer's attention, before the residual, and of the layer, in their order."""
    states: list[Tensor] = []

    def keep(_module, _args, output):
        states.append(output[0] if isinstance(output, tuple) else output)

    layers = encoder.get_submodule("encoder.layer").children()
    watched = [part for layer in layers for part in (layer.get_submodule("attention.output.dense"), layer)]
    handles = [module.register_forward_hook(keep) for module in watched]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()
