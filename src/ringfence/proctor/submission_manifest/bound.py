"""What ties a manifest to a run, for runs with and without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ringfence.model.record import record
from ringfence.proctor.findings import Finding


@record
class Bound:
    """A manifest and a run that belong together."""

    documents: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """Artifacts of the run by their names."""
    findings: tuple[Finding, ...] = ()
    shown: tuple[str, ...] = ()
    """The part of it that the agent is shown."""
    confirm: Callable[[], None] = lambda: None
    """EvidenceError where what is there has changed since."""


NOT_BOUND = Bound()
