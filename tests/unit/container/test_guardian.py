"""The guardian: what it is told, whom it finds late, and that it does not give up at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.unit.container.fake_engine import engine

from ringfence.container import guardian


def test_what_is_late_is_told_once() -> None:
    told = guardian._Told()
    told._take(f"+ a {time.monotonic() - 1!r}")
    told._take(f"+ b {time.monotonic() + 1000!r}")
    told._take("+ c 0.0")
    told._take("- c")
    assert told.wait_s() == 0 and told.late() == ["a"] and told.late() == [] and set(told.names) == {"a", "b"}


def test_an_engine_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[str]] = []

    def removed(_: str, names: set[str]) -> set[str]:
        asked.append(names)
        if len(asked) < 3:
            raise OSError
        return set()

    monkeypatch.setattr(guardian, "_removed", removed)
    guardian.remove("unix:///x", ["a"], sleep=lambda _: None)
    assert asked == [{"a"}] * 3


_CALLER = """
import os, sys, time
from ringfence.container.guardian import guardian_of
found = guardian_of(sys.argv[1])
found.add("left"); found.add("done"); found.done("done")
print(found._process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.system
@pytest.mark.parametrize("with_killed_guardian", [False, True])
def test_what_a_killed_caller_leaves_is_removed_and_nothing_else(tmp_path: Path, with_killed_guardian: bool) -> None:
    with engine(tmp_path) as fake:
        fake.answers |= {f"GET /containers/{name}/json": (200, {"Id": name}) for name in ("left", "done", "more")}
        fake.answers |= {f"DELETE /containers/{name}": (204, {}) for name in ("left", "done", "more")}
        code = _CALLER
        if with_killed_guardian:
            code = code.replace("time.sleep", "import signal; os.kill(found._process.pid, 9); found._process.wait(); "
                                "found.add('more'); print(0, flush=True); time.sleep")  # fmt: skip
        words = [sys.executable, "-c", code, fake.url]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as caller:
            assert caller.stdout is not None
            caller.stdout.readline()
            if with_killed_guardian:
                caller.stdout.readline()
            assert not [what for what, _ in fake.asked if what.startswith("DELETE")]
            os.kill(caller.pid, signal.SIGKILL)
        wanted = {"DELETE /containers/left"} | ({"DELETE /containers/more"} if with_killed_guardian else set())
        eventually(lambda: wanted <= {what for what, _ in fake.asked})
        assert {what for what, _ in fake.asked if what.startswith("DELETE")} == wanted
