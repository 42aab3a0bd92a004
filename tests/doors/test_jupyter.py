"""The kernel of Jupyter, by jupyter_client: cells, plots, interrupt and restart; and what it refuses."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from tests.framework_environment import framework_environment
from tests.patience import eventually

from ringfence.cli import main
from ringfence.errors import UsageError
from ringfence.integrations.jupyter import relay
from ringfence.integrations.jupyter.frames import CLOSE, DATA, HEAD, OPEN, PORTS, FrameError, Frames, frame
from ringfence.integrations.jupyter.kernel import read_connection

ROOT = Path(__file__).resolve().parents[2]


def test_frames_come_apart_as_they_were_put_together() -> None:
    sent = [(OPEN, 1, 4, b""), (DATA, 1, 0, b"x" * 1000), (CLOSE, 1, 0, b"")]
    stream = b"".join(frame(kind, number, place, data) for kind, number, place, data in sent)
    frames = Frames()
    assert [each for byte in stream for each in frames.add(bytes([byte]))] == sent


def test_what_the_bridge_says_is_passed_on_frame_by_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[object] = []
    ahead: set[int] = set()

    class Counting(Frames):
        def add(self, data: bytes) -> Iterator[tuple[bytes, int, int, bytes]]:
            for count, each in enumerate(super().add(data)):
                ahead.add(count - len(passed))
                yield each

    loop = SimpleNamespace(call_soon_threadsafe=lambda *told: passed.append(told))
    heard = SimpleNamespace(position=0, dropped=0, data=frame(DATA, 7) * 1000, ended=True)
    monkeypatch.setattr(relay, "Frames", Counting)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    relay.Relay(SimpleNamespace(read_stdout=lambda *_, **__: heard))  # type: ignore[arg-type]
    eventually(lambda: len(passed) == 1000)
    assert ahead == {0}, "none is held back while others are taken apart"


@pytest.mark.parametrize("garbage", [b"hello, world", HEAD.pack(DATA, 1, 0, 1 << 31), HEAD.pack(b"?", 1, 0, 0)])
def test_what_is_no_frame_is_told(garbage: bytes) -> None:
    with pytest.raises(FrameError):
        list(Frames().add(garbage + b"x" * HEAD.size))


@pytest.mark.parametrize("wrong", [{"ip": "0.0.0.0"}, {"ip": "10.0.0.1"}, {"transport": "ipc"}, {"hb_port": 0},
                                   {"hb_port": "x"}])  # fmt: skip
def test_a_kernel_is_reached_over_the_loopback_alone(tmp_path: Path, wrong: dict[str, object]) -> None:
    good = {"ip": "127.0.0.1", "transport": "tcp", "key": "k", **{name: 5000 + n for n, name in enumerate(PORTS)}}
    file = tmp_path / "connection.json"
    file.write_text(json.dumps(good))
    assert read_connection(str(file))["key"] == "k", "the control"
    file.write_text(json.dumps({**good, **wrong}))
    with pytest.raises(UsageError):
        read_connection(str(file))


class _Manager:
    """Of jupyter_client: copies the directory elsewhere."""

    installed = ""

    def install_kernel_spec(self, folder: str, name: str, **_: object) -> str:
        _Manager.installed = Path(folder, "kernel.json").read_text()
        return name


@pytest.mark.system
def test_a_kernel_imports_nothing_beside_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("jupyter_client")
    module = ModuleType("jupyter_client.kernelspec")
    monkeypatch.setattr(module, "KernelSpecManager", _Manager, raising=False)
    monkeypatch.setitem(sys.modules, "jupyter_client", package)
    monkeypatch.setitem(sys.modules, "jupyter_client.kernelspec", module)
    monkeypatch.delitem(sys.modules, "ringfence.integrations.jupyter.spec", raising=False)
    importlib.import_module("ringfence.integrations.jupyter.spec").install("ringfence", user=True)
    monkeypatch.delitem(sys.modules, "ringfence.integrations.jupyter.spec")
    command = json.loads(_Manager.installed)["argv"]
    (tmp_path / "ringfence").mkdir()
    (tmp_path / "ringfence" / "__init__.py").write_text("import os\nprint('outside', flush=True)\nos._exit(0)\n")
    assert b"outside" not in _started(command, tmp_path)
    assert b"outside" in _started([word for word in command if word != "-P"], tmp_path), "the control"


def _started(command: list[str], folder: Path) -> bytes:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=60, check=False).stdout


@pytest.mark.parametrize("text", ["[]", "{}", "\xff", "[" * 8000, "[" * 100_000],
                         ids=["list", "empty", "text", "deep", "long"])  # fmt: skip
def test_what_is_no_connection_file_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "connection.json").write_text(text)
    with pytest.raises(UsageError):
        read_connection(str(tmp_path / "connection.json"))


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such pipes")
def test_a_pipe_in_place_of_the_connection_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "connection.json")
    with pytest.raises(UsageError, match="not a regular file"):
        read_connection(str(tmp_path / "connection.json"))


def test_limits_that_would_not_reach_the_kernel_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jupyter", "install", "--memory", "1G"]) == 2
    assert "takes only --policy" in capsys.readouterr().err


@pytest.mark.parametrize("policy", ["isolation: process", "isolation: strict\nnetwork: host"])
def test_a_kernel_without_a_loopback_of_its_own_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    (tmp_path / "policy.yaml").write_text(policy + "\n")
    assert main(["jupyter", "install", "--policy", str(tmp_path / "policy.yaml"), "--prefix", str(tmp_path)]) == 2
    assert "its own loopback" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="needs isolation strict")
@pytest.mark.system
@pytest.mark.slow
@pytest.mark.unmeasured
@pytest.mark.long
def test_cells_plots_interrupt_and_restart_work_in_a_strict_box(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.doors.jupyter_program", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=framework_environment("jupyter"), capture_output=True, text=True,
                          timeout=900, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.strip().splitlines()[-1])
    assert (said["sum"]["stdout"], said["sum"]["value"], said["kept"]["value"]) == ("hi\n", "21", "40")
    assert said["error"]["error"] == "ZeroDivisionError" and said["plot"]["pictures"] == 1
    assert said["host"]["value"] == "(False, False)", "neither files nor processes of the host"
    assert said["network"]["error"] == "ConnectionRefusedError"
    assert said["interrupted"] == "KeyboardInterrupt" and said["after"]["value"] == "20"
    assert said["restarted"]["error"] == "NameError" and said["ended"]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
