"""Names what layers hold, so that a commit can be held to what was looked at before. Reads and writes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from ringfence.checkpoint.entry import Manifest, to_rows
from ringfence.errors import ConflictError


def seal(layers: Iterable[Manifest]) -> str:
    """The same as long as no path, mode, time, link or content changes."""
    whole = hashlib.sha256()
    for layer in layers:
        whole.update(json.dumps(to_rows(layer), sort_keys=True).encode() + b"\n")
    return whole.hexdigest()


def hold_to(sealed: str, layers: Iterable[Manifest]) -> None:
    """Refuse what does not match the seal. Empty: there is no seal."""
    if sealed and seal(layers) != sealed:
        raise ConflictError("what is to be committed has changed since it was looked at", hint="look at it again")
