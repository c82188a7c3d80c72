"""Error messages, optional packages, hashes and checksum files."""

import hashlib
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import HTTPError
from safetensors import SafetensorError

from fixedbert.inspection.inspect import inspect
from fixedbert.support.checksums import checksum_path, has_valid_checksum, stable_hash, write_with_checksum
from fixedbert.support.errors import InputError, exit_on_input_error, require_package
from fixedbert.support.files import error_reason, new_directory, reading, writing
from fixedbert.training.arguments import CommonArguments
from fixedbert.training.output import output_directory
from soak.output_paths import create, occupied_paths, snapshot

pytestmark = pytest.mark.usefixtures("same_signals")


def test_parameters_become_flags_on_the_command_line(capsys):
    """Errors show parameter names in Python, but flags on the command line. Other text in backticks is unchanged."""
    with pytest.raises(InputError, match="`max_seq_length` is 2, but must be"):
        inspect("model", "out", "texts.txt", max_seq_length=2)

    def refuse_option():
        inspect("model", "out", "texts.txt", max_seq_length=2)

    def refuse():
        raise InputError("a: give `num_attention_heads` 12, or `pip install a`.")

    def refuse_by_hub():
        raise HTTPError("the `token`\nis invalid")

    def run_out_of_memory():
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB.")

    for main in (refuse_option, refuse, refuse_by_hub, run_out_of_memory):
        with pytest.raises(SystemExit, match="2"):
            exit_on_input_error(main)
    assert capsys.readouterr().err.splitlines() == [
        "error: --max_seq_length is 2, but must be at least 3.",
        "error: a: give --num_attention_heads 12, or `pip install a`.",
        "error: the `token` is invalid",
        "error: not enough memory for these sizes, batches or lengths (CUDA out of memory. Tried to allocate 2 GiB.)",
    ]


def test_missing_package(monkeypatch, tmp_path):
    """Commands that need matplotlib check for it first, and the error says how to install it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for command in (
        lambda: require_package("matplotlib", "plots"),
        lambda: inspect("model", tmp_path / "out", "text.txt"),
    ):
        with pytest.raises(InputError, match=r'matplotlib is not installed; .*"\.\[plots\]" in a checkout'):
            command()
    assert not list(tmp_path.iterdir())


def test_errors_while_reading_name_the_file():
    """Any error in a library becomes an InputError that names the file. KeyboardInterrupt is not converted."""
    with pytest.raises(InputError, match=r"^a.json: cannot be read \(bad\); download it again.$"):
        with reading("a.json", "download it again"):
            raise RuntimeError("bad\nand more")
    with pytest.raises(KeyboardInterrupt), reading("a.json"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "error, message",
    [
        (
            OSError(28, "No space left", "model/vocab.txt", None, "out.partial/vocab.txt"),
            "vocab.txt: No space left; free",
        ),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "^out: No space left on device; free"),
        (lambda: torch.save(torch.zeros(9999), "/dev/full"), "^out: a file cannot be written; free some space, or"),
        (OSError(13, "Permission denied", "elsewhere/a"), "^elsewhere/a: .*; change the permissions, or leave."),
        (FileNotFoundError(2, "No such file", "other/a"), None),
    ],
)
def test_errors_while_writing(error, message):
    """A full disk, missing permissions and a vanished directory become one sentence; other errors do not change."""
    with pytest.raises(InputError if message else type(error), match=message):
        with writing("out", "or leave"):
            raise error() if callable(error) else error


@pytest.mark.parametrize("kind", occupied_paths(Path()))
@pytest.mark.parametrize("for_run", [False, True])
def test_output_paths(kind, for_run, tmp_path, monkeypatch):
    """Any output path is written, or refused before the work with one sentence. Nobody else's file is removed."""
    directory = tmp_path / "work"
    directory.mkdir()
    monkeypatch.chdir(directory)
    path, files = occupied_paths(directory)[kind]
    create(directory, files | {"rows.csv": "mine", "model/config.json": "mine"})
    before = snapshot(directory)
    arguments = CommonArguments(output_dir=path, use_cpu=True)
    try:
        with output_directory(arguments, {}) if for_run else new_directory(path) as yielded:
            assert snapshot(directory).items() >= {name: entry for name, entry in before.items() if entry}.items()
            partial = Path(arguments.output_dir) if for_run else yielded
            (partial / "result").write_text("result")
    except InputError as error:
        assert snapshot(directory) == before and str(error).endswith(".") and "\n" not in str(error)
    else:
        after = snapshot(directory)
        assert Path(path, "result").read_text() == "result"
        assert after.items() >= {name: entry for name, entry in before.items() if entry is not None}.items()
        assert not [name for name in after.keys() - before.keys() if name.endswith((".partial", ".lock"))]


def test_hashes_are_stable():
    """Hashes never change, because existing stores are named after them."""
    assert stable_hash("pairs", 42, None, [1.5], {"b": 1, "a": (2,)}) == "598c15b942c7229e"
    assert stable_hash({"a": 1, "b": 2}) == stable_hash({"b": 2, "a": 1}) != stable_hash({"a": 2, "b": 1})


def test_files_with_checksum(tmp_path):
    """A file and its checksum appear only when the file is complete, and corruption is detected."""
    file = tmp_path / "plan"
    with write_with_checksum(file) as partial:
        partial.write_bytes(b"rows")
        assert not file.exists() and not has_valid_checksum(file)
    assert file.read_bytes() == b"rows" and has_valid_checksum(file)
    assert checksum_path(file).read_text() == hashlib.sha256(b"rows").hexdigest()
    with pytest.raises(OSError, match="full"), write_with_checksum(file) as partial:
        partial.write_bytes(b"ro")
        raise OSError("full")
    assert {path.name for path in tmp_path.iterdir()} == {"plan", "plan.sha256"}
    file.write_bytes(b"rowt")
    assert not has_valid_checksum(file)
    file.write_bytes(b"rows")
    checksum_path(file).write_bytes(b"\xff")
    assert not has_valid_checksum(file) and not has_valid_checksum(tmp_path / "absent")


def test_reason_of_an_error():
    """Messages contain the reason for an error instead of a place in the source code of a library."""
    message = "Exception from src/core.cpp:132:\nException from src/plugin.cpp:5:\nOut of memory.\n\n"
    assert error_reason(RuntimeError(message)) == "Out of memory"
    assert error_reason(RuntimeError("\n")) == "RuntimeError"


def test_reason_of_an_error_while_tracing():
    """The reason for an error of torch's exporter, which only names the step, is that of its cause."""

    class Branch(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(Exception) as caught:
        torch.onnx.export(Branch().eval(), (torch.ones(3),), dynamo=True, verbose=False)
    assert error_reason(caught.value).startswith("Could not guard on data-dependent expression")
