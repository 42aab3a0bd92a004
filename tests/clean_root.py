"""Clean roots of Debian for tests: what debootstrap makes, kept in a cache directory, and entered without a trace.

Owns: the roots, and one run in one of them. A run sees a copy of the root as its own /, in a mount namespace of its
own: by ``pivot_root``, since nobody makes a user namespace in a chroot, and no overlay, on which no other can be laid.
Root only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import debian, packages
from tests.testable import not_testable_here

CACHE = Path(os.environ.get("RINGFENCE_TEST_CACHE") or Path.home() / ".cache" / "ringfence-tests")
HERE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, "")
_INCLUDED = "python3,python3-venv,passwd"
_ENTER = r"""
set -e
mount --make-rprivate /
cp -a "$2" "$1/root"
mount --bind "$1/root" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount --rbind /dev dev
mount --rbind /sys sys
mkdir -p outside given
mount --rbind "$3" given
pivot_root . outside
umount -l /outside
shift 3
exec "$@"
"""


def root_of(suite: str) -> Path:
    """The directory of a root of this host's architecture, made once; «not testable here» where it can't be had."""
    if os.geteuid() != 0 or not HERE:
        not_testable_here("clean roots take root, on x86_64 or aarch64")
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = CACHE / f"root-{suite}-{HERE}"
    with open(CACHE / f"{folder.name}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _make(suite, folder)
    return folder


def python_of(root: Path) -> str:
    """The version of its Python: ``3.13``."""
    name = next(path.name for path in (root / "usr/bin").glob("python3.*") if path.name[8:].isdigit())
    return name.removeprefix("python")


def enter(
    root: Path, given: Path, command: Sequence[str], timeout_s: int = 600, *, alone: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command with this root as /, and a directory of the host as /given; its output comes back as one text.
    ``alone``: in a network of its own."""
    leave, script = (["--net"], f"ip link set lo up\n{_ENTER}") if alone else ([], _ENTER)
    with tempfile.TemporaryDirectory(prefix="ringfence-root-") as scratch:
        words = ["unshare", "--mount", *leave, "sh", "-c", script, "enter", scratch, str(root), str(given), *command]
        return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", check=False, timeout=timeout_s,
                              env=_environment())  # fmt: skip


def _environment() -> Mapping[str, str]:
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}


def _make(suite: str, folder: Path) -> None:
    """Whole or not at all."""
    part = folder.with_name(f"part-{folder.name}")
    shutil.rmtree(part, ignore_errors=True)
    program = packages.program("debootstrap")
    words = [program, "--variant=minbase", f"--arch={HERE}", f"--include={_INCLUDED}", suite, str(part)]
    done = subprocess.run([*words, *debian.mirror()], capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(part, ignore_errors=True)
        not_testable_here(f"debootstrap can't make {suite}: {(done.stderr or done.stdout)[-300:]}")
    shutil.rmtree(part / "var/cache/apt/archives", ignore_errors=True)
    part.rename(folder)
