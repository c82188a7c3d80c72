"""Tiny models and data for fine-tuning: all GLUE tasks, and questions with answers."""

import json
import random
from pathlib import Path

import torch
from transformers import BertTokenizer

import fixedbert
from fixedbert.tasks.glue import TASKS
from helpers.outputs import results
from run_glue import main as run_glue
from run_squad import main as run_squad

WORDS = "the a function takes returns list string file read write what does one two three four five six".split()
QUICK = ("--use_cpu", "--bf16", "false", "--disable_tqdm", "true", "--save_strategy", "no")


def write_model(directory: str, vocabulary: str):
    """Saves a tiny pretrained model without dropout, with its tokenizer."""
    tokenizer = BertTokenizer(vocab=vocabulary)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 5, "attention_head_size": 6}
    shape |= {"intermediate_size": 37, "max_position_embeddings": 128, "vocab_size": len(tokenizer)}
    no_dropout = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    config = fixedbert.FixedHeadBertConfig(**shape, **no_dropout, initializer_range=0.2)
    fixedbert.FixedHeadBertForPreTraining(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def write_download(directory: Path):
    """Writes all tasks in the format of the GLUE download, each with 23 training, 13 validation and 7 test rows."""
    rng = random.Random(0)

    def text():
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))

    for task in TASKS.values():
        (directory / task.folder).mkdir()
        labels = [str(n) for n in range(len(task.labels))] if task.numbered else task.labels or ("0.5", "2.25", "4")
        for split, file in task.files.items():
            test = split.startswith("test")
            columns = (("index",) if test else (task.label,)) + task.file_texts
            header = columns
            if task.header and not test:
                columns, header = task.header, None
            lines = ["\t".join(header)] if header else []
            for number in range({"train": 23, "test": 7}.get(split.split("_")[0], 13)):
                values = {task.label: labels[number % len(labels)], "index": str(100 + number)}
                lines.append(
                    "\t".join(text() if column in task.file_texts else values.get(column, "") for column in columns)
                )
            (directory / task.folder / file).write_text("\n".join(lines) + "\n")


def write_questions(file: Path):
    """Writes 31 questions. A third have no answer, and some contexts are longer than one window."""
    rng = random.Random(0)
    rows = []
    for number in range(31):
        words = rng.choices(WORDS, k=rng.randint(3, 40))
        context, index = " ".join(words), rng.randrange(len(words))
        start = len(" ".join(words[:index])) + (index > 0)
        answers = {"text": [words[index]], "answer_start": [start]} if number % 3 else {"text": [], "answer_start": []}
        rows.append(
            {"id": f"q{number}", "context": context, "question": " ".join(rng.choices(WORDS, k=4)), "answers": answers}
        )
    file.write_text("\n".join(map(json.dumps, rows)))


def glue(model, download, output, *more, task="rte"):
    """Fine-tunes on GLUE tasks and returns the metrics of a single run, or None."""
    run_glue(glue_arguments(model, download, output, *more, task=task))
    return results(output) if (output / "all_results.json").exists() else None


def glue_arguments(model, download, output, *more, task="rte"):
    tasks = ("--task_name", *task.split(), "--data_dir", download)
    return ["--model_name_or_path", model, *tasks, *QUICK, "--output_dir", str(output), *more]


def squad(model, questions, output, *more):
    """Fine-tunes on questions and returns the metrics of a single run, or None."""
    files = [word for kind in ("train", "validation", "test") for word in (f"--{kind}_file", questions)]
    size = ("--max_seq_length", "32", "--doc_stride", "8", "--version_2_with_negative")
    run_squad(["--model_name_or_path", model, *files, *size, *QUICK, "--output_dir", str(output), *more])
    return results(output) if (output / "all_results.json").exists() else None
