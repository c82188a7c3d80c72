"""Python code that runs a model, for model cards."""

import json
import math

from transformers import PreTrainedConfig

from ..loading.sentence_models import TextSettings
from ..tasks.predictions import kind_of_logits, threshold_of

TEXTS = '["A text.", "A second text."]'


def transformers_code(source: str, auto_class: str, imports: bool, choices: bool = False) -> str:
    """
    Returns code that runs a PyTorch model with transformers.

    Args:
        source: Directory or Hub id.
        auto_class: Class that loads the model, such as "AutoModelForMaskedLM".
        imports: Whether the code imports fixedbert.
        choices: Whether the model is for multiple choice. If so, the two texts are the choices of one example.
    """
    inputs = "{name: x[None] for name, x in inputs.items()}" if choices else "inputs"
    return f"""{"import fixedbert" if imports else ""}
import torch
from transformers import AutoTokenizer, {auto_class}

tokenizer = AutoTokenizer.from_pretrained("{source}")
model = {auto_class}.from_pretrained("{source}")
inputs = tokenizer({TEXTS}, padding=True, truncation=True, return_tensors="pt")
with torch.inference_mode():
    outputs = model(**{inputs})
""".lstrip()


def threshold_code(logits: str, config: PreTrainedConfig) -> str:
    """Returns code that predicts labels from the `logits`, or "" unless texts can have several labels."""
    if kind_of_logits(config) != "labels":
        return ""
    threshold = threshold_of(config)
    limit = math.log(threshold / (1 - threshold))
    return f"predicted = {logits} >= {limit:.6g}  # labels with a probability of at least {threshold:g}\n"


def sentence_code(source: str, imports: bool) -> str:
    """Returns code that runs a model with sentence-transformers. For arguments, see `transformers_code`."""
    return f"""{"import fixedbert" if imports else ""}
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{source}")
embeddings = model.encode({TEXTS})
""".lstrip()


def prepared_texts(settings: TextSettings) -> str:
    """Returns code for the list of texts, with the prompt and in lowercase if the settings say so."""
    if not (settings.prompt or settings.do_lower_case):
        return TEXTS
    text = f"({json.dumps(settings.prompt, ensure_ascii=False)} + text)" if settings.prompt else "text"
    return f"[{text}{'.lower()' if settings.do_lower_case else ''} for text in {TEXTS}]"
