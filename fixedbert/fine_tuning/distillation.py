"""Knowledge distillation: trains a student to match the predictions of a teacher, with or without labels."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax, logsigmoid
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
)
from transformers.models.auto.auto_factory import _BaseAutoModelClass
from transformers.utils import ModelOutput

from ..data.tokenizers import load_tokenizer, tokenizer_state
from ..support.errors import InputError
from ..training.arguments import CommonArguments, ModelArguments
from ..training.loading import check_length, load_config, load_model
from ..training.speed import enable_unpadding, is_bf16_faster
from ..training.trainer import CommonTrainer
from .labels import MULTI, REGRESSION, SINGLE, default_names, match_names, problem_type_of
from .target_scaling import scale, unscale

Batch = dict[str, Tensor]
TEMPERATURE = 2.0  # for distillation without labels


@dataclass(frozen=True)
class Predictions:
    """
    The parameters of n independent distributions that a model predicts for a batch.

    `values` (n, C) are logits of C classes if `kind` is "classes", and of C independent labels if it is "labels". For
    other kinds, each row is the mean of a normal distribution with variance 1. These kinds are "numbers" (scores),
    "embeddings" of texts, and "states" of tokens. Embeddings and states are vectors with norm 1.
    """

    values: Tensor
    kind: str

    def kl_divergence(self, other: "Predictions", temperature: float = 1.0) -> Tensor:
        """Returns KL(self || other) in nats, summed over predictions, after dividing the values by `temperature`."""
        lowest = torch.finfo(torch.float32).min  # masked logits divided by a low temperature become -inf, and then NaN
        p, q = ((x.values.float() / temperature).clamp(min=lowest) for x in (self, other))
        if self.kind == "classes":
            return kl_div(log_softmax(q, -1), log_softmax(p, -1), reduction="sum", log_target=True)
        if self.kind == "labels":
            true = p.sigmoid() * (logsigmoid(p) - logsigmoid(q))
            return (true + (1 - p.sigmoid()) * (logsigmoid(-p) - logsigmoid(-q))).sum()
        return (p - q).square().sum() / 2


def span_predictions(outputs: ModelOutput, attention_mask: Tensor) -> list[Predictions]:
    """Returns the predictions for the start and the end of the answer. Masks padding in the logits (batch, tokens)."""
    return [
        Predictions(logits.masked_fill(~attention_mask.bool(), torch.finfo(logits.dtype).min), "classes")
        for logits in (outputs["start_logits"], outputs["end_logits"])
    ]


def distillation_loss(teacher: list[Predictions], student: list[Predictions], temperature: float) -> Tensor:
    """
    Returns temperature² KL(teacher / temperature || student / temperature) in nats, averaged over predictions (Hinton
    et al., 2015). The factor temperature² makes the scale of the gradients independent of the temperature.
    """
    losses = [
        temperature**2 * p.kl_divergence(q, temperature) / len(p.values) for p, q in zip(teacher, student, strict=True)
    ]
    return torch.stack(losses).mean()


@dataclass
class Teacher:
    """A fine-tuned model whose logits are the targets for training a student."""

    model: PreTrainedModel
    input_names: tuple[str, ...]  # of the inputs to pass to the model
    labels: list[int] | None  # index of the teacher's output for each output of the student; None for spans
    student: PreTrainedConfig

    def loss(self, inputs: Batch, outputs: ModelOutput, temperature: float) -> Tensor:
        """
        Returns the distillation loss for the inputs and outputs of a student.

        For regression, the loss is the mean squared error. With several labels per text, it is averaged over labels.
        """
        with torch.no_grad():
            targets = self.model(**{name: inputs[name] for name in self.input_names})
        if self.labels is None:
            teacher, student = (span_predictions(x, inputs["attention_mask"]) for x in (targets, outputs))
            return distillation_loss(teacher, student, temperature)
        kind = {SINGLE: "classes", MULTI: "labels", REGRESSION: "numbers"}[problem_type_of(self.student)]
        logits = scale(unscale(targets["logits"], self.model.config)[:, self.labels], self.student)
        loss = distillation_loss([Predictions(logits, kind)], [Predictions(outputs["logits"], kind)], temperature)
        return loss * {"classes": 1, "labels": 1 / len(self.labels), "numbers": 2 / len(self.labels)}[kind]

    def fingerprint(self) -> str:
        """Returns a SHA-256 digest of the weights and the label ids."""
        digest = hashlib.sha256(repr(self.labels).encode())
        for weight in self.model.parameters():
            digest.update(weight.detach().cpu().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()


def load_teacher(
    name: str,
    auto_class: type[_BaseAutoModelClass],
    model_args: ModelArguments,
    student: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
) -> Teacher:
    """
    Loads the teacher from the directory or Hub id `name`. The other arguments belong to the student.

    Raises InputError if the teacher has no head for the task, or if its labels or tokenizer differ from the student's.
    """
    arguments = replace(
        model_args,
        model_name_or_path=name,
        config_name=None,
        config_overrides=None,
        model_revision="main",
        ignore_mismatched_sizes=True,  # makes load_model report mismatched weights as missing
    )
    try:
        config = load_config(arguments)
        check_length(max_seq_length, config)
        own = load_tokenizer(name, **arguments.hub_options())
        if tokenizer_state(own) != tokenizer_state(tokenizer):
            raise InputError(f"{name}: its tokenizer differs from the student's; use a model with the same tokenizer.")
        model = load_model(auto_class, arguments, config, tokenizer, train=False)
        labels = match_labels(name, config, student) if auto_class is AutoModelForSequenceClassification else None
    except InputError as error:
        raise InputError(f"`teacher_model`: {error}") from error
    enable_unpadding(model)
    return Teacher(model.eval(), tuple(own.model_input_names), labels, student)


def match_labels(name: str, teacher: PreTrainedConfig, student: PreTrainedConfig) -> list[int]:
    """
    Returns the index of the teacher's output for each output of the student, matched by name.

    Raises InputError if the label names differ.
    """
    theirs, ours = default_names(teacher), default_names(student)
    if problem_type_of(teacher) == problem_type_of(student):
        if problem_type_of(student) == REGRESSION and len(theirs) == len(ours) == 1:
            return [0]
        matched = match_names(ours, theirs)
        if matched is not None and sorted(matched) == [*range(len(theirs))]:
            return matched
    raise InputError(
        f"{name}: its labels ({', '.join(theirs)}) differ from the labels in the data ({', '.join(ours)}); use a "
        "model fine-tuned on this task, or correct id2label in its config.json."
    )


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
        with torch.no_grad(), recorded(*hidden_state_modules(self.original)) as targets:
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
