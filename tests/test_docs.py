"""Tests that links in the documentation work, and that its commands and Python blocks run or can be parsed."""

import argparse
import importlib
import json
import os
import re
import runpy
import shlex
import shutil
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import datasets
import pytest
from accelerate.commands.launch import launch_command_parser
from helpers import fork_server
from helpers.tiny_checkpoints import save_sentence_model
from helpers.tiny_models import bert_of, model_of
from helpers.tiny_tasks import QUICK
from transformers import BertTokenizer

import fixedbert_cli
from experiments.study import load_study
from fixedbert.exporting.export import export
from fixedbert.presets import PRESETS
from fixedbert.tasks.glue import TASKS as GLUE_TASKS
from fixedbert.tasks.glue import GlueTask
from fixedbert.tasks.glue_metrics import METRICS
from run_glue import main as run_glue

ROOT = Path(__file__).parents[1]
PAGES = [
    file.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "model_cards/*.md", "soak/*.md")
    for file in sorted(ROOT.glob(pattern))
]
TRAINING = {"glue": "glue", "squad": "squad", "pretrain": "pretrain", "pretraining": "pretrain"}  # also of the scripts
RUN = {"convert", "shrink", "compare", "export", "inspect"}
# Replacements in commands and Python blocks that reduce the number of steps and sequences and skip timing.
SHORTER = {
    "fixedbert inspect": "fixedbert inspect --max_eval_samples 2",
    "--speedup 2": "--batch_size 2 --intermediate_size 16",
    "--distil_steps 600": "--distil_steps 2",
    "--validation_file dev.csv": "--validation_file dev.csv --runtime torch onnxruntime",
    "runs/mnli --task_name mnli --data_dir glue/": "runs/reviews --train_file recent.csv",
    "--max_train_samples 600 --num_attention_heads 6": "--batch_size 2 --intermediate_size 16",
    "head_size --lengths 8": "head_size --lengths 4 --patterns 1",
    "max_eval_samples=100": "max_eval_samples=2",
}
# Programs from other projects, whose arguments are not checked.
EXTERNAL = {"pip", "hf", "docker", "cp", "cd", "git", "pre-commit", "tensorboard"}
# ONNX directories that Python blocks open, and the models to export to them.
GRAPHS = {"minilm-onnx": "all-MiniLM-L6-v2", "reviews-onnx": "runs/reviews"}


def commands_in(page: str) -> list[str]:
    """Returns the commands in the indented blocks and headings of a page."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    blocks = re.findall(r"^(?: {4}.*\n)+", text.replace("\n\n", "\n#\n"), re.MULTILINE)
    lines = [line.strip() for block in blocks for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
    lines += re.findall(r"^#+ `(.*)`$", text, re.MULTILINE)
    programs = "|".join(["python", "fixedbert", "accelerate", "make", *EXTERNAL])
    return [line for line in lines if re.match(rf"({programs}) ", line)]


COMMANDS = [(page, command) for page in PAGES for command in commands_in(page)]
BLOCKS = [
    (page, number, code)
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL))
]


def is_run(command: str) -> bool:
    words = shlex.split(command, comments=True)
    is_quick = "--dry_run" in words or "experiments.head_size" in words
    return words[0] == "fixedbert" and words[1] in RUN or words[0] in ("fixedbert", "python") and is_quick


# Maps each command that is run to its page. A command on several pages is run once.
RUNS = {shlex.join(shlex.split(command, comments=True)): page for page, command in COMMANDS if is_run(command)}


def shortened(text: str) -> str:
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    return text


def check_task(name: str, words: list[str]):
    """Checks that the recipe, flags and preset in the arguments of a script exist."""
    if words and words[0].endswith(".yaml"):
        recipe = words.pop(0)
        assert (ROOT / recipe).exists() or (ROOT / "fixedbert" / recipe).exists(), recipe
    fixedbert_cli.read(TRAINING[name], words)
    if "--config_name" in words:
        assert words[words.index("--config_name") + 1] in PRESETS


def main_of(name: str) -> Callable:
    """Returns the function that `python -m NAME` calls."""
    is_package = (ROOT / name.replace(".", "/")).is_dir()
    return importlib.import_module(f"{name}.__main__" if is_package else name).main


def check_module(name: str, words: list[str], monkeypatch):
    """Parses the arguments of `python -m NAME` without running the module."""

    class Parsed(Exception):
        pass

    def parse(self, args=None, namespace=None):
        _, unknown = self.parse_known_args(args, namespace)
        assert not unknown
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    monkeypatch.setattr(sys, "argv", [name, *(word for word in words if word != "...")])
    with pytest.raises(Parsed):
        main_of(name)()


@pytest.mark.parametrize(("page", "command"), [pair for pair in COMMANDS if not is_run(pair[1])])
def test_commands_parse(page, command, monkeypatch):
    """Commands that are not run, such as long ones, use existing flags, recipes, presets and make targets."""
    words = shlex.split(command, comments=True)
    program = words.pop(0)
    if program == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert all(f"\n{target}:" in makefile for target in words if "=" not in target)
    elif program == "python" and words[0] == "-m":
        check_module(words[1], words[2:], monkeypatch)
        if words[1] == "experiments.study" and "--scale" in words:
            load_study(words[2], words[words.index("--scale") + 1])
        assert all((ROOT / word).exists() for word in words if word.startswith("docs/"))
    elif program == "python" and words[0] == "-c":
        compile(words[1], page, "exec")
    elif program in ("python", "accelerate"):
        for file in re.findall(r"--config_file (\S+)", command):
            assert (ROOT / file).exists(), file
        if program == "accelerate":
            launch_command_parser().parse_args(words[1:])
        script = next((n for n, word in enumerate(words) if re.fullmatch(r"run_\w+\.py", word)), None)
        if script is None:  # accelerate launch -m fixedbert COMMAND
            fixedbert_cli.parse(words[words.index("fixedbert") + 1 :])
        else:
            check_task(words[script][4:-3], words[script + 1 :])
    elif program == "fixedbert":
        if words[0] in TRAINING:
            check_task(words[0], words[1:])
        else:
            fixedbert_cli.parse(words)
    else:
        assert program in EXTERNAL


def test_search_for_commands():
    """The search finds the commands and Python blocks in the documentation."""
    assert len(COMMANDS) > 60 and len(RUNS) > 15 and len(BLOCKS) > 10


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, vocabulary) -> Path:
    """Returns a directory with the files that the pages use: tiny models with the names of real models, and texts."""
    directory = tmp_path_factory.mktemp("workspace")
    # Adds digits and punctuation, because texts with many unknown tokens raise errors.
    more = [*string.punctuation, *string.digits, *(f"##{digit}" for digit in string.digits)]
    tokens = dict.fromkeys([*Path(vocabulary).read_text().splitlines(), *more])
    tokenizer = BertTokenizer(vocab={token: token_id for token_id, token in enumerate(tokens)})
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 48, "max_position_embeddings": 512, "num_hidden_layers": 2}
    sizes["initializer_range"] = 0.1
    bert = bert_of("ForPreTraining", **sizes, num_attention_heads=12, intermediate_size=96)
    minilm = model_of("Model", **sizes, num_attention_heads=12, attention_head_size=32, intermediate_size=1536)
    mini = model_of("ForPreTraining", **sizes)
    labels = {0: "negative", 1: "positive"}
    reviews = model_of("ForSequenceClassification", **sizes, id2label=labels)
    roberta = bert_of("ForMaskedLM", "Roberta", **sizes, num_attention_heads=12, intermediate_size=96)
    models = {
        "google-bert/bert-base-uncased": bert,
        "wide": bert,
        "sentence-transformers/all-MiniLM-L6-v2": minilm,
        "FacebookAI/roberta-base": roberta,
        "all-MiniLM-L6-v2": minilm,
        "embeddings": model_of("Model", **sizes),
        "reranker": model_of("ForSequenceClassification", **sizes, num_labels=1),
        "tagger": model_of("ForTokenClassification", **sizes, id2label={0: "O", 1: "PER"}),
        "me/mini": mini,
        "runs/mini": mini,
    }
    for name, model in {**models, "runs/reviews": reviews, "fast": reviews}.items():
        if model is minilm or name == "embeddings":
            pooling = {"word_embedding_dimension": 48, "pooling_mode_mean_tokens": True}
            save_sentence_model(
                model, directory / name, "Pooling", "Normalize", pooling=pooling, settings={"max_seq_length": 128}
            )
        model.save_pretrained(directory / name)
        tokenizer.save_pretrained(directory / name)
    logged = {"step": 100, "loss": 7.1, "learning_rate": 1e-3, "grad_norm": 0.5, "tokens_per_second": 9000.0}
    (directory / "runs" / "mini" / "trainer_state.json").write_text(json.dumps({"log_history": [logged]}))
    texts = [" ".join(text.replace('"', "").split()) for text in [*topics.values()][:70]]
    rows = [f'"{text[:200]}",{labels[number % 2]}' for number, text in enumerate(texts)]
    for name in ("reviews.csv", "recent.csv", "dev.csv"):
        (directory / name).write_text("\n".join(["text,label", *rows]))
    (directory / "texts.csv").write_text("\n".join(["text,label", *rows]))
    pairs = [f"query {number // 4},{row}" for number, row in enumerate(rows)]
    (directory / "queries.csv").write_text("\n".join(["query,text,label", *pairs]))
    words = [json.dumps({"tokens": text.split()[:50]}) for text in texts]
    (directory / "sentences.jsonl").write_text("\n".join(words))
    for name in ("wikipedia", "books", "corpus"):
        (directory / name).mkdir()
        for number, text in enumerate(texts):
            (directory / name / f"{number}.txt").write_text(text[:1000])
    return directory


@pytest.mark.slow  # a minute
@pytest.mark.parametrize("page", sorted({*RUNS.values()}))
def test_commands_run(page, workspace, tmp_path, monkeypatch, capsys):
    """The commands on a page run in order, with tiny models and texts."""
    commands = [command for command, name in RUNS.items() if name == page]
    written = {output.split("/")[0] for command in commands for output in re.findall(r"--output_dir (\S+)", command)}
    for name in workspace.iterdir():
        if name.name not in written - {"runs"}:
            (tmp_path / name.name).symlink_to(name)
    monkeypatch.chdir(tmp_path)
    for command in commands:
        program, *words = shlex.split(shortened(command), comments=True)
        if program == "python":
            main_of(words[1])(words[2:])
        else:
            fixedbert_cli.main(words)
        if "--output_dir" in words:
            assert any((tmp_path / words[words.index("--output_dir") + 1]).iterdir())


@pytest.mark.slow  # a minute
@pytest.mark.parametrize(("page", "number", "code"), BLOCKS, ids=[f"{page}-{number}" for page, number, _ in BLOCKS])
def test_python_runs(page, number, code, workspace, tmp_path):
    """Python blocks run as scripts, with tiny models and texts."""
    for name in workspace.iterdir():
        if f'save_pretrained("{name.name}")' not in code:
            (tmp_path / name.name).symlink_to(name)
    if 'backend="onnx"' in code:  # needs transformers 4
        compile(code, page, "exec")
        return
    for name, model in GRAPHS.items():
        if name in code and model not in code:
            export(tmp_path / model, tmp_path / name, int8=True)
    code = re.sub(r'"(A text|Arrived broken)\."', r'"\1. " * 1500', shortened(code))  # servers must truncate
    (tmp_path / "block.py").write_text(code)
    done = fork_server.run(tmp_path / "block.py", [], tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr


EDITS = re.findall(
    r"`(fixedbert/[\w/]+\.py)`[^`]*(?:`[^`]*`[^`]*)*?```diff\n(.*?)```",
    (ROOT / "CONTRIBUTING.md").read_text("utf-8"),
    re.DOTALL,
)


def test_example_in_contributing_works(model, tmp_path, monkeypatch):
    """The edits in CONTRIBUTING.md, one entry in TASKS and one in METRICS, add a task."""
    for (name, edit), entries in zip(EDITS, (GLUE_TASKS, METRICS), strict=True):
        before = "".join(line[1:] for line in edit.splitlines(keepends=True) if not line.startswith("+"))
        assert (ROOT / name).read_text("utf-8").count(before) == 1, name
        added = "".join(line[1:] for line in edit.splitlines(keepends=True) if line.startswith("+"))
        monkeypatch.setitem(entries, "boolq", eval(f"{{{added}}}", {"GlueTask": GlueTask})["boolq"])
    texts = {name: ["one two", "three", "four five", "six"] for name in ("question", "passage")}
    rows = datasets.Dataset.from_dict(texts | {"label": [0, 1, 0, 1]})
    rows = rows.cast_column("label", datasets.ClassLabel(names=["False", "True"]))
    asked, splits = [], {"train": rows, "validation": rows}
    load = "fixedbert.tasks.texts.load_from_hub"
    monkeypatch.setattr(load, lambda *names, **options: asked.append(names) or splits)
    command = ["--model_name_or_path", model, "--task_name", "boolq", "--do_train", "--do_eval", "--max_steps", "1"]
    run_glue([*command, *QUICK, "--seeds", "1", "--output_dir", str(tmp_path / "out")])
    assert asked == [("aps/super_glue", "boolq")]
    assert json.loads((tmp_path / "out/results.json").read_text())["tasks"]["boolq"].keys() == {"accuracy"}
    card = (tmp_path / "out/boolq/seed-1/README.md").read_text()
    assert "aps/super_glue" in card and "nyu-mll/glue" not in card


@pytest.mark.slow  # half a minute
def test_tests_pass_with_the_example_in_contributing(tmp_path):
    """After the edits in CONTRIBUTING.md, exactly as they are printed, the tests of all tasks pass."""
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".*", "build", "dist", "demo", "*.egg-info"))
    for name, edit in EDITS:
        lines, text = edit.splitlines(keepends=True), (checkout / name).read_text("utf-8")
        before = "".join(line[1:] for line in lines if not line.startswith("+"))
        assert text.count(before) == 1
        (checkout / name).write_text(text.replace(before, "".join(line[1:] for line in lines)), "utf-8")
    tests = ("tasks", "fine_tuning/test_sweep.py", "test_cli.py", "test_docs.py")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *(f"tests/{name}" for name in tests)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout
    assert "boolq" in runpy.run_path(str(checkout / "fixedbert/tasks/glue.py"))["TASKS"]


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub generates for the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links(page):
    """All linked files and headings exist."""
    file = ROOT / page
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", file.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = file.parent / name if name else file
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_listed():
    """docs/README.md lists all pages with their titles, in the same order as the table of contents of the website."""
    docs = ROOT / "docs"
    listed = re.findall(r"^- \[(.+)\]\(([^)]+\.md)\)", (docs / "README.md").read_text("utf-8"), re.MULTILINE)
    pages = {*PAGES} - {"README.md", "CODE_OF_CONDUCT.md", "docs/README.md", "docs/index.md"}
    assert sorted((docs / name).resolve() for _, name in listed) == sorted(ROOT / page for page in pages)
    for title, name in listed:
        assert (docs / name).read_text("utf-8").startswith(f"# {title}\n"), name
    contents = re.findall(r"^(?!```|:)\S+$", (docs / "index.md").read_text("utf-8"), re.MULTILINE)
    assert [f"{name}.md" for name in contents] == [name for _, name in listed]


def test_page_of_options():
    """docs/options.md lists the options that fixedbert/options.py declares: `python docs/options.py` writes it."""
    page = runpy.run_path(str(ROOT / "docs/options.py"))["page"]
    assert (ROOT / "docs/options.md").read_text("utf-8") == page()


def test_files_of_the_structure_exist():
    """All files listed under "Structure" in CONTRIBUTING.md exist, and all modules and subpackages are listed."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Structure")[2].partition("\n## ")[0]
    names = {name for row in re.findall(r"^\|.*", text, re.MULTILINE) for name in re.findall(r"`([\w./]+)`", row)}
    assert len(names) > 20
    for name in names:
        assert any((ROOT / "fixedbert").rglob(name)), name
    modules = {file.name + ("/" if file.is_dir() else "") for file in (ROOT / "fixedbert").iterdir()}
    assert not {name for name in modules if not name.startswith(("_", "py.typed"))} - names
