"""
Runs a study: several runs at once, each recorded when it ends, so that the same command continues a stopped study.

`Study.runs` decides which runs come next. Machines share a study with `--share`, each in its own directory.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator, Set
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import torch
from accelerate import PartialState
from tqdm.auto import tqdm

import fixedbert_cli
from fixedbert.support.errors import InputError, require_package
from fixedbert.support.files import directory_lock, to_json, write_atomically, writing
from fixedbert.support.processes import exit_with_parent
from fixedbert.training.output import on_main_process

from .records import Record, read_records
from .registry import EXTENSIONS, METRICS, Extension, register
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
        output_dir: directory for runs.jsonl, with a record for each finished run, and for the files of the report.
        sources: training and evaluation texts; synthetic tasks need none.
        processes: number of runs at once; default: one per GPU, or one per CPU core. Under `accelerate launch` all
            processes train each run together.
        share: "1/2" does every second shape, and "2/2" the remaining ones on another machine.
        take_over_output_dir: take `output_dir` over from a dead study on another machine.

    Raises:
        InputError: the texts are invalid, `output_dir` belongs to another study or is in use, or a run failed.
    """
    require_package("matplotlib", "study")
    part, sources = parse_share(share), sources or DataSources()
    if processes is not None and processes < 1:
        raise InputError(f"{processes}: at least 1.", "processes")
    commit()  # before the code can change
    folder, state = Path(output_dir), PartialState(cpu=not torch.accelerator.is_available())
    with on_main_process(study_directory(folder, study, sources, take_over_output_dir)):
        log = RunLog(folder, study, part, writes=state.is_main_process)
        state.wait_for_everyone()
        with tqdm(initial=len(log.records), unit="run", disable=not state.is_main_process) as bar:
            log.show_progress(bar)
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
    """Do up to `processes` runs at once in worker processes. When a run fails, the remaining runs are done first."""
    processes = min(processes, len(log.left())) or 1
    worker = os.getpid(), max(1, cpu_count() // processes), visible_gpus(), EXTENSIONS
    busy: dict[Future, Run] = {}
    failed: dict[str, InputError] = {}
    # Spawned: a process that has used torch or a GPU cannot be forked.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, fixedbert_cli.import_experiment, ("study",)) as pool, ended_workers():
        while True:
            ready = log.ready({run.key for run in busy.values()} | failed.keys())
            for run in ready[: processes - len(busy)]:
                with ignored_interrupts():  # workers inherit this
                    busy[pool.submit(run_in_worker, run, log.folder / UNFINISHED / run.key, sources, *worker)] = run
            if not busy:
                break
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                run = busy.pop(future)
                try:
                    log.add(run, future.result())
                    bar.write(outcome_line(run, log.records[-1]))
                except BrokenProcessPool as error:
                    raise InputError(
                        "a run was killed, perhaps for lack of memory: resume with fewer `processes`."
                    ) from error
                except InputError as error:
                    failed[run.key] = error
                    bar.write(str(error))
            log.show_progress(bar)
    if failed:
        first, *others = failed.values()
        raise InputError(f"{first}" + (f" {len(others)} other runs failed too." if others else ""))


def run_in_worker(
    run: Run,
    folder: Path,
    sources: DataSources,
    parent: int,
    threads: int,
    gpus: list[str],
    extensions: list[Extension],
) -> dict:
    """Do a run in a worker process, with its output in `folder`.log and on one of the GPUs."""
    exit_with_parent(parent)
    torch.set_num_threads(threads)
    if gpus:
        worker = int(multiprocessing.current_process().name.rpartition("-")[2])  # consecutive within a pool
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[worker % len(gpus)]
    for extension in extensions:
        register(extension)
    log = folder.with_name(f"{folder.name}.log")
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a", encoding="utf-8") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        return execute(run, folder, sources)
    except InputError as error:
        raise InputError(f"{run.name}: {error}") from error
    except Exception as error:
        traceback.print_exc()
        raise InputError(f"{run.name}: the run failed; {log} has its output.") from error
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def visible_gpus() -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]


@contextmanager
def ended_workers() -> Iterator[None]:
    """Terminate the workers started within when the context is left with an error; each run saves a checkpoint."""
    before = {*multiprocessing.active_children()}
    try:
        yield
    except BaseException:
        for process in {*multiprocessing.active_children()} - before:
            process.terminate()
        raise


@contextmanager
def ignored_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C, and let processes started within ignore it: the terminal sends it to all of them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def run_together(log: "RunLog", sources: DataSources, bar: tqdm):
    """Under `accelerate launch`, train one run after the other, each with all processes."""
    while ready := log.ready():
        result = execute(ready[0], log.folder / UNFINISHED / ready[0].key, sources)
        PartialState().wait_for_everyone()  # before the files that all processes read are removed
        log.add(ready[0], result)
        if log.writes:
            bar.write(outcome_line(ready[0], log.records[-1]))
        log.show_progress(bar)


def outcome_line(run: Run, record: Record) -> str:
    results = (
        (name, METRICS[name].missing if value is None else f"{value:.4g}") for name, value in record.results.items()
    )
    return f"{run.name}: {', '.join(f'{name} {value}' for name, value in results)}"


class RunLog:
    """The records in runs.jsonl, and the runs that are left to do."""

    def __init__(self, folder: Path, study: Study, part: tuple[int, int], writes: bool = True):
        self.folder, self.study, self.part, self.writes = folder, study, part, writes
        file = folder / RECORDS
        self.records: list[Record] = []
        for record in read_records([file]) if file.exists() else []:
            run = study.run_of(record)
            if run is None or run.key != record.key:
                raise InputError(
                    f"{file}: {record.series}, shape {record.point + 1} has changed in study {study.name}; give "
                    "a different `output_dir`."
                )
            self.records.append(replace(record, **study.labels(run)))  # the question or the axis may have changed
        if writes:  # without an incomplete last line
            write_atomically(file, "".join(to_json(asdict(record)) + "\n" for record in self.records))

    def left(self) -> list[Run]:
        """Returns the runs that are not done, as far as they are known: an extended grid adds some."""
        done = {record.key for record in self.records}
        return [run for run in self.study.planned_runs(self.records, self.part) if run.key not in done]

    def ready(self, busy: Set[str] = frozenset()) -> list[Run]:
        """Returns the runs to start now, without those in `busy`. A run that another series has too is copied."""
        found: dict[str, Run] = {}
        for run in self.study.runs(self.records, self.part):
            same = next((record for record in self.records if record.key == run.key), None)
            if same is not None:
                self.add(run, asdict(same))
                return self.ready(busy)
            if run.key not in busy:
                found.setdefault(run.key, run)
        return list(found.values())

    def add(self, run: Run, result: dict):
        record = Record(**{**result, **self.study.labels(run)})
        if self.writes:
            with open(self.folder / RECORDS, "a", encoding="utf-8") as file:
                file.write(to_json(asdict(record)) + "\n")
                file.flush()
                os.fsync(file.fileno())
            shutil.rmtree(self.folder / UNFINISHED / run.key, ignore_errors=True)
        self.records.append(record)

    def show_progress(self, bar: tqdm):
        bar.total = len(self.records) + len(self.left())
        bar.update(len(self.records) - bar.n)


@contextmanager
def study_directory(folder: Path, study: Study, sources: DataSources, take_over: bool = False) -> Iterator[None]:
    """Context manager that checks the data sources, locks `folder` and writes the settings of the study to it."""
    sources.check(study)
    remedy = "make room or give the right to write there; the same command then resumes"
    with directory_lock(folder, take_over), writing(folder, remedy):
        folder.mkdir(parents=True, exist_ok=True)
        content = to_json({"study": study.name, "scale": study.scale, "data": sources.settings()}, indent=1) + "\n"
        file, records = folder / SETTINGS, folder / RECORDS
        if not file.exists() and any(folder.iterdir()):
            raise InputError(f"{folder}: the output directory is not empty; give a different one, or remove it.")
        if not file.exists() or file.read_text(encoding="utf-8") != content:
            if records.exists() and records.stat().st_size or any(folder.glob(f"{UNFINISHED}/*/*")):
                raise InputError(
                    f"{folder}: has runs of a different study or different texts (see {SETTINGS}); give a different "
                    "`output_dir`, or remove it."
                )
            write_atomically(file, content)
        for lock in folder.glob(f"{UNFINISHED}/*/*.lock"):
            lock.unlink()  # left by killed runs
        yield
