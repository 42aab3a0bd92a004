"""What a signal's handler raises in the middle of ours is passed on as it is, and nothing is left behind."""

from __future__ import annotations

import _socket
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.private_folders import left_in

from ringfence.backends import leader_client, scratch
from ringfence.engine import streams
from ringfence.engine.run import close_whole, run
from ringfence.errors import SetupError, UsageError, is_of_a_call
from ringfence.model.policy import SandboxPolicy
from ringfence.python_jobs import pack as callables
from ringfence.roles import removal
from ringfence.transport import passing

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]

LEVELS = ("strict", "process")


class Alarm(TimeoutError):
    """As pytest-timeout or a web server raises it: an OSError without an errno."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def _after(call: Callable[..., object], error: BaseException) -> Callable[..., object]:
    """The call, and then an error, once."""
    left = [error]

    def interrupted(*args: object, **kwargs: object) -> object:
        done = call(*args, **kwargs)
        if left:
            raise left.pop()
        return done

    return interrupted


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("error", (Alarm("late"), KeyboardInterrupt(), RuntimeError("handler")))
def test_the_private_folder_is_removed(
    place: Path, monkeypatch: pytest.MonkeyPatch, level: str, error: BaseException
) -> None:
    policy = SandboxPolicy(isolation=level)
    run(["true"], policy)
    for owner, name in ((scratch.os, "mkdir"), (removal.os, "rmdir"), (leader_client.spawner, "is_stopped")):
        plain = getattr(owner, name)
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, _after(plain, error))
            try:
                run(["true"], policy)
            except type(error) as raised:
                assert raised is error
        assert left_in(place) == []


@pytest.mark.parametrize("error", (Alarm("late"), OSError(28, "full")))
def test_only_what_the_system_refused_becomes_an_error_of_ours(
    place: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    ours = SetupError if is_of_a_call(error) else Alarm
    for owner, name in ((scratch.os, "mkdir"), (leader_client.wire, "write_all"), (streams.os, "pipe")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, _after(getattr(owner, name), error))
            with pytest.raises(ours):
                run(["true"], SandboxPolicy(isolation="process"))
        assert left_in(place) == []


def test_a_box_is_closed_again_whatever_is_raised() -> None:
    class Box:
        closed = 0

        def close(self) -> str:
            self.closed += 1
            if self.closed == 1:
                raise Alarm
            return ""

    box = Box()
    with pytest.raises(Alarm):
        close_whole(box)  # type: ignore[arg-type]
    assert box.closed == 2


def test_an_alarm_while_arguments_are_packed_is_no_mistake_of_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callables, "_dumped", _after(callables._dumped, Alarm()))
    with pytest.raises(Alarm):
        callables.pack((1, 2))
    with pytest.raises(UsageError, match="can't be sent"):
        callables.pack(iter_of_a_file())


def iter_of_a_file() -> Iterator[str]:
    yield from ()


def test_a_handler_that_raises_does_not_close_the_door_to_the_spawner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that lost its name would close its descriptor, and the number be somebody else's next."""
    ours, theirs = passing.channel()
    plain = _socket.socket

    class Interrupted(plain):  # type: ignore[misc, valid-type]
        def sendmsg(self, *_: object) -> int:
            raise Alarm

    monkeypatch.setattr(_socket, "socket", Interrupted)
    for _ in range(3):
        with pytest.raises(Alarm):
            passing.send(ours, passing.GO, [])
        gc.collect()
        os.fstat(ours)
    os.close(ours)
    os.close(theirs)
