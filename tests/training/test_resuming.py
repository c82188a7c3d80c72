"""Interrupted runs resume bit for bit, unless their arguments or data have changed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import transformers
from helpers import ROOT, fork_server
from helpers.outputs import StopAfter, record, same_weights
from helpers.script_arguments import glue_of, pretraining
from packaging.version import Version

import run_glue
import run_pretraining
from fixedbert.support.errors import InputError
from fixedbert.training.interruption import train
from fixedbert.training.output import complete_checkpoints

OLD_TRAINER = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.18"),
    reason="older Trainers cannot load the checkpoint of several CPU processes",
)


def kill(arguments: list[str], output: Path, checkpoint: str) -> Path:
    """Starts a run, kills it once a checkpoint matches the pattern `checkpoint`, and returns the newest checkpoint."""
    run = fork_server.start(ROOT / "run_pretraining.py", arguments, output.parent, output.parent)
    partial = output.with_name(output.name + ".partial")
    began = time.monotonic()
    while run.is_alive() and not list(partial.glob(f"{checkpoint}/trainer_state.json")):
        assert time.monotonic() - began < 300
        time.sleep(0.02)
    run.kill()
    run.join(timeout=120)
    assert run.exitcode == -signal.SIGKILL
    assert partial.exists() and not output.exists()
    return complete_checkpoints(partial)[-1]


@pytest.mark.parametrize("objective", ["mlm+nsp", "clm"])
def test_killed_run_resumes_to_the_same_weights(corpus, pretrained, tmp_path, objective):
    """After a run is killed in a later epoch, the same command resumes it, and its weights are bit-identical."""
    fixed = ("--max_steps", "80", "--save_steps", "5", "--tokenizer_name", str(pretrained), "--objective", objective)
    run_pretraining.main(pretraining(corpus, tmp_path / "complete", *fixed))
    command = pretraining(corpus, tmp_path / "interrupted", *fixed)
    checkpoint = kill(command, tmp_path / "interrupted", "checkpoint-[34]5")
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    assert 1 < state["epoch"] and state["global_step"] < 80
    with pytest.raises(InputError, match="unfinished run has different arguments"):
        run_pretraining.main(pretraining(corpus, tmp_path / "interrupted", *fixed, "--learning_rate", "0.5"))
    assert checkpoint.exists()
    done = fork_server.run(
        ROOT / "run_pretraining.py", [*command, "--dataloader_num_workers", "1"], tmp_path, tmp_path
    )
    assert done.returncode == 0 and f"resuming from step {state['global_step']} ({checkpoint})" in done.stdout
    assert same_weights(tmp_path / "complete", tmp_path / "interrupted")
    assert not (tmp_path / "interrupted.partial").exists()


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

    def stop(trainer, checkpoint):
        trainer.add_callback(StopAfter(10))
        train(trainer, checkpoint)

    run(tmp_path / "complete")
    module = "pretraining.pretrain" if name == "pretraining" else "fine_tuning.fine_tune"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(f"fixedbert.{module}.train", stop)
        run(tmp_path / "interrupted")
    assert complete_checkpoints(tmp_path / "interrupted.partial")[-1].name == "checkpoint-8"
    run(tmp_path / "interrupted")
    expected = record(tmp_path / "complete", "train_loss")
    assert record(tmp_path / "interrupted", "train_loss") == expected
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


def stop_training(trainer, checkpoint):
    trainer.train(resume_from_checkpoint=checkpoint)
    raise KeyboardInterrupt


def test_changed_text_is_rejected(corpus, pretrained, tmp_path, monkeypatch):
    """An unfinished run rejects a changed text file, even if its size and modification time are the same."""
    texts = shutil.copytree(corpus, tmp_path / "texts")
    fixed = ("--save_steps", "1", "--tokenizer_name", str(pretrained))
    command = pretraining(str(texts), tmp_path / "run", *fixed)
    monkeypatch.setattr("fixedbert.pretraining.pretrain.train", stop_training)
    with pytest.raises(KeyboardInterrupt):
        run_pretraining.main(command)
    file, changed = texts / "03.txt", (texts / "03.txt").stat()
    content = file.read_text()
    file.write_text(content.replace("document", "tnemucod"))
    os.utime(file, ns=(changed.st_atime_ns, changed.st_mtime_ns))
    with pytest.raises(InputError, match="run.partial: the data or the teacher has changed"):
        run_pretraining.main(command)
    file.write_text(content)
    with pytest.raises(KeyboardInterrupt):  # training resumes
        run_pretraining.main(command)


def test_resumed_run_keeps_its_tokenizer(corpus, tmp_path, monkeypatch):
    """A resumed run does not train its tokenizer again, because the token ids could differ."""
    command = pretraining(corpus, tmp_path / "run", "--save_steps", "1", "--store_dir", str(tmp_path / "store"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fixedbert.pretraining.pretrain.train", stop_training)
        run_pretraining.main(command)
    checkpoint = complete_checkpoints(tmp_path / "run.partial")[-1]
    before = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    stores = {path.name for path in (tmp_path / "store").glob("store-*") if path.is_dir()}
    monkeypatch.setattr(
        "fixedbert.pretraining.examples.prepare_tokenizer", lambda *_: pytest.fail("the tokenizer was trained again")
    )
    run_pretraining.main(command)
    assert json.loads((tmp_path / "run" / "tokenizer.json").read_text())["model"]["vocab"] == before
    assert {path.name for path in (tmp_path / "store").glob("store-*") if path.is_dir()} == stores


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


STUBS = {  # commands that simulate a cluster with two nodes on this machine
    "srun": """shift; for id in 0 1; do SLURM_NODEID=$id "$@" & done
jobs -p > srun.pid; wait %1; status=$?; wait %2 && exit $status""",
    "scontrol": 'if [ $1 = show ]; then echo localhost; else echo "$@" >> scontrol.txt; fi',
    "accelerate": f'shift; exec {sys.executable} -m accelerate.commands.launch "$@"',
}


@pytest.mark.slow
@OLD_TRAINER
def test_slurm_job_is_requeued(corpus, pretrained, tmp_path):
    """slurm.sh runs on two nodes. After SIGTERM, it requeues the job, which resumes. Failed jobs are not requeued."""
    (tmp_path / "bin").mkdir()
    for name, line in STUBS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    for name in ("fixedbert", "run_pretraining.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment |= {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "1", "OMP_NUM_THREADS": "1"}
    environment |= {
        "ACCELERATE_CONFIG": "fixedbert/recipes/accelerate/cpu.yaml",
        "MAIN_PROCESS_PORT": fork_server.free_port(),
    }
    fixed = ("--max_steps", "200", "--save_steps", "5", "--tokenizer_name", str(pretrained))
    command = ["bash", "fixedbert/recipes/slurm.sh", "run_pretraining.py"]
    command += pretraining(corpus, tmp_path / "run", *fixed)
    job = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    while job.poll() is None and not list(tmp_path.glob("run.partial/checkpoint-5/trainer_state.json")):
        time.sleep(0.02)
    for node in (tmp_path / "srun.pid").read_text().split():
        os.kill(int(node), signal.SIGTERM)
    assert job.wait(timeout=120) != 0
    assert (tmp_path / "scontrol.txt").read_text() == "requeue 7\n" and not (tmp_path / "run").exists()
    subprocess.run(command, cwd=tmp_path, env=environment | {"SLURM_RESTART_COUNT": "1"}, check=True, timeout=300)
    assert "resuming from step" in (tmp_path / "slurm-7-1.log").read_text()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["processes"] == 2
    assert (tmp_path / "scontrol.txt").read_text() == "requeue 7\n"
    failed = subprocess.run([*command, "--learning_rat", "1"], cwd=tmp_path, env=environment, capture_output=True)
    assert failed.returncode != 0 and (tmp_path / "scontrol.txt").read_text() == "requeue 7\n"
