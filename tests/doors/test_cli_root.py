"""``ringfence run --root``: the directory is the root, and what is changed in it is kept aside, shown and committed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.image_folder import make_root

pytestmark = [pytest.mark.system]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return make_root(tmp_path / "rootfs", ("sh", "cat", "ls"))


def _ringfence(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ringfence", *words], capture_output=True, text=True, timeout=120)


def test_what_is_changed_in_a_root_is_kept_shown_gone_on_with_and_committed(root: Path) -> None:
    done = _ringfence("run", "--root", "rootfs", "--json", "--", "sh", "-c", "pwd; cat /etc/made-by; echo 1 > /app/new")
    told = json.loads(done.stdout)
    assert told["stdout"] == "/\nan image\n" and [change["path"] for change in told["changes"]] == ["app/new"], done
    kept = os.path.basename(told["transaction"])
    assert "+1" in _ringfence("diff", kept).stdout
    seen = _ringfence("run", "--root", "rootfs", "--transaction", kept, "--", "cat", "/app/new")
    assert seen.stdout == "1\n" and not (root / "app" / "new").exists()
    assert _ringfence("commit", kept).returncode == 0
    assert (root / "app" / "new").read_text() == "1\n"


@pytest.mark.parametrize(("words", "said"), [
    (("--isolation", "process"), "choose strict"), (("--here-anyway",), "nothing of the current directory"),
    (("--root", "nowhere"), "no such file"),
])  # fmt: skip
def test_what_does_not_go_with_a_root_is_said(root: Path, words: tuple[str, ...], said: str) -> None:
    done = _ringfence("run", "--root", str(root), *words, "--", "ls")
    assert done.returncode == 2 and said in done.stderr, done
