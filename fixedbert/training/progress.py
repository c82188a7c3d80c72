"""What a person sees of a pretraining run, and how it stops: one line of progress, a checkpoint on a signal."""

import signal

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import SaveStrategy


class ProgressLine(ProgressCallback):
    """One line with loss, accuracy of the predicted tokens, real tokens per second, fill ratio and time left."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self.training_bar is None:
            return
        if "loss" in logs and "fill_ratio" in logs:
            accuracy = next(value for name, value in logs.items() if name.endswith("_accuracy"))
            self.training_bar.set_postfix_str(
                f"loss {logs['loss']:.3f}, accuracy {accuracy:.1%}, {logs['tokens_per_second']:,.0f} tokens/s, "
                f"fill {logs['fill_ratio']:.0%}"
            )
        elif any(name.startswith("eval_") for name in logs):
            names = ("loss", "perplexity", "accuracy")
            told = {name: value for name, value in logs.items() if name.endswith(names)}
            line = ", ".join(f"{name.removeprefix('eval_')} {value:.4g}" for name, value in told.items())
            self.training_bar.write(f"step {state.global_step:,}, held out: {line}")


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
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) != signal.SIG_IGN:  # a worker leaves Ctrl-C to the process that started it
                self.before[number] = signal.signal(number, self.ask)
        self.processes = args.world_size

    def ask(self, number, _frame):
        # The launcher of several processes passes on a Ctrl-C that the terminal has sent to all of them already.
        if self.asked and number == signal.SIGINT and self.processes == 1:
            raise KeyboardInterrupt
        self.asked = self.asked or number

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step < state.max_steps:
            self.stop_if_asked(args, control)

    def on_evaluate(self, args, state, control, **kwargs):
        # Strategy best decides after this whether to save: there the next step is the last.
        if self.before and state.global_step < state.max_steps and args.save_strategy != SaveStrategy.BEST:
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
