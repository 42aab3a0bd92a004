"""Reads the plain ways of a command line without argparse, which takes longer to load than a small job takes to run.

Anything else (help, mistakes, rarer flags, ``--flag=value``) is left to argparse, which alone decides what is wrong.
"""

from __future__ import annotations

from _collections_abc import Mapping

from ringfence.model.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import SimpleNamespace


@record
class QuickFlags:
    """Flags of a command, each with the name of its value."""

    switches: Mapping[str, str]
    values: Mapping[str, str]
    constants: Mapping[str, tuple[str, object]]
    """Switches that stand for a value: (its name, the value)."""
    lists: Mapping[str, str]
    """Flags that may be repeated, each with the name of the list of its values."""


def read_quickly(words: list[str], found: SimpleNamespace, flags: QuickFlags, last: str = "") -> list[str] | None:
    """Set what the flags say, and return what follows them: ``--`` and a command, a command alone or after the switch
    ``last``, or nothing. None: this is for argparse."""
    vars(found).update(dict.fromkeys(flags.switches.values(), False))
    vars(found).update(dict.fromkeys(flags.values.values()))
    vars(found).update({name: [] for name in flags.lists.values()})
    place = 0
    while place < len(words) and words[place] != "--":
        word, following = words[place], words[place + 1 : place + 2]
        takes = bool(following) and not following[0].startswith("-")
        if word in flags.constants:
            setattr(found, *flags.constants[word])
        elif word in flags.switches:
            setattr(found, flags.switches[word], True)
            if word == last and takes:
                return words[place + 1 :]
        elif word in flags.values and takes:
            setattr(found, flags.values[word], following[0])
            place += 1
        elif word in flags.lists and takes:
            getattr(found, flags.lists[word]).append(following[0])
            place += 1
        else:
            return words[place:] if word[:1] not in ("", "-") else None
        place += 1
    return words[place:]
