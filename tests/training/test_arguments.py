"""Command-line flags, recipes and keyword arguments, and the recipes shipped with the package."""

import json
import os
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from accelerate import FullyShardedDataParallelPlugin
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy
from accelerate.utils.launch import prepare_multi_gpu_env
from helpers.script_arguments import parse, pretraining, read
from helpers.tiny_tasks import glue_arguments
from transformers import TrainingArguments, get_scheduler

import fixedbert
from fixedbert.option_values import make
from fixedbert.options import ModelOptions, PretrainingDataOptions
from fixedbert.presets import preset_config
from fixedbert.pretraining.arguments import ARGUMENTS, PretrainingArguments
from fixedbert.support.errors import InputError, exit_on_input_error
from fixedbert.training.arguments import RECIPES, with_recipe
from fixedbert.training.models import load_config
from fixedbert_cli import main

CPU = ("--bf16", "false", "--use_cpu")


def test_total_batch_size_on_any_number_of_devices(monkeypatch):
    """A training step uses total_train_batch_size examples on any number of devices."""

    def make(devices: int, **options) -> PretrainingArguments:
        monkeypatch.setattr(TrainingArguments, "world_size", property(lambda _: devices))
        return PretrainingArguments(use_cpu=True, **options)

    cases = ((1, 128, (128, 8)), (8, 128, (128, 1)), (3, 100, (80, 4)), (64, 128, (15, 1)))
    for devices, batch_size, expected in cases:
        total = 960 if devices in (3, 64) else 1024
        arguments = make(devices, per_device_train_batch_size=batch_size, total_train_batch_size=total)
        actual = arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
        assert actual == expected and np.prod(actual) * devices == total
    with pytest.raises(InputError, match="`total_train_batch_size` must be a multiple of 3"):
        make(3, total_train_batch_size=1024)
    with pytest.raises(InputError, match="`gradient_accumulation_steps`"):
        make(1, total_train_batch_size=8, gradient_accumulation_steps=2)


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_parse(recipe):
    """Every recipe in the package has only its script's arguments. Pretraining recipes set a corpus and a model."""
    command = {"sample_pairs": "glue", "sample_questions": "squad"}.get(recipe.stem, "pretrain")
    options = dict(zip(("model", "data", "training"), parse(command, [str(recipe), *CPU]), strict=True))
    if command == "pretrain":
        assert options["data"].dataset_name or options["data"].train_file or "--train_file" in recipe.read_text()
        assert options["model"].config_name or options["model"].model_name_or_path.startswith("runs/")


def test_recipes_from_the_paper():
    """The recipes for the paper match its appendix C: steps, batch size, warm-up and learning-rate schedule."""

    def arguments(name):
        return parse("pretrain", [f"recipes/{name}", *CPU])

    for name, steps, length, warm_up in (("paper_stage1", 450_000, 128, 5000), ("paper_stage2", 50_000, 512, 3000)):
        model, data, training = arguments(f"{name}.yaml")
        assert (training.max_steps, data.max_seq_length, training.warmup_steps) == (steps, length, warm_up)
        assert (training.total_train_batch_size, training.learning_rate, training.weight_decay) == (1024, 1e-4, 0.01)
        assert data.objective == "mlm+nsp" and training.lr_scheduler_type == "linear"
    config = load_config(arguments("paper_stage1.yaml")[0])
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)
    assert config.max_position_embeddings == 512  # for the second stage
    model, data, training = arguments("lm1b.yaml")
    config = load_config(model)
    assert (config.num_hidden_layers, config.intermediate_size, config.vocab_size) == (6, 1024, 32000)
    assert (data.max_seq_length * training.total_train_batch_size, training.max_steps) == (4096, 250_000)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=training.learning_rate)
    schedule = get_scheduler(training.lr_scheduler_type, optimizer, training.warmup_steps, training.max_steps)
    rates = [1e-3 * schedule.lr_lambdas[0](step) for step in (5000, 10_000, 40_000, 250_000)]
    assert rates == pytest.approx([5e-4, 1e-3, 5e-4, 2e-4])


@pytest.mark.parametrize("config", sorted((RECIPES / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_configurations(config, monkeypatch):
    """accelerate accepts every entry of the configurations, and fsdp.yaml shards the model by layer."""
    assert load_config_from_file(str(config)).num_processes in (2, 8, 16)  # raises an error for unknown entries
    launched = launch_command_parser().parse_args(["--config_file", str(config), "run_pretraining.py", "recipe.yaml"])
    launched, *_ = _validate_launch_command(launched)
    assert launched.use_fsdp == (config.stem == "fsdp")
    if launched.use_fsdp:
        for name, value in prepare_multi_gpu_env(launched).items():
            monkeypatch.setenv(name, value)
        plugin = FullyShardedDataParallelPlugin()
        model = fixedbert.FixedHeadBertForPreTraining(preset_config("tiny"))
        plugin.set_auto_wrap_policy(model)
        wrapped = fsdp2_prepare_auto_wrap_policy(plugin, model)
        names = [name for name, module in model.named_modules() if wrapped(module)]
        assert names == ["bert.encoder.layer.0", "bert.encoder.layer.1"]


def test_flags_recipe_and_keywords_give_the_same_arguments(tmp_path):
    """Flags, recipes and keyword arguments give equal dataclasses. command.json is a recipe that repeats the run."""
    stages = [{"steps": 3}, {"steps": 4, "value_head_size": [7, 8]}]
    overrides = {"hidden_act": "relu", "layer_norm_eps": 1e-6, "attention_head_size": [3, 4], "value_head_size": None}
    text = "hidden_act=relu,layer_norm_eps=1e-6,attention_head_size=[3, 4],value_head_size=None"
    argv = ["--learning_rate", "5e-5", "--stages", *map(json.dumps, stages), "--train-file", "a", "b", "--do_train"]
    given = read("pretrain", [*argv, "--config_overrides", text, "--use_cpu"])
    assert given == {
        "learning_rate": 5e-5,
        "stages": stages,
        "train_file": ["a", "b"],
        "do_train": True,
        "config_overrides": overrides,
        "use_cpu": True,
    }
    (tmp_path / "command.json").write_text(json.dumps(given))
    (tmp_path / "recipe.yaml").write_text(
        "learning_rate: 5e-5\nstages: [{steps: 3}, {steps: 4, value_head_size: [7, 8]}]\ntrain_file: [a, b]\n"
        f"config_overrides: {text}\n"
    )
    assert read("pretrain", [str(tmp_path / "command.json")]) == given
    keywords = with_recipe(tmp_path / "recipe.yaml", {"do_train": True, "use_cpu": True, "seed": None}, *ARGUMENTS)
    assert keywords == given


def test_flags_take_precedence_over_a_recipe(tmp_path):
    """A flag replaces the recipe's entry with the same name, and any entries that conflict with it."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("dataset_name: [a, b]\ndocument_boundary: [row, line]\nmax_steps: 7\nseed: 3\n")
    given = read("pretrain", [str(recipe), "--seed", "5", "--train-file=c.txt"])
    assert given == {"max_steps": 7, "seed": 5, "train_file": ["c.txt"]}
    kept = {"dataset_name": ["a", "b"], "document_boundary": ["row", "line"], "seed": 3}
    assert with_recipe(recipe, {"num_train_epochs": 2}, *ARGUMENTS) == kept | {"num_train_epochs": 2}
    recipe.write_text("eval_strategy: steps\neval_steps: 7\n")  # which has no effect without evaluation
    assert with_recipe(recipe, {"eval_strategy": "no"}, *ARGUMENTS) == {"eval_strategy": "no"}
    assert with_recipe(recipe, {"seed": 5}, *ARGUMENTS) == {"eval_strategy": "steps", "eval_steps": 7, "seed": 5}


@pytest.mark.parametrize("content", ["- a\n- b\n", "a: [\n", "a: !!python/object/apply:os.getcwd []\n", None])
def test_errors_name_the_recipe(tmp_path, content):
    """Errors name the recipe if it is missing, is malformed, is not a mapping, or contains code."""
    if content is not None:
        (tmp_path / "recipe.yaml").write_text(content)
    with pytest.raises(InputError, match=r"recipe\.yaml: "):
        read("pretrain", [str(tmp_path / "recipe.yaml")])


def test_packaged_recipes_are_found_by_name(tmp_path, monkeypatch):
    """recipes/NAME.yaml is a recipe in the package, unless the working directory contains a file with this path."""
    monkeypatch.chdir(tmp_path)
    assert with_recipe("recipes/mini.yaml", {}, *ARGUMENTS)["config_name"] == "mini"
    Path("recipes").mkdir()
    Path("recipes/mini.yaml").write_text("config_name: tiny\n")
    assert with_recipe("recipes/mini.yaml", {}, *ARGUMENTS) == {"config_name": "tiny"}


def test_values_have_the_type_of_their_field(tmp_path):
    """Values become the type of their field, wherever they come from. Values that cannot are rejected."""
    given = {"learning_rate": 1, "adam_beta1": "0.8", "max_steps": None, "train_file": tmp_path, "use_cpu": "true"}
    data, training = make(given, PretrainingDataOptions, PretrainingArguments)
    assert data.train_file == [str(tmp_path)]
    assert (training.learning_rate, training.adam_beta1, training.max_steps, training.use_cpu) == (1, 0.8, -1, True)
    for name, value in (("max_steps", 2.0), ("max_steps", True), ("train_file", ["a", 5])):  # not on the command line
        with pytest.raises(InputError, match=f"^`{name}` is .*, but must be "):
            make({name: value}, PretrainingDataOptions, PretrainingArguments)


# One per kind. soak/options.py covers all options.
IMPOSSIBLE = (
    ("rte compare", "--max_eval_samples 0", "--max_eval_samples is 0, but must be at least 1"),
    ("rte squad pretrain", "--prediction_loss_only", "--prediction_loss_only is not supported"),
    ("rte pretrain", "--resume_from_checkpoint model", "--resume_from_checkpoint is not supported: the same command"),
    ("rte", "--early_stopping_patience 3", "--early_stopping_patience requires --eval_strategy"),
    ("shrink compare", "--text_column_names a,a", "--label_column_name must name different columns"),
    ("stsb squad", "--label_smoothing_factor 0.1", "--label_smoothing_factor requires data with one label"),
    ("rte squad", "--config_overrides num_labels=7", "--config_overrides num_labels: the data determine the labels"),
    ("pretrain", "--language German", "--language is 'German', but must be am, ar, bg,"),
    ("rte pretrain", "--fsdp full_shard", "fsdp only works in distributed training"),
    ("rte pretrain", "--push_to_hub", "--push_to_hub is not supported: use `fixedbert push`"),
    ("rte", "--hub_token hf_write", "--hub_token requires --push_to_hub"),
    ("rte", "--gradient_checkpointing --gradient_checkpointing_kwargs a=1", "Unexpected keyword arguments: a"),
    ("squad", "--doc_stride 32", "--doc_stride must be less than --max_seq_length, which is 32"),
)


@pytest.fixture
def same_environment():
    """Restores the environment variables in which Trainer stores its settings for FSDP."""
    with patch.dict(os.environ):
        yield


@pytest.mark.usefixtures("same_environment")
@pytest.mark.parametrize("command, flags, message", [(c, *x) for commands, *x in IMPOSSIBLE for c in commands.split()])
def test_impossible_options(
    command, flags, message, model, download, questions, corpus, tmp_path, capsys, same_signals
):
    """Options that cannot work, alone or for the task, end with status 2 and one sentence, and no output directory."""
    size = ["--max_seq_length", "32", "--doc_stride", "8"]
    output = ["--output_dir", str(tmp_path / "out")]
    files = ["--train_file", questions, "--validation_file", questions, *output]
    arguments = {
        "pretrain": pretraining(corpus, tmp_path / "out", "--store_dir", f"{tmp_path}-store"),
        "squad": ["--model_name_or_path", model, *files, *size, "--version_2_with_negative", *CPU],
        "shrink": [model, "--train_file", questions, "--params", "9000", *output],
        **dict.fromkeys(("compare", "inspect"), [model, "--validation_file", questions, *output]),
    }
    task = glue_arguments(model, download, tmp_path / "out", task=command)
    argv = [command, *arguments[command]] if command in arguments else ["glue", *task]
    train = ["--do_train", "--do_eval"] if command in ("rte", "stsb", "squad", "pretrain") else []
    with pytest.raises(SystemExit) as end:
        exit_on_input_error(lambda: main([*argv, *train, *flags.split()]))
    last = capsys.readouterr().err.splitlines()[-1]
    assert end.value.code == 2 and last.startswith("error: ") and message in last
    assert not [*tmp_path.iterdir()]


def test_configuration_from_preset_and_overrides():
    """--config_name accepts presets, and --config_overrides accepts any field. Errors name the model or field."""

    def arguments(overrides):
        return make({"config_name": "tiny", "config_overrides": overrides}, ModelOptions)[0]

    config = load_config(arguments("num_attention_heads=3"), num_labels=5)
    assert (config.num_attention_heads, config.attention_head_size, config.num_labels) == (3, 64, 5)
    overrides = "num_attention_heads=8,attention_head_size=None,hidden_act=relu,layer_norm_eps=1e-6"
    config = load_config(arguments(overrides))
    assert (config.head_dim, config.hidden_act, config.layer_norm_eps) == (16, "relu", 1e-6)
    with pytest.raises(InputError, match="^`config_overrides` nonsense"):
        load_config(arguments("nonsense=1"))
