"""Whoever tries to keep an attempt on a hidden path out of the record fails, or the record says that it has gaps."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence import (
    Event,
    IsolationLevel,
    Job,
    Outcome,
    ResourceLimits,
    SandboxConfig,
    SandboxManager,
    SandboxPolicy,
    Status,
    run,
)
from ringfence.integrations.deep_agent import Commit, SafeConfig, SafeDeepAgent
from ringfence.sandbox import host
from tests.escape.raw_calls import KNOWN

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

RECORDERS = ("tripwires", "open notification")
_ASK = "try: open(FOLDER + '/secret/key')\nexcept OSError: pass\n"
_KNOCK = "\n  try: {what}\n  except OSError: pass\n"
# What comes before the attempt, to fill whatever the recorder has.
NOISE = {
    "nothing": "",
    "refused calls": "for i in range(700): libc.sethostname(b'x', 1)\n",
    "calls that no kernel has": f"for i in range(700): libc.syscall({KNOWN['io_uring_setup']}, 1, 0)\n",
    "addresses": "for i in range(700):\n"
    "  with socket.socket(type=socket.SOCK_DGRAM) as s: s.connect(('127.0.0.1', i + 1))\n",
    "one decoy": "for i in range(700):" + _KNOCK.format(what="open(FOLDER + '/decoy')"),
    "processes": "for i in range(300):\n  if os.fork() == 0: libc.sethostname(b'x', 1), os._exit(0)\n  os.wait()\n",
    "threads": "import threading\nfor i in range(6):\n"
    "  threading.Thread(target=lambda: [libc.sethostname(b'x', 1) for _ in range(150)]).start()\n",
    "a killed twin": "for i in range(40):\n  child = os.fork()\n  while child == 0: os.access(FOLDER + '/decoy', 0)\n"
    "  time.sleep(0.001); os.kill(child, 9); os.wait()\n",
    "a name that takes much room": "libc.prctl(15, b'\\xff' * 15, 0, 0, 0)\n",
}  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="blinding-", dir="/var/tmp") as name:
        place = Path(os.path.realpath(name))
        place.chmod(0o755)
        (place / "secret").mkdir()
        for path in ("secret/key", "decoy", "plain"):
            (place / path).write_text("text\n")
        yield place


@pytest.fixture(params=RECORDERS)
def recorder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "tripwires":
        monkeypatch.setattr(host, "has_fuse", lambda: False)
    return str(request.param)


def _run(folder: Path, source: str, *more: str, on_event: object = None, **fields: object) -> Outcome:
    start = f"import ctypes, os, socket, time\nFOLDER = {str(folder)!r}\nlibc = ctypes.CDLL(None)\n"
    hidden = {"readable_paths": [str(folder)], "hidden_paths": [f"{folder}/secret", f"{folder}/decoy"]}
    policy = SandboxPolicy.from_dict({"isolation": "strict", "wall_time_s": 60, "pids_max": 64} | hidden | fields)
    return run(Job(argv=(sys.executable, "-I", "-c", start + source, *more)), policy, on_event=on_event)  # type: ignore[arg-type]


def _naming(outcome: Outcome, name: str) -> list[Event]:
    return [event for event in outcome.events if name in str(event.details.get("path"))]


@pytest.mark.parametrize("noise", NOISE)
def test_an_attempt_is_told_after_any_noise(noise: str, recorder: str, folder: Path) -> None:
    outcome = _run(folder, NOISE[noise] + _ASK)
    assert outcome.status is Status.OK, outcome.stderr
    assert recorder in outcome.enforced["hidden_paths"].details
    assert _naming(outcome, "/secret"), outcome.recorder
    assert outcome.unrecorded == 0 and outcome.recorder["complete"] is True, outcome.recorder
    told = [event for event in outcome.events if "aim" in event.details]
    assert len(told) == outcome.recorder["kept"]
    assert outcome.recorder["total"] == len(told) + outcome.recorder["summarised"] + outcome.recorder["uncategorised"]  # type: ignore[operator]


@pytest.mark.parametrize("text", ["\U0001f600", "\\", "\x01", "é"])
def test_an_attempt_is_told_whatever_its_process_is_called(text: str, recorder: str, folder: Path) -> None:
    outcome = _run(folder, _ASK + f"open_ = FOLDER + '/secret/' + {text!r} * 60\nos.path.exists(open_)\n", text * 900)
    assert len(_naming(outcome, "/secret")) >= 1 and outcome.unrecorded == 0, outcome.recorder
    assert "\n" not in str(outcome.recorder["problems"])


def test_more_paths_than_can_be_named_are_counted_for_each_hidden_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "has_fuse", lambda: False)  # a tripwire sees the hidden path only, and none below it
    outcome = _run(folder, "for i in range(3000): os.access(f'{FOLDER}/decoy/{i}', 0)\n" + _ASK)
    assert len(_naming(outcome, "/decoy")) == 500
    assert outcome.recorder["unnamed"] == outcome.unrecorded == 2501 and outcome.recorder["complete"] is False
    rows = {row["path"]: row["count"] for row in outcome.recorder["summary"] if not row["named"]}  # type: ignore[attr-defined]
    assert rows == {f"{folder}/decoy": 2500, f"{folder}/secret": 1}
    few = _run(folder, "for i in range(400): os.access(f'{FOLDER}/decoy/{i}', 0)\n" + _ASK)
    assert few.unrecorded == 0 and few.recorder["complete"] is True and _naming(few, "/secret")


def test_a_caller_that_is_slow_hears_everything(recorder: str, folder: Path) -> None:
    slept: list[Event] = []

    def doze(event: Event) -> None:
        if "aim" in event.details and not slept:
            slept.append(event)
            time.sleep(2)

    source = "for i in range(300): os.access(FOLDER + '/decoy', 0)\n" + _ASK
    outcome = _run(folder, source, "x" * 900, on_event=doze)
    assert outcome.unrecorded == 0 and outcome.recorder["complete"] is True, outcome.recorder
    assert _naming(outcome, "/secret") and len(_naming(outcome, "/decoy")) == 200


# ---- what follows from it


def _config(folder: Path) -> SandboxConfig:
    limits = ResourceLimits(max_execution_time=60, max_file_operations=100_000)
    return SandboxConfig(isolation_level=IsolationLevel.STRICT, resource_limits=limits, allowed_paths=[folder],
                         blocked_paths=[folder / "secret", folder / "decoy"])  # fmt: skip


_MADE = "open('made', 'w').write('x')\n"
_START = "import ctypes, os, socket, time\nlibc = ctypes.CDLL(None)\nFOLDER = '.'\n"
_FLOOD = "for i in range(3000): os.access(f'decoy/{i}', 0)\n"


@pytest.mark.parametrize("noise", ["nothing", "calls that no kernel has", "addresses"])
def test_an_execution_that_makes_noise_first_is_undone(noise: str, folder: Path, tmp_path: Path) -> None:
    with SandboxManager(_config(folder), sandbox_root=tmp_path / "boxes") as manager, manager.sandbox() as context:
        source = _START + NOISE[noise] + _MADE
        control = manager.run(context, [sys.executable, "-c", source])
        assert control.success and manager.changes(context), "control: without the attempt it is kept"
        manager.rollback_system.rollback_to_checkpoint(control.checkpoint_id)
        done = manager.run(context, [sys.executable, "-c", source + _ASK])
        assert not done.success and done.rolled_back and not manager.changes(context)
        assert any("secret/key" in text for text in done.violations)


def test_an_execution_with_attempts_that_nobody_can_name_is_undone(folder: Path, tmp_path: Path) -> None:
    with SandboxManager(_config(folder), sandbox_root=tmp_path / "boxes") as manager, manager.sandbox() as context:
        done = manager.run(context, [sys.executable, "-c", _START + _MADE + _FLOOD])
        assert not done.success and done.rolled_back and not manager.changes(context)
        assert done.violations[0] == "2500 attempts not named"


def _execute_noisily(call: int) -> str:
    import ctypes

    for _ in range(300):
        ctypes.CDLL(None).syscall(call, 1, 0)
    Path("made").write_text("x")
    return str(os.path.exists("secret/key"))


def test_an_agent_keeps_nothing_of_a_call_that_makes_noise_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SafeConfig(sandbox=_config(folder), commit=Commit.EACH_CALL, max_risk=1.0)
    monkeypatch.chdir(tmp_path)
    with SafeDeepAgent([_execute_noisily], safe_config=config) as agent:
        done = agent.run_tool("_execute_noisily", call=KNOWN["io_uring_setup"])
    assert not done.success and done.violations and not done.committed and not (folder / "made").exists()
