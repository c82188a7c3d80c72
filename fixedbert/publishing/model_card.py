"""Writes model cards with the shape, provenance and results of a checkpoint and instructions for loading it."""

import json
import math
import platform
import re
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedModel, Trainer

from ..counts import size_text
from ..loading.families import FAMILIES, fixed_head_config, task_head
from ..model.configuration_fixed_head_bert import VERSION, FixedHeadBertConfig
from ..support.machine import hardware_name
from ..support.tables import markdown_table
from ..tasks.glue import TASKS
from .snippets import torch_code

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
NOT_METRICS = re.compile(r"runtime|per_second|_samples|model_preparation")  # other fields in all_results.json
TEMPLATE = """---
{{ card_data }}
---

# {{ title }}

`{{ architecture }}`{% if fixed %}: BERT with a configurable attention head size, as in [Low-Rank Bottleneck in
Multi-head Attention Models](https://arxiv.org/abs/2002.07028) (Bhojanapalli et al., 2020){% endif %}. Made with
fixedbert {{ version }}.

## Shape

{{ shape }}
{% if provenance %}
## How it was made

{{ provenance.strip() }}
{% endif %}{% if results %}
## Results on {{ evaluated_on.name }}

{{ results }}
{% endif %}
## How to load it

```python
{{ code }}```{% if remote_code %}

To load the model without fixedbert, omit `import fixedbert` and pass `trust_remote_code=True`. This runs the Python
files next to the weights, so also pass the `revision` of the files that you have reviewed.{% endif %}
"""


def describe_shape(model: PreTrainedModel) -> str:
    """Returns a line with the class, the parameter count and the sizes: all of them if the model can be converted."""
    layers = f"{model.config.num_hidden_layers} layers of width {model.config.hidden_size}"
    if model.config.model_type in FAMILIES:
        config = fixed_head_config(model.config)
        sizes = config.value_head_sizes
        values = "" if sizes == config.head_sizes else f" with values of {size_text(sizes)}"
        layers += f" with {size_text(config.head_counts)} heads of {size_text(config.head_sizes)}{values}, "
        layers += f"feed-forward {size_text(config.neuron_counts)}"
    name = type(model).__name__.removeprefix("FSDP")
    return f"{name}, {layers}, {model.num_parameters() / 1e6:.1f} M parameters"


def checkpoint_card(
    model: PreTrainedModel,
    name: str,
    provenance: str = "",
    results: dict[str, float] | None = None,
    evaluated_on: dict[str, str] | None = None,
    code: str = "",
    **metadata: Any,
) -> ModelCard:
    """
    Returns the model card for a trained, converted or exported checkpoint.

    Args:
        name: Directory or Hub id.
        provenance: Description of how the checkpoint was made, in Markdown.
        results: Metrics, named as in all_results.json. They are shown only if `evaluated_on` is passed.
        evaluated_on: Dictionary with the `type`, `name` and optionally `config` of the evaluation dataset.
        code: Python code that runs an exported graph. By default, code for the PyTorch model.
        metadata: Additional metadata fields, such as license, datasets or base_model.
    """
    config, architecture = model.config, type(model).__name__.removeprefix("FSDP")
    fixed = config.model_type == FixedHeadBertConfig.model_type
    remote_code = fixed and not code
    head = task_head(architecture, config.model_type)
    metadata = {"library_name": "transformers", "pipeline_tag": PIPELINES.get(head), "tags": [], **metadata}
    code = code or torch_code(name, head, config, metadata)
    title = name.split("/")[-1]
    metrics = {
        key.removeprefix("eval_"): value
        for key, value in (results or {}).items()
        if key.startswith("eval_") and not NOT_METRICS.search(key)
        if evaluated_on and isinstance(value, float | int) and math.isfinite(value)
    }
    family = "bert" if config.model_type in FAMILIES else config.model_type
    metadata["tags"] = ["fixedbert", family, *["custom_code"] * remote_code, *metadata["tags"]]
    if metrics:
        dataset: dict[str, Any] = {f"dataset_{key}": value for key, value in (evaluated_on or {}).items()}
        metadata["model_name"] = title
        metadata["eval_results"] = [
            EvalResult(task_type=metadata["pipeline_tag"], metric_type=key, metric_value=round(value, 6), **dataset)
            for key, value in metrics.items()
        ]
    rows = [(key, f"{value:.4g}") for key, value in metrics.items()]
    return ModelCard.from_template(
        ModelCardData(**metadata),
        template_str=TEMPLATE,
        title=title,
        name=name,
        architecture=architecture,
        fixed=fixed,
        version=VERSION,
        shape=describe_shape(model),
        provenance=provenance,
        results=markdown_table([("metric", "value"), *rows]) if rows else "",
        evaluated_on=evaluated_on,
        code=code,
        remote_code=remote_code,
    )


def create_model_card(trainer: Trainer):
    """Writes a model card with the arguments, results, hardware and versions of a run to its output directory."""
    if not trainer.is_world_process_zero():
        return
    args: Any = trainer.args
    model: Any = trainer.model
    directory = Path(args.output_dir)
    arguments, summary, results = (
        json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        for file in (directory / "command.json", directory / "summary.json", directory / "all_results.json")
    )
    shown = yaml.safe_dump({name: public(value) for name, value in arguments.items() if name != "output_dir"})
    tokens = f", {summary['real tokens seen']:,} non-padding tokens" if "real tokens seen" in summary else ""
    provenance = f"""
- Training: {trainer.state.global_step:,} steps{tokens}, seed {args.seed}
- Hardware: {hardware_name()}, {args.world_size} process(es), mixed precision: {args.mixed_precision}
- Versions: {", ".join(f"{library} {version}" for library, version in versions().items())}
- Arguments:

```yaml
{shown}```
"""
    datasets, evaluated_on = datasets_of(arguments)
    base = arguments.get("model_name_or_path")
    checkpoint_card(
        model,
        directory.name.removesuffix(".partial"),
        provenance,
        results,
        evaluated_on,
        datasets=datasets or None,
        base_model=base if base and not Path(base).exists() else None,
    ).save(directory / "README.md")


def versions() -> dict[str, str]:
    modules = {module.__name__: module.__version__ for module in (torch, transformers)}
    return {"fixedbert": VERSION, **modules, "python": platform.python_version()}


def public(value: Any) -> Any:
    """Returns an argument's value for publication. Absolute and existing paths are reduced to their last component."""
    if isinstance(value, list):
        return [public(item) for item in value]
    is_path = isinstance(value, str) and (value.startswith(("/", "~")) or Path(value).exists())
    return Path(value).name if is_path else value


def datasets_of(arguments: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Returns the Hub ids of a run's training datasets, and the argument `evaluated_on` for `checkpoint_card`."""
    task = "".join(arguments.get("task_name") or []).lower()  # a string, or a list with one task
    if task in TASKS and arguments.get("data_dir"):
        return [], {"type": "files", "name": f"GLUE {task}, from files"}
    if task in TASKS:
        source = TASKS[task].dataset_name
        return [source], {"type": source, "name": f"GLUE {task}", "config": task}
    names, files = (arguments.get(name) or [] for name in ("dataset_name", "validation_file"))
    names, files = ([value] if isinstance(value, str) else value for value in (names, files))
    datasets = [name for name in names if "/" in name and not Path(name).exists()]
    if files:
        return datasets, {"type": "files", "name": public(files[0])}
    return datasets, {"type": "held-out", "name": "held-out data"}
