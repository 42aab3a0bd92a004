"""ringfence: run code you do not trust, undo what it did, and prove what happened.

Public names are looked up when they are first used: the process inside a sandbox and the verifier
must not load the whole toolkit.
"""

from __future__ import annotations

# Not taken from typing, whose import costs more than that of this whole package.
TYPE_CHECKING = False

__version__ = "0.1.0"

_PUBLIC = {
    "AttackError": "ringfence.errors",
    "BusyError": "ringfence.errors",
    "CallError": "ringfence.errors",
    "Checkpoint": "ringfence.manager.rollback",
    "CheckpointError": "ringfence.errors",
    "ConflictError": "ringfence.errors",
    "ContainerMonitor": "ringfence.docker_sandbox.monitor",
    "DockerConfig": "ringfence.docker_sandbox.config",
    "DockerExecutionResult": "ringfence.docker_sandbox.result",
    "DockerExecutor": "ringfence.docker_sandbox.executor",
    "Enforcement": "ringfence.model.outcome",
    "Event": "ringfence.model.events",
    "ExecutionResult": "ringfence.manager.result",
    "FileError": "ringfence.errors",
    "ForeignError": "ringfence.errors",
    "IsolationLevel": "ringfence.model.limits",
    "Job": "ringfence.model.job",
    "LateAttemptError": "ringfence.errors",
    "Mechanism": "ringfence.model.outcome",
    "Outcome": "ringfence.model.outcome",
    "PolicyError": "ringfence.errors",
    "Pool": "ringfence.engine.pool",
    "RefusedError": "ringfence.errors",
    "ResourceLimits": "ringfence.monitor.limits",
    "ResourceMonitor": "ringfence.monitor.resource_monitor",
    "ResourceUsage": "ringfence.monitor.limits",
    "RollbackResult": "ringfence.manager.result",
    "RollbackSystem": "ringfence.manager.rollback",
    "SandboxConfig": "ringfence.manager.config",
    "SandboxContext": "ringfence.manager.context",
    "SandboxError": "ringfence.errors",
    "SandboxManager": "ringfence.manager.manager",
    "SandboxMode": "ringfence.manager.config",
    "SandboxPolicy": "ringfence.model.policy",
    "SandboxResultV2": "ringfence.pytest_runner.result",
    "SecurityValidationResult": "ringfence.validation.result",
    "SecurityValidator": "ringfence.validation.validator",
    "SetupError": "ringfence.errors",
    "Status": "ringfence.model.outcome",
    "SupervisionError": "ringfence.errors",
    "Transaction": "ringfence.checkpoint.transaction",
    "UnavailableError": "ringfence.errors",
    "Usage": "ringfence.model.outcome",
    "UsageError": "ringfence.errors",
    "bundle": "ringfence.attest.run_bundle",
    "open": "ringfence.engine.box",
    "run": "ringfence.engine.run",
    "run_pytests": "ringfence.pytest_runner.runner",
    "run_pytests_v2": "ringfence.pytest_runner.runner",
    "transaction_kind": "ringfence.engine.run",
}

# Without ``open``: a star import must not take Python's own away.
__all__ = sorted({*_PUBLIC, "__version__"} - {"open"})


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ringfence' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_PUBLIC, "__version__"])


if TYPE_CHECKING:
    from ringfence.attest.run_bundle import bundle as bundle
    from ringfence.checkpoint.transaction import Transaction as Transaction
    from ringfence.docker_sandbox.config import DockerConfig as DockerConfig
    from ringfence.docker_sandbox.executor import DockerExecutor as DockerExecutor
    from ringfence.docker_sandbox.monitor import ContainerMonitor as ContainerMonitor
    from ringfence.docker_sandbox.result import DockerExecutionResult as DockerExecutionResult
    from ringfence.engine.box import open as open
    from ringfence.engine.pool import Pool as Pool
    from ringfence.engine.run import run as run
    from ringfence.engine.run import transaction_kind as transaction_kind
    from ringfence.errors import AttackError as AttackError
    from ringfence.errors import BusyError as BusyError
    from ringfence.errors import CallError as CallError
    from ringfence.errors import CheckpointError as CheckpointError
    from ringfence.errors import ConflictError as ConflictError
    from ringfence.errors import FileError as FileError
    from ringfence.errors import ForeignError as ForeignError
    from ringfence.errors import LateAttemptError as LateAttemptError
    from ringfence.errors import PolicyError as PolicyError
    from ringfence.errors import RefusedError as RefusedError
    from ringfence.errors import SandboxError as SandboxError
    from ringfence.errors import SetupError as SetupError
    from ringfence.errors import SupervisionError as SupervisionError
    from ringfence.errors import UnavailableError as UnavailableError
    from ringfence.errors import UsageError as UsageError
    from ringfence.manager.config import SandboxConfig as SandboxConfig
    from ringfence.manager.config import SandboxMode as SandboxMode
    from ringfence.manager.context import SandboxContext as SandboxContext
    from ringfence.manager.manager import SandboxManager as SandboxManager
    from ringfence.manager.result import ExecutionResult as ExecutionResult
    from ringfence.manager.result import RollbackResult as RollbackResult
    from ringfence.manager.rollback import Checkpoint as Checkpoint
    from ringfence.manager.rollback import RollbackSystem as RollbackSystem
    from ringfence.model.events import Event as Event
    from ringfence.model.job import Job as Job
    from ringfence.model.limits import IsolationLevel as IsolationLevel
    from ringfence.model.outcome import Enforcement as Enforcement
    from ringfence.model.outcome import Mechanism as Mechanism
    from ringfence.model.outcome import Outcome as Outcome
    from ringfence.model.outcome import Status as Status
    from ringfence.model.outcome import Usage as Usage
    from ringfence.model.policy import SandboxPolicy as SandboxPolicy
    from ringfence.monitor.limits import ResourceLimits as ResourceLimits
    from ringfence.monitor.limits import ResourceUsage as ResourceUsage
    from ringfence.monitor.resource_monitor import ResourceMonitor as ResourceMonitor
    from ringfence.pytest_runner.result import SandboxResultV2 as SandboxResultV2
    from ringfence.pytest_runner.runner import run_pytests as run_pytests
    from ringfence.pytest_runner.runner import run_pytests_v2 as run_pytests_v2
    from ringfence.validation.result import SecurityValidationResult as SecurityValidationResult
    from ringfence.validation.validator import SecurityValidator as SecurityValidator
