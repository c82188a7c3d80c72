"""Training and evaluation with Trainer, with everything written down."""

import sys

from huggingface_hub.errors import HTTPError
from transformers import Trainer
from transformers.dynamic_module_utils import custom_object_save

from ..errors import InputError, explain_hub_error
from .output import WriteChecksums, guard_loading
from .progress import StopOnSigterm


def train(trainer: Trainer, checkpoint: str | None):
    """
    Train, from `checkpoint` on if there is one; save weights, tokenizer, log and metrics.

    On SIGTERM the run saves a checkpoint and ends with exit status 143.
    """
    if trainer.args.push_to_hub and trainer.is_world_process_zero() and trainer.model.is_remote_code():
        custom_object_save(trainer.model, trainer.args.output_dir)  # what goes to the Hub while training has code too
    stop = StopOnSigterm()
    trainer.add_callback(stop)
    trainer.add_callback(WriteChecksums)
    if checkpoint:
        guard_loading(trainer, checkpoint)
    result = trainer.train(resume_from_checkpoint=checkpoint)
    if stop.stopped:
        if trainer.is_world_process_zero():
            print("stopped by SIGTERM: the same command goes on from the checkpoint just saved", file=sys.stderr)
        sys.exit(128 + 15)
    trainer.save_model(_internal_call=True)  # without pushing it, for which there is `publish`
    trainer.save_state()
    report(trainer, "train", result.metrics | {"train_samples": len(trainer.train_dataset)})


def report(trainer: Trainer, split: str, metrics: dict[str, float]):
    """Print metrics and put them into all_results.json."""
    trainer.log_metrics(split, metrics)
    trainer.save_metrics(split, metrics)


def publish(trainer: Trainer):
    """
    With --push_to_hub, the output directory on the Hub: when it has its final name, so that nothing is lost.

    Raises:
        InputError: the Hub refuses or cannot be reached.
    """
    if not trainer.args.push_to_hub:
        return
    try:
        trainer.push_to_hub()
    except (HTTPError, RuntimeError) as error:
        folder, name = trainer.args.output_dir, trainer.hub_model_id
        raise InputError(
            f"{explain_hub_error(error)} The results are in {folder}: `fixedbert push {folder} {name}` sends them."
        ) from error
