"""One verification under way: what was given, and what the steps have found so far.

Owns: nothing but the passing of results from step to step. Private to the verifier.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ringfence.evidence.anchors import AnchorResult
from ringfence.evidence.shape import Fault, Problem
from ringfence.evidence.trust import Trust

PROCTOR = "proctor-0.1"
RINGFENCE = "ringfence-3"
UNGRADED = "ringfence-run-1"
OURS = (RINGFENCE, UNGRADED)


class Case:
    def __init__(
        self, *, data: bytes, trust: Trust, now: datetime, verdict_alone: bool = False,
        allow_missing_environment: bool = False, nonce: str | None = None, artifacts_folder: str | None = None,
    ) -> None:  # fmt: skip
        self.data, self.trust, self.now, self.verdict_alone = data, trust, now, verdict_alone
        self.allow_missing_environment, self.nonce = allow_missing_environment, nonce
        self.artifacts_folder = artifacts_folder
        self.document: dict[str, Any] = {}
        self.format = ""
        self.faults: dict[Fault, Problem] = {}
        self.message = b""
        self.run: dict[str, Any] = {}
        self.inputs: dict[str, Any] = {}
        """Empty until step 15, and for Proctor's format."""
        self.anchors: list[AnchorResult] = []
        self.notes: list[str] = []

    @property
    def verdict(self) -> dict[str, Any]:
        verdict: dict[str, Any] = self.document["verdict"]
        return verdict

    @property
    def artifacts(self) -> list[dict[str, Any]]:
        artifacts: list[dict[str, Any]] = self.document["manifest"]["artifacts"]
        return artifacts
