"""The Trainer that pretraining and fine-tuning share: finite steps only, and resumed runs with one log."""

import errno
import time
from collections.abc import Sized
from dataclasses import fields
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import gather_object
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import PreTrainedModel, Trainer, TrainerCallback
from transformers.utils import logging

from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..publishing.model_card import create_model_card
from ..support.errors import Divergence, InputError
from ..support.files import finite, read_json_object, reading, to_json, write_atomically
from .arguments import CommonArguments
from .dropout import use_fast_dropout
from .output import last_checkpoint, remedy_for
from .speed import BusyMachine

WINDOW_FILE = "logging_window.json"
NAMED = 8  # examples in a message

logger = logging.get_logger(__name__)


class CommonTrainer(Trainer):
    """
    Trainer that skips each step whose loss or gradient norm is not finite. A resumed run sees the same rows and writes
    the same log as an uninterrupted one.
    """

    counts = 0  # numbers that a trainer sums for its log, besides the loss
    rows_of_example = 1
    args: CommonArguments
    model: PreTrainedModel

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if isinstance(self.model, FixedHeadBertPreTrainedModel):
            use_fast_dropout(self.model)
        self.step_losses = []  # of the batches of this step
        self.step_tokens = []  # their numbers of tokens, where a trainer counts them
        self.nonfinite_steps = 0  # in a row
        self.begin_window()
        self.add_callback(Continuation(self))
        self.add_callback(BusyMachine)

    def create_accelerator_and_postprocess(self):
        # DDP then searches no step's graph for parameters without a gradient: of our models only those that can attend
        # to an encoder have any.
        if isinstance(self.model, FixedHeadBertPreTrainedModel) and self.args.ddp_find_unused_parameters is None:
            self.args.ddp_find_unused_parameters = bool(self.model.config.add_cross_attention)
        super().create_accelerator_and_postprocess()
        if self.is_fsdp_enabled:
            state_dict_type = str(self.accelerator.state.fsdp_plugin.state_dict_type).rpartition(".")[2]
            if state_dict_type != "FULL_STATE_DICT":  # Trainer would save no model at the end, without a warning
                raise InputError(f"FSDP saves no trained model with {state_dict_type}: use FULL_STATE_DICT.")

    def begin_window(self):
        """Set the sums for the next log to zero."""
        self.window = torch.zeros(1 + self.counts)  # of the losses, and of what a trainer counts
        self.window_steps = 0  # those that are applied
        self.window_began = time.monotonic()

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs):
        self.continued_from, self.has_begun = resume_from_checkpoint, False
        self.begin_window()
        self.total_loss = 0.0  # of the steps before the window
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        except BaseException as error:
            if self.has_begun or not resume_from_checkpoint or getattr(error, "errno", None) == errno.ENOSPC:
                raise
            remedy = remedy_for(Path(str(resume_from_checkpoint)))
            with reading(resume_from_checkpoint, remedy, "the checkpoint cannot be loaded"):
                raise

    def loader(self, dataset: Dataset, batch_size: int, sampler: Sampler, **options) -> DataLoader:
        """Batches in the order of `sampler`, shared out among the processes; `options` win over dataloader_*."""
        names = [field.name for field in fields(self.args) if field.name.startswith("dataloader_")]
        given = {name.removeprefix("dataloader_"): getattr(self.args, name) for name in names}
        batches = DataLoader(dataset, batch_size, sampler=sampler, collate_fn=self.data_collator, **given | options)
        return self.accelerator.prepare(batches)

    # FSDP takes parameters by module. accelerate would give it BERT's output bias twice: with the decoder, and where
    # the head has it again. So it is there once from the creation of the optimizer to that of the scheduler.
    def create_optimizer(self, *args, **kwargs):
        optimizer = super().create_optimizer(*args, **kwargs)
        is_fsdp2 = self.is_fsdp_enabled and self.accelerator.state.fsdp_plugin.fsdp_version == 2
        self.aliases = aliases_of_bias(self.model) if is_fsdp2 else []
        for module, name in self.aliases:
            delattr(module, name)
        return optimizer

    def create_scheduler(self, *args, **kwargs):
        for module, name in self.aliases:
            setattr(module, name, self.model.get_output_embeddings().bias)
        return super().create_scheduler(*args, **kwargs)

    def get_batch_samples(self, *args, **kwargs):
        """The batches of a step; none where a run is continued after its last step."""
        return ([], None) if self.control.should_training_stop else super().get_batch_samples(*args, **kwargs)

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.step_losses.append(loss)
        return loss

    # Trainer shows nobody the norm before the step. To compute it again would take a pass over all gradients, and a
    # callback cannot tell a norm that overflows from a gradient of zero, which clipping makes of it.
    def _get_grad_norm(self, *args, **kwargs):
        norm = super()._get_grad_norm(*args, **kwargs)
        return norm if self.apply_finite_step(norm) else None

    def apply_finite_step(self, norm: torch.Tensor | float | None) -> bool:
        """
        Add the losses of a finite step to the log. Delete the gradients of any other, on all processes, so that
        neither weights nor the optimizer's moments change.

        Returns:
            Whether the step is applied.

        Raises:
            Divergence: too many steps in a row were not finite.
        """
        losses, self.step_losses = torch.stack(self.step_losses).to(self.args.device), []
        if isinstance(norm, DTensor):  # of sharded parameters
            norm = norm.full_tensor()
        norm = losses.new_zeros(()) if norm is None else torch.as_tensor(norm, device=losses.device)
        tokens, self.step_tokens = sum(self.step_tokens, losses.new_zeros((), dtype=torch.long)), []
        found = torch.stack([~losses.isfinite().all(), ~norm.isfinite(), tokens])  # all that a step reads, at once
        loss_is_bad, norm_is_bad, seen = self.accelerator.reduce(found, "sum").tolist()
        self.state.num_input_tokens_seen += seen
        if not (loss_is_bad or norm_is_bad):
            self.nonfinite_steps = 0
            self.window = self.window.to(losses.device)
            self.window[0] += losses.sum()
            self.window_steps += 1
            return True
        step, scaler = self.state.global_step + 1, self.accelerator.scaler
        self.log({"skipped_step": step})
        if scaler is not None and not loss_is_bad and scaler.get_scale() >= 1:
            logger.warning(f"step {step} is skipped: fp16 overflows at a loss scale of {scaler.get_scale():g}")
            return False  # the scaler leaves the step out, and lowers its scale
        self.nonfinite_steps += 1
        for parameter in self.model.parameters():
            parameter.grad = None
        wrong = "the loss" if loss_is_bad else "the gradient norm"
        sentence = f"step {step}: {wrong} is not finite, on {self.examples_of_step(losses)}"
        if self.nonfinite_steps < self.args.max_nonfinite_steps:
            logger.warning(f"{sentence}; the step is skipped")
            return False
        raise self.divergence(sentence)

    # A checkpoint has tied weights once. Trainer has no other way to be told, and would call them missing each time.
    def _issue_warnings_after_load(self, load_result):
        missing = [name for name in load_result.missing_keys if name not in self.model.all_tied_weights_keys]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    # Trainer is given sharded weights one by one, tied ones too. A model directory has these once; a run that ended
    # before its evaluation could not load them twice.
    def _save(self, output_dir: str | None = None, state_dict: dict | None = None):
        if state_dict is not None:
            tied = self.model.all_tied_weights_keys
            state_dict = {name: weight for name, weight in state_dict.items() if name not in tied}
        super()._save(output_dir, state_dict)

    def save_model(self, output_dir: str | None = None, *args, **kwargs):
        """
        Save the model, and in a checkpoint's folder the sums since the last log. Pushing is for `publish`.

        Raises:
            Divergence: on all processes, if the last update overflowed.
        """
        weights = (x.to_local() if isinstance(x, DTensor) else x for x in self.model.parameters())
        finite = torch.stack([weight.detach().isfinite().all().to(self.args.device) for weight in weights]).all()
        if self.accelerator.reduce((~finite).float(), "sum").item():
            raise self.divergence(f"step {self.state.global_step}: the weights are not finite")
        super().save_model(output_dir, True)
        if output_dir is not None and self.is_in_train:
            self.save_window(Path(output_dir))

    def divergence(self, sentence: str) -> Divergence:
        """The error that ends training, with the last good checkpoint and what to do."""
        checkpoint = last_checkpoint(self.args.directory)
        kept = f"the last good checkpoint is {checkpoint}" if checkpoint else "no checkpoint was saved before"
        return Divergence(
            f"{sentence}; nothing was saved since, {kept}: lower `learning_rate`, or see whether the weights at the "
            "start or the examples are damaged."
        )

    def examples_of_step(self, losses: torch.Tensor) -> str:
        """The examples of this step, by epoch and index: of the batches without a finite loss, or else of all."""
        loader, accumulation = self.callback_handler.train_dataloader, self.args.gradient_accumulation_steps
        assert loader is not None and isinstance(self.train_dataset, Sized)  # while it trains
        epoch, step = divmod(self.state.global_step, -(-len(loader) // accumulation))
        loader.set_epoch(epoch)
        batches = list(islice(loader.batch_sampler, step * accumulation, step * accumulation + len(losses)))
        batches = gather_object(list(zip(batches, losses.isfinite().tolist(), strict=True)))
        bad = [batch for batch, finite in batches if not finite] or [batch for batch, _ in batches]
        # Numbers of pretraining examples hold the epoch too.
        indices = [number % len(self.train_dataset) for batch in bad for number in batch]
        more = f" and {len(indices) - NAMED} more" if len(indices) > NAMED else ""
        return f"the examples {', '.join(map(str, indices[:NAMED]))}{more} of epoch {epoch}"

    def evaluation_loop(self, *args, **kwargs):
        shards = self.is_fsdp_enabled
        # accelerate shards a model with its optimizer: without one, each process evaluates with all of it.
        self.is_fsdp_enabled = shards and self.optimizer is not None
        with torch.random.fork_rng(devices=[]):  # every data loader draws a number, which training would miss
            output = super().evaluation_loop(*args, **kwargs)
        self.is_fsdp_enabled = shards
        assert output.metrics is not None  # of every evaluation
        prefix = kwargs.get("metric_key_prefix", "eval")
        output.metrics.pop(f"{prefix}_model_preparation_time", None)  # it is there only where nothing was trained
        predictions = output.predictions if isinstance(output.predictions, tuple) else (output.predictions,)
        if not all(np.isfinite(values).all() for values in predictions if values is not None):
            raise Divergence(
                "the model's outputs in the evaluation are not finite: its weights are damaged, or its training has "
                "diverged; start from other weights."
            )
        return output

    def create_model_card(self, *args, **kwargs):
        create_model_card(self)

    def log(self, logs, *args, **kwargs):
        """Trainer's, with losses that are means over the steps that were applied; without such a step, none."""
        if "loss" in logs or "train_loss" in logs:
            loss, *counts = self.accelerator.reduce(self.window.to(self.args.device), "sum").tolist()
            loss /= self.args.world_size
        if "train_loss" in logs:
            skipped = sum("skipped_step" in entry for entry in self.state.log_history)
            if applied := self.state.global_step - skipped:
                logs["train_loss"] = (self.total_loss + loss) / applied
            else:
                del logs["train_loss"]
        elif "loss" in logs:
            if not self.window_steps:
                return
            logs |= {"loss": loss / self.window_steps, **self.counted(counts)}
            self.total_loss += loss
            self.begin_window()
        super().log(logs, *args, **kwargs)

    def counted(self, counts: list[float]) -> dict[str, float]:
        """What is logged of the counts since the last log, summed over all processes."""
        return {}

    def save_state(self):
        self.make_state_finite()
        super().save_state()

    def make_state_finite(self):
        """Put None in place of numbers in trainer_state.json that JSON does not have."""
        self.state.log_history = finite(self.state.log_history)
        self.state.best_metric = finite(self.state.best_metric)

    def save_window(self, checkpoint: Path):
        """Write the sums since the last log, before trainer_state.json, which comes last."""
        self.make_state_finite()
        sums = gather_object([self.window.tolist()])  # of each process
        if self.args.should_save:
            record = {
                "steps": self.window_steps,
                "total_loss": self.total_loss,
                "nonfinite_steps": self.nonfinite_steps,
                "seconds": time.monotonic() - self.window_began,
                "sums": sums,
            }
            write_atomically(checkpoint / WINDOW_FILE, to_json(record, indent=1) + "\n")

    def restore_window(self):
        """Restore the sums of the checkpoint since its last log, on any number of processes."""
        file, processes = Path(str(self.continued_from), WINDOW_FILE), self.args.world_size
        with reading(file, remedy := "a run can go on only from its own checkpoints"):
            record = read_json_object(file, remedy)
            sums = torch.tensor(record["sums"], dtype=torch.float64)  # (processes that wrote it, 1 + counts)
            self.window = sums[self.args.process_index :: processes].sum(0).float()
            self.window[0] *= processes / len(sums)  # a mean over processes is logged
            self.window_began = time.monotonic() - record["seconds"]
            self.window_steps, self.total_loss = record["steps"], record["total_loss"]
            self.nonfinite_steps = record["nonfinite_steps"]


def aliases_of_bias(model: PreTrainedModel) -> list[tuple[torch.nn.Module, str]]:
    """Where the bias of the output embeddings is besides there, by module and name: in the heads of BERT."""
    output = model.get_output_embeddings()
    bias = getattr(output, "bias", None)
    own = ((module, name, x) for module in model.modules() for name, x in module.named_parameters(recurse=False))
    return [(module, name) for module, name, x in own if x is bias and module is not output]


class Continuation(TrainerCallback):
    """
    Restores the sums of a resumed run, which begins with the right epoch and ends after its last step. Saves the
    checkpoint of an epoch's last step after its evaluation.
    """

    def __init__(self, trainer: CommonTrainer):
        self.trainer = trainer
        self.save_at_epoch_end = False

    def on_train_begin(self, args, state, control, **kwargs):
        self.is_done = self.trainer.has_begun = state.global_step >= state.max_steps
        if self.trainer.continued_from:
            self.trainer.restore_window()

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        control.should_training_stop |= self.is_done
        # Trainer sets the epoch after it has wrapped the sampler to skip batches, where it may not be reached.
        steps = -(-len(train_dataloader) // args.gradient_accumulation_steps)
        train_dataloader.set_epoch(state.global_step // steps)

    def on_step_begin(self, args, state, control, **kwargs):
        self.trainer.has_begun = True

    def on_step_end(self, args, state, control, **kwargs):
        if state.epoch % 1 == 0:  # what is logged and evaluated at the end of the epoch comes first
            control.should_save, self.save_at_epoch_end = False, control.should_save

    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_save |= self.save_at_epoch_end
        self.save_at_epoch_end = False
        if self.is_done:
            control.should_log = control.should_evaluate = control.should_save = False
