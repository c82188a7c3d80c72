"""`fixedbert study`: the runs of a study in parallel, a line for each that is done, from where it stopped."""

import gc
import json
import multiprocessing
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
from accelerate import PartialState
from tqdm import tqdm

from ..analysis.counts import forward_flops, parameters
from ..analysis.planning import DEVICES, UTILISATION
from ..data.processes import end_with_parent
from ..errors import InputError
from ..files import write_whole, writing
from ..locks import locked
from .report import read_lines, write_report
from .run import Data, commit, execute
from .studies import Run, Study, load_study

LINES, SETTINGS, UNFINISHED = "runs.jsonl", "study.json", "unfinished"


def study(
    name: str,
    output_dir: str | Path | None = None,
    scale: str | None = None,
    processes: int | None = None,
    share: str = "1/1",
    dry_run: bool = False,
    take_over_output_dir: bool = False,
    **data,
) -> str:
    """
    Do all runs of a study that are not done yet, and draw its report.

    Args:
        name: one of NAMES, or a YAML file.
        output_dir: has runs.jsonl, a line for each run that is done, and in the end report.md and report.png.
        scale: one of those of the study.
        processes: runs at once; default: one for each GPU, or for each CPU core. Under `accelerate launch` all its
            processes do one run together.
        share: "1/2" does every second shape, "2/2" on another machine the others.
        dry_run: only say what would be done, and what it costs.
        take_over_output_dir: take `output_dir` from a study on another machine, which has to be dead.
        data: fields of Data.

    Returns:
        What the report says; with `dry_run` the plan.

    Raises:
        InputError: no such study, files of another one in `output_dir`, another process at work there, or a run that
            failed.
    """
    table, texts, part = load_study(str(name), scale), Data(**data), parse_share(share)
    if dry_run:
        return describe(table, part)
    if output_dir is None:
        raise InputError("no --output_dir: say where the records of runs and the report are to go.")
    if processes is not None and processes < 1:
        raise InputError(f"--processes {processes}: at least 1.")
    texts.check(table)
    commit()  # of the code as it is now
    folder, state = Path(output_dir), PartialState(cpu=not torch.accelerator.is_available())
    state.print(describe(table, part), flush=True)
    with only_process(folder, table, texts, take_over_output_dir) if state.is_main_process else nullcontext():
        state.wait_for_everyone()
        lines = Lines(folder, table, part, writes=state.is_main_process)
        state.wait_for_everyone()
        with tqdm(
            total=lines.total,
            initial=lines.done,
            unit="FLOP",
            unit_scale=True,
            smoothing=0,
            disable=not state.is_main_process,
        ) as bar:
            if state.num_processes > 1:
                run_together(lines, texts, bar)
            else:
                run_in_parallel(lines, texts, bar, processes or torch.accelerator.device_count() or os.cpu_count())
        if not state.is_main_process:
            return ""
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
        return write_report(lines.records, folder)


def run_in_parallel(lines: "Lines", texts: Data, bar: tqdm, processes: int):
    """Each run in a process of its own, several at once; where some fail the others are done first."""
    busy: dict[Connection, Run] = {}
    failed: dict[str, InputError] = {}
    with workers(min(processes, len(lines.ready()))) as free:
        while True:
            ready = lines.ready({run.key for run in busy.values()} | failed.keys())
            while free and ready:
                worker, run = free.pop(), ready.pop(0)
                worker.send((run, lines.folder / UNFINISHED / run.key, texts))
                busy[worker] = run
            if not busy:
                break
            for worker in wait(list(busy)):
                run, answer = busy.pop(worker), outcome(worker)
                if isinstance(answer, InputError):
                    failed[run.key] = answer
                else:
                    lines.add(run, answer)
                bar.write(told(run, answer))
                free.append(worker)
            bar.update(lines.done - bar.n)
    if failed:
        first, *others = failed.values()
        raise InputError(f"{first}" + (f" {len(others)} other runs failed too." if others else ""))


def run_together(lines: "Lines", texts: Data, bar: tqdm):
    """Under `accelerate launch`: run by run, each on all processes."""
    while ready := lines.ready():
        record = execute(ready[0], lines.folder / UNFINISHED / ready[0].key, texts)
        PartialState().wait_for_everyone()  # all have read what is removed now
        lines.add(ready[0], record)
        if lines.writes:
            bar.write(told(ready[0], record))
        bar.update(lines.done - bar.n)


def told(run: Run, answer: dict | InputError) -> str:
    """A line on a run that is done, or has failed."""
    if isinstance(answer, InputError):
        return str(answer)
    results = ((name, "not finite" if value is None else f"{value:.4g}") for name, value in answer["results"].items())
    return f"{run.name}: {', '.join(f'{name} {value}' for name, value in results)}"


class Lines:
    """The records of runs.jsonl, and what is left to do."""

    def __init__(self, folder: Path, table: Study, part: tuple[int, int], writes: bool = True):
        self.folder, self.table, self.part, self.writes = folder, table, part, writes
        file = folder / LINES
        self.records = read_lines([file]) if file.exists() else []
        for line in self.records:
            run = table.run_of(line)
            if run is None or run.key != line["key"]:
                raise InputError(
                    f"{file}: {line['series']}, shape {line['point'] + 1} is not what it was in study {table.name}; "
                    "give another --output_dir."
                )
        if writes:  # without the beginning of a line that a killed process has left
            write_whole(file, "".join(json.dumps(line) + "\n" for line in self.records))

    @property
    def done(self) -> float:
        """FLOPs of the runs that are done."""
        return sum(line["training_flops"] for line in self.records)

    @property
    def total(self) -> float:
        rates, seeds = len(self.table.learning_rates), len(self.table.seeds)
        runs = [self.table.run(*place, self.table.learning_rates[0], 0) for place in self.table.places(self.part)]
        return (rates + seeds - 1) * sum(run.training_flops for run in runs)

    def ready(self, busy: set[str] = frozenset()) -> list[Run]:
        """Runs to begin now. What another series has done already is not done twice: its line is copied."""
        found = []
        for run in self.table.runs(self.records, self.part):
            same = next((line for line in self.records if line["key"] == run.key), None)
            if same is not None:
                self.add(run, same)
                return self.ready(busy)
            if run.key not in busy | {other.key for other in found}:
                found.append(run)
        return found

    def add(self, run: Run, record: dict):
        line = {**record, **self.table.labels(run)}
        if self.writes:
            with open(self.folder / LINES, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
            shutil.rmtree(self.folder / UNFINISHED / run.key, ignore_errors=True)
        self.records.append(line)


@contextmanager
def only_process(folder: Path, table: Study, texts: Data, take_over: bool = False) -> Iterator[None]:
    """
    Hold `folder` for this process, with the settings of the study in it.

    Raises:
        InputError: another process works there, what is there is of other runs, or it cannot be written.
    """
    remedy = "make room or give the right to write there; the same command then goes on"
    with locked(folder, take_over), writing(folder, remedy):
        folder.mkdir(parents=True, exist_ok=True)
        settings = json.dumps({"study": table.name, "scale": table.scale, "data": texts.settings()}, indent=1) + "\n"
        file, lines = folder / SETTINGS, folder / LINES
        if not file.exists() and any(folder.iterdir()):
            raise InputError(f"{folder}: the output directory is not empty; give another one, or remove it.")
        if not file.exists() or file.read_text(encoding="utf-8") != settings:
            if lines.exists() and lines.stat().st_size or any(folder.glob(f"{UNFINISHED}/*/*")):
                raise InputError(
                    f"{folder}: runs of another study or other texts ({SETTINGS} says which); give another "
                    "--output_dir, or remove it."
                )
            write_whole(file, settings)
        for lock in folder.glob(f"{UNFINISHED}/*/*.lock"):
            lock.unlink()  # of runs of a study that is dead
        try:
            yield
        except BaseException as error:
            error.left = "the same command goes on with the runs that are not done"
            raise


@contextmanager
def workers(count: int) -> Iterator[list[Connection]]:
    """
    Processes that do one run after the other, each with its share of the CPU cores and with a GPU if there is one.

    When the context ends with an error or an interruption, each saves a checkpoint of what it is at.
    """
    context = multiprocessing.get_context("spawn")  # a process that has used torch or a GPU cannot be copied
    threads = max(1, os.cpu_count() // max(1, count))
    started, connections = [], []
    try:
        for number in range(count):
            ours, theirs = context.Pipe()
            started.append(context.Process(target=work, args=(theirs, os.getpid(), threads)))
            with one_gpu(number), no_interruption():
                started[-1].start()
            theirs.close()  # so that its end is noticed
            connections.append(ours)
        yield list(connections)
    except BaseException:
        for process in started:
            process.terminate()
        raise
    finally:
        for connection in connections:
            connection.close()  # a worker that waits for a run ends
        for process in started:
            process.join()


@contextmanager
def one_gpu(number: int) -> Iterator[None]:
    """For processes that are started within: of the GPUs that this one sees, one, in turn."""
    count, before = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if count:
        visible = before.split(",") if before else [str(device) for device in range(count)]
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[number % count]
    try:
        yield
    finally:
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        else:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)


@contextmanager
def no_interruption() -> Iterator[None]:
    """For processes that are started within: Ctrl-C, which the terminal sends to all, is for this one alone."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def work(connection: Connection, parent: int, threads: int):
    """What a worker does: receive a run, send its record or an InputError, until the other end is closed."""
    end_with_parent(parent)
    torch.set_num_threads(threads)
    commit()
    while True:
        try:
            run, folder, texts = connection.recv()
        except EOFError:
            return
        log = folder.with_name(f"{folder.name}.log")
        try:
            with writing(log.parent, "make room there; the same command then goes on"):
                log.parent.mkdir(parents=True, exist_ok=True)
                with open(log, "a", encoding="utf-8") as output:
                    os.dup2(output.fileno(), 1)
                    os.dup2(output.fileno(), 2)
                answer = execute(run, folder, texts)
        except InputError as error:
            answer = InputError(f"{run.name}: {error}")
        except Exception:
            traceback.print_exc()
            answer = InputError(f"{run.name}: the run failed; {log} has its output.")
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(answer)
        gc.collect()


def outcome(worker: Connection) -> dict | InputError:
    """
    The record that a worker sends, or why there is none.

    Raises:
        InputError: the worker was killed.
    """
    try:
        return worker.recv()
    except EOFError:
        raise InputError(
            "a run was killed, perhaps for memory; fewer at once (--processes) need less. The same command goes on."
        ) from None


def parse_share(share: str) -> tuple[int, int]:
    """(1, 2) of "1/2"."""
    number, slash, of = share.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise InputError(f"--share {share}: of the form 1/2, for every second shape.")
    return int(number), int(of)


def describe(table: Study, part: tuple[int, int]) -> str:
    """The shapes of a study with their counts, and what all runs cost."""
    rates, seeds = len(table.learning_rates), len(table.seeds)
    row = "{:<44} {:>5} {:>6} {:>5} {:>9} {:>6} {:>10} {:>12}"
    lines = [
        table.question,
        "",
        row.format("series", "width", "layers", "heads", "head size", "ffn", "params", "MFLOP/token"),
    ]
    distinct = {}
    for place in table.places(part):
        run = table.run(*place, table.learning_rates[0], table.seeds[0])
        distinct[run.key], config = run, run.config
        lines.append(
            row.format(
                run.series[:44], config.hidden_size, config.num_hidden_layers, config.num_attention_heads,
                config.head_dim, config.intermediate_size, millions(parameters(config)[0]),
                f"{forward_flops(config, run.length) / 1e6:.3f}",
            )
        )  # fmt: skip
    each = rates + seeds - 1
    total = each * sum(run.training_flops for run in distinct.values())
    tokens = each * sum(run.tokens for run in distinct.values())
    seconds = total / (DEVICES["h100"] * UTILISATION)
    lines += [
        "",
        f"{each * len(distinct)} runs: of {len(distinct)} different shapes each {rates} learning rates with the first "
        f"seed, the best of them with {seeds - 1} more; {in_unit(tokens, TOKENS)}, {total:.2g} FLOPs in layers, "
        f"{in_unit(seconds, TIMES)} of an H100 at {UTILISATION:.0%} of its peak, an assumption",
    ]
    return "\n".join(lines)


# The size of a unit, its name, from the largest on.
TOKENS = ((1e9, "billion tokens"), (1e6, "million tokens"), (1, "tokens"))
TIMES = ((3600, "hours"), (60, "minutes"), (1, "seconds"))


def in_unit(amount: float, units: tuple[tuple[float, str], ...]) -> str:
    """In the largest unit of which there is at least one, with three digits."""
    size, name = next((unit for unit in units if amount >= unit[0]), units[-1])
    if amount < size:
        return f"less than a {name.removesuffix('s')}"
    amount /= size
    return f"{amount:,.0f} {name}" if amount >= 100 else f"{amount:.3g} {name}"


def millions(count: float) -> str:
    return f"{count / 1e6:,.2f} M"
