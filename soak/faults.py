"""
Disturbs commands and repeats them.

The repeated command must end with the result of an undisturbed run, or refuse with one sentence and lose nothing.
"""

import gc
import importlib
import os
import random
import re
import resource
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .children import Child, Ending
from .damage import CUT, damage
from .disks import Disk, can_mount, unmount
from .output_paths import create, occupied_paths, snapshot
from .runs import COMMANDS, Reference, command_line, reference, results_of, start, write_inputs
from .trials import Trial

REACTION = 60  # seconds within which a command must end after a signal
SIGNALS = {signal.SIGKILL: (), signal.SIGTERM: ("143", "-15"), signal.SIGINT: ("130", "-2")}  # and exit statuses
MODULES = (
    *("fixedbert.pretraining.pretrain", "fixedbert.fine_tuning.glue", "fixedbert.shrinking.shrink"),
    *("fixedbert.conversion.convert", "fixedbert.exporting.export", "matplotlib.backends.backend_agg"),
    *("onnxruntime", "onnxscript", "torch.onnx._internal.exporter._core"),
)


@dataclass
class Case:
    """
    A command in a directory, and what was wrong with it.

    Attributes:
        inputs: The directory from which the inputs were copied.
        before: A function that each process calls before the command.
        story: What happened, for the reproduction.
    """

    name: str
    inputs: Path
    directory: Path
    rng: random.Random
    before: Callable[[], object] = lambda: None
    disk: Disk | None = None
    story: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    is_done: bool = False

    @property
    def expected(self) -> Reference:
        return reference(self.name, self.inputs)

    def start(self, **options) -> list[Child]:
        return start(self.name, self.directory, self.before, **options)

    def moment(self) -> float:
        """Returns a random number of seconds within the duration of the command."""
        return self.rng.uniform(0, self.expected.seconds)

    def mount(self):
        """Moves the directory to a file system of its own."""
        self.disk = Disk(self.directory)
        shutil.copytree(self.inputs, self.directory, dirs_exist_ok=True)

    def run_disturbed(self, disturb: Callable[[], str]):
        """Starts the command and calls `disturb` after a random time. Checks how the command ends."""
        children, seconds = self.start(), self.moment()
        if not children[0].has_ended(seconds):
            self.story.append(f"after {seconds:.2f} s: {disturb()}")
        self.check_endings(endings_of(children))

    def check_endings(self, endings: list[Ending]):
        """The command succeeds or refuses. If one of several processes fails, the others end in any way."""
        if len(endings) > 1 and any(
            ending.outcome in ("refused", "traceback", "crash", "status") for ending in endings
        ):
            return
        for ending in endings:
            if ending.is_fault:
                self.faults.append(f"{ending.outcome}: {ending.details}")
            elif ending.outcome == "refused":
                self.story.append(str(ending.details))

    def check_output(self):
        """An output directory is complete or absent, and the inputs are unchanged."""
        expected = {name: value for name, value in self.expected.results.items() if name.startswith("out/")}
        results = {name: value for name, value in results_of(self.directory).items() if name.startswith("out/")}
        if results and results != expected:
            self.faults.append(f"incomplete output: {differences(expected, results)}")
        for file in self.inputs.rglob("*"):
            if file.is_file():
                here = self.directory / file.relative_to(self.inputs)
                if not here.exists() or here.read_bytes() != file.read_bytes():
                    self.faults.append(f"{here} was changed")

    def repeat(self):
        """Repeats the command. It succeeds, unless its output already exists, with the expected results."""
        step, is_complete = resumable_step(self.directory), (self.directory / "out").exists()
        (ending, *others) = endings = endings_of(self.start())
        self.check_endings(endings)
        if ending.outcome == "refused" and not (is_complete and "not empty" in str(ending.details)):
            self.faults.append(f"the repeated command is refused: {ending.details}")
        if ending.outcome == "success" and step and f"resuming from step {step:,} " not in ending.printed:
            self.faults.append(f"the repeated command does not resume from step {step}")
        self.check_results()

    def check_results(self, output_dir: str = "out"):
        results = results_of(self.directory, output_dir)
        if not self.faults and results != self.expected.results:
            self.faults.append(f"other results: {differences(self.expected.results, results)}")

    def check_remains(self):
        left = {file.name for file in self.directory.iterdir()} - {file.name for file in self.inputs.iterdir()}
        left = {name for name in left if not re.fullmatch(r"out\.\d+\.partial", name)}  # after SIGKILL
        if not self.faults and left - {"out", "store", "home"}:
            self.faults.append(f"left behind: {sorted(left - {'out', 'store', 'home'})}")


def differences(expected: dict, results: dict) -> str:
    names = [name for name in expected.keys() | results.keys() if expected.get(name) != results.get(name)]
    return ", ".join(
        f"{name} {'missing' if name not in results else 'additional' if name not in expected else 'differs'}"
        for name in sorted(names)
    )


def endings_of(children: list[Child]) -> list[Ending]:
    """Waits for the processes of a command. Like a launcher, ends all of them if one has failed."""
    first, *others = children
    if others and others[0].has_ended(0):
        others[0].ending()
    ending = first.ending(REACTION)
    return [ending, *(other.ending(5 if ending.outcome != "success" else REACTION) for other in others)]


def resumable_step(directory: Path) -> int:
    """Returns the step of the last complete checkpoint of a single run that has not finished training, or 0."""
    partial = directory / "out.partial"
    if (partial / "trainer_state.json").exists() or (directory / "out").exists():
        return 0
    files = partial.glob("checkpoint-*/trainer_state.json")
    return max((int(file.parent.name[11:]) for file in files if file.read_text().endswith("}\n")), default=0)


# Faults: each function disturbs the command and checks what it does.


def kill(case: Case):
    """A signal ends the command or one of its processes at a random moment."""
    sent = case.rng.choice([*SIGNALS])
    to_group = sent == signal.SIGINT or case.rng.random() < 0.5  # a terminal sends Ctrl-C to the whole group
    children, seconds = case.start(), case.moment()
    target = case.rng.choice(children)
    if not children[0].has_ended(seconds):
        with suppress(ProcessLookupError):  # it may end by itself
            (os.killpg if to_group else os.kill)(target.process.pid, sent)
        case.story.append(f"after {seconds:.2f} s: {sent.name}{' to its group' if to_group else ''}")
        began = time.monotonic()
        endings = endings_of(children)
        if len(children) == 1:
            case.faults += signal_faults(sent, endings[0], time.monotonic() - began)
    else:
        case.check_endings(endings_of(children))


def signal_faults(sent: signal.Signals, ending: Ending, seconds: float) -> list[str]:
    """Returns the faults in how a command ended after a signal."""
    if (
        sent == signal.SIGKILL or ending.outcome == "success" and seconds < 10
    ):  # it may have finished before the signal
        return []
    is_expected = any(
        str(ending.details).startswith((f"status {code}:", f"exit code {code}")) for code in SIGNALS[sent]
    )
    faults = [] if is_expected else [f"{ending.outcome} after {sent.name}: {ending.details}"]
    return faults + ([f"a traceback after {sent.name}"] if "Traceback" in ending.printed else [])


def fill_disk(case: Case):
    """The disk becomes full at a random moment. Then there is space again."""
    if can_mount():
        case.mount()
        assert case.disk is not None
        space = int(case.expected.size * case.rng.uniform(0, 1.2))
        case.disk.remount(f"size={case.disk.used() + space}")
        case.story.append(f"on a disk with {space:,} bytes of free space")
        case.check_endings(endings_of(case.start()))
        case.disk.remount("size=1g")
    else:
        limit_file_size(case)


def limit_file_size(case: Case):
    """Writing fails if a file exceeds a random size."""
    size = case.rng.randrange(6_000, 150_000)
    case.story.append(f"with files of at most {size:,} bytes (ulimit -f)")
    case.before = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    case.check_endings(endings_of(case.start()))
    case.before = lambda: None


def make_read_only(case: Case):
    """The file system becomes read-only at a random moment, as after a defect of the disk."""
    if not can_mount():
        return kill(case)
    case.mount()
    disk = case.disk
    assert disk is not None

    def disturb() -> str:
        disk.remount("ro")
        return "the file system becomes read-only"

    case.run_disturbed(disturb)
    disk.remount("rw")


def remove_directory(case: Case):
    """A directory or file disappears at a random moment. Inputs come back later."""
    moved: list[tuple[Path, Path]] = []

    def disturb() -> str:
        outputs = [*case.directory.glob("out*"), *case.directory.glob("out.partial/*"), *case.directory.glob("store*")]
        inputs = [*case.directory.glob("model*"), *case.directory.glob("*.jsonl"), *case.directory.glob("*.csv")]
        target = case.rng.choice(outputs or inputs) if case.rng.random() < 0.7 else case.rng.choice(inputs)
        if target in inputs:
            moved.append((target, target.rename(case.directory.with_name("away"))))
        elif target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)
        return f"{target.relative_to(case.directory)} is {'moved away' if target in inputs else 'removed'}"

    case.run_disturbed(disturb)
    for target, away in moved:
        away.rename(target)
    # What is left of a removed output directory is not the fault of the command.
    shutil.rmtree(case.directory / "out", ignore_errors=True)


def turn_clock_back(case: Case):
    """The clock jumps back and forth, and a killed run finds files from the future and the past."""
    real, jumps = time.time, [0.0, -3600.0, -400 * 86400.0, 7200.0]

    def before():
        numbers = random.Random(os.getpid())
        time.time = lambda: real() + numbers.choice(jumps)
        time.time_ns = lambda: int(time.time() * 1e9)

    case.before = before
    kill(case)
    for file in case.directory.rglob("*"):
        when = real() + case.rng.choice(jumps)
        os.utime(file, (when, when), follow_symlinks=False)
    case.story.append("the clock jumps, and all files have other times")


def start_twice(case: Case):
    """A second run starts in the same directory, with the same or a different output directory."""
    is_same = case.rng.random() < 0.6
    children, seconds = case.start(), case.moment()
    children[0].has_ended(seconds)
    others = case.start(output_dir="out" if is_same else "other", suffix="second")
    case.story.append(f"after {seconds:.2f} s: the same command again{'' if is_same else ', with another output_dir'}")
    endings, second = endings_of(children), endings_of(others)
    for each in (endings, second):
        case.check_endings(each)
    outcomes = endings[0].outcome, second[0].outcome
    if "success" not in outcomes or not is_same and {*outcomes} != {"success"}:
        case.faults.append(f"the two runs ended with {outcomes}: {endings[0].details} {second[0].details}")
    shutil.rmtree(case.directory / "other", ignore_errors=True)


def read_damaged(case: Case):
    """A file that a new or resumed run reads is damaged."""
    kill_at, partial = case.moment(), case.directory / "out.partial"
    children = case.start()
    children[0].has_ended(kill_at)
    for child in children:
        child.end()
    if case.rng.random() < 0.3:
        shutil.rmtree(partial, ignore_errors=True)
    is_resumed = any(partial.glob("checkpoint-*/trainer_state.json")) or any(partial.glob("seed-*"))
    shutil.rmtree(case.directory / "out", ignore_errors=True)
    case.story.append(f"after {kill_at:.2f} s: SIGKILL{'' if partial.exists() else '; out.partial is removed'}")
    groups = [files for files in files_read(case) if files]
    file = case.rng.choice(case.rng.choice(groups))
    content, here = file.read_bytes(), file.relative_to(case.directory)
    change = damage(file, case.rng)
    case.story.append(f"{here}: {change}")
    (ending, *_) = endings = endings_of(case.start())
    case.check_endings(endings)
    is_input = (case.inputs / here).exists()
    if ending.outcome == "success":
        is_known = is_resumed and not ("model" in here.parts and case.name == "seeds")  # each run loads the model
        if is_known if is_input else here.parts[0] == "store" or change in CUT:
            case.check_results()
        shutil.rmtree(case.directory / "out", ignore_errors=True)
        shutil.rmtree(case.directory / "store", ignore_errors=True)
        if is_input:
            restore(file, content)
    elif ending.outcome == "refused":
        names = [file.name, *here.parts[:-1]]
        if not any(name in str(ending.details) for name in names):
            case.faults.append(f"the message does not name {here}: {ending.details}")
        if is_input:
            restore(file, content)
        else:
            follow_advice(case, str(ending.details))


def files_read(case: Case) -> list[list[Path]]:
    """Returns the files of an interrupted run that the next run reads: inputs, the store, and checkpoints."""
    line = " ".join(command_line(case.name))
    inputs = [file for file in case.inputs.rglob("*") if file.is_file()]
    if "recipe.yaml" in line:
        line += " model texts.jsonl"
    names = [file.relative_to(case.inputs) for file in inputs]
    store = [file for file in case.directory.glob("store/**/*") if file.is_file() and file.suffix != ".lock"]
    run_files = ("command.json", "data.json", "trainer_state.json", "model.safetensors")
    checkpoint_files = ("trainer_state.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state*.pth")
    patterns = [*run_files, *(f"checkpoint-*/{name}" for name in checkpoint_files)]
    patterns += [f"seed-*.partial/{pattern}" for pattern in patterns]
    patterns += ["seed-*/all_results.json", "pruned/*.safetensors"]
    partial = [file for pattern in patterns for file in case.directory.glob(f"out.partial/{pattern}")]
    return [[case.directory / name for name in names if name.parts[0] in line.split()], store, partial]


def restore(file: Path, content: bytes):
    if file.is_dir() and not file.is_symlink():
        file.rmdir()
    file.unlink(missing_ok=True)
    file.write_bytes(content)


def follow_advice(case: Case, message: str):
    """Removes the file or directory that a message says to remove."""
    advice = re.search(r"move (?:it|(\S+?))(?: next to it)?(?: to|,| and|\.$|$)", message)
    if advice is None:
        case.faults.append(f"the message does not say what to remove: {message}")
        return
    named = message.removeprefix("error: ").partition(":")[0]
    name = advice[1] or named
    path = case.directory / name
    if not path.exists() and not path.is_symlink():
        path = (case.directory / named).parent / name
    if not (path.exists() or path.is_symlink()):
        case.faults.append(f"the message says to remove {name}, which does not exist: {message}")
        return
    case.story.append(f"{name} is removed, as advised")
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def occupy_output(case: Case):
    """The output path is in use, unusual or impossible. A refused command has changed nothing."""
    kind, (path, files) = case.rng.choice([*occupied_paths(case.directory).items()])
    create(case.directory, files)
    case.story.append(f"the output path {path} is {kind}")
    before = snapshot(case.directory)
    endings = endings_of(case.start(output_dir=path))
    case.check_endings(endings)
    after = snapshot(case.directory)
    if endings[0].outcome == "refused" and after != before:
        case.faults.append(f"refused, but changed files: {differences(before, after)}")
    if lost := [name for name, content in before.items() if content is not None and after.get(name) != content]:
        case.faults.append(f"changed or lost: {lost}")
    if endings[0].outcome == "success":
        case.check_results(path)
    case.is_done = True


FAULTS: tuple[Callable[[Case], object], ...] = (
    *(kill, kill, kill, fill_disk, fill_disk, limit_file_size, make_read_only, remove_directory, turn_clock_back),
    *(start_twice, read_damaged, read_damaged, read_damaged, occupy_output, occupy_output),
)


def prepare(inputs: Path):
    for module in MODULES:
        importlib.import_module(module)
    shutil.rmtree(inputs, ignore_errors=True)
    shutil.rmtree(inputs.with_name("reference"), ignore_errors=True)
    write_inputs(inputs)
    gc.freeze()  # so that collections in forked processes do not copy memory


def trial(number: int, rng: random.Random, directory: Path) -> Trial:
    inputs = directory.parent / "inputs"
    names = [*COMMANDS]
    name, fault = rng.choices(names, [1 if name == "exporting" else 5 for name in names])[0], rng.choice(FAULTS)
    case = Case(name, inputs, directory / "run", rng)
    case.expected  # run it undisturbed, once  # noqa: B018
    if case.directory.is_mount():  # left by a killed generator
        unmount(case.directory)
    shutil.rmtree(case.directory, ignore_errors=True)
    try:
        shutil.copytree(inputs, case.directory)
        try:
            fault(case)
            if not case.faults and not case.is_done:
                case.check_output()
                case.repeat()
                case.check_remains()
        finally:
            if case.disk is not None and case.faults:
                shutil.copytree(case.directory, directory / "kept", symlinks=True)
    finally:
        if case.disk is not None:
            unmount(case.disk.directory)
    steps = "\n".join(f"  {line}" for line in case.story)
    reproduction = f"fixedbert {' '.join(command_line(name))}   # in a copy of {inputs}\n{steps}"
    return Trial(reproduction, fault.__name__.replace("_", " "), "; ".join(case.faults))
