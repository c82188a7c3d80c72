"""Arguments, recipes and configurations: what they become, and what is refused."""

import json
import os
import re
from dataclasses import fields

import numpy as np
import pytest
import torch
from accelerate import FullyShardedDataParallelPlugin
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy
from accelerate.utils.launch import prepare_multi_gpu_env
from helpers.script_arguments import parse
from transformers import (
    TrainingArguments,
    get_scheduler,
)

import fixedbert
from fixedbert.fine_tuning.glue import GlueDataArguments
from fixedbert.fine_tuning.squad import SquadDataArguments
from fixedbert.fine_tuning.trainer import FineTuningArguments
from fixedbert.presets import preset_config
from fixedbert.pretraining.examples import PretrainingDataArguments
from fixedbert.pretraining.trainer import PretrainingArguments
from fixedbert.support.errors import InputError
from fixedbert.training.arguments import (
    RECIPES,
    ArgumentParser,
    ModelArguments,
    beside_recipe,
    check_types,
    keep_token,
    make_arguments,
    read_arguments,
    recipe_entries,
    with_recipe,
)
from fixedbert.training.loading import load_config


def arguments_of(devices: int, monkeypatch, **options) -> PretrainingArguments:
    monkeypatch.setattr(TrainingArguments, "world_size", property(lambda _: devices))
    arguments = PretrainingArguments(use_cpu=True, **options)
    arguments.reach_total_train_batch_size()
    return arguments


def test_batch_is_what_the_recipe_states(monkeypatch):
    """Guards: on any number of devices a step has total_train_batch_size examples, at most so many at once."""
    for devices, at_once, expected in ((1, 128, (128, 8)), (8, 128, (128, 1)), (3, 100, (80, 4)), (64, 128, (15, 1))):
        total = 960 if devices in (3, 64) else 1024
        arguments = arguments_of(
            devices, monkeypatch, per_device_train_batch_size=at_once, total_train_batch_size=total
        )
        found = arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
        assert found == expected and np.prod(found) * devices == total
    assert arguments_of(2, monkeypatch, gradient_accumulation_steps=3).gradient_accumulation_steps == 3
    with pytest.raises(InputError, match="1024 cannot be shared out evenly among 3 devices"):
        arguments_of(3, monkeypatch, total_train_batch_size=1024)
    with pytest.raises(InputError, match="give one of the two"):
        arguments_of(1, monkeypatch, total_train_batch_size=8, gradient_accumulation_steps=2)


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_parse(recipe):
    """Guards: every recipe's arguments are ones that its script takes, and its model is there or a run of ours."""
    fine_tuning = {
        "fine_tuning_with_teacher": GlueDataArguments,
        "sample_pairs": GlueDataArguments,
        "sample_questions": SquadDataArguments,
    }
    data_arguments = fine_tuning.get(recipe.stem, PretrainingDataArguments)
    arguments = FineTuningArguments if recipe.stem in fine_tuning else PretrainingArguments
    flags = [*with_recipe([str(recipe)]), "--bf16", "false", "--use_cpu"]
    model, data, training = parse(flags, ModelArguments, data_arguments, arguments)
    if "teacher" in recipe.stem:  # without one it would train on the labels alone
        assert training.teacher_model.startswith("runs/")
    if recipe.stem not in fine_tuning:
        assert data.dataset_name or data.train_file or "--train_file" in recipe.read_text()
        assert model.preset or model.model_name_or_path.startswith("runs/")


def test_stages_and_schedules_of_the_paper():
    """Guards: appendix C: steps, batch, warm-up, rates and the schedule 1/sqrt(step) of the language models."""

    def arguments(name):
        flags = [*with_recipe([str(RECIPES / name)]), "--bf16", "false", "--use_cpu"]
        return parse(flags, ModelArguments, PretrainingDataArguments, PretrainingArguments)

    for name, steps, length, warm_up in (("paper_stage1", 450_000, 128, 5000), ("paper_stage2", 50_000, 512, 3000)):
        model, data, training = arguments(f"{name}.yaml")
        assert (training.max_steps, data.max_seq_length, training.warmup_steps) == (steps, length, warm_up)
        assert (training.total_train_batch_size, training.learning_rate, training.weight_decay) == (1024, 1e-4, 0.01)
        assert data.objective == "mlm+nsp" and training.lr_scheduler_type == "linear"
    config = load_config(arguments("paper_stage1.yaml")[0])
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)
    assert config.max_position_embeddings == 512  # the second stage needs them
    model, data, training = arguments("lm1b.yaml")
    config = load_config(model)
    assert (config.num_hidden_layers, config.intermediate_size, config.vocab_size) == (6, 1024, 32000)
    assert (data.max_seq_length * training.total_train_batch_size, training.max_steps) == (4096, 250_000)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=training.learning_rate)
    schedule = get_scheduler(training.lr_scheduler_type, optimizer, training.warmup_steps, training.max_steps)
    rates = [1e-3 * schedule.lr_lambdas[0](step) for step in (5000, 10_000, 40_000, 250_000)]
    assert rates == pytest.approx([5e-4, 1e-3, 5e-4, 2e-4])


@pytest.mark.parametrize("config", sorted((RECIPES / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_takes_our_configurations(config, monkeypatch):
    """Guards: accelerate knows every entry, and FSDP as it reads ours wraps the layers of our model."""
    assert load_config_from_file(str(config)).num_processes in (2, 8, 16)  # it refuses unknown entries
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


def test_recipe_becomes_flags_and_flags_win(tmp_path):
    """Guards: a recipe's entries come first, lists spread, and the later flag is the one that holds."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("config_name: tiny\ntrain_file: [a.txt, b.txt]\ndo_lower_case: false\n")
    flags = with_recipe([str(recipe), "--config_name", "mini"])
    assert flags == "--config_name tiny --train_file a.txt b.txt --do_lower_case False --config_name mini".split()
    (arguments,) = parse([flag for flag in flags if flag not in ("--train_file", "a.txt", "b.txt")], ModelArguments)
    assert (arguments.config_name, arguments.do_lower_case) == ("mini", False)
    assert with_recipe(["--config_name", "mini"]) == ["--config_name", "mini"]


@pytest.mark.parametrize("content", ["- a\n- b\n", "a: [\n", None])
def test_bad_recipes_are_named(tmp_path, content):
    """Guards: a recipe that is not there, not YAML or not a mapping is one sentence with its name."""
    if content is not None:
        (tmp_path / "recipe.yaml").write_text(content)
    with pytest.raises(InputError, match=r"recipe\.yaml(, line 2)?: "):
        with_recipe([str(tmp_path / "recipe.yaml")])


def test_packaged_recipes_are_taken_by_name(tmp_path, monkeypatch):
    """Guards: in any folder recipes/NAME.yaml is the package's recipe, unless the folder has one of that name; a name
    that is nowhere is one sentence with those there are."""
    monkeypatch.chdir(tmp_path)
    assert with_recipe(["recipes/mini.yaml", "--seed", "1"]) == [
        *with_recipe([str(RECIPES / "mini.yaml")]),
        "--seed",
        "1",
    ]
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mini.yaml").write_text("config_name: tiny\n")
    assert with_recipe(["recipes/mini.yaml"]) == ["--config_name", "tiny"]
    for name in ("recipes/minni.yaml", "mini.yaml", "other/mini.yaml"):
        with pytest.raises(InputError, match=f"^{name}: no such recipe; .*recipes/lm1b.yaml, recipes/mini.yaml, "):
            with_recipe([name])


# All fields of transformers' TrainingArguments that have their effect in both trainers, and in fine-tuning alone.
HONOURED = """
output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs
warmup_steps optim optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules
gradient_accumulation_steps average_tokens_across_devices max_grad_norm bf16 fp16 bf16_full_eval fp16_full_eval tf32
activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs
torch_compile torch_compile_backend torch_compile_mode use_cache torch_empty_cache_steps logging_strategy logging_steps
logging_first_step log_on_each_node log_level log_level_replica disable_tqdm report_to
run_name project trackio_space_id trackio_bucket_id trackio_static_space_id eval_strategy eval_steps eval_delay
per_device_eval_batch_size eval_on_start eval_accumulation_steps save_strategy save_steps
save_on_each_node save_total_limit push_to_hub hub_token hub_private_repo hub_model_id
hub_strategy hub_always_push hub_revision load_best_model_at_end metric_for_best_model greater_is_better
restore_callback_states_from_checkpoint full_determinism seed use_cpu accelerator_config parallelism_config
dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
dataloader_multiprocessing_context dataloader_in_order ddp_find_unused_parameters ddp_bucket_cap_mb
ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config deepspeed debug skip_memory_metrics
do_train do_eval resume_from_checkpoint local_rank
""".split()
IN_FINE_TUNING = (
    "label_smoothing_factor label_names train_sampling_strategy data_seed do_predict include_num_input_tokens_seen"
)
IN_PRETRAINING = "remove_unused_columns"


def test_every_training_argument_is_honoured_or_refused():
    """Guards: no field of TrainingArguments is without effect in silence, not one of a newer transformers either."""
    for ours, more in ((PretrainingArguments, IN_PRETRAINING), (FineTuningArguments, IN_FINE_TUNING)):
        honoured, refused = {*HONOURED, *more.split()}, {name.split(".")[0] for name in ours.refused}
        assert {field.name for field in fields(TrainingArguments)} - honoured - refused == set()
        assert honoured & refused == {"accelerator_config"}  # of which one entry is refused


@pytest.mark.parametrize(
    "flags",
    [
        "--label_smoothing_factor 0.1",
        "--label_names labels",
        "--train_sampling_strategy group_by_length",
        "--data_seed 3",
        "--auto_find_batch_size",
        "--do_predict",
        "--logging_nan_inf_filter",
        "--ignore_data_skip",
        "--dataloader_drop_last",
        '--accelerator_config {"split_batches":true}',
        "--prediction_loss_only",
        "--batch_eval_metrics",
        "--eval_do_concat_batches false",
        "--eval_use_gather_object",
        "--include_for_metrics inputs",
        "--length_column_name size",
        "--neftune_noise_alpha 5",
        "--use_liger_kernel",
        "--save_only_model",
        "--enable_jit_checkpoint",
        "--learning_rate nan",
        "--learning_rate inf",
        "--learning_rate 1e39",
        "--learning_rate -0.1",
        "--num_train_epochs 0",
        "--num_train_epochs nan",
        "--max_steps 0",
        "--max_steps -2",
        "--max_nonfinite_steps 0",
    ],
)
def test_what_has_no_effect_or_no_sense_is_refused(flags):
    """Guards: a sentence that begins with the argument, of both kinds of training where both refuse it."""
    name = flags.split()[0]
    kinds = [PretrainingArguments]
    if name.removeprefix("--") not in IN_FINE_TUNING.split():
        kinds.append(FineTuningArguments)
    for kind in kinds:
        field = name.removeprefix("--")
        with pytest.raises(InputError, match=f"^`{field}` .*(is not supported: .*; leave it out|: give )"):
            parse([*flags.split(), "--use_cpu"], kind)


def test_refused_arguments_by_the_name_that_is_given():
    """Guards: an entry of --accelerator_config is named as such, and --help lists no argument that is never taken."""
    with pytest.raises(InputError, match="^`accelerator_config` with split_batches is not supported: "):
        parse(["--accelerator_config", '{"split_batches":true}', "--use_cpu"], FineTuningArguments)
    with pytest.raises(InputError, match="^`accelerator_config` with dispatch_batches is not supported: "):
        parse(["--accelerator_config", '{"dispatch_batches":true}', "--use_cpu"], PretrainingArguments)
    shown = ArgumentParser([FineTuningArguments]).format_help()
    assert "--max_nonfinite_steps" in shown and "logging_nan_inf_filter" not in shown


def test_the_token_is_not_among_the_arguments_that_are_saved(monkeypatch):
    """Guards: parsing leaves the environment as it is; a run keeps --hub_token out of training_args.bin."""
    monkeypatch.setenv("HF_TOKEN", "before")
    (arguments,) = parse(["--hub_token", "hf_write", "--use_cpu"], FineTuningArguments)
    assert (os.environ["HF_TOKEN"], arguments.hub_token) == ("before", "hf_write")
    keep_token(arguments)
    assert (os.environ["HF_TOKEN"], arguments.hub_token) == ("hf_write", None)


def test_misspelt_arguments_are_refused_not_guessed():
    """Guards: argparse must not take --config_nam for --config_name, nor drop what it does not know."""
    for flag in ("--config_nam", "--hidden_size"):
        with pytest.raises(InputError, match=f"{flag}: no such argument"):
            parse([flag, "tiny"], ModelArguments)
    with pytest.raises(InputError, match="--learning_rate.*invalid float value: 'fast'"):
        parse(["--learning_rate", "fast"], TrainingArguments)


def test_fields_have_their_types():
    """Guards: keywords are as strict as flags: a text is no number, a number no text, and no name is guessed."""
    given = {"learning_rate": 1, "corpus_weights": [1, 2.5], "max_steps": None, "use_cpu": True, "train_file": "a"}
    data, training = make_arguments(given, PretrainingDataArguments, PretrainingArguments)
    assert data.train_file == ["a"]
    assert (training.learning_rate, training.max_steps, data.corpus_weights) == (1, -1, [1, 2.5])
    for name, value in (
        ("learning_rate", "fast"), ("max_steps", 2.0), ("max_steps", True), ("seed", "1"), ("train_file", ["a", 5]),
        ("language", 5), ("objective", "rtd"), ("do_train", "true"), ("stages", ["{}"]),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"^`{name}` {re.escape(repr(value))} is not of the type "):
            make_arguments({name: value}, PretrainingDataArguments, PretrainingArguments)
    _, training = make_arguments({"learning_rate": "5e-5"}, PretrainingDataArguments, PretrainingArguments)
    assert training.learning_rate == 5e-5  # as YAML reads it
    with pytest.raises(InputError, match="`objective` 'rtd' is not of the type .*'mlm', 'clm'"):
        make_arguments({"objective": "rtd"}, PretrainingDataArguments, PretrainingArguments)
    with pytest.raises(InputError, match="`language` 5 is not of the type .*: put it in quotes"):
        make_arguments({"language": 5}, PretrainingDataArguments, PretrainingArguments)
    with pytest.raises(InputError, match="^`max_step`: no such argument"):
        make_arguments({"max_step": 1}, ModelArguments, PretrainingArguments)


def test_what_a_command_gives_is_a_recipe_of_it(tmp_path):
    """Guards: a command is the fields with another value than the default; written as a recipe, they come back."""
    kinds = (ModelArguments, PretrainingDataArguments, PretrainingArguments)
    argv = ["--seed=42", "--bf16", "false", "--stages", '{"steps": 3}', '{"steps": 4, "value_head_size": [7, 8]}']
    argv += [
        "--train-file",
        "a",
        "b",
        "--config_overrides",
        "hidden_act=relu,attention_head_size=[3, 4]",
        "--do_train",
    ]
    given = read_arguments(argv, *kinds)
    assert given == {
        "config_overrides": {"hidden_act": "relu", "attention_head_size": [3, 4]},
        "train_file": ["a", "b"],
        "do_train": True,
        "stages": [{"steps": 3}, {"steps": 4, "value_head_size": [7, 8]}],
    }
    (tmp_path / "command.json").write_text(json.dumps(given))
    assert read_arguments([str(tmp_path / "command.json"), "--seed", "42"], *kinds) == given
    with pytest.raises(InputError, match=r"--stages: \[1\] is not of the form name=value; give name=value,name=value"):
        read_arguments(["--stages", "[1]"], *kinds)
    with pytest.raises(InputError, match=r"--stages: \{1\} is no mapping in JSON"):
        read_arguments(["--stages", "{1}"], *kinds)


def test_what_is_given_takes_the_place_of_entries(tmp_path, capsys):
    """Guards: a flag, and a keyword, drops the entries of a recipe that say the same in another way, and says so."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("dataset_name: [a, b]\ndocument_boundary: [row, line]\nmax_steps: 7\nseed: 3\n")
    assert recipe_entries(recipe, {"train_file"}) == {"max_steps": 7, "seed": 3}
    assert f"{recipe}: without its dataset_name, document_boundary, whose place" in capsys.readouterr().out
    kept = {"dataset_name": ["a", "b"], "document_boundary": ["row", "line"], "seed": 3}
    assert recipe_entries(recipe, {"num_train_epochs"}) == kept
    assert beside_recipe(recipe, {"train_file": None, "seed": 5}) == kept | {"max_steps": 7, "seed": 5}
    words = with_recipe([str(recipe), "--train-file=c.txt", "--max_steps", "5"])
    assert words == ["--max_steps", "7", "--seed", "3", "--train-file=c.txt", "--max_steps", "5"]
    assert with_recipe(["--train_file=rows.json"]) == ["--train_file=rows.json"]


def test_what_keywords_give_is_what_a_command_would(tmp_path):
    """Guards: a run from Python can be continued by its command.json: defaults are left out, values in one form."""
    given = {"train_file": tmp_path / "a", "seed": 42, "lr_scheduler_kwargs": '{"a": 1}'}
    found = check_types(given, PretrainingDataArguments, PretrainingArguments)
    assert found == {"train_file": [str(tmp_path / "a")], "lr_scheduler_kwargs": {"a": 1}}


def test_configurations_come_from_presets_with_overrides():
    """Guards: --config_name takes a preset, --config_overrides any field, and their errors name the model."""

    def arguments(overrides):
        return parse(["--config_name", "tiny", "--config_overrides", overrides], ModelArguments)[0]

    config = load_config(arguments("num_attention_heads=3"), num_labels=5)
    assert (config.num_attention_heads, config.attention_head_size, config.num_labels) == (3, 64, 5)
    overrides = (
        "num_attention_heads=8,attention_head_size=None,hidden_act=relu,layer_norm_eps=1e-6,tie_word_embeddings=false"
    )
    config = load_config(arguments(overrides))
    assert (config.head_dim, config.hidden_act, config.layer_norm_eps, config.tie_word_embeddings) == (
        16,
        "relu",
        1e-6,
        False,
    )
    for overrides in ("num_attention_heads=0", "nonsense=1", "num_attention_heads=x", "hidden_size"):
        with pytest.raises(InputError, match="^(tiny|`config_overrides` nonsense|argument --config_overrides)"):
            load_config(arguments(overrides))
    assert arguments('{"attention_head_size": [8, null]}').config_overrides == {"attention_head_size": [8, None]}
    with pytest.raises(InputError, match="`config_name`"):
        load_config(ModelArguments())
    with pytest.raises(InputError, match="^nowhere/nothing: "):
        load_config(ModelArguments(model_name_or_path="nowhere/nothing"))
