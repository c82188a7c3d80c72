"""Knowledge distillation: trains a shrunk model to match the predictions of the original, without labels."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback

from ..tasks.predictions import Batch, Predictions
from ..training.arguments import CommonArguments
from ..training.speed import is_bf16_faster
from ..training.trainer import CommonTrainer

TEMPERATURE = 2.0


def distillation_loss(teacher: list[Predictions], student: list[Predictions], temperature: float) -> Tensor:
    """
    Returns temperature² KL(teacher / temperature || student / temperature) in nats, averaged over predictions (Hinton
    et al., 2015). The factor temperature² makes the scale of the gradients independent of the temperature.
    """
    losses = [
        temperature**2 * p.kl_divergence(q, temperature) / len(p.values) for p, q in zip(teacher, student, strict=True)
    ]
    return torch.stack(losses).mean()


def distillation_arguments(output_dir: str | Path, steps: int, learning_rate: float, seed: int) -> CommonArguments:
    """Returns the arguments for a DistillationTrainer. Each example in the trainer's dataset is a batch of rows."""
    use_cpu = not torch.cuda.is_available()
    arguments = CommonArguments(
        output_dir=str(output_dir),
        do_train=True,
        max_steps=steps,
        per_device_train_batch_size=1,
        learning_rate=learning_rate,
        warmup_steps=0.1,
        seed=seed,
        logging_steps=max(1, steps // 30),
        save_steps=100,
        save_total_limit=1,
        bf16=is_bf16_faster(use_cpu),
        use_cpu=use_cpu,
        remove_unused_columns=False,
        report_to=["none"],
    )
    arguments._n_gpu = min(1, arguments.n_gpu)  # DataParallel cannot split an example across GPUs
    return arguments


class SaveFirstStep(TrainerCallback):
    """Callback that saves a checkpoint after the first step, so the pruned model survives an early interruption."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_save or state.global_step == 1


class DistillationTrainer(CommonTrainer):
    """
    Trains a model to match the predictions of the original, without labels or dropout. The embeddings are frozen.

    The loss is the sum of three terms: `distillation_loss`, the relative squared error of the hidden states, and the
    relative squared error of the attention outputs. Both errors are averaged over layers.

    Args:
        original: The model to match. It has the same width and number of layers as `model`.
        predict: Function that returns the predictions of a model for a batch.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        original: PreTrainedModel,
        predict: Callable[[PreTrainedModel, Batch], list[Predictions]],
        **kwargs,
    ):
        model.base_model.get_submodule("embeddings").requires_grad_(False)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        super().__init__(model=model, data_collator=lambda examples: examples[0], **kwargs)
        self.add_callback(SaveFirstStep)
        self.original, self.predictions = original.eval().to(self.args.device), predict

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        with torch.no_grad(), recorded(*hidden_state_modules(self.original)) as targets, self.accelerator.autocast():
            teacher = self.predictions(self.original, inputs)
        with recorded(*hidden_state_modules(self.model)) as states, self.accelerator.autocast():
            student = self.predictions(self.model, inputs)
        outputs = zip(states.values(), targets.values(), strict=True)
        pairs = [(state.float(), target.float()) for (_, state), (_, target) in outputs]
        errors = [(state - target).square().sum() / target.square().sum() for state, target in pairs]
        loss = 2 * torch.stack(errors).mean() + distillation_loss(teacher, student, TEMPERATURE)  # 2 errors per layer
        return (loss, {}) if return_outputs else loss


def hidden_state_modules(model: PreTrainedModel) -> list[nn.Module]:
    """Returns the modules whose outputs the loss compares: each attention output projection and each layer."""
    layers = model.base_model.get_submodule("encoder.layer").children()
    return [module for layer in layers for module in (layer.get_submodule("attention.output.dense"), layer)]


@contextmanager
def recorded(*modules: nn.Module) -> Iterator[dict[nn.Module, tuple[Tensor, Tensor]]]:
    """Context manager that yields a dictionary with the first argument and the output of each module's last call."""
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    handles = [
        module.register_forward_hook(lambda module, args, output: seen.update({module: (args[0], output)}))
        for module in modules
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
