"""One visit to a container that takes them: the visit's reaper or pid 1 tells of its end, and the kernel's files say
what it used. There is no thread: the caller's loop waits for one descriptor."""

from __future__ import annotations

import os
import select
import time

from ringfence.backends.facts import Report
from ringfence.container import visits
from ringfence.errors import SetupError
from ringfence.model.record import replace
from ringfence.monitor.source import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.egress_link import EgressLink
    from ringfence.backends.in_container.place import Place
    from ringfence.transport.report import Note

_SIGKILL = 9
_LOST = "reaper_gone"
_STEPS = {visits.NOT_STARTED: "exec", visits.NO_FOLDER: "chdir"}
_CAUSES = {visits.ASKED: "asked", visits.TIME: "wall_time"}


class PlaceVisit:
    """Followed from its start to its end."""

    begun = True
    operations = -1

    def __init__(self, place: Place, program: str, number: int, report: int, before: tuple[int, int], *,
                 is_last: bool = False) -> None:  # fmt: skip
        """``report``: below 0 if the visit was not taken in. ``before``: how often the box had been refused memory and
        tasks. ``is_last``: nobody comes after it, and the container is removed."""
        self._is_last = is_last
        self.entered = report >= 0
        self._place, self._program, self._number = place, program, number
        self._before = before
        self._begin_ns = time.monotonic_ns()
        self._bytes_before = place.link.network_bytes() if place.link is not None and not place.alone else 0
        self._report: Report | None = None
        if report < 0:
            report, other = os.pipe()
            os.close(other)  # it tells its end at once
        self._told = report

    # ---- what supervision asks

    def may_begin(self) -> bool:
        return False

    def is_stopped(self) -> bool:
        return False

    def source(self) -> Source:
        return self._place.source()

    def filenos(self) -> tuple[int, ...]:
        if self._told < 0:
            return ()
        link = self._place.link
        return (self._told,) if link is None else link.beside((self._told,))

    def take_notes(self) -> list[Note]:
        return self._place.link.take() if self._place.link is not None else []

    def signal(self, number: int) -> None:
        self._place.signal(self._number, number)

    def receive(self) -> Report | None:
        link = self._place.link
        if link is not None:
            link.read()
        if self._report is None and self._told >= 0:
            self._report = self._received()
            if self._report is not None and link is not None:
                self._report = self._with_network(self._report, link)
        return self._report

    def wait(self, within_s: float) -> Report | None:
        """The end, if it comes within this time."""
        give_up = time.monotonic() + within_s
        poller = select.poll()
        while (report := self.receive()) is None and time.monotonic() < give_up:
            poller.register(self._told, select.POLLIN)
            poller.poll(max(0.0, give_up - time.monotonic()) * 1000)
        return report

    def abandon(self) -> None:
        """Pid 1 has not ended the visit: have the engine end the container."""
        self._place.kill()
        if self._report is None:
            self._report = Report(leader_lost=True, wall_ns=time.monotonic_ns() - self._begin_ns)

    def close(self) -> None:
        """End it if it runs, and free what it holds; of a container for one job, that too."""
        if self._told < 0:
            return
        if self._report is None:
            self.signal(_SIGKILL)
        os.close(self._told)
        self._told = -1
        if self._is_last:
            self._place.close_soon()

    # ---- the end

    def _received(self) -> Report | None:
        try:
            told = visits.receive(self._told)
        except BlockingIOError:
            return None
        except OSError:
            told = None
        wall_ns = time.monotonic_ns() - self._begin_ns
        if told is not None and told.kind in _STEPS:
            raise SetupError(_STEPS[told.kind], f"{self._program}: {os.strerror(told.value)}", errno=told.value)
        if told is not None and told.kind == visits.NO_ROOM:
            raise SetupError(visits.STEP, f"{visits.MOST_VISITS} visits to this container still have running processes",
                             hint="end the processes that they left running, or open another box")  # fmt: skip
        self._place.look()
        if told is None or told.kind not in (visits.ENDED, visits.KILLED):
            return self._lost(wall_ns)
        if told.kind == visits.KILLED:
            return self._counted(Report(signal=_SIGKILL, cause=_CAUSES.get(told.value, "asked"), wall_ns=wall_ns))
        by_signal = os.WIFSIGNALED(told.value)
        return self._counted(Report(
            exit_code=None if by_signal else os.WEXITSTATUS(told.value),
            signal=os.WTERMSIG(told.value) if by_signal else None, wall_ns=wall_ns, cpu_user_us=told.user_us,
            cpu_system_us=told.system_us, peak_memory_bytes=told.largest_bytes, processes=1,
        ))  # fmt: skip

    def _lost(self, wall_ns: int) -> Report:
        """Its reaper was killed, or could not be; or the whole place has come to its end."""
        place = self._place
        report = self._counted(Report(signal=_SIGKILL, cause=place.cause or _LOST, measured=place.measured,
                                      wall_ns=wall_ns))  # fmt: skip
        if place.ended():
            self.entered = self.entered and self._number > 0
            return report
        never_was = report.cgroup_pids_hits > 0 and not place.cause  # there was no room for it
        return replace(report, cause="") if never_was else report

    def _counted(self, report: Report) -> Report:
        """Add what the container's own group counted; if other visits use it too, only the growth since the start."""
        facts, (ooms, refused) = self._place.facts, self._before
        ooms, refused = facts.ooms - ooms, facts.refused - refused
        if not self._place.alone:
            return replace(report, box_oom_kills=ooms, cgroup_pids_hits=refused)
        whole = replace(report, cgroup_oom_kills=0 if report.cause else ooms, cgroup_pids_hits=refused)
        used_us = max(facts.cpu_ns // 1000, report.cpu_user_us + report.cpu_system_us)
        return replace(whole, cpu_user_us=used_us - report.cpu_system_us, processes=max(facts.tasks, 1),
                       peak_memory_bytes=max(facts.peak, report.peak_memory_bytes))  # fmt: skip

    def _with_network(self, report: Report, link: EgressLink) -> Report:
        if self._place.alone:
            ended = link.ended_with(report)
            assert ended is not None
            return ended
        return replace(report, network_bytes=link.visit_ended() - self._bytes_before, network_problem=link.problem)
