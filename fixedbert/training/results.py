"""What a run leaves beside its model: metrics, the summary of pretraining, and a copy on the Hub."""

import json
from itertools import groupby

from huggingface_hub.errors import HTTPError

from ..errors import InputError, explain_hub_error
from ..files import json_text, read_object, write_whole
from ..model_card import hardware_name, versions
from .output import SECRET, run_arguments
from .pictures import draw_pretraining
from .pretraining import PretrainingTrainer
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


def write_summary(trainer: PretrainingTrainer, corpus: dict, parameters: dict, batches: list[int], command: list[str]):
    """
    Write summary.json and, after training, pretraining.png beside the model.

    Args:
        batches: examples in a step, of each stage.
    """
    output, args = trainer.args.folder, trainer.args
    summary = {
        "objective": trainer.objective,
        "config": trainer.model.config.to_diff_dict(),
        "parameters": parameters,
        "corpus": corpus,
        "steps": trainer.state.global_step,
        "examples in a step": batches[0] if len(set(batches)) == 1 else batches,
        "real tokens seen": trainer.state.num_input_tokens_seen,
        "results": json.loads((output / "all_results.json").read_text()),
        "command": ["run_pretraining.py", *run_arguments(command, left_out=SECRET)],
        "hardware": hardware_name(),
        "processes": args.world_size,
        "versions": versions(),
    }
    (output / "summary.json").write_text(json_text(summary, indent=1) + "\n")
    if args.do_train:
        size = " then ".join(str(batch) for batch, _ in groupby(batches))
        title = f"{trainer.objective}, {parameters['all'] / 1e6:.1f} M parameters, {size} examples a step"
        draw_pretraining(trainer.state.log_history, trainer.objective[:3], title, output / "pretraining.png")


def publish(trainer: CommonTrainer):
    """
    With --push_to_hub, upload the output directory, which has its final name by then.

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
