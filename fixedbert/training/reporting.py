"""Training and evaluation with Trainer, with everything written down."""

import json
from pathlib import Path

from huggingface_hub.errors import HTTPError
from transformers import Trainer, TrainerState
from transformers.dynamic_module_utils import custom_object_save
from transformers.trainer import TRAINER_STATE_NAME

from ..errors import InputError, Stopped, explain_hub_error
from ..files import read_object, reading, write_whole
from .output import WriteChecksums, guard_loading
from .progress import StopOnSignal


def train(trainer: Trainer, checkpoint: str | None):
    """
    Train, from `checkpoint` on if there is one; save weights, tokenizer, log and metrics. What is trained already is
    loaded.

    On SIGTERM and Ctrl-C the run saves a checkpoint and ends with exit status 143 or 130.
    """
    folder = trainer.args.output_dir
    if checkpoint == folder:
        with reading(folder, "remove it and start anew", "the trained model cannot be read"):
            trainer._load_from_checkpoint(folder)
            trainer.state = TrainerState.load_from_json(str(Path(folder, TRAINER_STATE_NAME)))
        trainer.state.is_local_process_zero = trainer.is_local_process_zero()
        trainer.state.is_world_process_zero = trainer.is_world_process_zero()
        return
    if trainer.args.push_to_hub and trainer.is_world_process_zero() and trainer.model.is_remote_code():
        custom_object_save(trainer.model, folder)  # what goes to the Hub while training has code too
    stop = StopOnSignal()
    trainer.add_callback(stop)
    trainer.add_callback(WriteChecksums)
    if checkpoint:
        guard_loading(trainer, checkpoint)
    try:
        result = trainer.train(resume_from_checkpoint=checkpoint)
        if not stop.stopped:
            trainer.save_model(_internal_call=True)  # without pushing it, for which there is `publish`
            report(trainer, "train", result.metrics | {"train_samples": len(trainer.train_dataset)})
            trainer.save_state()  # last: it says that the rest is there
    finally:
        stop.restore()
    if stop.asked_anywhere(trainer.args):
        raise Stopped(stop.asked)


def report(trainer: Trainer, split: str, metrics: dict[str, float]):
    """Print metrics and put them into all_results.json."""
    trainer.log_metrics(split, metrics)
    if trainer.is_world_process_zero():
        folder, remedy = Path(trainer.args.output_dir), f"remove {trainer.args.output_dir} and start anew"
        file = folder / "all_results.json"
        found = read_object(file, remedy) if file.exists() else {}
        for name, content in ((f"{split}_results.json", metrics), (file.name, found | metrics)):
            write_whole(folder / name, json.dumps(content, indent=4, sort_keys=True))


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
