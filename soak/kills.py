"""Real runs that are killed at random moments and given again: weights and logs as if they had not been."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from safetensors.torch import load_file

from .forks import digest
from .kinds import SENTENCES, VOCABULARY, timed
from .results import Results

ROOT = Path(__file__).parents[1]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
LONGEST = 600  # seconds of a run
REACTION = 60  # seconds from a signal to the end of a run
SHELL = {signal.SIGTERM: 143, signal.SIGINT: 130}  # exit status, as a shell reports it

QUICK = "--use_cpu --disable_tqdm true --report_to none --save_total_limit 2 --output_dir out".split()
PRETRAINING = "--model_name_or_path {inputs}/model --train_file {inputs}/texts.jsonl --store_dir store --do_train --do_eval --max_seq_length 32 --per_device_train_batch_size 4 --max_steps 240 --save_steps 30 --logging_steps 7 --max_eval_samples 40 --preprocessing_num_workers 1".split()  # fmt: skip  # noqa: E501
GLUE = "--model_name_or_path {inputs}/model --train_file {inputs}/rows.csv --validation_file {inputs}/rows.csv --do_train --do_eval --max_seq_length 32 --num_train_epochs 5 --save_steps 30 --logging_steps 7 --bf16 false --seeds 1 2".split()  # fmt: skip  # noqa: E501
PREPARATION = "--model_name_or_path {inputs}/model --train_file {inputs}/large.jsonl --store_dir store --do_eval --max_seq_length 32 --max_eval_samples 40 --preprocessing_num_workers 2".split()  # fmt: skip  # noqa: E501
STUDY = "{inputs}/study.yaml --output_dir out --processes 2 --train_file {inputs}/texts.jsonl --tokenizer_name {inputs}/model --store_dir store".split()  # fmt: skip  # noqa: E501
SHRINKING = "{inputs}/model --output_dir out --train_file {inputs}/texts.jsonl --attention_head_size 4 --max_seq_length 32 --batch_size 4 --distil_steps 240 --max_samples 60".split()  # fmt: skip  # noqa: E501
PYTHON, TWO_PROCESSES = [sys.executable], str(ROOT / "fixedbert/recipes/accelerate/cpu.yaml")
LAUNCH = [*PYTHON, "-m", "accelerate.commands.launch", "--config_file", TWO_PROCESSES, "--main_process_port", "0"]
RUNS = {
    "pretraining": [*PYTHON, str(ROOT / "run_pretraining.py"), *PRETRAINING, *QUICK],
    "glue with seeds": [*PYTHON, str(ROOT / "run_glue.py"), *GLUE, *QUICK],
    "preparation": [*PYTHON, str(ROOT / "run_pretraining.py"), *PREPARATION, *QUICK],
    "study": [*PYTHON, "-m", "fixedbert_cli", "study", *STUDY],
    "shrinking": [*PYTHON, "-m", "fixedbert_cli", "shrink", *SHRINKING],
    "two processes": [*LAUNCH, str(ROOT / "run_pretraining.py"), *PRETRAINING, *QUICK],
}


class Inputs:
    """What the runs read, and the results of runs that nobody disturbs: made once, in `folder`."""

    def __init__(self, folder: Path):
        self.folder, self.inputs = folder, folder / "inputs"
        if not (self.inputs / "study.yaml").exists():
            self.write()

    def write(self):
        from helpers.tiny_tasks import write_model

        self.inputs.mkdir(parents=True, exist_ok=True)
        rng = random.Random(0)
        words = sorted({word for sentence in SENTENCES for word in sentence.split()})
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *words]
        (self.inputs / VOCABULARY).write_text("\n".join(tokens) + "\n")
        write_model(str(self.inputs / "model"), str(self.inputs / VOCABULARY))

        def text(sentences: int) -> str:
            return " ".join(" ".join(rng.choices(words, k=8)).capitalize() + "." for _ in range(sentences))

        for name, documents, sentences in (("texts", 300, 12), ("large", 6000, 40)):
            lines = (json.dumps({"text": text(sentences)}) + "\n" for _ in range(documents))
            (self.inputs / f"{name}.jsonl").write_text("".join(lines))
        rows = [f"{text(1)},{text(1)},{rng.choice(('yes', 'no'))}" for _ in range(200)]
        (self.inputs / "rows.csv").write_text("\n".join(["sentence1,sentence2,label", *rows]) + "\n")
        (self.inputs / "study.yaml").write_text(
            "question: Does size matter?\naxis: attention_head_size\nlearning_rates: [1.0e-3]\nseeds: [1, 2]\n"
            "objective: mlm\nmodel: {hidden_size: 32, num_hidden_layers: 1, intermediate_size: 64}\n"
            "series: {fixed: {num_attention_heads: 4, attention_head_size: [8, 16]}}\n"
            "pretraining: {max_steps: 60, max_seq_length: 32, total_train_batch_size: 4, save_steps: 10,\n"
            "  logging_steps: 7, max_eval_samples: 40}\n"
        )

    def command(self, words: list[str]) -> list[str]:
        return [word.format(inputs=self.inputs) for word in words]

    def start(self, words: list[str], where: Path, **options) -> subprocess.Popen:
        """The command in `where`, a group of its own, with what it prints in `where`.log."""
        where.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "HF_HOME": str(where / "home"), "PYTHONUNBUFFERED": "1"}
        with open(log_of(where), "ab") as log:
            return subprocess.Popen(
                self.command(words), cwd=where, env=environment, start_new_session=True, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, **options,
            )  # fmt: skip

    def reference(self, name: str, words: list[str]) -> dict:
        """An undisturbed run's `weights`, `log`, and the `seconds` to its first file and to its end."""
        file = self.folder / "references" / f"{name}.json"
        if not file.exists():
            where, began = file.with_suffix(""), time.monotonic()
            shutil.rmtree(where, ignore_errors=True)
            run = self.start(words, where)
            while wait(run, 0.1) is None and all(path.name == "home" for path in where.iterdir()):
                pass
            first = time.monotonic() - began
            if wait(run, LONGEST) != 0:
                raise RuntimeError(f"{name}: the run that nobody disturbs has failed: {log_of(where)}")
            file.write_text(json.dumps({**left_by(where), "seconds": [first, time.monotonic() - began]}))
        return json.loads(file.read_text())


def log_of(where: Path) -> Path:
    return where.with_name(f"{where.name}.log")


def wait(run: subprocess.Popen, seconds: float) -> int | None:
    """The exit status; None if the run goes on."""
    try:
        return run.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def end(run: subprocess.Popen):
    """Kill the whole group, and wait."""
    try:
        os.killpg(run.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    run.wait()


def left_by(where: Path) -> dict:
    """What a run has left, without times: of weights and stores digests, and its logs as they are."""
    weights = {
        str(file.relative_to(where)): digest(load_file(file))
        for file in sorted(where.glob("out/**/model.safetensors"))
        if "checkpoint-" not in str(file)
    }
    for file in sorted(where.glob("store/store-*/*")):
        if file.suffix in (".arrow", ".npy", ".json"):
            weights[file.name] = digest(list(file.read_bytes()))
    logs = {}
    for name in ("all_results.json", "trainer_state.json", "results.json", "runs.jsonl"):
        for file in sorted(where.glob(f"out/**/{name}")):
            lines = file.read_text().splitlines() if name == "runs.jsonl" else [file.read_text()]
            found = sorted((without_times(json.loads(line)) for line in lines), key=json.dumps)
            found = [one.get("log_history", one) for one in found]
            if "checkpoint-" not in str(file):
                logs[str(file.relative_to(where))] = found
    return {"weights": weights, "log": logs}


def without_times(tree: object) -> object:
    if isinstance(tree, dict):
        left_out = ("seconds", "commit")
        return {name: without_times(value) for name, value in tree.items() if not timed(name) and name not in left_out}
    return [without_times(value) for value in tree] if isinstance(tree, list) else tree


def run(inputs: Inputs, count: int, results: Results, seed: int, parallel: int):
    """Do the kills that have no result yet, several at once."""
    done = {line["number"] for line in results.of("kill") if line["seed"] == seed}
    numbers = [number for number in range(count) if number not in done]
    for name in {name_of(number): None for number in numbers}:
        inputs.reference(name, RUNS[name])
    with ThreadPoolExecutor(parallel) as pool:
        for done in as_completed([pool.submit(killed, inputs, number, seed) for number in numbers]):
            results.add("kill", record := done.result())
            said = "; ".join(record["faults"]) or "as if nobody had killed it"
            print(f"kill {record['number']}: {record['kind']}, {', '.join(record['signals'])}: {said}", flush=True)


def name_of(number: int) -> str:
    return list(RUNS)[number % len(RUNS)]


def killed(inputs: Inputs, number: int, seed: int) -> dict:
    """One run, killed once or twice at random moments and then left to end."""
    name, rng = name_of(number), random.Random(f"{seed} kill {number}")
    reference, where = inputs.reference(name, RUNS[name]), inputs.folder / f"kill-{number}"
    log_of(where).unlink(missing_ok=True)
    faults, signals, wanted = [], [], rng.choice((1, 1, 2))
    first, last = reference["seconds"]
    while len(signals) < wanted:
        if not signals:
            shutil.rmtree(where, ignore_errors=True)
        sent = SIGNALS[(number // len(RUNS) + number + len(signals)) % len(SIGNALS)]
        moment = rng.uniform(0, first) if rng.random() < 0.2 else rng.uniform(first, last)  # few while it imports
        run = inputs.start(RUNS[name], where)
        if (status := wait(run, moment)) is not None:
            faults += [f"exit status {status} before it was killed"] if status else []
            if signals or status:
                break
            last = max(first, last - 1)  # it is faster today
            continue
        before, began = log_of(where).stat().st_size, time.monotonic()
        everybody = sent == signal.SIGINT or name == "two processes"  # Ctrl-C goes to all
        (os.killpg if everybody else os.kill)(run.pid, sent)
        status = wait(run, REACTION)
        signals.append(f"{sent.name} after {moment:.1f} s: {status}")
        printed = log_of(where).read_bytes()[before:].decode(errors="replace")
        if status is None:
            faults.append(f"{sent.name} did not end it in {REACTION} s")
            end(run)
        elif name == "two processes":  # its launcher speaks for itself, and may leave one behind
            end(run)
        else:
            faults += faults_of(sent, status, printed, time.monotonic() - began)
        if status == 0 or is_done(name, where):
            break
    if (status := finish(inputs, run, name, where)) != 0:
        end_of_log = log_of(where).read_text(errors="replace").strip().splitlines()[-1:]
        faults.append(
            f"the same command again: {'no end' if status is None else f'exit status {status}'}: {end_of_log}"
        )
        found = {"weights": None, "log": None}
    else:
        found = left_by(where)
        faults += [f"other {part}: {differences(reference[part], found[part])}" for part in ("weights", "log")
                   if reference[part] != found[part]]  # fmt: skip
    if not faults:
        shutil.rmtree(where)
        log_of(where).unlink()
    same = {part: found[part] == reference[part] for part in ("weights", "log")}
    return {"kind": name, "number": number, "seed": seed, "signals": signals, **same, "faults": faults}


def finish(inputs: Inputs, run: subprocess.Popen, name: str, where: Path) -> int | None:
    """The exit status of the same command again, where a run is not at its end; None if that does not end."""
    if run.returncode != 0 and not is_done(name, where):
        run = inputs.start(RUNS[name], where)
        wait(run, LONGEST)
    status = 0 if is_done(name, where) else run.poll()
    end(run)
    return status


def is_done(name: str, where: Path) -> bool:
    """Whether a run was at its end when it was killed. A study works in its output directory from the beginning."""
    return name != "study" and (where / "out").exists()


def faults_of(sent: signal.Signals, status: int, printed: str, seconds: float) -> list[str]:
    """What is wrong with how a run ended on a signal."""
    if sent == signal.SIGKILL or (status == 0 and seconds < 5):  # it was at its end anyway
        return []
    faults = []
    if status not in (SHELL[sent], -sent):
        faults.append(f"exit status {status} on {sent.name}")
    if "Traceback" in printed:
        faults.append(f"a traceback on {sent.name}")
    if status == SHELL[sent] and not printed.strip():
        faults.append(f"no word on {sent.name}")
    return faults


def differences(one: object, other: object, place: str = "") -> str:
    """Where two trees differ first."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            if one.get(key) != other.get(key):
                return differences(one.get(key), other.get(key), f"{place} {key}")
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            if pair[0] != pair[1]:
                return differences(*pair, f"{place} {number}")
    return f"{place}: {str(one)[:80]} became {str(other)[:80]}"


def table(lines: list[dict]) -> Iterator[str]:
    """Runs by what was the same after kills."""
    row = "{:<20} {:>6} {:>14} {:>11} {:>7}".format
    yield row("kills", "trials", "equal weights", "equal logs", "faults")
    for name in [*RUNS, "all"]:
        some = [line for line in lines if name in (line["kind"], "all")]
        weights, logs = (sum(line[part] for line in some) for part in ("weights", "log"))
        yield row(name, len(some), weights, logs, sum(bool(line["faults"]) for line in some))
