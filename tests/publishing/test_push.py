"""Publishing: what is pushed is whole, opens without fixedbert and with it, and no fault leaves half of it."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.fake_hub import LoopbackHub
from helpers.script_arguments import parse
from helpers.tiny_models import HEADS, UNEQUAL, inputs_of, model_of
from helpers.tiny_tasks import glue_arguments, write_model
from huggingface_hub import ModelCard, constants
from transformers import AutoConfig, BertTokenizer

import fixedbert
from fixedbert.fine_tuning.glue import GlueDataArguments
from fixedbert.fine_tuning.trainer import FineTuningArguments
from fixedbert.model.configuration_fixed_head_bert import AUTO_MAP
from fixedbert.support.errors import InputError
from fixedbert.training.arguments import ModelArguments
from fixedbert_cli import main

ROOT = Path(__file__).parents[2]
CODE = {f"{part}_fixed_head_bert.py" for part in ("configuration", "attention", "fast", "modeling")}
WITHOUT_FIXEDBERT = """
import sys
sys.modules["fixedbert"] = None  # as if it were not installed
try:
    import fixedbert
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("fixedbert is on the path")
"""


@pytest.fixture
def hub():
    with LoopbackHub() as hub:
        yield hub


@pytest.fixture
def online(hub, monkeypatch, tmp_path):
    """This process may talk to the Hub on loopback, and to no other."""
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    for name, value in {
        "ENDPOINT": hub.url,
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "HF_TOKEN_PATH": str(tmp_path / "no-token"),
    }.items():
        monkeypatch.setattr(constants, name, value)
    return hub


@pytest.fixture
def folder(tmp_path, vocabulary) -> Path:
    """A model and its tokenizer, as the scripts leave them: with pickles and a checkpoint beside."""
    folder = tmp_path / "model"
    write_model(str(folder), vocabulary)
    (folder / "training_args.bin").write_bytes(b"pickle")
    (folder / "checkpoint-7").mkdir()
    (folder / "checkpoint-7" / "model.safetensors").write_bytes(b"")
    (folder / "all_results.json").write_text('{"eval_mlm_loss": 2.5}')
    return folder


def run(hub, program: str, tmp_path, token=None):
    done = hub.run(program, tmp_path / "home", token, PYTHONPATH="")
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def push(folder, *more, token="hf_write"):
    main(["push", str(folder), "user/model", *(("--token", token) if token else ()), *more])


def test_all_auto_classes_are_in_every_configuration(tmp_path):
    """Guards: saving one head does not lose the others, whose classes are those that the package registers."""
    for name, reference in AUTO_MAP.items():
        assert hasattr(fixedbert, reference.split(".")[1]), name
    assert {reference.split(".")[1] for reference in AUTO_MAP.values()} == {
        "FixedHeadBertConfig", *(f"FixedHeadBert{head}" for head in HEADS)
    }  # fmt: skip
    config = fixedbert.FixedHeadBertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=3)
    for head in ("ForQuestionAnswering", "Model"):
        getattr(fixedbert, f"FixedHeadBert{head}")(config).save_pretrained(tmp_path / head)
        assert json.loads((tmp_path / head / "config.json").read_text())["auto_map"] == AUTO_MAP
        assert CODE < {file.name for file in (tmp_path / head).iterdir()}
    assert AutoConfig.from_pretrained(tmp_path / "Model").auto_map == AUTO_MAP


def test_saved_model_opens_by_its_own_code(tmp_path):
    """Guards: what save_pretrained leaves opens where fixedbert is not, with the logits of before, bit for bit."""
    shape = {"hidden_size": 9, "intermediate_size": 21, "unpad_inputs": True, "sparse_prediction": True, **UNEQUAL}
    model, inputs = model_of("ForPreTraining", **shape).eval(), inputs_of("ForPreTraining", size=3)
    model.save_pretrained(tmp_path / "model")
    with torch.no_grad():
        torch.save((inputs, model(**inputs).prediction_logits), tmp_path / "expected.pt")
    program = (
        WITHOUT_FIXEDBERT
        + f"""
import torch, transformers
inputs, expected = torch.load({str(tmp_path / "expected.pt")!r})
source = {str(tmp_path / "model")!r}
model = transformers.AutoModelForPreTraining.from_pretrained(source, trust_remote_code=True).eval()
assert type(model).__module__.startswith("transformers_modules."), type(model)
assert torch.equal(model(**inputs).prediction_logits, expected)
"""
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "PYTHONPATH": ""}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_pushed_model_opens_without_fixedbert_and_with_it(hub, folder, tmp_path):
    """Guards: one commit with weights, code, card and tokenizer, which every Auto class opens by trust_remote_code in
    a process that has no fixedbert; saving it again, also by a Trainer that resumes, keeps the code and every head."""
    model = fixedbert.FixedHeadBertForPreTraining.from_pretrained(folder).eval()
    inputs = {name: x.clamp(max=20) for name, x in inputs_of("ForPreTraining").items()}
    torch.save((inputs, model(**inputs).prediction_logits.detach()), tmp_path / "expected.pt")
    command = ["push", str(folder), "user/model", "--license", "cc0-1.0", "--commit_message", "First"]
    done = hub.run([sys.executable, "-m", "fixedbert", *command], tmp_path / "home", "hf_write")
    assert done.returncode == 0 and f"{hub.url}/user/model/commit/" in done.stdout, done.stderr
    assert [commit.message for commit in hub.repositories["user/model"]][1:] == ["First"]
    files = hub.files("user/model")
    assert files.keys() - {".gitattributes"} == {
        *CODE, "README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "all_results.json",
    }  # fmt: skip
    assert files["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    card = ModelCard(files["README.md"].decode())
    assert card.data.license == "cc0-1.0" and card.data.library_name == "transformers"

    run(hub, WITHOUT_FIXEDBERT + f"""
import torch, transformers
from pathlib import Path
inputs, expected = torch.load({str(tmp_path / "expected.pt")!r})
for name, reference in {AUTO_MAP}.items():
    opened = getattr(transformers, name).from_pretrained("user/model", trust_remote_code=True)
    assert type(opened).__module__.startswith("transformers_modules"), type(opened)
    assert type(opened).__name__ == reference.split(".")[1], type(opened)
tokenizer = transformers.AutoTokenizer.from_pretrained("user/model")
assert tokenizer.tokenize("the function") == ["the", "function"]
model = transformers.AutoModelForPreTraining.from_pretrained("user/model", trust_remote_code=True).eval()
assert torch.equal(model(**inputs).prediction_logits, expected)

saved = Path({str(tmp_path)!r}) / "again"
def whole(folder):
    return {CODE!r} <= {{file.name for file in folder.iterdir()}}
model.save_pretrained(saved)
assert whole(saved)
classifier = transformers.AutoModelForSequenceClassification.from_pretrained(saved, trust_remote_code=True)
model.base_model.save_pretrained(saved / "base")
assert whole(saved / "base")
transformers.AutoModelForMaskedLM.from_pretrained(saved / "base", trust_remote_code=True)

rows = [{{"input_ids": row, "labels": n % 2}} for n, row in enumerate(inputs["input_ids"])]
def trainer(steps):
    arguments = transformers.TrainingArguments(output_dir=str(saved / "trained"), max_steps=steps, save_steps=1,
        use_cpu=True, disable_tqdm=True, per_device_train_batch_size=2)
    return transformers.Trainer(model=classifier, args=arguments, train_dataset=rows)
trainer(1).train()
assert whole(saved / "trained" / "checkpoint-1")
classifier = transformers.AutoModelForSequenceClassification.from_pretrained(
    saved / "trained" / "checkpoint-1", trust_remote_code=True)
resumed = trainer(2)
resumed.train(resume_from_checkpoint=True)
resumed.save_model()
assert whole(saved / "trained" / "checkpoint-2") and whole(saved / "trained")
transformers.AutoModelForQuestionAnswering.from_pretrained(saved / "trained", trust_remote_code=True)
try:
    transformers.AutoModel.from_pretrained("user/model", trust_remote_code=False)
except ValueError as error:
    assert "trust_remote_code" in str(error)
else:
    raise SystemExit("code of the Hub ran unasked")
""", tmp_path)  # fmt: skip

    run(hub, f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
import fixedbert, torch, transformers
inputs, expected = torch.load({str(tmp_path / "expected.pt")!r})
for trust in (None, True, False):
    model = transformers.AutoModelForPreTraining.from_pretrained("user/model", trust_remote_code=trust).eval()
    assert type(model) is fixedbert.FixedHeadBertForPreTraining
    assert torch.equal(model(**inputs).prediction_logits, expected)
""", tmp_path)  # fmt: skip


@pytest.mark.slow
def test_push_to_hub_of_model_and_tokenizer(hub, folder, tmp_path):
    """Guards: transformers' own push_to_hub sends code and whole auto_map too, and what it sent opens remotely."""
    run(hub, f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
import fixedbert, transformers
transformers.AutoModelForMaskedLM.from_pretrained({str(folder)!r}).push_to_hub("user/model")
transformers.AutoTokenizer.from_pretrained({str(folder)!r}).push_to_hub("user/model")
""", tmp_path, "hf_write")  # fmt: skip
    files = hub.files("user/model")
    assert CODE | {"README.md", "tokenizer.json"} < files.keys()
    assert json.loads(files["config.json"])["auto_map"] == AUTO_MAP
    run(hub, WITHOUT_FIXEDBERT + """
import transformers
transformers.AutoModelForNextSentencePrediction.from_pretrained("user/model", trust_remote_code=True)
""", tmp_path)  # fmt: skip


@pytest.mark.slow
def test_script_pushes_its_results_and_no_token(hub, folder, download, tmp_path):
    """Guards: --push_to_hub sends weights, code and a card with the results as model-index; the token goes nowhere."""
    arguments = glue_arguments(str(folder), download, tmp_path / "rte", "--do_train", "--do_eval", "--max_steps", "2")
    arguments += ["--save_strategy", "steps", "--save_steps", "1", "--hub_strategy", "every_save"]
    more = ["--push_to_hub", "--hub_model_id", "organization/rte", "--hub-token", "hf_write"]
    done = hub.run([sys.executable, str(ROOT / "run_glue.py"), *arguments, *more], tmp_path / "home")
    assert done.returncode == 0, done.stderr[-3000:]
    files = hub.files("organization/rte")
    assert CODE | {"README.md", "model.safetensors", "all_results.json", "tokenizer.json"} < files.keys()
    for commit in hub.repositories["organization/rte"]:
        if "config.json" in commit.files:
            assert CODE < commit.files.keys(), commit.message
    assert not any(b"hf_write" in content for content in files.values())
    assert not any(b"hf_write" in file.read_bytes() for file in (tmp_path / "rte").rglob("*") if file.is_file())
    card = ModelCard(files["README.md"].decode())
    result = json.loads(files["all_results.json"])["eval_accuracy"]
    (found,) = [entry for entry in card.data.eval_results if entry.metric_type == "accuracy"]
    assert found.metric_value == pytest.approx(result, abs=1e-6) and found.dataset_name == "GLUE rte, from files"
    assert card.data.pipeline_tag == "text-classification" and "run_glue.py --model_name_or_path" in card.content
    assert 'from_pretrained("organization/rte")' in card.content and str(tmp_path) not in card.content
    assert "seed 42" in card.content and f"torch {torch.__version__}" in card.content

    arguments[arguments.index("--output_dir") + 1] = str(tmp_path / "again")
    more = ["--push_to_hub", "--hub_model_id", "organization/again", "--hub_token", "hf_read"]
    refused = hub.run([sys.executable, str(ROOT / "run_glue.py"), *arguments, *more], tmp_path / "home")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith("error: the token has no right to do this")
    assert "Traceback" not in refused.stderr and not list(tmp_path.glob("again*"))


@pytest.mark.slow
def test_push_that_fails_in_the_end_loses_nothing(hub, folder, download, tmp_path):
    """Guards: when the last commit is refused, weights and results are there, and how to send them is said."""
    arguments = glue_arguments(str(folder), download, tmp_path / "rte", "--do_train", "--do_eval", "--max_steps", "1")
    hub.fail("POST", "/commit/", times=9)
    more = ["--push_to_hub", "--hub_model_id", "user/rte"]
    done = hub.run([sys.executable, str(ROOT / "run_glue.py"), *arguments, *more], tmp_path / "home", "hf_write")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"`fixedbert push {tmp_path / 'rte'} user/rte` sends them" in done.stderr.splitlines()[-1]
    assert {"model.safetensors", "all_results.json", "README.md"} < {
        file.name for file in (tmp_path / "rte").iterdir()
    }


def test_nothing_trained_is_pushed():
    """Guards: evaluation alone does not publish somebody else's weights as ours."""
    with pytest.raises(InputError, match="`push_to_hub` sends what was trained: give `do_train` too"):
        parse(["--do_eval", "--push_to_hub", "--output_dir", "x"], FineTuningArguments)


def test_private_is_not_public(online, folder):
    """Guards: --private never sends weights to a repository that everybody can see."""
    online.create("user/model")
    with pytest.raises(InputError, match="everybody can see this repository"):
        push(folder, "--license", "mit", "--private")
    assert "model.safetensors" not in online.files("user/model")


def test_only_what_belongs_to_a_model_is_sent(online, folder):
    """Guards: pickles in disguise, secrets and other files in the directory stay at home."""
    others = ("secret.env", "credentials.json", "train.pickle", "weights.PT", "tf_model.h5", "events.out.tfevents.1")
    for name in others:
        (folder / name).write_text("secret")
    push(folder, "--license", "mit")
    assert not set(others) & online.files("user/model").keys()


def test_card_is_sent_as_it_is(online, folder):
    """Guards: comments, unknown fields and line ends of a card survive; --license adds a line where none is."""
    text = "---\r\n# mine\r\nlibrary_name: transformers\r\ntags: [a]\r\nodd: {x: 1}\r\n---\r\n# Mine\r\n"
    (folder / "README.md").write_bytes(text.encode())
    push(folder, "--license", "mit")
    sent = online.files("user/model")["README.md"].decode()
    assert sent == text.replace("---", "---\nlicense: mit", 1)
    (folder / "README.md").write_bytes(sent.encode())
    with pytest.raises(InputError, match="it states mit, not `license` apache-2.0"):
        push(folder, "--license", "apache-2.0")


def test_push_takes_the_place_of_other_weights(online, folder):
    """Guards: weights of other names in the repository, which might be loaded instead, are removed; the rest stays."""
    online.create("user/model")
    online.commit("user/model", {"model.safetensors.index.json": b"{}", "model-00001-of-00002.safetensors": b"old",
                                 "picture.png": b"mine"})  # fmt: skip
    push(folder, "--license", "mit")
    names = online.files("user/model").keys()
    assert "picture.png" in names and {name for name in names if "safetensors" in name} == {"model.safetensors"}
    before = online.repositories["user/model"][-1].sha
    push(folder, "--license", "mit")  # nothing new
    assert online.repositories["user/model"][-1].sha == before


def test_configuration_without_auto_map_gets_one(online, folder):
    """Guards: a directory that an older fixedbert saved is published with code and auto_map, and stays as it is."""
    config = json.loads((folder / "config.json").read_text())
    del config["auto_map"]
    (folder / "config.json").write_text(json.dumps(config))
    for file in CODE:
        (folder / file).unlink()
    push(folder, "--license", "mit")
    assert json.loads(online.files("user/model")["config.json"])["auto_map"] == AUTO_MAP
    assert CODE < online.files("user/model").keys()
    assert not CODE & {file.name for file in folder.iterdir()}


@pytest.mark.parametrize(
    "token, message",
    [
        (None, "no token that it knows .*; log in with `hf auth login`, or give `token`"),
        ("hf_unknown", "no token that it knows .Invalid credentials"),
        ("hf_read", "the token has no right to do this .*rights to create a model"),
    ],
)
def test_token_that_may_not_write(online, folder, token, message):
    """Guards: a missing, wrong or read-only token is noticed before anything is made, and said in a sentence."""
    with pytest.raises(InputError, match=message):
        push(folder, "--license", "mit", token=token)
    assert "user/model" not in online.repositories


def test_somebody_else_s_name(online, folder):
    """Guards: the Hub's refusal to write under a foreign name comes out as a sentence."""
    with pytest.raises(InputError, match="somebody/model: the token has no right to do this .*somebody"):
        main(["push", str(folder), "somebody/model", "--license", "mit", "--token", "hf_write"])


@pytest.mark.parametrize(
    "fault, message",
    [
        ({"method": "POST", "path_regex": "/commit/", "status": 409}, "the repository changed during the upload"),
        ({"method": "POST", "path_regex": "/commit/", "status": 503}, "the Hub cannot answer now"),
        ({"method": "POST", "path_regex": "/commit/", "cut": 50}, "the connection to the Hub broke"),
        ({"method": "POST", "path_regex": "/repos/create", "status": 500}, "the Hub cannot answer now"),
        ({"method": "PUT", "path_regex": "/storage/", "status": 403}, "no file on the Hub has changed"),
    ],
)
def test_fault_leaves_the_former_commit(online, folder, fault, message):
    """Guards: after a refusal or a broken connection the repository has its old files, and a second try works."""
    online.create("user/model")
    online.commit("user/model", {"config.json": b"old"})
    before = dict(online.files("user/model"))
    online.fail(**fault)
    with pytest.raises(InputError, match=message):
        push(folder, "--license", "mit")
    assert online.files("user/model") == before
    push(folder, "--license", "mit")
    assert online.files("user/model")["model.safetensors"] == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("fault", [{"status": 503}, {"cut": 1000}])
def test_upload_of_weights_is_tried_again(online, folder, fault):
    """Guards: a large file whose upload breaks once arrives whole without anybody's doing."""
    online.fail("PUT", "/storage/", **fault)
    push(folder, "--license", "mit")
    assert online.files("user/model")["model.safetensors"] == (folder / "model.safetensors").read_bytes()


def test_commit_in_between_is_not_overwritten(online, folder):
    """Guards: what somebody else commits while an upload runs stays, and the upload says so."""
    online.create("user/model")
    online.before("POST", "/commit/", lambda: online.commit("user/model", {"README.md": b"theirs"}))
    with pytest.raises(InputError, match="the repository changed during the upload"):
        push(folder, "--license", "mit")
    assert online.files("user/model")["README.md"] == b"theirs"
    assert "model.safetensors" not in online.files("user/model")


@pytest.mark.slow
def test_conversion_reads_from_the_hub(hub, tmp_path, vocabulary):
    """Guards: `fixedbert convert user/bert OUT` takes weights, tokenizer, licence and pooling from the Hub."""
    from transformers import BertConfig, BertModel

    tokenizer = BertTokenizer(vocab=vocabulary)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 37}
    BertModel(BertConfig(vocab_size=len(tokenizer), **shape)).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "README.md").write_text("---\nlicense: mit\n---\n# bert\n")
    (tmp_path / "bert" / "modules.json").write_text("[]")
    (tmp_path / "bert" / "1_Pooling").mkdir()
    (tmp_path / "bert" / "1_Pooling" / "config.json").write_text("{}")
    hub.create("user/bert")
    inside = [file for file in (tmp_path / "bert").rglob("*") if file.is_file()]
    hub.commit("user/bert", {file.relative_to(tmp_path / "bert").as_posix(): file.read_bytes() for file in inside})
    command = [sys.executable, "-m", "fixedbert", "convert", "user/bert", "--output_dir", str(tmp_path / "out")]
    done = hub.run([*command, "--attention_head_size", "16"], tmp_path / "home")
    assert done.returncode == 0, done.stderr[-3000:]
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.base_model == "user/bert" and card.data.license == "mit"
    assert card.data.library_name == "sentence-transformers" and "fixedbert" in card.data.tags
    assert (tmp_path / "out" / "1_Pooling" / "config.json").exists() and (tmp_path / "out" / "tokenizer.json").exists()
    missing = hub.run([*command[:-3], "user/nothing", "--output_dir", str(tmp_path / "other")], tmp_path / "home")
    assert missing.returncode == 1 and missing.stderr.splitlines()[-1].startswith("error: user/nothing")
    assert "Traceback" not in missing.stderr and not (tmp_path / "other").exists()


def test_commands_of_the_page_run(online, folder, monkeypatch, tmp_path):
    """Guards: the commands of docs/publishing.md push; run_glue.py's arguments there are ones that it takes."""
    page = (ROOT / "docs" / "publishing.md").read_text(encoding="utf-8").replace(" me/", " user/")
    (tmp_path / "runs").mkdir()
    folder.rename(tmp_path / "runs" / "mini")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_write")
    commands = re.findall(r"^    fixedbert (.*)$", page, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        main(shlex.split(command))
    assert online.repositories.keys() == {"user/mini", "user/mini-private"} and online.private == {"user/mini-private"}
    (command,) = re.findall(r"python run_glue\.py ((?:\\\n|.)*)", page)
    parse(command.replace("\\\n", " ").split(), ModelArguments, GlueDataArguments, FineTuningArguments)


@pytest.mark.slow
def test_python_of_the_loading_page_runs(hub, folder, tmp_path):
    """Guards: both pieces of docs/loading.md open what was pushed, the second one without fixedbert."""
    hub.create("user/mini")
    hub.commit("user/mini", {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()})
    page = (ROOT / "docs" / "loading.md").read_text(encoding="utf-8").replace('"me/', '"user/')
    with_it, without_it = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    run(hub, f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{with_it}", tmp_path)
    run(hub, WITHOUT_FIXEDBERT + without_it, tmp_path)


def spoil(folder, how):
    if how == "empty":
        for file in list(folder.rglob("*")):
            if file.is_file():
                file.unlink()
    elif how == "truncated":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])
    elif how == "no weights":
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    elif how == "no tokenizer":
        (folder / "tokenizer_config.json").unlink()
    elif how == "shard":
        index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    elif how == "stock":
        (folder / "config.json").write_text('{"model_type": "bert"}')
    elif how == "config":
        (folder / "config.json").write_text("[]")
    elif how == "no licence":
        (folder / "README.md").write_text("---\nlibrary_name: transformers\ntags: [fixedbert]\n---\n# Mine\n")
    elif how == "no library":
        (folder / "README.md").write_text("---\nlicense: mit\ntags: [fixedbert]\n---\n# Mine\n")
    elif how == "no metadata":
        (folder / "README.md").write_text("# Mine\n")
    elif how == "metadata":
        (folder / "README.md").write_text("---\nlicense: [mit\n---\n# Mine\n")


@pytest.mark.parametrize(
    "how, message",
    [
        ("empty", "no config.json; give the directory of a model"),
        ("truncated", "model.safetensors: the weights cannot be read"),
        ("no weights", "no weights in safetensors"),
        ("no tokenizer", "no tokenizer"),
        ("shard", "'model-2.safetensors' is missing, which the index names"),
        ("stock", "a bert model"),
        ("config", "config.json: holds no fields"),
        ("no licence", r"README.md: the metadata has no license .*--license"),
        ("no library", "README.md: the metadata has no library_name"),
        ("no metadata", "README.md: the metadata has no"),
        ("metadata", "README.md: the card cannot be read"),
        ("as it is", "the metadata has no license"),
    ],
)
def test_what_is_not_whole_is_not_sent(online, folder, how, message):
    """Guards: a directory or card with something missing is refused in a sentence before the Hub hears of it."""
    spoil(folder, how)
    with pytest.raises(InputError, match=message):
        push(folder)
    assert not online.requests


def test_hub_out_of_reach(folder, monkeypatch):
    """Guards: without a network there is a sentence, and no traceback."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="user/model: .*offline"):
        push(folder, "--license", "mit")
    assert os.environ["HF_HUB_OFFLINE"] == "1"
