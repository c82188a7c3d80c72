"""
Compares the speed, scores and predictions of models on the same rows.

All models run on the CPU with the same number of threads. For each batch, they run in random order.
"""

import csv
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.nn.functional import normalize
from tqdm.auto import tqdm
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from ..conversion.checkpoints import read_config
from ..data.readers import file_format
from ..data.tokenizers import check_vocab_size, encode, load_tokenizer
from ..fine_tuning.distillation import Batch, Predictions
from ..fine_tuning.glue_metrics import glue_scores
from ..fine_tuning.label_columns import encode_labels
from ..fine_tuning.labels import REGRESSION, SINGLE, align_labels, default_names
from ..fine_tuning.texts import RowSource, load_files
from ..publishing.export import EMBEDDING, GRAPH, QUANTIZED, session_of
from ..publishing.sentence_models import read_text_settings
from ..shrinking.calibration import lines_of, row_length, texts_of
from ..shrinking.latency import machine_name
from ..shrinking.predictions import LoadedModel, fidelity, head_name, kind_of_logits
from ..shrinking.report import short_name
from ..support.errors import InputError, require_package
from ..support.files import new_directory, reading, to_json
from .report import CHANGED, SINGLE_ROWS, ComparedModel, Comparison

RESULTS = "comparison.json"
PAUSE = 0.003  # seconds before each call, until the threads of the previous call have stopped spinning
GRAPHS = {GRAPH: "float32", QUANTIZED: "int8"}
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
Texts = list[tuple[str, ...]]  # one text or text pair per row


class OnnxModel:
    """An ONNX graph that is called in the same way as the PyTorch model from which it was exported."""

    def __init__(self, file: Path):
        with reading(file, "export the model again"):
            self.session = session_of(file, torch.get_num_threads())
        self.inputs = {node.name for node in self.session.get_inputs()}
        self.outputs = [node.name for node in self.session.get_outputs()]

    def __call__(self, **inputs: torch.Tensor) -> ModelOutput:
        outputs = self.session.run(None, {name: x.numpy() for name, x in inputs.items() if name in self.inputs})
        return ModelOutput(zip(self.outputs, map(torch.from_numpy, outputs), strict=True))


@dataclass
class Candidate:
    """
    A PyTorch model or ONNX graph to compare, with its predictions and times for each batch.

    Args:
        source: directory or Hub id, and for an ONNX graph the precision.
        name: short name for the report.
        task: description of the predictions. Only models with the same task can be compared.
        predict: function that returns the predictions for a batch, one per row.
        prompt: text that precedes each text.
    """

    source: str
    name: str
    task: str
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    predict: Callable[[Batch], list[Predictions]]
    prompt: str = ""
    predictions: list[list[Predictions]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    single_seconds: list[float] = field(default_factory=list)

    def timed(self, texts: Texts, length: int) -> tuple[list[Predictions], float]:
        """Returns the predictions for the texts, and the elapsed seconds without tokenization."""
        columns = ([self.prompt + text for text in column] for column in zip(*texts, strict=True))
        options = {"truncation": True, "max_length": length, "padding": True, "return_tensors": "pt"}
        batch = dict(encode(self.tokenizer, *columns, **options))
        time.sleep(PAUSE)
        begin = time.perf_counter()
        predictions = self.predict(batch)
        return predictions, time.perf_counter() - begin

    @property
    def values(self) -> torch.Tensor:
        """The predictions for all rows, (rows, C)."""
        return torch.cat([predictions.values for batch in self.predictions for predictions in batch])


def compare(  # noqa: PLR0913  the options of the command
    models: list[str | Path],
    validation_file: str | Path,
    text_column_names: str | None = None,
    label_column_name: str | None = None,
    max_seq_length: int | None = None,
    max_samples: int = 1000,
    batch_size: int = 32,
    output_dir: str | Path | None = None,
    cache_dir: str | None = None,
    token: str | None = None,
) -> Comparison:
    """
    Compares the speed and scores of models on the same rows, and their predictions with those of the first model.

    Args:
        models: directories or Hub ids of classifiers, regressions or embedding models for the same task. The first is
            the original. Each ONNX graph in a directory counts as a model.
        validation_file: file with rows for the task, preferably not used in training. Labels are optional.
        text_column_names: names of the text columns, such as "premise,hypothesis".
        label_column_name: name of the label column. By default, this is "label" if the file has such a column.
        max_seq_length: maximum tokens per row. By default, this is the limit that all models support, at most 512.
        max_samples: maximum number of rows, sampled at random.
        batch_size: rows per batch.
        output_dir: a new directory for the measurements and the rows with different predictions.
        cache_dir, token: options for models on the Hub.

    Raises:
        InputError: If the models have different tasks, or the rows are unsuitable for them.
    """
    loaded = [load_candidates(str(source), cache_dir=cache_dir, token=token) for source in models]
    candidates = list(chain(*loaded))
    check_same_task(candidates)
    names = Counter(model.name for model in candidates)
    for model in candidates:
        model.name = model.source if names[model.name] > 1 else model.name  # the full path replaces a duplicate name
    first = candidates[0]
    texts, labels = read_rows_for(first, Path(validation_file), text_column_names, label_column_name)
    available = len(texts)
    order = random.Random(0).sample(range(available), min(available, max_samples))
    texts = [texts[index] for index in order]
    labels = None if labels is None else labels[order]
    length = row_length(max_seq_length, [(model.config, model.tokenizer) for model in candidates])
    run(candidates, texts, length, batch_size)
    compared = [measurements(model, first, labels) for model in candidates]
    result = Comparison(str(validation_file), len(texts), available, batch_size, machine_name(), compared)
    if output_dir is None:
        return result
    with new_directory(output_dir) as directory:
        result = replace(result, folder=str(output_dir))
        (directory / RESULTS).write_text(to_json(asdict(result), indent=1) + "\n")
        if first.predictions[0][0].kind == "classes":
            with (directory / CHANGED).open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, delimiter="\t").writerows(changed_rows(candidates, texts, labels))
    return result


def load_candidates(source: str, **hub_options) -> list[Candidate]:
    """Loads the model from a directory or the Hub, and every ONNX graph in the directory."""
    graphs = {Path(source) / graph: name for graph, name in GRAPHS.items() if (Path(source) / graph).is_file()}
    name, candidates = short_name(source), []
    if not graphs or any((Path(source) / weights).is_file() for weights in WEIGHTS):
        loaded = LoadedModel.load(source, **hub_options)
        model = loaded.model.float()
        task = task_of(head_name(model), model.config, source, loaded.pooling is not None)
        predict = partial(loaded.predict, model)
        candidates.append(Candidate(source, name, task, model.config, loaded.tokenizer, predict, loaded.prompt))
    if graphs:
        require_package("onnxruntime", "onnx")
        config, tokenizer = read_config(source), load_tokenizer(source, trust_remote_code=False)
        check_vocab_size(tokenizer, config.vocab_size, source)
        settings = read_text_settings(Path(source))
        settings.apply(tokenizer)
        head = (config.architectures or [""])[0].partition("For")[2]
    for file, precision in graphs.items():
        graph = OnnxModel(file)
        task = task_of(head, config, source, EMBEDDING in graph.outputs)
        predict = partial(onnx_predictions, graph, kind_of_logits(config) if head else "embeddings")
        names = (f"{source}, {precision}", f"{name}, {precision}")
        candidates.append(Candidate(*names, task, config, tokenizer, predict, settings.prompt))
    return candidates


def onnx_predictions(graph: OnnxModel, kind: str, batch: Batch) -> list[Predictions]:
    """Returns the predictions of an ONNX graph for a batch. Embeddings are normalized to a norm of 1."""
    outputs = graph(**batch)
    values = normalize(outputs[EMBEDDING], dim=-1) if kind == "embeddings" else outputs["logits"]
    return [Predictions(values, kind)]


def task_of(head: str, config: PreTrainedConfig, source: str, has_embeddings: bool) -> str:
    """
    Returns a description of the model's predictions, which is also used in error messages.

    Raises:
        InputError: If the model does not make one prediction per row.
    """
    if head == "" and has_embeddings:
        return f"embeddings of size {config.hidden_size}"
    if head != "SequenceClassification":
        raise InputError(f"{source}: only classification, regression and sentence-transformers models are supported.")
    kind = kind_of_logits(config)
    return f"{config.num_labels} numbers" if kind == "numbers" else f"{kind} {', '.join(default_names(config))}"


def check_same_task(candidates: list[Candidate]):
    """Raises InputError if the models have different tasks."""
    first = candidates[0]
    for model in candidates:
        if model.task != first.task:
            raise InputError(f"{model.source} predicts {model.task}, but {first.source} predicts {first.task}.")


def read_rows_for(
    first: Candidate, file: Path, text_column_names: str | None, label_column_name: str | None
) -> tuple[Texts, np.ndarray | None]:
    """
    Returns the texts, and their class ids or numbers, or None if the file contains no labels. For embedding models,
    each text of a pair is a separate row without a label.
    """
    if file_format(file) == ".txt":
        return list(lines_of(file)), None
    columns = None if text_column_names is None else tuple(text_column_names.split(","))
    kind = "embeddings" if first.task.startswith("embeddings") else kind_of_logits(first.config)
    label = label_column_name or "label"
    labeled = kind in ("classes", "numbers") and (label_column_name or label in RowSource.from_file(file).columns)
    split = "validation" if labeled else "test"
    regression = kind == "numbers"
    data = load_files({split: str(file)}, do_regression=regression, text_columns=columns, label_columns=(label,))
    if not labeled:
        texts = texts_of(data.splits[split])
        return [(text,) for row in texts for text in row] if kind == "embeddings" else texts, None
    label_ids, _ = align_labels(data.labels, first.config, False, data.problem_type)
    return texts_of(data.splits[split]), encode_labels(data.splits[split]["label"], label_ids, first.config)


@torch.inference_mode()
def run(candidates: list[Candidate], texts: Texts, length: int, batch_size: int):
    """Runs all models on each batch and on single rows, in random order, and stores their predictions and times."""
    batches = [texts[begin : begin + batch_size] for begin in range(0, len(texts), batch_size)]
    single = [[row] for row in texts[:SINGLE_ROWS]]
    for model in candidates:  # warm-up
        model.timed(batches[0], length)
        model.timed(single[0], length)
    order = random.Random(0)
    for index, batch in enumerate(tqdm([*batches, *single], "comparing", unit="batch")):
        for model in order.sample(candidates, len(candidates)):
            predictions, seconds = model.timed(batch, length)
            if index < len(batches):
                model.predictions.append(predictions)
                model.seconds.append(seconds)
            else:
                model.single_seconds.append(seconds)


def measurements(model: Candidate, first: Candidate, labels: np.ndarray | None) -> ComparedModel:
    """Computes the scores, speed and fidelity of a model from its stored predictions and times."""
    rows, scores, lost, gained = len(model.values), {}, None, None
    if labels is not None and first.predictions[0][0].kind == "numbers":
        scores = glue_scores(REGRESSION, model.values[:, 0].numpy(), labels)
    elif labels is not None:
        before, after = (x.values.argmax(-1).numpy() for x in (first, model))
        scores = glue_scores(SINGLE, after, labels)
        lost = int(((before == labels) & (after != labels)).sum())
        gained = int(((before != labels) & (after == labels)).sum())
    pairs = zip(first.predictions, model.predictions, strict=True)
    return ComparedModel(
        name=model.name,
        rows_per_second=(rows / sum(model.seconds), len(model.single_seconds) / sum(model.single_seconds)),
        speedup=(
            median(np.divide(first.seconds, model.seconds).tolist()),
            median(np.divide(first.single_seconds, model.single_seconds).tolist()),
        ),
        scores=scores,
        lost=lost,
        gained=gained,
        fidelity=None if model is first else fidelity(pairs, rows),
    )


def changed_rows(candidates: list[Candidate], texts: Texts, labels: np.ndarray | None) -> list[list[str]]:
    """Returns a header, and a line with texts, label and predictions for each row on which the models disagree."""
    names = default_names(candidates[0].config)
    classes = torch.stack([model.values.argmax(-1) for model in candidates], dim=1)  # (rows, models)
    table = [[*(f"text {n}" for n in range(1, 1 + len(texts[0]))), "label", *(model.name for model in candidates)]]
    for row in torch.nonzero((classes != classes[:, :1]).any(dim=1)).flatten().tolist():
        label = "" if labels is None else names[int(labels[row])]
        table.append([*texts[row], label, *(names[index] for index in classes[row].tolist())])
    return table
