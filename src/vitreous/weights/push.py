"""`push`: a model to the Hugging Face Hub, as three files that `load("owner/name")` reads back.

`model.safetensors`, `config.json` and `README.md`, written afresh from the loaded model: nothing else of a folder goes
out, and no path of this machine. They are read back and compared before anything is sent.
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

TOKEN = "HF_TOKEN"  # noqa: S105  # where it stands, not what it is


@dataclass(frozen=True)
class Pushed:
    """Where a model went."""

    repository: str
    url: str
    commit: str
    files: tuple[str, ...]


def check_repository(name: str) -> str:
    """`owner/name`, or a `ValueError` that says what is wrong with it.

    >>> check_repository("ann/_digits")
    'ann/_digits'
    """
    part = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
    if not re.fullmatch(f"{part}/{part}", name) or ".." in name or "--" in name or len(name) > 96:
        raise ValueError(
            f"{name!r} cannot be a repository of the Hub: write OWNER/NAME, your user name or organisation first "
            "(letters, digits, '-', '_' and '.', 96 at the most)"
        )
    return name


def find_token(variable: str = TOKEN) -> str:
    """The token in an environment variable, or for the usual one what `hf auth login` has kept."""
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
) -> Pushed:
    """Put `model` into `repository`, which is made where there is none; returns where it is now.

    A repository that is there gets one more commit. `private` refuses one that is public already.
    """
    repository, token = check_repository(repository), token or find_token()
    if model.card is None:
        raise ValueError("a model is pushed with its preprocessing: set model.card")
    if bad := model.card.report.nonfinite:
        raise ValueError(f"{next(iter(bad))} holds NaN or infinite values: push an earlier checkpoint")
    with tempfile.TemporaryDirectory(prefix="vitreous-push-") as name:
        folder = Path(name) / repository.split("/")[1]
        files = write_for_strangers(model, folder, repository, licence)
        return _send(files, repository, token, private)


def write_for_strangers(model: Model, folder: Path, repository: str, licence: str | None = None) -> list[Path]:
    """The three files, without anything of this machine; loaded again and compared before they count."""
    card = model.card
    training = public(card.training) if card.training is not None else None
    source = str(public(card.name))
    kept = replace(card, name=source, files=(), training=training if isinstance(training, dict) else None)
    try:
        model.card = kept
        files = [*save(model, folder), write_model_card(model, folder, repository, licence)]
    finally:
        model.card = card
    again = load(folder).state_dict()
    for key, value in model.state_dict().items():
        if not torch.equal(again[key], value.detach().cpu().to(again[key].dtype)):
            raise RuntimeError(f"{key} was read back otherwise than it was written: nothing was sent")
    return files


def _send(files: list[Path], repository: str, token: str, private: bool) -> Pushed:
    from huggingface_hub import CommitOperationAdd, HfApi

    hub = HfApi(token=token, library_name="vitreous")
    try:
        hub.create_repo(repository, private=private or None, exist_ok=True)
        if private and not hub.model_info(repository, timeout=10).private:
            message = (
                f"{repository} is there already and is public: make it private on its page, or choose another name"
            )
            raise PermissionError(message)
        operations = [CommitOperationAdd(path.name, path) for path in files]
        with nullcontext() if sys.stderr.isatty() else quiet_hub():
            done = hub.create_commit(repository, operations, commit_message="Model and card, by vitreous push")
    except PermissionError:
        raise
    except Exception as error:  # the client lets its HTTP library's errors through, and that library has changed
        raise _explain(error, repository) from error
    return Pushed(repository, f"{hub.endpoint}/{repository}", str(done.oid), tuple(path.name for path in files))


def _explain(error: Exception, repository: str) -> Exception:
    """What the Hub's refusal means for the one who pushes, in one line; without the token, which none of them holds."""
    inner: BaseException | None = error  # an upload's refusal comes wrapped
    while inner is not None and getattr(inner, "response", None) is None:
        inner = inner.__cause__
    status = getattr(getattr(inner, "response", None), "status_code", None)
    owner = repository.split("/")[0]
    if status == 401:
        return PermissionError(
            f"the Hub does not know this token: make one with write access at huggingface.co/settings/tokens "
            f"({repository} was not changed)"
        )
    if status == 403:
        return PermissionError(
            f"this token may not write to {repository}: it needs write access, and you a right to push to {owner!r}"
        )
    if status in (409, 412):
        return ConnectionError(f"{repository} was changed by somebody else meanwhile: run the same command again")
    reason = f"{type(inner or error).__name__}: {inner or error}".strip().splitlines()[0].rstrip(".: ")
    if status is not None and 400 <= status < 500:
        return ValueError(f"the Hub refused {repository} with {status}: check its name and your token ({reason})")
    message = f"{repository} could not be pushed: check the network or HF_HUB_OFFLINE and run the same command again"
    return ConnectionError(f"{message} ({reason})")
