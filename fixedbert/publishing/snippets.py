"""Python code that runs a model or a graph, for model cards."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

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


def graph_code(
    file: str, outputs: Sequence[str], longest: int, settings: TextSettings, precision: str | None, choices=False
) -> str:
    """
    Returns code that runs a graph with onnxruntime or OpenVINO.

    Args:
        file: The graph in an exported directory.
        outputs: Names of the outputs.
        longest: Maximum number of tokens per text.
        settings: How a sentence-transformers model tokenizes texts.
        precision: OpenVINO's inference precision, or None to let OpenVINO choose.
        choices: Whether the model is for multiple choice. If so, the two texts are the choices of one example.
    """
    index, names = "[None]" if choices else "", json.dumps([*outputs])
    if file.endswith(".onnx"):
        package = "onnxruntime"
        load = f'session = onnxruntime.InferenceSession("{file}")'
        inputs = f"{{node.name: batch[node.name]{index} for node in session.get_inputs()}}"
        run = f"outputs = session.run({names}, {inputs})"
    else:
        package = "openvino"
        options = f', {{"INFERENCE_PRECISION_HINT": "{precision}"}}' if precision else ""
        load = f'model = openvino.compile_model("{file}", "CPU"{options})'
        inputs = f"{{node.any_name: batch[node.any_name]{index} for node in model.inputs}}"
        run = f"outputs = model({inputs})\noutputs = [outputs[name] for name in {names}]"
    return f"""import {package}
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{Path(file).parents[1].as_posix()}")
{load}
texts = {prepared_texts(settings)}
batch = tokenizer(texts, padding=True, truncation=True, max_length={longest}, return_tensors="np")
{run}
"""


def prepared_texts(settings: TextSettings) -> str:
    """Returns code for the list of texts, with the prompt and in lowercase if the settings say so."""
    if not (settings.prompt or settings.do_lower_case):
        return TEXTS
    text = f"({json.dumps(settings.prompt, ensure_ascii=False)} + text)" if settings.prompt else "text"
    return f"[{text}{'.lower()' if settings.do_lower_case else ''} for text in {TEXTS}]"
