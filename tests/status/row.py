"""What a row of the status table is, and what it must have in each state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tests.status.facts import Fact


class State(StrEnum):
    """How far an interface of a specification is there."""

    WORKS = "works"
    LIMITED = "works with these limits"
    NOT_YET = "not yet"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What somebody writes who wants it all the same, and the words in which that is refused."""

    written: str
    """A command line, or an expression with ``ringfence`` in it."""
    words: str
    files: Mapping[str, str] = field(default_factory=dict)
    """By path in the current directory."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One interface, or several of which the same is true."""

    interface: str
    """In the words of the specification."""
    state: State
    told: str = ""
    """The limits, or what happens instead."""
    here: tuple[Fact, ...] = ()
    """Where we have it."""
    proof: tuple[str, ...] = ()
    """Tests, as ``file::name``, or a file of them."""
    adr: tuple[int, ...] = ()
    tried: Tried | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows under one heading."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Specification:
    """One of the four, with all that it names."""

    title: str
    about: str
    groups: tuple[Group, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for group in self.groups for row in group.rows)


def works(interface: str, *here: Fact, proof: tuple[str, ...]) -> Row:
    return Row(interface=interface, state=State.WORKS, here=here, proof=proof)


def limited(interface: str, told: str, *here: Fact, proof: tuple[str, ...], adr: tuple[int, ...] = ()) -> Row:
    return Row(interface=interface, state=State.LIMITED, told=told, here=here, proof=proof, adr=adr)


def not_yet(interface: str, told: str, tried: Tried, *, proof: tuple[str, ...] = ()) -> Row:
    return Row(interface=interface, state=State.NOT_YET, told=told, tried=tried, proof=proof)


def refused(
    interface: str, told: str, *here: Fact, adr: tuple[int, ...], tried: Tried | None = None,
    proof: tuple[str, ...] = (),
) -> Row:  # fmt: skip
    return Row(interface=interface, state=State.REFUSED, told=told, here=here, proof=proof, adr=adr, tried=tried)


def named(file: str, *names: str) -> tuple[str, ...]:
    """Tests of one file below ``tests``; without names all of it."""
    path = f"tests/{file}.py"
    return tuple(f"{path}::test_{name}" for name in names) or (path,)
