"""What outlives the service: promised results, and runs that still waited when it ended.

A run is promised once its client has an answer without the result. Each has a file in a directory of ours, written as a
whole. If the service was killed, a promise without a result is reported as lost, never forgotten. Each tenant's space
is bounded: the oldest results go first, and when promises without a result fill it, no more are made. Used by threads.
"""

from __future__ import annotations

import heapq
import json
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from typing import Any

from ringfence.errors import UsageError
from ringfence.model import state_folder
from ringfence.model.own_files import lock, make_private, open_private, read_regular, write_whole
from ringfence.model.ways.walk import real
from ringfence.service.json_text import json_text

ID = re.compile(r"[0-9a-f]{24}")
OPEN = ("queued", "running")
"""States of a run that has no result yet."""
_MAX_BYTES = 256 << 20
_LEAST_BYTES = 4096
"""What a file takes at least, whatever is in it."""
_HEAD_BYTES = 256 << 10
_OUTCOME = b',"outcome":'
_ENDING = ".json"
_ELSEWHERE = "choose another directory with --state"


def new_id() -> str:
    """Sortable by time, and unguessable."""
    return f"{int(time.time() * 1000) & (2**48 - 1):012x}{os.urandom(6).hex()}"


class _Held:
    """What one tenant has: id → bytes, the oldest first, apart by whether there is a result."""

    def __init__(self) -> None:
        self.open: dict[str, int] = {}
        self.over: OrderedDict[str, int] = OrderedDict()
        self.open_bytes = self.over_bytes = 0

    def note(self, run_id: str, size: int, *, is_open: bool) -> None:
        self.forget(run_id)
        if is_open:
            self.open[run_id] = size
            self.open_bytes += size
        else:
            self.over[run_id] = size
            self.over_bytes += size

    def forget(self, run_id: str) -> None:
        self.open_bytes -= self.open.pop(run_id, 0)
        self.over_bytes -= self.over.pop(run_id, 0)

    def too_old(self, most: int) -> list[str]:
        """Results that must go; the newest never does."""
        gone = []
        while self.open_bytes + self.over_bytes > most and len(self.over) > 1:
            gone.append(next(iter(self.over)))
            self.forget(gone[-1])
        return gone


class Store:
    """The directory ``runs`` of a service."""

    def __init__(self, state: str, keep_s: float, most_bytes: int = _MAX_BYTES) -> None:
        """``most_bytes``: of one tenant. UsageError where another service has this state."""
        self.folder = os.path.join(state, "runs")
        self._keep_s, self._most_bytes = keep_s, most_bytes
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._owner: dict[str, str] = {}
        try:
            make_private(state)
            state_folder.note_root(real(state))
            make_private(self.folder)
            os.close(open_private(self.folder))
            self._top = _locked(state)
        except OSError as error:
            raise UsageError(f"{state}: {error.strerror}", hint=_ELSEWHERE) from error

    def close(self) -> None:
        """From now on another one may have it. Twice is harmless."""
        top, self._top = self._top, -1
        if top >= 0:
            os.close(top)

    def write(self, run_id: str, document: dict[str, Any]) -> None:
        owner, is_open = str(document.get("tenant", "")), document.get("state") in OPEN
        self.write_text(run_id, owner, json_text(document), is_open=is_open)

    def write_text(self, run_id: str, owner: str, text: str, *, is_open: bool) -> None:
        """The same of a document that is JSON already. ``is_open``: there is no result yet."""
        data = text.encode()
        write_whole(self._path(run_id), data)
        for each in self._noted(run_id, owner, len(data), is_open=is_open):
            self._unlink(each)

    def _noted(self, run_id: str, tenant: str, size: int, *, is_open: bool) -> list[str]:
        with self._lock:
            held = self._held.setdefault(tenant, _Held())
            held.note(run_id, max(size, _LEAST_BYTES), is_open=is_open)
            self._owner[run_id] = tenant
            gone = held.too_old(self._most_bytes)
            for each in gone:
                self._owner.pop(each, None)
            return gone

    def is_full(self, tenant: str) -> bool:
        """Whether promises without a result take up all of its space."""
        with self._lock:
            held = self._held.get(tenant)
            return held is not None and held.open_bytes >= self._most_bytes

    def read(self, run_id: str) -> dict[str, Any] | None:
        """Read one; None: there is none of that name."""
        if not ID.fullmatch(run_id):
            return None
        try:
            data, _ = read_regular(self._path(run_id), _MAX_BYTES)
            found = json.loads(data)
        except (OSError, ValueError, UsageError):
            return None
        return found if isinstance(found, dict) else None

    def owner_of(self, run_id: str) -> str | None:
        """Whose result it is; None: there is none, or it is still to come."""
        with self._lock:
            owner = self._owner.get(run_id)
            return owner if owner is not None and run_id in self._held[owner].over else None

    def newest(self, most: int, of: Callable[[str], bool], without: Container[str] = ()) -> list[dict[str, Any]]:
        """Summaries of results, the newest first. ``of``: whether a tenant's are wanted; ``without``: ids of others."""
        with self._lock:
            every = [run_id for tenant, held in self._held.items() if of(tenant) for run_id in held.over]
        ids = heapq.nlargest(most, (each for each in every if each not in without))
        return [found for found in map(self._summary, ids) if found is not None]

    def _summary(self, run_id: str) -> dict[str, Any] | None:
        """What stands before the outcome, which may be large. No text of JSON has a bare quotation mark in it."""
        try:
            head, is_there, _ = read_regular(self._path(run_id), _HEAD_BYTES)[0].partition(_OUTCOME)
            found = json.loads(head + b"}") if is_there else self.read(run_id)
        except (OSError, ValueError, UsageError):
            return None
        return found if isinstance(found, dict) else None

    def remove(self, run_id: str) -> None:
        with self._lock:
            held = self._held.get(self._owner.pop(run_id, ""))
            if held is not None:
                held.forget(run_id)
        self._unlink(run_id)

    def _unlink(self, run_id: str) -> None:
        try:
            os.unlink(self._path(run_id))
        except FileNotFoundError:
            pass

    def all(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The runs of an earlier process; each counts from now on."""
        for name in sorted(os.listdir(self.folder)):
            run_id = name.removesuffix(_ENDING)
            document = self.read(run_id) if name.endswith(_ENDING) else None
            if document is not None:
                owner, is_open = str(document.get("tenant", "")), document.get("state") in OPEN
                for each in self._noted(run_id, owner, os.path.getsize(self._path(run_id)), is_open=is_open):
                    self._unlink(each)
                yield run_id, document

    def sweep(self, living: Container[str] = ()) -> None:
        """Remove what nobody has asked for in time, and interrupted writes. ``living``: ids of runs whose result is
        still to come, however long ago it was promised."""
        now = time.time()
        with os.scandir(self.folder) as found:
            for entry in list(found):
                run_id = entry.name.removesuffix(_ENDING)
                try:
                    if run_id in living or now - entry.stat(follow_symlinks=False).st_mtime <= self._keep_s:
                        continue
                    os.unlink(entry.path)
                    self.remove(run_id)
                except OSError:
                    continue

    def _path(self, run_id: str) -> str:
        return os.path.join(self.folder, run_id + _ENDING)


def _locked(state: str) -> int:
    """A descriptor of the directory, for us alone until it is closed: two services would begin each promised run twice,
    and call each other's runs lost."""
    top = open_private(state)
    try:
        lock(top, wait=False)
    except BlockingIOError:
        os.close(top)
        raise UsageError(f"{state}: another service is using this directory", hint=_ELSEWHERE) from None
    except BaseException:
        os.close(top)
        raise
    return top
