"""Trainings that take turns on a machine, each in a process of its own, measured by the seconds of their own work."""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import transformers
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, TrainerCallback, get_scheduler

from fixedbert.counts import training_flops
from fixedbert.errors import InputError
from fixedbert.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from fixedbert.training.pretraining import logits_and_targets

POINTS = 30  # of a curve, after the one before training
TURN = 120.0  # seconds
FEWEST_TURNS = 5  # of a short training
MANY = 10**7  # steps, of which a training takes as many as its time allows

Batch = dict[str, torch.Tensor]


class Clock:
    """Seconds of training, without those for which it is stopped."""

    def __init__(self):
        self.before, self.began = 0.0, None

    @property
    def seconds(self) -> float:
        return self.before + (0.0 if self.began is None else time.perf_counter() - self.began)

    def start(self):
        self.began = time.perf_counter()

    def stop(self):
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # the steps that a GPU still has to do are of this training
        self.before, self.began = self.seconds, None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.stop()
        yield
        self.start()


class Yardstick(TrainerCallback):
    """
    Trains for a number of seconds, with the loss on held-out tokens on the way, and in turns with other processes.

    The learning rate has the schedule of the arguments for `steps` steps, stretched over the seconds: after half of
    them it is what it would be after half of the steps. What is sent through the pipe is a point of the curve, or None
    at the end of a turn; the training goes on when something comes back.

    Args:
        held_out: batches with labels, the same for all processes.
    """

    def __init__(self, pipe: Connection, held_out: list[Batch], seconds: float, steps: int):
        self.pipe, self.held_out, self.seconds, self.steps = pipe, held_out, seconds, steps
        self.turn = min(TURN, seconds / FEWEST_TURNS)
        self.clock, self.flops, self.points, self.turn_ends = Clock(), 0.0, 0, self.turn

    def on_train_begin(self, args, state, control, model, lr_scheduler, **kwargs):
        nothing = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        warmup = args.get_warmup_steps(self.steps)
        scheduler = get_scheduler(args.lr_scheduler_type, nothing, warmup, self.steps, args.lr_scheduler_kwargs)
        (schedule,) = scheduler.lr_lambdas
        lr_scheduler.lr_lambdas = [lambda _: schedule(self.done(self.steps)) for _ in lr_scheduler.lr_lambdas]
        flops_of_row = cache(partial(training_flops, model.config))

        def count(model, _args, batch):
            if model.training:
                self.flops += sum(flops_of_row(*row) for row in computed_tokens(model, batch))

        model.register_forward_pre_hook(count, with_kwargs=True)
        self.send_point(state, model)
        self.clock.start()

    def done(self, whole: int) -> float:
        """The part of `whole` that belongs to the time that has passed."""
        return whole * self.clock.seconds / self.seconds

    def on_step_end(self, args, state, control, model, **kwargs):
        if (points := int(self.done(POINTS))) > self.points:
            self.points = points
            with self.clock.stopped():
                self.send_point(state, model)
        if self.points >= POINTS:
            control.should_training_stop = True
        elif self.clock.seconds >= self.turn_ends:
            with self.clock.stopped():
                self.pipe.send(None)
                self.pipe.recv()
            self.turn_ends = self.clock.seconds + self.turn

    def send_point(self, state, model: PreTrainedModel):
        loss = held_out_loss(model, self.held_out)
        point = {"seconds": self.clock.seconds, "flops": self.flops, "steps": state.global_step, "loss": loss}
        self.pipe.send(point)


def computed_tokens(model: PreTrainedModel, batch: Batch) -> list[tuple[int, int]]:
    """
    For each row the tokens that the layers compute, and those that the masked-LM head does. A FixedHeadBert under our
    flow leaves out padding and tokens without a label; that it also leaves out some in the last layer is not counted.
    """
    rows, width = batch["input_ids"].shape
    if not isinstance(model, FixedHeadBertPreTrainedModel):
        return [(width, width)] * rows
    lengths = batch["attention_mask"].sum(dim=1).tolist() if "attention_mask" in batch else [width] * rows
    return list(zip(lengths, batch["labels"].ne(-100).sum(dim=1).tolist(), strict=True))


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, batches: list[Batch]) -> float:
    """Mean over all labelled tokens, in nats. A model without a next-sentence head knows one kind of segment alone."""
    model.eval()
    total, labelled = 0.0, 0
    for batch in batches:
        if not hasattr(model.cls, "seq_relationship"):
            batch = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        logits, targets = logits_and_targets(model(**batch)[1], batch["labels"], "mlm")  # [0] is the loss
        total += cross_entropy(logits.float(), targets, reduction="sum").item()
        labelled += len(targets)
    model.train()
    return total / labelled


class Side:
    """
    A process that trains whenever it has its turn.

    Args:
        train: called in the process with the pipe for its Yardstick, and with `arguments`.
        log: file for what it prints.
    """

    def __init__(self, train: Callable, log: Path, *arguments):
        context = multiprocessing.get_context("spawn")  # a forked one would have this process's threads
        self.log, self.points = log, []
        self.pipe, self.end_of_process = context.Pipe()
        self.process = context.Process(target=run, args=(train, log, self.end_of_process, *arguments))

    def take_turn(self) -> bool:
        """
        Train until the end of a turn, or of the training.

        Returns:
            Whether there is another turn to come.

        Raises:
            InputError: the process has failed.
        """
        if self.process.pid is None:
            self.process.start()
            self.end_of_process.close()
        else:
            self.pipe.send(None)
        try:
            while (point := self.pipe.recv()) is not None:
                self.points.append(point)
        except EOFError:
            self.process.join()
            if self.process.exitcode != 0:
                raise InputError(
                    f"{self.log.stem}: its process ended with exit status {self.process.exitcode}; the reason is "
                    f"above or in {self.log}."
                ) from None
            return False
        return True

    def kill(self):
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def run(train: Callable, log: Path, pipe: Connection, *arguments):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one, and ends it
    transformers.utils.logging.set_verbosity_error()
    with open(log, "w", buffering=1) as lines, redirect_stdout(lines):
        train(pipe, *arguments)


def train_in_turns(sides: dict[str, Side]) -> Iterator[tuple[str, Side]]:
    """Let the sides train; each is returned when it is done. Who begins a round alternates."""
    waiting = list(sides)
    try:
        while waiting:
            for name in list(waiting):
                side = sides[name]
                if not side.take_turn():
                    waiting.remove(name)
                    yield name, side
                elif side.points:
                    last = side.points[-1]
                    print(f"{name}: {last['seconds'] / 60:.1f} minutes, loss {last['loss']:.3f}", flush=True)
            waiting.reverse()
    finally:
        for side in sides.values():
            side.kill()
