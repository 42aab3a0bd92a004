"""A forker in a mount namespace of its own, in which everything is built that many sandboxes have in common.

What a job can change is never part of it: that is made anew, by pid 1 of each sandbox. A mould is made for one
template (``linux.rootfs.template``) and ends when its owner closes the door and its last leader has ended.
"""

from __future__ import annotations

import gc
import os
import sys
from _collections_abc import Sequence

from ringfence.linux import namespaces, processes, syscalls
from ringfence.linux.building import BUILDING
from ringfence.posix import plan, wire
from ringfence.posix.forker import Forker

_furnished: list[object] = []


def furnish() -> None:
    """Load what every sandbox needs, once for this fork and every later one."""
    if _furnished:
        return
    import ctypes
    import json
    import resource

    from ringfence.posix import box_init, boxed_visit, file_transfer, group_time

    syscalls.bind()
    processes.bind()
    _furnished.extend((ctypes, json, resource, box_init, boxed_visit, file_transfer, group_time))
    # Objects that live for ever are never looked at again, so forks don't copy their pages.
    gc.collect()
    gc.freeze()


def main(door: int, template: int, reports: int) -> None:
    """The mould's process: build, say how it went, then fork leaders."""
    processes.adopt_orphans()
    wire.write_all(reports, wire.started_frame(os.getpid()))
    try:
        request = wire.read_request(template)
        os.close(template)
        _load(**request["python"])  # type: ignore[arg-type]
        plan.execute(request.pop("template"))  # type: ignore[arg-type]
    except EOFError:
        return
    except ImportError as error:
        wire.write_all(reports, wire.failed_frame("preload", 0, str(error)))
        return
    except plan.StepFailed as failed:
        wire.write_all(reports, wire.failed_frame(failed.step, failed.errno, failed.problem))
        return
    wire.write_all(reports, wire.ready_frame(0))
    os.close(reports)
    Mould(door, request["owner"]).serve()  # type: ignore[arg-type]


def _load(jobs: bool = False, preload: Sequence[str] = (), packages: Sequence[str] = ()) -> None:
    """For Python jobs: the interpreter as it is after its start, and what the caller wants to be there already."""
    if not jobs:
        return
    import importlib

    from ringfence.posix import interpreter

    interpreter.prepare()
    sys.path += packages
    for name in preload:
        try:
            importlib.import_module(name)
        except ImportError:
            raise
        except BaseException as error:  # a module may do anything when it is imported, and exit
            raise ImportError(f"{name}: {type(error).__name__}: {error}") from error
    del sys.path[len(sys.path) - len(packages) :]
    gc.collect()
    gc.freeze()


class Mould(Forker):
    """Where root is the caller, each living leader has an id on the host that it shares with no other."""

    def __init__(self, door: int, owner: list[int]) -> None:
        super().__init__(door)
        self._owner = (owner[0], owner[1]) if owner else None
        self._places: dict[int, int] = {}
        """Leader: which of this process' ids it has."""
        self._idmaps: dict[int, int] = {}
        """Place: the namespace that maps the owner on disk to it; made once, used by one leader after the other."""

    def _fork_leader(self, descriptors: list[int], stay: Sequence[int] = ()) -> int:
        if os.geteuid() != 0:
            return super()._fork_leader(descriptors)
        place = self._choose()
        leader = super()._fork_leader(descriptors, tuple(BUILDING.idmaps.values()))
        self._places[leader] = place
        return leader

    def _choose(self) -> int:
        """Also prepares what the leader finds in its memory."""
        taken = set(self._places.values())
        place = next((n for n in range(namespaces.IDS_PER_PROCESS - 1) if n not in taken), -1)
        BUILDING.identity = namespaces.host_id(os.getpid(), place) if place >= 0 else 0
        BUILDING.idmaps.clear()
        if place >= 0 and self._owner:
            if place not in self._idmaps:
                self._idmaps[place] = namespaces.mapping_namespace(*self._owner, BUILDING.identity)
            BUILDING.idmaps[self._owner] = self._idmaps[place]
        return place

    def _reap(self) -> None:
        super()._reap()
        for leader in self._places.keys() - self.leaders:
            del self._places[leader]
