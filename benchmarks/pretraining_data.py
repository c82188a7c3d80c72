"""
python -m benchmarks.pretraining_data

Compares the preparation of a corpus with `datasets.map`, and batches with a training step. README.md in this directory
explains the table. Requires FIXEDBERT_DATA with wikipedia/, books/ and vocab/.
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
from fixedbert.data.masking import tokens_inside_words
from fixedbert.data.segment_pairs import PairExamples
from fixedbert.data.store import prepare_store
from fixedbert.presets import preset_config
from fixedbert.training.speed import keep_freed_memory, use_fast_dropout

PROCESSES = 2
ROW = "{:<58} {:>14} {:>14} {:>18} {:>12}".format


def load_vocabulary() -> BertTokenizer:
    return BertTokenizer(vocab=str(next((data_directory() / "vocab").glob("*.txt"))))


def text_files(step: int) -> dict[str, list[str]]:
    """Returns every file of the corpus, or every second one with a step of 2."""
    return {
        name: sorted(map(str, (data_directory() / name).glob(pattern)))[::step]
        for name, pattern in (("wikipedia", "*.parquet"), ("books", "*.txt"))
    }


def prepare(directory: str, step: int):
    """Prepares the store of fixedbert: sentences, tokens, no duplicates."""
    corpora = [Corpus(file) for files in text_files(step).values() for file in files]
    return prepare_store(corpora, load_vocabulary(), "en", PROCESSES, directory)


def count_prepared(directory: str, step: int) -> int:
    return prepare(directory, step).description["counts"]["tokens"]


def count_mapped(directory: str, step: int) -> int:
    """Tokenizes whole documents with `datasets.map`, as transformers' run_mlm.py does."""
    options, files = {"split": "train", "cache_dir": directory}, text_files(step)
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


def timed(work, step: int) -> tuple[float, int]:
    """Returns the speed of `work` in tokens per second, and the number of tokens."""
    with tempfile.TemporaryDirectory() as directory:
        began = time.perf_counter()
        tokens = work(directory, step)
        return tokens / (time.perf_counter() - began), tokens


def with_peak_memory(work, step: int) -> tuple[float, int, float]:
    """Returns speed, tokens and peak memory (GiB) of a new process and its children; shared pages count once."""
    peak, done = 0, threading.Event()

    def watch():
        nonlocal peak
        while not done.wait(0.2):
            total = 0
            for process in psutil.Process().children(recursive=True):
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:  # the process has ended
                    pass
            peak = max(peak, total)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return *in_a_process(timed, work, step), peak / 2**30
    finally:
        done.set()
        watcher.join()


def print_preparation(rounds: int):
    results = {work: [] for work in (count_mapped, count_prepared)}
    for number in range(rounds):
        for work in list(results) if number % 2 else reversed(results):
            results[work].append(with_peak_memory(work, 1))
    (their_speeds, _, their_peaks), (speeds, (tokens, *_), peaks) = (
        zip(*found, strict=True) for found in results.values()
    )
    medians = (f"{statistics.median(side):,.0f}/s" for side in (their_speeds, speeds))
    title = f"preparing {tokens:,} tokens, {PROCESSES} processes"
    tqdm.write(ROW(title, *medians, ratio(speeds, their_speeds), ">= 1.0"))
    both = [max(side) for side in (their_peaks, peaks)]
    tqdm.write(ROW("  peak memory", *(f"{peak:.2f} GiB" for peak in both), f"{both[1] / both[0]:.2f}", "<= 1.5 GB"))
    _, tokens, peak = with_peak_memory(count_prepared, 2)
    tqdm.write(ROW(f"  peak memory, half ({tokens:,} tokens)", "", f"{peak:.2f} GiB", "", "the same"))


def batches_per_second(examples, count: int) -> float:
    """Returns the real tokens per second that one worker delivers, after its first batches."""
    loader = torch.utils.data.DataLoader(
        examples, batch_size=32, sampler=EpochSampler(examples), collate_fn=PretrainingCollator(0), num_workers=1
    )
    tokens, began = 0, 0.0
    for number, batch in zip(range(count + 1), loader, strict=False):
        if number == 20:
            began, tokens = time.perf_counter(), 0
        tokens += int(batch["attention_mask"].sum())
    return tokens / (time.perf_counter() - began)


def steps_per_second(examples, count: int) -> float:
    """Returns the real tokens per second in training of the preset "tiny" with BERT's vocabulary."""
    config = preset_config("tiny", vocab_size=30522, sparse_prediction=True, unpad_inputs=True)
    model = transformers.AutoModelForPreTraining.from_config(config)
    use_fast_dropout(model)
    keep_freed_memory(torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    order = iter(EpochSampler(examples))
    tokens, began = 0, 0.0
    for number in range(count):
        batch = PretrainingCollator(0)([examples[next(order)] for _ in range(32)])
        if number == 5:
            began, tokens = time.perf_counter(), 0
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        tokens += int(batch["attention_mask"].sum())
    return tokens / (time.perf_counter() - began)


def print_batches(directory: str):
    documents, tokenizer = prepare(directory, 1), load_vocabulary()
    numbers, _ = split_documents(documents, 0.05)
    pairs = PairExamples(documents, numbers, tokenizer)
    whole_words = PairExamples(documents, numbers, tokenizer, inside_word=tokens_inside_words(tokenizer))
    step = steps_per_second(pairs, 30)
    kinds = {
        "pairs, masked": pairs,
        "pairs, whole words masked": whole_words,
        "packed rows, masked": PackedExamples(documents, numbers, tokenizer),
        "packed rows for causal LM": PackedExamples(documents, numbers, tokenizer, objective="clm"),
    }
    for name, examples in kinds.items():
        speed = batches_per_second(examples, 500)
        target = ">= 10" if examples is pairs else ""
        title = f"batches of {name}, against steps of tiny"
        tqdm.write(ROW(title, f"{step:,.0f}/s", f"{speed:,.0f}/s", f"{speed / step:.1f}", target))


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretraining_data", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="rounds of preparation (default: %(default)s)")
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as in the processes of datasets.map
    print(f"{description()}, datasets {datasets.__version__}\n")
    print(ROW("work (tokens per second)", "reference", "fixedbert", "ratio (range)", "target"))
    print_preparation(arguments.rounds)
    with tempfile.TemporaryDirectory() as directory:
        print_batches(directory)


if __name__ == "__main__":
    main()
