"""Runtimes that reserve much and use little, at the default limits: they start, and their hogs are told as such."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ringfence import Job, Outcome, SandboxPolicy, run
from ringfence.backends import groups
from tests import packages

SOURCES = {
    "hello.go": 'package main\nimport "fmt"\nfunc main() { fmt.Println("hello") }\n',
    "Hello.java": 'public class Hello { public static void main(String[] a) { System.out.println("hello"); } }\n',
    "hog.go": 'package main\nvar kept [][]byte\nfunc main() {\n\tfor {\n\t\tblock := make([]byte, 1<<20)\n'
              '\t\tfor place := range block { block[place] = 1 }\n\t\tkept = append(kept, block)\n\t}\n}\n',
    "Hog.java": 'public class Hog { public static void main(String[] a) {\n'
                ' var kept = new java.util.ArrayList<long[]>();\n while (true) kept.add(new long[100000]); } }\n',
}  # fmt: skip
COMMANDS = {
    "node": (("node", "-e", "console.log('hello')"), ()),
    "java": (("java", "-cp", ".", "Hello"), ("Hello.class",)),
    "ruby": (("ruby", "-e", "puts 'hello'"), ()),
    "go": (("sh", "-c", "cp hello h && chmod 700 h && exec ./h"), ("hello",)),
}
HOGS = {
    "node": (("node", "-e", "const kept = []; for (;;) kept.push(new Array(100000).fill(1.5))"), ()),
    "java": (("java", "-Xmx4g", "-cp", ".", "Hog"), ("Hog.class",)),
    "ruby": (("ruby", "-e", "kept = []; loop { kept << 'x' * 1_000_000 }"), ()),
    "go": (("sh", "-c", "cp hog h && chmod 700 h && exec ./h"), ("hog",)),
}
LEVELS = ("process", "strict")


def _find(name: str) -> str:
    return packages.program(name)


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> dict[str, bytes]:
    """Programs by file name, compiled outside: what is tried is the runtime, not the compiler."""
    folder = tmp_path_factory.mktemp("built")
    environment = dict(os.environ, GOCACHE=str(folder / "cache"), GOPATH=str(folder), GO111MODULE="off")
    for name, source in SOURCES.items():
        (folder / name).write_text(source)
        compile_it = ["go", "build", name] if name.endswith(".go") else ["javac", "-d", ".", name]
        subprocess.run([_find(compile_it[0]), *compile_it[1:]], check=True, cwd=folder, env=environment)
    names = [name.replace(".java", ".class").replace(".go", "") for name in SOURCES]
    return {name: (folder / name).read_bytes() for name in names}


def _started(argv: tuple[str, ...], files: dict[str, bytes], level: str) -> Outcome:
    """At the default limits but for time: the machine may be busy."""
    policy = SandboxPolicy(isolation=level, wall_time_s=120, cpu_time_s=100)
    # A link into /etc/alternatives is not what is tried here.
    return run(Job(argv=(str(Path(_find(argv[0])).resolve()), *argv[1:]), files=files), policy)


@pytest.mark.privileges
@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_runtime_starts_at_the_default_limits(name: str, level: str, built) -> None:
    argv, files = COMMANDS[name]
    outcome = _started(argv, {file: built[file] for file in files}, level)
    assert (outcome.status, outcome.stdout) == ("OK", b"hello\n"), (outcome.reason, outcome.stderr)


@pytest.mark.privileges
@pytest.mark.slow
@pytest.mark.unmeasured
@pytest.mark.parametrize("grouped", (True, False), ids=("with a group", "without"))
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", sorted(HOGS))
def test_a_runtime_without_memory_is_told_as_such(name: str, level: str, grouped: bool, built, monkeypatch) -> None:
    """An ordinary user has no group here either way."""
    if not grouped:
        monkeypatch.setattr(groups, "make", lambda policy, **_: None)
    argv, files = HOGS[name]
    outcome = _started(argv, {file: built[file] for file in files}, level)
    assert (outcome.status, outcome.rc, outcome.limits_hit) == ("MEM_LIMIT", 137, ("memory",)), outcome.reason
