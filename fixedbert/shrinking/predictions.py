"""What a model answers: distributions, and how far those of two models are apart."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

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

Batch = dict[str, Tensor]
MASKED_LM = ("PreTraining", "MaskedLM")  # heads that predict words at masked places
ONE_ANSWER_A_ROW = ("", "SequenceClassification")  # heads: without one it is an embedding
PLACES = "places"  # of a batch: where a masked LM predicts, (B, L)
# How much changes in the answers, as a share, up to which they are called nearly the same, and up to which mostly. On
# the tasks of docs/results/lighter.md such cuts cost up to half a point, and up to two.
NEARLY, MOSTLY = 0.03, 0.1


@dataclass(frozen=True)
class Answers:
    """
    Independent answers to a batch.

    Args:
        values: (n, C): logits of classes, logits of labels that exclude none, or numbers with errors of variance one.
        kind: "classes", "labels" or "numbers"; numbers of length one are "embeddings" of texts, or "states" of tokens.
    """

    values: Tensor
    kind: str

    def surprise(self) -> Tensor:
        """-log p(y), the sum over all answers, with y drawn from p: its gradients make up the Fisher information."""
        values = self.values.float()
        if self.kind == "classes":
            drawn = torch.multinomial(values.detach().softmax(-1), 1).squeeze(1)
            return cross_entropy(values, drawn, reduction="sum")
        if self.kind == "labels":
            drawn = torch.bernoulli(values.detach().sigmoid())
            return binary_cross_entropy_with_logits(values, drawn, reduction="sum")
        return (values * torch.randn_like(values)).sum()

    def divergence(self, other: "Answers") -> Tensor:
        """KL(these || other) in nats, the sum over all answers."""
        mine, others = self.values.float(), other.values.float()
        if self.kind == "classes":
            return kl_div(log_softmax(others, -1), log_softmax(mine, -1), reduction="sum", log_target=True)
        if self.kind == "labels":
            share = mine.sigmoid()
            gain = share * (logsigmoid(mine) - logsigmoid(others))
            return (gain + (1 - share) * (logsigmoid(-mine) - logsigmoid(-others))).sum()
        return (mine - others).square().sum() / 2

    def agreement(self, other: "Answers") -> Tensor:
        """How many answers are the same: the likeliest class, or all labels."""
        if self.kind == "classes":
            return (self.values.argmax(-1) == other.values.argmax(-1)).sum()
        return ((self.values > 0) == (other.values > 0)).all(dim=-1).sum()


def head_in(model: PreTrainedModel) -> str:
    """What follows "For" in the name of the model's class."""
    return type(model).__name__.partition("For")[2]


Answering = Callable[[PreTrainedModel, Batch], list[Answers]]


def answering(model: PreTrainedModel, pooling: Callable[[Tensor, Tensor], Tensor] | None = None) -> Answering:
    """
    How a model of this class is asked.

    Args:
        pooling: of a bare model: hidden states (B, L, D) and an attention mask (B, L) to embeddings (B, D).
    """
    head = head_in(model)
    if head in MASKED_LM:
        return masked_words
    if head == "QuestionAnswering":
        return spans
    if head == "TokenClassification" or type(model).__name__.endswith("LMHeadModel"):
        return lambda model, batch: [Answers(forward(model, batch).logits[real(batch)], "classes")]
    if not head and pooling is not None:
        return lambda model, batch: embeddings(model, batch, pooling)
    if not head:
        return states
    return classes


def forward(model: Any, batch: Batch):
    return model(**{name: x for name, x in batch.items() if name != PLACES})


def real(batch: Batch) -> Tensor:
    return batch["attention_mask"].bool()


def classes(model: Any, batch: Batch) -> list[Answers]:
    """The distribution over classes, of each label, or around each number."""
    return [Answers(forward(model, batch).logits, kind_of(model.config))]


def kind_of(config: PreTrainedConfig) -> str:
    """What the logits of a model for sequences are: "classes", "labels" or "numbers"."""
    kinds = {"regression": "numbers", "multi_label_classification": "labels"}
    return kinds.get(config.problem_type or "", "numbers" if config.num_labels == 1 else "classes")


def spans(model: PreTrainedModel, batch: Batch) -> list[Answers]:
    """Two distributions over the tokens: where the answer begins, and where it ends."""
    outputs = forward(model, batch)
    return [
        Answers(logits.masked_fill(~real(batch), torch.finfo(logits.dtype).min), "classes")
        for logits in (outputs.start_logits, outputs.end_logits)
    ]


def masked_words(model: PreTrainedModel, batch: Batch) -> list[Answers]:
    """The distributions over words at the masked places."""
    inputs = {name: x for name, x in batch.items() if name != PLACES}
    hidden_states = model.base_model(**inputs).last_hidden_state
    return [Answers(model.get_submodule("cls.predictions")(hidden_states[batch[PLACES]]), "classes")]


def embeddings(model: PreTrainedModel, batch: Batch, pooling) -> list[Answers]:
    """The embedding of each text, of length one: half the squared distance is one less the cosine."""
    states = forward(model, batch).last_hidden_state
    return [Answers(normalize(pooling(states, batch["attention_mask"]), dim=-1), "embeddings")]


def states(model: PreTrainedModel, batch: Batch) -> list[Answers]:
    """The last hidden state of each token, of length one."""
    return [Answers(normalize(forward(model, batch).last_hidden_state[real(batch)], dim=-1), "states")]


@dataclass(frozen=True)
class Comparison:
    """
    How far a model's answers are from the original's.

    Args:
        divergence: KL(original || model) in nats, the mean over rows. Of numbers it is half the squared difference; of
            embeddings, and of states summed over the tokens of a row, one less the cosine.
        agreement: share of the answers that are the same; None for numbers of any kind.
        kind: as in `Answers`.
        spread: of numbers, the standard deviation of the original's; else None.
        classes_given: how many different classes or sets of labels the original answers with; None for numbers.
        rows: on which they were compared.
    """

    divergence: float
    agreement: float | None
    kind: str
    spread: float | None = None
    classes_given: int | None = None
    rows: int = 0


@torch.no_grad()
def compare(original: PreTrainedModel, other: PreTrainedModel, rows: list[Batch], answering: Answering) -> Comparison:
    pairs = ((answering(original, batch), answering(other, batch)) for batch in rows)
    return comparison(pairs, sum(len(batch["input_ids"]) for batch in rows))


def comparison(pairs: Iterable[tuple[list[Answers], list[Answers]]], rows: int) -> Comparison:
    """
    How far answers are from the original's.

    Args:
        pairs: for each batch the original's answers, and the others.
        rows: in all batches.
    """
    divergence, same, count, kind = 0.0, 0, 0, ""
    numbers: list[Tensor] = []
    given: set = set()
    for ours, theirs in pairs:
        for mine, others in zip(ours, theirs, strict=True):
            divergence, kind = divergence + float(mine.divergence(others)), mine.kind
            if kind in ("classes", "labels"):
                same, count = same + int(mine.agreement(others)), count + len(mine.values)
                chosen = mine.values.argmax(-1) if kind == "classes" else (mine.values > 0).long()
                given.update(map(str, chosen.unique(dim=0).tolist()))
            elif kind == "numbers":
                numbers.append(mine.values)
    spread = float(torch.cat(numbers).std(dim=0, correction=0).norm()) if numbers else None
    agreement, different = (same / count, len(given)) if count else (None, None)
    return Comparison(max(0.0, divergence / rows), agreement, kind, spread, different, rows)


def answers_text(comparison: Comparison) -> str:
    """How far answers are from the original's, in the measure of their kind."""
    divergence = comparison.divergence
    if comparison.agreement is not None:
        return f"{comparison.agreement:.1%} are the original's, KL {divergence:.2g} nats for a row"
    if comparison.kind == "numbers":
        spread = f", where the original's vary by {comparison.spread:.2g}" if comparison.spread else ""
        return f"they differ from the original's by {(2 * divergence) ** 0.5:.2g}{spread} (root mean squares)"
    if comparison.kind == "embeddings":
        return f"their mean cosine with the original's is {1 - divergence:.3f}"
    return f"one less the cosine of hidden states is {divergence:.2g}, the sum over the tokens of a row"


def changed(comparison: Comparison, tokens: float) -> float:
    """How much of the answers has changed, as a share: how many, or how much of the variance is not explained."""
    if comparison.agreement is not None:
        return 1 - comparison.agreement
    if comparison.kind == "numbers":
        return 2 * comparison.divergence / comparison.spread**2 if comparison.spread else 1.0
    return comparison.divergence if comparison.kind == "embeddings" else comparison.divergence / tokens


def judged(comparison: Comparison, tokens: float, remedy: str) -> str:
    """Whether the answers stayed, in words, and the remedy where they did not."""
    if comparison.classes_given == 1:
        return "The original gives one answer to all rows: that it stays says nothing; train it, or give other rows"
    share = changed(comparison, tokens)
    if share <= NEARLY:
        return "Nearly all answers stayed"
    if share <= MOSTLY:
        return "Most answers stayed: compare both models on rows with labels"
    return f"Many answers changed: {remedy}"
