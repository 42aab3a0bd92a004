"""CRIU for the tests: Debian's, installed when it is missing or too old. What is missing is an error, never a skip.

Debian 12 has one that does not work on today's kernels, and a later one needs a later C library. So it is unpacked,
with the libraries that it needs, into a directory of its own below /usr/local, where sandboxes see it too.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import tempfile

PROGRAM, HOME = "/usr/local/sbin/criu", "/usr/local/lib/criu"
SUITE = "sid"
NEEDED = (4, 2)
"""Sockets can't be kept by earlier ones on Linux 6.16 and later."""


def install() -> None:
    """Once, however many ask."""
    import fcntl

    with open("/tmp/.ringfence-test-criu.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _version() < NEEDED:
            _unpack()
    assert _version() >= NEEDED, f"criu {NEEDED} is missing; fix: apt-get install criu from a later Debian"


def _version() -> tuple[int, ...]:
    found = shutil.which("criu", path="/usr/local/sbin:/usr/sbin")
    if found is None:
        return ()
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout.split()
    return tuple(int(part) for part in said[1].split(".")) if len(said) > 1 else ()


def _unpack() -> None:
    with tempfile.TemporaryDirectory(prefix="criu-") as folder:
        apt = ["apt-get", "-qq", *_options(folder)]
        _run([*apt, "update"])
        _run([*apt, "--yes", "--download-only", "--no-install-recommends", "install", "criu"])
        for package in glob.glob(f"{folder}/cache/archives/*.deb"):
            _run(["dpkg-deb", "-x", package, f"{folder}/root"])
        _place(f"{folder}/root")


def _options(folder: str) -> list[str]:
    """The archive that this machine uses, with another suite; nothing that is installed here counts."""
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    archives = [line for line in _run(targets).splitlines() if "security" not in line]
    assert archives, "apt knows no archive; fix: add Debian's to /etc/apt/sources.list"
    with open(f"{folder}/archive.sources", "w", encoding="utf-8") as file:
        file.write(f"Types: deb\nURIs: {archives[0]}\nSuites: {SUITE}\nComponents: main\n")
    for name in ("lists/partial", "cache/archives/partial"):
        os.makedirs(f"{folder}/{name}")
    settings = {"Dir::Etc::sourcelist": f"{folder}/archive.sources", "Dir::Etc::sourceparts": "/nonexistent",
                "Dir::State::lists": f"{folder}/lists", "Dir::Cache": f"{folder}/cache",
                "Dir::Cache::pkgcache": "packages.bin", "Dir::State::status": "/dev/null",
                "APT::Sandbox::User": "root", "Acquire::Languages": "none"}  # fmt: skip
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _place(root: str) -> None:
    shutil.rmtree(HOME, ignore_errors=True)
    os.makedirs(HOME)
    (loader,) = {os.path.realpath(path) for path in glob.glob(f"{root}/usr/lib/*/ld-linux-*.so.*")}
    shutil.copy(loader, f"{HOME}/loader")
    for path in glob.glob(f"{root}/usr/lib/*-linux-gnu/*.so*"):
        shutil.copy(path, f"{HOME}/{os.path.basename(path)}")
    shutil.copy(f"{root}/usr/sbin/criu", f"{HOME}/criu")
    with open(f"{PROGRAM}.new", "w", encoding="ascii") as file:
        file.write(f'#!/bin/sh\nexec {HOME}/loader --library-path {HOME} {HOME}/criu "$@"\n')
    os.chmod(f"{PROGRAM}.new", 0o755)
    os.rename(f"{PROGRAM}.new", PROGRAM)


def _run(argv: list[str]) -> str:
    quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=quietly)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
    return done.stdout
