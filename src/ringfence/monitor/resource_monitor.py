"""``ResourceMonitor``: what each sandbox uses, looked at by one thread for all of them.

It measures and judges. It ends a sandbox only when ``terminate_if_violated`` is called, and then in the way that the
sandbox's own source gives: limits that must hold are enforced by the kernel, not here.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType

from ringfence.errors import SupervisionError, UsageError
from ringfence.kernel.proc.open_files import DescriptorBudget, half_of_the_limit
from ringfence.monitor.limits import ResourceLimits, ResourceUsage, is_figure, shown_figure
from ringfence.monitor.meter import DEEP_EVERY_S, Meter
from ringfence.monitor.sample import History, Sample
from ringfence.monitor.source import Source, offered
from ringfence.monitor.violations import KIB, MIB, Judge, Violation, checked_times

_FEWEST_SAMPLES = 2
OnViolation = Callable[[str, Violation], None]
OnSample = Callable[[str, Sample], None]


class _Watch:
    """One sandbox; its lock is held while it is looked at."""

    def __init__(self, source: Source, meter: Meter, judge: Judge, history: History) -> None:
        self.source = source
        self.lock = threading.Lock()
        self.due_s = 0.0
        """Not looked at before this time."""
        self.ended = False
        self.problem: BaseException | None = None
        """What went wrong on the monitor's thread; the next caller is told."""
        self._meter = meter
        self._judge = judge
        self._history = history

    def look(self, *, whole: bool = False) -> list[Violation]:
        """Take a sample; return the new violations."""
        with self.lock:
            if self.ended:
                return []
            sample = self._meter.measure(whole=whole)
            self.due_s = time.monotonic() + self._meter.rest_s if self._meter.rest_s else 0.0
            self._history.add(sample)
            return self._judge.judge(sample)

    @property
    def last(self) -> Sample:
        return self._history.last

    def usage(self, *, whole: bool = False) -> ResourceUsage:
        """As of the last sample; ``whole``: with mean CPU use and peak memory."""
        with self.lock:
            last, history = self._history.last, self._history
            return ResourceUsage(
                cpu_percent=history.mean_cpu_percent() if whole else last.cpu_percent,
                memory_mb=(history.peak_memory_bytes if whole else last.memory_bytes) / MIB,
                disk_mb=last.written_bytes / MIB,
                network_kb=last.network_bytes / KIB,
                execution_time=last.time_s,
                file_operations=last.operations,
                violations=[str(violation) for violation in self._judge.violations.values()],
            )

    def violations(self) -> list[Violation]:
        with self.lock:
            return list(self._judge.violations.values())

    def samples(self) -> list[Sample]:
        with self.lock:
            return self._history.samples()

    def close(self) -> None:
        with self.lock:
            self.ended = True
            self._meter.close()


class ResourceMonitor:
    """Watches any number of sandboxes. Its thread runs while there is something to watch.

    >>> monitor = ResourceMonitor()
    >>> monitor.start_monitoring("mine", ResourceLimits(), Source())
    >>> monitor.check_violations("mine")
    []
    >>> monitor.stop_monitoring("mine").file_operations
    0
    """

    def __init__(
        self,
        *,
        interval_s: float = 0.1,
        over_for_s: Mapping[str, float] = MappingProxyType({}),
        deep_every_s: float = DEEP_EVERY_S,
        history_samples: int = 512,
        find_source: Callable[[str], Source] | None = None,
        on_violation: OnViolation | None = None,
        on_sample: OnSample | None = None,
    ) -> None:
        """``over_for_s``: field of ``ResourceLimits`` → for how many seconds it must be over (cpu 10, the rest 0).
        ``deep_every_s``: how often the whole tree is walked where there is a control group (see ``meter``).
        ``on_violation`` is called once for each violation, ``on_sample`` for every sample, mostly on the monitor's
        thread; they may call the monitor."""
        if not is_figure(interval_s) or not 0.001 <= interval_s <= 3600:
            raise UsageError(f"interval_s: {shown_figure(interval_s)} must be from 0.001 to 3600 seconds")
        if not is_figure(deep_every_s):
            raise UsageError(f"deep_every_s: {shown_figure(deep_every_s)} must be a number of seconds, 0 or more")
        if not is_figure(history_samples) or not isinstance(history_samples, int) or history_samples < _FEWEST_SAMPLES:
            raise UsageError(f"history_samples: {shown_figure(history_samples)} must be a whole number, 2 or more")
        self.interval_s = interval_s
        self._over_for_s = checked_times(over_for_s)
        self._deep_every_s = deep_every_s
        self._history_samples = history_samples
        self._find_source = find_source
        self._on_violation = on_violation
        self._on_sample = on_sample
        self._reset()
        _monitors.add(self)

    def _reset(self) -> None:
        """Start from scratch; also in a forked copy, which has no thread, and perhaps a lock that is held."""
        self._lock = threading.Lock()
        self._watches: dict[str, _Watch] = {}
        self._standing: dict[str, _Watch] = {}
        """Watches by keepers of sandboxes; a caller's own watch takes precedence in answers, and both are judged."""
        self._thread: threading.Thread | None = None
        self._room: DescriptorBudget | None = None

    # ---- what the specification names

    def start_monitoring(
        self, sandbox_id: str, limits: ResourceLimits, source: Source | None = None, *, standing: bool = False
    ) -> None:
        """Without a source: the one from ``find_source``, or from a manager of this process that has the sandbox.

        ``standing``: set by the keeper of the sandbox, for as long as it lives; others may monitor it as well.
        """
        if not isinstance(limits, ResourceLimits):
            raise UsageError(f"{limits!r:.80} is not ResourceLimits")
        watch = self._made(limits, source or self._found(sandbox_id))
        watches = self._standing if standing else self._watches
        with self._lock:
            taken = sandbox_id in watches
            if not taken:
                watches[sandbox_id] = watch
        if taken:
            watch.close()
            raise UsageError(f"{sandbox_id} is monitored already", hint="stop_monitoring it first")
        try:
            self._tell(sandbox_id, watch, watch.look(whole=True))
            self._ensure_thread()
        except BaseException:
            with self._lock:
                watches.pop(sandbox_id, None)
            watch.close()
            raise

    def _found(self, sandbox_id: str) -> Source:
        source = self._find_source(sandbox_id) if self._find_source else offered(sandbox_id)
        if source is None:
            raise UsageError(f"no source for {sandbox_id}", hint="pass source=")
        return source

    def get_usage(self, sandbox_id: str, *, standing: bool = False) -> ResourceUsage:
        """What it used as of the last sample."""
        return self._watch(sandbox_id, standing=standing).usage()

    def check_violations(self, sandbox_id: str) -> list[str]:
        """One line for each limit that has been passed."""
        return [str(violation) for violation in self.violations(sandbox_id)]

    def terminate_if_violated(self, sandbox_id: str) -> bool:
        """End the sandbox if a limit has been passed; return whether it was."""
        watch = self._watch(sandbox_id)
        if not watch.violations():
            return False
        if watch.source.terminate is None:
            raise UsageError(f"{sandbox_id} is over its limits, but its source can't end it",
                             hint="give a source that has terminate")  # fmt: skip
        watch.source.terminate()
        return True

    # ---- and more

    def stop_monitoring(self, sandbox_id: str, *, standing: bool = False) -> ResourceUsage:
        """A final sample and the totals: mean CPU use, peak memory, and sums of the rest."""
        with self._lock:
            watch = (self._standing if standing else self._watches).pop(sandbox_id, None)
            kept = None if standing else self._standing.get(sandbox_id)
        if watch is None and kept is not None:  # the keeper of the sandbox goes on: its limits have to hold
            self._tell(sandbox_id, kept, kept.look(whole=True))
            return kept.usage(whole=True)
        if watch is None:
            raise _unknown(sandbox_id)
        try:
            self._tell(sandbox_id, watch, watch.look(whole=True))
        finally:
            watch.close()
        return watch.usage(whole=True)

    def violations(self, sandbox_id: str, *, standing: bool = False) -> list[Violation]:
        """The limits that have been passed, as data."""
        return self._watch(sandbox_id, standing=standing).violations()

    def history(self, sandbox_id: str) -> list[Sample]:
        """Samples over the whole time, evenly spaced, at most ``history_samples`` of them and the last one."""
        return self._watch(sandbox_id).samples()

    def sample(self, sandbox_id: str, *, standing: bool = False) -> Sample:
        """Take a sample of everything now."""
        watch = self._watch(sandbox_id, standing=standing)
        try:
            self._tell(sandbox_id, watch, watch.look(whole=True))
        except Exception as error:  # raised by a source or a callback, as on the monitor's own thread
            raise _unseen(sandbox_id, error) from error
        return watch.samples()[-1]

    def monitored(self) -> list[str]:
        with self._lock:
            return list(dict.fromkeys((*self._watches, *self._standing)))

    def close(self) -> None:
        """Stop monitoring all sandboxes; what callbacks raised comes after that, the first of it."""
        problems: list[Exception] = []
        for sandbox_id in self.monitored():
            for standing in (False, True):
                try:
                    self.stop_monitoring(sandbox_id, standing=standing)
                except UsageError:
                    continue  # there is no such sandbox, or another thread was faster
                except Exception as error:
                    problems.append(error)
        if problems:
            raise problems[0]

    def __enter__(self) -> ResourceMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- inside

    def _made(self, limits: ResourceLimits, source: Source) -> _Watch:
        with self._lock:
            self._room = self._room or half_of_the_limit()
        meter = Meter(source, self._room, time.monotonic, limits.max_memory_mb * MIB, self._deep_every_s)
        return _Watch(source, meter, Judge(limits, self._over_for_s), History(self._history_samples))

    def _watch(self, sandbox_id: str, *, standing: bool = False) -> _Watch:
        with self._lock:
            watch = (None if standing else self._watches.get(sandbox_id)) or self._standing.get(sandbox_id)
        if watch is None:
            raise _unknown(sandbox_id)
        if watch.problem is not None:
            problem, watch.problem = watch.problem, None
            raise _unseen(sandbox_id, problem) from problem
        self._ensure_thread()
        return watch

    def _tell(self, sandbox_id: str, watch: _Watch, new: list[Violation]) -> None:
        if self._on_sample is not None:
            self._on_sample(sandbox_id, watch.last)
        if self._on_violation is not None:
            for violation in new:
                self._on_violation(sandbox_id, violation)

    def _ensure_thread(self) -> None:
        """Limits hold only while somebody looks: a thread that has died has a successor."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            # By a weak reference: a monitor that nobody holds any more must end with its thread.
            mine = weakref.ref(self)
            thread = threading.Thread(target=_run, args=(mine,), name="ringfence-monitor", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                hint = "raise the limit of processes of this user"
                raise SupervisionError(f"monitoring can't start: {error}", hint=hint) from error
            self._thread = thread

    def _look_at_all(self) -> float | None:
        """The seconds until the next look; None: there is nothing left to look at, and the thread ends."""
        with self._lock:
            watches = [*self._watches.items(), *self._standing.items()]
            if not watches:
                self._thread = None
                return None
        begun_s = time.monotonic()
        for sandbox_id, watch in watches:
            if watch.due_s > begun_s:
                continue
            try:
                new = watch.look()
                if new or self._on_sample is not None:
                    self._tell(sandbox_id, watch, new)
            except BaseException as error:  # of a source or a callback, also sys.exit: the others are still looked at
                watch.problem = error
        return max(0.0, begun_s + self.interval_s - time.monotonic())


def _unseen(sandbox_id: str, problem: BaseException) -> SupervisionError:
    return SupervisionError(f"{sandbox_id} could not be looked at: {str(problem) or type(problem).__name__}")


def _unknown(sandbox_id: str) -> UsageError:
    return UsageError(f"{sandbox_id} is not monitored", hint="start_monitoring it first")


def _run(reference: weakref.ref[ResourceMonitor]) -> None:
    """The thread: sleeps between looks without holding the monitor."""
    while True:
        monitor = reference()
        pause_s = monitor._look_at_all() if monitor is not None else None
        if pause_s is None:
            return
        del monitor
        time.sleep(pause_s)


_monitors: weakref.WeakSet[ResourceMonitor] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for monitor in list(_monitors):
        if monitor._room is not None:
            monitor._room.leave()
        monitor._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
