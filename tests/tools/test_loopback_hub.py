"""The Hub on this machine: huggingface_hub's own client works with it, and its faults reach the client."""

import json
import os
import textwrap
import urllib.error
import urllib.request
from hashlib import sha256
from pathlib import Path

import pytest
from helpers.fake_hub import LoopbackHub

WEIGHTS = bytes(range(256)) * 200  # goes through LFS
CONFIG = b'{"layers": 12}\n'
CARD = b"---\nlicense: apache-2.0\n---\n# A model\n"

# `outcome` gives what a call returned, or the type, the status and the text of its error.
PROLOGUE = """
import json
from pathlib import Path
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants
from huggingface_hub import hf_hub_download, snapshot_download

api, model = HfApi(), "user/model"
constants.DOWNLOAD_CHUNK_SIZE = 1000  # a cut leaves nothing on disk to resume from where a chunk is the whole file


def outcome(call, *arguments, **options):
    try:
        return call(*arguments, **options)
    except Exception as error:
        return [type(error).__name__, getattr(getattr(error, "response", None), "status_code", None), str(error)]


def downloaded(path):
    return Path(hf_hub_download(model, path)).read_bytes().hex()


result = {}
"""


@pytest.fixture
def hub():
    with LoopbackHub() as hub:
        yield hub


@pytest.fixture
def home(tmp_path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, data in {"config.json": CONFIG, "model.safetensors": WEIGHTS, "README.md": CARD}.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def published(hub) -> LoopbackHub:
    """A Hub that has the model already."""
    hub.create("user/model")
    hub.commit("user/model", {"config.json": CONFIG, "model.safetensors": WEIGHTS})
    return hub


def client(hub: LoopbackHub, home: Path, lines: str, token: str | None = None, **variables) -> dict:
    """Run these lines in a process of their own; gives the dictionary `result` that they fill."""
    program = PROLOGUE + textwrap.dedent(lines) + "\nprint(json.dumps(result, default=str))"
    done = hub.run(program, home, token, **variables)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def asked(hub: LoopbackHub, method: str, part: str) -> int:
    return sum(method == each and part in path for each, path in hub.requests)


def cached(home: Path) -> list[bytes]:
    """The files of the cache that pass for whole ones."""
    models = home / "hub" / "models--user--model"
    files = [*(models / "blobs").glob("*"), *(models / "snapshots").rglob("*")]
    return [file.read_bytes() for file in files if file.is_file() and file.suffix != ".incomplete"]


def test_what_is_uploaded_comes_back(hub, home, folder):
    """Guards: a folder goes up in one commit and comes back byte for byte, the large file by way of LFS."""
    lines = """
    result["name"] = api.whoami()["name"]
    api.create_repo(model)
    api.create_repo(model, exist_ok=True)
    result["again"] = outcome(api.create_repo, model)[:2]
    api.upload_folder(repo_id=model, folder_path=FOLDER)
    snapshot = Path(snapshot_download(model))
    result["files"] = {file.name: file.read_bytes().hex() for file in snapshot.iterdir()}
    result["commit"] = snapshot.name
    """
    result = client(hub, home, f"FOLDER = {str(folder)!r}" + textwrap.dedent(lines), "hf_write")
    files = {name: bytes.fromhex(data) for name, data in result["files"].items()}
    assert files.pop(".gitattributes")
    assert files == {
        "config.json": CONFIG,
        "model.safetensors": WEIGHTS,
        "README.md": CARD,
    }
    assert len(hub.repositories["user/model"]) == 2 and hub.repositories["user/model"][-1].sha == result["commit"]
    assert result["name"] == "user" and result["again"] == ["HfHubHTTPError", 409]
    assert list(hub.storage.values()) == [WEIGHTS] and asked(hub, "PUT", "/storage/") == 1
    assert not any("xet" in path for _, path in hub.requests)


def test_listings_tell_of_the_last_commit(published, home):
    """Guards: listings, sizes and hashes are those of the files; files are added, replaced and deleted by commits."""
    published.commit("user/model", {"onnx/a.txt": b"a", "onnx/b.txt": b"b"})
    lines = """
    operations = [
        CommitOperationDelete("onnx/", is_folder=True),
        CommitOperationAdd("config.json", b"{}"),
        CommitOperationAdd("sub/new.bin", b"short"),
        CommitOperationAdd("sub/empty.bin", b""),
    ]
    result["before"] = api.list_repo_files(model)
    result["top"] = [item.path for item in api.list_repo_tree(model)]
    commit = api.create_commit(model, operations, commit_message="Change")
    api.upload_file(path_or_fileobj=b"{}", path_in_repo="config.json", repo_id=model)
    info = api.model_info(model, files_metadata=True)
    result["files"] = {file.rfilename: [file.size, file.lfs is not None] for file in info.siblings}
    result["same"] = info.sha == commit.oid == api.repo_info(model, revision=commit.oid).sha
    result["exists"] = [api.file_exists(model, name) for name in ("config.json", "onnx/a.txt")]
    [weights] = api.get_paths_info(model, ["model.safetensors", "no.txt"])
    result["weights"] = [weights.size, weights.lfs.sha256]
    result["missing"] = [
        outcome(hf_hub_download, model, "no.txt")[:2],
        outcome(hf_hub_download, model, "config.json", revision="no")[:2],
        outcome(hf_hub_download, "user/no", "config.json")[:2],
        outcome(api.delete_file, "no.txt", model)[:2],
    ]
    """
    result = client(published, home, lines, "hf_write")
    assert result["before"] == [".gitattributes", "config.json", "model.safetensors", "onnx/a.txt", "onnx/b.txt"]
    assert result["top"] == [".gitattributes", "config.json", "model.safetensors", "onnx"]
    assert result["files"].pop(".gitattributes")
    assert result["files"] == {
        "config.json": [2, False],
        "model.safetensors": [len(WEIGHTS), True],
        "sub/new.bin": [5, True],
        "sub/empty.bin": [0, False],
    }
    assert result["same"] and len(published.repositories["user/model"]) == 4  # what is there already is no commit
    assert result["exists"] == [True, False] and result["weights"] == [len(WEIGHTS), sha256(WEIGHTS).hexdigest()]
    assert result["missing"] == [
        ["RemoteEntryNotFoundError", 404],
        ["RevisionNotFoundError", 404],
        ["RepositoryNotFoundError", 404],
        ["RemoteEntryNotFoundError", 404],
    ]


def test_cards_with_wrong_metadata_are_refused(published, home):
    """Guards: a card whose metadata is no mapping stops the upload before anything is sent."""
    lines = """
    for name, text in {"list": "---\\n- a\\n---\\n", "torn": "---\\na: [\\n---\\n", "none": "# A model\\n"}.items():
        result[name] = outcome(api.upload_file, path_or_fileobj=text.encode(), path_in_repo="README.md", repo_id=model)
    """
    result = client(published, home, lines, "hf_write")
    assert result["list"][0] == result["torn"][0] == "ValueError"
    assert "must be of type object" in result["list"][2]
    assert published.files("user/model")["README.md"] == b"# A model\n"
    assert asked(published, "POST", "/commit/") == 1


def test_writing_needs_a_token_that_may_write(published, home, folder):
    """Guards: no token, an unknown one and one that only reads are told apart, and change nothing."""
    lines = f"""
    for name, token in {{"none": False, "unknown": "hf_unknown", "reader": "hf_read"}}.items():
        api = HfApi(token=token)
        result[name] = [
            outcome(api.create_repo, "user/other"),
            outcome(api.upload_folder, repo_id=model, folder_path={str(folder)!r}),
        ]
    result["alien"] = outcome(HfApi(token="hf_write").create_repo, "stranger/model")
    """
    result = client(published, home, lines)
    statuses = {name: [status for _, status, _ in result[name]] for name in ("none", "unknown", "reader")}
    assert statuses == {"none": [401, 401], "unknown": [401, 401], "reader": [403, 403]}
    assert "must use a write token" in result["reader"][1][2]
    assert result["none"][1][0] == "RepositoryNotFoundError" and "Invalid credentials" in result["unknown"][0][2]
    assert result["alien"][1] == 403 and "rights to create a model" in result["alien"][2]
    assert list(published.repositories) == ["user/model"] and len(published.repositories["user/model"]) == 2


def test_private_models_need_a_token(hub, home):
    """Guards: a private model looks missing without a token, and reads with one."""
    lines = """
    api.create_repo(model, private=True)
    api.upload_file(path_or_fileobj=b"{}", path_in_repo="config.json", repo_id=model)
    for name, token in {"none": False, "reader": "hf_read"}.items():
        info = outcome(HfApi(token=token).model_info, model)
        result[name] = [info, outcome(hf_hub_download, model, "config.json", token=token)]
    """
    result = client(hub, home, lines, "hf_write")
    assert [(kind, status) for kind, status, _ in result["none"]] == [("RepositoryNotFoundError", 401)] * 2
    assert "private=True" in result["reader"][0] and Path(result["reader"][1]).read_bytes() == b"{}"


def test_a_busy_hub_is_asked_again(hub, home, folder):
    """Guards: a 503 while sending a large file costs a retry; one while fetching it is an error, and asked again."""
    hub.create("user/model")
    hub.fail("PUT", "/storage/")
    hub.fail("HEAD", "model.safetensors")
    hub.fail("GET", "model.safetensors")
    lines = f"""
    api.upload_folder(repo_id=model, folder_path={str(folder)!r})
    result["first"] = outcome(downloaded, "model.safetensors")
    result["second"] = downloaded("model.safetensors")
    """
    result = client(hub, home, lines, "hf_write")
    assert asked(hub, "PUT", "/storage/") == 2 and hub.files("user/model")["model.safetensors"] == WEIGHTS
    assert result["first"][:2] == ["HfHubHTTPError", 503]
    assert bytes.fromhex(result["second"]) == WEIGHTS


def test_a_broken_download_is_never_taken_for_a_whole_file(published, home):
    """Guards: after a cut the client fetches the rest, and no part of the file is in the cache under its name."""
    seen = []
    for _ in range(2):
        published.before("GET", "model.safetensors", lambda: seen.append(cached(home)))
    published.fail("GET", "model.safetensors", cut=20_500)
    lines = """
    result["first"] = outcome(downloaded, "model.safetensors")
    result["second"] = downloaded("model.safetensors")
    """
    result = client(published, home, lines)
    # Clients of the first 1.x raise at a cut and resume with the next call; later ones resume by themselves.
    assert isinstance(result["first"], list) or bytes.fromhex(result["first"]) == WEIGHTS
    assert bytes.fromhex(result["second"]) == WEIGHTS and set(cached(home)) == {WEIGHTS} and seen == [[], []]
    assert published.ranges == ["bytes=20000-"]


def test_ranges_are_honoured(published):
    """Guards: a part of a file that is asked for is that part, and one behind its end is refused."""

    def part(asked: str) -> tuple[int, str, bytes]:
        request = urllib.request.Request(
            f"{published.url}/user/model/resolve/main/model.safetensors", headers={"Range": asked}
        )
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
                return answer.status, answer.headers["Content-Range"], answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Content-Range"], b""

    size = len(WEIGHTS)
    assert part("bytes=51000-") == (206, f"bytes 51000-{size - 1}/{size}", WEIGHTS[51000:])
    assert part("bytes=1-3") == (206, f"bytes 1-3/{size}", WEIGHTS[1:4])
    assert part(f"bytes={size}-") == (416, f"bytes */{size}", b"")


def test_a_refused_commit_changes_nothing(published, home, folder):
    """Guards: a commit that is refused, or comes after another one, is an error at once and changes no file."""
    former = published.files("user/model")
    published.fail("POST", "/commit/", status=409)
    published.fail("POST", "/commit/", status=503)
    sha = published.repositories["user/model"][-1].sha
    lines = f"""
    upload = dict(repo_id=model, folder_path={str(folder)!r})
    result["conflict"] = outcome(api.upload_folder, **upload)[1]
    result["busy"] = outcome(api.upload_folder, **upload)[1]
    """
    assert client(published, home, lines, "hf_write") == {"conflict": 409, "busy": 503}
    assert published.files("user/model") == former and asked(published, "POST", "/commit/") == 2

    published.before("POST", "/commit/", lambda: published.commit("user/model", {"config.json": b"{}"}))
    lines = f"""
    result["late"] = outcome(api.upload_folder, repo_id=model, folder_path={str(folder)!r}, parent_commit={sha!r})
    """
    _, status, text = client(published, home, lines, "hf_write")["late"]
    assert status == 412 and "A commit has happened since" in text
    assert published.files("user/model") == {**former, "config.json": b"{}"}


def test_a_broken_upload_is_no_commit(hub, home, folder):
    """Guards: a file or a commit that is cut on its way adds nothing; what arrived whole is not sent again."""
    hub.create("user/model")
    former, at_commit = hub.files("user/model"), []
    hub.fail("PUT", "/storage/", cut=10_000)
    hub.fail("POST", "/commit/", cut=100)
    for _ in range(2):
        hub.before("POST", "/commit/", lambda: at_commit.append((hub.files("user/model"), [*hub.storage.values()])))
    lines = f"""
    # A cut file is sent again, by clients of the first 1.x with the next call; a cut commit is always an error.
    results = [outcome(api.upload_folder, repo_id=model, folder_path={str(folder)!r}) for _ in range(3)]
    result["errors"] = [each for each in results if isinstance(each, list)]
    """
    errors = client(hub, home, lines, "hf_write")["errors"]
    assert errors[-1][0] in ("RemoteProtocolError", "ReadError", "WriteError") and errors[-1][1] is None
    assert asked(hub, "PUT", "/storage/") == asked(hub, "POST", "/commit/") == 2
    assert at_commit == [(former, [WEIGHTS])] * 2
    assert len(hub.repositories["user/model"]) == 2 and hub.files("user/model")["model.safetensors"] == WEIGHTS


def test_a_commit_whose_answer_is_lost_stands(published, home):
    """Guards: the client raises where only the answer is lost, and the same upload again adds no second commit."""
    published.fail("POST", "/commit/", lost_answer=True)
    lines = """
    upload = dict(path_or_fileobj=b"{}", path_in_repo="config.json", repo_id=model)
    result["first"] = outcome(api.upload_file, **upload)
    result["second"] = outcome(api.upload_file, **upload).oid
    """
    result = client(published, home, lines, "hf_write")
    assert result["first"][0] == "RemoteProtocolError"
    assert len(published.repositories["user/model"]) == 3 and published.files("user/model")["config.json"] == b"{}"
    assert result["second"] == published.repositories["user/model"][-1].sha


def test_a_commit_between_head_and_get_is_not_mixed_in(published, home):
    """Guards: files come from the commit that the client was told of first, whatever lands meanwhile."""
    sha = published.repositories["user/model"][-1].sha
    later = {"config.json": b"later", "model.safetensors": b"later"}
    published.before("GET", "config.json", lambda: published.commit("user/model", later))
    lines = """
    result["paths"] = [hf_hub_download(model, "config.json"), hf_hub_download(model, "config.json")]
    """
    first, second = (Path(path) for path in client(published, home, lines)["paths"])
    assert first.read_bytes() == CONFIG and first.parent.name == sha
    assert second.read_bytes() == b"later" and second.parent.name == published.repositories["user/model"][-1].sha


@pytest.mark.parametrize("data", [WEIGHTS[:-1], WEIGHTS + b"more"], ids=["shorter", "longer"])
def test_a_file_of_another_size_is_refused(published, home, data):
    """Guards: content that is not as long as announced is an error of the client, and stays out of the cache."""
    [oid] = published.storage
    published.before("GET", "model.safetensors", lambda: published.storage.update({oid: data}))
    result = client(published, home, 'result["first"] = outcome(downloaded, "model.safetensors")')
    assert result["first"][0] == "OSError" and "Consistency check failed" in result["first"][2]
    assert cached(home) == []


def test_the_environment_names_this_hub_alone(hub, home, monkeypatch):
    """Guards: settings, tokens and proxies of the calling process do not reach the client."""
    for name in ("HF_TOKEN", "HF_HUB_CACHE", "HUGGING_FACE_HUB_TOKEN", "TRANSFORMERS_OFFLINE", "https_proxy"):
        monkeypatch.setenv(name, "alien")
    environment = hub.environment(home, HF_HUB_ETAG_TIMEOUT="3")
    assert "alien" not in environment.values() and environment["PATH"] == os.environ["PATH"]
    assert (environment["HF_ENDPOINT"], environment["HF_HUB_ETAG_TIMEOUT"]) == (hub.url, "3")
    assert hub.environment(home, "hf_read")["HF_TOKEN"] == "hf_read"
    assert hub.run(["printenv", "HF_HOME"], home).stdout.strip() == str(home)
