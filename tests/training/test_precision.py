"""bf16 where the hardware multiplies in it; float32, with a warning, where a processor would emulate it."""

import sys
from pathlib import Path

import pytest
import torch
from helpers.script_arguments import parse

from benchmarks import model
from fixedbert.fine_tuning.trainer import FineTuningArguments
from fixedbert.pretraining.arguments import PretrainingArguments, PretrainingDataArguments
from fixedbert.training.arguments import ModelArguments
from fixedbert.training.precision import has_bf16

WITHOUT = ("avx2", "avx512_f", "avx512_vnni", "neon")
BF16 = ("avx512_bf16", "amx_bf16", "bf16")


@pytest.fixture
def processor(monkeypatch):
    """Called with names of instructions: the processor has these alone."""

    def has(*instructions: str):
        found = dict.fromkeys(instructions, True)
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)

    return has


@pytest.mark.parametrize("instruction", BF16)
def test_one_instruction_is_enough(instruction, processor):
    """Guards: AVX-512 BF16, AMX and Arm's bf16 count, each by itself; the wide vectors of other processors do not."""
    processor(*WITHOUT, instruction)
    assert has_bf16(use_cpu=True)
    processor(*WITHOUT)
    assert not has_bf16(use_cpu=True)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="asks Linux for the processor's instructions")
def test_processor_of_this_machine():
    """Guards: what torch says of the processor is what the kernel says."""
    flags = Path("/proc/cpuinfo").read_text().split()
    assert has_bf16(use_cpu=True) == any(name in flags for name in BF16)


def test_fine_tuning_follows_the_hardware(tmp_path, processor, caplog):
    """Guards: fine-tuning has bf16 where the processor has it, unless switched off or in fp16, and else no warning."""

    def bf16(**options) -> bool:
        return FineTuningArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", **options).bf16

    processor(*WITHOUT, "avx512_bf16")
    assert bf16() is True
    assert bf16(bf16=False) is False and bf16(fp16=True) is False
    processor(*WITHOUT)
    assert bf16() is False
    assert not caplog.records


@pytest.mark.parametrize("asked", ["bf16", "bf16_full_eval", "accelerate launch"])
def test_emulated_bf16_is_left_out_with_a_warning(asked, processor, monkeypatch, caplog, tmp_path):
    """Guards: bf16 on a processor that would emulate it, however it is asked for, becomes float32, not in silence."""

    def arguments() -> PretrainingArguments:
        flags = {} if asked == "accelerate launch" else {asked: True}
        return PretrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", **flags)

    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16" if asked == "accelerate launch" else "no")
    processor(*WITHOUT, "amx_bf16")
    given = arguments()
    assert "bf16" in (given.mixed_precision, given.bf16_full_eval and "bf16") and not caplog.records
    processor(*WITHOUT)
    left = arguments()
    assert (left.bf16, left.bf16_full_eval, left.mixed_precision) == (False, False, "no")
    (record,) = caplog.records
    assert record.message.startswith("bf16 is left out, and float32 takes its place: this processor has no bf16")


def test_mini_runs_on_every_processor(processor, caplog):
    """Guards: the recipe mini, whose figures are of bf16, is in float32 on a processor without, and says so."""
    flags = ["recipes/mini.yaml", "--train_file", "texts", "--tokenizer_name", "vocab.txt"]
    for instructions, expected in ((BF16, True), ((), False)):
        processor(*instructions)
        _, _, training = parse(flags, ModelArguments, PretrainingDataArguments, PretrainingArguments)
        assert training.bf16 is expected and bool(caplog.records) is not expected


def test_benchmark_leaves_out_emulated_lines(processor, monkeypatch, capsys):
    """Guards: `python -m benchmarks.model` does not hang for hours, and says what it leaves out."""
    measured = []
    monkeypatch.delenv("FIXEDBERT_DATA", raising=False)
    monkeypatch.setattr(model, "measure", lambda work, *_, **__: measured.append(work.title) or sys.exit())
    monkeypatch.setattr(sys, "argv", ["model", "--only", "pretraining-bf16", "rows-bf16", "rows-fp32"])
    processor(*WITHOUT)
    with pytest.raises(SystemExit):
        model.main()
    printed = capsys.readouterr().out
    assert [title[-4:] for title in measured] == ["fp32"] and printed.count("bf16: left out, because") == 2
