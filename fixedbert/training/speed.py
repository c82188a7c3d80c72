"""What makes training faster and leaves its results as they are, and what other processes take from it."""

import ctypes
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import PreTrainedModel, TrainerCallback

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from glibc's malloc.h
WINDOW = 30.0  # seconds
BUSY = 0.25  # of the time that threads want a processor
Times = dict[str, tuple[int, int]]  # of each thread the nanoseconds that it ran, and that it was ready but had to wait


def keep_freed_memory(device: torch.device):
    """
    Let glibc keep what tensors free instead of handing it back to the kernel.

    By default every large tensor is mapped and unmapped anew, and a training step on a CPU spends up to half its time
    in page faults. No effect on other devices and with other C libraries.
    """
    if device.type == "cpu" and sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_MMAP_MAX, 0)
            mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def enable_unpadding(model: PreTrainedModel):
    """Let a FixedHeadBert compute real tokens only; the configuration that it saves stays as it is."""
    switch_on(model.base_model, "unpad_inputs")


def enable_sparse_prediction(model: PreTrainedModel):
    """Let the head of a FixedHeadBert compute logits only where there is a label, for the same loss."""
    switch_on(model, "sparse_prediction")


def switch_on(module: torch.nn.Module, name: str):
    setattr(module, name, True)  # other models take no notice


class BusyMachine(TrainerCallback):
    """
    Says once in a process that others take the processors which its threads want, and what helps.

    Processor time does not show it, because threads that spin while they wait for each other use it too. The kernel
    counts how long a thread was ready to run and had no processor. Nothing is said where it does not (macOS), of a
    training on another device, or where there is one thread.
    """

    said = False

    def on_train_begin(self, args, state, control, **kwargs):
        self.began, self.before = time.monotonic(), times_of_threads()

    def on_step_end(self, args, state, control, **kwargs):
        threads = torch.get_num_threads()
        if BusyMachine.said or threads == 1 or args.device.type != "cpu" or time.monotonic() < self.began + WINDOW:
            return
        share = share_of_waiting(self.before, times_of_threads())
        self.on_train_begin(args, state, control)
        if share >= BUSY:
            BusyMachine.said = True
            PartialState().print(
                f"step {state.global_step:,}: other processes have the processors for {share:.0%} of the time in "
                f"which the {threads} threads of this run want them; as threads wait for each other, one alone is "
                "then often several times as fast: set OMP_NUM_THREADS=1 (losses differ in their last digits)."
            )


def times_of_threads(folder: Path = Path("/proc/self/task")) -> Times:
    """The times of each thread of this process; none where the system does not say."""
    found = {}
    for file in folder.glob("*/schedstat"):
        with suppress(OSError):  # a thread that has ended
            ran, waited, _ = map(int, file.read_text().split())
            found[file.parent.name] = ran, waited
    return found


def share_of_waiting(before: Times, now: Times) -> float:
    """The part of the time in which threads wanted a processor and had none; 0 where nothing is known."""
    new = [(now[name], before.get(name, (0, 0))) for name in now]
    ran, waited = (sum(end[place] - begin[place] for end, begin in new) for place in (0, 1))
    return waited / (ran + waited) if ran + waited else 0.0
