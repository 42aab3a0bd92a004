"""What the worker reported of a pytest run, and how much of it is believed. Pure: every byte is untrusted.

The worker's word about a test is checked against what it can't choose: the exit status and the time as the leader saw
them, the tests that were collected before there was a submission, and which of two contradicting tests is the right
one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from types import MappingProxyType

from ringfence.model.record import record

OUTCOMES = frozenset({"passed", "failed", "error", "skipped", "xfailed", "xpassed"})
MAX_LINE_BYTES = 64 * 1024
MAX_LINES = 400_000
MAX_NAME_CHARS = 4096
_TWIN = "the twin of "
_SLACK_S = 2.0
"""Clocks are read at different moments."""
_CLOCK_S = 0.1
"""No honest clock of the process deviates more; each is read between two readings of the true one."""
_MOST_CLOCKS = 50
_START_S = 30.0
"""The time between the process's start and its first reading, on a very busy machine."""


class Told:
    """What came over the channel, line by line."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.messages: dict[str, str] = {}
        self.uncollected: dict[str, str] = {}
        """Files or classes whose tests could not be collected, and why."""
        self.broken: bool = False
        """One of them failed, and was not only skipped."""
        self.deselected: list[str] = []
        self.took_s = 0.0
        self.finished: int | None = None
        """The exit status that it reported last; absent: it never came to its end."""
        self.clocks: dict[str, float] = {}
        """How far each clock was off as the tests saw it, in seconds."""
        self.lived_s = 0.0
        """How long it ran by its own clock."""
        self.missing = False
        """The interpreter has no pytest."""
        self.doubt = ""
        """Why no runner can have written this, as half a sentence; empty: a runner can."""


def parse(message: bytes | None) -> Told:
    """Return what was reported. It never raises: a line that no worker writes becomes a doubt."""
    told = Told()
    if message is None:
        told.doubt = "more was written into its channel than any run's results need"
    for number, line in enumerate(BytesIO(message or b"")):
        if told.finished is not None:
            told.doubt = told.doubt or "something was reported after its end"
        if number == MAX_LINES or not _take(told, _read(line)):
            told.doubt = told.doubt or "a line of its results can't be read"
            break
    return told


def _read(line: bytes) -> object:
    if len(line) > MAX_LINE_BYTES or not line.endswith(b"\n"):
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _take(told: Told, line: object) -> bool:
    match line:
        case {"test": str(name), "outcome": str(how), "duration_s": int() | float() as s, "message": str(text), **more}:
            return not more and _take_test(told, name, how, s, text)
        case {"uncollected": str(name), "outcome": str(how), "message": str(words), **more} if not more:
            told.uncollected[name[:MAX_NAME_CHARS]] = words
            told.broken |= how == "failed"
        case {"deselected": str(name), **more} if not more:
            told.deselected.append(name[:MAX_NAME_CHARS])
        case {"clock": str(name), "off_s": int() | float() as off, "lived_s": int() | float() as lived, **more}:
            return not more and _take_clock(told, name, off, lived)
        case {"finished": int(status), **more} if type(status) is int and 0 <= status < 256 and not more:
            told.finished = status
        case {"missing": "pytest", **more} if not more:
            told.missing = True
        case _:
            return False
    return True


def _take_test(told: Told, name: str, how: str, took: float, words: str) -> bool:
    if how not in OUTCOMES or isinstance(took, bool) or not 0 <= took < 1e9:
        return False
    if name in told.outcomes:
        told.doubt = told.doubt or f"{name} is reported twice"
    told.outcomes[name] = how
    told.took_s += took
    if words:
        told.messages[name] = words
    return True


def _take_clock(told: Told, name: str, off: float, lived: float) -> bool:
    if name in told.clocks or len(told.clocks) == _MOST_CLOCKS or not (0 <= off <= 1e9 and 0 <= lived < 1e9):
        return False
    told.clocks[name], told.lived_s = off, lived
    return True


# ---- what was fixed before there was a submission


@record
class Expected:
    """The tests of a run as the trusted side knows them, by their names in the mixed files: ``file::Class::function``.
    """

    tests: Mapping[str, str]
    """The test's own name."""
    twins: Mapping[str, tuple[str, str]] = MappingProxyType({})
    """The own name of the test that a twin contradicts, and the one case that it contradicts; empty: all."""
    collected: Mapping[str, str] = MappingProxyType({})
    """How each test ended before, by its own name with its case; an empty word: it could not be collected, and is known
    from the text of its file, without its cases."""
    open_files: frozenset[str] = frozenset()
    """Files that could not be collected: they may have tests that the text does not show."""
    failing: frozenset[str] = frozenset()
    """Own names, with their cases, of the tests whose twin failed for the reference."""
    clocks: frozenset[str] = frozenset()
    """Clocks that went right then: tests may stop one themselves."""
    weak: bool = False
    """There is no reference: nobody has seen a twin fail where its test passes."""


@record
class Read:
    """The results under the tests' own names."""

    tests: Mapping[str, str]
    """By own name and case, how it ended."""
    both: tuple[str, ...]
    """Tests that passed together with their twins."""
    unknown: tuple[str, ...]
    """Reported tests that nobody collected."""
    missing: tuple[str, ...]
    """Collected tests that were not reported."""
    deselected: tuple[str, ...]
    """Tests that ran before, and their twins."""
    twins_failed: int
    messages: Mapping[str, str]


def split(name: str) -> tuple[str, str]:
    """Return the name of a test function and the case, in brackets.

    >>> split("test_a.py::test_one[1-2]")
    ('test_a.py::test_one', '[1-2]')
    """
    base, bracket, case = name.partition("[")
    return base, bracket + case


class KnownTests:
    """Finds the owner of a name. An inherited test is found by its function's name, which is unique."""

    def __init__(self, expected: Expected) -> None:
        self._tests, self._twins = expected.tests, expected.twins
        self._by_function = {_ends_of(name): name for name in (*expected.tests, *expected.twins)}

    def test(self, base: str) -> str:
        """Return the test's own name; empty: it is not a test."""
        name = self.direct(base)
        return _in_class_of(base, self._tests[name]) if name in self._tests else ""

    def twin(self, base: str) -> tuple[str, str]:
        """Return the own name of the test that it contradicts, and the case; empty: it is no twin."""
        name = self.direct(base)
        own, case = self._twins.get(name, ("", ""))
        return (_in_class_of(base, own), case) if own else ("", "")

    def direct(self, base: str) -> str:
        """Return the name as it stands in the text of the file; empty: it is not known."""
        known = base in self._tests or base in self._twins
        return base if known else self._by_function.get(_ends_of(base), "")


def _ends_of(name: str) -> tuple[str, str]:
    return name.partition("::")[0], name.rpartition("::")[2]


def _in_class_of(base: str, own: str) -> str:
    return f"{base.rpartition('::')[0]}::{own.rpartition('::')[2]}"


def read(told: Told, expected: Expected) -> Read:
    """Return the report under the tests' own names, and which of them contradict each other."""
    tests, messages, unknown, known = {}, {}, [], KnownTests(expected)
    for name, outcome in told.outcomes.items():
        base, case = split(name)
        own = known.test(base) or (base if name.partition("::")[0] in expected.open_files else "")
        if known.twin(base)[0]:
            continue
        if own:
            tests[own + case], messages[own + case] = outcome, told.messages.get(name, "")
        else:
            unknown.append(name)
    twins = partners(told, expected)
    both = [own for own, outcome in twins.items() if outcome == tests.get(own) == "passed" and counts(own, expected)]
    return Read(
        tests=tests, both=tuple(both), unknown=tuple(unknown), missing=_missing(told, tests, expected),
        messages=messages, deselected=tuple(_deselected(told, expected)),
        twins_failed=sum(outcome == "failed" for outcome in twins.values()),
    )  # fmt: skip


def _deselected(told: Told, expected: Expected) -> Iterator[str]:
    """The oracle's own options may deselect tests, and did so before too."""
    known = KnownTests(expected)
    for name in told.deselected:
        base, case = split(name)
        own = known.test(base) or known.twin(base)[0] or base
        if own + case in expected.collected or own in expected.collected:
            yield own + case


def partners(told: Told, expected: Expected) -> dict[str, str]:
    """Return how the twins ended, by the own name and case of the test that each contradicts."""
    found, known = {}, KnownTests(expected)
    for name, outcome in told.outcomes.items():
        base, case = split(name)
        own, only = known.twin(base)
        if own and (not only or only in case):
            found[own + case] = outcome
    return found


def counts(own: str, expected: Expected) -> bool:
    """Whether a test and its twin contradict each other, as far as known."""
    return expected.weak or own in expected.failing


def _missing(told: Told, tests: Mapping[str, str], expected: Expected) -> tuple[str, ...]:
    """An unknown case replaces no other: else a test and its twin could be reported with different cases."""
    known = {split(own)[0] for own in tests}
    gone = (own for own, how in expected.collected.items() if own not in tests and (how or own not in known))
    return tuple(dict.fromkeys((*gone, *_without_partner(told, tests, expected))))


def _without_partner(told: Told, tests: Mapping[str, str], expected: Expected) -> Iterator[str]:
    """Twins that were not reported, or not with the cases in which they contradict their tests."""
    ended, twins, cases = partners(told, expected), _cases(told.outcomes), _cases(tests)
    before = {split(own)[0] for own in expected.collected}
    yield from (_TWIN + own for name, (own, _) in expected.twins.items() if name not in twins and own in before)
    yield from (own for own in expected.failing if own not in ended)
    for name, (own, only) in expected.twins.items() if expected.weak else ():
        seen = twins.get(name, set())
        if seen and (seen != cases.get(own) or not any(only in case for case in seen)):
            yield own


def _cases(names: Iterable[str]) -> dict[str, set[str]]:
    """Which cases there are of each function."""
    found: dict[str, set[str]] = {}
    for base, case in map(split, names):
        found.setdefault(base, set()).add(case)
    return found


def misreport(told: Told, expected: Expected, rc: int | None, wall_s: float) -> str:
    """Return what no honest run can have reported of itself, as half a sentence; empty: nothing. ``rc``: the exit
    status as the leader saw it; absent: a signal or a limit ended it."""
    if told.doubt:
        return told.doubt
    if told.finished is None:
        return "the process ended with exit status 0 before its tests did" if rc == 0 else ""
    if rc != told.finished:
        return f"the runner gave exit status {told.finished}, and the process ended with {'none' if rc is None else rc}"
    if told.took_s > wall_s + _SLACK_S:
        return f"its tests took {told.took_s:.1f} s in a run of {wall_s:.1f} s"
    if missing := expected.clocks - told.clocks.keys():
        return f"it does not say how its clock {min(missing)} went"
    bad = any(outcome in ("failed", "error") for outcome in told.outcomes.values()) or told.broken
    if told.finished == 0 and bad:
        return "exit status 0 with failed tests"
    return "exit status 1 without a failed test" if told.finished == 1 and not bad else ""


def forgery(told: Told, found: Read, expected: Expected) -> str:
    """Return what no honest program can have caused, as half a sentence; empty: nothing."""
    if found.unknown:
        return f"it reports a test that does not exist: {found.unknown[0]}"
    if found.deselected:
        return f"{found.deselected[0]} was deselected"
    if told.finished is None:
        return ""
    if len(found.both) >= (2 if expected.weak else 1):
        more = f" and {len(found.both) - 1} more" if len(found.both) > 1 else ""
        return f"{found.both[0]}{more} passed, and so did what contradicts it"
    left_out = [] if told.uncollected else [name for name in found.missing if not _only_read(name, expected)]
    if told.finished in (0, 1) and left_out and not _has_other_cases(left_out, found):
        return f"the runner came to its end without {left_out[0]}"
    return ""


def joined(parts: Iterable[Told]) -> Told:
    """Return the reports of several runs as one. A test that ran twice counts with its worse end."""
    whole, statuses = Told(), []
    for part in parts:
        for name, how in part.outcomes.items():
            whole.outcomes[name] = how if how != "passed" else whole.outcomes.get(name, how)
        whole.messages |= part.messages
        whole.uncollected |= part.uncollected
        whole.broken |= part.broken
        whole.deselected += part.deselected
        whole.clocks |= {name: max(off, whole.clocks.get(name, 0.0)) for name, off in part.clocks.items()}
        whole.took_s, whole.lived_s = whole.took_s + part.took_s, whole.lived_s + part.lived_s
        whole.missing |= part.missing
        whole.doubt = whole.doubt or part.doubt
        statuses.append(part.finished)
    whole.finished = None if None in statuses else max(status or 0 for status in statuses)
    return whole


def wrong_clock(told: Told, expected: Expected, wall_s: float) -> str:
    """Return which clock went wrong, as half a sentence; empty: all went right. A test that measures time believes a
    clock that code under test can exchange. No forgery: a program that plays with clocks may have forgotten to put one
    back."""
    wrong = [name for name, off in told.clocks.items() if off > _CLOCK_S and name in expected.clocks]
    if wrong:
        return f"the clock {wrong[0]} that its tests read was off by {min(told.clocks[wrong[0]], 9999.0):.1f} s"
    if expected.clocks and told.finished is not None and told.lived_s + 2 * _START_S < wall_s:
        return f"its clocks told {told.lived_s:.1f} s in a run of {wall_s:.1f} s"
    return ""


def true_clocks(told: Told) -> frozenset[str]:
    """Return the clocks that went right in a run."""
    return frozenset(name for name, off in told.clocks.items() if off <= _CLOCK_S)


def _only_read(missing: str, expected: Expected) -> bool:
    """Whether it is known from the text alone: pytest may not consider it a test at all."""
    return expected.collected.get(missing.removeprefix(_TWIN)) == ""


def _has_other_cases(missing: list[str], found: Read) -> bool:
    """Cases may come from the code under test, so wrong code has others: no forgery, but no pass either."""
    seen = {split(own)[0] for own in found.tests}
    return all(split(own)[0] in seen for own in missing)


def failures(found: Read, expected: Expected) -> list[str]:
    """Return the tests that did not end as they must: passed, or skipped or failing as expected, as they did before."""
    ended = found.tests.items()
    bad = [own for own, outcome in ended if outcome != "passed" and not _as_before(own, outcome, expected)]
    return [*bad, *(own for own in found.missing if own not in bad)]


def _as_before(own: str, outcome: str, expected: Expected) -> bool:
    return outcome in ("skipped", "xfailed", "xpassed") and expected.collected.get(own) == outcome
