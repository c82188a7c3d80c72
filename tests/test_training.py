"""What the scripts share: arguments and recipes, held-out sums, malloc, output directories."""

import ctypes
import subprocess
import sys

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import EvalPrediction, TrainingArguments

from fixedbert.errors import InputError
from fixedbert.training.arguments import ModelArguments, load_config, parse, with_recipe
from fixedbert.training.output import output_directory, run_arguments
from fixedbert.training.pretraining import pretraining_metrics, sums_by_example


def test_held_out_metrics_equal_the_plain_ones():
    """Guards: sums by example, from dense or sparse logits, give the losses and accuracies of the whole set."""
    torch.manual_seed(0)
    logits, labels = torch.randn(13, 7, 11), torch.randint(11, (13, 7))
    labels[torch.rand(13, 7) < 0.6] = -100
    next_logits, next_labels = torch.randn(13, 2), torch.randint(2, (13,))
    sparse = logits[labels != -100]
    dense_sums, sparse_sums = (sums_by_example((x, next_logits), (labels, next_labels)) for x in (logits, sparse))
    assert torch.allclose(dense_sums, sparse_sums) and dense_sums.shape == (13, 5)
    metrics = pretraining_metrics(EvalPrediction(predictions=dense_sums.numpy(), label_ids=None))
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    assert metrics == {
        "mlm_loss": pytest.approx(loss, rel=1e-6),
        "mlm_accuracy": pytest.approx((logits.argmax(-1) == labels)[labels != -100].float().mean().item()),
        "perplexity": pytest.approx(torch.tensor(loss).exp().item(), rel=1e-5),
        "nsp_loss": pytest.approx(cross_entropy(next_logits, next_labels).item(), rel=1e-6),
        "nsp_accuracy": pytest.approx((next_logits.argmax(-1) == next_labels).float().mean().item()),
    }


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
    with pytest.raises(InputError, match=r"recipe\.yaml: "):
        with_recipe([str(tmp_path / "recipe.yaml")])


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
    with pytest.raises(InputError, match="--config_name"):
        load_config(ModelArguments())
    with pytest.raises(InputError, match="^nowhere/nothing: "):
        load_config(ModelArguments(model_name_or_path="nowhere/nothing"))


def test_output_directory_appears_whole_or_not_at_all(tmp_path):
    """Guards: a failed run leaves nothing, one with a checkpoint keeps it and is continued, a whole one is renamed."""
    final, partial = tmp_path / "run", tmp_path / "run.partial"
    command = ["--output_dir", str(final), "--seed", "1"]

    def arguments():
        return TrainingArguments(output_dir=str(final), use_cpu=True)

    with pytest.raises(RuntimeError), output_directory(arguments(), command) as checkpoint:
        assert checkpoint is None
        raise RuntimeError
    assert not list(tmp_path.iterdir())

    with pytest.raises(KeyboardInterrupt), output_directory(arguments(), command):
        (partial / "checkpoint-5").mkdir()
        (partial / "checkpoint-5" / "trainer_state.json").touch()
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
from fixedbert.training.memory import keep_freed_memory

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
