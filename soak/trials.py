"""The result of one generated case, and the loop over cases."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Trial:
    """
    A case of a generator.

    Attributes:
        reproduction: Commands or a script that repeat the case.
        outcome: What happened, in one or two words, such as "refused". The summary counts outcomes.
        fault: What was wrong, in one sentence; empty if the case passed.
    """

    reproduction: str
    outcome: str
    fault: str = ""


def trials(trial: Callable[[int, random.Random, Path], Trial], cases: range, seed: int, directory: Path) -> Iterator:
    """
    Yields the number and the result of each case.

    `trial` takes the case's number, its random numbers, which depend on seed and number only, and an empty directory.
    """
    for number in cases:
        work = directory / f"case-{number}"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True, exist_ok=True)
        result = trial(number, random.Random(f"{seed} {number}"), work)
        yield number, result
        if not result.fault:
            shutil.rmtree(work, ignore_errors=True)


def run(trial: Callable[[int, random.Random, Path], Trial], cases: range, seed: int, directory: Path) -> list[Trial]:
    """Runs all cases, prints faults, progress and a summary, and returns the cases with faults."""
    began = printed = time.monotonic()
    outcomes: Counter[str] = Counter()
    faulty = []
    for number, result in trials(trial, cases, seed, directory):
        outcomes[result.outcome] += 1
        if result.fault:
            faulty.append(result)
            print(f"case {number}: {result.fault}\n{result.reproduction}\n", flush=True)
        done = sum(outcomes.values())
        if time.monotonic() - printed > 30:
            printed = time.monotonic()
            left = (printed - began) / done * (len(cases) - done) / 60
            print(f"{done:,} of {len(cases):,} cases, {len(faulty)} with faults, {left:.0f} minutes left", flush=True)
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common())
    minutes = (time.monotonic() - began) / 60
    print(f"{len(cases):,} cases with seed {seed} in {minutes:.1f} minutes: {counts}; {len(faulty)} with faults")
    return faulty
