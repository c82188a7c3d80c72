"""
python -m benchmarks.conversion [--sentence_model DIR]

Memory and time of converting a checkpoint as large as BERT-large. With --sentence_model, how far the embeddings of
1,000 sentences of Wikipedia move when a sentence-transformers model is converted, which needs FIXEDBERT_DATA.
README.md in this folder says how to read it.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet
import transformers
from transformers import BertConfig, BertForPreTraining

from benchmarks.machine import description
from fixedbert import convert
from fixedbert.conversion.checkpoints import load_bert
from fixedbert.conversion.convert import check_same_function
from fixedbert.data.sentences import split_document

HEAD_SIZE = 128
SENTENCES = 1000
SIZES = ({"attention_head_size": 64}, {"attention_head_size": 128}, {"num_attention_heads": 16})


def timed(work: Callable) -> tuple[float, object]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def read_whole(folder: Path) -> BertForPreTraining:
    """The model with every page of its file in memory, which load_bert leaves to the first use."""
    model = load_bert(folder)
    for parameter in model.parameters():
        parameter.detach().view(-1)[::1024].sum()
    return model


def measure_large(folder: Path):
    """The whole command in a process of its own, then its parts one by one, and copies of the two files."""
    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    BertForPreTraining(config).save_pretrained(folder / "large")
    size = (folder / "large" / "model.safetensors").stat().st_size
    print(f"BERT-large with both heads of pretraining, {size / 1e9:.2f} GB, to heads of {HEAD_SIZE}:")

    command = [
        sys.executable,
        "-m",
        "fixedbert",
        "convert",
        str(folder / "large"),
        "--output_dir",
        str(folder / "wide"),
    ]
    command += ["--attention_head_size", str(HEAD_SIZE)]
    whole, _ = timed(lambda: subprocess.run(command, check=True, capture_output=True))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    written = folder / "wide" / "model.safetensors"
    print(f"  peak memory of the process        {peak / 1e9:6.2f} GB, {peak / size:.2f} times its size (target: 3)")
    print(f"  the command                       {whole:6.1f} s, of which")
    start = [sys.executable, "-c", "import fixedbert.conversion.convert"]
    imports, _ = timed(lambda: subprocess.run(start, check=True))
    print(f"    importing torch, transformers   {imports:6.1f} s")
    reading, model = timed(lambda: read_whole(folder / "large"))
    print(f"    reading                         {reading:6.1f} s")
    converting, converted = timed(lambda: convert(model, attention_head_size=HEAD_SIZE))
    print(f"    converting                      {converting:6.1f} s")
    checking, _ = timed(lambda: check_same_function(model, converted))
    print(f"    running both on two short texts {checking:6.1f} s")
    writing, _ = timed(lambda: converted.save_pretrained(folder / "again"))
    print(f"    writing {written.stat().st_size / 1e9:.2f} GB                 {writing:6.1f} s")
    disk = reading + writing
    print(f"  reading and writing are {disk / (disk + converting + checking):.0%} of what is done after the imports")

    def copy_files():
        for file in (folder / "large" / "model.safetensors", written):
            shutil.copyfile(file, folder / "copy")
        os.sync()

    print(f"  copying both files, to the disk   {timed(copy_files)[0]:6.1f} s")


def real_sentences() -> list[str]:
    if "FIXEDBERT_DATA" not in os.environ:
        sys.exit("error: FIXEDBERT_DATA does not say where wikipedia/ is.")
    files = sorted((Path(os.environ["FIXEDBERT_DATA"]) / "wikipedia").glob("*.parquet"))
    texts = (text for file in files for text in pyarrow.parquet.read_table(file, columns=["text"])["text"].to_pylist())
    return list(islice((sentence for text in texts for sentence in split_document(text)[0]), SENTENCES))


def measure_embeddings(source: str, folder: Path):
    from sentence_transformers import SentenceTransformer

    sentences = real_sentences()
    expected = SentenceTransformer(source, device="cpu").encode(sentences)
    norms = np.linalg.norm(expected, axis=1)
    print(f"\n{SENTENCES:,} sentences of Wikipedia, {expected.shape[1]} numbers each, norm {norms.mean():.3f}:")
    for sizes in SIZES:
        name = "-".join(f"{key}-{value}" for key, value in sizes.items())
        convert(source, folder / name, **sizes)
        found = SentenceTransformer(str(folder / name), device="cpu").encode(sentences)
        cosine = ((found * expected).sum(1) / norms / np.linalg.norm(found, axis=1)).min()
        print(f"    largest difference of a number {np.abs(found - expected).max():.1e}, lowest cosine {cosine:.7f}")


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conversion", description=__doc__)
    parser.add_argument("--sentence_model", help="directory of a sentence-transformers model that is a BERT")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    print(description())
    with tempfile.TemporaryDirectory() as folder:
        measure_large(Path(folder))
        if arguments.sentence_model:
            measure_embeddings(arguments.sentence_model, Path(folder))


if __name__ == "__main__":
    main()
