"""Two small servers on loopback: a shelf of files, and enough of the Hugging Face Hub for its real client.

    with LoopbackFiles({"/vit.pth": b"…"}) as files: …      # files.url is where it answers
    with LoopbackHub() as hub:
        hub.add("tiny/vit", {"model.safetensors": b"…"})
        hub.patch_client(monkeypatch, cache)                # this process's client asks it from now on

Both note what they were asked (`asked`), and can misbehave: `broken` paths end half-way, `wrong` paths answer
with other bytes than they should.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest


@dataclass(frozen=True)
class Answer:
    """What a request gets back; `announced` is the length a HEAD is told, where it is not the body's."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    announced: int | None = None


class Loopback:
    """A threaded server on a free port of 127.0.0.1, for a `with` block; subclasses say what it answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken: set[str] = set()
        self.wrong: dict[str, bytes] = {}

    def answer(self, path: str) -> Answer:
        raise NotImplementedError

    def __enter__(self):
        owner = self

        class Handler(BaseHTTPRequestHandler):  # HTTP/1.0: no connection outlives its request
            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path)
                owner.asked.append(f"{self.command} {self.path}")
                answer = owner.answer(path)
                self.send_response(answer.status)
                for key, value in answer.headers.items():
                    self.send_header(key, value)
                length = len(answer.body)
                if self.command == "HEAD" and answer.announced is not None:
                    length = answer.announced
                self.send_header("Content-Length", str(length))
                self.end_headers()
                if self.command == "GET":
                    broken = path in owner.broken
                    with suppress(BrokenPipeError, ConnectionResetError):  # a client that refuses hangs up
                        self.wfile.write(answer.body[: len(answer.body) // 2] if broken else answer.body)

            do_HEAD = do_GET

            def log_message(self, format: str, *arguments: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self._open = True
        return self

    def close(self) -> None:
        """Go away: from now on connections are refused."""
        if self._open:
            self._open = False
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(timeout=5)

    def __exit__(self, *exception: object) -> None:
        self.close()


class LoopbackFiles(Loopback):
    """Files by path; `redirects` lead to addresses, `refused` are forbidden; `headers` go with all."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        super().__init__()
        self.files = dict(files or {})
        self.redirects: dict[str, str] = {}
        self.refused: set[str] = set()
        self.headers: dict[str, str] = {}

    def answer(self, path: str) -> Answer:
        if path in self.redirects:
            return Answer(302, headers={"Location": self.redirects[path]})
        if path in self.refused:
            return Answer(403)
        if path not in self.files:
            return Answer(404, b"no such file")
        return Answer(200, self.wrong.get(path, self.files[path]), self.headers)


class LoopbackHub(Loopback):
    """Repositories of models, each with its commits, branches and files."""

    def __init__(self) -> None:
        super().__init__()
        self.gated: set[str] = set()
        self._commits: dict[tuple[str, str], dict[str, bytes]] = {}  # (repository, commit) → files
        self._branches: dict[tuple[str, str], str] = {}  # (repository, branch) → commit

    def add(self, repository: str, files: Mapping[str, bytes], *, branch: str = "main") -> str:
        """Put `files` into `repository` as a new commit at the head of `branch`, and return the commit."""
        contents = repr((repository, branch, sorted(files.items())))
        commit = hashlib.sha1(contents.encode()).hexdigest()
        self._commits[repository, commit] = dict(files)
        self._branches[repository, branch] = commit
        return commit

    def patch_client(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        """Point this process's Hub client here: it reads `HF_ENDPOINT` on import, too early for a test."""
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "ENDPOINT", self.url)
        template = self.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def environment(self, cache: Path) -> dict[str, str]:
        """The same for another process: the variables a user would set."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(cache),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
        }

    def answer(self, path: str) -> Answer:
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            repository, revision, file_name = match[1], match[2] or "main", None
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            repository, revision, file_name = match[1], match[2], match[3]
        else:
            return Answer(404)
        if not any(repository == known for known, _ in self._commits):
            return Answer(404, headers={"X-Error-Code": "RepoNotFound"})
        commit = self._branches.get((repository, revision), revision)
        files = self._commits.get((repository, commit))
        if files is None:
            return Answer(404, headers={"X-Error-Code": "RevisionNotFound"})
        if file_name is None:  # what a gated repository holds is no secret, as on the real Hub
            siblings = [{"rfilename": name} for name in files]
            return Answer(200, json.dumps({"id": repository, "sha": commit, "siblings": siblings}).encode())
        if repository in self.gated:
            return Answer(401, headers={"X-Error-Code": "GatedRepo"})
        headers = {"X-Repo-Commit": commit}
        if file_name not in files:
            return Answer(404, headers={**headers, "X-Error-Code": "EntryNotFound"})
        body = files[file_name]
        headers["ETag"] = f'"{hashlib.sha256(body).hexdigest()}"'
        return Answer(200, self.wrong.get(path, body), headers, announced=len(body))
