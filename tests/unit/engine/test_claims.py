"""The exception that a runner of ours tells of is believed near a limit, and nowhere else."""

from __future__ import annotations

import pytest

from ringfence.engine import claims
from ringfence.model.outcome import Outcome, Status

FAILED = Outcome(status=Status.FAILED, rc=1, reason="exit code 1", near_limits=("memory", "nofile"))


@pytest.mark.parametrize(("type_name", "message", "capability"), (
    ("MemoryError", "", "memory"),
    ("OSError", "[Errno 24] Too many open files: 'x'", "nofile"),
    ("OSError", "[Errno 12] Cannot allocate memory", "memory"),
    ("OSError", "[Errno 27] File too large", "file_size"),
    ("OSError", "[Errno 28] No space left on device", "disk"),
    ("OSError", "[Errno 2] No such file: '[Errno 24]'", ""),
    ("OSError", "[Errno 24", "nofile"),
    ("OSError", "Too many open files", ""),
    ("mine.MemoryError", "MemoryError", ""),
    ("ValueError", "", ""),
))  # fmt: skip
def test_types_and_numbers_name_a_limit_and_texts_do_not(type_name: str, message: str, capability: str) -> None:
    assert claims.capability_of(type_name, message) == capability


def test_a_claim_counts_near_its_limit_only() -> None:
    told = claims.limited(FAILED, "nofile", "OSError")
    assert (told.status, told.rc, told.limits_hit) == (Status.NOFILE_LIMIT, 1, ("nofile",))
    assert (claims.limited(FAILED, "memory", "MemoryError").rc, "MemoryError" in told.reason) == (137, False)
    assert claims.limited(FAILED, "disk", "OSError") is FAILED and claims.limited(FAILED, "", "x") is FAILED


def test_a_claim_changes_no_other_status() -> None:
    for status in set(Status) - {Status.FAILED}:
        other = Outcome(status=status, rc=0, reason="", near_limits=("memory",))
        assert claims.limited(other, "memory", "MemoryError") is other
