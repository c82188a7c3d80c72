"""Interrupted runs resume bit for bit, unless their arguments or data have changed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
import transformers
from helpers import ROOT, fork_server
from helpers.outputs import StopAfter, log_of, record, same_weights
from helpers.script_arguments import glue_of, pretraining
from packaging.version import Version

import run_glue
import run_pretraining
from fixedbert.support.errors import InputError
from fixedbert.training.interruption import StopOnSignal, train
from fixedbert.training.output import complete_checkpoints

OLD_TRAINER = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.18"),
    reason="older Trainers cannot load the checkpoint of several CPU processes",
)


def test_killed_run_resumes_to_the_same_weights(corpus, pretrained, tmp_path):
    """A killed run resumes to bit-identical weights, even with other intervals to save, log and evaluate."""
    fixed = ("--max_steps", "50", "--save_steps", "5", "--tokenizer_name", str(pretrained))
    run_pretraining.main(pretraining(corpus, tmp_path / "complete", *fixed))
    command = pretraining(corpus, tmp_path / "interrupted", *fixed)
    run = fork_server.start(ROOT / "run_pretraining.py", command, tmp_path, tmp_path)
    partial, began = tmp_path / "interrupted.partial", time.monotonic()
    while run.is_alive() and not (partial / "checkpoint-15/trainer_state.json").exists():
        assert time.monotonic() - began < 300
        time.sleep(0.02)
    run.kill()
    run.join(timeout=120)
    assert run.exitcode == -signal.SIGKILL and not (tmp_path / "interrupted").exists()
    checkpoint = complete_checkpoints(partial)[-1]
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    assert 1 < state["epoch"] and state["global_step"] < 50
    with pytest.raises(InputError, match="unfinished run has different arguments"):
        run_pretraining.main(pretraining(corpus, tmp_path / "interrupted", *fixed, "--learning_rate", "0.5"))
    assert checkpoint.exists()
    command += ["--dataloader_num_workers", "1", "--save_steps", "7", "--logging_steps", "9"]
    command += ["--eval_strategy", "steps", "--eval_steps", "8"]
    done = fork_server.run(ROOT / "run_pretraining.py", command, tmp_path, tmp_path)
    assert done.returncode == 0 and f"resuming from step {state['global_step']} ({checkpoint})" in done.stdout
    assert same_weights(tmp_path / "complete", tmp_path / "interrupted")
    assert not partial.exists() and (tmp_path / "interrupted" / "checkpoint-49").exists()
    entries = log_of(tmp_path / "interrupted")
    assert [entry["step"] for entry in entries if "loss" in entry][-1] == 45
    assert [entry["step"] for entry in entries if "eval_loss" in entry][-2:] == [48, 50]


def stop(trainer, checkpoint):
    trainer.add_callback(StopAfter(10))
    train(trainer, checkpoint)


@pytest.mark.parametrize("name", ["pretraining", "glue"])
def test_resumed_run_has_the_same_log(corpus, pretrained, tasks, tmp_path, monkeypatch, name):
    """A run that resumes from a checkpoint, or after its last step, ends with the same log and weights."""
    fixed = ("--max_steps", "23", "--logging_steps", "4", "--save_steps", "4", "--eval_strategy", "steps")
    fixed += ("--eval_steps", "4", "--lr_scheduler_type", "constant", "--tokenizer_name", str(pretrained))

    def run(output):
        if name == "pretraining":
            run_pretraining.main(pretraining(corpus, output, *fixed))
        else:
            run_glue.main(glue_of(pretrained, tasks, output, *fixed))

    run(tmp_path / "complete")
    module = "pretraining.pretrain" if name == "pretraining" else "fine_tuning.fine_tune"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(f"fixedbert.{module}.train", stop)
        run(tmp_path / "interrupted")
    assert complete_checkpoints(tmp_path / "interrupted.partial")[-1].name == "checkpoint-8"
    run(tmp_path / "interrupted")
    expected = record(tmp_path / "complete", "train_loss")
    assert record(tmp_path / "interrupted", "train_loss") == expected
    results = [json.loads((tmp_path / name / "all_results.json").read_text()) for name in ("complete", "interrupted")]
    assert ["train_loss" in found for found in results] == [True, False]  # it would not cover all steps
    assert [entry["step"] for entry in expected if "loss" in entry] == list(range(4, 23, 4))
    assert same_weights(tmp_path / "interrupted", tmp_path / "complete")
    last = tmp_path / "last.partial"
    (tmp_path / "interrupted").rename(last)
    for file in ("trainer_state.json", "model.safetensors"):
        (last / file).unlink()  # as if it had been killed after the last checkpoint
    command = json.loads((last / "command.json").read_text())
    (last / "command.json").write_text(json.dumps(command | {"output_dir": str(tmp_path / "last")}))
    run(tmp_path / "last")
    assert record(tmp_path / "last", "train_loss") == expected and same_weights(
        tmp_path / "last", tmp_path / "complete"
    )


def test_resumed_run_keeps_its_text_and_tokenizer(corpus, tmp_path, monkeypatch):
    """A resumed run rejects a changed text or number of processes, and does not train its tokenizer again."""
    texts = shutil.copytree(corpus, tmp_path / "texts")
    store = tmp_path / "store"
    fixed = ("--max_steps", "12", "--save_steps", "5", "--store_dir", str(store))
    command = pretraining(str(texts), tmp_path / "run", *fixed)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fixedbert.pretraining.pretrain.train", stop)
        run_pretraining.main(command)
    checkpoint = complete_checkpoints(tmp_path / "run.partial")[-1]
    before = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    file, changed = texts / "03.txt", (texts / "03.txt").stat()
    content = file.read_text()
    file.write_text(content.replace("document", "tnemucod"))
    os.utime(file, ns=(changed.st_atime_ns, changed.st_mtime_ns))
    monkeypatch.setattr(
        "fixedbert.pretraining.examples.prepare_tokenizer", lambda *_: pytest.fail("the tokenizer was trained again")
    )
    with pytest.raises(InputError, match="run.partial: the data has changed"):
        run_pretraining.main(command)
    stores = {path.name for path in store.glob("store-*") if path.is_dir()}
    file.write_text(content)
    data = tmp_path / "run.partial" / "data.json"
    started = json.loads(data.read_text())
    data.write_text(json.dumps(started | {"processes": 2}))
    with pytest.raises(InputError, match="the number of processes has changed from 2 to 1; use as many"):
        run_pretraining.main(command)
    data.write_text(json.dumps(started))
    run_pretraining.main(command)
    assert json.loads((tmp_path / "run" / "tokenizer.json").read_text())["model"]["vocab"] == before
    assert {path.name for path in store.glob("store-*") if path.is_dir()} == stores


@pytest.mark.slow
@OLD_TRAINER
def test_sigterm_stops_all_processes_at_the_same_step(corpus, pretrained, tmp_path):
    """Processes that receive SIGTERM at different steps stop at the same step, and resume from one checkpoint."""
    fixed = ("--max_steps", "2000", "--save_steps", "5", "--tokenizer_name", str(pretrained))
    command = pretraining(corpus, tmp_path / "run", *fixed)
    pair = fork_server.Pair(ROOT / "run_pretraining.py", command, tmp_path / "stopped")
    partial = tmp_path / "run.partial"
    state, began = partial / "checkpoint-5" / "trainer_state.json", time.monotonic()
    while all(process.is_alive() for process in pair.processes) and not state.exists():
        assert time.monotonic() - began < 300
        time.sleep(0.02)
    for process in pair.processes:
        process.terminate()
        time.sleep(0.05)  # long enough for several steps
    done = pair.ended()
    step = int(complete_checkpoints(partial)[-1].name.removeprefix("checkpoint-"))
    assert [one.returncode for one in done] == [128 + signal.SIGTERM] * 2 and 5 <= step < 2000
    assert "stopped by SIGTERM" in done[0].stderr
    command += ["--max_steps", str(step + 3)]
    fork_server.Pair(ROOT / "run_pretraining.py", command, tmp_path / "resumed").finished()
    assert json.loads((tmp_path / "run" / "trainer_state.json").read_text())["global_step"] == step + 3


@pytest.mark.usefixtures("same_signals")
def test_sigterm_during_the_vote_is_not_lost(monkeypatch):
    """A signal that arrives while the processes ask each other for signals stops training after the next step."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_: signal.raise_signal(signal.SIGTERM))
    args, stop = SimpleNamespace(world_size=2, device="cpu"), StopOnSignal()
    stop.on_train_begin(args, None, None)
    assert [stop.requested_anywhere(args) for _ in range(2)] == [0, signal.SIGTERM]


STUBS = {  # commands that simulate a cluster with SLURM_NNODES nodes on this machine
    "srun": """shift; for id in $(seq "$SLURM_NNODES"); do SLURM_NODEID=$((id - 1)) "$@" & done
jobs -p > srun.pid; status=0; for node in $(jobs -p); do wait $node || status=$?; done; exit $status""",
    "scontrol": 'if [ $1 = show ]; then echo localhost; else echo "$@" >> scontrol.txt; fi',
    "accelerate": f'shift; exec {sys.executable} -m accelerate.commands.launch "$@"',
}
PAIR = """
import os, sys, time

if os.environ["RANK"] == "1":
    time.sleep(60)
print("stopped by SIGTERM")
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.slow
@OLD_TRAINER
def test_slurm_job_is_requeued(corpus, pretrained, tmp_path):
    """slurm.sh runs multi_node.yaml. After SIGTERM, it requeues the job, which resumes. Failed jobs are not."""
    (tmp_path / "bin").mkdir()
    for name, line in STUBS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    for name in ("fixedbert", "run_pretraining.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment |= {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "1", "OMP_NUM_THREADS": "1"}
    environment |= {
        "ACCELERATE_CONFIG": "fixedbert/recipes/accelerate/multi_node.yaml",
        "MAIN_PROCESS_PORT": fork_server.free_port(),
    }
    fixed = ("--max_steps", "200", "--save_steps", "5", "--tokenizer_name", str(pretrained))
    command = ["bash", "fixedbert/recipes/slurm.sh", "run_pretraining.py"]
    command += pretraining(corpus, tmp_path / "run", *fixed)
    job = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    while job.poll() is None and not list(tmp_path.glob("run.partial/checkpoint-5/trainer_state.json")):
        time.sleep(0.02)
    assert job.poll() is None, (tmp_path / "slurm-7-0.log").read_text()
    # Signals reach the nodes at different times. Here, the second process ends before its node receives the signal.
    os.kill(int((tmp_path / "srun.pid").read_text().split()[0]), signal.SIGTERM)
    log, requeued = tmp_path / "slurm-7-0.log", tmp_path / "scontrol.txt"
    assert job.wait(timeout=120) != 0 and "exitcode: 143" in log.read_text()
    assert requeued.exists(), log.read_text()
    assert requeued.read_text() == "requeue 7\n" and not (tmp_path / "run").exists()
    step = int(complete_checkpoints(tmp_path / "run.partial")[-1].name.removeprefix("checkpoint-"))
    resumed = [*command, "--max_steps", str(step + 3)]
    subprocess.run(resumed, cwd=tmp_path, env=environment | {"SLURM_RESTART_COUNT": "1"}, check=True, timeout=300)
    assert "resuming from step" in (tmp_path / "slurm-7-1.log").read_text()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["processes"] == 2
    # Torch stops the other processes of a node with SIGTERM, no matter whether the first was stopped or failed.
    (tmp_path / "pair.py").write_text(PAIR)
    environment |= {"SLURM_NNODES": "1", "SLURM_GPUS_ON_NODE": "2"}
    for code, lines in (143, 2), (1, 2):
        command = ["bash", "fixedbert/recipes/slurm.sh", "pair.py", str(code)]
        assert subprocess.run(command, cwd=tmp_path, env=environment, timeout=120).returncode == 1
        assert all(f"exitcode  : {each} " in log.read_text() for each in (code, -15))
        assert requeued.read_text() == "requeue 7\n" * lines
