"""CPython's own tests of what a sandbox may break: no test fails inside STRICT that passes without it.

Of test_asyncio the parts about event loops, processes, sockets and streams; the others touch no operating system.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile

import pytest

from tests.programs.workshop import POLICY, inside

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured, pytest.mark.long, pytest.mark.once]

MODULES = ("test_os", "test_subprocess", "test_threading", "test_socket", "test_posix", "test_signal")
ASYNCIO = ("base_events", "events", "sock_lowlevel", "streams", "subprocess", "unix_events")
NAMES = (*MODULES, *(f"test.test_asyncio.test_{part}" for part in ASYNCIO))
LONGEST_S = 240
FAILED = re.compile(r"^(?:ERROR|FAIL): (.+)$", re.MULTILINE)


def _command(names: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "test", "-j2", "-W", "--timeout", str(LONGEST_S), "-u", "none", *names]


def _failing(told: str) -> set[str]:
    return set(FAILED.findall(told))


def _without_a_sandbox(names: tuple[str, ...]) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(_command(names), cwd=folder, capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=2 * LONGEST_S)  # fmt: skip
    return _failing(done.stdout + done.stderr)


def test_cpythons_own_tests_fail_nowhere_that_they_pass_outside() -> None:
    assert importlib.util.find_spec("test.test_os"), "Debian keeps them apart: apt-get install libpython3-testsuite"
    policy = POLICY.with_changes(wall_time_s=LONGEST_S * 2, cpu_time_s=LONGEST_S * 2, mem_bytes=8 << 30)
    outcome = inside(*_command(NAMES), policy=policy)
    told = outcome.stdout.decode(errors="replace") + outcome.stderr.decode(errors="replace")
    unfinished = [name for name in NAMES if not re.search(rf"\] {re.escape(name)} (passed|failed)", told)]
    assert not unfinished, f"{outcome.status} {outcome.reason}\n{told[-3000:]}"
    if outcome.rc:
        broken = tuple(name for name in NAMES if re.search(rf"^test {re.escape(name)} ", told, re.MULTILINE))
        assert _failing(told), told[-3000:]
        assert _failing(told) <= _without_a_sandbox(broken or NAMES), told[-6000:]
