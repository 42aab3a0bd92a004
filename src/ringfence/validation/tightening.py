"""``tightened``: a policy without what the code does not use."""

from __future__ import annotations

from ringfence.model.policy import NO_NETWORK, SandboxPolicy
from ringfence.validation.result import SecurityValidationResult


def tightened(policy: SandboxPolicy, result: SecurityValidationResult) -> SandboxPolicy:
    """Return the policy with less where the code asks for less, never with more: no network where none is used, no
    writable path where no file is, no variable of the caller where none is read.

    Code with errors, or with libraries that the validator does not know, leaves the policy as it is.
    """
    if not result.is_valid or "unknown" in result.uses:
        return policy
    changes: dict[str, object] = {}
    if "network" not in result.uses and policy.network_rule != NO_NETWORK:
        changes |= {"network": NO_NETWORK, "network_limits": {}}
    if "files" not in result.uses and policy.writable_paths:
        changes["writable_paths"] = ()
    if "environment" not in result.uses and policy.pass_environment:
        changes["pass_environment"] = ()
    return policy.with_changes(**changes) if changes else policy
