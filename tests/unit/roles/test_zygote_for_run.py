"""The command line runs one job: its zygote leads that sandbox itself. Whatever is done to it, nothing lives on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.patience import eventually
from tests.unit.engine.pooled import lives

if sys.platform != "linux":
    pytest.skip("a zygote of sandboxes needs Linux", allow_module_level=True)

from ringfence.kernel.proc import processes, procfs

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

COMMAND = [sys.executable, "-P", "-m", "ringfence", "run", "--strict", "--", "sh", "-c", "echo begun; sleep 600; true"]


@pytest.fixture
def command() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"begun\n"
        yield started
        started.kill()


def _below(command: subprocess.Popen[bytes]) -> dict[int, str]:
    """Those that have one of our names, in the order of birth: they are forked one by the other."""
    found = {}
    for row in procfs.descendants(command.pid):
        with open(f"/proc/{row.pid}/comm") as file:
            found[row.pid] = file.read().strip()
    return found


def _leader(command: subprocess.Popen[bytes]) -> int:
    (leader,) = (pid for pid, name in _below(command).items() if name == processes.LEADER)
    return leader


def test_the_zygote_is_the_leader(command: subprocess.Popen[bytes]) -> None:
    ours = [name for name in _below(command).values() if name in (processes.FORKER, processes.LEADER)]
    assert ours == [processes.FORKER, processes.LEADER]
    (spawner,) = procfs.children(command.pid)
    assert procfs.children(spawner) == [_leader(command)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["the leader", "the command"])
def test_nothing_lives_on_without_it(command: subprocess.Popen[bytes], number: int) -> None:
    below = set(_below(command))
    os.kill(_leader(command) if number == signal.SIGKILL else command.pid, number)
    assert command.wait(60) != 0
    eventually(lambda: not any(map(lives, below)))


def test_a_second_sandbox_has_another_zygote() -> None:
    """Nobody asks for one today; who does gets it."""
    code = """
from ringfence.roles import spawner
spawner.fork_early(for_run=True)
from ringfence import SandboxPolicy, run
print([run(["true"], SandboxPolicy(isolation="strict")).rc for _ in range(3)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[0, 0, 0]\n", done.stderr
