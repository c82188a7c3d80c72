"""
python -m benchmarks.task_models DIR --minilm MODEL [--models reranker embeddings tagger]

Makes the models and rows that `benchmarks.tasks` measures. Trains a reranker on pairs of QQP and a tagger on sentences
from Wikipedia, both from MODEL, a directory with all-MiniLM-L6-v2. The environment variable FIXEDBERT_DATA must be set
to a directory with glue/ and wikipedia/. Writes DIR/reranker, DIR/tagger and the files in DIR/data. The same command
resumes interrupted training. tasks.md in this directory describes the files.
"""

import argparse
import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import datasets
import pyarrow.parquet
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from benchmarks import entities, question_pairs
from benchmarks.paired import data_directory
from fixedbert.data.sentences import split_document
from fixedbert.support.files import to_csv
from fixedbert.support.machine import has_bf16
from fixedbert.tasks.texts import load_task

LENGTH = 64  # tokens in a training row of the reranker
TEXT_LENGTHS = range(20, 200)  # characters of a sentence in the files for embeddings


def write_csv(file: Path, rows: Sequence[dict]):
    file.write_text(to_csv([rows[0], *(row.values() for row in rows)]), encoding="utf-8")


def write_lines(file: Path, rows: Iterable[dict]):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def training_options(output_dir: Path, rate: float) -> dict:
    """Returns the arguments for a Trainer that saves every 50 steps."""
    return {
        "output_dir": str(output_dir),
        "num_train_epochs": 1,
        "per_device_train_batch_size": 32,
        "learning_rate": rate,
        "warmup_steps": 0.1,
        "bf16": has_bf16(use_cpu=True),
        "use_cpu": True,
        "save_steps": 50,
        "save_total_limit": 1,
        "logging_steps": 25,
        "report_to": "none",
        "seed": 1,
    }


def train(trainer: Trainer):
    """Trains, or resumes an interrupted training."""
    directory = Path(trainer.args.output_dir)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(directory)) if directory.is_dir() else None)


# Reranker


def make_reranker(arguments: argparse.Namespace):
    """Writes rerank_train.csv and rerank_dev.csv, and trains sentence-transformers' CrossEncoder on labeled pairs."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    data = arguments.output_dir / "data"
    training, validation = question_pairs.load_pairs(str(data_directory() / "glue"))
    write_csv(data / "rerank_dev.csv", question_pairs.candidates(validation, arguments.queries, 20, seed=1))
    write_csv(data / "rerank_train.csv", question_pairs.candidates(training, 1125, 20, seed=1))
    rows = question_pairs.training_pairs(training, arguments.pairs, seed=1)
    set_seed(1)
    model = CrossEncoder(arguments.minilm, num_labels=1, max_length=LENGTH, device="cpu")
    trainer = CrossEncoderTrainer(
        model=model,
        args=CrossEncoderTrainingArguments(**training_options(arguments.output_dir / "reranker-training", 5e-5)),
        train_dataset=datasets.Dataset.from_list([{**row, "label": float(row["label"])} for row in rows]),
        loss=BinaryCrossEntropyLoss(model),
    )
    train(trainer)
    model.save_pretrained(str(arguments.output_dir / "reranker"))


# Embeddings


def wikipedia() -> Iterator[tuple[str, str]]:
    """Yields the title and the text of each article."""
    for file in sorted((data_directory() / "wikipedia").glob("*.parquet")):
        table = pyarrow.parquet.read_table(file, columns=["title", "text"])
        yield from zip(table["title"].to_pylist(), table["text"].to_pylist(), strict=True)


def distinct(texts: Iterable[str], excluded: set[str], count: int, seed: int) -> list[str]:
    """Draws at most `count` different texts of usual length that are not excluded."""
    texts = map(str.strip, texts)
    usual = {text for text in texts if len(text) in TEXT_LENGTHS and question_pairs.words_of(text) not in excluded}
    return random.Random(seed).sample(sorted(usual), min(count, len(usual)))


def texts_in(rows: Iterable[dict]) -> list[str]:
    """Returns both texts of each row."""
    return [text for row in rows for text in (row["sentence1"], row["sentence2"])]


def write_texts(file: Path, texts: Iterable[str]):
    write_csv(file, [{"text": text} for text in texts])


def make_embeddings(arguments: argparse.Namespace):
    """Writes sts_dev.csv, sentences_train.csv, neighbors.csv and unlabeled.csv. The model is MiniLM itself."""
    data, glue = arguments.output_dir / "data", str(data_directory() / "glue")
    scored = load_task("stsb", glue).splits
    columns = ("sentence1", "sentence2", "label")
    write_csv(data / "sts_dev.csv", [{name: row[name] for name in columns} for row in scored["validation"]])
    training, validation = question_pairs.load_pairs(glue)
    articles = [split_document(text) for _, text in itertools.islice(wikipedia(), 2000)]
    evaluated = distinct(question_pairs.question_texts(validation), set(), 1500, seed=1)
    evaluated += distinct(itertools.chain(*articles[:500]), set(), 1500, seed=1)
    write_texts(data / "neighbors.csv", evaluated)
    excluded = {question_pairs.words_of(text) for text in [*evaluated, *texts_in(scored["validation"])]}
    write_texts(data / "sentences_train.csv", distinct(texts_in(scored["train"]), excluded, 12_000, seed=1))
    sources = (
        question_pairs.question_texts(training),
        load_task("sst2", glue, ("train",)).splits["train"]["sentence1"],
        texts_in(load_task("mnli", glue, ("train",)).splits["train"]),
        itertools.chain(*articles[500:]),
    )
    texts = [text for source in sources for text in distinct(source, excluded, arguments.texts // 4, seed=1)]
    random.Random(1).shuffle(texts)
    write_texts(data / "unlabeled.csv", texts)


# Tagger


def make_tagger(arguments: argparse.Namespace):
    """Writes tags_train.jsonl and tags_dev.jsonl, and trains a tagger on the first."""
    training, validation = entities.tagged_sentences([*wikipedia()], arguments.sentences)
    for name, rows in (("train", training), ("dev", validation)):
        write_lines(arguments.output_dir / "data" / f"tags_{name}.jsonl", rows)
    tokenizer = AutoTokenizer.from_pretrained(arguments.minilm)
    names = ["O", *sorted({tag for row in training for tag in row["ner_tags"]} - {"O"})]
    ids = {name: number for number, name in enumerate(names)}

    def encode(row: dict) -> dict:
        encoded = tokenizer(row["tokens"], is_split_into_words=True, truncation=True, max_length=128)
        words = encoded.word_ids()
        starts = [word is not None and word != before for before, word in zip([None, *words], words, strict=False)]
        pairs = zip(words, starts, strict=True)
        return {**encoded, "labels": [ids[row["ner_tags"][word]] if is_start else -100 for word, is_start in pairs]}

    set_seed(1)
    options = {"num_labels": len(names), "id2label": dict(enumerate(names)), "label2id": ids}
    trainer = Trainer(
        model=AutoModelForTokenClassification.from_pretrained(arguments.minilm, **options),
        args=TrainingArguments(
            **training_options(arguments.output_dir / "tagger-training", 1e-4)
            | {"num_train_epochs": 2, "train_sampling_strategy": "group_by_length"}
        ),
        train_dataset=[encode(row) for row in training],
        data_collator=DataCollatorForTokenClassification(tokenizer),
        processing_class=tokenizer,
    )
    train(trainer)
    trainer.save_model(str(arguments.output_dir / "tagger"))


MAKERS: dict[str, Callable[[argparse.Namespace], None]] = {
    "reranker": make_reranker,
    "embeddings": make_embeddings,
    "tagger": make_tagger,
}


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.task_models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("output_dir", type=Path, metavar="DIR", help="directory for the models and the rows")
    parser.add_argument("--minilm", required=True, help="directory with all-MiniLM-L6-v2")
    parser.add_argument("--models", nargs="+", choices=MAKERS, default=[*MAKERS], help="default: all")
    for name, count in {"pairs": 20_000, "queries": 300, "texts": 60_000, "sentences": 6000}.items():
        parser.add_argument(f"--{name}", type=int, default=count, help="maximum number (default: %(default)s)")
    arguments = parser.parse_args()
    (arguments.output_dir / "data").mkdir(parents=True, exist_ok=True)
    for name in arguments.models:
        MAKERS[name](arguments)


if __name__ == "__main__":
    main()
