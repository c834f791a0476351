"""`push`: upload a model to the Hugging Face Hub, as three files that `load` reads; repositories and tokens.

`model.safetensors`, `config.json` and `README.md` are written afresh from the loaded model: no other file of a folder
is uploaded, and of a local path only the last part is written. The files are loaded and compared before anything is
uploaded.
"""

import os
import re
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitreous.weights.download import quiet_hub
from vitreous.weights.load import Model, load
from vitreous.weights.model_card import public, write_model_card
from vitreous.weights.save import save

TOKEN = "HF_TOKEN"  # noqa: S105  # the variable's name, not a token


@dataclass(frozen=True)
class PushResult:
    """Repository, address and commit of a pushed model."""

    repository: str
    url: str
    commit: str
    files: tuple[str, ...]


def check_repository(name: str) -> str:
    """Return the name of a repository to push to; raise `ValueError` if it cannot be one.

    >>> check_repository("ann/_digits")
    'ann/_digits'
    """
    part = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
    if not re.fullmatch(f"{part}/{part}", name) or ".." in name or "--" in name or len(name) > 96:
        raise ValueError(
            f"{name!r} cannot be a repository of the Hub: write OWNER/NAME, your user name or organisation first "
            "(letters, digits, '-', '_' and '.', at most 96)"
        )
    return name


def find_token(variable: str = TOKEN) -> str:
    """Find the Hugging Face token with which a model's weights are pushed, in an environment variable.

    If `HF_TOKEN` is not set, it is that of `hf auth login`.
    """
    token = os.environ.get(variable, "").strip()
    if not token and variable == TOKEN:
        from huggingface_hub import get_token

        token = get_token() or ""
    if not token:
        login = ", or run `hf auth login`" if variable == TOKEN else ""
        raise PermissionError(
            f"no token to push with: set {variable} to a token with write access "
            f"(huggingface.co/settings/tokens){login}"
        )
    return token


def push(
    model: Model, repository: str, *, token: str | None = None, private: bool = False, licence: str | None = None
) -> PushResult:
    """Upload `model` to `repository` on the Hugging Face Hub, and return its address and commit.

    The repository is created if it does not exist, else it gets one more commit. `private` creates a private one, and
    is an error for one that is public already.

    >>> from vitreous.weights.load import load
    >>> push(load("packaged:cifar10"), "not a repository")
    Traceback (most recent call last):
    ValueError: 'not a repository' cannot be a repository of the Hub: write OWNER/NAME, your user name or organisation \
first (letters, digits, '-', '_' and '.', at most 96)
    """
    repository, token = check_repository(repository), token or find_token()
    if model.card is None:
        raise ValueError("a model is pushed with its preprocessing: set model.card")
    if bad := model.card.report.nonfinite:
        raise ValueError(f"{next(iter(bad))} holds NaN or infinite values: push an earlier checkpoint")
    with tempfile.TemporaryDirectory(prefix="vitreous-push-") as name:
        folder = Path(name) / repository.split("/")[1]
        files = write_public_files(model, folder, repository, licence)
        return _upload(files, repository, token, private)


def write_public_files(model: Model, folder: Path, repository: str, licence: str | None = None) -> list[Path]:
    """Write a pushed model's three files without local paths, then load and compare them."""
    card, training = model.card, public(model.card.training)
    try:
        model.card = replace(
            card, name=str(public(card.name)), files=(), training=training if isinstance(training, dict) else None
        )
        files = [*save(model, folder), write_model_card(model, folder, repository, licence)]
    finally:
        model.card = card
    loaded = load(folder).state_dict()
    for key, value in model.state_dict().items():
        if not torch.equal(loaded[key], value.detach().cpu().to(loaded[key].dtype)):
            raise RuntimeError(f"{key} loads with other values than were written: nothing was uploaded")
    return files


def _upload(files: list[Path], repository: str, token: str, private: bool) -> PushResult:
    """Upload files to a repository on the Hub in one commit."""
    from huggingface_hub import CommitOperationAdd, HfApi

    hub = HfApi(token=token, library_name="vitreous")
    try:
        hub.create_repo(repository, private=private or None, exist_ok=True)
        if private and not hub.model_info(repository, timeout=10).private:
            raise PermissionError(
                f"{repository} exists already and is public: make it private on its page, or choose another name"
            )
        operations = [CommitOperationAdd(path.name, path) for path in files]
        with nullcontext() if sys.stderr.isatty() else quiet_hub():
            commit = hub.create_commit(repository, operations, commit_message="Model and card, by vitreous push")
    except PermissionError:
        raise
    except Exception as error:  # the client lets its HTTP library's errors through, and that library has changed
        raise _explain(error, repository) from error
    return PushResult(repository, f"{hub.endpoint}/{repository}", str(commit.oid), tuple(path.name for path in files))


def _explain(error: Exception, repository: str) -> Exception:
    """Turn the Hub client's error of a push into one line that says what to try; it never contains the token."""
    inner: BaseException | None = error  # an upload's error comes wrapped
    while inner is not None and getattr(inner, "response", None) is None:
        inner = inner.__cause__
    status = getattr(getattr(inner, "response", None), "status_code", None)
    if status == 401:
        return PermissionError(
            f"the Hub does not know this token: make one with write access at huggingface.co/settings/tokens "
            f"({repository} was not changed)"
        )
    if status == 403:
        owner = repository.split("/")[0]
        return PermissionError(
            f"this token may not write to {repository}: it needs write access, and your account access to {owner!r}"
        )
    if status in (409, 412):
        return ConnectionError(f"{repository} was changed by another upload meanwhile: run the same command again")
    reason = f"{type(inner or error).__name__}: {inner or error}".strip().splitlines()[0].rstrip(".: ")
    if status is not None and 400 <= status < 500:
        return ValueError(f"the Hub answered {status} for {repository}: check its name and your token ({reason})")
    return ConnectionError(
        f"{repository} could not be pushed: check the network or HF_HUB_OFFLINE and run the same command again "
        f"({reason})"
    )
