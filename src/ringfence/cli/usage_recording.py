"""``ringfence run --usage``: samples of the run, taken while it goes on, into a file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence

from ringfence.cli.state_folder import usage_folder
from ringfence.engine.streams import Streams
from ringfence.errors import ConflictError, UsageError
from ringfence.model import state_folder
from ringfence.model.outcome import Outcome
from ringfence.model.own_files import PART
from ringfence.model.policy import SandboxPolicy
from ringfence.monitor.limits import ResourceLimits
from ringfence.monitor.resource_monitor import ResourceMonitor
from ringfence.monitor.usage_log import UsageLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import Visit
    from ringfence.engine.supervision import Attach

INTERVAL_S = 0.05
KEPT = 100
ENDING = ".jsonl"
_RUN = "run"
_DAY_S = 86_400


def recorded() -> list[str]:
    """The files of the state directory, the latest first."""
    try:
        with os.scandir(usage_folder()) as entries:
            found = [(entry.stat(follow_symlinks=False).st_mtime_ns, entry.path) for entry in entries]
    except OSError:
        return []
    return [path for _, path in sorted(found, reverse=True) if path.endswith(ENDING)]


def _broken_off(folder: str) -> list[str]:
    """Files that killed recorders left; a living recorder writes more often than once a day."""
    now_s = time.time()
    with os.scandir(folder) as entries:
        parts = [entry for entry in entries if entry.name.endswith(PART)]
    return [entry.path for entry in parts if now_s - entry.stat(follow_symlinks=False).st_mtime > _DAY_S]


def new_file() -> str:
    """A new file there; its name without the ending is the id. The oldest files make room."""
    folder = usage_folder()
    try:
        state_folder.made(os.path.basename(folder))
        for path in (*recorded()[KEPT - 1 :], *_broken_off(folder)):
            os.unlink(path)
    except FileNotFoundError:
        pass  # another one has just removed it
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}", hint="name a file: --usage-file FILE") from error
    return os.path.join(folder, f"{os.urandom(6).hex()}{ENDING}")


class Recording:
    """Records what one run uses."""

    def __init__(self, path: str, command: Sequence[str], policy: SandboxPolicy) -> None:
        about = {"command": list(command), "isolation": str(policy.isolation)}
        self._log = UsageLog(path, about | {"limits": policy.numbers()})
        self._monitor = ResourceMonitor(
            interval_s=INTERVAL_S, deep_every_s=0.0, on_sample=lambda _, sample: self._log.add(sample)
        )

    @property
    def name(self) -> str:
        """What ``ringfence usage`` finds it by."""
        path = self._log.path
        inside = os.path.dirname(path) == usage_folder()
        return os.path.basename(path).removesuffix(ENDING) if inside else path

    def attaching(self, attach: Attach) -> Attach:
        """Also look at the visit that others attach to."""

        def both(visit: Visit, streams: Streams) -> None:
            self._monitor.start_monitoring(_RUN, ResourceLimits(), visit.source())
            attach(visit, streams)

        return both

    def finish(self, outcome: Outcome, *, quiet: bool) -> None:
        """The job has run: a recording that can't be written must not cost its outcome."""
        self._monitor.close()
        said = self._put({"status": str(outcome.status), "rc": outcome.rc, "reason": outcome.reason,
                          **vars(outcome.usage)})  # fmt: skip
        if not quiet:
            print(f"ringfence: {said}", file=sys.stderr)

    def _put(self, end: Mapping[str, object]) -> str:
        """Put it in place, and return what to say. If somebody made a file there, ours stays in the state directory."""
        problem = ""
        try:
            try:
                self._log.finish(end)
            except ConflictError as error:
                problem = f"{error}; "
                self._log.move(new_file())
            return f"{problem}recorded; see it: ringfence usage {self.name}"
        except UsageError as error:
            return f"{problem}not recorded: {error}"

    def close(self) -> None:
        """If nothing was run, no file is made."""
        self._monitor.close()
        self._log.abandon()
