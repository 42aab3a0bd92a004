"""Where a container around us closes what a sandbox needs, strict refuses and names cause and fix; without, it works.

The container is a mount namespace of the test's own. With a real engine: tests/release/test_image.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.testable import not_testable_here

if sys.platform != "linux":
    pytest.skip("mounts of Linux", allow_module_level=True)

OVERLAY = """\
mount -t tmpfs -o mode=755 none "$1" && cd "$1" && mkdir lower upper work merged plain temporary
mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none merged
"""
# What is closed; the directory that is worked in; TMPDIR; words of the refusal.
CLOSED = {
    "an overlay to work on": ("", "merged", "temporary", ("merged", "volume or a tmpfs", "ordinary user")),
    "an overlay for layers": ("", "plain", "merged", ("is on an overlay", "--tmpfs", "TMPDIR")),
    "a covered /proc": ("mount --bind /dev/null /proc/timer_list", "plain", "temporary",
                        ("covered", "systempaths=unconfined", "procMount")),
}  # fmt: skip
WITHOUT = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all")


def _run(folder: Path, first: str, work: str, temporary: str, *outer: str) -> subprocess.CompletedProcess[str]:
    if os.geteuid() != 0:
        not_testable_here("to mount here takes root")
    script = f'set -e\n{OVERLAY}{first}\ncd {work}\nexport TMPDIR="$1/{temporary}"\nshift\nexec "$@"'
    words = [*outer, sys.executable, "-m", "ringfence", "run", "--strict", "--", "id", "-u"]
    return subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", str(folder), *words], capture_output=True,
                          text=True, check=False)  # fmt: skip


@pytest.mark.parametrize("name", CLOSED)
def test_what_is_closed_is_refused_with_cause_and_fix(name: str, tmp_path: Path) -> None:
    first, work, temporary, words = CLOSED[name]
    done = _run(tmp_path, first, work, temporary)
    assert done.returncode and not done.stdout and all(word in done.stderr for word in words), done


def test_without_any_of_it_the_same_works(tmp_path: Path) -> None:
    done = _run(tmp_path, "", "plain", "temporary")
    assert (done.returncode, done.stdout) == (0, "1000\n"), done


def test_root_without_its_capabilities_is_told_to_be_an_ordinary_user(tmp_path: Path) -> None:
    done = _run(tmp_path, "", "plain", "temporary", *WITHOUT)
    assert done.returncode and "SYS_ADMIN" in done.stderr and "--user" in done.stderr, done
