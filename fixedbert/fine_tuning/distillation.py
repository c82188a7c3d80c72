"""Distillation of logits: a fine-tuned model, the teacher, gives a student targets beside the labels."""

import hashlib
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import kl_div, log_softmax, mse_loss
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.auto_factory import _BaseAutoModelClass
from transformers.utils import ModelOutput

from ..data.tokenizers import load_tokenizer
from ..support.errors import InputError
from ..training.arguments import ModelArguments
from ..training.loading import check_length, load_config, load_model
from ..training.speed import enable_unpadding
from .labels import default_names, label_numbers, normalize_name

# Where tokenizers of one vocabulary can differ: capitals, accents, special tokens, segments.
PROBE = ("A naïve Test [MASK]", "Öl: 1.5")


@dataclass
class Teacher:
    """A fine-tuned model whose logits are the targets of a student."""

    model: PreTrainedModel
    input_names: tuple[str, ...]  # that it takes
    classes: list[int] | None  # the teacher's number for each class of the student; None for answers in a text

    def loss(self, inputs: dict[str, torch.Tensor], outputs: ModelOutput, temperature: float) -> torch.Tensor:
        """
        How far a student's outputs are from the teacher's: a mean over the rows of the batch.

        Of classes this is `soft_target_loss`, of scores the squared error, of answers the mean of `soft_target_loss`
        over starts and ends, among the row's real tokens.

        Args:
            inputs: of the batch; input_ids and attention_mask are (B, L).
            outputs: of the student.
        """
        with torch.no_grad():
            targets = self.model(**{name: inputs[name] for name in self.input_names})
        if self.classes is None:
            real = inputs["attention_mask"].bool()
            starts, ends = (
                soft_target_loss(outputs[name], targets[name], temperature, real)
                for name in ("start_logits", "end_logits")
            )
            return (starts + ends) / 2
        logits = targets["logits"][:, self.classes]
        if len(self.classes) == 1:
            return mse_loss(outputs["logits"].float(), logits.float())
        return soft_target_loss(outputs["logits"], logits, temperature)

    def fingerprint(self) -> str:
        """Digest of the weights and the order of the classes: 64 hexadecimal digits."""
        found = hashlib.sha256(repr(self.classes).encode())
        for weight in self.model.parameters():
            found.update(weight.detach().cpu().flatten().view(torch.uint8).numpy().data)
        return found.hexdigest()


def soft_target_loss(
    student: torch.Tensor, teacher: torch.Tensor, temperature: float, among: torch.Tensor | None = None
) -> torch.Tensor:
    """
    temperature² KL(softmax(teacher / temperature) || softmax(student / temperature)) in nats, the mean over rows
    (Hinton et al., 2015): the factor keeps the size of the gradient at any temperature.

    Args:
        student, teacher: logits, (rows, classes).
        among: (rows, classes), False where no model can choose: such logits, even infinite ones, do not count.
    """

    def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
        scaled = logits.float() / temperature
        if among is not None:
            scaled = scaled.masked_fill(~among, torch.finfo(scaled.dtype).min)  # -inf would become NaN
        return log_softmax(scaled, dim=-1)

    divergence = kl_div(log_probabilities(student), log_probabilities(teacher), reduction="batchmean", log_target=True)
    return temperature**2 * divergence


def load_teacher(
    name: str,
    auto_class: type[_BaseAutoModelClass],
    model_args: ModelArguments,
    student: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
) -> Teacher:
    """
    The teacher in the directory or under the Hub id `name`.

    Args:
        auto_class: of the task.
        model_args: of the student, whose way to the Hub and attention implementation are the teacher's too.
        student: its configuration, with the labels of the data.
        tokenizer: the student's.

    Raises:
        InputError: there is no such model, it has no head for the task, it has other labels than the student, or the
            student's tokens mean something else to it.
    """
    arguments = replace(
        model_args,
        model_name_or_path=name,
        config_name=None,
        config_overrides=None,
        model_revision="main",
        ignore_mismatched_sizes=True,  # such weights are reported as absent
    )
    try:
        config = load_config(arguments)
        check_length(max_seq_length, config)
        own = load_tokenizer(name, model_args.do_lower_case, **arguments.hub_options())
        encoded, expected = tokenizer(*PROBE), own(*PROBE)
        if own.get_vocab() != tokenizer.get_vocab() or any(encoded.get(key) != expected[key] for key in expected):
            raise InputError(
                f"{name}: its tokenizer gives a text other tokens than the student's, and its logits would be those "
                "of another text; give a teacher with the student's tokenizer."
            )
        model = load_model(auto_class, arguments, config, tokenizer, train=False)
        classes = classes_of(name, config, student) if auto_class is AutoModelForSequenceClassification else None
    except InputError as error:
        raise InputError(f"`teacher_model`: {error}") from error
    enable_unpadding(model)
    return Teacher(model.eval(), tuple(expected), classes)


def classes_of(name: str, teacher: PreTrainedConfig, student: PreTrainedConfig) -> list[int]:
    """
    For each class of the student, the number that the teacher gives it; one for a regression.

    Raises:
        InputError: the labels have other names.
    """
    own, labels = default_names(teacher), default_names(student)
    if teacher.problem_type in (None, student.problem_type):
        if student.problem_type == "regression" and len(own) == 1:
            return [0]
        if len(labels) > 1 and sorted(map(normalize_name, own)) == sorted(map(normalize_name, labels)):
            return label_numbers(own, labels)
    theirs, ours = (", ".join(names) if len(names) > 1 else "a number" for names in (own, labels))
    raise InputError(
        f"{name}: its labels are {theirs}, and those of the data {ours}; give a model of this task or, where only the "
        "names are missing, write them into id2label in its config.json, in the order of its logits."
    )
