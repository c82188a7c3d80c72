"""Full disks: runs in a small tmpfs, or with a limit on the size of files, and again with room."""

import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .kills import CONVERSION, LONGEST, PYTHON, RUNS, Inputs, end, left_by, log_of, wait
from .results import Results

DISKS = {name: RUNS[name] for name in ("pretraining", "preparation", "glue with seeds")}
DISKS["convert"] = [*PYTHON, "-m", *CONVERSION]
ROOM = 2**30


def run(inputs: Inputs, count: int, results: Results, seed: int):
    done = {line["number"] for line in results.of("disk") if line["seed"] == seed}
    for number in range(count):
        if number not in done:
            record = filled(inputs, number, seed)
            results.add("disk", record)
            said = "; ".join(record["faults"]) or record["said"]
            print(f"disk {number}: {record['kind']} with {record['room']}: {said}", flush=True)


def filled(inputs: Inputs, number: int, seed: int) -> dict:
    """One run on a disk with less room than it needs, then again with enough."""
    name, rng = list(DISKS)[number % len(DISKS)], random.Random(f"{seed} disk {number}")
    reference, where = inputs.reference(name, DISKS[name]), inputs.folder / f"disk-{number}"
    log_of(where).unlink(missing_ok=True)
    needed = sum(file.stat().st_size for file in kept(inputs, name))
    size = max(int(rng.uniform(0.1, 0.8) * needed), 8192)
    with_tmpfs = mounted(where, size)
    try:
        options = (
            {} if with_tmpfs else {"preexec_fn": lambda: limit_files(largest(inputs, name) * rng.uniform(0.1, 0.9))}
        )
        run = inputs.start(DISKS[name], where, **options)
        status = wait(run, LONGEST)
        end(run)
        lines = log_of(where).read_text(errors="replace").strip().splitlines()
        said = lines[-1] if lines else ""
        faults = ["no end on a full disk"] if status is None else []
        if status == 0:
            faults.append("exit status 0 on a full disk")
        elif status is not None:
            faults += ["a traceback"] if any("Traceback" in line for line in lines) else []
            if not said.startswith("error: ") or len(said) > 1500:
                faults.append(f"no clear sentence: {said[:200]}")
        if with_tmpfs:
            subprocess.run(["mount", "-o", f"remount,size={ROOM}", str(where)], check=True)
        again = inputs.start(DISKS[name], where)
        status = wait(again, LONGEST)
        end(again)
        if status != 0:
            faults.append(
                f"with room: exit status {status}: {log_of(where).read_text().strip().splitlines()[-1][:300]}"
            )
        elif left_by(where)["weights"] != reference["weights"]:
            faults.append("with room: other weights")
    finally:
        if with_tmpfs:
            subprocess.run(["umount", str(where)], check=True)
        shutil.rmtree(where, ignore_errors=True)
    kind = "a tmpfs" if with_tmpfs else "a limit on files"
    room = f"{size >> 10:,} of {needed >> 10:,} KiB in {kind}"
    return {"kind": name, "number": number, "seed": seed, "room": room, "said": said, "faults": faults}


def kept(inputs: Inputs, name: str) -> list[Path]:
    return [file for file in (inputs.folder / "references" / name).rglob("*") if file.is_file()]


def largest(inputs: Inputs, name: str) -> int:
    return max(file.stat().st_size for file in kept(inputs, name))


def mounted(where: Path, size: int) -> bool:
    """Whether `where` is now a tmpfs of so many bytes: only root may."""
    where.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)]
    return subprocess.run(mount, capture_output=True).returncode == 0


def limit_files(size: float):
    """In the child: a file that grows beyond gives EFBIG, as Python ignores the signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))


def table(lines: list[dict]) -> Iterator[str]:
    row = "{:<20} {:>6} {:>7}".format
    yield row("full disks", "trials", "faults")
    for name in [*DISKS, "all"]:
        some = [line for line in lines if name in (line["kind"], "all")]
        yield row(name, len(some), sum(bool(line["faults"]) for line in some))
