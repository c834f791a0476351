"""Two small servers on loopback: a shelf of files, and enough of the Hugging Face Hub for its real client.

    with LoopbackFiles({"/vit.pth": b"…"}) as files: …      # files.url is its address
    with LoopbackHub() as hub:
        hub.add("tiny/vit", {"model.safetensors": b"…"})
        hub.patch_client(monkeypatch, cache)                # this process's client uses it from now on

Both record their requests (`asked`) and can misbehave: responses of `broken` paths end half-way, those of `wrong` paths
have other bytes than they should.
"""

from __future__ import annotations

import base64
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
    """The response to a request; `announced` is the length that a HEAD returns, if it is not the body's."""

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

    def take(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """What a POST or PUT gets back."""
        return Answer(405)

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

            def do_POST(self) -> None:
                owner.asked.append(f"{self.command} {self.path}")
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = owner.take(unquote(urlsplit(self.path).path), body, self.headers)
                self.send_response(answer.status)
                for key, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(answer.body)

            do_PUT = do_POST

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
        self.private: dict[str, bool] = {}
        self.refusals: dict[str, int] = {}  # how a path to write to ends → the status that it answers with
        self._stored: dict[str, bytes] = {}  # large files by digest
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
            message = {"id": repository, "sha": commit, "siblings": siblings}
            return _json(message | {"private": self.private.get(repository, False)})
        if repository in self.gated:
            return Answer(401, headers={"X-Error-Code": "GatedRepo"})
        headers = {"X-Repo-Commit": commit}
        if file_name not in files:
            return Answer(404, headers={**headers, "X-Error-Code": "EntryNotFound"})
        body = files[file_name]
        headers["ETag"] = f'"{hashlib.sha256(body).hexdigest()}"'
        return Answer(200, self.wrong.get(path, body), headers, announced=len(body))

    # --- writing ------------------------------------------------------------------------------------------------------

    def files(self, repository: str, branch: str = "main") -> dict[str, bytes]:
        """What lies at the head of a branch."""
        return self._commits[repository, self._branches[repository, branch]]

    def take(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """A new repository, which files are large, the large files, and the commit that names them all."""
        for end, status in self.refusals.items():
            if path.endswith(end):
                return _json({"error": "refused"}, status)
        if match := re.fullmatch(r"/stored/([0-9a-f]{64})", path):
            assert hashlib.sha256(body).hexdigest() == match[1]
            self._stored[match[1]] = body
            return Answer(200)
        if headers.get("Authorization") != "Bearer right":
            return _json({"error": "Invalid credentials"}, 401)
        if path == "/api/validate-yaml":
            return _json({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            asked = json.loads(body)
            repository = f"{asked['organization']}/{asked['name']}"
            url = {"url": f"{self.url}/{repository}"}
            if any(repository == known for known, _ in self._commits):
                return _json({"error": "You already created this model repo"} | url, 409)
            self.add(repository, {".gitattributes": b""})
            self.private[repository] = asked.get("visibility") == "private" or bool(asked.get("private"))
            return _json(url)
        if re.fullmatch(r"/api/models/[^/]+/[^/]+/preupload/main", path):
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in names}
            message = [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]
            return _json({"files": message})
        if path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {**each, "actions": {"upload": {"href": f"{self.url}/stored/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            return _json({"transfer": "basic", "objects": objects})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            files = dict(self.files(match[1]))
            for line in map(json.loads, body.splitlines()):
                message = line["value"]
                if line["key"] == "file":
                    files[message["path"]] = base64.b64decode(message["content"])
                elif line["key"] == "lfsFile":
                    files[message["path"]] = self._stored[message["oid"]]
            commit = self.add(match[1], files)
            url = f"{self.url}/{match[1]}/commit/{commit}"
            return _json({"success": True, "commitOid": commit, "commitUrl": url})
        return Answer(404)


def _json(value: object, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


def leftovers(folder: Path) -> list[str]:
    """Files in a cache that hold contents: not the Hub client's locks, refs and marks."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file()
        and not {".locks", "refs", ".no_exist"} & set(path.relative_to(folder).parts)
        and path.name != "CACHEDIR.TAG"
    ]
