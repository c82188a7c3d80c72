"""Training that saves a checkpoint and stops when it receives a signal. The same command resumes the run."""

import signal
import threading
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from transformers import TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import SAFE_WEIGHTS_NAME

from ..support.errors import Stopped
from ..support.files import reading
from .output import checkpoint_step, record_metrics
from .trainer import CommonTrainer


def train(trainer: CommonTrainer, checkpoint: str | None):
    """
    Trains the model, or resumes training from `checkpoint`. Saves the weights, tokenizer, log and metrics. If
    `load_model` converted the weights to float32, they are rounded to their original dtype before they are saved.

    If `checkpoint` is the output directory itself, training is already complete. In this case, only loads the model
    and the log.

    Raises:
        KeyboardInterrupt: After Ctrl-C is pressed and a checkpoint has been saved.
        Stopped: After SIGTERM is received and a checkpoint has been saved.
    """
    directory = trainer.args.directory
    if checkpoint == str(directory):
        weights = directory / SAFE_WEIGHTS_NAME
        with reading(weights, f"remove {TRAINER_STATE_NAME} next to it to resume from the last checkpoint"):
            load_model(trainer.model, weights)
        trainer.state = TrainerState.load_from_json(str(directory / TRAINER_STATE_NAME))
        trainer.state.is_local_process_zero = trainer.is_local_process_zero()
        trainer.state.is_world_process_zero = trainer.is_world_process_zero()
        return
    if checkpoint:
        trainer.args.eval_on_start = False
        if trainer.is_world_process_zero() and (step := checkpoint_step(Path(checkpoint))) >= 0:
            print(f"resuming from step {step:,} ({checkpoint})")
    stop = StopOnSignal()
    trainer.add_callback(stop)
    try:
        result = trainer.train(checkpoint)
        if not stop.stopped:
            saved_dtype = vars(trainer.model).get("saved_dtype")
            if saved_dtype:  # not in checkpoints, because resuming needs all digits
                trainer.model.to(saved_dtype)
            trainer.save_model()
            if saved_dtype:
                trainer.model.float()  # FSDP cannot run a model whose dtype has changed
            rows: Any = trainer.train_dataset
            samples = len({*rows["example"]}) if "example" in getattr(rows, "column_names", ()) else len(rows)
            record_metrics(trainer, "train", result.metrics | {"train_samples": samples})
            trainer.save_state()  # last, because trainer_state.json marks the training as complete
    finally:
        while stop.previous_handlers:
            signal.signal(*stop.previous_handlers.popitem())
    if number := stop.requested_anywhere(trainer.args):
        raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)


class StopOnSignal(TrainerCallback):
    """
    Callback that reacts to SIGTERM or Ctrl-C: saves a checkpoint after the current step, and stops training.

    Job schedulers send SIGTERM before they kill a process. In a run with a single process, a second Ctrl-C interrupts
    training immediately.
    """

    def __init__(self):
        self.requested = 0  # the number of the signal that this process has received, or 0
        self.stopped = False
        self.previous_handlers = {}

    def on_train_begin(self, args, state, control, **kwargs):
        self.processes = args.world_size
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread can handle signals
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(signal_number) != signal.SIG_IGN:  # worker processes leave Ctrl-C to their parent
                self.previous_handlers[signal_number] = signal.signal(signal_number, self.request)

    def request(self, signal_number, _frame):
        # With a launcher, one Ctrl-C arrives twice: from the terminal and from the launcher.
        if self.requested and signal_number == signal.SIGINT and self.processes == 1:
            raise KeyboardInterrupt
        self.requested = self.requested or signal_number

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step < state.max_steps and self.requested_anywhere(args):
            self.stopped = control.should_save = control.should_training_stop = True
            control.should_evaluate = False  # the scheduler may kill the process before an evaluation ends

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.stopped:  # Trainer also calls this for an incomplete epoch
            control.should_save = state.epoch % 1 == 0
            if not control.should_save:
                control.should_log = control.should_evaluate = False

    def requested_anywhere(self, args) -> int:
        """Returns, on all processes, the number of a signal that at least one process has received, or 0."""
        if args.world_size == 1:
            return self.requested
        votes = torch.tensor(self.requested, device=args.device)
        torch.distributed.all_reduce(votes, torch.distributed.ReduceOp.MAX)
        return int(votes)  # not stored in self.requested, because a signal can arrive during the vote
