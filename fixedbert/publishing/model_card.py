"""
Model cards: what a checkpoint is and costs, how it was made, its results, and how to load it.

`checkpoint_card` composes every card. Each command saves its own; `create_model_card` is what a Trainer calls.
"""

import json
import math
import os
import platform
import re
import shlex
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedConfig, PreTrainedModel, Trainer, TrainingArguments

import fixedbert

from ..conversion.families import FAMILIES, fixed_head_config, task_head
from ..counts import forward_flops, head_counts, head_sizes, neuron_counts, parameters, size_text, value_head_sizes
from ..data.glue import TASKS
from ..model.configuration_fixed_head_bert import HEADS, FixedHeadBertConfig
from ..support.errors import InputError
from ..support.files import output_path, reading

PAPER = "https://arxiv.org/abs/2002.07028"
PIPELINES = {
    "Model": "feature-extraction",
    "ForPreTraining": "fill-mask",
    "ForMaskedLM": "fill-mask",
    "LMHeadModel": "text-generation",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
}
REQUIRED = {
    "library_name": "transformers, so that the Hub shows how to load it",
    "license": "the licence of the weights, such as apache-2.0, or --license",
    "tags": "words to find it by",
}
SCRIPTS = {"ForSequenceClassification": "run_glue.py", "ForQuestionAnswering": "run_squad.py"}
LIMITS = (
    "The results are of one run with one seed, and on validation data. They do not compare head sizes. The model has "
    "whatever biases its texts have."
)
# Results in a Trainer's all_results.json that say nothing about quality.
NO_RESULTS = re.compile(r"runtime|per_second|_samples|model_preparation")
CITATION = """
```bibtex
@inproceedings{bhojanapalli2020lowrank,
  title     = {Low-Rank Bottleneck in Multi-head Attention Models},
  author    = {Bhojanapalli, Srinadh and Yun, Chulhee and Rawat, Ankit Singh and Reddi, Sashank J. and Kumar, Sanjiv},
  booktitle = {International Conference on Machine Learning},
  year      = {2020},
  url       = {https://arxiv.org/abs/2002.07028}
}
```
"""


def table(rows: list[tuple], header: tuple[str, ...]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def shape_table(config: PreTrainedConfig, count: int | None = None) -> str:
    """
    Sizes, exact parameters and operations of a BERT or FixedHeadBert, in Markdown.

    Args:
        count: parameters of a given model; by default the model's with the heads of pretraining.
    """
    if config.model_type == "distilbert":  # which has names of its own
        config = fixed_head_config(config)
    counts, sizes, values = head_counts(config), head_sizes(config), value_head_sizes(config)
    width, inner = config.hidden_size, [h * p for h, p in zip(counts, sizes, strict=True)]
    standard = values == sizes and set(inner) == {width} or len(set(counts)) > 1  # or pruned
    embedding = getattr(config, "head_embedding", None)
    everything, layers = parameters(config)
    rows = {
        "width (d)": width,
        "layers": config.num_hidden_layers,
        "heads (h)": size_text(counts),
        "head size (d_p)": size_text(sizes)
        + ("" if standard else f"; BERT's would be {width / config.num_attention_heads:g}"),
        "queries and keys": "normalised (RMSNorm)" if getattr(config, "qk_norm", False) else None,
        "heads' projections": f"shared, with head embeddings ({embedding})" if embedding else None,
        "size of values": size_text(values) if values != sizes else None,
        "heads x head size": size_text(inner),
        "feed-forward width": size_text(neuron_counts(config)),
        "longest text": f"{config.max_position_embeddings:,} tokens",
        "vocabulary": f"{config.vocab_size:,}",
        "parameters" + ("" if count else ", with the heads of pretraining"): f"{count or everything:,}",
        "parameters of the layers": f"{layers:,}",
    }
    for length in (128, 512):
        if length <= config.max_position_embeddings:
            flops = f"{forward_flops(config, length) / 1e6:,.1f} MFLOP"
            rows[f"layers, forward, for each of {length} tokens"] = flops
    shown = [(name, value) for name, value in rows.items() if value is not None]
    return table(shown, ("", "")) + "\n\nA training step takes three times the operations of the layers' forward pass."


def how_to_load(name: str, auto_class: str, fixed: bool) -> str:
    load = f'model = {auto_class}.from_pretrained("{name}"'
    text = f"""
```python
import fixedbert
from transformers import AutoTokenizer, {auto_class}

{load})
tokenizer = AutoTokenizer.from_pretrained("{name}")
```
"""
    if not fixed:
        return text.replace("import fixedbert\n", "")
    return text + f"""
Without fixedbert, transformers 5.15 and torch 2.11, or later, run the files of code that come with the weights. Read
them first, from `modeling_fixed_head_bert.py` on (`attention_fixed_head_bert.py` is the paper), and pin the commit
that you have read:

```python
{load}, trust_remote_code=True, revision="...")
tokenizer = AutoTokenizer.from_pretrained("{name}", trust_remote_code=True, revision="...")
```
"""  # fmt: skip


def checkpoint_card(
    config: PreTrainedConfig,
    architecture: str,
    name: str,
    making: str = "",
    results: dict[str, float] | None = None,
    evaluated_on: dict[str, str] | None = None,
    count: int | None = None,
    loading: str = "",
    **metadata: Any,
) -> ModelCard:
    """
    The card of a trained, converted or exported checkpoint.

    Args:
        architecture: the name of the model's class.
        name: the directory's or repository's name.
        making: how the checkpoint was made, in Markdown.
        results: metrics by name, as in all_results.json.
        evaluated_on: `type`, `name` and, if known, `config` and `split` of the evaluation data set, for model-index.
        count: number of parameters.
        loading: how to load it, in Markdown, where that is not by transformers.
        metadata: further fields of the card, such as license, datasets, base_model.
    """
    fixed = config.model_type == FixedHeadBertConfig.model_type
    head = task_head(architecture, config.model_type)
    pipeline, auto_class = PIPELINES.get(head), HEADS[head][0]
    shown = {
        key.removeprefix("eval_"): value
        for key, value in (results or {}).items()
        if key.startswith("eval_") and not NO_RESULTS.search(key)
        if isinstance(value, float | int) and math.isfinite(value)
    }
    if shown and evaluated_on and pipeline:
        about: dict[str, Any] = {f"dataset_{key}": value for key, value in evaluated_on.items()}
        metadata["model_name"] = name.split("/")[-1]
        metadata["eval_results"] = [
            EvalResult(task_type=pipeline, metric_type=key, metric_value=round(value, 6), **about)
            for key, value in shown.items()
        ]
    introduction = (
        f"`{architecture}`: BERT whose attention heads have a size of their own, as in [Low-Rank Bottleneck in "
        f"Multi-head Attention Models]({PAPER}) (Bhojanapalli et al., 2020). Made with fixedbert."
        if fixed
        else f"`{architecture}`, made with fixedbert."
    )
    where = f" on {evaluated_on['name']}" if evaluated_on else ""
    rows = [(key, f"{value:.4g}") for key, value in shown.items()]
    sections = {
        "Shape": shape_table(config, count),
        "How it was made": making,
        f"Results{where}": table(rows, ("metric", "value")) if shown else "",
        "Limits": LIMITS if shown else "Its quality on rows with labels has not been measured.",
        "How to load it": loading or how_to_load(name, auto_class, fixed),
        "To cite": CITATION,
    }
    text = "\n".join(f"## {heading}\n\n{body.strip()}\n" for heading, body in sections.items() if body.strip())
    tags = ["fixedbert", "bert"] + (["custom_code"] if fixed and not loading else [])
    metadata = {"library_name": "transformers", "pipeline_tag": pipeline, **metadata}
    metadata["tags"] = tags + metadata.get("tags", [])
    head = f"---\n{ModelCardData(**metadata).to_yaml()}\n---\n\n# {name.split('/')[-1]}\n\n{introduction}\n\n"
    return ModelCard(head + text, ignore_metadata_errors=False)


def to_flags(given: dict[str, Any]) -> list[str]:
    """Returns arguments as flags; None is left out."""
    words = []
    for name, value in given.items():
        if value is not None:
            values = value if isinstance(value, list) else [value]
            words += [f"--{name}", *(json.dumps(one) if isinstance(one, dict) else str(one) for one in values)]
    return words


def trained_card(model: PreTrainedModel, args: TrainingArguments, steps: int, name: str, **metadata: Any) -> ModelCard:
    """The card of a trained model. What it was given, its data and results are read from the output directory."""
    folder, architecture = output_path(args.output_dir), type(model).__name__.removeprefix("FSDP")
    given = read_json(folder / "command.json", {})
    base, teacher = given.get("model_name_or_path"), given.get("teacher_model")
    if base and not Path(base).exists():
        metadata.setdefault("base_model", base)
    script = next((file for head, file in SCRIPTS.items() if architecture.endswith(head)), "run_pretraining.py")
    trained_on, hub_ids, evaluated_on = data_of(given, script)
    if hub_ids:
        metadata.setdefault("datasets", hub_ids)
    summary = read_json(folder / "summary.json", {})
    seen = f", {summary['real tokens seen']:,} real tokens seen" if summary.get("real tokens seen") else ""
    # Of paths on this machine, which are private, only the last part.
    words = [
        Path(word).name if word.startswith(("/", "~")) else word for word in to_flags(given | {"output_dir": None})
    ]
    launcher = "python" if args.world_size == 1 else f"accelerate launch --num_processes {args.world_size}"
    distilled = f"\n- Distilled from: {public_name(teacher)}" if teacher else ""
    making = f"""
- Started from: {public_name(base) if base else "random weights"}{distilled}
- Data: {", ".join(trained_on) or "see the command"}
- Steps: {steps:,}{seen}; seed {args.seed}
- Hardware: {hardware_name()}, {args.world_size} {"process" if args.world_size == 1 else "processes"}; \
{"fp32" if args.mixed_precision == "no" else args.mixed_precision}
- Versions: {", ".join(f"{library} {version}" for library, version in versions().items())}

```bash
{launcher} {script} {shlex.join(words)}
```
"""
    results = read_json(folder / "all_results.json", {})
    count = model.num_parameters()
    return checkpoint_card(model.config, architecture, name, making, results, evaluated_on, count, **metadata)


def public_name(model: str) -> str:
    """A model in a card: its Hub id, or of a directory, which is private, the last part."""
    return f"`{Path(model).name if Path(model).exists() else model}`"


def data_of(given: dict[str, Any], script: str) -> tuple[list[str], list[str], dict[str, str]]:
    """What a run trains on, in words and as ids of the Hub, and what it evaluates on (see `checkpoint_card`)."""
    task = "".join(given.get("task_name") or []).lower()  # of a run that leaves a card there is one
    if task in TASKS and not given.get("data_dir"):
        source, config = TASKS[task].dataset_name, TASKS[task].dataset_config_name or task
        evaluated_on = {"type": source, "name": f"GLUE {task}", "config": config, "split": "validation"}
        return [f"GLUE {task}"], [source], evaluated_on
    if task in TASKS:
        return [f"GLUE {task}, from files"], [], {"type": "files", "name": f"GLUE {task}, from files"}
    found = (given.get(name) or [] for name in ("dataset_name", "train_file", "validation_file"))
    names, files, held_out = ([one] if isinstance(one, str) else one for one in found)
    hub_ids = [name for name in names if "/" in name and not Path(name).exists()]
    trained_on = [Path(name).name if Path(name).exists() else name for name in names + files]
    if held_out:
        evaluated_on = {"type": "files", "name": Path(held_out[0]).name, "split": "validation"}
    elif script == "run_pretraining.py" or not hub_ids:
        evaluated_on = {"type": "held-out", "name": "held-out documents of the training data"}
    else:
        evaluated_on = {"type": hub_ids[0], "name": hub_ids[0], "split": "validation"}
    return trained_on, hub_ids, evaluated_on


def create_model_card(
    trainer: Trainer, license: str | None = None, model_name: str | None = None, **metadata: Any
) -> None:
    """Write README.md into the output directory: the method of our Trainers in place of transformers'."""
    model = trainer.model
    if not isinstance(model, PreTrainedModel) or model.config.model_type not in FAMILIES:
        return Trainer.create_model_card(trainer, license=license, model_name=model_name, **metadata)
    if not trainer.is_world_process_zero():
        return None
    names = {"finetuned_from": "base_model", "dataset": "datasets", "dataset_tags": "datasets"}
    given = {names.get(key, key): value for key, value in metadata.items() if value is not None}
    given = {key: value for key, value in given.items() if key in ("base_model", "datasets", "language")}
    given |= {"license": license} if license else {}
    folder = output_path(trainer.args.output_dir)
    name = trainer.hub_model_id or trainer.args.hub_model_id or model_name or folder.name
    trained_card(model, trainer.args, trainer.state.global_step, name, **given).save(folder / "README.md")
    return None


def check_card(card: ModelCard, file: str | Path):
    """Refuse a card that lacks one of REQUIRED."""
    for field, meaning in REQUIRED.items():
        if not getattr(card.data, field, None):
            raise InputError(f"{file}: the metadata has no {field} ({meaning}); add it between the lines of dashes.")


def read_card(file: str | Path) -> ModelCard:
    """The card in a file, whose metadata have to be a YAML mapping."""
    with reading(file, "correct the metadata between the lines of dashes", "the card cannot be read"):
        return ModelCard(Path(file).read_text(encoding="utf-8"), ignore_metadata_errors=False)


def read_json(file: Path, default: Any) -> Any:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else default


def versions() -> dict[str, str]:
    modules = (fixedbert, torch, transformers)
    return {**{module.__name__: module.__version__ for module in modules}, "python": platform.python_version()}


def hardware_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"
