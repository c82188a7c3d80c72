"""A long run: memory, open files and throughput, each as a trend."""

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np

from .kills import PRETRAINING, PYTHON, REACTION, ROOT, Inputs, end, log_of, wait

WARM_UP = 0.2  # of the run, left out of the trends
EVERY = 5  # seconds between two looks
# By how much of its median each may change in an hour.
ALLOWED = {"memory (MiB)": (-np.inf, 0.03), "open files": (-np.inf, 0.0), "steps per second": (-0.1, np.inf)}


def watch(inputs: Inputs, minutes: float) -> int:
    """Pretrain for so long, print the trends, and give 1 if one is not flat."""
    words = [*PRETRAINING, "--save_total_limit", "2", "--use_cpu", "--disable_tqdm", "true", "--report_to", "none"]
    words += ["--output_dir", "out", "--max_steps", "100000000", "--save_steps", "500", "--logging_steps", "50"]
    words += ["--eval_strategy", "steps", "--eval_steps", "500"]
    where = inputs.folder / "flatness"
    shutil.rmtree(where, ignore_errors=True)
    log_of(where).unlink(missing_ok=True)
    run = inputs.start([*PYTHON, str(ROOT / "run_pretraining.py"), *words], where)
    began, seen = time.monotonic(), []
    while time.monotonic() - began < 60 * minutes and wait(run, EVERY) is None:
        steps = 50 * log_of(where).read_text(errors="replace").count("'grad_norm'")
        seen.append((time.monotonic() - began, *of_group(run.pid), steps))
    ended = run.poll()
    if ended is None:
        run.send_signal(signal.SIGTERM)
        wait(run, REACTION)
        end(run)
    if ended is not None or len(seen) < 20:
        print(f"the run ended by itself, or was not seen often enough: {log_of(where)}")
        return 1
    return report(np.array(seen))


def of_group(leader: int) -> tuple[float, int]:
    """MiB of memory that the processes of a group hold, and their open files."""
    memory = files = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) == leader:
                memory += int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                files += len(os.listdir(process / "fd"))
        except OSError:  # it has ended
            continue
    return memory / 2**20, files


def report(seen: np.ndarray) -> int:
    """Print the trends of rows of seconds, memory, open files, steps."""
    seconds, memory, files, steps = seen[seen[:, 0] > WARM_UP * seen[-1, 0]].T
    blocks = np.array_split(np.arange(len(seconds)), 10)
    middle = np.array([seconds[block].mean() for block in blocks])
    speed = np.array([np.polyfit(seconds[block], steps[block], 1)[0] for block in blocks])
    print(f"{len(seen):,} looks in {seen[-1, 0] / 60:.0f} minutes, of which {WARM_UP:.0%} are left out")
    curves = {"memory (MiB)": memory, "open files": files, "steps per second": speed}
    bad = 0
    for name, values in curves.items():
        times = middle if len(values) == len(middle) else seconds
        # Open files come and go with checkpoints: the tenths' medians say whether some stay open.
        by_tenth = values if times is middle else np.array([np.median(values[block]) for block in blocks])
        median = np.median(by_tenth)
        trend = 3600 * np.polyfit(middle, by_tenth, 1)[0] / median
        low, high = ALLOWED[name]
        flat = low <= round(trend, 3) <= high
        bad += not flat
        print(f"{name:<18} median {median:>9,.1f}, {trend:+.1%} an hour: {'flat' if flat else 'not flat'}; by tenths: "
              f"{' '.join(f'{value:,.1f}' for value in by_tenth)}")  # fmt: skip
    return int(bad > 0)
