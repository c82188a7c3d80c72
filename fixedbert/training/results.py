"""What a run leaves beside its model: metrics, the summary of pretraining, and a copy on the Hub."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HTTPError

from ..support.errors import InputError, explain_hub_error
from ..support.files import read_json_object, to_json, write_atomically
from ..support.notebook import as_html
from .trainer import CommonTrainer

TIMES = ("_runtime", "_per_second", "_samples")  # ends of the names of what is no quality


@dataclass(frozen=True, repr=False)
class Trained:
    """
    What a run has left.

    Args:
        folder: its output directory.
        results: the metrics of all_results.json; of several runs, results.json.
    """

    folder: Path
    results: dict[str, Any]

    def __repr__(self) -> str:
        metrics = {
            name: value
            for name, value in self.results.items()
            if name.startswith(("eval_", "predict_")) and isinstance(value, float) and not name.endswith(TIMES)
        }
        return f"{self.folder}: " + (", ".join(f"{name} {value:.4g}" for name, value in metrics.items()) or "done")

    def _repr_html_(self) -> str:
        return as_html(repr(self), next(iter(sorted(self.folder.glob("*.png"))), None))


def trained(folder: Path) -> Trained:
    """What is in the output directory of a run, or of several."""
    files = [file for file in (folder / "all_results.json", folder / "results.json") if file.exists()]
    return Trained(folder, read_json_object(files[0], f"remove {folder} and start anew") if files else {})


def record_metrics(trainer: CommonTrainer, split: str, metrics: dict[str, float]):
    """Print metrics, and write them into SPLIT_results.json and all_results.json."""
    trainer.log_metrics(split, metrics)
    if trainer.is_world_process_zero():
        folder, remedy = trainer.args.directory, f"remove {trainer.args.directory} and start anew"
        file = folder / "all_results.json"
        found = read_json_object(file, remedy) if file.exists() else {}
        for name, content in ((f"{split}_results.json", metrics), (file.name, found | metrics)):
            write_atomically(folder / name, to_json(content, indent=4, sort_keys=True))


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
