"""Docker's daemon of the bench: whatever ends the bench, nothing of it stays. A small program plays its part here."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.patience import eventually

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]

ROOT = Path(__file__).resolve().parents[3]
DAEMON = """#!/bin/sh
for word; do case "$word" in --data-root=*) data="${word#*=}";; esac; done
mkdir -p "$data"
mount -t tmpfs ringfence-stand-in "$data"
echo "$$" > "$data/inside"
tail -f "$data/inside" > /dev/null &
touch "${data%/data}/ready"
wait
"""
CLIENT = """#!/bin/sh
test -e "$(dirname "${DOCKER_HOST#unix://}")/ready"
"""
BENCH = "import signal, sys; from bench import docker_engine; docker_engine.client(); print('up', flush=True); {then}"


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    for name, text in (("dockerd", DAEMON), ("docker", CLIENT)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}


def started(folder: Path) -> list[bytes]:
    """What runs with a path below this directory among its words."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            found += [words for words in [entry.read_bytes()] if os.fsencode(folder) in words]
    return found


@pytest.mark.root  # only root starts a daemon
@pytest.mark.parametrize("then", ["pass", "signal.pause()"], ids=["ended", "killed"])
def test_the_daemon_ends_with_the_bench(then: str, programs: dict[str, str]) -> None:
    cache = Path(programs["XDG_CACHE_HOME"])
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DOCKER")} | programs
    command = [sys.executable, "-c", BENCH.format(then=then)]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        assert bench.stdout.readline() == "up\n"
        if then != "pass":
            assert any(words.startswith(b"tail") for words in started(cache)), "the stand-in runs"
            assert "ringfence-stand-in" not in Path("/proc/self/mounts").read_text(), "mounts in a namespace of its own"
            bench.kill()
    eventually(lambda: not started(cache))
    assert then != "pass" or not list((cache / "ringfence-bench").iterdir())
