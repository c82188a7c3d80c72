"""Two processes: sharded parameters, split heads, and the mean over labelled tokens of the whole step."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

START = """
import sys
sys.path.insert(0, "tests")
import copy, os, torch, torch.distributed as dist, fixedbert
from small_models import *
rank = int(os.environ["RANK"])
def batch(head, rows):
    inputs = inputs_of(head, labels=True, size=4)
    inputs["labels"] = inputs["labels"].masked_fill(inputs["attention_mask"] == 0, -100)
    return {name: x[rows] for name, x in inputs.items()}
"""

SHARDED = """
dist.init_process_group("gloo")
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = model_of("ForPreTraining", unpad_inputs=True, sparse_prediction=True).eval()
whole = copy.deepcopy(model)
mesh = init_device_mesh("cpu", (2,))
for layer in model.modules():
    if type(layer).__name__ in set(model._no_split_modules) - {"BertEmbeddings"}:  # tied to the head
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model(**batch("ForPreTraining", slice(2 * rank, 2 * rank + 2))).loss.backward()
for half in (slice(0, 2), slice(2, 4)):
    (whole(**batch("ForPreTraining", half)).loss / 2).backward()
for one, other in zip(model.parameters(), whole.parameters()):
    assert torch.allclose(one.grad.full_tensor(), other.grad, rtol=1e-4, atol=1e-5)
"""

SPLIT = """
dist.init_process_group("gloo")
variant, folder = eval(sys.argv[1]), sys.argv[2] + "/model"
whole = model_of("ForMaskedLM", num_attention_heads=6, attention_head_size=10, intermediate_size=38, **variant).eval()
if rank == 0:
    whole.save_pretrained(folder)
dist.barrier()
model = fixedbert.FixedHeadBertForMaskedLM.from_pretrained(folder, tp_plan="auto").eval()
split = model.bert.encoder.layer[0].intermediate.dense.weight
assert split.to_local().shape[0] == 19
inputs = inputs_of("ForMaskedLM")
real = inputs["attention_mask"].bool()
for unpad_inputs in (False, True):
    model.bert.unpad_inputs = unpad_inputs
    assert torch.allclose(model(**inputs).logits[real], whole(**inputs).logits[real], atol=1e-3)
"""

AVERAGED = """
from transformers import Trainer, TrainingArguments
from fixedbert.training.pretraining import PretrainingTrainer
head, accumulation, output = sys.argv[1], int(sys.argv[2]), sys.argv[3]
inputs = inputs_of(head, labels=True, size=16)
inputs["labels"] = torch.where(torch.arange(L) < torch.arange(16)[:, None] % 6 + 1, inputs["input_ids"], -100)
rows = [{name: x[row] for name, x in inputs.items()} for row in range(16)]
class InOrder(PretrainingTrainer if head == "ForPreTraining" else Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(rows)
world = int(os.environ["WORLD_SIZE"])
arguments = TrainingArguments(output_dir=output, per_device_train_batch_size=16 // accumulation // world,
    gradient_accumulation_steps=accumulation, max_steps=1, logging_steps=1, save_strategy="no", use_cpu=True,
    disable_tqdm=True, max_grad_norm=1e9)
model = model_of(head, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
trainer = InOrder(model=model, args=arguments, train_dataset=rows)
trainer.train()
if rank == 0:
    print("RESULT", trainer.state.log_history[0]["loss"], trainer.state.log_history[0]["grad_norm"])
"""


def run(script: str, *arguments: str, processes: int = 2) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    file = Path(arguments[-1]) / "script.py"
    file.write_text(START + script)
    result = subprocess.run(
        [*command, str(file), *arguments], capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=120
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_sharded_parameters_get_the_same_gradients(tmp_path):
    """Guards: FSDP shards the layers that `_no_split_modules` names; gradients are those of one process."""
    run(SHARDED, str(tmp_path))


@pytest.mark.parametrize("variant", [{}, {"head_embedding": "mul"}], ids=str)
def test_heads_split_between_processes(variant, tmp_path):
    """Guards: the tensor-parallel plan gives each process its heads, and a shared projection to both whole."""
    run(SPLIT, repr(variant), str(tmp_path))


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForPreTraining"])
def test_mean_over_labelled_tokens_of_the_whole_step(head, tmp_path):
    """Guards: rows with few and many labels count by token: one batch of 16, 4 of 4, and 2 processes with 2 of 4."""
    results = []
    for accumulation, processes in ((1, 1), (4, 1), (2, 2)):
        output = run(AVERAGED, head, str(accumulation), str(tmp_path), processes=processes)
        results.append([float(x) for x in output.split("RESULT")[1].split()[:2]])
    assert results[1] == pytest.approx(results[0], rel=1e-4)
    assert results[2] == pytest.approx(results[0], rel=1e-4)
    assert torch.tensor(results).isfinite().all()
