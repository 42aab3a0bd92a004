"""What this host has that Dockerfiles ask for: its distribution, packages, Python. Only reads; asks everything once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from typing import Protocol

_RELEASE = "/etc/os-release"
_ANSWER_S = 60
_DISTRIBUTIONS = """
import importlib.metadata, sys
print("%d.%d" % sys.version_info[:2])
for each in importlib.metadata.distributions():
    print(each.metadata["Name"], each.version)
"""


class HostFacts(Protocol):
    """What ``rootfs`` asks of a host; tests have one of their own."""

    def family(self) -> frozenset[str]:
        """Its distribution and those that it is like, such as debian."""

    def package(self, name: str) -> str:
        """The version of an installed package; empty: it is not there."""

    def python(self) -> str:
        """``3.11``, of what ``python3`` means in a sandbox; empty: there is none."""

    def distribution(self, name: str) -> str:
        """The version of an installed distribution of that Python; empty: it is not there."""


class ThisHost:
    """The host that we run on."""

    def family(self) -> frozenset[str]:
        return _family()

    def package(self, name: str) -> str:
        return _packages().get(name, "")

    def python(self) -> str:
        return _pythons()[0]

    def distribution(self, name: str) -> str:
        return _pythons()[1].get(plain_name(name), "")


def plain_name(name: str) -> str:
    """The name of a distribution in its one spelling.

    >>> plain_name("Foo_Bar.baz")
    'foo-bar-baz'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def _family() -> frozenset[str]:
    try:
        with open(_RELEASE, encoding="utf-8") as file:
            rows = (line.strip().partition("=") for line in file)
            words = [value.strip("\"'") for name, _, value in rows if name in ("ID", "ID_LIKE")]
    except OSError:
        return frozenset()
    return frozenset(word for value in words for word in value.split())


@cache
def _packages() -> dict[str, str]:
    """Those that are installed, and what they provide, each with its version."""
    query = shutil.which("dpkg-query")
    form = "${db:Status-Status}\t${Package}\t${Version}\t${Provides}\n"
    found: dict[str, str] = {}
    for line in _said([query, "--show", f"--showformat={form}"] if query else []).splitlines():
        status, name, version, provided = line.split("\t", 3)
        if status == "installed":
            virtual = (each.split()[0].partition(":")[0] for each in provided.split(",") if each.strip())
            found |= {each: "virtual" for each in virtual if each not in found}
            found[name] = version
    return found


@cache
def _pythons() -> tuple[str, dict[str, str]]:
    """Facts about the Python that a sandbox finds: the system's, since it has nothing of the caller's environment."""
    program = next((path for path in ("/usr/local/bin/python3", "/usr/bin/python3") if os.access(path, os.X_OK)), "")
    first, *rows = _said([program, "-I", "-c", _DISTRIBUTIONS] if program else []).splitlines() or [""]
    pairs = (row.rpartition(" ") for row in rows)
    return first, {plain_name(name): version for name, _, version in pairs if name}


def _said(command: list[str]) -> str:
    """What a command prints; nothing where it can't be run: then the host has nothing of the kind."""
    if not command:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False,
                              stdin=subprocess.DEVNULL, env={"PATH": os.defpath, "LC_ALL": "C"})  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
