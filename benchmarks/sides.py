"""Training runs that take turns on one machine, each in its own process. Clocks count only training time."""

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

MIN_POINTS, MAX_POINTS = 5, 30  # evaluations in a run: one per minute, within these limits
TURN = 120.0  # seconds; shorter in short runs
MIN_TURNS = 5  # in a short run
MAX_STEPS = 10**7  # never reached, because the time limit ends a run

Batch = dict[str, torch.Tensor]
Stages = list[tuple[float, int]]  # where each stage ends: a fraction of the total time, and a step


class Clock:
    """A clock that can be stopped and started again."""

    def __init__(self):
        self.before, self.began = 0.0, None

    @property
    def seconds(self) -> float:
        return self.before + (0.0 if self.began is None else time.perf_counter() - self.began)

    def start(self):
        self.began = time.perf_counter()

    def stop(self):
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # steps queued on the GPU count as training time
        self.before, self.began = self.seconds, None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.stop()
        yield
        self.start()


class TimedTraining(TrainerCallback):
    """
    A callback that evaluates the model, takes turns with other processes, and ends training after `seconds`.

    The learning-rate schedule is stretched over the training time. After half of a stage's time, the learning rate is
    the one for half of the stage's steps. Each stage is a separate run of Trainer. The clock continues between stages.

    Args:
        pipe: Receives the points of the loss curve, and None at the end of each turn. Training then waits until the
            other end sends something.
        held_out: Labeled batches for the evaluation, the same in all processes.
        seconds: Total training time of all stages.
    """

    def __init__(self, pipe: Connection, held_out: list[Batch], seconds: float, stages: Stages):
        self.pipe, self.held_out, self.seconds = pipe, held_out, seconds
        self.fractions, self.steps = zip(*stages, strict=True)
        self.turn = min(TURN, seconds / MIN_TURNS)
        self.max_points = min(max(MIN_POINTS, round(seconds / 60)), MAX_POINTS)
        self.clock, self.stage, self.points, self.turn_ends = Clock(), 0, 0, self.turn
        self.flops, self.uncounted, self.steps_before = 0.0, [], 0

    def on_train_begin(self, args, state, control, model, lr_scheduler, **kwargs):
        (schedule,) = make_scheduler(args, self.steps[-1]).lr_lambdas
        lr_scheduler.lr_lambdas = [lambda _: schedule(self.schedule_step()) for _ in lr_scheduler.lr_lambdas]
        self.flops_of_row = cache(partial(training_flops, model.config))
        model.register_forward_pre_hook(self.remember_tokens, with_kwargs=True)
        if self.stage == 0:
            self.send_point(state, model)
            self.clock.start()

    def schedule_step(self) -> float:
        return float(np.interp(self.clock.seconds / self.seconds, [0, *self.fractions], [0, *self.steps]))

    def remember_tokens(self, model, _args, batch):
        if model.training:
            self.uncounted.append(computed_tokens(model, batch))  # read later, to avoid waiting for the GPU

    def on_step_end(self, args, state, control, model, **kwargs):
        passed = self.clock.seconds / self.seconds
        stage_is_over = passed >= self.fractions[self.stage]
        if stage_is_over or int(passed * self.max_points) > self.points:
            self.points = int(passed * self.max_points)
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


def make_scheduler(arguments: TrainingArguments, steps: int) -> LRScheduler:
    """Returns the learning-rate scheduler that the arguments specify for this number of steps."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    warmup = arguments.get_warmup_steps(steps)
    return get_scheduler(arguments.lr_scheduler_type, optimizer, warmup, steps, arguments.lr_scheduler_kwargs)


def computed_tokens(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """
    Returns how many tokens of each row the layers and the masked-LM head process, as a tensor (B, 2).

    FixedHeadBert skips padding and predicts only labeled tokens. Tokens that only its last layer skips are counted.
    """
    computed = predicted = torch.ones_like(batch["input_ids"])
    if isinstance(model, FixedHeadBertPreTrainedModel):
        computed, predicted = batch.get("attention_mask", computed), batch["labels"].ne(-100)
    return torch.stack([computed.sum(dim=1), predicted.sum(dim=1)], dim=1)


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, batches: list[Batch]) -> float:
    """Returns the average loss over labeled tokens, in nats. Without a next-sentence head, token types are omitted."""
    model.eval()
    total, labelled = 0.0, 0
    for batch in batches:
        if not hasattr(model.cls, "seq_relationship"):
            batch = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        logits, targets = logits_and_targets(model(**batch)[1], batch["labels"], "mlm")  # the first output is the loss
        total += cross_entropy(logits.float(), targets, reduction="sum").item()
        labelled += len(targets)
    model.train()
    return total / labelled


class Side:
    """
    A process that trains during its turns.

    Args:
        train: Function to call in the process with a pipe for `TimedTraining` and with `arguments`.
        log: File for the standard output of the process.
        max_seconds: Training time after which the process is killed without saving a model.
    """

    def __init__(self, train: Callable, log: Path, *arguments, max_seconds: float = math.inf):
        context = multiprocessing.get_context("spawn")  # forking is unsafe in a process with threads
        self.log, self.points, self.max_seconds = log, [], max_seconds
        self.pipe, self.end_of_process = context.Pipe()
        self.process = context.Process(target=run, args=(train, log, self.end_of_process, os.getpid(), *arguments))

    def take_turn(self) -> bool:
        """Lets the process train until its turn ends. Returns False if training is complete."""
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
                f"{self.log.stem}: the process failed with exit status {self.process.exitcode}; see {self.log}."
            ) from None
        if self.points and self.points[-1]["seconds"] >= self.max_seconds:
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
    with open(log, "w", buffering=1) as output, redirect_stdout(output):
        train(pipe, *arguments)


def train_in_turns(sides: dict[str, Side]) -> Iterator[tuple[str, Side]]:
    """Lets the sides train in turns, in alternating order, and yields each side with its name once it is complete."""
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
