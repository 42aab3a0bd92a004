"""Whatever is mounted below a readable directory: no socket and no FIFO of the host in it is reached, what a mount
covers is not seen, and what is mounted is.

As root and as an ordinary user, who mounts in a user namespace of his own: there the mounts are locked, as the host's
are for him.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

SANDBOXED = ("run", "warm", "source", "box")
_SEEN = {
    "file": "top", "link": "beside", "source": "from elsewhere", "mounted file": "from elsewhere",
    "a/b/beside/file": "beside", "a/b/mounted/file": "mounted", "a/b/mounted/inner/file": "mounted",
    "a blank\r/mounted/file": "mounted", "over/file": "mounted",
}  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
_AS_USER = ("--user", "--map-current-user", "--keep-caps")


def _go(folder: Path, *words: str) -> tuple[dict[str, str], list[str]]:
    folder.chmod(0o755)
    own = ["unshare", *(() if os.geteuid() == 0 else _AS_USER), "--mount", "--propagation", "private"]
    command = [*own, sys.executable, "-m", "tests.escape.mounts_below", str(folder), *words]
    done = subprocess.run(command, capture_output=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    return told["seen"], told["reached"]


@pytest.mark.parametrize("way", SANDBOXED)
def test_only_what_can_be_seen_on_the_host_is_shown_and_nothing_in_it_answers(way: str, tmp_path: Path) -> None:
    seen, reached = _go(tmp_path, way)
    assert seen == _SEEN
    assert reached == []


@pytest.mark.parametrize("way", SANDBOXED)
def test_mounts_that_appear_when_the_sandbox_stands_open_nothing(way: str, tmp_path: Path) -> None:
    seen, reached = _go(tmp_path, way, "later")
    assert "SECRET" not in seen.values()
    assert reached == []


@pytest.mark.control
def test_without_a_sandbox_all_of_them_answer(tmp_path: Path) -> None:
    seen, reached = _go(tmp_path, "plain")
    assert seen.items() >= _SEEN.items()
    assert [seen[name] for name in ("a/secret", "second name", "vault/key", "again/key")] == ["SECRET"] * 4
    places = ("", "a/b/", "a/b/mounted/", "over/")
    assert reached == sorted(f"{tmp_path}/{place}{name}" for place in places for name in ("socket", "fifo"))


def test_too_many_names_beside_a_mount_are_refused_in_words_where_each_would_be_a_mount(tmp_path: Path) -> None:
    seen, reached = _go(tmp_path, "crowd")
    assert reached == []
    if os.geteuid() == 0:
        assert seen.items() >= _SEEN.items()
    else:
        assert "unmount it, show less of the directory, or run as root" in seen["error"]
