"""What a run leaves beside its model: metrics, the summary of pretraining, and a copy on the Hub."""

from huggingface_hub.errors import HTTPError

from ..support.errors import InputError, explain_hub_error
from ..support.files import json_text, read_object, write_whole
from .trainer import CommonTrainer


def record_metrics(trainer: CommonTrainer, split: str, metrics: dict[str, float]):
    """Print metrics, and write them into SPLIT_results.json and all_results.json."""
    trainer.log_metrics(split, metrics)
    if trainer.is_world_process_zero():
        folder, remedy = trainer.args.folder, f"remove {trainer.args.folder} and start anew"
        file = folder / "all_results.json"
        found = read_object(file, remedy) if file.exists() else {}
        for name, content in ((f"{split}_results.json", metrics), (file.name, found | metrics)):
            write_whole(folder / name, json_text(content, indent=4, sort_keys=True))


def publish(trainer: CommonTrainer):
    """
    With `push_to_hub`, upload the output directory, which has its final name by then.

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
