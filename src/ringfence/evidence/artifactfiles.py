"""Step 21 of docs/reference/formats.md: the artifacts on disk are the ones in the bundle.

Owns: finding them below a directory without following a link anywhere on the way.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from ringfence.errors import EvidenceError
from ringfence.evidence import chain
from ringfence.evidence.case import Case
from ringfence.evidence.digest import OPEN_FLAGS, hash_open_file
from ringfence.evidence.schema import EVENTS_NAME, PATH_NAME


def check_files(case: Case) -> None:
    if case.artifacts_folder is None:
        return
    for artifact in case.artifacts:
        try:
            _check_file(case, artifact)
        except OSError as error:
            raise EvidenceError(f"{artifact['name']!a}: {error.strerror}") from error


def _check_file(case: Case, artifact: dict[str, Any]) -> None:
    name = artifact["name"]
    if not PATH_NAME.accepts(name):
        raise EvidenceError(f"{name!a} is not a name to look for on a disk")
    descriptor = _open_below(case.artifacts_folder or "", name.split("/"))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        # Before it is read: a file of holes may take for ever.
        if stat.S_ISREG(status.st_mode) and status.st_size != artifact["bytes"]:
            raise EvidenceError(f"{name!a} on disk is not the one in the bundle")
        found = hash_open_file(descriptor, name)
        if (found.sha256, found.size_bytes) != (artifact["sha256"], artifact["bytes"]):
            raise EvidenceError(f"{name!a} on disk is not the one in the bundle")
        if name == EVENTS_NAME and case.run:
            file.seek(0)
            _check_events(chain.check_stream(file), case.run["recorder"])


def _check_events(found: chain.ChainSummary, recorder: dict[str, Any]) -> None:
    if (found.head, found.count) != (recorder["events_head"], recorder["events_count"]):
        raise EvidenceError(f"{EVENTS_NAME} has another head or count than the recorder stated")


def _open_below(folder: str, parts: list[str]) -> int:
    if os.open not in os.supports_dir_fd:
        return _open_by_path(folder, parts)
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = below
        return os.open(parts[-1], OPEN_FLAGS, dir_fd=here)
    finally:
        os.close(here)


def _open_by_path(folder: str, parts: list[str]) -> int:
    """Where open cannot start at a directory (Windows): look at each part first."""
    path = folder
    for part in parts:
        path = os.path.join(path, part)
        status = os.lstat(path)
        # 0x400 is FILE_ATTRIBUTE_REPARSE_POINT: links and junctions alike.
        if stat.S_ISLNK(status.st_mode) or getattr(status, "st_file_attributes", 0) & 0x400:
            raise EvidenceError(f"{part!a} is a link")
    return os.open(path, OPEN_FLAGS)
