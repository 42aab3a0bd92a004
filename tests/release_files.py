"""The release of this tree for tests: built once for each content of it, into a cache directory outside."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

from release.dist import ROOT, NotBuilt, build

from tests.testable import not_testable_here

_KEPT_S = 24 * 3600
EPOCH = 1_700_000_000
CACHE = Path(os.environ.get("RINGFENCE_TEST_CACHE") or Path.home() / ".cache" / "ringfence-tests")


def release_folder() -> Path:
    """The directory with sdist and wheels; «not testable here» where the tools can't be had."""
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = CACHE / f"dist-{_content()}"
    with open(CACHE / "dist.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for old in CACHE.glob("dist-*/"):
                if old.stat().st_mtime < time.time() - _KEPT_S:  # else another run may still use it
                    shutil.rmtree(old, ignore_errors=True)
            part = CACHE / f"part-{folder.name}"
            try:
                build(part, epoch=EPOCH)
            except NotBuilt as error:
                if "pip install" in str(error):
                    not_testable_here(f"no tools to build with: {error}")
                raise
            part.rename(folder)
    return folder


def _content() -> str:
    """A digest of all that a release is built of."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, check=False).stdout.split(b"\0")
    if len(listed) < 2:
        not_testable_here("a release is built from a git repository, and this is none")
    found = hashlib.sha256()
    for name in filter(None, listed):
        path = ROOT / os.fsdecode(name)
        found.update(name + b"\0" + (path.read_bytes() if path.exists() else b"") + b"\0")
    return found.hexdigest()[:16]
