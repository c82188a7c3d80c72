"""Trainer that stops before a step with a non-finite loss or gradient norm, and resumes runs bit-exactly."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import PreTrainedModel, Trainer, TrainerCallback
from transformers.trainer import SCHEDULER_NAME
from transformers.utils import logging

from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..publishing.model_card import create_model_card
from ..support.errors import Divergence, InputError
from ..support.files import error_reason, reading
from .arguments import LONGEST_INTERVAL, CommonArguments
from .output import last_checkpoint
from .speed import use_fast_dropout

logger = logging.get_logger(__name__)
# What attention functions and gradient checkpointing raise in the first step if their options cannot work.
STEP_ERRORS = (ImportError, NotImplementedError, ValueError)


@contextmanager
def trainer_errors(action: str = "start", types: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
    """
    Context manager that turns errors of these types into an InputError. The default is all types, because Trainer,
    accelerate and torch raise many types of errors for arguments, missing packages and the Hub.
    """
    try:
        yield
    except InputError:
        raise
    except types as error:
        raise InputError(f"Trainer cannot {action}: {error_reason(error)}") from error


class CommonTrainer(Trainer):
    """
    Trainer that stops on all processes if a loss or gradient norm is NaN or infinite on any process.

    Logged losses are averages over the steps applied since the last log entry. A resumed run sees the same examples as
    an uninterrupted run and ends with the same weights.
    """

    counts = 0  # number of sums that a subclass logs in addition to the loss
    args: CommonArguments
    model: PreTrainedModel

    def __init__(self, *args, **kwargs):
        with trainer_errors():
            super().__init__(*args, **kwargs)
        if isinstance(self.model, FixedHeadBertPreTrainedModel):
            use_fast_dropout(self.model)
        self.step_losses = []  # one loss per batch in the current step
        self.step_tokens = []  # one token count per batch, if a subclass counts tokens
        self.is_resumed = False
        self.reset_losses()
        self.add_callback(Resumption(self))

    def create_accelerator_and_postprocess(self):
        # Every parameter of a FixedHeadBert gets a gradient, so DDP can skip its search for unused parameters.
        if isinstance(self.model, FixedHeadBertPreTrainedModel) and self.args.ddp_find_unused_parameters is None:
            self.args.ddp_find_unused_parameters = False
        super().create_accelerator_and_postprocess()
        if self.is_fsdp_enabled:
            state_dict_type = str(self.accelerator.state.fsdp_plugin.state_dict_type).rpartition(".")[2]
            if state_dict_type != "FULL_STATE_DICT":  # Trainer would silently save no model at the end
                raise InputError(f"FSDP cannot save the trained model as a {state_dict_type}; use FULL_STATE_DICT.")

    def reset_losses(self):
        """Resets the sums for the run's average loss and the sums for the next log entry."""
        self.total_loss, self.total_steps = 0.0, 0  # over the applied steps that have been logged
        self.begin_window()

    def begin_window(self):
        """Resets the sums for the next log entry."""
        self.window = torch.zeros(1 + self.counts, device=self.args.device)  # summed losses, and a subclass's sums
        self.window_steps = 0  # applied steps
        self.window_began = time.monotonic()

    def loader(self, dataset: Dataset, batch_size: int, sampler: Sampler, **options) -> DataLoader:
        """Returns a data loader that assigns batches to processes. `options` override the `dataloader_*` arguments."""
        names = [field.name for field in fields(self.args) if field.name.startswith("dataloader_")]
        given = {name.removeprefix("dataloader_"): getattr(self.args, name) for name in names}
        with trainer_errors():
            batches = DataLoader(
                dataset, batch_size, sampler=sampler, collate_fn=self.data_collator, **given | options
            )
        return self.accelerator.prepare(batches)

    # Two modules hold the bias of BERT's decoder, so accelerate would shard it twice. Because accelerate prepares the
    # model after the optimizer is created and before the scheduler is, the second reference is removed in between.
    def create_optimizer(self, *args, **kwargs):
        with trainer_errors():
            optimizer = super().create_optimizer(*args, **kwargs)
        is_fsdp2 = self.is_fsdp_enabled and self.accelerator.state.fsdp_plugin.fsdp_version == 2
        self.aliases = output_bias_aliases(self.model) if is_fsdp2 else []
        for module, name in self.aliases:
            delattr(module, name)
        return optimizer

    def create_scheduler(self, *args, **kwargs):
        for module, name in self.aliases:
            setattr(module, name, self.model.get_output_embeddings().bias)
        with trainer_errors():
            return super().create_scheduler(*args, **kwargs)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs):
        """
        Trains the model, or resumes training from a checkpoint.

        Raises:
            InputError: If the checkpoint is corrupted.
            Divergence: If a loss or gradient norm is NaN or infinite, or if a weight is when the model is saved.
        """
        with ExitStack() as self.loading:  # closed when the checkpoint has been loaded
            if resume_from_checkpoint:
                remedy = "remove it and run the same command to resume from the previous checkpoint"
                self.loading.enter_context(reading(resume_from_checkpoint, remedy))
                self.check_files(Path(str(resume_from_checkpoint)))
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def check_files(self, checkpoint: Path):
        """Raises an error if a file is missing without which Trainer would resume inexactly."""
        if not checkpoint.is_dir():
            raise FileNotFoundError("no such directory")
        if self.is_deepspeed_enabled:  # has its own files, which it checks
            return
        process = f"_{self.args.process_index}" if self.args.world_size > 1 else ""
        for pattern in ("optimizer*", SCHEDULER_NAME, f"rng_state{process}.pth"):
            if not any(checkpoint.glob(pattern)):
                raise ValueError(f"{pattern.replace('*', '.pt')} is missing")

    # trainer_state.json, which the main process writes next, marks the checkpoint as complete.
    def _save_rng_state(self, *args):
        super()._save_rng_state(*args)
        self.accelerator.wait_for_everyone()

    def get_batch_samples(self, *args, **kwargs):
        """Returns the batches for the next step, or no batches if the run is resumed after its last step."""
        return ([], None) if self.control.should_training_stop else super().get_batch_samples(*args, **kwargs)

    def training_step(self, *args, **kwargs):
        with trainer_errors("train", STEP_ERRORS):
            loss = super().training_step(*args, **kwargs)
        self.step_losses.append(loss)
        return loss

    # No public method or callback receives the norm before the step. If it is infinite, clipping sets gradients to 0.
    def _get_grad_norm(self, *args, **kwargs):
        norm = super()._get_grad_norm(*args, **kwargs)
        return norm if self.apply_finite_step(norm) else None

    def apply_finite_step(self, norm: torch.Tensor | float | None) -> bool:
        """
        Returns True if the step can be applied, because its losses and gradient norm are finite on all processes.

        In this case, adds the losses to the sums for the next log entry. If the only problem is an fp16 overflow, the
        loss scaler skips the step.

        Raises:
            Divergence: Otherwise, before the weights and the optimizer state change.
        """
        losses, self.step_losses = torch.stack(self.step_losses).to(self.args.device), []
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        norm = losses.new_zeros(()) if norm is None else torch.as_tensor(norm, device=losses.device)
        tokens, self.step_tokens = sum(self.step_tokens, losses.new_zeros((), dtype=torch.long)), []
        flags = torch.stack([~losses.isfinite().all(), ~norm.isfinite(), tokens])  # one transfer from the device
        nonfinite_loss, nonfinite_norm, tokens_seen = self.accelerator.reduce(flags, "sum").tolist()
        self.state.num_input_tokens_seen += tokens_seen
        if not (nonfinite_loss or nonfinite_norm):
            self.window[0] += losses.sum()
            self.window_steps += 1
            return True
        step, scaler = self.state.global_step + 1, self.accelerator.scaler
        if scaler is not None and not nonfinite_loss and scaler.get_scale() >= 1:
            self.log({"skipped_step": step})
            logger.warning(f"step {step}: skipped because fp16 overflows at a loss scale of {scaler.get_scale():g}")
            return False  # the scaler skips the step and lowers its scale
        raise self.divergence(f"step {step}: non-finite {'loss' if nonfinite_loss else 'gradient norm'}")

    def divergence(self, problem: str) -> Divergence:
        """Returns an error that states the problem, the last checkpoint and possible remedies."""
        checkpoint = last_checkpoint(self.args.directory)
        saved = f"the last checkpoint is {checkpoint}" if checkpoint else "no checkpoint has been saved"
        return Divergence(f"{problem}; {saved}; lower `learning_rate`, or check the initial weights and the data.")

    # Trainer would report tied weights as missing, because a checkpoint contains them only once.
    def _issue_warnings_after_load(self, load_result):
        missing = [name for name in load_result.missing_keys if name not in self.model.all_tied_weights_keys]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    # With FSDP, Trainer's state dict contains tied weights twice, but a model directory must contain them once.
    def _save(self, output_dir: str | None = None, state_dict: dict | None = None):
        if state_dict is not None:
            tied = self.model.all_tied_weights_keys
            state_dict = {name: weight for name, weight in state_dict.items() if name not in tied}
        super()._save(output_dir, state_dict)

    def save_model(self, output_dir: str | None = None, *args, **kwargs):
        """
        Saves the model.

        Raises:
            Divergence: If a weight is NaN or infinite. In this case, nothing is saved.
        """
        weights = (x.to_local() if isinstance(x, DTensor) else x for x in self.model.parameters())
        is_finite = torch.stack([weight.detach().isfinite().all().to(self.args.device) for weight in weights]).all()
        if self.accelerator.reduce((~is_finite).float(), "sum").item():
            raise self.divergence(f"step {self.state.global_step}: the weights contain NaN or infinity")
        super().save_model(output_dir, *args, **kwargs)

    def evaluation_loop(self, *args, **kwargs):
        # accelerate shards models only together with an optimizer. Without one, each process evaluates the full model.
        is_fsdp_enabled = self.is_fsdp_enabled
        self.is_fsdp_enabled = is_fsdp_enabled and self.optimizer is not None
        with torch.random.fork_rng(devices=[]):  # the data loader draws a random number, which would affect training
            output = super().evaluation_loop(*args, **kwargs)
        self.is_fsdp_enabled = is_fsdp_enabled
        assert output.metrics is not None
        # Trainer adds this entry only if it evaluates before training, so a resumed run would have different metrics.
        output.metrics.pop(f"{kwargs.get('metric_key_prefix', 'eval')}_model_preparation_time", None)
        predictions = output.predictions if isinstance(output.predictions, tuple) else (output.predictions,)
        if not all(np.isfinite(values).all() for values in predictions if values is not None):
            raise Divergence("evaluation outputs contain NaN or infinity; start from different weights.")
        return output

    def create_model_card(self, *args, **kwargs):
        create_model_card(self)

    def log(self, logs, *args, **kwargs):
        """
        Logs metrics. Averages the loss over steps applied since the last entry, or omits it if there are none. A run
        that was resumed omits `train_loss`, the average over all steps.
        """
        if "loss" in logs and not self.window_steps:
            return
        if "loss" in logs or "train_loss" in logs:
            loss, *counts = self.accelerator.reduce(self.window, "sum").tolist()
            self.total_loss += loss / self.args.world_size
            self.total_steps += self.window_steps
            if "loss" in logs:
                logs |= {"loss": loss / self.args.world_size / self.window_steps, **self.counted(counts)}
            elif self.total_steps and not self.is_resumed:  # the sums only cover the steps since then
                logs["train_loss"] = self.total_loss / self.total_steps
            else:
                del logs["train_loss"]
            self.begin_window()
        super().log(logs, *args, **kwargs)

    def counted(self, counts: list[float]) -> dict[str, float]:
        """Returns a subclass's metrics for the log, given its `counts` since the last entry, summed over processes."""
        return {}


def output_bias_aliases(model: PreTrainedModel) -> list[tuple[torch.nn.Module, str]]:
    """Returns (module, attribute name) for each module that shares the bias of the output embeddings."""
    output = model.get_output_embeddings()
    bias = getattr(output, "bias", None)
    own = ((module, name, x) for module in model.modules() for name, x in module.named_parameters(recurse=False))
    return [(module, name) for module, name, x in own if x is bias and module is not output]


class Resumption(TrainerCallback):
    """Callback that starts a resumed run in the correct epoch, or ends the run if all steps are done."""

    def __init__(self, trainer: CommonTrainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        self.trainer.loading.close()
        self.trainer.reset_losses()
        self.trainer.is_resumed = state.global_step > 0
        state.compute_steps(args, state.max_steps)  # a checkpoint contains the intervals of the interrupted run
        if args.logging_steps < 1:  # a fraction of all steps
            state.logging_steps = min(state.logging_steps, LONGEST_INTERVAL)
        self.is_done = state.global_step >= state.max_steps
        if state.global_step > state.max_steps and state.is_world_process_zero:
            print(
                f"this run has already done {state.global_step:,} steps, more than the {state.max_steps:,} requested; "
                f"to train for fewer steps, remove {args.output_dir}"
            )

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        control.should_training_stop |= self.is_done
        # Trainer sets the epoch only after it has wrapped the sampler to skip batches, so the call may not reach it.
        steps = -(-len(train_dataloader) // args.gradient_accumulation_steps)
        train_dataloader.set_epoch(state.global_step // steps)

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.is_done:
            control.should_log = control.should_evaluate = control.should_save = False
