"""Python code for model cards. It returns what the library returns that made the model."""

import json
from typing import Any

from transformers import PreTrainedConfig

from ..loading.auxiliary_files import CROSS_ENCODER, RANKING, SIMILARITY
from ..loading.families import max_tokens
from ..loading.sentence_models import TextSettings
from ..model.configuration_fixed_head_bert import HEADS, FixedHeadBertConfig
from ..options import AnswerOptions, SquadDataOptions
from ..tasks.predictions import kind_of_logits, threshold_of
from ..tasks.questions import stride_for

TEXTS = '["A text.", "A second text."]'
PAIRS = '[("One text.", "A text."), ("One text.", "A second text.")]'


def torch_code(source: str, head: str, config: PreTrainedConfig, metadata: dict[str, Any]) -> str:
    """
    Returns code that runs a PyTorch model.

    Args:
        source: Directory or Hub id.
        head: The task head, such as "ForMaskedLM".
        metadata: The metadata of the model card.
    """
    task = metadata.get("pipeline_tag")
    imports = "import fixedbert\n" if config.model_type == FixedHeadBertConfig.model_type else ""
    if task in (RANKING, SIMILARITY):
        kind, run = "SentenceTransformer", f"embeddings = model.encode({TEXTS})"
        if task == RANKING:
            kind, run = "CrossEncoder", f"scores = model.predict({PAIRS})"
        return f"""{imports}from sentence_transformers import {kind}

model = {kind}("{source}")
{run}
"""
    if head in ("ForSequenceClassification", "ForTokenClassification"):
        return f"{imports}{pipeline_code(source, head, config, takes_pairs(config, metadata))}"
    auto_class = HEADS[head][0]
    loading = f"""import torch
from transformers import AutoTokenizer, {auto_class}

tokenizer = AutoTokenizer.from_pretrained("{source}")
model = {auto_class}.from_pretrained("{source}")
"""
    if head == "ForQuestionAnswering":
        length = min(SquadDataOptions.max_seq_length, max_tokens(config))
        return f"""{imports}import numpy as np
{loading}{question_code(length, "pt")}with torch.inference_mode():
    outputs = model(**{{name: batch[name] for name in tokenizer.model_input_names}})
start_logits, end_logits = (logits.float().numpy() for logits in (outputs.start_logits, outputs.end_logits))
{answer_code()}"""
    inputs = "{name: x[None] for name, x in inputs.items()}" if head == "ForMultipleChoice" else "inputs"
    return f"""{imports}{loading}inputs = tokenizer({TEXTS}, padding=True, truncation=True, return_tensors="pt")
with torch.inference_mode():
    outputs = model(**{inputs})
"""


def takes_pairs(config: PreTrainedConfig, metadata: dict[str, Any]) -> bool:
    """Returns True for a model that was fine-tuned on pairs of texts. `metadata` is that of its model card."""
    return len(getattr(config, "text_column_names", None) or ()) == 2 or CROSS_ENCODER in metadata.get("tags", [])


def pipeline_code(source: str, head: str, config: PreTrainedConfig, pairs: bool) -> str:
    """Returns code that computes entities, labels with their probabilities, or for regression, scores."""
    if head == "ForTokenClassification":
        return f"""from transformers import pipeline

tagger = pipeline("token-classification", "{source}", aggregation_strategy="first")
entities = tagger({TEXTS})
"""
    kind = kind_of_logits(config)
    options = "top_k=None" + (', function_to_apply="none"' if kind == "numbers" else "")
    texts = '[{"text": text, "text_pair": pair} for text, pair in texts]' if pairs else "texts"
    code = f"""from transformers import pipeline

classifier = pipeline("text-classification", "{source}", {options})
texts = {PAIRS if pairs else TEXTS}
predictions = classifier({texts}, truncation=True)
"""
    if kind == "labels":
        code += f'predictions = [[x for x in row if x["score"] >= {threshold_of(config):g}] for row in predictions]\n'
    return code


def question_code(length: int, tensors: str) -> str:
    """Returns code that tokenizes a question with all windows of its context."""
    return f"""question, context = "Who?", "A text."
batch = tokenizer(
    question, context, truncation="only_second", max_length={length}, stride={stride_for(length)}, padding=True,
    return_overflowing_tokens=True, return_offsets_mapping=True, return_tensors="{tensors}",
)
"""


def answer_code() -> str:
    """Returns code that finds the best answer. The logits of all windows are arrays (windows, tokens)."""
    return f"""inside = np.array([[part == 1 for part in batch.sequence_ids(row)] for row in range(len(start_logits))])
spans = np.tril(np.triu(inside[:, :, None] & inside[:, None]), {AnswerOptions.max_answer_length - 1})
scores = np.where(spans, start_logits[:, :, None] + end_logits[:, None], -np.inf)  # (windows, starts, ends)
window, start, end = np.unravel_index(scores.argmax(), scores.shape)
offsets = batch["offset_mapping"][window]
answer = context[offsets[start][0] : offsets[end][1]]
"""


def batch_code(head: str, length: int, pairs: bool, settings: TextSettings) -> str:
    """Returns code that tokenizes texts for a graph, with the prompt and in lowercase if the settings say so."""
    if head == "ForQuestionAnswering":
        return question_code(length, "np")
    text, pair = "text", "pair"
    if settings.prompt:
        text = f"({json.dumps(settings.prompt, ensure_ascii=False)} + text)"
    if settings.do_lower_case:
        text, pair = f"{text}.lower()", "pair.lower()"
    texts = PAIRS if pairs else TEXTS
    if settings.prompt or settings.do_lower_case:
        texts = f"[({text}, {pair}) for text, pair in {PAIRS}]" if pairs else f"[{text} for text in {TEXTS}]"
    return f"""texts = {texts}
batch = tokenizer(texts, padding=True, truncation=True, max_length={length}, return_tensors="np")
"""


def results_code(source: str, head: str, config: PreTrainedConfig, activation: str | None) -> str:
    """Returns code that interprets a graph's outputs. `activation` is the activation function of a reranker."""
    labels = f'labels = AutoConfig.from_pretrained("{source}").id2label\n'
    if head == "ForQuestionAnswering":
        return answer_code()
    if head == "ForTokenClassification":
        return f"""{labels}entities = [[] for _ in texts]
for row, text in enumerate(texts):
    for word in sorted({{*batch.word_ids(row)}} - {{None}}):
        begin, end = batch.word_to_chars(row, word)
        label = labels[int(logits[row, batch.word_to_tokens(row, word).start].argmax())]
        name = label[2:] if label[:2] in ("B-", "I-") else label
        if entities[row] and entities[row][-1][0] == name and label[:2] != "B-":
            begin = entities[row].pop()[1]
        entities[row].append((name, begin, end))
    entities[row] = [(name, text[begin:end]) for name, begin, end in entities[row] if name != "O"]
"""
    if head != "ForSequenceClassification":
        return ""
    if activation:
        known = {"Sigmoid": "1 / (1 + np.exp(-logits[:, 0]))", "Identity": "logits[:, 0]"}
        other = f"{activation}()(torch.from_numpy(logits[:, 0])).numpy()"
        return f"scores = {known.get(activation.rpartition('.')[2], other)}\n"
    kind = kind_of_logits(config)
    if kind == "numbers":
        return f"scores = {'logits[:, 0]' if config.num_labels == 1 else 'logits'}\n"
    if kind == "labels":
        computed, condition = "1 / (1 + np.exp(-logits))", f" if x >= {threshold_of(config):g}"
    else:
        computed, condition = "np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))", ""
    return f"""{labels}probabilities = {computed}
predictions = [{{labels[i]: x for i, x in enumerate(row){condition}}} for row in probabilities.tolist()]
"""
