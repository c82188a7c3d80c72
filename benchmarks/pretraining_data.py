"""
python -m benchmarks.pretraining_data

Preparing a corpus beside `datasets.map`, making batches beside a training step, starting a run on a prepared store.
README.md in this folder says how to read the table. Needs FIXEDBERT_DATA with wikipedia/, books/ and vocab/.
"""

import argparse
import importlib
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import datasets
import psutil
import torch
import transformers
from tqdm import tqdm
from transformers import BertTokenizer

import fixedbert
from fixedbert.data.collator import PretrainingCollator
from fixedbert.data.corpora import Corpus
from fixedbert.data.examples import EpochSampler, PackedExamples, split_documents, tokens_inside_words
from fixedbert.data.segment_pairs import PairExamples
from fixedbert.data.store import Documents, prepare_store
from fixedbert.presets import preset_config
from fixedbert.training.speed import keep_freed_memory, use_fast_dropout

ROOT = Path(__file__).parents[1]
PROCESSES = 2
ROW = "{:<66} {:>14} {:>14} {:>18} {:>12}"


def real_data() -> Path:
    if "FIXEDBERT_DATA" not in os.environ:
        sys.exit("error: FIXEDBERT_DATA does not say where wikipedia/, books/ and vocab/ are.")
    return Path(os.environ["FIXEDBERT_DATA"])


def real_tokenizer() -> BertTokenizer:
    return BertTokenizer(vocab=str(next((real_data() / "vocab").glob("*.txt"))))


def real_files(share: float) -> dict[str, list[str]]:
    """Every second file where half of the corpus is asked for."""
    step = round(1 / share)
    return {
        name: sorted(map(str, (real_data() / name).glob(pattern)))[::step]
        for name, pattern in (("wikipedia", "*.parquet"), ("books", "*.txt"))
    }


def prepare(folder: str, share: float) -> int:
    """fixedbert: sentences, tokens, duplicates; gives the number of tokens."""
    corpora = [Corpus(file) for files in real_files(share).values() for file in files]
    documents = prepare_store(corpora, real_tokenizer(), "en", PROCESSES, folder)
    return documents.description["counts"]["tokens"]


def tokenize_with_datasets(folder: str, share: float) -> int:
    """`datasets.map` with the same tokenizer, documents whole, as transformers' run_mlm.py tokenizes."""
    tokenizer, options = real_tokenizer(), {"split": "train", "cache_dir": folder}
    files = real_files(share)
    corpus = datasets.concatenate_datasets(
        [
            datasets.load_dataset("parquet", data_files=files["wikipedia"], **options).select_columns("text"),
            datasets.load_dataset(
                "text", data_files=files["books"], sample_by="document", encoding="utf-8-sig", **options
            ),
        ]
    )
    tokenized = corpus.map(
        tokenize_batch,
        fn_kwargs={"tokenizer": tokenizer},
        batched=True,
        batch_size=32,
        writer_batch_size=32,
        num_proc=PROCESSES,
        remove_columns="text",
        cache_file_name=f"{folder}/tokenized.arrow",
    )
    return sum(len(chunk.values) for chunk in tokenized.data.column("input_ids").chunks)


def tokenize_batch(batch: dict, tokenizer: BertTokenizer) -> dict:
    return tokenizer(batch["text"], add_special_tokens=False, verbose=False)


def in_its_own_process(work: Callable, share: float) -> tuple[float, int, int]:
    """Seconds, tokens, and the peak memory of the process and its children, each shared page counted once (PSS)."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=report_to, args=(theirs, work.__name__, folder, share))
        process.start()
        theirs.close()  # so that nobody waits for a process that has ended
        assert ours.recv() == "ready"
        peak, done = [0], threading.Event()
        watch = threading.Thread(target=watch_memory, args=(process.pid, peak, done))
        watch.start()
        ours.send("go")
        seconds, tokens = ours.recv()
        done.set()
        watch.join()
        process.join()
    return seconds, tokens, peak[0]


def report_to(pipe, work: str, folder: str, share: float):
    datasets.disable_progress_bars()
    work = getattr(importlib.import_module("benchmarks.pretraining_data"), work)  # whose functions can be pickled
    pipe.send("ready")
    pipe.recv()
    began = time.perf_counter()
    tokens = work(folder, share)
    pipe.send((time.perf_counter() - began, tokens))


def watch_memory(pid: int, peak: list[int], done: threading.Event):
    while not done.wait(0.2):
        total = 0
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            try:
                total += process.memory_full_info().pss
            except psutil.Error:  # it has ended
                pass
        peak[0] = max(peak[0], total)


def preparing(rounds: int, progress: tqdm):
    results = {work: [] for work in (tokenize_with_datasets, prepare)}
    for turn in range(rounds):
        for work in list(results) if turn % 2 == 0 else reversed(results):
            results[work].append(in_its_own_process(work, 1.0))
            progress.update()
    half = in_its_own_process(prepare, 0.5)
    progress.update()
    theirs, ours = results.values()
    speeds = [[tokens / seconds for seconds, tokens, _ in side] for side in (theirs, ours)]
    ratios = sorted(one / other for other, one in zip(*speeds, strict=True))
    spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    medians = (f"{statistics.median(side):,.0f}/s" for side in speeds)
    tqdm.write(ROW.format(f"preparing {ours[0][1]:,} tokens, {PROCESSES} processes", *medians, spread, ">= 1.0"))
    peaks = [max(memory for *_, memory in side) / 2**30 for side in (theirs, ours)]
    ratio = f"{peaks[1] / peaks[0]:.2f}"
    tqdm.write(ROW.format("  peak memory", *(f"{peak:.2f} GiB" for peak in peaks), ratio, "<= 1.5 GB"))
    tqdm.write(
        ROW.format(f"  peak memory, half ({half[1]:,} tokens)", "", f"{half[2] / 2**30:.2f} GiB", "", "the same")
    )


def batches_per_second(examples, count: int, workers: int = 1) -> float:
    """Real tokens per second of a loader, after its first batches."""
    loader = torch.utils.data.DataLoader(
        examples,
        batch_size=32,
        sampler=EpochSampler(examples),
        collate_fn=PretrainingCollator(0),
        num_workers=workers,
    )
    tokens, began = 0, None
    for number, batch in enumerate(loader):
        if number == 20:
            began, tokens = time.perf_counter(), 0
        tokens += int(batch["attention_mask"].sum())
        if number == count:
            return tokens / (time.perf_counter() - began)
    raise ValueError(f"the corpus has fewer than {count} batches")


def training_step(examples, count: int) -> float:
    """Real tokens per second that the tiny preset, with the real vocabulary, trains on."""
    model = transformers.AutoModelForPreTraining.from_config(
        preset_config("tiny", vocab_size=30522, sparse_prediction=True, unpad_inputs=True)
    )
    use_fast_dropout(model)
    keep_freed_memory(torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    order = iter(EpochSampler(examples))
    tokens, began = 0, None
    for number in range(count):
        batch = PretrainingCollator(0)([examples[next(order)] for _ in range(32)])
        if number == 5:
            began = time.perf_counter()
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if began:
            tokens += int(batch["attention_mask"].sum())
    return tokens / (time.perf_counter() - began)


def making_batches(documents: Documents, progress: tqdm):
    tokenizer = real_tokenizer()
    numbers, _ = split_documents(documents, 0.05)
    pairs = PairExamples(documents, numbers, tokenizer)
    step = training_step(pairs, 30)
    progress.update()
    kinds = {
        "pairs, masked": pairs,
        "pairs, whole words masked": PairExamples(
            documents, numbers, tokenizer, inside_word=tokens_inside_words(tokenizer)
        ),
        "packed rows, masked": PackedExamples(documents, numbers, tokenizer),
        "packed rows for causal LM": PackedExamples(documents, numbers, tokenizer, objective="clm"),
    }
    for name, examples in kinds.items():
        speed = batches_per_second(examples, 500)
        progress.update()
        target = ">= 10, 300,000/s" if name == "pairs, masked" else ""
        title = f"batches of {name}, one worker, beside a step of tiny"
        tqdm.write(ROW.format(title, f"{step:,.0f}/s", f"{speed:,.0f}/s", f"{speed / step:.1f}", target))


START = """
import os, sys, time
from fixedbert.pretraining import pretrain
from transformers import TrainerCallback

class FirstStep(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        print("first step", flush=True)
        os._exit(0)

def train(trainer, checkpoint):
    trainer.add_callback(FirstStep())
    trainer.train()

pretrain.train = train
pretrain.main(sys.argv[1:])
"""


def starting(folder: str, progress: tqdm):
    """Seconds from the command to the end of the first step, with and without the plan of the first epoch."""
    data = real_data()
    arguments = ["--config_name", "tiny", "--do_train", "--use_cpu", "--store_dir", folder, "--max_steps", "2"]
    arguments += ["--per_device_train_batch_size", "32", "--tokenizer_name", str(next((data / "vocab").glob("*.txt")))]
    files = [file for group in real_files(1.0).values() for file in group]
    for title in ("the epoch's pairs not yet planned", "everything there"):
        with tempfile.TemporaryDirectory() as output:
            began = time.perf_counter()
            command = [
                sys.executable,
                "-c",
                START,
                *arguments,
                "--output_dir",
                f"{output}/run",
                "--train_file",
                *files,
            ]
            subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
            seconds = time.perf_counter() - began
        progress.update()
        title = f"from the command to the first step, {title}"
        tqdm.write(ROW.format(title, "", f"{seconds:.1f} s", "", "< 15 s"))


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretraining_data", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="of preparing, each side (default: %(default)s)")
    arguments = parser.parse_args()
    real_data()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as in the processes of datasets.map
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}, datasets {datasets.__version__}, fixedbert {fixedbert.__version__}\n"
    )
    print(ROW.format("work (tokens a second)", "beside", "fixedbert", "ratio (range)", "target"))
    with (
        tqdm(total=2 * arguments.rounds + 9, unit="part", leave=False) as progress,
        tempfile.TemporaryDirectory() as d,
    ):
        preparing(arguments.rounds, progress)
        prepare(d, 1.0)
        progress.update()
        documents = Documents(next(path for path in Path(d).iterdir() if path.is_dir()))
        starting(d, progress)
        making_batches(documents, progress)


if __name__ == "__main__":
    main()
