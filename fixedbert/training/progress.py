"""What a person sees of a pretraining run, and how it stops: one line of progress, a checkpoint on SIGTERM."""

import signal

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ProgressCallback


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


class StopOnSigterm(TrainerCallback):
    """On SIGTERM, which schedulers send before they kill, save a checkpoint after the step under way and stop."""

    def __init__(self):
        self.asked = self.stopped = False

    def on_train_begin(self, args, state, control, **kwargs):
        self.before = signal.signal(signal.SIGTERM, self.ask)

    def ask(self, *_):
        self.asked = True

    def on_step_end(self, args, state, control, **kwargs):
        asked = self.asked
        if args.world_size > 1:  # all or none: the signal reaches processes at different steps
            votes = torch.tensor(float(asked), device=args.device)
            torch.distributed.all_reduce(votes)
            asked = votes.item() > 0
        if asked and state.global_step < state.max_steps:
            self.stopped = control.should_save = control.should_training_stop = True
            control.should_evaluate = False  # little time is left

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.stopped:
            control.should_save = state.epoch % 1 == 0
            if not control.should_save:  # Trainer takes this for the end of an epoch
                control.should_log = control.should_evaluate = False

    def on_train_end(self, args, state, control, **kwargs):
        signal.signal(signal.SIGTERM, self.before)
