"""What makes training faster and leaves its results as they are."""

import ctypes
import sys

import torch
from transformers import PreTrainedModel

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from glibc's malloc.h


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


def skip_padding(model: PreTrainedModel):
    """Let a FixedHeadBert compute real tokens only; the configuration that it saves stays as it is."""
    switch_on(model.base_model, "unpad_inputs")


def predict_labelled_tokens_only(model: PreTrainedModel):
    """Let the head of a FixedHeadBert compute logits only where there is a label, for the same loss."""
    switch_on(model, "sparse_prediction")


def switch_on(module: torch.nn.Module, name: str):
    setattr(module, name, True)  # other models take no notice
