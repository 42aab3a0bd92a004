"""What a system call filter is made of: actions, argument conditions, rules with a reason, profiles.

Plain data and one pure function, ``decide``: the meaning of a profile in Python, which the supervisor asks
about a notification and the tests hold against the compiled program. It deliberately compiles and installs
nothing, and is loaded in the parent only: the sandbox is handed bytes.
"""

from __future__ import annotations

from _collections_abc import Callable

from ringfence.errors import PolicyError
from ringfence.kernel.syscall_numbers import AARCH64, AUDIT_ARCH, NAMES, NO_CALL, NUMBERS, X32_BIT, X86_64, name_of
from ringfence.model.record import record
from ringfence.model.str_enum import StrEnum

LOW_32 = 0xFFFFFFFF
ALL_64 = 0xFFFFFFFFFFFFFFFF


class Kind(StrEnum):
    """What becomes of a call; with a listener the supervisor is told of all but the first and the last."""

    ALLOW = "allow"
    NOTE = "note"  # told, then goes on; without a listener: allowed
    WITNESS = "witness"  # as NOTE, but no record: it may tell why a job fails
    WATCH = "watch"  # as NOTE, but worth a record only if it names something hidden
    WATCH_DENIED = "watch denied"  # as WATCH, then fails with the errno; without a listener: the errno
    REPORT = "report"  # told, then fails with the errno; without a listener: the errno
    FORBID = "forbid"  # told, then the process is killed; without a listener: killed by the kernel, unnamed
    DENY = "deny"  # the errno, nobody is told: for what honest programs try at every start


@record
class Action:
    """A kind and, for REPORT, WATCH_DENIED and DENY, the errno that the program sees."""

    kind: Kind
    errno: int = 0


@record
class When:
    """A condition on one argument: (argument & bits) is one of the values, or with negate none of them.

    Most calls take int or unsigned int and the kernel drops the upper half, so the lower half is the default:
    comparing all 64 bits there would let ``TIOCSTI | 1 << 32`` through.
    """

    arg: int
    values: tuple[int, ...]
    bits: int = LOW_32
    negate: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.arg <= 5 or not 0 < self.bits <= ALL_64 or not self.values:
            raise PolicyError("when", f"no such argument, no bits or no values: {self}")
        if any(value & ~self.bits for value in self.values):
            raise PolicyError("when", f"a value outside the bits can never match: {self}")

    def holds(self, args: tuple[int, ...]) -> bool:
        """Whether the condition is true of these six registers."""
        return ((args[self.arg] & self.bits) in self.values) != self.negate


def one_of(arg: int, *values: int, bits: int = LOW_32) -> When:
    """The argument, as far as the bits go, is one of these."""
    return When(arg=arg, values=values, bits=bits)


def none_of(arg: int, *values: int, bits: int = LOW_32) -> When:
    """The argument, as far as the bits go, is none of these."""
    return When(arg=arg, values=values, bits=bits, negate=True)


def any_bit(arg: int, bits: int) -> When:
    """At least one of the bits is set."""
    return none_of(arg, 0, bits=bits)


@record
class Rule:
    """What happens to some calls when all conditions hold, and why."""

    calls: tuple[str, ...]
    action: Action
    reason: str
    when: tuple[When, ...] = ()
    # none: always

    def __post_init__(self) -> None:
        for call in self.calls:
            if call not in NUMBERS[X86_64] and call not in NUMBERS[AARCH64]:
                raise PolicyError("calls", f"no system call is named {call!r}")


@record
class Profile:
    """Rules in the order in which they are asked: closed, noted, open. The first that holds decides."""

    name: str
    closed: tuple[Rule, ...]
    open: tuple[Rule, ...]
    noted: tuple[Rule, ...] = ()
    unknown: Rule
    # for a number that no table knows, and a known call that no rule decides
    foreign: Rule
    # for a call through the entry of another architecture

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules, in the order in which they are asked."""
        return self.closed + self.noted + self.open

    def chains(self) -> dict[str, list[Rule]]:
        """For each call the rules that can decide it, in order; the last of them has no condition."""
        chains: dict[str, list[Rule]] = {}
        for rule in self.rules:
            for call in rule.calls:
                chain = chains.setdefault(call, [])
                if not chain or chain[-1].when:
                    chain.append(rule)
        for chain in chains.values():
            if chain[-1].when:
                chain.append(self.unknown)
        return chains


def decide(profile: Profile, number: int, args: tuple[int, ...], audit_arch: int) -> Rule:
    """The rule that decides this call, from what the kernel says of it (struct seccomp_data)."""
    arch = next((name for name, known in AUDIT_ARCH.items() if known == audit_arch), None)
    if arch is None or (arch == X86_64 and X32_BIT <= number != NO_CALL):
        return profile.foreign
    call = name_of(number, arch)
    for rule in profile.rules:
        if call in rule.calls and all(condition.holds(args) for condition in rule.when):
            return rule
    return profile.unknown


def decider(profile: Profile, arch: str) -> Callable[[int, tuple[int, ...], int], Rule]:
    """``decide`` for one profile, made quick for the calls of one architecture that come again: most sandboxes tell of
    one or two, so nothing is made beforehand."""
    by_number: dict[int, list[Rule]] = {}
    rules, own = profile.rules, AUDIT_ARCH[arch]

    def decide_quickly(number: int, args: tuple[int, ...], audit_arch: int) -> Rule:
        call = NAMES[arch].get(number) if audit_arch == own else None
        if call is not None and number not in by_number:
            by_number[number] = [rule for rule in rules if call in rule.calls]
        for rule in by_number[number] if call is not None else ():
            if all(condition.holds(args) for condition in rule.when):
                return rule
        return decide(profile, number, args, audit_arch)

    return decide_quickly
