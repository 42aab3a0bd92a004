"""The one list of Debian's packages that tests need, and the one place that installs them: once, before the first test.

Root installs; for anybody else a test whose program is missing is «not testable here». What can't be had is an error
for root, with the words of apt: a part of the suite that silently did not run would look green.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests import shared_host
from tests.testable import not_testable_here

PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
TRIES, PATIENCE_S, LOCK_S = 3, 900, 300


@dataclass(frozen=True, kw_only=True)
class Need:
    """A program of a package, and which tests call it."""

    program: str
    package: str
    purpose: str
    gate: bool = False
    """Whether `make test` needs it; the rest is installed for `make test-all` only."""


def _need(program: str, package: str, purpose: str, *, gate: bool = False) -> Need:
    return Need(program=program, package=package, purpose=purpose, gate=gate)


NEEDS = (
    _need("setpriv", "util-linux", "the ordinary user's pass", gate=True),
    _need("cc", "gcc", "parts in C, probes", gate=True),
    _need("git", "git", "tasks with a history", gate=True),
    _need("curl", "curl", "egress", gate=True),
    _need("strace", "strace", "the order of system calls", gate=True),
    _need("chromium", "chromium", "pages", gate=True),
    _need("dockerd", "docker.io", "the level container", gate=True),
    _need("node", "nodejs", "programs, statuses, egress", gate=True),
    _need("java", "default-jdk-headless", "programs, statuses"),
    _need("javac", "default-jdk-headless", "programs, statuses"),
    _need("go", "golang-go", "programs"),
    _need("ruby", "ruby", "programs"),
    _need("psql", "postgresql-client", "egress"),
    _need("jq", "jq", "examples"),
    _need("npm", "npm", "examples"),
    _need("podman", "podman", "containers without Docker"),
    _need("runc", "runc", "containers without Docker"),
    _need("newuidmap", "uidmap", "containers without Docker"),
    _need("runsc", "runsc", "containers in gVisor"),
    _need("docker-registry", "docker-registry", "images by their digest"),
    _need("debootstrap", "debootstrap", "wheels in clean roots"),
    _need("apparmor_parser", "apparmor", "the profile of containers"),
    _need("zsh", "zsh", "completion"),
    _need("fish", "fish", "completion"),
    _need("nginx", "nginx", "examples with a proxy"),
    _need("bwrap", "bubblewrap", "benches"),
)


def program(name: str) -> str:
    """The path of a program; «not testable here» where it is missing and the caller may not install it."""
    if found := shutil.which(name, path=PATH):
        return found
    need = next((each for each in NEEDS if each.program == name), None)
    assert need, f"{name} is missing, and tests/packages.py has no package for it"
    if os.geteuid() != 0:
        not_testable_here(f"{name} is missing; as root: apt-get install {need.package}")
    install([need])
    found = shutil.which(name, path=PATH)
    assert found, f"{need.package} is installed and {name} is not to be found"
    return found


def of_the_gate() -> list[Need]:
    return [each for each in NEEDS if each.gate]


def install(needs: Iterable[Need] = NEEDS) -> None:
    """Whatever is missing of these, in one call of apt's, which waits for others."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    with shared_host.alone("apt"):
        missing = sorted({each.package for each in needs if shutil.which(each.program, path=PATH) is None})
        if missing:
            _install(missing)


def _install(names: list[str]) -> None:
    print(f"installing {', '.join(names)}", flush=True)
    for attempt in range(1, TRIES + 1):
        problem = _apt("update") or _apt("install", "-y", "--no-install-recommends", *names)
        if not problem:
            return
        print(f"attempt {attempt} of {TRIES}: {problem}", file=sys.stderr, flush=True)
        time.sleep(5 * (attempt - 1))
    raise SystemExit(f"apt-get can't install {', '.join(names)}: {problem}")


def _apt(*words: str) -> str:
    """What apt complained of; empty when it did what it was told."""
    command = ["apt-get", "-qq", "-o", "Dpkg::Use-Pty=0", "-o", f"DPkg::Lock::Timeout={LOCK_S}", *words]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False, timeout=PATIENCE_S)  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)} took longer than {PATIENCE_S} s"
    return done.stderr.strip()[-1000:] or f"exit code {done.returncode}" if done.returncode else ""


def test_package(python: Path) -> None:
    """CPython's own tests, which Debian keeps apart."""
    with shared_host.alone("apt"):
        if subprocess.run([str(python), "-c", "import test.test_os"], capture_output=True, check=False).returncode:
            _install([f"lib{python.resolve().name}-testsuite"])
