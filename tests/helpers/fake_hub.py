"""A minimal Hugging Face Hub on localhost, for tests with the client of huggingface_hub."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]
NAMESPACES = ("user", "organization")
TOKENS = {"hf_write": "write", "hf_read": "read"}


class Refusal(Exception):
    """Raised to answer a request with an HTTP error."""

    def __init__(self, status: int, message: str, code: str = "", **content: str):
        super().__init__(message)
        self.status, self.content = status, {"error": message, **content}
        self.headers = {"X-Error-Message": message, "X-Error-Code": code}


def git_sha(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class FakeHub:
    """
    Context manager that serves a Hub at `url`.

    Attributes:
        repositories: Files in each repository.
        messages: Messages of all commits.
        requests: Method and path of each request.
    """

    def __init__(self):
        self.repositories: dict[str, Files] = {}
        self.messages: list[str] = []
        self.requests: list[tuple[str, str]] = []
        self.faults: list[tuple[str, str, int]] = []

    def __enter__(self) -> "FakeHub":
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.hub = self
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()

    def create(self, repository: str):
        self.repositories[repository] = {".gitattributes": b""}

    def commit(self, repository: str, changes: dict[str, bytes | None], message: str = "Change"):
        """Adds a commit. A file whose content is None is deleted."""
        files = self.repositories[repository] | changes
        self.repositories[repository] = {path: data for path, data in files.items() if data is not None}
        self.messages.append(message)

    def sha(self, repository: str) -> str:
        return hashlib.sha1(repr(sorted(self.repositories[repository].items())).encode()).hexdigest()

    def fail(self, method: str, path_regex: str, status: int, times: int = 1):
        """Answers the next `times` matching requests with an error."""
        self.faults += [(method, path_regex, status)] * times

    def run(self, program: str, home: Path, **variables: str) -> subprocess.CompletedProcess:
        """Runs Python code in a process that uses only this Hub."""
        command = [sys.executable, "-c", program]
        settings = {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        settings |= {"HF_TOKEN": "", "NO_PROXY": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        environment = os.environ | settings | variables
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


class Handler(BaseHTTPRequestHandler):
    """Handles one request to the Hub."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # sends headers and body in one packet
    disable_nagle_algorithm = True

    def handle_request(self):
        self.hub: FakeHub = self.server.hub
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            for fault in self.hub.faults:
                if fault[0] == self.command and re.search(fault[1], path):
                    self.hub.faults.remove(fault)
                    raise Refusal(fault[2], "Simulated fault")
            content, headers = self.answer(path)
            status = 200
        except Refusal as refusal:
            status, content, headers = refusal.status, refusal.content, refusal.headers
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_POST = handle_request

    def log_message(self, *arguments):
        pass

    def answer(self, path: str) -> tuple[object, dict[str, str]]:
        for route, respond in ROUTES:
            if match := re.fullmatch(route, path):
                answer = respond(self, **match.groupdict())
                return answer if isinstance(answer, tuple) else (answer, {})
        raise Refusal(404, f"Not found: {self.command} {path}")

    def role(self) -> str | None:
        """Returns the role of the request's token: write, read, or None without a token."""
        return TOKENS.get(self.headers.get("Authorization", "").removeprefix("Bearer "))

    def check_write_access(self, namespace: str):
        if self.role() != "write" or namespace not in NAMESPACES:
            raise Refusal(403, f'You don\'t have the rights to create a model under the namespace "{namespace}"')

    def readable(self, repository: str) -> Files:
        if repository not in self.hub.repositories:
            raise Refusal(404, "Repository not found", "RepoNotFound")
        return self.hub.repositories[repository]

    def whoami(self) -> object:
        return {"type": "user", "name": NAMESPACES[0], "orgs": [], "auth": {"accessToken": {"role": self.role()}}}

    def create(self) -> object:
        request = json.loads(self.body)
        namespace = request.get("organization") or NAMESPACES[0]
        self.check_write_access(namespace)
        repository = f"{namespace}/{request['name']}"
        if repository in self.hub.repositories:
            raise Refusal(409, "You already created this model repo", url=f"{self.hub.url}/{repository}")
        self.hub.create(repository)
        return {"name": repository, "url": f"{self.hub.url}/{repository}"}

    def validate_card(self) -> object:
        return {"errors": [], "warnings": []}

    def model_info(self, repository: str) -> object:
        files = [{"rfilename": path} for path in self.readable(repository)]
        return {"id": repository, "sha": self.hub.sha(repository), "private": False, "tags": [], "siblings": files}

    def tree(self, repository: str) -> object:
        files = self.readable(repository).items()
        return [{"type": "file", "path": path, "size": len(x), "oid": git_sha(x)} for path, x in files]

    def preupload(self, repository: str) -> object:
        self.check_write_access(repository.split("/")[0])
        present = self.readable(repository)
        answers = []
        for file in json.loads(self.body)["files"]:
            path = file["path"]
            known = {"oid": git_sha(present[path])} if path in present else {}  # the client skips unchanged files
            answers.append({"path": path, "uploadMode": "regular", "shouldIgnore": False, **known})
        return {"files": answers}

    def add_commit(self, repository: str) -> object:
        header, *operations = [json.loads(line) for line in self.body.splitlines() if line]
        changes: dict[str, bytes | None] = {}
        for operation in operations:
            value = operation["value"]
            changes[value["path"]] = base64.b64decode(value["content"]) if operation["key"] == "file" else None
        self.hub.commit(repository, changes, header["value"]["summary"])
        sha = self.hub.sha(repository)
        url = f"{self.hub.url}/{repository}/commit/{sha}"
        return {"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""}

    def resolve(self, repository: str, path: str) -> tuple[object, dict[str, str]]:
        files = self.readable(repository)
        if path not in files:
            raise Refusal(404, "Entry not found", "EntryNotFound")
        return files[path], {"X-Repo-Commit": self.hub.sha(repository), "ETag": f'"{git_sha(files[path])}"'}


MODEL = "(?P<repository>[^/]+/[^/]+)"
ROUTES: list[tuple[str, Callable]] = [
    ("/api/whoami-v2", Handler.whoami),
    ("/api/repos/create", Handler.create),
    ("/api/validate-yaml", Handler.validate_card),
    (f"/api/models/{MODEL}(/revision/[^/]+)?", Handler.model_info),
    (f"/api/models/{MODEL}/tree/[^/]+", Handler.tree),
    (f"/api/models/{MODEL}/preupload/main", Handler.preupload),
    (f"/api/models/{MODEL}/commit/main", Handler.add_commit),
    (f"/{MODEL}/resolve/[^/]+/(?P<path>.+)", Handler.resolve),
]
