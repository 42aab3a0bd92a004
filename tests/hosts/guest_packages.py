"""Debian's packages for guests: of any architecture, and without a word of it to this host's dpkg.

Owns what apt is asked: programs that the host itself needs, and the packages of a guest with all that they depend on.
apt's sources are those of this machine; its lists and its archives are kept in the cache, one set per architecture.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess

CACHE = os.environ.get("RINGFENCE_TEST_CACHE") or os.path.expanduser("~/.cache/ringfence-tests")
MERGED = ("bin", "sbin", "lib", "lib64")
"""Directories that are links into /usr on every installed Debian; packages before Debian 13 still name them."""


def program(name: str, package: str) -> str:
    """Where a program of this host is, installed if it is missing."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if shutil.which(name, path=path) is None:
        _apt(["update"])
        _apt(["install", "-y", "--no-install-recommends", package])
    found = shutil.which(name, path=path)
    assert found, f"no {name}; fix: apt-get install {package}"
    return found


def unpack(architecture: str, packages: tuple[str, ...], target: str) -> None:
    """These packages and all that they depend on, as files below ``target``; no script of theirs is run."""
    for name in MERGED:
        os.makedirs(f"{target}/usr/{name}")
        os.symlink(f"usr/{name}", f"{target}/{name}")
    for deb in _download(architecture, packages):
        files = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "--keep-directory-symlink", "-C", target], input=files, check=True)


def _download(architecture: str, packages: tuple[str, ...]) -> list[str]:
    """The files of these packages, with an apt that believes itself on an empty machine of that architecture."""
    state = os.path.join(CACHE, f"apt-{architecture}")
    archives = f"{state}/cache/archives"
    for directory in (f"{state}/lists/partial", f"{archives}/partial"):
        os.makedirs(directory, exist_ok=True)
    with open(f"{state}/status", "w"):
        pass
    for deb in glob.glob(f"{archives}/*.deb"):
        os.unlink(deb)
    options = {"Dir::State": state, "Dir::State::status": f"{state}/status", "Dir::Cache": f"{state}/cache",
               "APT::Architecture": architecture, "APT::Architectures": architecture}  # fmt: skip
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    _apt([*words, "update"])
    _apt([*words, "install", "-y", "--no-install-recommends", "--download-only", *packages])
    found = sorted(glob.glob(f"{archives}/*.deb"))
    assert found, f"apt-get downloaded nothing for {architecture}: {packages}"
    return found


def _apt(words: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    argv = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{' '.join(argv)} failed: {done.stderr[-1000:]}"
