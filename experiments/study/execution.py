"""
Executes the runs of a study in parallel. Each run is recorded when it ends, so the same command resumes a study.

`Study.runs` decides which runs come next. With `--share`, several machines divide a study.
"""

import multiprocessing
import os
import shutil
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

from fixedbert.support.errors import InputError, require_package
from fixedbert.support.files import directory_lock, to_json, write_atomically, writing
from fixedbert.support.machine import cores
from fixedbert.support.processes import exit_with_parent
from fixedbert.training.output import on_main_process

from .records import Record, read_records
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
    Executes all runs of a study that are not yet recorded, and writes the report.

    Args:
        output_dir: Directory for the records in runs.jsonl and for the files of the report.
        sources: Texts and fine-tuning data. Not required for synthetic tasks.
        processes: Number of parallel runs. Defaults to one per GPU or, without GPUs, to one per CPU core. With
            `accelerate launch`, all processes train each run together instead.
        share: "1/2" trains every second shape, and "2/2" the remaining shapes on a different machine.
        take_over_output_dir: Continue a study that crashed on a different machine.

    Raises:
        InputError: If the texts are invalid, a run fails, or `output_dir` is in use or belongs to a different study.
    """
    require_package("matplotlib", "plots")
    part, sources = parse_share(share), sources or DataSources()
    if processes is not None and processes < 1:
        raise InputError(f"{processes}: must be at least 1.", "processes")
    commit()  # cached now, because the code can change during the study
    folder, state = Path(output_dir), PartialState(cpu=not torch.accelerator.is_available())
    with on_main_process(study_directory(folder, study, sources, take_over_output_dir)):
        log = RunLog(folder, study, part, writes=state.is_main_process)
        state.wait_for_everyone()
        with tqdm(initial=len(log.records), unit="run", disable=not state.is_main_process) as bar:
            log.show_progress(bar)
            if state.num_processes > 1:
                run_together(log, sources, bar)
            else:
                default = torch.accelerator.device_count() or cores()
                run_in_parallel(log, sources, bar, processes or default)
        report = make_report(log.records)
        if state.is_main_process:
            shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
            write_report(report, folder)
        return report


def run_in_parallel(log: "RunLog", sources: DataSources, bar: tqdm, processes: int):
    """
    Executes the runs in worker processes, up to `processes` at a time.

    Raises:
        InputError: If a run failed. All other runs are completed first, unless a worker was killed.
    """
    processes = min(processes, len(log.left())) or 1
    worker = os.getpid(), max(1, torch.get_num_threads() // processes), visible_gpus()
    busy: dict[Future, Run] = {}
    failed: dict[str, InputError] = {}
    # Processes that have used torch or a GPU cannot be forked.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context)
    with pool, ended_workers():
        while True:
            ready = log.ready({run.key for run in busy.values()} | failed.keys())
            for run in ready[: processes - len(busy)]:
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
                        "a run was killed, possibly for lack of memory; resume the study with fewer `processes`."
                    ) from error
                except InputError as error:
                    failed[run.key] = error
                    bar.write(str(error))
            log.show_progress(bar)
    if failed:
        first, *others = failed.values()
        raise InputError(f"{first}" + (f" {len(others)} other runs also failed." if others else ""))


def run_in_worker(run: Run, folder: Path, sources: DataSources, parent: int, threads: int, gpus: list[str]) -> dict:
    """Executes a run in a worker process, on a GPU if there is one. Writes the output to `folder`.log."""
    exit_with_parent(parent)
    torch.set_num_threads(threads)
    if gpus:
        worker = int(multiprocessing.current_process().name.rpartition("-")[2])  # consecutive within a pool
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[worker % len(gpus)]
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
        raise InputError(f"{run.name}: the run failed; see {log}.") from error
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def visible_gpus() -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]


@contextmanager
def ended_workers() -> Iterator[None]:
    """Context manager that, after an error, terminates the workers started in it. Their runs save a checkpoint."""
    before = {*multiprocessing.active_children()}
    try:
        yield
    except BaseException:
        for process in {*multiprocessing.active_children()} - before:
            process.terminate()
        raise


def outcome_line(run: Run, record: Record) -> str:
    values = ", ".join(f"{name} {value:.4g}" for name, value in record.results.items() if value is not None)
    return f"{run.name}: {values or 'diverged'}"


def run_together(log: "RunLog", sources: DataSources, bar: tqdm):
    """Executes one run after another, each with all processes of `accelerate launch`."""
    while ready := log.ready():
        result = execute(ready[0], log.folder / UNFINISHED / ready[0].key, sources)
        PartialState().wait_for_everyone()  # all processes read files that `add` removes
        log.add(ready[0], result)
        if log.writes:
            bar.write(outcome_line(ready[0], log.records[-1]))
        log.show_progress(bar)


class RunLog:
    """The records in runs.jsonl, and the remaining runs of the study."""

    def __init__(self, folder: Path, study: Study, part: tuple[int, int], writes: bool = True):
        self.folder, self.study, self.part, self.writes = folder, study, part, writes
        file = folder / RECORDS
        self.records: list[Record] = []
        for record in read_records([file]) if file.exists() else []:
            run = study.run_of(record)
            if run is None or run.key != record.key:
                raise InputError(
                    f"{file}: {record.series}, shape {record.point + 1} has changed in study {study.name}; use a "
                    "different `output_dir`."
                )
            self.records.append(replace(record, **study.labels(run)))  # the question or the axis may have changed
        if writes:  # removes an incomplete last line
            write_atomically(file, "".join(to_json(asdict(record)) + "\n" for record in self.records))

    def left(self) -> list[Run]:
        """Returns the remaining runs. Does not include runs that an extended grid may add later."""
        done = {record.key for record in self.records}
        return [run for run in self.study.planned_runs(self.records, self.part) if run.key not in done]

    def ready(self, busy: Set[str] = frozenset()) -> list[Run]:
        """Returns the runs that can start and are not `busy`. Copies records for runs that equal a finished run."""
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
    remedy = "and run the same command to resume the study"
    with directory_lock(folder, take_over), writing(folder, remedy):
        folder.mkdir(parents=True, exist_ok=True)
        content = to_json({"study": study.name, "scale": study.scale, "data": sources.settings()}, indent=1) + "\n"
        file = folder / SETTINGS
        if any(folder.iterdir()) and not (file.exists() and file.read_text(encoding="utf-8") == content):
            raise InputError(
                f"{folder}: the output directory contains other files, or runs of a different study or with different "
                f"texts (see {SETTINGS}); use a different `output_dir` or delete this one."
            )
        write_atomically(file, content)
        for lock in folder.glob(f"{UNFINISHED}/*/*.lock"):
            lock.unlink()  # left by killed runs
        yield
