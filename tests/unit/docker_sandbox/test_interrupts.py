"""Ctrl-C at every moment of an execution: no place and no container is lost, even if its traceback is kept."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType

import pytest
from tests.unit.docker_sandbox.fake_client import FakeClient

from ringfence.docker_sandbox import applied_table
from ringfence.docker_sandbox.config import EMERGENCY, DockerConfig
from ringfence.docker_sandbox.executor import DockerExecutor

OWN = ("docker_sandbox/executor.py", "docker_sandbox/warm_pool.py")


class Interrupt:
    """Raises at one of the moments at which Python looks for signals: where a function begins and after one of C."""

    def __init__(self, moment: int) -> None:
        self.left = moment

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "c_return") or not frame.f_code.co_filename.endswith(OWN):
            return
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def during(self, work: Callable[[], object]) -> KeyboardInterrupt | None:
        """What it raised; None: the work has fewer moments."""
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            work()
        except KeyboardInterrupt as error:
            return error
        finally:
            sys.setprofile(before)
        return None


def executes_again(executor: DockerExecutor) -> bool:
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(executor.execute("x").success), daemon=True)
    thread.start()
    thread.join(20)
    return ended == [True]


def made(client: FakeClient, warm: int) -> DockerExecutor:
    config = DockerConfig(validate=False, output_dir="", warm_containers=warm, max_containers=1)
    return DockerExecutor(config, connect=lambda _: client, guard=lambda _: client)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    monkeypatch.setattr(applied_table.applied, "read_back", lambda *_: {})
    monkeypatch.delenv(EMERGENCY, raising=False)
    return FakeClient()


@pytest.mark.parametrize("warm", [0, 1])
def test_an_interrupt_at_any_moment_loses_no_place(client: FakeClient, warm: int) -> None:
    executor, kept, moment = made(client, warm), [], 1
    assert executor.execute("x").success
    while (error := Interrupt(moment).during(lambda: executor.execute("x"))) is not None:
        kept.append(error)
        assert executes_again(executor), f"after an interrupt at moment {moment}"
        assert warm or (client.containers == {} and not client.guarded), f"after an interrupt at moment {moment}"
        moment += 1
    executor.close()
    assert len(kept) > 20 and client.containers == {} and not client.guarded
