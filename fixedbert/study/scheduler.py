"""
All runs of a study: several at once, each recorded as it ends; what is done is not done again.

What is to be run next, `Study.runs` of studies.py says; `RunLog.ready` leaves out what is running, and
`run_in_parallel` hands runs to processes. Machines share a study by `--share`, each in a directory of its own.
"""

import gc
import multiprocessing
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator, Set
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch
from accelerate import PartialState
from tqdm.auto import tqdm

from ..support.errors import InputError, needs, note_what_is_left
from ..support.files import json_text, write_whole, writing
from ..support.locks import locked
from ..support.processes import end_with_parent
from ..training.output import on_main_process
from .records import METRICS, Record, read_records
from .report import Report, make_report
from .report_files import write_report
from .run import commit, execute
from .sources import DataSources
from .studies import Run, Study, parse_share

RECORDS, SETTINGS, UNFINISHED = "runs.jsonl", "study.json", "unfinished"


def run_study(
    study: Study,
    output_dir: str | Path,
    sources: DataSources | None = None,
    processes: int | None = None,
    share: str = "1/1",
    take_over_output_dir: bool = False,
) -> Report:
    """
    Do all runs of a study that are not done yet, and write its report.

    Args:
        output_dir: has runs.jsonl, a record for each run that is done, and in the end the files of a report.
        sources: the texts; a study of synthetic tasks alone needs none.
        processes: runs at once; default: one for each GPU, or for each CPU core. Under `accelerate launch` all its
            processes do one run together.
        share: "1/2" does every second shape, "2/2" on another machine the others.
        take_over_output_dir: take `output_dir` from a study on another machine, which has to be dead.

    Raises:
        InputError: texts that are not as they should be, files of another study in `output_dir`, another
            process at work there, or a run that failed.
    """
    needs("matplotlib", "study")
    part, sources = parse_share(share), sources or DataSources()
    if processes is not None and processes < 1:
        raise InputError(f"{processes}: at least 1.", "processes")
    commit()  # of the code as it is now
    folder, state = Path(output_dir), PartialState(cpu=not torch.accelerator.is_available())
    with on_main_process(study_directory(folder, study, sources, take_over_output_dir)):
        log = RunLog(folder, study, part, writes=state.is_main_process)
        state.wait_for_everyone()
        with tqdm(
            total=log.total,
            initial=log.done,
            unit="FLOP",
            unit_scale=True,
            smoothing=0,
            disable=not state.is_main_process,
        ) as bar:
            if state.num_processes > 1:
                run_together(log, sources, bar)
            else:
                run_in_parallel(log, sources, bar, processes or torch.accelerator.device_count() or cpu_count())
        report = make_report(log.records)
        if state.is_main_process:
            shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
            write_report(report, folder)
        return report


def cpu_count() -> int:
    return os.cpu_count() or 1


def run_in_parallel(log: "RunLog", sources: DataSources, bar: tqdm, processes: int):
    """Each run in a process of its own, several at once; where some fail the others are done first."""
    busy: dict[Connection, Run] = {}
    failed: dict[str, InputError] = {}
    with worker_processes(min(processes, len(log.left())), log.study) as free:
        while True:
            ready = log.ready({run.key for run in busy.values()} | failed.keys())
            while free and ready:
                worker, run = free.pop(), ready.pop(0)
                worker.send((run, log.folder / UNFINISHED / run.key, sources))
                busy[worker] = run
            if not busy:
                break
            answered = wait(list(busy))
            for worker in [worker for worker in busy if worker in answered]:
                run, answer = busy.pop(worker), receive(worker)
                if isinstance(answer, InputError):
                    failed[run.key] = answer
                else:
                    log.add(run, answer)
                bar.write(outcome_line(run, answer))
                free.append(worker)
            show_progress(bar, log)
    if failed:
        first, *others = failed.values()
        raise InputError(f"{first}" + (f" {len(others)} other runs failed too." if others else ""))


def run_together(log: "RunLog", sources: DataSources, bar: tqdm):
    """Under `accelerate launch`: run by run, each on all processes."""
    while ready := log.ready():
        record = execute(ready[0], log.folder / UNFINISHED / ready[0].key, sources)
        PartialState().wait_for_everyone()  # all have read what is removed now
        log.add(ready[0], record)
        if log.writes:
            bar.write(outcome_line(ready[0], record))
        show_progress(bar, log)


def show_progress(bar: tqdm, log: "RunLog"):
    bar.total = log.total
    bar.update(log.done - bar.n)


def outcome_line(run: Run, answer: Record | InputError) -> str:
    """The results of a run that is done, or why it failed."""
    if isinstance(answer, InputError):
        return str(answer)
    results = (
        (name, METRICS[name].missing if value is None else f"{value:.4g}") for name, value in answer["results"].items()
    )
    return f"{run.name}: {', '.join(f'{name} {value}' for name, value in results)}"


class RunLog:
    """The records of runs.jsonl, and the runs that are left to do."""

    def __init__(self, folder: Path, study: Study, part: tuple[int, int], writes: bool = True):
        self.folder, self.study, self.part, self.writes = folder, study, part, writes
        file = folder / RECORDS
        self.records: list[Record] = []
        for record in read_records([file]) if file.exists() else []:
            run = study.run_of(record)
            if run is None or run.key != record["key"]:
                raise InputError(
                    f"{file}: {record['series']}, shape {record['point'] + 1} is not what it was in study "
                    f"{study.name}; give another `output_dir`."
                )
            self.records.append({**record, **study.labels(run)})  # the question or the axis may have changed
        if writes:  # without the beginning of a line that a killed process has left
            write_whole(file, "".join(json_text(record) + "\n" for record in self.records))

    @property
    def done(self) -> float:
        """FLOPs of the runs that are done, as far as known; a training that two series share counts once."""
        return sum({record["key"]: record["training_flops"] or 0 for record in self.records}.values())

    @property
    def total(self) -> float:
        """FLOPs of the runs that are done, and of those left."""
        return self.done + sum(run.training_flops for run in self.left())

    def left(self) -> list[Run]:
        """The runs that are not done, as far as they are known: an extended grid adds some."""
        done = {record["key"] for record in self.records}
        return [run for run in self.study.planned_runs(self.records, self.part) if run.key not in done]

    def ready(self, busy: Set[str] = frozenset()) -> list[Run]:
        """Runs to begin now, but those whose key is in `busy`. Of a run that another series has, copy the record."""
        found: dict[str, Run] = {}
        for run in self.study.runs(self.records, self.part):
            same = next((record for record in self.records if record["key"] == run.key), None)
            if same is not None:
                self.add(run, same)
                return self.ready(busy)
            if run.key not in busy:
                found.setdefault(run.key, run)
        return list(found.values())

    def add(self, run: Run, result: Record):
        record = {**result, **self.study.labels(run)}
        if self.writes:
            with open(self.folder / RECORDS, "a", encoding="utf-8") as file:
                file.write(json_text(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
            shutil.rmtree(self.folder / UNFINISHED / run.key, ignore_errors=True)
        self.records.append(record)


@contextmanager
def study_directory(folder: Path, study: Study, sources: DataSources, take_over: bool = False) -> Iterator[None]:
    """
    Check the texts, and hold `folder` for this process, with the settings of the study in it.

    Raises:
        InputError: texts are not as they should be, another process works there, what is there is of other runs, or
            it cannot be written.
    """
    sources.check(study)
    remedy = "make room or give the right to write there; the same command then goes on"
    with locked(folder, take_over), writing(folder, remedy):
        folder.mkdir(parents=True, exist_ok=True)
        settings = {"study": study.name, "scale": study.scale, "data": sources.settings()}
        content = json_text(settings, indent=1) + "\n"
        file, records = folder / SETTINGS, folder / RECORDS
        if not file.exists() and any(folder.iterdir()):
            raise InputError(f"{folder}: the output directory is not empty; give another one, or remove it.")
        if not file.exists() or file.read_text(encoding="utf-8") != content:
            if records.exists() and records.stat().st_size or any(folder.glob(f"{UNFINISHED}/*/*")):
                raise InputError(
                    f"{folder}: runs of another study or other texts ({SETTINGS} says which); give another "
                    "`output_dir`, or remove it."
                )
            write_whole(file, content)
        for lock in folder.glob(f"{UNFINISHED}/*/*.lock"):
            lock.unlink()  # of runs of a study that is dead
        try:
            yield
        except BaseException as error:
            note_what_is_left(error, "the same command goes on with the runs that are not done")
            raise


@contextmanager
def worker_processes(count: int, study: Study) -> Iterator[list[Connection]]:
    """
    Processes that do one run of `study` after the other, each with its share of the CPU cores and with a GPU if there
    is one.

    When the context ends with an error or an interruption, each saves a checkpoint of what it is at.
    """
    context = multiprocessing.get_context("spawn")  # a process that has used torch or a GPU cannot be copied
    threads = max(1, cpu_count() // max(1, count))
    started: list[SpawnProcess] = []
    connections: list[Connection] = []
    try:
        for number in range(count):
            ours, theirs = context.Pipe()
            started.append(context.Process(target=work_for, args=(theirs, os.getpid(), threads, study)))
            with visible_gpu(number), ignored_interrupts():
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
def visible_gpu(number: int) -> Iterator[None]:
    """Show processes that are started within one of this process's GPUs, in turn."""
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
def ignored_interrupts() -> Iterator[None]:
    """Keep Ctrl-C, which the terminal sends to all, from processes that are started within."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def work_for(connection: Connection, parent: int, threads: int, study: Study):
    """What a worker does: receive a run, send its record or an InputError, until the other end is closed."""
    end_with_parent(parent)
    torch.set_num_threads(threads)
    commit()
    while True:
        try:
            run, folder, sources = connection.recv()
        except EOFError:
            return
        log = folder.with_name(f"{folder.name}.log")
        try:
            with writing(log.parent, "make room there; the same command then goes on"):
                log.parent.mkdir(parents=True, exist_ok=True)
                with open(log, "a", encoding="utf-8") as output:
                    os.dup2(output.fileno(), 1)
                    os.dup2(output.fileno(), 2)
                answer: Record | InputError = execute(run, folder, sources)
        except InputError as error:
            answer = InputError(f"{run.name}: {error}")
        except Exception:
            traceback.print_exc()
            answer = InputError(f"{run.name}: the run failed; {log} has its output.")
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(answer)
        gc.collect()


def receive(worker: Connection) -> Record | InputError:
    """
    The record that a worker sends, or why there is none.

    Raises:
        InputError: the worker was killed.
    """
    try:
        return worker.recv()
    except EOFError:
        raise InputError(
            "a run was killed, perhaps for memory; fewer processes at once need less. The same command goes on."
        ) from None
