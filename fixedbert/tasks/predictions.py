"""Computes the predictions of a model, and samples them for the Fisher information."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    kl_div,
    log_softmax,
    logsigmoid,
    normalize,
)
from transformers import PreTrainedConfig, PreTrainedModel

from ..loading.loaded_model import head_name
from ..loading.sentence_models import SentencePooling

Batch = dict[str, Tensor]
# The task heads of models that can be compared. An encoder has none: ""
TEXTS, WORDS, QUESTIONS = "SequenceClassification", "TokenClassification", "QuestionAnswering"
MASKED_LM = ("PreTraining", "MaskedLM")  # task heads that predict masked tokens
FIRST_TOKEN = (TEXTS, "NextSentencePrediction")  # task heads that read only the first token
DEFAULT_THRESHOLD = 0.5  # of models for several labels per text that store no other in their configuration
# Batch key for the mask (B, L) of the tokens whose predictions count: masked tokens, or the first token of each word.
PREDICTED_POSITIONS = "predicted_positions"
QUERIES = "queries"  # batch key for the number (B,) of each row's query, for models that score the results of queries


@dataclass(frozen=True)
class Predictions:
    """
    The parameters of n independent distributions that a model predicts for a batch.

    `values` (n, C) are logits of C classes if `kind` is "classes", and of C independent labels if it is "labels". For
    other kinds, each row is the mean of a normal distribution with variance 1. These kinds are "numbers" (scores),
    "embeddings" of texts, and "states" of tokens. Embeddings and states are vectors with norm 1. Labels with at least
    the probability `threshold` are predicted.
    """

    values: Tensor
    kind: str
    threshold: float = DEFAULT_THRESHOLD

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


Predict = Callable[[PreTrainedModel, Batch], list[Predictions]]


def span_predictions(outputs: Mapping[str, Tensor], attention_mask: Tensor) -> list[Predictions]:
    """Returns the predictions for the start and the end of the answer. Masks padding in the logits (batch, tokens)."""
    return [
        Predictions(logits.masked_fill(~attention_mask.bool(), torch.finfo(logits.dtype).min), "classes")
        for logits in (outputs["start_logits"], outputs["end_logits"])
    ]


def reads_first_token(model: PreTrainedModel) -> bool:
    """Returns True if the model's last layer computes its output only for the first token in each row."""
    is_encoder = not model.config.is_decoder  # a causal mask needs all queries
    return bool(model.config.unpad_inputs) and is_encoder and head_name(type(model).__name__) in FIRST_TOKEN


def encode(model: PreTrainedModel) -> Callable:
    """Returns a function that runs the encoder and computes outputs only for the tokens that the task head reads."""
    return partial(model.base_model, output_mask=False) if reads_first_token(model) else model.base_model


def predict(model: PreTrainedModel, batch: Batch, pooling: SentencePooling | None = None) -> list[Predictions]:
    """
    Returns the model's predictions for a batch. Classifiers, regression models and encoders with `pooling` make one
    prediction per row. Question answering models predict a start and an end position for each row. Masked LMs and
    token classifiers predict the tokens in the mask `PREDICTED_POSITIONS`, which only masked LMs require. All other
    models make one prediction per non-padding token.
    """
    head = head_name(type(model).__name__)
    inputs = {name: x for name, x in batch.items() if name not in (PREDICTED_POSITIONS, QUERIES)}
    non_padding = batch["attention_mask"].bool()
    if head in MASKED_LM:
        states = model.base_model(**inputs).last_hidden_state[batch[PREDICTED_POSITIONS]]
        return [Predictions(model.get_submodule("cls.predictions")(states), "classes")]
    outputs = model(**inputs)
    if type(model).__name__.endswith("LMHeadModel"):
        return [Predictions(outputs.logits[non_padding], "classes")]
    if head:
        mask = batch.get(PREDICTED_POSITIONS, batch["attention_mask"])
        return predictions_of(head, model.config, outputs, mask)
    if pooling is None:
        return [Predictions(normalize(outputs.last_hidden_state[non_padding], dim=-1), "states")]
    embeddings = pooling(outputs.last_hidden_state, batch["attention_mask"])
    return [Predictions(normalize(embeddings, dim=-1), "embeddings")]


def predictions_of(
    head: str, config: PreTrainedConfig, outputs: Mapping[str, Tensor], attention_mask: Tensor
) -> list[Predictions]:
    """Returns the predictions for the outputs of a task head, from a model or an exported graph."""
    if head == QUESTIONS:
        return span_predictions(outputs, attention_mask)
    if head == WORDS:
        return [Predictions(outputs["logits"][attention_mask.bool()], "classes")]
    return [Predictions(outputs["logits"], kind_of_logits(config), threshold_of(config))]


def threshold_of(config: PreTrainedConfig) -> float:
    """Returns the probability from which a model for several labels per text predicts a label."""
    return getattr(config, "label_threshold", None) or DEFAULT_THRESHOLD


def kind_of_logits(config: PreTrainedConfig) -> str:
    """Returns "classes" if a row has one class, "labels" if it can have several labels, and "numbers" for scores."""
    kinds = {"regression": "numbers", "multi_label_classification": "labels"}
    return kinds.get(config.problem_type or "", "numbers" if config.num_labels == 1 else "classes")


def sampled_nll(predictions: Predictions) -> Tensor:
    """
    Samples y from each predicted distribution p and returns the sum of -log p(y). The second moment of the gradients
    of this sum is the Fisher information.
    """
    values = predictions.values.float()
    if predictions.kind == "classes":
        drawn = torch.multinomial(values.detach().softmax(-1), 1).squeeze(1)
        return cross_entropy(values, drawn, reduction="sum")
    if predictions.kind == "labels":
        drawn = torch.bernoulli(values.detach().sigmoid())
        return binary_cross_entropy_with_logits(values, drawn, reduction="sum")
    return (values * torch.randn_like(values)).sum()


def predicted_labels(predictions: Predictions) -> Tensor:
    """Returns the ids (n, 1) of the most probable classes, or a mask (n, labels) of the predicted labels."""
    if predictions.kind == "classes":
        return predictions.values.argmax(-1, keepdim=True)
    return (predictions.values.double().sigmoid() >= predictions.threshold).long()
