"""Ringfence as a contender, and how contenders are gathered: who can't take part is left out with a word."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ringfence
from bench import peers
from bench.harness import Answer, NotHere, Table, Turn, timed_ms
from ringfence import IsolationLevel, SandboxPolicy, UnavailableError

STRICT = SandboxPolicy(isolation=IsolationLevel.STRICT)
POOL, RUN = "ringfence pool, warm", "ringfence run, strict"

Action = Callable[[], object]
"""One thing done; its time is taken from outside."""
Maker = Callable[[], Callable[[], Any]]
"""Makes a contender ready, outside the time that is measured, or says why it can't be; mostly gives a Turn."""


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Those that take part, and what is to be told of all of them."""

    turns: dict[str, Callable[[], Any]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def answer(self, *tables: Table, findings: Sequence[str] = ()) -> Answer:
        found = {name: peers.find(name) for name in peers.NAMES if any(name in turn for turn in self.turns)}
        versions = {name: peer.version for name, peer in found.items() if isinstance(peer, peers.Ready)}
        return Answer(tables=tables, skipped=self.skipped, versions=versions, findings=tuple(findings))


def gather(makers: Mapping[str, Maker]) -> Gathered:
    gathered = Gathered()
    for name, make in makers.items():
        try:
            turn = make()
            turn()  # a turn that counts for nothing: what can't be run must not end the others
        except (NotHere, UnavailableError) as reason:
            gathered.skipped[name] = str(reason)
        else:
            gathered.turns[name] = turn
    return gathered


@contextlib.contextmanager
def open_pool(policy: SandboxPolicy = STRICT, *, warm: int) -> Iterator[Any]:
    make = getattr(ringfence, "Pool", None)
    if make is None:
        raise NotHere("this version of ringfence has no Pool")
    with make(policy, warm=warm) as pool:
        yield pool


def pooled_snippet(stack: contextlib.ExitStack, *, warm: int) -> Callable[[], None]:
    """The snippet in a warm sandbox; each run has one of its own."""
    pool = stack.enter_context(open_pool(warm=warm))

    def once() -> None:
        expect(pool.run_source(peers.SNIPPET), peers.ANSWER)

    return once


def run_strict(argv: Sequence[str], expected: bytes, policy: SandboxPolicy = STRICT) -> Callable[[], None]:
    return lambda: expect(ringfence.run(argv, policy), expected)


def expect(outcome: Any, expected: bytes) -> None:
    """A run that went wrong must not pass for a fast one."""
    if outcome.rc != 0 or outcome.stdout != expected:
        raise AssertionError(f"{outcome.status} rc {outcome.rc}: {outcome.reason}")


def peer(name: str, argv: Sequence[str], expected: bytes) -> Maker:
    def make() -> Turn:
        ready = peers.need(name)

        def once() -> None:
            told = ready.run(argv)
            assert told == expected, f"{name} printed {told!r}"

        return timed_ms(once)

    return make


def everybody(argv: Sequence[str], expected: bytes, ours: Mapping[str, Maker]) -> Gathered:
    """Ours, every peer, a plain child and the floor, on the same argv."""
    makers = dict(ours)
    makers[RUN] = lambda: timed_ms(run_strict(argv, expected))
    makers |= {name: peer(name, argv, expected) for name in peers.NAMES}
    makers["no sandbox"] = lambda: timed_ms(lambda: peers.plain(argv))
    makers["floor: fork, unshare, mounts, wait in C"] = lambda: peers.floor_ms
    return gather(makers)
