"""From the leader's fork to the job's exec: descriptors put in place, the plan carried out, a failed step told.

What runs in the forked child, and the two small things that the leader needs for it.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import os
from _collections_abc import Sequence

from ringfence.posix import passing, plan, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def wake_on_child() -> int:
    """A descriptor that becomes readable when a child ends."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK) if hasattr(os, "pipe2") else os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def _prepare_building(status: int, door: int, tally: int) -> None:
    """What the steps of a sandbox need of this side of the package, which they may not import."""
    from ringfence.linux.building import BUILDING as building

    building.status, building.tally = status, tally
    building.wake_on_child = wake_on_child
    building.await_leader = lambda: _await_leader(door)
    building.serve_visits = _serve_visits
    building.hand_over = lambda kind, descriptors: passing.send(door, kind, descriptors)


def _serve_visits() -> None:
    from ringfence.posix import box_init

    box_init.serve()


def _await_leader(door: int) -> None:
    if passing.receive(door)[0] != passing.GO:
        raise ProcessLookupError("the leader is gone")


def become_job(
    request: dict[str, Any], streams: Sequence[int], keep: Sequence[int], stay: Sequence[int] = ()
) -> None:
    """Never returns. ``keep``: where a failed step is told, then what pid 1 of a sandbox keeps. Of a sandbox that
    stands by the one stream is where its job arrives."""
    writer = keep[0]
    try:
        signal.set_wakeup_fd(-1)
        if request.get("standby"):
            keep, streams = [*keep, *streams], _nothing()
        kept = plan.place_descriptors(streams, keep, stay)
        writer = kept[0]
        if request.get("contained"):
            _prepare_building(*kept[1:4])
        steps = list(request["plan"])
        if request.get("standby"):
            _prepare_waiting(request, steps, kept)
        plan.execute(steps)
    except plan.StepFailed as failed:
        os.write(writer, wire.failure(failed.step, failed.errno, failed.problem))
    except OSError as error:
        os.write(writer, wire.failure("descriptors", error.errno or 0, str(error)))
    finally:
        os._exit(127)


def _nothing() -> list[int]:
    """Streams of a process that waits for others."""
    return [os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)] * 3


def _prepare_waiting(request: dict[str, Any], steps: list[plan.Step], kept: Sequence[int]) -> None:
    from ringfence.posix.standby import Waiting

    def forget() -> None:
        request.clear()
        steps.clear()

    Waiting.problems, Waiting.post = kept[0], kept[-1]
    Waiting.forget = forget
