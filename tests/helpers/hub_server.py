"""A read-only Hugging Face Hub on localhost, for tests that load models with the client of huggingface_hub."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0" * 40


class Hub:
    """Context manager that serves the model directories in `repositories` (by Hub id) at `url`."""

    def __init__(self, **repositories: Path):
        self.repositories = {f"user/{name}": directory for name, directory in repositories.items()}

    def __enter__(self) -> "Hub":
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.repositories = self.repositories
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()

    def run(self, *command: str, home: Path, **variables: str) -> subprocess.CompletedProcess:
        """Runs Python with arguments in a process that uses only this Hub."""
        settings = {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        settings |= {"HF_TOKEN": "", "NO_PROXY": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        environment = os.environ | settings | variables
        return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300)


class Handler(BaseHTTPRequestHandler):
    """Handles one request to the Hub."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        status, data, headers = 404, b"{}", {"X-Error-Code": "EntryNotFound"}
        if match := re.fullmatch("/api/models/([^/]+/[^/]+?)(/revision/[^/]+|/tree/[^/]+)?", path):
            folder = self.server.repositories[match[1]]
            files = [(file.relative_to(folder).as_posix(), file) for file in folder.rglob("*") if file.is_file()]
            info = {"id": match[1], "sha": COMMIT, "private": False, "tags": []}
            info["siblings"] = [{"rfilename": name} for name, _ in files]
            tree = [{"type": "file", "path": name, "size": file.stat().st_size, "oid": name} for name, file in files]
            status, data, headers = 200, json.dumps(tree if "/tree/" in path else info).encode(), {}
        elif match := re.fullmatch("/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            file = self.server.repositories[match[1]] / match[2]
            if file.is_file():
                status, data = 200, file.read_bytes()
                headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_HEAD = do_GET

    def log_message(self, *arguments):
        pass
