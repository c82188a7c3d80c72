"""Training that can be interrupted: a signal saves a checkpoint, from which the same command resumes."""

import signal
import threading
from collections.abc import Sized
from pathlib import Path

import torch
from safetensors.torch import load_model
from transformers import TrainerCallback, TrainerState
from transformers.dynamic_module_utils import custom_object_save
from transformers.integrations import TensorBoardCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SaveStrategy
from transformers.utils import SAFE_WEIGHTS_NAME

from ..support.errors import Stopped
from ..support.files import reading
from .output import WriteChecksums, step_of
from .results import record_metrics
from .trainer import CommonTrainer


def train(trainer: CommonTrainer, checkpoint: str | None):
    """
    Train, or resume from `checkpoint`, and save weights, tokenizer, log and metrics. A trained model is only loaded.

    On Ctrl-C and SIGTERM the run saves a checkpoint.

    Raises:
        KeyboardInterrupt: after Ctrl-C.
        Stopped: after SIGTERM, with exit status 143.
    """
    folder = str(trainer.args.directory)
    if checkpoint == folder:
        with reading(folder, "remove it and start anew", "the trained model cannot be read"):
            load_model(trainer.model, Path(folder, SAFE_WEIGHTS_NAME))
            trainer.state = TrainerState.load_from_json(str(Path(folder, TRAINER_STATE_NAME)))
        trainer.state.is_local_process_zero = trainer.is_local_process_zero()
        trainer.state.is_world_process_zero = trainer.is_world_process_zero()
        return
    if trainer.is_world_process_zero():
        if checkpoint and (step := step_of(Path(checkpoint))) >= 0:
            print(f"resuming from step {step:,} ({checkpoint})")
    if trainer.args.push_to_hub and trainer.is_world_process_zero() and trainer.model.is_remote_code():
        custom_object_save(trainer.model, folder)  # what goes to the Hub while training has code too
    for callback in trainer.callback_handler.callbacks:  # one run of TensorBoard, however often it was continued
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(trainer.args.directory / "runs")
    stop = StopOnSignal()
    trainer.add_callback(stop)
    trainer.add_callback(WriteChecksums)
    if checkpoint:
        trainer.args.eval_on_start = False  # it was evaluated when it began
    try:
        result = trainer.train(checkpoint)
        if not stop.stopped:
            trainer.save_model()
            assert isinstance(trainer.train_dataset, Sized)
            record_metrics(trainer, "train", result.metrics | {"train_samples": len(trainer.train_dataset)})
            trainer.save_state()  # last: it says that the rest is there
    finally:
        stop.restore()
    if stop.asked_anywhere(trainer.args):
        raise KeyboardInterrupt if stop.asked == signal.SIGINT else Stopped(stop.asked)


class StopOnSignal(TrainerCallback):
    """
    On SIGTERM, which schedulers send before they kill, and on Ctrl-C, save a checkpoint after the step or evaluation
    under way and stop. A second Ctrl-C interrupts at once.
    """

    def __init__(self):
        self.asked = 0  # the number of the signal
        self.stopped = False
        self.before = {}

    def on_train_begin(self, args, state, control, **kwargs):
        self.processes = args.world_size
        if threading.current_thread() is not threading.main_thread():  # the only one that may handle signals
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) != signal.SIG_IGN:  # a worker leaves Ctrl-C to the process that started it
                self.before[number] = signal.signal(number, self.ask)

    def ask(self, number, _frame):
        # The launcher of several processes passes on a Ctrl-C that the terminal has sent to all of them already.
        if self.asked and number == signal.SIGINT and self.processes == 1:
            raise KeyboardInterrupt
        self.asked = self.asked or number

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step < state.max_steps:
            self.stop_if_asked(args, control)

    def on_evaluate(self, args, state, control, **kwargs):
        # Before the first step there is nothing to save, and strategy best decides after this whether to: there the
        # next step is the last.
        if self.before and 0 < state.global_step < state.max_steps and args.save_strategy != SaveStrategy.BEST:
            self.stop_if_asked(args, control)

    def stop_if_asked(self, args, control):
        if self.asked_anywhere(args):
            self.stopped = control.should_save = control.should_training_stop = True
            control.should_evaluate = False  # little time is left

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.stopped:
            control.should_save = state.epoch % 1 == 0
            if not control.should_save:  # Trainer takes this for the end of an epoch
                control.should_log = control.should_evaluate = False

    def asked_anywhere(self, args) -> bool:
        """All or none: a signal reaches processes at different steps."""
        if args.world_size > 1:
            votes = torch.tensor(self.asked, device=args.device)
            torch.distributed.all_reduce(votes, torch.distributed.ReduceOp.MAX)
            self.asked = int(votes)
        return self.asked > 0

    def restore(self):
        while self.before:
            signal.signal(*self.before.popitem())
