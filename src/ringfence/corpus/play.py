"""Plays the corpus: each cheat against the careless harness and against a runner, and its honest twin."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import BinaryIO, TypeVar

from ringfence.corpus.cheat import Cheat
from ringfence.corpus.naive import play_naively
from ringfence.corpus.outside import Outside, Setting, put_up
from ringfence.corpus.result import RunResult, read_result
from ringfence.corpus.writing import Places, agent_text, careless, sandboxed, write_task
from ringfence.errors import SandboxError, UsageError
from ringfence.model.record import record

OUR_RUNNER = (sys.executable, "-P", "-m", "ringfence.corpus.our_runner")
_TOLD_BYTES = 2000
_T = TypeVar("_T")


@record
class Played:
    """The result of one case. None: that run was left out, or failed as ``problem`` says."""

    cheat: Cheat
    won_naively: bool | None = None
    result: RunResult | None = None
    twin: RunResult | None = None
    problem: str = ""

    @property
    def blocked(self) -> bool:
        """Whether the cheat earned nothing."""
        return self.result is not None and self.result.score == 0

    @property
    def recorded(self) -> bool:
        """Whether the run was told as dishonest."""
        return self.result is not None and self.result.recorded

    @property
    def honest(self) -> bool:
        """Whether the twin was rewarded and stayed clean."""
        return self.twin is not None and self.twin.score > 0

    @property
    def held(self) -> bool:
        """Whether all is as expected; a case whose control did not win proves nothing."""
        as_told = self.recorded or not self.cheat.recorded
        return bool(self.won_naively) and self.blocked and as_told and self.honest and not self.problem


def play_all(cheats: Sequence[Cheat], runner: Sequence[str], jobs: int, timeout_s: float) -> Iterator[Played]:
    """Play many at a time; each is given as soon as it is over."""
    with ThreadPoolExecutor(max_workers=jobs) as threads:
        try:
            running = [threads.submit(play, cheat, runner, timeout_s) for cheat in cheats]
            for each in as_completed(running):
                yield each.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def play(cheat: Cheat, runner: Sequence[str], timeout_s: float) -> Played:
    """Play one: the control, the cheat, the twin."""
    problems: list[str] = []
    won = _attempt("control", problems, lambda: control(cheat))
    result = _attempt("cheat", problems, lambda: play_with(cheat, runner, timeout_s))
    twin = _attempt("twin", problems, lambda: play_with(cheat, runner, timeout_s, honest=True))
    return Played(cheat=cheat, won_naively=won, result=result, twin=twin, problem="; ".join(problems))


def _attempt(what: str, problems: list[str], work: Callable[[], _T]) -> _T | None:
    try:
        return work()
    except (SandboxError, OSError, subprocess.SubprocessError) as error:
        problems.append(f"{what}: {error}")
        return None


def control(cheat: Cheat, *, honest: bool = False) -> bool:
    """Return whether the cheat wins against the careless harness; ``honest``: whether its twin does."""
    with tempfile.TemporaryDirectory(prefix="corpus-", ignore_cleanup_errors=True) as folder:
        places = careless(folder, cheat)
        write_task(cheat, places)
        with put_up(cheat.outside, _setting(places, above=(folder,))) as outside:
            return play_naively(cheat, places, outside, honest=honest) > 0


def play_with(cheat: Cheat, runner: Sequence[str], timeout_s: float, *, honest: bool = False) -> RunResult:
    """Call the runner for the cheat or its twin, and return what it says."""
    with tempfile.TemporaryDirectory(prefix="corpus-", ignore_cleanup_errors=True) as folder:
        places = sandboxed(folder, cheat)
        write_task(cheat, places)
        with put_up(cheat.outside, _setting(places, above=(os.path.dirname(places.task),))) as outside:
            agent = os.path.join(folder, "agent.sh")
            with open(agent, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\n" + agent_text(cheat, places, outside.places, honest=honest))
            os.chmod(agent, 0o755)
            return _call(runner, places, agent, outside, timeout_s)


def _setting(places: Places, above: tuple[str, ...]) -> Setting:
    return Setting(secret=places.secret, mark=places.mark, shared=places.shared, home=places.home, above=above,
                   oracle=os.path.join(places.task, "oracle"))  # fmt: skip


def _call(runner: Sequence[str], places: Places, agent: str, outside: Outside, timeout_s: float) -> RunResult:
    out = os.path.join(places.folder, "out")
    os.mkdir(out, 0o700)
    with open(os.path.join(places.folder, "runner.log"), "w+b") as log:  # a pipe would wait for what a runner leaves
        try:
            done = subprocess.run(
                [*runner, places.task, agent, out], env=_variables(places, outside), pass_fds=outside.descriptors,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=timeout_s, check=False,
            )  # fmt: skip
        except OSError as error:
            raise UsageError(f"can't start the runner {runner[0]}: {error.strerror}") from None
        if done.returncode != 0:
            raise UsageError(f"the runner ended with {done.returncode}: {_last_words(log)}")
    return read_result(out)


def _last_words(log: BinaryIO) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - _TOLD_BYTES))
    return log.read(_TOLD_BYTES).decode("utf-8", "backslashreplace").strip()


def _variables(places: Places, outside: Outside) -> Mapping[str, str]:
    """The operator's variables, but with the home of the case: an agent must not touch the real home."""
    return {**os.environ, "HOME": places.home, **outside.variables}
