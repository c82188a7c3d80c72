"""What the scripts share: arguments and recipes, held-out sums, malloc, output directories."""

import ctypes
import json
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import FullyShardedDataParallelPlugin
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy
from accelerate.utils.launch import prepare_multi_gpu_env
from safetensors.torch import load_file, save_file
from small_models import SHAPE, inputs_of, model_of
from torch.nn.functional import cross_entropy
from transformers import (
    BertConfig,
    BertForPreTraining,
    EvalPrediction,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    get_scheduler,
)

import fixedbert
from fixedbert.errors import Divergence, InputError
from fixedbert.presets import preset_config
from fixedbert.training.arguments import (
    RECIPES,
    REPLACED,
    ArgumentParser,
    CommonArguments,
    ModelArguments,
    parse,
    with_recipe,
)
from fixedbert.training.fine_tuning import FineTuningArguments
from fixedbert.training.glue_data import GlueDataArguments
from fixedbert.training.loading import load_config
from fixedbert.training.output import last_checkpoint, output_directory, run_arguments
from fixedbert.training.pictures import draw_pretraining
from fixedbert.training.pretraining import (
    OBJECTIVES,
    SUMS,
    PretrainingArguments,
    pretraining_metrics,
    separate_losses,
    sums_by_example,
)
from fixedbert.training.pretraining_data import PretrainingDataArguments
from fixedbert.training.progress import ProgressLine
from fixedbert.training.squad_data import SquadDataArguments
from fixedbert.training.trainer import CommonTrainer


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_held_out_metrics_equal_the_plain_ones(objective):
    """Guards: sums by example, from dense or sparse logits, give the losses and accuracies of the whole set."""
    torch.manual_seed(0)
    logits, labels = torch.randn(13, 7, 11), torch.randint(11, (13, 7))
    labels[torch.rand(13, 7) < 0.6] = -100
    labels[3] = -100  # a row with nothing to predict
    next_logits, next_labels = torch.randn(13, 2), torch.randint(2, (13,))
    inside_word = np.arange(11) > 6

    def sums(logits):
        if objective == "mlm+nsp":
            return sums_by_example((logits, next_logits), (labels, next_labels), objective)
        return sums_by_example(logits, labels, objective, inside_word)

    result = sums(logits)
    assert result.shape == (13, len(SUMS[objective]))
    metrics = pretraining_metrics(EvalPrediction(result.numpy(), None), objective, by_word=objective == "clm")
    task = objective[:3]
    if objective == "clm":
        predictions, targets = logits[:, :-1], labels[:, 1:]
    else:
        predictions, targets = logits, labels
        asked = logits[labels != -100]
        for sparse in (asked, torch.cat([asked, logits[0]])):  # also from batches of one shape, with some left over
            assert torch.allclose(sums(sparse), result)
    loss = cross_entropy(predictions.flatten(0, 1), targets.flatten()).item()
    expected = {
        f"{task}_loss": pytest.approx(loss, rel=1e-6),
        f"{task}_accuracy": pytest.approx((predictions.argmax(-1) == targets)[targets != -100].float().mean().item()),
        "perplexity": pytest.approx(torch.tensor(loss).exp().item(), rel=1e-5),
    }
    if objective == "mlm+nsp":
        expected["nsp_loss"] = pytest.approx(cross_entropy(next_logits, next_labels).item(), rel=1e-6)
        expected["nsp_accuracy"] = pytest.approx((next_logits.argmax(-1) == next_labels).float().mean().item())
    if objective == "clm":
        asked = targets[targets != -100]
        words = (asked <= 6).sum()
        expected["word_perplexity"] = pytest.approx((loss * len(asked) / words).exp().item(), rel=1e-5)
    assert metrics == expected


def test_losses_of_pretraining_are_separate():
    """Guards: our model's two losses are taken as they are; of stock BERT's sum the pairs' is computed again."""
    inputs = inputs_of("ForPreTraining", labels=True)
    ours = model_of("ForPreTraining").eval()(**inputs)
    assert separate_losses(ours, inputs) == (ours.masked_lm_loss, ours.next_sentence_loss)
    torch.manual_seed(0)
    stock = BertForPreTraining(BertConfig(**SHAPE, num_attention_heads=4)).eval()(**inputs)
    of_tokens, of_pairs = separate_losses(stock, inputs)
    expected = cross_entropy(stock.prediction_logits.flatten(0, 1), inputs["labels"].flatten())
    assert torch.allclose(of_tokens, expected)
    assert torch.equal(of_pairs, cross_entropy(stock.seq_relationship_logits, inputs["next_sentence_label"]))
    tokens_alone = inputs_of("ForMaskedLM", labels=True)
    outputs = model_of("ForMaskedLM").eval()(**tokens_alone)
    assert separate_losses(outputs, tokens_alone) == (outputs.loss, None)


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


def test_progress_line_says_everything(capsys):
    """
    Guards: one line with loss, accuracy, real tokens per second, fill and time left, one of held-out results; steps of
    an earlier stage or call make it no faster.
    """
    line, state = ProgressLine(), TrainerState(max_steps=100, global_step=47)
    line.on_train_begin(None, state, None)
    line.training_bar._time = lambda began=line.training_bar.start_t: began + 30
    state.global_step = 50
    line.on_step_end(None, state, None)
    assert "50/100 [00:30<08:20, 10.00s/it" in str(line.training_bar)
    logs = {"loss": 6.5, "mlm_accuracy": 0.125, "tokens_per_second": 8123.4, "fill_ratio": 0.96}
    line.on_log(None, state, None, logs)
    line.on_log(None, state, None, {"eval_mlm_loss": 6.25, "eval_perplexity": 518.0, "eval_runtime": 3.0})
    line.on_train_end(None, state, None)
    shown = capsys.readouterr()
    shown = shown.out + shown.err
    assert "loss 6.500, accuracy 12.5%, 8,123 tokens/s, fill 96%" in shown and "50/100" in shown and "<" in shown
    assert "step 50, held out: mlm_loss 6.25, perplexity 518" in shown and "runtime" not in shown


def test_curves_are_drawn_from_any_log(tmp_path):
    """Guards: the picture of a run is there, a PNG of some size, also without held-out points."""
    log = [
        {
            "loss": 7.0 - n / 10,
            "mlm_accuracy": n / 50,
            "learning_rate": 1e-4,
            "num_input_tokens_seen": 1000 * n,
            "step": n,
        }
        for n in range(5)
    ]
    held_out = {"eval_loss": 7.1, "eval_mlm_loss": 6.4, "eval_nsp_loss": 0.7, "num_input_tokens_seen": 4000}
    for name, entries in (("a.png", log), ("b.png", [*log, {**held_out, "eval_mlm_accuracy": 0.1}])):
        draw_pretraining(entries, "mlm", "a title", tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG") and (tmp_path / name).stat().st_size > 10_000


def test_damaged_checkpoints_are_said(tmp_path):
    """
    Guards: an unreadable newest checkpoint is named with the one before, which --resume_from_checkpoint takes; the
    newest is then set aside, since the run would go on from it the next time.
    """
    partial = tmp_path / "run.partial"
    for step in (5, 10):
        folder = partial / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        save_file({"a": torch.zeros(1000)}, folder / "model.safetensors")
        torch.save({"a": torch.zeros(1000)}, folder / "optimizer.pt")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    command = ["--output_dir", str(tmp_path / "run")]
    (partial / "command.json").write_text(json.dumps(command))
    newest = partial / "checkpoint-10"

    def start(**options):
        arguments = CommonArguments(output_dir=str(tmp_path / "run"), use_cpu=True, **options)
        with output_directory(arguments, command) as checkpoint:
            raise KeyboardInterrupt(checkpoint)

    for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
        whole = (newest / name).read_bytes()
        (newest / name).write_bytes(b"{[}" if name.endswith("json") else whole[: len(whole) // 2])
        with pytest.raises(InputError, match=rf"checkpoint-10/{name}.*--resume_from_checkpoint .*checkpoint-5"):
            start()
        with pytest.raises(KeyboardInterrupt, match="checkpoint-5"):
            start(resume_from_checkpoint=str(partial / "checkpoint-5"))
        assert not newest.exists()
        (partial / "_unused-checkpoint-10").rename(newest)
        (newest / name).write_bytes(whole)
    with pytest.raises(KeyboardInterrupt, match="checkpoint-10"):
        start()
    shutil.copytree(partial / "checkpoint-5", tmp_path / "copies" / "checkpoint-5")
    with pytest.raises(KeyboardInterrupt, match="copies/checkpoint-5"):
        start(resume_from_checkpoint=str(tmp_path / "copies" / "checkpoint-5"))
    assert newest.exists()  # of another folder none is later

    (partial / "_unused-checkpoint-10").mkdir()
    shutil.copy(newest / "trainer_state.json", partial)  # the model was trained, and the evaluation stopped
    with pytest.raises(KeyboardInterrupt, match="checkpoint-5"):
        start(resume_from_checkpoint=str(partial / "checkpoint-5"))
    assert last_checkpoint(partial) == str(partial / "checkpoint-5")
    assert (partial / "_unused1-checkpoint-10" / "model.safetensors").exists()


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
logging_first_step log_on_each_node include_num_input_tokens_seen log_level log_level_replica disable_tqdm report_to
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
IN_FINE_TUNING = "label_smoothing_factor label_names train_sampling_strategy data_seed do_predict"
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
        with pytest.raises(InputError, match=rf"^{name}[ .].*(is not supported: .*; leave it out|: give )"):
            parse([*flags.split(), "--use_cpu"], kind)


def test_no_advice_is_refused():
    """Guards: what replaces an argument that transformers has no more is not itself refused."""
    advised = {flag for reason in REPLACED.values() for flag in re.findall(r"--(\w+)", reason)}
    assert "eval_strategy" in advised and not advised & CommonArguments.refused.keys()


def test_refused_arguments_by_the_name_that_is_given():
    """Guards: an entry of --accelerator_config is named as such, and --help lists no argument that is never taken."""
    with pytest.raises(InputError, match="^--accelerator_config with split_batches is not supported: "):
        parse(["--accelerator_config", '{"split_batches":true}', "--use_cpu"], FineTuningArguments)
    with pytest.raises(InputError, match="^--accelerator_config with dispatch_batches is not supported: "):
        parse(["--accelerator_config", '{"dispatch_batches":true}', "--use_cpu"], PretrainingArguments)
    shown = ArgumentParser([FineTuningArguments]).format_help()
    assert "--max_nonfinite_steps" in shown and "logging_nan_inf_filter" not in shown


@pytest.fixture
def about_to_step(tmp_path):
    """A trainer of a linear layer in its first step: the batch has a loss, the weights have gradients."""
    model = torch.nn.Linear(2, 2)
    model.forward = lambda x: None
    arguments = FineTuningArguments(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    arguments.train_sampling_strategy = "random"
    rows = [{"x": torch.ones(2)}] * 8
    trainer = CommonTrainer(model=model, args=arguments, train_dataset=rows)
    trainer.callback_handler.train_dataloader = trainer.get_train_dataloader()
    trainer._tr_loss, trainer._globalstep_last_logged = torch.tensor(0.0), 0  # as where training begins
    trainer.step_losses = [torch.tensor(1.0)]
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    return trainer


def test_steps_that_the_fp16_scaler_skips_are_logged_not_counted(about_to_step):
    """Guards: while a scale can be lowered, an infinite gradient norm is the scaler's; below 1 it is divergence."""
    trainer = about_to_step
    trainer.accelerator.scaler = SimpleNamespace(get_scale=lambda: 65536.0)
    trainer.apply_finite_step(torch.tensor(torch.inf))
    assert [entry["skipped_step"] for entry in trainer.state.log_history] == [1] and trainer.nonfinite_steps == 0
    assert all(weight.grad is not None for weight in trainer.model.parameters())
    trainer.accelerator.scaler, trainer.step_losses = SimpleNamespace(get_scale=lambda: 0.5), [torch.tensor(1.0)]
    with pytest.raises(Divergence, match="^step 1: the gradient norm is not finite, on the examples "):
        trainer.apply_finite_step(torch.tensor(torch.inf))
    assert all(weight.grad is None for weight in trainer.model.parameters())


def test_tied_weights_are_not_missing(tmp_path, monkeypatch):
    """Guards: a checkpoint, which has tied weights once, loads without a warning; one that lacks a weight does not."""
    said = []
    monkeypatch.setattr("transformers.trainer.logger.warning", said.append)
    model, folder = model_of("ForPreTraining"), tmp_path / "checkpoint"
    trainer = CommonTrainer(model=model, args=FineTuningArguments(output_dir=str(tmp_path), report_to="none"))
    model.save_pretrained(folder)
    said.clear()
    trainer._load_from_checkpoint(str(folder))
    assert not said
    weights = load_file(folder / "model.safetensors")
    assert "cls.predictions.decoder.weight" not in weights
    del weights["bert.pooler.dense.bias"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    trainer._load_from_checkpoint(str(folder))
    assert "['bert.pooler.dense.bias']" in said[0]


def test_weights_that_overflow_are_not_saved(tmp_path):
    """Guards: an update that overflows is found before a checkpoint is saved, and before the trained model is."""

    class Overflow(TrainerCallback):
        def on_optimizer_step(self, args, state, control, model, **kwargs):
            if state.global_step == 2:
                model.weight.data[1, 0] = torch.inf

    model = torch.nn.Linear(2, 2)
    model.forward = lambda x: {"loss": torch.nn.functional.linear(x, model.weight).sum()}
    options = {"max_steps": 3, "use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True}
    options["train_sampling_strategy"] = "random"
    rows = [{"x": torch.ones(2)}] * 24
    for name, saves, kept in (
        ("a", {"save_steps": 1}, "the last good checkpoint is .*checkpoint-2:"),
        ("b", {"save_strategy": "no"}, "no "),
    ):
        arguments = FineTuningArguments(output_dir=str(tmp_path / name), **options, **saves)
        trainer = CommonTrainer(model=model, args=arguments, train_dataset=rows, callbacks=[Overflow()])
        torch.nn.init.zeros_(model.weight)
        with pytest.raises(Divergence, match=f"^step 3: the weights are not finite; nothing was saved since, {kept}"):
            trainer.train()
            trainer.save_model()
        found = sorted(path.name for path in (tmp_path / name).rglob("checkpoint-*"))
        assert found == (["checkpoint-1", "checkpoint-2"] if name == "a" else [])
        assert not (tmp_path / name / "model.safetensors").exists()


def test_nonfinite_steps_are_counted_in_a_row(about_to_step):
    """Guards: a finite step between two that are not starts the count anew."""
    trainer = about_to_step
    trainer.args.max_nonfinite_steps = 2
    for norm, expected in ((torch.nan, 1), (1.0, 0), (torch.nan, 1)):
        trainer.step_losses = [torch.tensor(1.0)]
        trainer.apply_finite_step(torch.tensor(norm))
        assert trainer.nonfinite_steps == expected
    trainer.step_losses = [torch.tensor(torch.nan)]
    with pytest.raises(Divergence, match="^step 1: the loss is not finite"):
        trainer.apply_finite_step(torch.tensor(1.0))


def test_finite_step_waits_for_the_device_once(about_to_step, monkeypatch):
    """Guards: loss, gradient norm and tokens of a step are read together: to read waits for all the GPU does."""
    read, about_to_step.step_tokens = [], [torch.tensor(3), torch.tensor(2**24 + 1)]

    def count(name):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda x: read.append(name) or original(x))

    for name in ("__bool__", "__float__", "item", "tolist"):
        count(name)
    about_to_step.apply_finite_step(torch.tensor(1.0))
    assert read == ["tolist"]
    assert about_to_step.state.num_input_tokens_seen == 2**24 + 4 and about_to_step.step_tokens == []


def test_window_is_shared_out_among_any_number_of_processes(about_to_step, tmp_path, monkeypatch):
    """Guards: what three processes had added up goes on with one or two: sums are kept, and the mean of losses."""
    trainer = about_to_step
    content = {"last_logged_step": 6, "total_loss": 7.5, "nonfinite_steps": 1, "seconds": 100.0}
    content["sums"] = [[1.0, 10.0, 20.0], [2.0, 30.0, 40.0], [6.0, 50.0, 60.0]]
    (tmp_path / "logging_window.json").write_text(json.dumps(content))
    trainer.continued_from = str(tmp_path)
    for processes in (1, 2, 3):
        monkeypatch.setattr(TrainingArguments, "world_size", processes)
        losses, windows = [], []
        for process in range(processes):
            monkeypatch.setattr(TrainingArguments, "process_index", process)
            trainer._tr_loss = torch.tensor(0.0)
            trainer.restore_window()
            losses.append(trainer._tr_loss.item())
            windows.append(trainer.window)
        assert np.mean(losses) == pytest.approx(3.0) and torch.stack(windows).sum(0).tolist() == [90.0, 120.0]
        assert (trainer._globalstep_last_logged, trainer._total_loss_scalar, trainer.nonfinite_steps) == (6, 7.5, 1)


@pytest.mark.parametrize("content", [None, "{", "{}", '{"sums": 5}'])
def test_checkpoints_of_others_are_not_continued(about_to_step, tmp_path, content):
    """Guards: where what was added up is absent or damaged, a sentence names the file."""
    if content is not None:
        (tmp_path / "logging_window.json").write_text(content)
    about_to_step.continued_from = str(tmp_path)
    with pytest.raises(InputError, match="logging_window.json: .*; a run can go on only from its own checkpoints"):
        about_to_step.restore_window()


def test_misspelt_arguments_are_refused_not_guessed():
    """Guards: argparse must not take --config_nam for --config_name, nor drop what it does not know."""
    for flag in ("--config_nam", "--hidden_size"):
        with pytest.raises(InputError, match=f"{flag}: no such argument"):
            parse([flag, "tiny"], ModelArguments)
    with pytest.raises(InputError, match="--learning_rate.*invalid float value: 'fast'"):
        parse(["--learning_rate", "fast"], TrainingArguments)


def test_configurations_come_from_presets_with_overrides():
    """Guards: --config_name takes a preset, --config_overrides any field, and their errors name the model."""
    config = load_config(ModelArguments(config_name="tiny", config_overrides="num_attention_heads=3"), num_labels=5)
    assert (config.num_attention_heads, config.attention_head_size, config.num_labels) == (3, 64, 5)
    overrides = (
        "num_attention_heads=8,attention_head_size=None,hidden_act=relu,layer_norm_eps=1e-6,tie_word_embeddings=false"
    )
    config = load_config(ModelArguments(config_name="tiny", config_overrides=overrides))
    assert (config.head_dim, config.hidden_act, config.layer_norm_eps, config.tie_word_embeddings) == (
        16,
        "relu",
        1e-6,
        False,
    )
    for overrides in ("num_attention_heads=0", "nonsense=1", "num_attention_heads=x", "hidden_size"):
        with pytest.raises(InputError, match="^(tiny|--config_overrides)"):
            load_config(ModelArguments(config_name="tiny", config_overrides=overrides))
    with pytest.raises(InputError, match="^tiny: the configuration names the attention mine.Own, a class that is not"):
        load_config(ModelArguments(config_name="tiny", config_overrides="attention=mine.Own"))
    with pytest.raises(InputError, match="--config_name"):
        load_config(ModelArguments())
    with pytest.raises(InputError, match="^nowhere/nothing: "):
        load_config(ModelArguments(model_name_or_path="nowhere/nothing"))


def test_output_directory_appears_whole_or_not_at_all(tmp_path):
    """Guards: a failed run leaves nothing, one with a checkpoint keeps it and is continued, a whole one is renamed."""
    final, partial = tmp_path / "run", tmp_path / "run.partial"
    command = ["--output_dir", str(final), "--seed", "1"]

    def arguments():
        return CommonArguments(output_dir=str(final), use_cpu=True)

    with pytest.raises(RuntimeError), output_directory(arguments(), command) as checkpoint:
        assert checkpoint is None
        raise RuntimeError
    assert not list(tmp_path.iterdir())

    with pytest.raises(KeyboardInterrupt), output_directory(arguments(), command):
        (partial / "checkpoint-5").mkdir()
        (partial / "checkpoint-5" / "trainer_state.json").write_text("{}")
        (partial / "checkpoint-10").mkdir()  # killed while it was written
        raise KeyboardInterrupt
    assert not final.exists()

    with output_directory(arguments(), command) as checkpoint:
        assert checkpoint == str(partial / "checkpoint-5") and not (partial / "checkpoint-10").exists()
        assert not final.exists()
    assert (final / "checkpoint-5").exists() and not partial.exists()

    with pytest.raises(InputError, match="not empty"), output_directory(arguments(), command):
        pass
    assert run_arguments(["--output_dir", "x", "--a", "1", "--resume_from_checkpoint", "--b"]) == ["--a", "1", "--b"]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="not glibc")
def test_freed_memory_is_kept():
    """Guards: after the call the pages of large tensors stay with the process: no new page faults."""
    script = """
import resource, torch
from fixedbert.training.speed import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(1 << 22)  # 16 MB, 4096 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
keep_freed_memory(torch.device("cpu"))
faults()
print(faults())
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 4096
