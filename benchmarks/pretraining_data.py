"""
python -m benchmarks.pretraining_data

Compares the speed and memory of fixedbert and `datasets.map` when they prepare a corpus, and the speed of the data
loader with that of training steps. text_and_models.md in this directory explains the table. The environment variable
FIXEDBERT_DATA must be set to a directory with wikipedia/, books/ and vocab/.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time

import datasets
import psutil
import torch
import transformers
from tqdm import tqdm
from transformers import BertTokenizer

from benchmarks.paired import data_directory, description, in_a_process, ratio
from fixedbert.data.collator import PretrainingCollator
from fixedbert.data.corpora import Corpus
from fixedbert.data.examples import EpochSampler, PackedExamples, split_documents
from fixedbert.data.segment_pairs import PairExamples
from fixedbert.data.store import prepare_store
from fixedbert.presets import preset_config
from fixedbert.training.speed import keep_freed_memory, use_fast_dropout

PROCESSES = 2
ROW = "{:<58} {:>14} {:>14} {:>18} {:>12}".format


def load_vocabulary() -> BertTokenizer:
    return BertTokenizer(vocab=str(next((data_directory() / "vocab").glob("*.txt"))))


def text_files() -> dict[str, list[str]]:
    """Returns the files of both corpora."""
    return {
        name: sorted(map(str, (data_directory() / name).glob(pattern)))
        for name, pattern in (("wikipedia", "*.parquet"), ("books", "*.txt"))
    }


def prepare(directory: str):
    """Prepares fixedbert's store: splits documents into sentences, tokenizes them and removes duplicates."""
    corpora = [Corpus(file) for files in text_files().values() for file in files]
    return prepare_store(corpora, load_vocabulary(), "en", PROCESSES, directory)


def prepare_and_count(directory: str) -> int:
    return prepare(directory).description["counts"]["tokens"]


def map_and_count(directory: str) -> int:
    """Tokenizes entire documents with `datasets.map`, like run_mlm.py in transformers, and returns the token count."""
    options, files = {"split": "train", "cache_dir": directory}, text_files()
    wikipedia = datasets.load_dataset("parquet", data_files=files["wikipedia"], **options).select_columns("text")
    options |= {"sample_by": "document", "encoding": "utf-8-sig"}
    corpus = datasets.concatenate_datasets(
        [wikipedia, datasets.load_dataset("text", data_files=files["books"], **options)]
    )
    tokenized = corpus.map(
        tokenize_batch, fn_kwargs={"tokenizer": load_vocabulary()}, batched=True, batch_size=32, writer_batch_size=32,
        num_proc=PROCESSES, remove_columns="text", cache_file_name=f"{directory}/tokenized.arrow",
    )  # fmt: skip
    return sum(len(chunk.values) for chunk in tokenized.data.column("input_ids").chunks)


def tokenize_batch(batch: dict, tokenizer: BertTokenizer) -> dict:
    return tokenizer(batch["text"], add_special_tokens=False, verbose=False)


def measure_speed(work) -> tuple[float, int]:
    """Returns the speed of `work` in tokens per second, and the token count."""
    with tempfile.TemporaryDirectory() as directory:
        began = time.perf_counter()
        tokens = work(directory)
        return tokens / (time.perf_counter() - began), tokens


def measure_speed_and_memory(work) -> tuple[float, int, float]:
    """Runs `work` in a new process. Returns its speed, token count and peak memory in GiB, including its children."""
    peak, done = 0, threading.Event()

    def watch():
        nonlocal peak
        while not done.wait(0.2):
            total = 0
            for process in psutil.Process().children(recursive=True):
                try:
                    total += process.memory_full_info().pss  # shared pages count once
                except psutil.Error:  # the process has ended
                    pass
            peak = max(peak, total)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return *in_a_process(measure_speed, work), peak / 2**30
    finally:
        done.set()
        watcher.join()


def print_preparation(rounds: int):
    results = {work: [] for work in (map_and_count, prepare_and_count)}
    for index in range(rounds):
        for work in list(results) if index % 2 else reversed(results):
            results[work].append(measure_speed_and_memory(work))
    ours, theirs = (list(zip(*results[work], strict=True)) for work in (prepare_and_count, map_and_count))
    (speeds, (tokens, *_), peaks), (their_speeds, _, their_peaks) = ours, theirs
    medians = (f"{statistics.median(side):,.0f}/s" for side in (their_speeds, speeds))
    title = f"preparing {tokens:,} tokens, {PROCESSES} processes"
    tqdm.write(ROW(title, *medians, ratio(speeds, their_speeds), ">= 1.0"))
    both = [max(side) for side in (their_peaks, peaks)]
    tqdm.write(ROW("  peak memory", *(f"{peak:.2f} GiB" for peak in both), f"{both[1] / both[0]:.2f}", "<= 1.5 GB"))


def loaded_tokens_per_second(examples, count: int) -> float:
    """Returns the non-padding tokens per second from one data loader worker, excluding the first 20 batches."""
    loader = torch.utils.data.DataLoader(
        examples, batch_size=32, sampler=EpochSampler(examples), collate_fn=PretrainingCollator(0), num_workers=1
    )
    tokens, began = 0, 0.0
    for index, batch in zip(range(count + 1), loader, strict=False):
        if index == 20:
            began, tokens = time.perf_counter(), 0
        tokens += int(batch["attention_mask"].sum())
    return tokens / (time.perf_counter() - began)


def trained_tokens_per_second(examples, count: int) -> float:
    """Returns the non-padding tokens per second when training the preset "tiny" with BERT's vocabulary."""
    config = preset_config("tiny", vocab_size=30522, sparse_prediction=True, unpad_inputs=True)
    model = transformers.AutoModelForPreTraining.from_config(config)
    use_fast_dropout(model)
    keep_freed_memory(torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    order = iter(EpochSampler(examples))
    tokens, began = 0, 0.0
    for index in range(count):
        batch = PretrainingCollator(0)([examples[next(order)] for _ in range(32)])
        if index == 5:
            began, tokens = time.perf_counter(), 0
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        tokens += int(batch["attention_mask"].sum())
    return tokens / (time.perf_counter() - began)


def print_batches(directory: str):
    documents, tokenizer = prepare(directory), load_vocabulary()
    numbers, _ = split_documents(documents, 0.05)
    pairs = PairExamples(documents, numbers, tokenizer)
    step_speed = trained_tokens_per_second(pairs, 30)
    datasets_by_title = {
        "pairs": pairs,
        "packed rows": PackedExamples(documents, numbers, tokenizer),
        "packed rows, causal LM": PackedExamples(documents, numbers, tokenizer, objective="clm"),
    }
    for name, examples in datasets_by_title.items():
        speed = loaded_tokens_per_second(examples, 500)
        target = ">= 10" if examples is pairs else ""
        title = f"batches of {name}, vs. training steps"
        tqdm.write(ROW(title, f"{step_speed:,.0f}/s", f"{speed:,.0f}/s", f"{speed / step_speed:.1f}", target))


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretraining_data", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="number of preparations per side (default: %(default)s)")
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # datasets.map also disables it in its processes
    print(f"{description()}, datasets {datasets.__version__}\n")
    print(ROW("work (tokens per second)", "baseline", "fixedbert", "ratio (range)", "target"))
    print_preparation(arguments.rounds)
    with tempfile.TemporaryDirectory() as directory:
        print_batches(directory)


if __name__ == "__main__":
    main()
