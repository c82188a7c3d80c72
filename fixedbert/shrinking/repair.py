"""Training a cut model to give the original's answers and hidden states, on rows without labels."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback

from ..support.errors import InputError
from ..training.arguments import CommonArguments
from ..training.precision import has_bf16
from ..training.trainer import CommonTrainer
from .predictions import Answering, Answers, Batch

TEMPERATURE = 2.0  # of both models' answers, as in distillation (Hinton et al., 2015)


@dataclass(frozen=True)
class Repair:
    """
    How a cut model is trained.

    Args:
        steps: of a batch of rows each, which begin anew where the rows end.
        learning_rate: the highest; it rises for a tenth of the steps and falls to zero.
        seed: for the order of the batches.
    """

    steps: int
    learning_rate: float = 5e-5  # 2e-4 took answers of a mild cut farther off
    seed: int = 0

    def __post_init__(self):
        if self.steps < 1:
            raise InputError(f"{self.steps}: give at least 1, or leave it out.", "distil_steps")

    def arguments(self, output_dir: str | Path) -> CommonArguments:
        use_cpu = not torch.cuda.is_available()
        arguments = CommonArguments(
            output_dir=str(output_dir),
            do_train=True,
            max_steps=self.steps,
            per_device_train_batch_size=1,  # each example is a batch of rows of like length
            learning_rate=self.learning_rate,
            warmup_steps=0.1,
            seed=self.seed,
            logging_steps=max(1, self.steps // 30),
            save_steps=100,
            save_total_limit=1,
            bf16=has_bf16(use_cpu),
            use_cpu=use_cpu,
            remove_unused_columns=False,
            report_to=["none"],
        )
        if arguments.n_gpu > 1:
            arguments._n_gpu = 1  # an example cannot be shared out
        return arguments


def only(examples: list[Batch]) -> Batch:
    """The batch that is an example: a collator."""
    return examples[0]


class SaveFirstStep(TrainerCallback):
    """Saves a checkpoint after the first step too, without which a run that is killed does not keep the cut either."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_save or state.global_step == 1


class RepairTrainer(CommonTrainer):
    """
    Trainer of all but the embeddings, without dropout. The loss is KL of the answers, plus the mean over layers of the
    relative squared error of the hidden states after the layer, and the same of its attention's output.

    Args:
        original: with as many layers of the same width. It is not trained.
        ask: how both are asked.
    """

    def __init__(self, model: PreTrainedModel, original: PreTrainedModel, ask: Answering, **kwargs):
        model.base_model.get_submodule("embeddings").requires_grad_(False)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        super().__init__(model=model, data_collator=only, **kwargs)
        self.rows_of_example = len(next(iter(kwargs["train_dataset"][0].values())))
        self.add_callback(SaveFirstStep)
        self.original, self.ask = original.eval().to(self.args.device), ask

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        with torch.no_grad(), watched_states(self.original.base_model) as wanted:
            right = self.ask(self.original, inputs)
        with watched_states(self.model.base_model) as states, self.accelerator.autocast():
            found = self.ask(self.model, inputs)
        errors = [relative_error(state, goal) for state, goal in zip(states, wanted, strict=True)]
        loss = 2 * torch.stack(errors).mean()  # of a layer there are two
        for mine, goal in zip(found, right, strict=True):
            divergence = softer(goal).divergence(softer(mine)) / len(goal.values)
            loss = loss + TEMPERATURE**2 * divergence / len(right)
        return (loss, {}) if return_outputs else loss


def softer(answers: Answers) -> Answers:
    return Answers(answers.values.float() / TEMPERATURE, answers.kind)


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
