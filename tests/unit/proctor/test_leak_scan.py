"""What gives an answer away, and what does not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ringfence.errors import UsageError
from ringfence.proctor.foreign import leak_scan
from ringfence.proctor.foreign.leak_scan import Leak, has_fix, hidden_by, marks_of, scan
from ringfence.proctor.foreign.patches import read_patch
from ringfence.proctor.foreign.repositories import TestedRepository

FIX = "        raise InvalidURL('no host in this address')"
PATCH = read_patch(f"--- a/pkg/area.py\n+++ b/pkg/area.py\n@@ -1,3 +1,5 @@\n def f(x):\n+    if not x:\n+{FIX}\n"
                   "     y = x\n     return y\n")  # fmt: skip
SHORT = read_patch("--- a/pkg/area.py\n+++ b/pkg/area.py\n"
                   "@@ -1,3 +1,3 @@\n def f(x):\n-    y = x\n+    y = -x\n     return y\n")  # fmt: skip
CUT = read_patch("--- a/pkg/area.py\n+++ b/pkg/area.py\n@@ -1,3 +1,2 @@\n def f(x):\n-    x += 1\n     return x\n")
REPO = TestedRepository(distributions=("some-pkg",), packages=("pkg",))
SITE = "lib/python3.11/site-packages"


@pytest.mark.parametrize(("patch", "text", "expected"), [
    (PATCH, f"x\n\ndef f(x):\n  if not x:\n{FIX.strip()}\n", True),
    (PATCH, f"{FIX}\n    if not x:\n", False),
    (PATCH, "def f(x):\n    y = x\n    return y\n", False),
    (SHORT, "def f(x):\n    y = -x\n    return y\n", True),
    (SHORT, "def g():\n    y = -x\n", False),
    (CUT, "def f(x):\n    return x\n", True),
    (CUT, "def f(x):\n    x += 1\n    return x\n", False),
], ids=["fix", "other order", "before", "short", "short elsewhere", "removed", "not removed"])  # fmt: skip
def test_a_file_has_the_fix(patch: list[leak_scan.FilePatch], text: str, expected: bool) -> None:
    assert has_fix(text.encode(), marks_of(patch)) is expected


LEAKS = {
    f"{SITE}/pkg/__init__.py": f"{SITE}/pkg",
    f"{SITE}/Some_Pkg-2.0-py3.9.egg/pkg/x.py": f"{SITE}/Some_Pkg-2.0-py3.9.egg",
    "editable/pkg/x.py": "editable/pkg",
    "dist-packages/pkg.py": "dist-packages/pkg.py",
    "wheels/some_pkg-2.0-py3-none-any.whl": "wheels/some_pkg-2.0-py3-none-any.whl",
    "src/some-pkg-2.0.tar.gz": "src/some-pkg-2.0.tar.gz",
    "cache/pip/http-v2/a/b": "cache/pip/http-v2",
    f"{SITE}/other/_vendor/pkg/area.py": f"{SITE}/other/_vendor/pkg/area.py",
    f"{SITE}/other/renamed.py": f"{SITE}/other/renamed.py",
    "share/copy/area.py": "share/copy/area.py",
}
HARMLESS = (f"{SITE}/some_pkg-2.0.dist-info/METADATA", f"{SITE}/Some_Pkg.egg-link", "src/pkg/x.py",
            f"{SITE}/pkg_other/__init__.py", f"{SITE}/some_pkg_extra-1.0.dist-info/METADATA", f"{SITE}/other/pkg/x.py",
            "wheels/some_pkg_extra-2.0-py3-none-any.whl", "share/doc/area.md", "share/pkg/data.txt")  # fmt: skip


@pytest.mark.parametrize("path", LEAKS)
def test_a_leak_is_found(path: str, tmp_path: Path) -> None:
    for name in (path, *HARMLESS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        has = name == path and name.endswith(("area.py", "renamed.py"))
        (tmp_path / name).write_text(f"if not x:\n{FIX}\n" if has else "x\n")
    found = scan(REPO, PATCH, (str(tmp_path), str(tmp_path / "lib")), sites=(str(tmp_path / "editable"),))
    assert [leak.path for leak in found] == [str(tmp_path / LEAKS[path])] and found[0].why
    (tmp_path / path).write_text("x\n")
    assert scan(REPO, PATCH, (str(tmp_path),), apart=(str(tmp_path / path.split("/")[0]),)) == ()


@pytest.mark.parametrize("path", [f"{SITE}/other/_vendor/area.py", f"{SITE}/pkg.py"])
def test_what_is_compiled_of_a_leak_is_one(path: str, tmp_path: Path) -> None:
    kept = (tmp_path / path).parent / "__pycache__"
    kept.mkdir(parents=True)
    (tmp_path / path).write_text(f"if not x:\n{FIX}\n")
    stem = (tmp_path / path).stem
    for name in (f"{stem}.cpython-312.pyc", f"{stem}.cpython-312.opt-1.pyc", f"{stem}s.cpython-312.pyc", "other.pyc"):
        (kept / name).write_bytes(b"compiled")
    assert [leak.path for leak in scan(REPO, PATCH, (str(tmp_path),))] == sorted(
        map(str, (tmp_path / path, kept / f"{stem}.cpython-312.opt-1.pyc", kept / f"{stem}.cpython-312.pyc")))


def test_links_fifos_and_large_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "area.py").write_text(f"if not x:\n{FIX}\n")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "area.py").symlink_to(tmp_path / "secret" / "area.py")
    (root / "deep").mkdir()
    os.mkfifo(root / "deep" / "area.py")
    with (root / "deep" / "more").open("wb") as file:
        file.truncate(leak_scan.MAX_FILE_BYTES + 1)
    assert scan(REPO, PATCH, (str(root),)) == ()


@pytest.mark.parametrize("path", ["/testbed/x", os.path.dirname(os.path.realpath(sys.executable))])
def test_what_can_t_be_hidden_is_refused_with_its_name(path: str) -> None:
    with pytest.raises(UsageError, match=path):
        hidden_by([Leak(path=path, why="w")], "/testbed")
    assert hidden_by([Leak(path="/usr/lib/x", why="w")], "/testbed") == ("/usr/lib/x",)


def test_too_many_to_be_hidden_are_refused() -> None:
    with pytest.raises(UsageError, match="in 101 places"):
        hidden_by([Leak(path=f"/usr/x{number}", why="w") for number in range(101)], "/testbed")


def test_what_is_looked_through_is_what_an_agent_sees(tmp_path: Path) -> None:
    roots = leak_scan.host_roots("/usr/bin/python3")
    assert "/usr" in roots and sys.prefix in roots
    assert any(path.endswith(("site-packages", "dist-packages")) for path in leak_scan.host_sites())
    (tmp_path / "pyvenv.cfg").write_text("")
    assert str(tmp_path) in leak_scan.host_roots(str(tmp_path / "bin" / "python"))
