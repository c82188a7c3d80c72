"""Opens checkpoints of many kinds. The outputs of commands must equal those of the library that made the model."""

import csv
import importlib
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
import transformers
from torch import Tensor
from transformers import AutoTokenizer

from fixedbert.loading.families import ROBERTAS
from fixedbert.model.configuration_fixed_head_bert import HEADS

from . import damaged_checkpoints as damaged
from . import made_checkpoints as made
from .children import Ending, command, in_child
from .made_checkpoints import UNKNOWN_FIELDS, UNSUPPORTED, WORDS, Checkpoint
from .trials import Trial

QUIET = "--use_cpu --bf16 false --report_to none --disable_tqdm true --max_seq_length 88"
RAW = re.compile(r"object has no|'NoneType'|\w+Error\b|Traceback|list indices|not subscriptable|Exception")
COMPARED = ("Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
SUPPORTED_MODES = (("mean",), ("cls",), ("max",))
TEXTS: list[str] = []
INPUTS = Path()


@dataclass
class Truth:
    """
    What the library that made a checkpoint computes, in float32.

    Attributes:
        texts: The first and the second text of each row.
        ids: Tokens of the first texts.
        batch: The tokenized rows.
        outputs: The model's outputs for the batch.
        labels: The predicted classes of each word, or the predicted answers.
        library: The outputs of sentence-transformers, if it made the checkpoint.
    """

    texts: list[list[str]]
    ids: list[list[int]]
    batch: dict[str, Tensor]
    outputs: list[Tensor]
    labels: list
    library: Tensor | None = None


def prepare(inputs: Path):
    """Writes the rows on which models are calibrated, and imports the commands once for all forked processes."""
    global INPUTS
    INPUTS = inputs
    for module in (
        "fine_tuning.glue",
        "fine_tuning.squad",
        "fine_tuning.trainer",
        "conversion.convert",
        "comparison.compare",
    ):
        importlib.import_module(f"fixedbert.{module}")
    for module in ("exporting.export", "shrinking.shrink"):
        importlib.import_module(f"fixedbert.{module}")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rng = random.Random(0)
    inputs.mkdir(parents=True, exist_ok=True)
    TEXTS[:] = [" ".join(rng.choices(WORDS, k=rng.randint(3, 8))) for _ in range(240)]
    (inputs / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    pairs = [f"{one},{other}" for one, other in zip(TEXTS[:120], TEXTS[120:], strict=True)]
    (inputs / "pairs.csv").write_text("\n".join(["sentence1,sentence2", *pairs]) + "\n")
    write_jsonl(inputs / "words.jsonl", [{"tokens": text.split()} for text in TEXTS])
    questions = [
        question(str(number), pair[0], pair[1], "the")
        for number, pair in enumerate(zip(TEXTS[:100], TEXTS[100:200], strict=True))
    ]
    write_questions(inputs / "questions.json", questions)


def write_jsonl(file: Path, rows: list[dict]):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def question(name: str, text: str, context: str, answer: str) -> dict:
    context = context if answer in context else f"{context} {answer}"
    answers = [{"text": answer, "answer_start": context.index(answer)}]
    return {"context": context, "qas": [{"id": name, "question": text, "answers": answers}]}


def write_questions(file: Path, paragraphs: list[dict]):
    file.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))


# --- The truth ---


def truth_of(
    checkpoint: Checkpoint, model: transformers.PreTrainedModel, directory: Path, rng: random.Random
) -> Truth:
    body = directory / "0_Transformer" if checkpoint.layout == "nested" else directory
    tokenizer = AutoTokenizer.from_pretrained(body)
    added = [f" [E{number}] " for number in range(checkpoint.added)]
    texts = []
    for _ in range(9):
        one, other = rng.sample(TEXTS, 2)
        texts.append(
            [rng.choice([one, one.capitalize() + ".", *(f"{one[:9]}{token}{one[9:]}" for token in added)]), other]
        )
    if not (checkpoint.pairs or checkpoint.head == "ForQuestionAnswering"):
        texts = [[text] for text, _ in texts]
    is_split = checkpoint.head == "ForTokenClassification"
    columns = [[text.split() for (text,) in texts]] if is_split else map(list, zip(*texts, strict=True))
    batch = tokenizer(*columns, is_split_into_words=is_split, padding=True, return_tensors="pt")
    encodings = batch.encodings
    if checkpoint.head == "ForMultipleChoice":
        batch = {name: torch.stack([x, x.flip(0)], dim=1) for name, x in batch.items()}
    truth = Truth(texts, tokenizer([row[0] for row in texts])["input_ids"], dict(batch), [], [])
    truth.outputs = outputs_of(model, truth.batch)
    mask = truth.batch["attention_mask"].bool()
    if is_split:
        classes = torch.zeros_like(truth.batch["input_ids"])
        classes[mask] = truth.outputs[0].argmax(-1)
        names = checkpoint.fields["id2label"]
        truth.labels = [
            [names[int(row[e.word_ids.index(n)])] for n in range(len(text.split()))]
            for row, e, (text,) in zip(classes, encodings, texts, strict=True)
        ]
    elif checkpoint.head == "ForQuestionAnswering":
        starts, ends = (torch.zeros(mask.shape).masked_scatter(mask, x) for x in truth.outputs)
        truth.labels = [
            answer_of(*row) for row in zip(starts, ends, encodings, [context for _, context in texts], strict=True)
        ]
    if checkpoint.library:
        truth.library = library_outputs(checkpoint, directory, texts)
    return truth


def answer_of(starts: Tensor, ends: Tensor, encoding: tokenizers.Encoding, context: str) -> str:
    """Returns the most probable answer with at most 30 tokens."""
    places = [index for index, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
    spans = [(begin, end) for begin in places for end in places if begin <= end < begin + 30]
    begin, end = max(spans, key=lambda span: float(starts[span[0]] + ends[span[1]]))
    return context[encoding.offsets[begin][0] : encoding.offsets[end][1]].strip()


@torch.inference_mode()
def outputs_of(model: transformers.PreTrainedModel, batch: dict[str, Tensor]) -> list[Tensor]:
    """Returns a model's outputs without padding. Of an encoder, they are the hidden states."""
    known = ("input_ids", "attention_mask", *["token_type_ids"] * (model.config.model_type != "distilbert"))
    outputs = model(**{name: x for name, x in batch.items() if name in known})
    tensors = [x.float() for x in outputs.values() if isinstance(x, Tensor)]
    tensors = tensors[:1] if "last_hidden_state" in outputs else tensors
    return [x[mask] if x.shape[:2] == (mask := batch["attention_mask"].bool()).shape else x for x in tensors]


def library_outputs(checkpoint: Checkpoint, directory: Path, texts: list[list[str]]) -> Tensor:
    """Returns the embeddings or scores that sentence-transformers computes."""
    import sentence_transformers

    model = getattr(sentence_transformers, checkpoint.library)(
        str(directory), device="cpu", model_kwargs={"dtype": "float32"}, local_files_only=True
    )
    if checkpoint.library == "CrossEncoder":
        return torch.from_numpy(model.predict([tuple(row) for row in texts], show_progress_bar=False))
    return torch.from_numpy(model.encode([row[0] for row in texts], show_progress_bar=False))


def difference(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Returns the largest difference, relative to the largest expected number if that exceeds 1."""
    if [x.shape for x in actual] != [x.shape for x in expected]:
        return float("inf")
    parts = [float((a - b).abs().max()) / max(1, float(b.abs().max())) for a, b in zip(actual, expected, strict=True)]
    return max((float("inf") if part != part else part for part in parts), default=0.0)


# --- What is expected of each command ---


def is_convertible(checkpoint: Checkpoint) -> bool:
    """Whether BERT can represent the model."""
    if checkpoint.family in UNSUPPORTED:
        return False
    is_language_model = checkpoint.head in ("ForMaskedLM", "LMHeadModel")
    has_equal_activation = checkpoint.fields["hidden_act"] == "gelu" or not (
        is_language_model and checkpoint.family in (*ROBERTAS, "electra")
    )
    if checkpoint.family == "electra":
        fields = checkpoint.fields
        has_equal_head = checkpoint.head not in ("ForPreTraining", "ForMultipleChoice")
        return fields["embedding_size"] == 32 and has_equal_head and has_equal_activation
    return has_equal_activation


def is_pooled(checkpoint: Checkpoint) -> bool:
    """Whether the model computes embeddings with supported modules."""
    return checkpoint.modes in SUPPORTED_MODES and "Dense" not in checkpoint.modules


def expected(checkpoint: Checkpoint, name: str) -> str:
    """Returns "success", "refused" or "either", the outcome that a command must have."""
    can = is_convertible(checkpoint)
    is_unpooled = checkpoint.kind == "embeddings" and not is_pooled(checkpoint)
    has_shape = not {"head_embedding", "qk_norm"} & {*checkpoint.fields}
    works = {
        "convert": can,
        "shrink": can and has_shape and checkpoint.head != "ForMultipleChoice" and not is_unpooled,
        "compare": can and (is_pooled(checkpoint) or checkpoint.kind not in ("embeddings", "encoder"))
        and checkpoint.head in COMPARED,
        "export": can and checkpoint.head != "ForMultipleChoice" and not is_unpooled,
        "glue": checkpoint.head == "ForSequenceClassification",
        "squad": checkpoint.head == "ForQuestionAnswering",
    }[name]  # fmt: skip
    if not works:
        return "refused"
    if checkpoint.damage in damaged.EITHER_DAMAGE:
        return "either"
    if checkpoint.damage == "no tokenizer" and name == "convert":
        return "success"
    if checkpoint.damage in ("modules.json", "1_Pooling/config.json") and name in ("convert", "glue"):
        return "either"
    return "success" if checkpoint.damage in ("", *damaged.HARMLESS_DAMAGE) else "refused"


# --- Commands. Each function returns the arguments of a command, and a check of what it wrote. ---


def convert_line(checkpoint: Checkpoint, truth: Truth, work: Path, rng: random.Random) -> str:
    sizes = [
        "",
        "",
        "--attention_head_size 32",
        "--intermediate_size 43",
        "--unpad_inputs",
        "--dtype bfloat16",
        "--dtype float32",
    ]
    sizes = ["--bert"] * 3 + sizes if checkpoint.family == "fixed_head_bert" else sizes
    return f"convert model --output_dir out {rng.choice(sizes)}"


def glue_line(checkpoint: Checkpoint, truth: Truth, work: Path, rng: random.Random) -> str:
    columns = ("sentence1", "sentence2") if len(truth.texts[0]) > 1 else ("sentence",)
    pairs = zip(truth.texts, labels_of(checkpoint, truth), strict=True)
    write_jsonl(work / "rows.jsonl", [dict(zip(columns, row, strict=True)) | {"label": label} for row, label in pairs])
    files = "--validation_file rows.jsonl --test_file rows.jsonl --do_eval --do_predict"
    return f"glue --model_name_or_path model {files} --output_dir out {QUIET}"


def squad_line(checkpoint: Checkpoint, truth: Truth, work: Path, rng: random.Random) -> str:
    write_questions(work / "questions.json", answered(truth))
    options = "--validation_file questions.json --do_eval --doc_stride 20 --n_best_size 88"
    return f"squad --model_name_or_path model {options} --output_dir out {QUIET}"


def compare_line(checkpoint: Checkpoint, truth: Truth, work: Path, rng: random.Random) -> str:
    if checkpoint.head == "ForQuestionAnswering":
        write_questions(work / "questions.json", answered(truth))
        return "compare model --validation_file questions.json --runtime torch --output_dir out"
    if checkpoint.head == "ForTokenClassification":
        rows = zip(truth.texts, truth.labels, strict=True)
        write_jsonl(work / "rows.jsonl", [{"tokens": text.split(), "labels": labels} for (text,), labels in rows])
    else:
        glue_line(checkpoint, truth, work, rng)
        if checkpoint.kind in ("embeddings", "encoder"):
            write_jsonl(work / "rows.jsonl", [{"text": row[0]} for row in truth.texts])
    return "compare model --validation_file rows.jsonl --runtime torch --output_dir out"


def shrink_line(checkpoint: Checkpoint, truth: Truth, work: Path, rng: random.Random) -> str:
    file = {"ForTokenClassification": "words.jsonl", "ForQuestionAnswering": "questions.json"}.get(checkpoint.head)
    file = file or ("pairs.csv" if checkpoint.pairs else "texts.txt")
    target = f"--intermediate_size {checkpoint.fields['intermediate_size']}"  # unchanged
    return f"shrink model --output_dir out --train_file {INPUTS / file} {target} --max_seq_length 88"


def export_line(checkpoint: Checkpoint, truth: Truth, work: Path, rng: random.Random) -> str:
    return "export model --output_dir out"


LINES = {
    "convert": convert_line,
    "glue": glue_line,
    "squad": squad_line,
    "compare": compare_line,
    "shrink": shrink_line,
    "export": export_line,
}


def labels_of(checkpoint: Checkpoint, truth: Truth) -> list:
    """Returns the classes or scores of texts that the model predicts, as the truth says."""
    if checkpoint.head != "ForSequenceClassification":
        return ["L0", "L1"] * 4 + ["L0"]
    names, logits = checkpoint.fields["id2label"], truth.outputs[0]
    if checkpoint.kind == "labels":
        return [[names[index] for index in range(4) if row[index] > 0] for row in logits]
    if len(names) == 1:
        return [float(row) for row in logits]
    return [names[int(row.argmax())] for row in logits]


def answered(truth: Truth) -> list[dict]:
    """Returns the questions, with the answers that the model predicts, as the truth says."""
    rows = enumerate(zip(truth.texts, truth.labels, strict=True))
    return [question(str(number), *row, answer) for number, (row, answer) in rows if answer]


# --- The check of what a command wrote ---


def tolerance(checkpoint: Checkpoint, line: str) -> float:
    half = "bfloat16" if "--dtype bfloat16" in line else checkpoint.dtype
    if line.startswith(("export", "compare")) or (
        line.startswith("convert") and "size" not in line and "--bert" not in line and half == checkpoint.dtype
    ):
        return 2e-4  # weights are the same, and are computed in float32 here
    return {
        "float64": 2e-2 if line.startswith("shrink") else 1e-3,
        "float32": 2e-2 if line.startswith("shrink") else 1e-3,
        "float16": 1e-2,
        "bfloat16": 8e-2,
    }[half]


def fault_of(checkpoint: Checkpoint, truth: Truth, work: Path, line: str) -> str:
    """Returns what is wrong with the output of a successful command, or ""."""
    name, limit = line.split()[0], tolerance(checkpoint, line)
    out = work / "out"
    if name in ("convert", "shrink"):
        return directory_fault(checkpoint, truth, out, limit)
    if name == "export":
        return tokenizer_fault(checkpoint, truth, out) or graph_fault(checkpoint, truth, out, limit)
    if name == "compare":
        return comparison_fault(checkpoint, truth, work, limit)
    if name == "glue":
        return glue_fault(checkpoint, truth, out, limit)
    results = json.loads((out / "all_results.json").read_text())
    return "" if results["eval_exact_match"] == 100 or checkpoint.dtype != "float32" else f"answers differ: {results}"


def directory_fault(checkpoint: Checkpoint, truth: Truth, out: Path, limit: float) -> str:
    if fault := tokenizer_fault(checkpoint, truth, out):
        return fault
    config = json.loads((out / "config.json").read_text())
    for name in checkpoint.unknown:
        if config.get(name) != UNKNOWN_FIELDS[name]:
            return f"config.json has {name} {config.get(name)}"
    if (
        "id2label" in checkpoint.fields
        and {int(i): x for i, x in config["id2label"].items()} != checkpoint.fields["id2label"]
    ):
        return f"config.json has id2label {config['id2label']}"
    auto_class = getattr(transformers, HEADS[checkpoint.head][0])
    model = auto_class.from_pretrained(out, dtype=torch.float32).eval()
    if not (error := difference(outputs_of(model, truth.batch), truth.outputs)) <= limit:
        return f"outputs differ by {error:.2g}"
    if checkpoint.library and checkpoint.damage == "":
        assert truth.library is not None
        error = difference([library_outputs(checkpoint, out, truth.texts)], [truth.library])
        if not error <= limit:
            return f"outputs in sentence-transformers differ by {error:.2g}"
    return ""


def tokenizer_fault(checkpoint: Checkpoint, truth: Truth, out: Path) -> str:
    if checkpoint.damage == "no tokenizer":
        return ""
    ids = AutoTokenizer.from_pretrained(out)([row[0] for row in truth.texts])["input_ids"]
    return "" if ids == truth.ids else f"the tokenizer returns {ids[0]} instead of {truth.ids[0]}"


def graph_fault(checkpoint: Checkpoint, truth: Truth, out: Path, limit: float) -> str:
    from onnxruntime import InferenceSession

    session = InferenceSession(out / "onnx/model.onnx")
    names = [node.name for node in session.get_inputs()]
    batch = {"token_type_ids": torch.zeros_like(truth.batch["input_ids"])} | truth.batch
    outputs = [torch.from_numpy(x) for x in session.run(None, {name: batch[name].numpy() for name in names})]
    mask = truth.batch["attention_mask"].bool()
    kept = [x[mask] if x.shape[:2] == mask.shape else x for x in outputs[: len(truth.outputs)]]
    error = difference(kept, truth.outputs)
    return "" if error <= limit else f"the graph's outputs differ by {error:.2g}"


def comparison_fault(checkpoint: Checkpoint, truth: Truth, work: Path, limit: float) -> str:
    scores = json.loads((work / "out/comparison.json").read_text())["models"][0]["scores"]
    if checkpoint.library == "SentenceTransformer":
        error = difference([embeddings(work / "model", truth)], [torch.nn.functional.normalize(truth.library)])
        return "" if error <= limit else f"embeddings differ by {error:.2g}"
    if checkpoint.head == "ForSequenceClassification":
        return score_fault(checkpoint, truth, scores, limit)
    value = scores.get("accuracy", scores.get("exact_match"))
    return "" if value in (1, 100) else f"other predictions than the truth: {scores}"


def embeddings(directory: Path, truth: Truth) -> Tensor:
    """Returns the embeddings that `fixedbert compare` computes."""
    from fixedbert.comparison.candidates import load_candidates

    (candidate,) = load_candidates(str(directory), "")
    tokenizer, settings = candidate.model.tokenizer, candidate.model.settings
    encoded = tokenizer([settings.prompt + row[0] for row in truth.texts], truncation=True)
    candidate.features = [[dict(zip(encoded, row, strict=True))] for row in zip(*encoded.values(), strict=True)]
    with torch.inference_mode():
        return candidate.timed(range(len(truth.texts)))[0][0].values


def score_fault(checkpoint: Checkpoint, truth: Truth, scores: dict, limit: float) -> str:
    """Returns what is wrong with the scores of a model whose labels are the truth, or ""."""
    logits = truth.outputs[0]
    if logits.shape[1] == 1:
        error = scores["mse"] ** 0.5 / max(1, float(logits.abs().max()))
        return "" if error <= limit else f"scores differ by {error:.2g}"
    if checkpoint.kind == "labels":
        is_clear = logits.abs().min() > 10 * limit
        name = "exact_match"
    else:
        best = logits.topk(2).values
        is_clear = (best[:, 0] - best[:, 1]).min() > 10 * limit
        name = "accuracy"
    return f"not the predictions of the truth: {scores}" if is_clear and scores[name] != 1 else ""


def glue_fault(checkpoint: Checkpoint, truth: Truth, out: Path, limit: float) -> str:
    with (out / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    logits = truth.outputs[0]
    if logits.shape[1] == 1:
        values, right = torch.tensor([[float(row["prediction"])] for row in rows]), logits
    else:
        names = [f"probability_{checkpoint.fields['id2label'][index]}" for index in range(logits.shape[1])]
        values = torch.tensor([[float(row[name]) for name in names] for row in rows])
        right = logits.sigmoid() if checkpoint.kind == "labels" else logits.softmax(-1)
    if not (error := difference([values], [right])) <= limit:
        return f"predictions differ by {error:.2g}"
    results = json.loads((out / "all_results.json").read_text())
    return score_fault(checkpoint, truth, {name.removeprefix("eval_"): x for name, x in results.items()}, limit)


# --- A case ---


def trial(number: int, rng: random.Random, work: Path) -> Trial:
    checkpoint, directory = damaged.draw(rng), work / "model"
    tokenizer = made.make_tokenizer(checkpoint.tokenizer, checkpoint.family, TEXTS, checkpoint.added)
    model = made.make_model(checkpoint, tokenizer, rng.randrange(10**6))
    made.write(checkpoint, model, tokenizer, directory)
    truth = truth_of(checkpoint, model, directory, rng)
    if checkpoint.damage:
        damaged.damage(checkpoint, directory, rng)
    others = {
        "compare": 4,
        "squad" if checkpoint.head == "ForQuestionAnswering" else "glue": 2,
        "shrink": 1,
        "export": 0.2,
    }
    names = ["convert", *rng.choices([*others], [*others.values()])][: 1 + (rng.random() < 0.8)]
    lines, outcomes = [], []
    for name in names:
        line = LINES[name](checkpoint, truth, work, rng)
        lines.append(f"fixedbert {line}")
        ending = in_child(lambda line=line: command(line.split()), work)
        outcomes.append(f"{name} {ending.outcome}")
        if fault := judge(checkpoint, truth, work, line, ending):
            return Trial(f"{checkpoint}\n" + "\n".join(lines), f"{name} faulty", f"{name}: {fault}")
        (work / "out").exists() and (work / "out").rename(work / f"{name}-out")
    return Trial(f"{checkpoint}\n" + "\n".join(lines), ", ".join(outcomes))


def judge(checkpoint: Checkpoint, truth: Truth, work: Path, line: str, ending: Ending) -> str:
    """Returns what is wrong with a command, or ""."""
    name = line.split()[0]
    right = expected(checkpoint, name)
    if checkpoint.damage == "another head" and right == "refused" and name == "glue":
        right = "success" if checkpoint.head == "ForSequenceClassification" else right
    if "--bert" in line and right == "success":
        right = "either"  # not all heads fit
    if "qk_norm" in checkpoint.fields and "--attention_head_size" in line:
        right = "refused"
    if ending.is_fault:
        return f"{ending.outcome}: {ending.details}"
    if ending.outcome == "refused":
        message = str(ending.details)
        if right == "success":
            return f"a valid checkpoint was refused: {message}"
        if (work / "out").exists():
            return f"refused, but there is an output directory: {message}"
        return f"unclear message: {message}" if RAW.search(message) or not message.endswith(".") else ""
    if right == "refused":
        return "succeeded, but should be refused"
    try:
        return fault_of(checkpoint, truth, work, line)
    except Exception as error:  # the output does not load
        return f"the output cannot be used: {type(error).__name__}: {error}"
