"""``SafeConfig``: when an agent's tools are sandboxed, what is refused outright, and when changes are kept."""

from __future__ import annotations

from typing import Any

from ringfence.errors import PolicyError
from ringfence.integrations.deep_agent.call import MAX_PARAMETER_BYTES
from ringfence.integrations.deep_agent.decision import checked_score
from ringfence.manager.config import SandboxConfig, SandboxMode
from ringfence.model.record import made_by, record
from ringfence.model.str_enum import StrEnum


class Commit(StrEnum):
    """When what a sandboxed tool changed reaches the allowed paths."""

    AT_END = "at-end"
    """When the session ends without an attack: ``close``, ``reset``, or the end of a ``with`` that raises nothing.
    Until then an attack is undone as a whole."""
    EACH_CALL = "each-call"
    """After every call that succeeds. What is committed stays, also when a later call turns out to be an attack."""
    ON_REQUEST = "on-request"
    """When ``SafeDeepAgent.commit`` is called: the end of the session drops the rest."""


@record
class SafeConfig:
    """``enable_sandboxing`` and ``sandbox_mode`` absent: as ``sandbox`` says.

    >>> SafeConfig().sandbox_mode is SandboxMode.AUTO
    True
    """

    sandbox: SandboxConfig = made_by(default_factory=SandboxConfig)
    enable_sandboxing: bool | None = None
    """False: every tool runs in the agent's own process, whatever its risk."""
    sandbox_mode: SandboxMode | None = None
    commit: Commit = Commit.AT_END
    max_risk: float = 1.0
    """Calls with a higher score are refused. 1: none is; the sandbox is the wall."""
    max_parameter_bytes: int = MAX_PARAMETER_BYTES
    """Calls with more are refused, since they can't be inspected."""

    def __post_init__(self) -> None:
        if not isinstance(self.sandbox, SandboxConfig):
            raise PolicyError("sandbox", f"{self.sandbox!r} is not a SandboxConfig")
        self._fill("enable_sandboxing", self.sandbox.enable_sandboxing)
        self._fill("sandbox_mode", self.sandbox.sandbox_mode)
        checked_score(self.max_risk)
        for name, kind in (("sandbox_mode", SandboxMode), ("commit", Commit)):
            try:
                object.__setattr__(self, name, kind(str(getattr(self, name))))
            except ValueError:
                said = f"{getattr(self, name)!r} is not one of {', '.join(kind)}"
                raise PolicyError(name, said) from None
        if type(self.max_parameter_bytes) is not int or self.max_parameter_bytes < 1:
            raise PolicyError("max_parameter_bytes", f"{self.max_parameter_bytes!r} is not a number of bytes")
        if type(self.enable_sandboxing) is not bool:
            raise PolicyError("enable_sandboxing", f"{self.enable_sandboxing!r} is not true or false")

    def _fill(self, name: str, value: Any) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)
