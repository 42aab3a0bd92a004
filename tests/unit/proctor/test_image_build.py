"""What of an image's own build comes into the repository that is made anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.errors import UsageError
from ringfence.proctor.foreign import image_build
from ringfence.proctor.foreign.image_build import lay_build
from ringfence.proctor.foreign.patches import read_patch

FIX = "    raise InvalidURL('no host in this address')"
PATCH = read_patch(f"--- a/pkg/area.py\n+++ b/pkg/area.py\n@@ -1 +1,2 @@\n def f(x):\n+{FIX}\n")


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_what_was_built_is_there_and_nothing_else(tmp_path: Path) -> None:
    built, staged, outside = tmp_path / "built", tmp_path / "staged", tmp_path / "outside"
    _write(built, {
        "pkg/area.py": "of the image\n", "pkg/_fast.so": "\x7fELF", "pkg.egg-info/PKG-INFO": "Name: pkg\n",
        "pkg/copy.py": f"def f(x):\n{FIX}\n", ".git/HEAD": "ref\n", "pkg/__pycache__/a.pyc": "x", "linked/x.so": "x",
        "tool": "#!/bin/sh\n",
    })  # fmt: skip
    (built / "tool").chmod(0o755)
    (built / "pkg" / "link.so").symlink_to("/etc/passwd")
    os.mkfifo(built / "pkg" / "fifo.so")
    _write(staged, {"pkg/area.py": "of the base\n"})
    outside.mkdir()
    (staged / "linked").symlink_to(outside)
    done = lay_build(str(built), str(staged), PATCH)
    assert sorted(done) == ["pkg.egg-info/PKG-INFO", "pkg/_fast.so", "tool"]
    assert (staged / "pkg/area.py").read_text() == "of the base\n" and not list(outside.iterdir())
    assert (staged / "tool").stat().st_mode & 0o777 == 0o755 and not (staged / ".git").exists()


def test_more_than_a_build_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "built", {"a.so": "12345"})
    (tmp_path / "staged").mkdir()
    monkeypatch.setattr(image_build, "MAX_BYTES", 4)
    with pytest.raises(UsageError, match="more than 4 bytes"):
        lay_build(str(tmp_path / "built"), str(tmp_path / "staged"), [])
