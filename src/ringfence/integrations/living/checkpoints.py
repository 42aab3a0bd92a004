"""How many checkpoints of a sandbox there may be: who makes them is not trusted, and their disk is the host's."""

from __future__ import annotations

from ringfence.checkpoint.transaction import Transaction
from ringfence.model.limits import disk_of_a_box, format_size
from ringfence.model.policy import SandboxPolicy

MOST_CHECKPOINTS = 100
"""That one box keeps."""
MOST_CHECKPOINT_DISKS = 4
"""Its checkpoints may take so many times what its policy lets a job write: each may take as much of the host's disk
again as the box's own files, and the policy's limit is about those alone."""


def problem_with_another(transaction: Transaction, policy: SandboxPolicy) -> str:
    """Why there may be no further one; empty if there may. The first one always may: without any there is nothing to
    remove."""
    kept, limit = len(transaction.checkpoints()), disk_of_a_box(policy.disk_bytes, policy.mem_bytes, policy.isolation)
    if kept >= MOST_CHECKPOINTS:
        return f"the box has {kept} checkpoints, and may keep {MOST_CHECKPOINTS}"
    if not kept or limit is None:
        return ""
    used, more, most = transaction.used_bytes(), transaction.layer_bytes(), MOST_CHECKPOINT_DISKS * limit
    if used + more <= most:
        return ""
    told = f"{format_size(used)}, a further one up to {format_size(more)}"
    return f"the checkpoints of the box take {told}; {format_size(most)} is the limit"
