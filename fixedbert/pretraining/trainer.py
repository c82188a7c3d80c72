"""Trainer for pretraining, and its evaluation: losses and accuracies on held-out documents."""

import time
from functools import partial

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import EvalPrediction, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from ..data.examples import EpochSampler, Examples
from ..model.fast_fixed_head_bert import find_label_indices
from ..training.trainer import CommonTrainer
from .arguments import PretrainingArguments

# What is summed over an example: enough to get every mean right whatever the batch size.
SUMS = {
    "mlm+nsp": ("mlm_loss", "mlm_correct", "mlm_tokens", "nsp_loss", "nsp_correct"),
    "mlm": ("mlm_loss", "mlm_correct", "mlm_tokens"),
    "clm": ("clm_loss", "clm_correct", "clm_tokens", "clm_words"),
}


class PretrainingTrainer(CommonTrainer):
    """
    Trainer whose epochs draw new examples, on any number of processes and after a continuation.

    The loss of a step is the mean over all its labelled tokens and the mean over all its pairs, however these are
    spread over accumulated batches and processes. A mean of the batches' means would count tokens of batches with few
    more. Also logged: the accuracy of the predicted tokens (of some batches: it costs time), real tokens per second,
    and the fill ratio, the share of real tokens among all that the batches have room for.

    Args:
        objective: an `Objective`.
        inside_word: from `tokens_inside_words`, to report perplexity by word.
    """

    counts = 4  # predicted tokens, those of them right, real tokens, room for tokens
    args: PretrainingArguments
    objective: str

    def __init__(self, *args, objective: str = "mlm+nsp", inside_word: np.ndarray | None = None, **kwargs):
        kwargs["args"].label_names = ["labels", "next_sentence_label"] if objective == "mlm+nsp" else ["labels"]
        super().__init__(
            *args,
            compute_metrics=partial(pretraining_metrics, objective=objective, by_word=inside_word is not None),
            preprocess_logits_for_metrics=partial(sums_by_example, objective=objective, inside_word=inside_word),
            **kwargs,
        )
        self.objective = objective
        self.model_accepts_loss_kwargs = True  # to get the number of tokens of a step; `compute_loss` divides by it

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = outputs.loss
        if num_items_in_batch is not None and model.training:
            # Gradients of processes are averaged; the count is of all of them, or of this one alone.
            processes = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
            of_tokens, of_pairs = separate_losses(outputs, inputs)
            loss = of_tokens * inputs["labels"].ne(-100).sum() * processes / num_items_in_batch
            if of_pairs is not None:
                loss = loss + of_pairs / self.current_gradient_accumulation_steps
            self.count_tokens(inputs, outputs)
        return (loss, outputs) if return_outputs else loss

    @torch.no_grad()
    def count_tokens(self, inputs, outputs):
        """Add the counts of a batch to the window of the next log; its right predictions only every few batches."""
        labels = inputs["labels"]
        mask = inputs.get("attention_mask")
        room = labels.new_full((), labels.numel(), dtype=torch.float)
        predicted = right = torch.zeros_like(room)
        batch = self.state.global_step * self.args.gradient_accumulation_steps + len(self.step_losses)
        if batch % max(1, int(self.args.logging_steps) // 10) == 0:
            logits = outputs.prediction_logits if self.objective == "mlm+nsp" else outputs.logits
            guesses, targets = logits_and_targets(logits, labels, self.objective, inputs.get("label_indices"))
            predicted, right = targets.ne(-100).sum(), (guesses.argmax(-1) == targets).sum()
        real = room if mask is None else mask.sum()
        self.window = self.window.to(labels.device)
        self.window[1:] += torch.stack([predicted, right, real, room])
        if mask is None:
            assert isinstance(self.processing_class, PreTrainedTokenizerBase)  # that of every run
            real = (inputs["input_ids"] != self.processing_class.pad_token_id).sum()
        self.step_tokens.append(real)

    def counted(self, counts):
        predicted, right, real, room = counts
        if not (predicted and room):
            return {}
        return {
            f"{self.objective[:3]}_accuracy": right / predicted,
            "tokens_per_second": real / (time.monotonic() - self.window_began),
            "fill_ratio": real / room,
        }

    def log(self, logs, *args, **kwargs):
        logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
        super().log(logs, *args, **kwargs)

    def evaluation_loop(self, *args, metric_key_prefix="eval", **kwargs):
        began = time.monotonic()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        # Trainer's mean over batches depends on their size.
        losses = [f"{metric_key_prefix}_{name}" for name in SUMS[self.objective] if name.endswith("_loss")]
        output.metrics[f"{metric_key_prefix}_loss"] = sum(output.metrics[name] for name in losses)
        self.window_began += time.monotonic() - began
        return output

    def get_train_dataloader(self):
        args, examples = self.args, self.train_dataset
        step_size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        assert isinstance(examples, Examples)  # other data sets need another sampler
        return self.loader(examples, args.train_batch_size, EpochSampler(examples, step_size))


def separate_losses(outputs: ModelOutput, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The mean over labelled tokens, and with next-sentence prediction the mean over pairs."""
    if "next_sentence_label" not in inputs:
        return outputs["loss"], None
    if "masked_lm_loss" in outputs:
        return outputs["masked_lm_loss"], outputs["next_sentence_loss"]
    pairs = cross_entropy(outputs["seq_relationship_logits"].float(), inputs["next_sentence_label"])
    return outputs["loss"] - pairs, pairs  # stock BERT returns their sum alone


def logits_and_targets(
    logits: torch.Tensor, labels: torch.Tensor, objective: str, label_indices: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The logits (labelled, V) and ids (labelled) of the tokens to predict.

    `logits` are (B, L, V), or (labelled, V) already; `labels` (B, L), which a causal model predicts a token earlier.
    `label_indices` are their indices in the flattened batch, if known.
    """
    if objective == "clm":
        logits, labels = logits[:, :-1], labels[:, 1:]
    places = find_label_indices(labels) if label_indices is None else label_indices
    return logits.flatten(0, 1)[places] if logits.dim() == 3 else logits, labels.flatten()[places]


def sums_by_example(logits, labels, objective: str = "mlm+nsp", inside_word: np.ndarray | None = None):
    """
    For Trainer's `preprocess_logits_for_metrics`: the SUMS of every example, float32 (B, number of SUMS).

    Takes prediction logits, (B, L, V) or of labelled tokens only, (labelled, V), and labels (B, L); with next-sentence
    prediction also its logits (B, 2) and labels (B). Words are counted where `inside_word` says which tokens go on
    with one.
    """
    logits = logits if isinstance(logits, tuple) else (logits,)
    labels, *next_sentence_label = labels if isinstance(labels, tuple) else (labels,)
    asked = labels[:, 1:].ne(-100) if objective == "clm" else labels.ne(-100)
    sums = torch.zeros(len(labels), len(SUMS[objective]), device=labels.device)
    per_row = asked.sum(-1).tolist()
    # Batches of one shape end with logits of a token without a label.
    parts = logits[0][: sum(per_row)].split(per_row) if logits[0].dim() == 2 else logits[0]
    for row, part in enumerate(parts):  # one at a time: the logits of a batch of whole rows are large
        if part.dim() == 2 and logits[0].dim() == 3:
            part, targets = logits_and_targets(part[None], labels[row : row + 1], objective)
        else:
            targets = labels[row][asked[row]]
        sums[row, 0] = cross_entropy(part.float(), targets, reduction="sum")
        sums[row, 1] = (part.argmax(-1) == targets).sum()
        sums[row, 2] = len(targets)
        if objective == "clm" and inside_word is not None:
            sums[row, 3] = len(targets) - torch.as_tensor(inside_word, device=targets.device)[targets].sum()
    if objective == "mlm+nsp":
        sums[:, 3] = cross_entropy(logits[1].float(), next_sentence_label[0], reduction="none")
        sums[:, 4] = (logits[1].argmax(-1) == next_sentence_label[0]).float()
    return sums


def pretraining_metrics(
    prediction: EvalPrediction, objective: str = "mlm+nsp", by_word: bool = False
) -> dict[str, float]:
    """
    For Trainer's `compute_metrics`: means over predicted tokens and over pairs, and the perplexity of the tokens.

    For a causal model also by word, if `by_word`: the loss of all tokens over the number of words, as BERT's tokenizer
    parts them, with punctuation marks and the ends of documents.
    """
    sums = np.asarray(prediction.predictions).sum(axis=0, dtype=np.float64)  # (number of SUMS,)
    total = dict(zip(SUMS[objective], sums.tolist(), strict=True))
    task = objective[:3]
    loss = total[f"{task}_loss"] / total[f"{task}_tokens"]
    metrics = {
        f"{task}_loss": loss,
        f"{task}_accuracy": total[f"{task}_correct"] / total[f"{task}_tokens"],
        "perplexity": float(np.exp(loss)),
    }
    if by_word:
        metrics["word_perplexity"] = float(np.exp(total["clm_loss"] / total["clm_words"]))
    if objective == "mlm+nsp":
        pairs = len(prediction.predictions)
        metrics |= {"nsp_loss": total["nsp_loss"] / pairs, "nsp_accuracy": total["nsp_correct"] / pairs}
    return metrics
