"""One verification under way: what was given, and what the steps have found so far.

Owns: nothing but the passing of results from step to step. Private to the verifier.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ringfence.evidence.anchors import AnchorResult
from ringfence.evidence.shape import Fault, Problem
from ringfence.evidence.trust import Trust

PROCTOR = "proctor-0.1"
RINGFENCE = "ringfence-3"
UNGRADED = "ringfence-run-1"
OURS = (RINGFENCE, UNGRADED)


@dataclass(kw_only=True)
class Case:
    data: bytes
    trust: Trust
    now: datetime
    verdict_alone: bool = False
    allow_missing_environment: bool = False
    nonce: str | None = None
    artifacts_folder: str | None = None
    document: dict[str, Any] = field(default_factory=dict)
    format: str = ""
    faults: dict[Fault, Problem] = field(default_factory=dict)
    message: bytes = b""
    run: dict[str, Any] = field(default_factory=dict)
    # empty until step 15, and for Proctor's format
    inputs: dict[str, Any] = field(default_factory=dict)
    anchors: list[AnchorResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> dict[str, Any]:
        verdict: dict[str, Any] = self.document["verdict"]
        return verdict

    @property
    def artifacts(self) -> list[dict[str, Any]]:
        artifacts: list[dict[str, Any]] = self.document["manifest"]["artifacts"]
        return artifacts
