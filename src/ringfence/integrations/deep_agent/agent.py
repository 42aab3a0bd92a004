"""``SafeDeepAgent``: tools of an agent, each call through four phases: authorise, look for attacks, run, write down.

Owns the order of the phases and what follows from each. Risk, detection and authorisation are functions that can be
replaced; isolation and undo are the manager's. There is no model in here: a planner calls ``run_tool``, or is given as
``planner``. One call runs at a time.
"""

from __future__ import annotations

import difflib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ringfence.errors import AttackError, CheckpointError, LateAttemptError, RefusedError, UsageError
from ringfence.integrations.deep_agent.audit import AuditLog
from ringfence.integrations.deep_agent.call import ToolCall, texts_of
from ringfence.integrations.deep_agent.config import Commit, SafeConfig
from ringfence.integrations.deep_agent.decision import Authorize, Decision, Risk, allow_up_to, assess, checked_score
from ringfence.integrations.deep_agent.detection import Detect, ExfiltrationDetector, Finding, Step
from ringfence.integrations.deep_agent.paths import is_below
from ringfence.integrations.deep_agent.result import ToolResult, printable
from ringfence.integrations.deep_agent.risk import RiskModel
from ringfence.integrations.deep_agent.safe_repr import described, type_name
from ringfence.integrations.deep_agent.session import SandboxSession, tell_unended
from ringfence.manager.config import SandboxConfig, SandboxMode
from ringfence.manager.manager import SandboxManager
from ringfence.manager.result import ExecutionResult
from ringfence.model.outcome import Changes
from ringfence.model.ways.walk import absolute, real

Tool = Callable[..., Any]
Planner = Callable[[str, Callable[..., ToolResult]], Any]


class SafeDeepAgent:
    """``tools``: functions by name. ``safe_config``: a SafeConfig, or just the SandboxConfig in it.

    ``risk``, ``authorize``, ``detect``: functions in place of the defaults. ``audit``: an AuditLog or its path; absent:
    ``audit.jsonl`` in the sandbox root. ``planner``: what ``run`` asks, with the request and ``run_tool``.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool] | Iterable[Tool],
        *,
        safe_config: SafeConfig | SandboxConfig | None = None,
        manager: SandboxManager | None = None,
        authorize: Authorize | None = None,
        risk: Risk | None = None,
        detect: Detect | None = None,
        audit: AuditLog | str | os.PathLike[str] | None = None,
        planner: Planner | None = None,
    ) -> None:
        config = SafeConfig(sandbox=safe_config) if isinstance(safe_config, SandboxConfig) else safe_config
        self.safe_config = config or SafeConfig()
        sandbox = self.safe_config.sandbox
        self.tools = _named(tools)
        self.manager = manager or SandboxManager(sandbox)
        self.audit = audit if isinstance(audit, AuditLog) else AuditLog(audit or sandbox.sandbox_root / "audit.jsonl")
        self._folders = tuple(absolute(path) for path in sandbox.allowed_paths)
        _refuse_inside(self.audit.path, self._folders)
        self._risk = risk or RiskModel(self._folders)
        self._authorize = authorize or allow_up_to(self.safe_config.max_risk)
        self._detect = detect or ExfiltrationDetector()
        self._planner = planner
        self._lock = threading.RLock()
        self._closed = False
        self._open: list[SandboxSession] = []
        if self.safe_config.commit is Commit.AT_END:
            weakref.finalize(self, tell_unended, self._open)
        self._begin()

    def _begin(self) -> None:
        self.session = os.urandom(6).hex()
        self.sandbox = SandboxSession(self.manager, self.safe_config.sandbox)
        self._open[:] = [self.sandbox]
        self.history: list[Step] = []
        self._checkpoints: dict[int, str] = {}
        self._halted: AttackError | None = None
        self._step = self._count = 0

    # ---- what a caller does

    def run(self, request: str) -> Any:
        """Ask the planner; return what it returns."""
        if self._planner is None:
            hint = "give planner=, which is called with the request and run_tool, or call run_tool yourself"
            raise UsageError("this agent has no planner", hint=hint)
        return self._planner(request, self.run_tool)

    def run_tool(self, tool_name: str, /, **parameters: Any) -> ToolResult:
        """Run one call. The result says what the tool did; RefusedError if it was not run, AttackError if this and
        earlier calls form an attack."""
        return self._execute_tool(tool_name, parameters)

    @property
    def halted(self) -> bool:
        """Whether an attack was found: nothing more is run until ``reset``."""
        return self._halted is not None

    def diff(self) -> str:
        """What the sandbox has changed and not committed, as text."""
        with self._lock:
            return self.sandbox.diff()

    def commit(self) -> tuple[str, ...]:
        """Keep what the sandbox changed; return the paths. ConflictError if somebody else changed them meanwhile."""
        with self._lock:
            if self._halted is not None:
                raise self._still_halted("commit")
            paths = self._keep()
            self._log("commit", paths=printable(paths))
            return paths

    def reset(self) -> None:
        """Begin a new session: no history, and a new sandbox. Changes that the old one did not commit are dropped."""
        with self._lock:
            self._log("reset", after_attack=self.halted)
            self._end_session(well=True)
            self._begin()

    def close(self) -> None:
        """End the session. With ``Commit.AT_END`` its changes are kept, unless there was an attack; uncommitted changes
        are dropped. Nothing more is run."""
        self._close(well=True)

    def _close(self, *, well: bool) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._end_session(well=well)

    def _end_session(self, *, well: bool) -> None:
        """``well``: it was not interrupted."""
        if self.safe_config.commit is not Commit.AT_END or not self.sandbox.exists():
            self.sandbox.end()
        elif well and not self.halted:
            self.sandbox.keep_or_leave(self._commit_at_end)
        else:
            self._drop()

    def _drop(self) -> None:
        try:
            paths = self.sandbox.changed()
            if paths:
                self._log("dropped", paths=printable(paths), after_attack=self.halted)
        finally:
            self.sandbox.end()

    def _commit_at_end(self) -> None:
        paths = self._keep()
        if paths:
            self._log("commit", paths=printable(paths))

    def __enter__(self) -> SafeDeepAgent:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Like a database transaction: an exception that leaves the ``with`` keeps nothing."""
        self._close(well=kind is None)

    # ---- the four phases

    def _execute_tool(self, tool_name: str, parameters: Mapping[str, Any]) -> ToolResult:
        with self._lock, self._next_step():
            call, decision = self._checked(tool_name, parameters)
            wanted = self._should_sandbox(tool_name, decision.risk_score)
            sandboxed = (wanted or self._is_on_uncommitted(call)) and bool(self.safe_config.enable_sandboxing)
            self._log_beginning(call, decision, sandboxed=sandboxed, should_sandbox=wanted)
            execute = self._execute_in_sandbox if sandboxed else self._execute_directly
            try:
                result = execute(call, decision)
            except BaseException as error:
                self._remember(call, None)
                self._log("broken-off", tool=tool_name, error=self._safe_text(error, call))
                raise
            self._remember(call, result)
            told = result.told(self.audit.redact)
            self._log("end", tool=call.tool, **told, error=self._safe_text(result.error, call))
            return result

    @contextmanager
    def _next_step(self) -> Iterator[None]:
        """A tool that runs outside may itself call another one."""
        outer, self._count = self._step, self._count + 1
        self._step = self._count
        try:
            yield
        finally:
            self._step = outer

    def _checked(self, tool_name: str, parameters: Mapping[str, Any]) -> tuple[ToolCall, Decision]:
        """Phases 1 and 2. If anything goes wrong in them, the call is not run, and that is logged."""
        try:
            if self._closed:
                raise UsageError("the agent is closed", hint="make a new one")
            if self._halted is not None:
                raise self._still_halted(tool_name)
            call = self._read(tool_name, parameters)
            decision = self._authorize_action(call)
            self._check_phase2_security(call, decision.risk_score)
        except Exception as error:
            if error is self._halted:
                raise  # it is in the log already
            said = self.audit.redact.text(described(error))
            score = error.risk_score if isinstance(error, RefusedError) else None
            self._log("refused", tool=self.audit.redact.text(_shown(tool_name)), reason=said, risk_score=score)
            raise
        return call, decision

    def _read(self, tool_name: str, parameters: Mapping[str, Any]) -> ToolCall:
        if not isinstance(tool_name, str) or tool_name not in self.tools:
            near = difflib.get_close_matches(_shown(tool_name), self.tools, n=3) or list(self.tools)
            raise RefusedError(_shown(tool_name), "no such tool", hint=f"there is {', '.join(near)}")
        max_bytes = self.safe_config.max_parameter_bytes
        folders = (*self._folders, os.getcwd())
        return ToolCall(tool_name, parameters, folders=folders, max_bytes=max_bytes)

    def _authorize_action(self, call: ToolCall) -> Decision:
        decision = self._authorize(call, assess(self._risk, call))
        if not isinstance(decision, Decision):
            raise UsageError(f"authorize returned {type(decision).__name__}, not a Decision")
        checked_score(decision.risk_score)
        if not decision.allowed:
            raise RefusedError(call.tool, decision.reason or "not allowed", risk_score=decision.risk_score)
        return decision

    def _check_phase2_security(self, call: ToolCall, risk_score: float) -> None:
        found = [_as_finding(found, self._step) for found in self._detect(self.history, call)]
        if found:
            self._contain(call, found, risk_score)

    def _should_sandbox(self, tool_name: str, risk_score: float) -> bool:
        """The rule of the specification, line by line."""
        name = tool_name.lower()
        if risk_score > 0.7:
            return True
        if any(keyword in name for keyword in ("delete", "modify", "execute", "admin")):
            return True
        if "network" in name or "http" in name:
            return True
        if self.safe_config.sandbox_mode == SandboxMode.ALWAYS:
            return True
        if self.safe_config.sandbox_mode == SandboxMode.NEVER:
            return False
        return risk_score > 0.5

    def _is_on_uncommitted(self, call: ToolCall) -> bool:
        """Changes of earlier calls exist only in the sandbox: outside, a tool would see and change the old files."""
        return self.sandbox.exists() and self.sandbox.holds(piece.text for piece in call.pieces)

    def _execute_in_sandbox(self, call: ToolCall, decision: Decision) -> ToolResult:
        self.sandbox.opened()  # an error here is not the tool's fault
        try:
            done = self.sandbox.execute(self.tools[call.tool], call.parameters)
        except CheckpointError as error:
            return self._not_run(call, decision, error)
        self._checkpoints[self._step] = done.checkpoint_id
        done, changes, committed = self._settled(done)
        return ToolResult(
            tool=call.tool,
            success=done.success,
            value=done.value,
            error=done.error,
            decision=decision,
            sandboxed=True,
            violations=done.violations,
            rolled_back=done.rolled_back,
            changed=tuple(change.path for change in changes),
            changed_complete=changes.complete,
            committed=committed,
            execution=done,
        )

    def _settled(self, done: ExecutionResult) -> tuple[ExecutionResult, Changes, tuple[str, ...]]:
        """The result, what it changed, and what was committed: what a tool leaves must not decide whether there is a
        result."""
        try:
            if done.success and self._runs_some_outside():
                done = self.sandbox.without_links_out(done)
            changes = self.sandbox.changes()
            keeps = done.success and self.safe_config.commit is Commit.EACH_CALL
            return done, changes, self._keep() if keeps else ()
        except LateAttemptError as error:
            return self.sandbox.late(done, error), self.sandbox.changes(), ()
        except CheckpointError as error:
            done = self.sandbox.undone(done, f"what it changed can't be kept: {error}")
            return done, self.sandbox.changes(), ()

    def _not_run(self, call: ToolCall, decision: Decision, error: CheckpointError) -> ToolResult:
        """Earlier calls left something that can't be checkpointed: remove it, else no call could run again."""
        done = self.sandbox.go_back(self._last_checkpoint_before(self._step))
        self._log("rollback", sandbox_id=self.sandbox.sandbox_id, **done)
        said = f"not run: what earlier calls left can't be kept, and was rolled back ({error})"
        return ToolResult(
            tool=call.tool, success=False, error=said, decision=decision, sandboxed=True, rolled_back=True
        )

    def _runs_some_outside(self) -> bool:
        return self.safe_config.sandbox_mode is not SandboxMode.ALWAYS

    def _keep(self) -> tuple[str, ...]:
        paths = self.sandbox.keep()
        if self._runs_some_outside():
            self.sandbox.remove_links_out(paths)
        return paths

    def _execute_directly(self, call: ToolCall, decision: Decision) -> ToolResult:
        try:
            value = self.tools[call.tool](**call.parameters)
        except (Exception, SystemExit) as error:
            return ToolResult(tool=call.tool, success=False, error=described(error), decision=decision)
        return ToolResult(tool=call.tool, success=True, value=value, decision=decision)

    def _remember(self, call: ToolCall, result: ToolResult | None) -> None:
        """Remember a call, also an interrupted one: it may have read something."""
        done = result.execution if result else None
        said = (result.value, result.error) if result else ()
        printed = (done.stdout, done.stderr, done.traceback) if done else ()
        self.history.append(Step(self._step, call, texts_of((*said, *printed))))

    # ---- an attack

    def _contain(self, call: ToolCall, found: list[Finding], risk_score: float) -> None:
        """Stop first, then log, then undo: even if one of these fails, nothing runs any more."""
        reasons = tuple(finding.reason for finding in found)
        hint = "look at the audit log; reset() begins a new session"
        self._halted = AttackError(call.tool, reasons[0], findings=reasons, risk_score=risk_score, hint=hint)
        patterns = [finding.pattern for finding in found]
        told = [self._safe_text(reason, call) for reason in reasons]
        self._log("attack", **self._told(call), patterns=patterns, reasons=told, risk_score=risk_score)
        sandbox_id, first = self.sandbox.sandbox_id, min(finding.first_step for finding in found)
        done = self.sandbox.go_back(self._last_checkpoint_before(first))
        self._log("rollback", sandbox_id=sandbox_id, **done)
        raise self._halted

    def _last_checkpoint_before(self, step: int) -> str:
        """The checkpoint before the first sandboxed call of the attack; if none of it has run, the latest one."""
        since = [checkpoint for number, checkpoint in sorted(self._checkpoints.items()) if number >= step]
        return since[0] if since else next(iter(reversed(self._checkpoints.values())), "")

    def _still_halted(self, tool_name: str) -> AttackError:
        assert self._halted is not None
        found = self._halted.findings
        problem = f"not run: an attack was found in this session ({found[0]})"
        return AttackError(tool_name, problem, findings=found, hint=self._halted.hint)

    # ---- the audit log

    def _log(self, event: str, **members: Any) -> None:
        self.audit.append(self.session, event, step=self._step or self._count, **members)

    def _log_beginning(self, call: ToolCall, decision: Decision, **where: bool) -> None:
        """Log a call before it runs: whatever happens then, its beginning is on record."""
        decided = {"allowed": decision.allowed, "risk_score": decision.risk_score}
        self._log("begin", **self._told(call), **decided, reason=self._safe_text(decision.reason, call), **where)

    def _told(self, call: ToolCall) -> dict[str, Any]:
        return {"tool": call.tool, "parameters": self.audit.redact.parameters(call.parameters)}

    def _safe_text(self, said: object, call: ToolCall) -> str:
        text = described(said) if isinstance(said, BaseException) else str(said or "")
        return self.audit.redact.text(text, self.audit.redact.known_secrets(call.parameters))


def _named(tools: Mapping[str, Tool] | Iterable[Tool]) -> dict[str, Tool]:
    pairs = tools.items() if isinstance(tools, Mapping) else [(getattr(tool, "__name__", ""), tool) for tool in tools]
    named = dict(pairs)
    for name, tool in named.items():
        if not isinstance(name, str) or not name or name == "<lambda>" or not callable(tool):
            raise UsageError(f"{name!r}: a tool is a function with a name", hint="give a mapping of names to functions")
    return named


def _shown(tool_name: object) -> str:
    """The name that a model asked for, which may be anything."""
    return ascii(tool_name)[1:-1][:80] if isinstance(tool_name, str) else f"({type_name(tool_name)})"


def _refuse_inside(path: str, folders: tuple[str, ...]) -> None:
    place = real(path)
    if is_below(place, map(real, folders)):
        hint = "tools may write there; keep the log elsewhere, with audit=PATH"
        raise UsageError(f"the audit log {path!r} is in an allowed path", hint=hint)


def _as_finding(said: Finding | str, step: int) -> Finding:
    return said if isinstance(said, Finding) else Finding(pattern="custom", reason=str(said), first_step=step)
