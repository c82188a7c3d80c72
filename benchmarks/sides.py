"""Trainings that take turns on a machine, each in its own process and measured by its own seconds of training."""

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments, get_scheduler

from fixedbert.counts import training_flops
from fixedbert.model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from fixedbert.pretraining.trainer import logits_and_targets
from fixedbert.support.errors import InputError
from fixedbert.support.processes import exit_with_parent

FEWEST_POINTS, MOST_POINTS = 5, 30  # evaluations of a training: one per minute
TURN = 120.0  # seconds
FEWEST_TURNS = 5  # for a short training
MANY = 10**7  # steps; a training takes as many as its time allows

Batch = dict[str, torch.Tensor]
Stages = list[tuple[float, int]]  # the share of the time and the step of the schedule at which each stage ends


class Clock:
    """Counts seconds of training, without those while it is stopped."""

    def __init__(self):
        self.before, self.began = 0.0, None

    @property
    def seconds(self) -> float:
        return self.before + (0.0 if self.began is None else time.perf_counter() - self.began)

    def start(self):
        self.began = time.perf_counter()

    def stop(self):
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # queued steps of a GPU belong to this training
        self.before, self.began = self.seconds, None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.stop()
        yield
        self.start()


class Yardstick(TrainerCallback):
    """
    Ends a training after a number of seconds, evaluates it, and lets it take turns with other processes.

    The schedule of the learning rate is stretched over the time: after half of a stage's time it has the value after
    half of the stage's steps. Each stage is a run of its own; the clock continues between runs. The pipe receives the
    points of the curve, and None at the end of a turn; training continues when something comes back.

    Args:
        held_out: batches with labels, equal for all processes.
    """

    def __init__(self, pipe: Connection, held_out: list[Batch], seconds: float, stages: Stages):
        self.pipe, self.held_out, self.seconds = pipe, held_out, seconds
        self.parts, self.steps = zip(*stages, strict=True)
        self.turn = min(TURN, seconds / FEWEST_TURNS)
        self.points_in_all = min(max(FEWEST_POINTS, round(seconds / 60)), MOST_POINTS)
        self.clock, self.stage, self.points, self.turn_ends = Clock(), 0, 0, self.turn
        self.flops, self.uncounted, self.steps_before = 0.0, [], 0

    def on_train_begin(self, args, state, control, model, lr_scheduler, **kwargs):
        (schedule,) = scheduler_of(args, self.steps[-1]).lr_lambdas
        lr_scheduler.lr_lambdas = [lambda _: schedule(self.step_of_schedule()) for _ in lr_scheduler.lr_lambdas]
        self.flops_of_row = cache(partial(training_flops, model.config))
        model.register_forward_pre_hook(self.remember_tokens, with_kwargs=True)
        if self.stage == 0:
            self.send_point(state, model)
            self.clock.start()

    def step_of_schedule(self) -> float:
        return float(np.interp(self.clock.seconds / self.seconds, [0, *self.parts], [0, *self.steps]))

    def remember_tokens(self, model, _args, batch):
        if model.training:
            self.uncounted.append(computed_tokens(model, batch))  # read later, so that a GPU need not be waited for

    def on_step_end(self, args, state, control, model, **kwargs):
        passed = self.clock.seconds / self.seconds
        stage_is_over = passed >= self.parts[self.stage]
        if stage_is_over or int(passed * self.points_in_all) > self.points:
            self.points = int(passed * self.points_in_all)
            with self.clock.stopped():
                self.send_point(state, model)
        if stage_is_over:
            self.stage += 1
            self.steps_before += state.global_step
            control.should_training_stop = True
        elif self.clock.seconds >= self.turn_ends:
            with self.clock.stopped():
                self.pipe.send(None)
                self.pipe.recv()
            self.turn_ends = self.clock.seconds + self.turn

    def send_point(self, state, model: PreTrainedModel):
        self.flops += sum(self.flops_of_row(*row) for rows in self.uncounted for row in rows.tolist())
        self.uncounted = []
        loss = held_out_loss(model, self.held_out)
        steps = self.steps_before + state.global_step
        point = {"seconds": self.clock.seconds, "flops": self.flops, "steps": steps, "loss": loss}
        self.pipe.send(point)


def scheduler_of(arguments: TrainingArguments, steps: int) -> LRScheduler:
    """Returns the learning-rate scheduler of the arguments for a number of steps."""
    nothing = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    warmup = arguments.get_warmup_steps(steps)
    return get_scheduler(arguments.lr_scheduler_type, nothing, warmup, steps, arguments.lr_scheduler_kwargs)


def computed_tokens(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """
    Returns, for each row, the number of tokens that the layers and the masked-LM head compute, (B, 2).

    FixedHeadBert computes no padding, and predicts only tokens with a label. The tokens that its last layer skips are
    counted.
    """
    computed = predicted = torch.ones_like(batch["input_ids"])
    if isinstance(model, FixedHeadBertPreTrainedModel):
        computed, predicted = batch.get("attention_mask", computed), batch["labels"].ne(-100)
    return torch.stack([computed.sum(dim=1), predicted.sum(dim=1)], dim=1)


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, batches: list[Batch]) -> float:
    """Returns the mean loss over all labelled tokens, in nats. Models without next-sentence head get no segments."""
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
    A process that trains when it is its turn.

    Args:
        train: function that is called in the process with the pipe for its Yardstick and with `arguments`.
        log: file for its output.
        most: seconds of training after which the process is ended, without a model.
    """

    def __init__(self, train: Callable, log: Path, *arguments, most: float = math.inf):
        context = multiprocessing.get_context("spawn")  # a forked one would have this process's threads
        self.log, self.points, self.most = log, [], most
        self.pipe, self.end_of_process = context.Pipe()
        self.process = context.Process(target=run, args=(train, log, self.end_of_process, os.getpid(), *arguments))

    def take_turn(self) -> bool:
        """
        Train until the end of a turn or of the training. Returns False at the end of the training.

        Raises:
            InputError: the process failed.
        """
        try:
            if self.process.pid is None:
                self.process.start()
                self.end_of_process.close()
            else:
                self.pipe.send(None)
            while (point := self.pipe.recv()) is not None:
                self.points.append(point)
        except (EOFError, OSError) as error:
            self.process.join()
            if isinstance(error, EOFError) and self.process.exitcode == 0:
                return False
            raise InputError(
                f"{self.log.stem}: its process ended with exit status {self.process.exitcode}; see {self.log}."
            ) from None
        if self.points and self.points[-1]["seconds"] >= self.most:
            self.kill()
            return False
        return True

    def kill(self):
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def run(train: Callable, log: Path, pipe: Connection, parent: int, *arguments):
    exit_with_parent(parent)
    transformers.utils.logging.set_verbosity_error()
    with open(log, "w", buffering=1) as lines, redirect_stdout(lines):
        train(pipe, *arguments)


def train_in_turns(sides: dict[str, Side]) -> Iterator[tuple[str, Side]]:
    """
    Let the sides train in turns, and yield each when it is done. The first one of a round alternates.

    Raises:
        InputError: a side failed.
    """
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
