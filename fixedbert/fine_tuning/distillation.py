"""Knowledge distillation: a student learns the predictions of a teacher, with labels or without."""

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

from ..data.tokenizers import load_tokenizer
from ..support.errors import InputError
from ..training.arguments import CommonArguments, ModelArguments
from ..training.loading import check_length, load_config, load_model
from ..training.speed import enable_unpadding, has_bf16
from ..training.trainer import CommonTrainer
from .labels import default_names, label_numbers, normalize_name

Batch = dict[str, Tensor]
TEMPERATURE = 2.0  # for distillation without labels
# Texts that tokenizers with the same vocabulary can encode differently: case, accents, special tokens, segments.
PROBE = ("A naïve Test [MASK]", "Öl: 1.5")


@dataclass(frozen=True)
class Predictions:
    """
    Independent predictions for a batch.

    Args:
        values: logits of classes, logits of independent labels, or numbers with errors of variance 1, (n, C).
        kind: "classes", "labels" or "numbers". Numbers of norm 1 are "embeddings" of texts or "states" of tokens.
    """

    values: Tensor
    kind: str

    def with_temperature(self, temperature: float) -> "Predictions":
        """Returns the predictions with their values divided by `temperature`."""
        scaled = self.values.float() / temperature
        return Predictions(scaled.clamp(min=torch.finfo(torch.float32).min), self.kind)  # -inf would become NaN

    def kl_divergence(self, other: "Predictions") -> Tensor:
        """Returns KL(self || other) in nats, the sum over all predictions."""
        p, q = self.values.float(), other.values.float()
        if self.kind == "classes":
            return kl_div(log_softmax(q, -1), log_softmax(p, -1), reduction="sum", log_target=True)
        if self.kind == "labels":
            true = p.sigmoid() * (logsigmoid(p) - logsigmoid(q))
            return (true + (1 - p.sigmoid()) * (logsigmoid(-p) - logsigmoid(-q))).sum()
        return (p - q).square().sum() / 2


def span_predictions(outputs: ModelOutput, attention_mask: Tensor) -> list[Predictions]:
    """Returns the distributions of the start and of the end of the answer over the real tokens of each row."""
    return [
        Predictions(logits.masked_fill(~attention_mask.bool(), torch.finfo(logits.dtype).min), "classes")
        for logits in (outputs["start_logits"], outputs["end_logits"])
    ]


def distillation_loss(teacher: list[Predictions], student: list[Predictions], temperature: float) -> Tensor:
    """
    Returns temperature² KL(teacher / temperature || student / temperature) in nats, the mean over predictions
    (Hinton et al., 2015). The factor keeps the scale of the gradients at any temperature.
    """
    losses = [
        temperature**2 * p.with_temperature(temperature).kl_divergence(q.with_temperature(temperature)) / len(p.values)
        for p, q in zip(teacher, student, strict=True)
    ]
    return torch.stack(losses).mean()


@dataclass
class Teacher:
    """
    A fine-tuned model whose logits are the targets of a student.

    Args:
        input_names: arguments of the model.
        labels: the teacher's number for each label of the student, one for a regression; None for question answering.
    """

    model: PreTrainedModel
    input_names: tuple[str, ...]
    labels: list[int] | None

    def loss(self, inputs: Batch, outputs: ModelOutput, temperature: float) -> Tensor:
        """
        Returns the distillation loss of a student; for a regression, the mean squared error.

        Args:
            inputs: the batch; input_ids and attention_mask are (B, L).
            outputs: outputs of the student for it.
        """
        with torch.no_grad():
            targets = self.model(**{name: inputs[name] for name in self.input_names})
        if self.labels is None:
            teacher, student = (span_predictions(x, inputs["attention_mask"]) for x in (targets, outputs))
            return distillation_loss(teacher, student, temperature)
        kind = "numbers" if len(self.labels) == 1 else "classes"
        targets_for_labels = Predictions(targets["logits"][:, self.labels], kind)
        loss = distillation_loss([targets_for_labels], [Predictions(outputs["logits"], kind)], temperature)
        return 2 * loss if kind == "numbers" else loss

    def fingerprint(self) -> str:
        """Returns a SHA-256 digest of the weights and the order of the labels."""
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
    Loads the teacher from a directory or the Hub.

    Args:
        auto_class: Auto class for the task.
        model_args: the student's arguments, from which Hub options and attention implementation are taken.
        student: the student's configuration, with the labels of the data.
        tokenizer: the student's tokenizer.

    Raises:
        InputError: the model has no head for the task, other labels than the student, or another tokenizer.
    """
    arguments = replace(
        model_args,
        model_name_or_path=name,
        config_name=None,
        config_overrides=None,
        model_revision="main",
        ignore_mismatched_sizes=True,  # such weights are reported as missing
    )
    try:
        config = load_config(arguments)
        check_length(max_seq_length, config)
        own = load_tokenizer(name, model_args.do_lower_case, **arguments.hub_options())
        encoded, expected = tokenizer(*PROBE), own(*PROBE)
        if own.get_vocab() != tokenizer.get_vocab() or any(encoded.get(key) != expected[key] for key in expected):
            raise InputError(f"{name}: teacher and student need the same tokenizer.")
        model = load_model(auto_class, arguments, config, tokenizer, train=False)
        labels = match_labels(name, config, student) if auto_class is AutoModelForSequenceClassification else None
    except InputError as error:
        raise InputError(f"`teacher_model`: {error}") from error
    enable_unpadding(model)
    return Teacher(model.eval(), tuple(expected), labels)


def match_labels(name: str, teacher: PreTrainedConfig, student: PreTrainedConfig) -> list[int]:
    """
    Returns the teacher's number for each label of the student, matched by name; [0] for a regression.

    Raises:
        InputError: the labels have different names.
    """
    theirs, ours = default_names(teacher), default_names(student)
    if teacher.problem_type in (None, student.problem_type):
        if student.problem_type == "regression" and len(theirs) == 1:
            return [0]
        if len(ours) > 1 and sorted(map(normalize_name, theirs)) == sorted(map(normalize_name, ours)):
            return label_numbers(theirs, ours)
    raise InputError(
        f"{name}: its labels ({', '.join(theirs)}) are not those of the data ({', '.join(ours)}); give a model "
        "fine-tuned on this task, or correct id2label in its config.json."
    )


def distillation_arguments(output_dir: str | Path, steps: int, learning_rate: float, seed: int) -> CommonArguments:
    """Returns the arguments of a DistillationTrainer whose examples are batches of rows."""
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
        bf16=has_bf16(use_cpu),
        use_cpu=use_cpu,
        remove_unused_columns=False,
        report_to=["none"],
    )
    arguments._n_gpu = min(1, arguments.n_gpu)  # an example cannot be distributed
    return arguments


class SaveFirstStep(TrainerCallback):
    """Saves a checkpoint after the first step: without one, an interrupted run also loses its pruned model."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_save or state.global_step == 1


class DistillationTrainer(CommonTrainer):
    """
    Trains a model without labels and dropout to predict what the original predicts. Embeddings are frozen.

    The loss is `distillation_loss`, plus the mean over layers of the relative squared error of the hidden states, plus
    the same for the outputs of the attention.

    Args:
        original: a model with as many layers of the same width.
        predict: returns the predictions of a model for a batch.
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
        self.rows_of_example = len(next(iter(kwargs["train_dataset"][0].values())))
        self.add_callback(SaveFirstStep)
        self.original, self.predictions = original.eval().to(self.args.device), predict

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        with torch.no_grad(), recorded(*hidden_state_modules(self.original)) as targets:
            teacher = self.predictions(self.original, inputs)
        with recorded(*hidden_state_modules(self.model)) as states, self.accelerator.autocast():
            student = self.predictions(self.model, inputs)
        pairs = zip(states.values(), targets.values(), strict=True)
        errors = [relative_error(state, target) for (_, state), (_, target) in pairs]
        loss = 2 * torch.stack(errors).mean()  # two outputs per layer
        loss = loss + distillation_loss(teacher, student, TEMPERATURE)
        return (loss, {}) if return_outputs else loss


def relative_error(states: Tensor, targets: Tensor) -> Tensor:
    targets = targets.float()
    return (states.float() - targets).square().sum() / targets.square().sum()


def hidden_state_modules(model: PreTrainedModel) -> list[nn.Module]:
    """Returns the modules whose outputs are compared: of each layer, W_o and the layer itself."""
    layers = model.base_model.get_submodule("encoder.layer").children()
    return [module for layer in layers for module in (layer.get_submodule("attention.output.dense"), layer)]


@contextmanager
def recorded(*modules: nn.Module) -> Iterator[dict[nn.Module, tuple[Tensor, Tensor]]]:
    """Yields a dict that fills with the first argument and the output of each module's last call."""
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
