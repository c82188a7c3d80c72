"""A small Hugging Face Hub on this machine that huggingface_hub's own client talks to, with faults on demand."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

import yaml

LARGE_SUFFIXES = (".safetensors", ".bin")
LARGE_FILE = 10_000  # bytes; longer files go through LFS, as those above 10 MB do on the Hub
ATTRIBUTES = "".join(f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in LARGE_SUFFIXES).encode()


@dataclass(frozen=True)
class Commit:
    sha: str
    message: str
    files: Mapping[str, bytes]


@dataclass
class Event:
    """What is to happen with the next requests of this kind."""

    method: str
    path_regex: str
    times: int = 1
    status: int = 503
    cut: int | None = None
    lost_answer: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    callback: Callable[[], object] | None = None


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})


@dataclass(eq=False)
class Refusal(Exception):
    status: int
    message: str
    code: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def answer(self) -> Answer:
        plain = " ".join(self.message.encode("ascii", "replace").decode().split())
        headers = {"X-Error-Message": plain, **({"X-Error-Code": self.code} if self.code else {})}
        return as_json({"error": self.message}, self.status, {**headers, **self.headers})


def as_json(value, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})) -> Answer:
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})


def is_large(path: str, size: int) -> bool:
    return size > LARGE_FILE or (size > 0 and path.endswith(LARGE_SUFFIXES))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_sha(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def entry(path: str, data: bytes) -> dict:
    """A file in a listing."""
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256(data)}\nsize {len(data)}\n".encode()
    if not is_large(path, len(data)):
        return {"type": "file", "path": path, "size": len(data), "oid": git_sha(data)}
    lfs = {"oid": sha256(data), "sha256": sha256(data), "size": len(data), "pointerSize": len(pointer)}
    return {"type": "file", "path": path, "size": len(data), "oid": git_sha(pointer), "lfs": lfs}


def listing(files: Mapping[str, bytes]) -> dict[str, dict]:
    """Entries of all files and folders."""
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents} - {"."}
    entries = [{"type": "directory", "path": path, "size": 0, "oid": git_sha(path.encode())} for path in folders]
    entries += [entry(path, data) for path, data in files.items()]
    return {item["path"]: item for item in sorted(entries, key=lambda item: item["path"])}


def check_card(text: str) -> tuple[list[str], list[str]]:
    """Errors and warnings about the metadata of a README.md."""
    block = re.match(r"---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(\r?\n|$)", text, re.DOTALL)
    try:
        metadata = yaml.safe_load(block[1]) if block else None
    except yaml.YAMLError as error:
        return [f"YAML: {error}"], []
    if metadata is None:
        return [], ["empty or missing yaml metadata in repo card"]
    return ([], []) if isinstance(metadata, dict) else (['"metadata" must be of type object'], [])


class LoopbackHub:
    """`with LoopbackHub() as hub:` serves at `hub.url` until the block ends.

    `repositories` has the commits of every model, oldest first; as on the Hub, the first one adds .gitattributes.
    """

    def __init__(self, namespaces: Sequence[str] = ("user", "organization")):
        self.namespaces = namespaces  # where a write token may write; the first is the user, the others organizations
        self.tokens = {"hf_write": "write", "hf_read": "read"}
        self.repositories: dict[str, list[Commit]] = {}
        self.private: set[str] = set()
        self.storage: dict[str, bytes] = {}  # large files by sha256, also those no commit names yet
        self.requests: list[tuple[str, str]] = []  # method and path
        self.ranges: list[str] = []  # the Range headers of all downloads
        self.faults: list[Event] = []
        self.callbacks: list[Event] = []
        self.lock = threading.RLock()

    def __enter__(self) -> "LoopbackHub":
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.hub = self
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        # Another host to the client, as the Hub's storage is: it may not send its token there.
        self.storage_url = f"http://localhost:{self.server.server_port}/storage"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()

    def create(self, repository: str, private: bool = False):
        with self.lock:
            if private:
                self.private.add(repository)
            self.repositories[repository] = []
            self.commit(repository, {".gitattributes": ATTRIBUTES}, "initial commit")

    def commit(self, repository: str, changes: Mapping[str, bytes | None], message: str = "Change") -> str:
        """Add a commit with these files, None for those that go; returns its sha."""
        with self.lock:
            commits = self.repositories[repository]
            former = commits[-1] if commits else Commit("", "", {})
            files = {path: data for path, data in {**former.files, **changes}.items() if data is not None}
            self.storage |= {sha256(data): data for path, data in files.items() if is_large(path, len(data))}
            contents = [(path, sha256(files[path])) for path in sorted(files)]
            sha = hashlib.sha1(repr((former.sha, message, contents)).encode()).hexdigest()
            commits.append(Commit(sha, message, MappingProxyType(files)))
            return sha

    def files(self, repository: str) -> dict[str, bytes]:
        """The files of the last commit."""
        return dict(self.repositories[repository][-1].files)

    def fail(self, method: str, path_regex: str, times: int = 1, status: int = 503, **how):
        """Let the next requests fail: with this status and `headers`, or with a connection that breaks.

        `cut=N` breaks it after N bytes of the body that is sent, in PUT and POST by the client, else by the Hub.
        With `lost_answer=True` the request is carried out, but the connection breaks before the answer.
        """
        self.faults.append(Event(method, path_regex, times, status, **how))

    def before(self, method: str, path_regex: str, callback: Callable[[], object]):
        """Call this once, before the next request of this kind is read; of several, one before each request."""
        self.callbacks.append(Event(method, path_regex, callback=callback))

    def due(self, events: list[Event], method: str, path: str) -> Event | None:
        with self.lock:
            for event in events:
                if event.times > 0 and event.method == method and re.search(event.path_regex, path):
                    event.times -= 1
                    return event
        return None

    def environment(self, home: str | Path, token: str | None = None, **variables: str) -> dict[str, str]:
        """For a process that shall know no other Hub and keep its cache in `home`."""
        alien = re.compile("(HF|HUGGING_?FACE(_HUB)?|TRANSFORMERS)_.*|.*_proxy", re.IGNORECASE)
        kept = {name: value for name, value in os.environ.items() if not alien.fullmatch(name)}
        return {
            **kept,
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",  # huggingface_hub 2 asks no more whether the server speaks Xet
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            "OMP_NUM_THREADS": "1",
            **({"HF_TOKEN": token} if token else {}),
            **variables,
        }

    def run(
        self, program: str | Sequence[str], home: str | Path, token: str | None = None, **variables: str
    ) -> subprocess.CompletedProcess:
        """Run Python code, or a command given as a list, in that environment."""
        command = [sys.executable, "-c", program] if isinstance(program, str) else program
        environment = self.environment(home, token, **variables)
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet
    disable_nagle_algorithm = True

    def handle_request(self):
        self.hub: LoopbackHub = self.server.hub
        address = urlsplit(self.path)
        self.query, path = parse_qs(address.query), unquote(address.path)
        self.hub.requests.append((self.command, path))
        if event := self.hub.due(self.hub.callbacks, self.command, path):
            event.callback()
        fault = self.hub.due(self.hub.faults, self.command, path)
        cut = fault.cut if fault else None
        cut_upload = cut is not None and self.command in ("POST", "PUT")
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(min(cut, length) if cut_upload else length)
        if cut_upload or len(self.body) < length:
            self.close_connection = True  # a request that came in part only does nothing
            return
        if fault and cut is None and not fault.lost_answer:
            answer = Refusal(fault.status, f"Fault {fault.status}", headers=fault.headers).answer()
        else:
            answer = self.answer(path)
        if fault and fault.lost_answer:
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[:cut])
        self.close_connection |= cut is not None

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

    def log_message(self, *arguments):
        pass

    def answer(self, path: str) -> Answer:
        try:
            for method, route, respond in ROUTES:
                match = re.fullmatch(route, path)
                if match and self.command in method:
                    return respond(self, **match.groupdict())
            raise Refusal(404, f"Not here: {self.command} {path}")
        except Refusal as refusal:
            return refusal.answer()

    def role(self) -> str | None:
        """`write` or `read`, None without a token."""
        if "Authorization" not in self.headers:
            return None
        token = self.headers["Authorization"].removeprefix("Bearer ")
        if token not in self.hub.tokens:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return self.hub.tokens[token]

    def signed_in(self, code: str = "") -> str:
        role = self.role()
        if role is None:
            raise Refusal(401, "Invalid username or password.", code)
        return role

    def readable(self, repository: str, revision: str = "main") -> Commit:
        if repository not in self.hub.repositories or repository in self.hub.private:
            self.signed_in("RepoNotFound")  # without a token, a missing model looks like a private one
        if repository not in self.hub.repositories:
            raise Refusal(404, "Repository not found", "RepoNotFound")
        self.role()  # an unknown token is refused also where none is needed
        for commit in reversed(self.hub.repositories[repository]):
            if revision in ("main", commit.sha):
                return commit
        raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def writable(self, repository: str) -> Commit:
        commit = self.readable(repository)
        # Of an https address, the client takes any 401 here for a missing model; of an http one only with the code.
        if self.signed_in("RepoNotFound") != "write" or repository.split("/")[0] not in self.hub.namespaces:
            raise Refusal(403, "Forbidden: you must use a write token to upload to a repository.")
        return commit

    def whoami(self) -> Answer:
        role = self.signed_in()
        user, *organizations = self.hub.namespaces
        access = {"type": "access_token", "accessToken": {"displayName": role, "role": role}}
        groups = [{"type": "org", "name": name} for name in organizations]
        return as_json({"type": "user", "id": user, "name": user, "fullname": user, "orgs": groups, "auth": access})

    def create(self) -> Answer:
        asked, role = json.loads(self.body), self.signed_in()
        namespace = asked.get("organization") or self.hub.namespaces[0]
        if role != "write" or namespace not in self.hub.namespaces:
            raise Refusal(403, f'You don\'t have the rights to create a model under the namespace "{namespace}"')
        if asked.get("type", "model") != "model":
            raise Refusal(400, "Only models are kept here")
        repository = f"{namespace}/{asked['name']}"
        url = f"{self.hub.url}/{repository}"
        with self.hub.lock:
            if repository in self.hub.repositories:
                return as_json({"error": "You already created this model repo", "url": url}, 409)
            # Clients before huggingface_hub 2 send `private`.
            self.hub.create(repository, asked.get("private") or asked.get("visibility") == "private")
        return as_json({"name": repository, "url": url})

    def validate_card(self) -> Answer:
        errors, warnings = check_card(json.loads(self.body)["content"])
        found = {"errors": errors, "warnings": warnings}
        answer = {kind: [{"message": text} for text in texts] for kind, texts in found.items()}
        return as_json(answer, 400 if errors else 200)

    def model_info(self, repository: str, revision: str | None) -> Answer:
        commit = self.readable(repository, revision or "main")
        entries = [entry(path, data) for path, data in sorted(commit.files.items())]
        siblings = [{"rfilename": item["path"], "blobId": item["oid"], **item} for item in entries]
        private = repository in self.hub.private
        info = {"_id": commit.sha[:24], "id": repository, "modelId": repository, "author": repository.split("/")[0]}
        return as_json({**info, "sha": commit.sha, "private": private, "tags": [], "siblings": siblings})

    def tree(self, repository: str, revision: str, folder: str | None) -> Answer:
        entries = listing(self.readable(repository, revision).files)
        start = f"{folder}/" if folder else ""
        below = [item for path, item in entries.items() if path.startswith(start)]
        if folder and not below:
            raise Refusal(404, f"{folder} does not exist on {revision}", "EntryNotFound")
        recursive = self.query.get("recursive", ["false"])[0].lower() == "true"
        return as_json([item for item in below if recursive or "/" not in item["path"][len(start) :]])

    def paths_info(self, repository: str, revision: str) -> Answer:
        entries = listing(self.readable(repository, revision).files)
        return as_json([entries[path] for path in parse_qs(self.body.decode())["paths"] if path in entries])

    def preupload(self, repository: str) -> Answer:
        present = self.writable(repository).files
        answers = []
        for file in json.loads(self.body)["files"]:
            path = file["path"]
            answer = {"path": path, "uploadMode": "lfs" if is_large(path, file["size"]) else "regular"}
            if path in present:  # by its oid the client sees that it has the same file
                known = entry(path, present[path])
                answer["oid"] = known["lfs"]["oid"] if "lfs" in known else known["oid"]
            answers.append({**answer, "shouldIgnore": False})
        return as_json({"files": answers})

    def batch(self, repository: str) -> Answer:
        self.writable(repository)
        objects = []
        for item in json.loads(self.body)["objects"]:
            upload = {"upload": {"href": f"{self.hub.storage_url}/{repository}/{item['oid']}"}}
            missing = {} if item["oid"] in self.hub.storage else {"actions": upload}
            objects.append({"oid": item["oid"], "size": item["size"], **missing})
        return as_json({"transfer": "basic", "objects": objects})

    def add_commit(self, repository: str) -> Answer:
        header, *operations = [json.loads(line) for line in self.body.splitlines() if line]
        with self.hub.lock:
            former = self.writable(repository)
            if header["value"].get("parentCommit", former.sha) != former.sha:
                raise Refusal(412, "A commit has happened since. Please refresh and try again.")
            changes: dict[str, bytes | None] = {}
            for operation in operations:
                changes |= self.changes(operation["key"], operation["value"], former.files)
            errors, _ = check_card((changes.get("README.md") or b"").decode())
            if errors:
                raise Refusal(400, f"Invalid metadata in README.md: {errors[0]}")
            sha = self.hub.commit(repository, changes, header["value"]["summary"])
        url = f"{self.hub.url}/{repository}/commit/{sha}"
        return as_json({"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})

    def changes(self, key: str, value: dict, files: Mapping[str, bytes]) -> dict[str, bytes | None]:
        """What one operation of a commit does to the files."""
        path = value["path"]
        if key == "file":
            data = base64.b64decode(value["content"])
            if is_large(path, len(data)):
                raise Refusal(400, f"{path} is large and has to go through LFS")
            return {path: data}
        if key == "lfsFile":
            if value["oid"] not in self.hub.storage:
                raise Refusal(400, f"The LFS pointer of {path} points to a file that does not exist")
            return {path: self.hub.storage[value["oid"]]}
        folder = path.rstrip("/") + "/"
        gone = [name for name in files if (name.startswith(folder) if key == "deletedFolder" else name == path)]
        if not gone:
            raise Refusal(404, "A file with this name doesn't exist", "EntryNotFound")
        return dict.fromkeys(gone)

    def store(self, repository: str, oid: str) -> Answer:
        self.refuse_token()
        if sha256(self.body) != oid:
            raise Refusal(400, "The content does not have this sha256")
        self.hub.storage[oid] = self.body
        return Answer(200)

    def stored(self, repository: str, oid: str, path: str) -> Answer:
        self.refuse_token()
        return self.content(self.hub.storage[oid], {"ETag": f'"{oid}"'})

    def refuse_token(self):
        if "Authorization" in self.headers:
            raise Refusal(400, "The storage takes signed addresses only, no tokens")

    def resolve(self, repository: str, revision: str, path: str) -> Answer:
        """Send the client on to the content, which does not change any more, as the Hub does."""
        commit = self.readable(repository, revision)
        known = {"X-Repo-Commit": commit.sha}
        if path not in commit.files:
            raise Refusal(404, "Entry not found", "EntryNotFound", known)
        data, name = commit.files[path], quote(path)
        if is_large(path, len(data)):
            linked = {"X-Linked-Etag": f'"{sha256(data)}"', "X-Linked-Size": str(len(data))}
            location = f"{self.hub.storage_url}/{repository}/{sha256(data)}/{name}"
            return Answer(302, headers={**known, **linked, "Location": location})
        location = f"/api/resolve-cache/models/{repository}/{commit.sha}/{name}"
        return Answer(307, headers={**known, "Location": location})

    def resolved(self, repository: str, revision: str, path: str) -> Answer:
        data = self.readable(repository, revision).files[path]
        return self.content(data, {"X-Repo-Commit": revision, "ETag": f'"{git_sha(data)}"'})

    def content(self, data: bytes, headers: dict[str, str]) -> Answer:
        headers = {**headers, "Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not asked:
            return Answer(200, data, headers)
        self.hub.ranges.append(asked[0])
        start, stop = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
        if start >= len(data):
            return Answer(416, headers={"Content-Range": f"bytes */{len(data)}"})
        return Answer(206, data[start:stop], {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"})


MODEL, REVISION, FILE = "(?P<repository>[^/]+/[^/]+)", "(?P<revision>[^/]+)", "(?P<path>.+)"
ROUTES = [
    (("GET",), "/api/whoami-v2", Handler.whoami),
    (("POST",), "/api/repos/create", Handler.create),
    (("POST",), "/api/validate-yaml", Handler.validate_card),
    (("GET", "HEAD"), f"/api/resolve-cache/models/{MODEL}/{REVISION}/{FILE}", Handler.resolved),
    (("GET",), f"/api/models/{MODEL}(/revision/{REVISION})?", Handler.model_info),
    (("GET",), f"/api/models/{MODEL}/tree/{REVISION}(/(?P<folder>.+))?", Handler.tree),
    (("POST",), f"/api/models/{MODEL}/paths-info/{REVISION}", Handler.paths_info),
    (("POST",), f"/api/models/{MODEL}/preupload/main", Handler.preupload),
    (("POST",), f"/api/models/{MODEL}/commit/main", Handler.add_commit),
    (("POST",), f"/{MODEL}[.]git/info/lfs/objects/batch", Handler.batch),
    (("PUT",), f"/storage/{MODEL}/(?P<oid>[0-9a-f]{{64}})", Handler.store),
    (("GET", "HEAD"), f"/storage/{MODEL}/(?P<oid>[0-9a-f]{{64}})/{FILE}", Handler.stored),
    (("GET", "HEAD"), f"/{MODEL}/resolve/{REVISION}/{FILE}", Handler.resolve),
]
