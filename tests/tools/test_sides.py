"""Trainings that take turns: their clock, what is counted, their losses, and processes that end with the call."""

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from helpers.tiny_models import inputs_of, model_of
from transformers import BertConfig, BertForPreTraining, TrainerControl, TrainerState, TrainingArguments, get_scheduler

from benchmarks import sides
from fixedbert.counts import training_flops
from fixedbert.support.errors import InputError


def padded_batch() -> dict[str, torch.Tensor]:
    """A batch of pretraining, whose padding has no labels."""
    batch = inputs_of("ForPreTraining", labels=True)
    batch["labels"][batch["attention_mask"] == 0] = -100
    return batch


class Training:
    """What Trainer does with a Yardstick, in steps of a second of a clock of its own."""

    def __init__(self, tmp_path, monkeypatch, stages):
        self.now, self.turns, self.points, self.rates = 1000.0, 0, [], []
        monkeypatch.setattr(sides.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(sides, "held_out_loss", self.evaluate)
        monkeypatch.setattr(sides, "FEWEST_POINTS", 30)
        self.yardstick = sides.Yardstick(self, [], seconds=60.0, stages=stages)
        self.arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, warmup_steps=10)
        self.state = TrainerState()

    def send(self, message):
        if message is None:
            self.turns += 1
        else:
            self.points.append(message)

    def recv(self):
        self.now += 5000  # the others' turn

    def evaluate(self, *_) -> float:
        self.now += 700
        return 3.0

    def train(self, model, batch=None):
        """Until the end of the stage."""
        optimizer, control = torch.optim.SGD([torch.zeros(1)], lr=0.5), TrainerControl()
        scheduler = get_scheduler("linear", optimizer, 7, sides.MANY)
        self.yardstick.on_train_begin(self.arguments, self.state, control, model=model, lr_scheduler=scheduler)
        while not control.should_training_stop:
            self.now += 1
            if batch is not None:
                model.train()(**batch)
            optimizer.step()
            scheduler.step()
            self.rates.append(optimizer.param_groups[0]["lr"])
            self.state.global_step += 1
            self.yardstick.on_step_end(self.arguments, self.state, control, model=model)


def test_seconds_are_those_of_training(tmp_path, monkeypatch):
    """Guards: evaluation and the turns of others do not count, a training ends with its time, and the learning rate
    has followed the schedule of the recipe's steps to its end."""
    training = Training(tmp_path, monkeypatch, [(1.0, 100)])
    training.train(model_of("ForPreTraining"))
    assert [point["seconds"] for point in training.points] == list(range(0, 61, 2))
    assert [point["steps"] for point in training.points] == list(range(0, 61, 2))
    assert training.turns == 4  # of 12 s; the last one ends with the training
    expected = [0.5 * min(share / 0.1, (1 - share) / 0.9) for share in np.arange(1, 61) / 60]
    assert training.rates == pytest.approx(expected, abs=1e-12)


def test_stages_share_the_time(tmp_path, monkeypatch):
    """Guards: each stage has its part of the seconds and of the schedule, growing takes seconds of the side, and
    operations are those of each stage's shape, on one curve."""
    training = Training(tmp_path, monkeypatch, [(0.25, 50), (1.0, 100)])
    small, large = model_of("ForPreTraining"), model_of("ForPreTraining", num_attention_heads=7)
    batch = padded_batch()
    training.train(small, batch)
    assert training.state.global_step == 15 and training.points[-1]["seconds"] == 15
    training.now += 9
    training.train(large, batch)
    assert training.state.global_step == 15 + 36 and training.points[-1]["seconds"] == 60
    seconds = [point["seconds"] for point in training.points]
    assert seconds == [*range(0, 15, 2), 15, *range(25, 26), *range(26, 61, 2)]
    steps = np.interp(np.array([*range(1, 16), *range(25, 61)]) / 60, [0, 0.25, 1], [0, 50, 100])
    assert training.rates == pytest.approx([0.5 * min(step / 10, (100 - step) / 90) for step in steps], abs=1e-12)
    rows = sides.computed_tokens(small, batch).tolist()
    costs = [sum(training_flops(model.config, *row) for row in rows) for model in (small, large)]
    assert training.points[8]["flops"] == pytest.approx(15 * costs[0], rel=1e-12)
    assert training.points[-1]["flops"] == pytest.approx(15 * costs[0] + 36 * costs[1], rel=1e-12)


def test_operations_are_those_that_are_computed():
    """Guards: of ours real and labelled tokens count, of stock BERT every place; evaluation counts on neither side."""
    batch = padded_batch()
    rows, width = batch["input_ids"].shape
    ours = model_of("ForPreTraining")
    real, labelled = batch["attention_mask"].sum(1).tolist(), batch["labels"].ne(-100).sum(1).tolist()
    assert sides.computed_tokens(ours, batch).T.tolist() == [real, labelled]
    stock = BertForPreTraining(BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=4))
    assert sides.computed_tokens(stock, batch).tolist() == [[width, width]] * rows
    points = []
    yardstick = sides.Yardstick(SimpleNamespace(send=points.append), [batch], seconds=60.0, stages=[(1.0, 100)])
    scheduler = get_scheduler("constant", torch.optim.SGD([torch.zeros(1)], lr=0.5))
    arguments = SimpleNamespace(get_warmup_steps=lambda _: 0, lr_scheduler_type="constant", lr_scheduler_kwargs={})
    yardstick.on_train_begin(arguments, TrainerState(), None, model=stock, lr_scheduler=scheduler)
    stock.train()
    stock(**batch)
    yardstick.send_point(TrainerState(), stock)
    assert [point["flops"] for point in points] == [0, rows * training_flops(stock.config, width, width)]


@pytest.mark.parametrize("head", ["ForPreTraining", "ForMaskedLM"])
def test_held_out_loss_is_the_mean_over_tokens(head):
    """Guards: batches of any size give the loss of all labelled tokens, without dropout, with the sparse head too."""
    batch = padded_batch()
    model = model_of(head, hidden_dropout_prob=0.5, sparse_prediction=True, unpad_inputs=True)
    names = [
        name for name in batch if head == "ForPreTraining" or name not in ("token_type_ids", "next_sentence_label")
    ]
    outputs = model.eval()(**{name: batch[name] for name in names})
    expected = outputs.masked_lm_loss if head == "ForPreTraining" else outputs.loss
    parts = [{name: tensor[part] for name, tensor in batch.items()} for part in (slice(0, 5), slice(5, None))]
    assert sides.held_out_loss(model, parts) == pytest.approx(expected.item(), rel=1e-5)
    assert model.training


def test_failed_side_is_no_result(tmp_path):
    """Guards: a process that ends with an error ends the comparison in a sentence that names its log; one that ends
    without has finished."""

    class Closed:
        def send(self, _):
            pass

        def recv(self):
            raise EOFError

    side = sides.Side(print, tmp_path / "ours.log")
    side.pipe, side.process = Closed(), SimpleNamespace(pid=1, join=lambda: None, exitcode=0)
    assert not side.take_turn()
    side.process.exitcode = 3
    with pytest.raises(InputError, match="ours: its process ended with exit status 3; .*ours.log"):
        side.take_turn()


def test_side_is_stopped_after_its_most(tmp_path):
    """Guards: a side has no further turn once its training has taken the seconds it gets at most, not before."""
    received = [{"seconds": 60.0}, {"seconds": 119.9}, None, {"seconds": 180.0}, None]
    killed = []
    side = sides.Side(print, tmp_path / "ours.log", most=120.0)
    side.pipe = SimpleNamespace(send=lambda _: None, recv=lambda: received.pop(0))
    side.process = SimpleNamespace(pid=1, is_alive=lambda: True, kill=lambda: killed.append(1), join=lambda: None)
    assert side.take_turn() and not killed
    assert not side.take_turn() and killed == [1]
    assert [point["seconds"] for point in side.points] == [60.0, 119.9, 180.0]


@pytest.mark.parametrize("status", [-9, 0])
def test_side_that_ends_while_it_waits(tmp_path, status):
    """Guards: a side that is killed during the others' turn has failed in a sentence, and has not finished."""

    def send(_):
        raise BrokenPipeError

    side = sides.Side(print, tmp_path / "ours.log")
    side.pipe = SimpleNamespace(send=send)
    side.process = SimpleNamespace(pid=1, join=lambda: None, exitcode=status)
    with pytest.raises(InputError, match=f"ours: its process ended with exit status {status}; .*ours.log"):
        side.take_turn()


def test_side_that_cannot_start(tmp_path):
    """Guards: a process for which there is no memory is a side that failed."""

    def start():
        raise OSError(12, "Cannot allocate memory")

    side = sides.Side(print, tmp_path / "ours.log")
    side.process = SimpleNamespace(pid=None, start=start)
    with pytest.raises(InputError, match="ours: its process could not be started .*Cannot allocate memory"):
        side.take_turn()


class Planned:
    """A side with so many turns, whose last one ends with an error if there is one."""

    def __init__(self, turns: int, error: str = ""):
        self.turns, self.error, self.points, self.killed = turns, error, [], False

    def take_turn(self) -> bool:
        self.turns -= 1
        if self.error and not self.turns:
            raise InputError(self.error)
        return self.turns > 0

    def kill(self):
        self.killed = True


def test_other_sides_go_on(capsys):
    """Guards: where sides fail, the others train to their end, and the first failure is raised after them."""
    planned = {"late": Planned(3, "late failed"), "ours": Planned(5), "soon": Planned(2, "soon failed")}
    finished = []
    with pytest.raises(InputError, match="soon failed"):
        finished.extend(name for name, _ in sides.train_in_turns(planned))
    assert finished == ["ours"] and all(side.killed and not side.turns for side in planned.values())
    assert capsys.readouterr().out.splitlines() == ["soon failed", "late failed"]


def hold(_pipe, file):
    """Lock a file for a while."""
    with open(file, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("mine")
        lock.flush()
        time.sleep(300)


def start_holding(folder):
    sides.Side(hold, folder / "ours.log", folder / "lock").take_turn()


@pytest.mark.slow  # two processes, of which each imports torch
def test_sides_end_with_the_call(tmp_path):
    """Guards: where the benchmark is killed, no side trains on beside the next call."""
    process = multiprocessing.get_context("spawn").Process(target=start_holding, args=(tmp_path,))
    process.start()
    lock = tmp_path / "lock"
    while not (lock.exists() and lock.read_text()):
        assert process.is_alive()
        time.sleep(0.1)
    process.kill()
    process.join()
    with open(lock) as file:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.1)
    pytest.fail("it trains on")


MEASURING = """
from benchmarks.machine import in_a_process
from fixedbert.support.errors import exit_on_input_error

BEGIN = "import os, time; os.mkdir(f'begun-{os.getpid()}'); time.sleep(300)"
exit_on_input_error(lambda: in_a_process(exec, BEGIN))
"""


@pytest.mark.slow  # two processes, of which each imports torch
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_measurements_end_with_the_call(tmp_path, number):
    """Guards: a benchmark that is stopped ends at once, with the process that it measures in."""
    environment = os.environ | {"PYTHONPATH": str(Path(sides.__file__).parents[1])}
    command = [sys.executable, "-c", MEASURING]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
    try:
        while not (begun := list(tmp_path.glob("begun-*"))):
            assert process.poll() is None
            time.sleep(0.1)
        measured = psutil.Process(int(begun[0].name.removeprefix("begun-")))
        if number == signal.SIGINT:  # as a terminal does
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number
        assert psutil.wait_procs([measured], timeout=20)[1] == []
    finally:
        process.kill()  # the one that it started ends with it
        process.wait()
