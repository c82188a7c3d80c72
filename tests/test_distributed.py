"""Training in two processes: FSDP, averages over tokens, skipped steps and resumed runs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from helpers import ROOT, fork_server
from helpers.outputs import log_of, results, weights_in
from helpers.script_arguments import SHAPE, glue_of, pretraining
from helpers.tiny_models import L, inputs_of, model_of
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import run_glue
import run_pretraining
from fixedbert.pretraining.arguments import PretrainingArguments
from fixedbert.pretraining.trainer import PretrainingTrainer

pytestmark = pytest.mark.slow  # every test starts two processes

START = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import os, torch, torch.distributed as dist, fixedbert
from helpers.tiny_models import *
rank = int(os.environ["RANK"])
def batch(head, rows):
    inputs = inputs_of(head, labels=True, size=4)
    inputs["labels"] = inputs["labels"].masked_fill(inputs["attention_mask"] == 0, -100)
    return {{name: x[rows] for name, x in inputs.items()}}
"""

END = """
dist.barrier()
sys.stdout.flush()
os._exit(0)  # gloo's threads may abort a regular exit
"""

SHARDED = """
from torch.distributed.fsdp import FSDPModule
from transformers.distributed import DistributedConfig
dist.init_process_group("gloo")
directory = sys.argv[1] + "/model"
reference = model_of("ForPreTraining", unpad_inputs=True, sparse_prediction=True)
if rank == 0:
    reference.save_pretrained(directory)
dist.barrier()
model = type(reference).from_pretrained(directory, distributed_config=DistributedConfig(fsdp_size=2)).eval()
assert sum(isinstance(module, FSDPModule) for module in model.modules()) == 4  # three layers and the model
reference.eval()
for half in (slice(0, 2), slice(2, 4)):
    (reference(**batch("ForPreTraining", half)).loss / 2).backward()
model(**batch("ForPreTraining", slice(2 * rank, 2 * rank + 2))).loss.backward()
for one, other in zip(model.parameters(), reference.parameters()):
    assert torch.allclose(one.grad.full_tensor(), other.grad, rtol=1e-4, atol=1e-5)
"""

AVERAGE = """
from test_distributed import TOKEN_HEADS, first_step
for head in TOKEN_HEADS:
    result = first_step(head, 2, sys.argv[1])
    if rank == 0:
        print("RESULT", *result)
"""

RESUMED = """
import datasets, json
from transformers import BertTokenizer
from fixedbert.fine_tuning.trainer import FineTuningArguments, FineTuningTrainer
tokenizer = BertTokenizer(vocab=sys.argv[2])
rows = datasets.Dataset.from_list(
    [{"input_ids": [n, *range(1, 2 + n % 7)], "labels": n % 2, "length": 2 + n % 7} for n in range(48)])
def train(strategy, checkpoint=None):
    directory = f"{sys.argv[1]}/{strategy}"
    arguments = FineTuningArguments(output_dir=directory, per_device_train_batch_size=4, num_train_epochs=2,
        save_steps=8, use_cpu=True, bf16=False, disable_tqdm=True, train_sampling_strategy=strategy, report_to="none")
    trainer = FineTuningTrainer(model=model_of("ForSequenceClassification"), args=arguments, train_dataset=rows,
        processing_class=tokenizer)
    steps, collate = [], trainer.data_collator
    trainer.data_collator = lambda batch: steps.append([row["input_ids"][0] for row in batch]) or collate(batch)
    trainer.train(resume_from_checkpoint=checkpoint and f"{directory}/{checkpoint}")
    seen = [None, None]
    dist.all_gather_object(seen, steps)
    return [sorted(one + other) for one, other in zip(*seen)]
for strategy in ("group_by_length", "random"):
    reference, resumed = train(strategy), train(strategy, "checkpoint-8")
    if rank == 0:
        print("RESULT", json.dumps([reference, resumed]))
"""

ONE_BAD_ROW = """
import datasets, json
from transformers import BertTokenizer, TrainerCallback
from fixedbert.support.errors import InputError
from fixedbert.fine_tuning.trainer import FineTuningArguments, FineTuningTrainer
rows = datasets.Dataset.from_list([{"input_ids": [n, 1, 2], "labels": n % 2, "length": 3} for n in range(48)])
class Weights(TrainerCallback):
    def __init__(self):
        self.sums = []
    def on_step_end(self, args, state, control, model, **kwargs):
        self.sums.append(sum(x.double().sum().item() for x in model.parameters()))
def train(name, has_bad_row):
    arguments = FineTuningArguments(output_dir=f"{sys.argv[1]}/{name}", per_device_train_batch_size=4,
        max_steps=6, save_steps=1, use_cpu=True, bf16=False, disable_tqdm=True, report_to="none", logging_steps=2)
    trainer = FineTuningTrainer(model=model_of("ForSequenceClassification"), args=arguments, train_dataset=rows,
        processing_class=BertTokenizer(vocab=sys.argv[2]))
    global last
    last, compute_loss, weights, losses = trainer, trainer.compute_loss, Weights(), []
    def compute_with_bad_row(model, inputs, **kwargs):  # the gradients stay finite
        bad, loss = (inputs["input_ids"][:, 0] == 13).any(), compute_loss(model, inputs, **kwargs)
        losses.append(loss.item())
        return loss + (torch.inf if bad and has_bad_row else 0)
    trainer.compute_loss = compute_with_bad_row
    trainer.add_callback(weights)
    message = None
    try:
        trainer.train()
    except InputError as error:
        message = str(error)
    log = trainer.state.log_history
    logged = [[entry["step"], entry["loss"]] for entry in log if "loss" in entry]
    mean = [entry["train_loss"] for entry in log if "train_loss" in entry]
    return (weights.sums, message, logged, mean), losses
(good, losses), (bad, _) = train("good", False), train("bad", True)
try:
    if rank == 1:
        last.model.classifier.bias.data[1] = torch.nan
    last.save_model(f"{sys.argv[1]}/nonfinite")
except InputError as error:
    bad += (str(error),)
seen = [None, None]
dist.all_gather_object(seen, [[good, bad], losses])
if rank == 0:
    print("RESULT", json.dumps(seen))
"""

NO_DROPOUT = "hidden_dropout_prob=0,attention_probs_dropout_prob=0"
TOKEN_HEADS = ("ForMaskedLM", "ForPreTraining", "ForTokenClassification", "LMHeadModel")


def first_step(head: str, accumulation: int, output: str) -> list[float]:
    """Returns the loss and gradient norm that Trainer logs for one step on 16 rows with 2 to 7 labels each."""
    inputs = inputs_of(head, labels=True, size=16)
    labelled = torch.arange(L) <= torch.arange(16)[:, None] % 6 + 1
    labels = inputs["labels"].clamp(min=0) if head == "ForTokenClassification" else inputs["input_ids"]
    inputs["labels"] = torch.where(labelled, labels, -100)
    inputs["attention_mask"][:] = 1
    rows = [{name: x[row] for name, x in inputs.items()} for row in range(16)]

    ours = head == "ForPreTraining"

    class InOrder(PretrainingTrainer if ours else Trainer):
        def get_train_dataloader(self):
            return self.accelerator.prepare(
                DataLoader(rows, arguments.train_batch_size, collate_fn=self.data_collator)
            )

    options = {"max_steps": 1, "logging_steps": 1, "save_strategy": "no", "use_cpu": True, "report_to": "none"}
    options["per_device_train_batch_size"] = 16 // accumulation // int(os.environ.get("WORLD_SIZE", 1))
    options |= {"gradient_accumulation_steps": accumulation, "disable_tqdm": True}
    arguments = (PretrainingArguments if ours else TrainingArguments)(output_dir=output, **options)
    model = model_of(head, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    trainer = InOrder(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    return [trainer.state.log_history[0][name] for name in ("loss", "grad_norm")]


def run(script: str, *arguments: str) -> str:
    """Runs a script in two processes with a directory as its first argument and returns its output."""
    file = Path(arguments[0]) / "script.py"
    file.write_text(START + script + END)
    return fork_server.Pair(file, list(arguments), file.parent).finished()


def test_sharded_parameters_get_the_same_gradients(tmp_path):
    """FSDP shards each layer, with the same gradients as in one process."""
    run(SHARDED, str(tmp_path))


def test_loss_is_a_mean_over_labelled_tokens(tmp_path):
    """Every labeled token has equal weight, regardless of accumulation and the number of processes."""
    lines = [line for line in run(AVERAGE, str(tmp_path)).splitlines() if line.startswith("RESULT")]
    for head, line in zip(TOKEN_HEADS, lines, strict=True):
        reference, accumulated = (first_step(head, steps, str(tmp_path)) for steps in (1, 4))
        assert accumulated == pytest.approx(reference, rel=1e-4)
        assert [float(x) for x in line.split()[1:]] == pytest.approx(reference, rel=1e-4)


def test_resumed_fine_tuning_sees_every_row_once(vocabulary, tmp_path):
    """Two processes that resume within the second epoch see exactly the remaining rows."""
    lines = [line for line in run(RESUMED, str(tmp_path), vocabulary).splitlines() if line.startswith("RESULT")]
    assert len(lines) == 2  # one per sampling strategy
    for line in lines:
        reference, resumed = json.loads(line.removeprefix("RESULT"))
        assert len(reference) == 12 and reference[:6] != reference[6:]
        for epoch in (reference[:6], reference[6:]):
            assert sorted(row for step in epoch for row in step) == list(range(48))
        assert resumed == reference[8:]


def test_nonfinite_step_stops_all_processes(vocabulary, tmp_path):
    """If one process's loss is not finite, all stop before the step. If its weights are not finite, none saves."""
    (line,) = [line for line in run(ONE_BAD_ROW, str(tmp_path), vocabulary).splitlines() if line.startswith("RESULT")]
    (one, losses), (other, other_losses) = json.loads(line.removeprefix("RESULT"))
    assert one == other
    (weights, message, logged, (train_loss,)), (until, reason, _, _, unsaved) = one
    assert message is None and len({*weights}) == 6
    means = [(first + second) / 2 for first, second in zip(losses, other_losses, strict=True)]
    assert logged == [[end, pytest.approx(sum(means[end - 2 : end]) / 2)] for end in (2, 4, 6)]
    assert train_loss == pytest.approx(sum(means) / 6)
    step = len(until) + 1
    assert 1 < step <= 6 and until == weights[: step - 1]
    assert reason.startswith(f"step {step}: non-finite loss; ") and f"{tmp_path}/bad/checkpoint-{step - 1}; " in reason
    assert unsaved.startswith(f"step {step - 1}: the weights contain NaN or infinity; ")
    assert not (tmp_path / "nonfinite").exists()


# accelerate ignores FSDP on CPUs, although torch supports it.
SHARD_ON_CPUS = f"""
import runpy, sys
from accelerate import DistributedType
from transformers import TrainingArguments
set_up = TrainingArguments.__post_init__
def use_fsdp(arguments):
    set_up(arguments)
    arguments.distributed_state.distributed_type = DistributedType.MULTI_GPU
TrainingArguments.__post_init__ = use_fsdp
sys.argv, sys.path[0] = sys.argv[1:], {str(ROOT)!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def sharded(script: str, arguments: list[str], printed: Path) -> str:
    """Runs a script in two CPU processes with fsdp.yaml and float32, and returns its output."""
    config = str(ROOT / "fixedbert/recipes/accelerate/fsdp.yaml")
    launched = launch_command_parser().parse_args(["--config_file", config, "--mixed_precision", "no", script])
    environment = prepare_multi_gpu_env(_validate_launch_command(launched)[0])
    settings = {name: value for name, value in environment.items() if name.startswith(("FSDP_", "ACCELERATE_"))}
    printed.mkdir()
    (printed / "shard.py").write_text(SHARD_ON_CPUS)
    return fork_server.Pair(printed / "shard.py", [str(ROOT / script), *arguments], printed, **settings).finished()


def assert_same_training(one: Path, two: Path, exact: bool = False):
    """Asserts that two runs have the same weights, logs and evaluation results."""
    rtol, atol = (0, 0) if exact else (1e-4, 1e-5)
    weights = [weights_in(directory) for directory in (one, two)]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        assert torch.allclose(weight, weights[1][name], rtol=rtol, atol=atol), name
    for a, b in zip(log_of(one), log_of(two), strict=True):
        for name in set(a) & {"loss", "grad_norm", "mlm_accuracy", "num_input_tokens_seen", "eval_loss"}:
            assert a[name] == pytest.approx(b[name], rel=1e-3), (name, a, b)
    evaluated = [name for name in results(one) if name.startswith("eval_") and name.endswith(("_loss", "_accuracy"))]
    for name in evaluated:
        assert results(one)[name] == pytest.approx(results(two)[name], rel=1e-4)
    assert len(log_of(one)) > 4 and len(evaluated) > 1


def rewind(output: Path, step: int):
    """Makes a run look as if it had been killed after the checkpoint for a step."""
    partial = output.with_name(f"{output.name}.partial")
    partial.mkdir()
    for name in ("command.json", "data.json", f"checkpoint-{step}"):
        shutil.move(output / name, partial / name)
    output.rename(output.with_name(f"{output.name}-complete"))


@pytest.mark.parametrize("script", ["run_pretraining.py", "run_glue.py"])
def test_fsdp_trains_like_one_process(script, corpus, pretrained, tasks, tmp_path):
    """FSDP in two processes gives the weights and log of one process, even if the run is killed and resumed."""
    fixed = ("--max_steps", "6", "--save_steps", "2", "--learning_rate", "1e-3")

    def command(name: str, *batch: str) -> list[str]:
        if script == "run_glue.py":
            exact = ("--config_overrides", NO_DROPOUT, "--bf16", "false")
            return glue_of(Path(pretrained), tasks, tmp_path / name, *fixed, *exact, *batch)
        exact = ("--config_overrides", f"{SHAPE},{NO_DROPOUT}", "--tokenizer_name", str(pretrained))
        return pretraining(corpus, tmp_path / name, *fixed, *exact, *batch)

    reference, other = tmp_path / "one", tmp_path / "two"
    {"run_glue.py": run_glue, "run_pretraining.py": run_pretraining}[script].main(
        command("one", "--per_device_train_batch_size", "8")
    )
    batch = ("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2")
    sharded(script, command("two", *batch), tmp_path / "printed")
    assert_same_training(reference, other)
    card, *configs = (other / "README.md").read_text(), *((f / "config.json").read_text() for f in (reference, other))
    assert configs[0] == configs[1] and "FSDP" not in card.partition("```bash")[0]
    rewind(other, 4)
    sharded(script, command("two", *batch), tmp_path / "resumed")
    assert_same_training(tmp_path / "two-complete", other, exact=True)
    other.rename(other.with_name("two.partial"))  # as if killed between its last step and its evaluation
    sharded(script, command("two", *batch), tmp_path / "loaded")
    assert_same_training(tmp_path / "two-complete", other, exact=True)


def test_two_processes_train_like_one(corpus, pretrained, tmp_path):
    """Two processes have the same losses, weights and metrics as one with twice the batch size."""
    fixed = ("--model_name_or_path", str(pretrained), "--learning_rate", "1e-3", "--config_overrides", NO_DROPOUT)
    fixed += ("--max_steps", "24")
    fixed += ("--total_train_batch_size", "12", "--per_device_train_batch_size", "6")
    one, two = (pretraining(corpus, tmp_path / name, *fixed)[6:] for name in ("one", "two"))  # without a new shape
    command = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0", "--config_file"]
    command += [str(ROOT / "fixedbert/recipes/accelerate/cpu.yaml"), str(ROOT / "run_pretraining.py"), *two]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    run_pretraining.main(one)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output[-3000:]
    assert_same_training(tmp_path / "one", tmp_path / "two")
    summary = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert summary["processes"] == 2 and summary["results"]["epoch"] > 2
    assert summary["corpus"]["training"]["examples"] % 12  # the last step of an epoch is incomplete
