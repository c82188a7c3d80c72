"""The trials themselves: every outcome is told from the others, and a seed gives the same mutations."""

import faulthandler
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from fixedbert.support.errors import InputError
from soak import habits
from soak.damage import FORMS, PLACES, mutate
from soak.forks import Job, Verdict, digest, verdicts
from soak.grammar import drawn, json_values
from soak.kills import differences, faults_of, without_times
from soak.kinds import KINDS
from soak.mutations import judged, planned
from soak.results import Results


def raises(error: BaseException):
    raise error


def takes(size: int) -> int:
    return len(bytearray(size))


LOADERS = {
    "raw": lambda: raises(KeyError("text")),
    "raw, several lines": lambda: raises(InputError("rows.csv: wrong\nin two lines")),
    "raw, nameless": lambda: raises(InputError("something is wrong")),
    "raw, endless": lambda: raises(SystemExit("error: rows.csv: " + "x" * 2000)),
    "raw, memory": lambda: takes(2**40),
    "clear": lambda: raises(InputError("rows.csv, line 3: no label.")),
    "hang": lambda: time.sleep(60),
    "crash": lambda: (faulthandler.disable(), os.kill(os.getpid(), signal.SIGSEGV)),
    "crash, a status": lambda: os._exit(3),
    "loaded": lambda: {"b": torch.ones(2), "a": float("nan")},
}


def test_every_outcome_is_told_from_the_others(tmp_path):
    """Guards: what a loader does in a forked child, killed ones too, is counted as what it is, two at a time."""
    jobs = [
        Job((name,), tmp_path / str(place), lambda: ("a change", ["rows.csv"]), load)
        for place, (name, load) in enumerate(LOADERS.items())
    ]
    found = {job.name[0]: (verdict, change) for job, verdict, change in verdicts(jobs, parallel=2, seconds=3)}
    assert found.keys() == LOADERS.keys()
    for name, (verdict, change) in found.items():
        assert verdict.outcome == name.split(",")[0], (name, verdict)
        assert change == "a change"
    assert found["clear"][0].said == "error: rows.csv, line 3: no label."
    assert found["crash"][0].said == "SIGSEGV"
    assert found["raw"][0].said.startswith("KeyError: 'text' [")
    assert found["loaded"][0].said == digest([LOADERS["loaded"]()])


def test_a_trial_that_cannot_be_made_is_no_result(tmp_path):
    """Guards: a defect of the harness is not counted as one of the package."""
    job = Job(("kind", 1), tmp_path / "1", lambda: raises(ValueError("defect")), list)
    with pytest.raises(RuntimeError, match="could not be made"):
        list(verdicts([job], seconds=20))


def test_something_else_needs_a_reason(tmp_path):
    """Guards: the same is same, other weights are explained, another store or a list as a label is not."""
    (tmp_path / "1-2.log").write_text("unknown hidden_size_2\n")
    (tmp_path / "1-valid.log").write_text("num_labels\n")
    loaded = Verdict("loaded", "digest")

    def outcome(kind: str, change: str, expected: str = "another") -> str:
        return judged(loaded, kind, change, expected, tmp_path / "1-2").outcome

    assert outcome("store: shard", "bits flipped", "digest") == "same"
    assert outcome("model.safetensors", "bits flipped") == "explained"
    assert outcome("store: shard", "bits flipped") == "other"
    assert outcome("rows: jsonl", "label becomes a list") == "other"
    assert outcome("config.json", "hidden_size renamed") == "explained"  # a warning names it
    assert outcome("config.json", "num_labels renamed") == "other"
    assert outcome("study: yaml", "keys twice") == "other"
    assert outcome("study: yaml", "seeds.* twice") == "explained"
    (tmp_path / "1-2").mkdir()
    (tmp_path / "1-2" / "ran").touch()
    assert outcome("recipe: yaml", "a tag that runs code", "digest") == "raw"


def test_a_seed_gives_the_same_mutations(tmp_path):
    """Guards: a trial can be repeated by kind and number; another seed gives others; places come first."""
    content = b"".join(b'{"sentence1": "one %d", "label": "yes"}\n' % number for number in range(9))

    def mutations(seed: str) -> list[tuple[str, bytes]]:
        found = []
        for number in range(len(PLACES), 40):
            (file := tmp_path / "rows.jsonl").write_bytes(content)
            found.append((mutate(file, "jsonl", number, seed), file.read_bytes()))
        return found

    one = mutations("0")
    assert one == mutations("0") and one != mutations("1")
    assert len({change for _, change in one}) > 25 and sum(change == content for _, change in one) < 6
    for number, place in enumerate(PLACES):
        (file := tmp_path / str(number)).write_bytes(content)
        assert mutate(file, "jsonl", number, "0") == place.__name__.replace("_", " ")
    values = [repr(drawn(json_values, number)) for number in range(20)]
    assert values == [repr(drawn(json_values, number)) for number in range(20)] and len(set(values)) > 10
    assert planned(4000) == planned(4000) and len(set(planned(4000))) == len(planned(4000))
    assert abs(len(planned(4000)) - 4000) < 40


@pytest.mark.parametrize("form", ["json", "yaml", "csv", "text"])
def test_mutations_of_a_format(form):
    """Guards: each format is changed in many ways, none of which fails, and nearly always to another content."""
    content = {
        "json": b'{"a": [1, {"b": "text"}], "c": null}',
        "yaml": b"a: [1, 2]\nb: text\n",
        "csv": b"text,label\none,yes\ntwo,no\nthree,yes\n",
        "text": b"one\ntwo\nthree\n",
    }[form]
    changes = [FORMS[form](content, random.Random(number)) for number in range(60)]
    assert sum(changed != content for _, changed in changes) > 50
    assert len({name for name, _ in changes}) > 6


def test_habits_are_judged(tmp_path):
    """Guards: what a plain file gives is right, a word is said or missing, an error is one sentence or unexpected."""
    (tmp_path / "1-valid.log").write_text("2 classes\n")
    (tmp_path / "1-2.log").write_text("2 classes\ntheir order is unknown\n")

    def outcome(kind: str, said: str, expected: str) -> str:
        return habits.judged(Verdict(kind, said), expected, "digest", tmp_path / "1-2").outcome

    assert outcome("loaded", "digest", habits.RIGHT) == outcome("loaded", "digest", habits.SENTENCE) == "right"
    assert outcome("loaded", "another", habits.SENTENCE) == "wrong in silence"
    assert outcome("loaded", "another", "order is unknown") == "said"
    assert outcome("loaded", "digest", "2 classes") == "wrong in silence"  # the plain file has it said too
    assert outcome("clear", "error: rows.csv: no.", habits.SENTENCE) == "one sentence"
    assert outcome("clear", "error: rows.csv: no.", habits.RIGHT) == "refused"
    assert outcome("raw", "KeyError", habits.SENTENCE) == "raw"


def build_rows(folder):
    folder.mkdir(parents=True)
    (folder / "rows.csv").write_text("sentence,label\none,yes\ntwo,no\nthree,yes\n")


def left_behind(path: str):
    """A loading function that refuses some texts when a part of its output is there."""

    def load():
        if "four" in Path(path).read_text():
            Path("half").touch()
            raise InputError(f"{path}: refused.")

    return load


def test_habits_run(tmp_path, monkeypatch):
    """Guards: variants of a table are compared with it, at new paths too; a refusal that leaves a file is a fault."""
    table = habits.at(habits.rows, "rows.csv")
    monkeypatch.setattr(habits, "build_plain", build_rows)
    monkeypatch.setattr(habits, "HABITS", (
        habits.Habit("semicolons", table, habits.replaced(",", ";")),
        habits.Habit("brackets", table, habits.named("{stem}[1]{suffix}")),
        habits.Habit("percent", table, habits.cells(yes="90 %"), habits.SENTENCE),
        habits.Habit("other texts", table, habits.replaced("two", "four")),
        habits.Habit("left", (("rows.csv", left_behind),), habits.replaced("two", "four"), habits.SENTENCE),
    ))  # fmt: skip
    habits.run(tmp_path / "habits", 100, results := Results(tmp_path / "soak.jsonl"), parallel=2)
    found = {line["habit"]: line["outcome"] for line in results.of("habit")}
    assert found == {"semicolons": "right", "brackets": "right", "percent": "one sentence",
                     "other texts": "wrong in silence", "left": "raw"}  # fmt: skip
    assert list(habits.table(results.of("habit")))[-1].split() == ["all", "2", "0", "1", "0", "1", "1", "0", "0"]


def test_results_are_kept(tmp_path):
    """Guards: what is done is known at the next start; a line that a kill has cut off is done again."""
    file = tmp_path / "soak.jsonl"
    Results(file).add("kill", {"number": 1})
    with open(file, "a") as lines:
        lines.write('{"trial": "ki')
    again = Results(file)
    again.add("kill", {"number": 2})
    assert [line["number"] for line in Results(file).of("kill")] == [1, 2] and not again.of("disk")


def test_faults_of_a_killed_run():
    """Guards: wrong exit statuses, tracebacks and silence are faults; times are left out of what is compared."""
    assert faults_of(signal.SIGTERM, 143, "stopped by SIGTERM\n", 1) == []
    assert faults_of(signal.SIGINT, 1, "interrupted\n", 1) == ["exit status 1 on SIGINT"]
    assert faults_of(signal.SIGINT, 130, "Traceback (most\n", 1) == ["a traceback on SIGINT"]
    assert faults_of(signal.SIGINT, 130, "", 1) == ["no word on SIGINT"]
    assert faults_of(signal.SIGTERM, 0, "", 30) == ["exit status 0 on SIGTERM"]
    assert without_times({"loss": 1, "train_runtime": 2, "a": [{"x_per_second": 3}]}) == {"loss": 1, "a": [{}]}
    assert differences({"a": [1, 2]}, {"a": [1, 3]}) == " a 1: 2 became 3"


def test_kinds_cover_the_files_of_users():
    """Guards: every kind has a form of its own, and the share of each is mutated in the plan."""
    assert {kind.form for kind in KINDS.values()} <= FORMS.keys()
    assert {name for name, _ in planned(4000)} == KINDS.keys()
