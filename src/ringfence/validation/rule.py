"""``Rule``: one thing that is looked for, as data.

A rule says what it finds by lists of words. Some have only an id: a word is not enough to find them, so the checks
report them by that id.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ringfence.model.record import record
from ringfence.validation.result import ERROR


@record
class Rule:
    """One thing that is looked for, why, and how bad it is."""

    id: str
    category: str
    reason: str
    level: str = ERROR
    modules: tuple[str, ...] = ()
    """Modules whose import is a finding, with all below them."""
    names: tuple[str, ...] = ()
    """Things by their full names (``os.system``, ``builtins.eval``) whose mention is a finding."""
    calls: tuple[str, ...] = ()
    """Things by their full names that are found where they are called."""
    attributes: tuple[str, ...] = ()
    """Attributes whose mention is a finding, whatever object they belong to."""
    methods: tuple[str, ...] = ()
    """Attributes that are found where they are called."""
    only: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Modules whose attributes are all findings except these; the modules must not be passed on either."""
    allow: tuple[str, ...] = ()
    """What a project removes from the lists above."""
