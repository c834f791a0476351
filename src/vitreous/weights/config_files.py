"""Read the config files (JSON) that lie next to a checkpoint's weights, and raise for fields that are not known."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vitreous.weights.safety import CheckpointError

MAX_CONFIG_BYTES = 64 * 2**20  # the limit for a config file: one with 21,843 class names has about 2 MB


def read_json(path: Path | None) -> dict[str, Any]:
    """Read a config file next to the weights as a dict; return an empty one if `path` is None."""
    if path is None:
        return {}
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise CheckpointError(f"{path}: expected a config file of at most {MAX_CONFIG_BYTES >> 20} MiB: get it again")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}): get it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got a {type(value).__name__}: get it again")
    return value


def check_fields(section: Any, known: Iterable[str], source: str) -> None:
    """Check the fields in a section of a config file; raise for one that is neither read nor known to be harmless."""
    if not isinstance(section, Mapping):
        raise CheckpointError(f"{source} should be an object of fields, got {section!r:.40}: get it again")
    if unknown := [str(name) for name in section if name not in set(known)]:
        raise CheckpointError(
            f"{source} has the field {unknown[0][:60]}={section[unknown[0]]!r:.40}, which is not known to be harmless: "
            f"if it is, pass --assume ignored={unknown[0][:60]}"
        )
