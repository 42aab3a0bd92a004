"""The flags of docs/how-to/run-in-a-container.md, and the pods of deploy/ that run sandboxes, as they stand there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "how-to" / "run-in-a-container.md").read_text()
_ALONE = ("--read-only",)
"""Flags without a value."""


def documented_flags() -> list[tuple[str, ...]]:
    """Each with its value, but for ``--rm`` and all from the image's name on."""
    found = re.search(r"^docker run --rm \\\n(.*?)\n  ringfence ", PAGE, re.DOTALL | re.MULTILINE)
    assert found
    words = iter(found[1].replace("\\\n", " ").rstrip("\\").split())
    return [(word,) if word in _ALONE else (word, next(words)) for word in words]


def sandbox_pods(path: Path) -> list[dict[str, Any]]:
    """Those of a manifest whose /proc is not covered."""
    return [pod for pod in pods(yaml.safe_load_all(path.read_text()))
            if any("procMount" in each["securityContext"] for each in pod["containers"])]  # fmt: skip


def pods(found: Any) -> Iterator[dict[str, Any]]:
    """Every pod in a manifest, wherever it stands."""
    if isinstance(found, dict):
        if "containers" in found:
            yield found
        found = found.values()
    elif isinstance(found, str | int | float | None):
        return
    for each in found:
        yield from pods(each)
