"""Every error that ringfence raises. What the untrusted program does is a value, never one of these.

SandboxError                 .hint: what the user can do about it
├── UsageError               the caller asked for something malformed
│   ├── FieldError           a record was given a value without a name; a TypeError too
│   └── PolicyError          unknown key, contradiction, out of range; .field names it
├── UnavailableError         this host cannot keep the promise; .missing names what, .hint the fix
├── SetupError               the sandbox failed before the program ran; .step names the plan step, .errno why
├── SupervisionError         we lost track of a running job (always after killing it)
├── FileError                a file of a box could not be put or got; .errno why, EFBIG where it is too large
├── CallError                the value of a call was asked for, and there is none; .type_name, .traceback_text
├── RefusedError             an agent's tool call was not allowed, and not run; .tool, .risk_score
│   └── AttackError          calls that together are an attack: the agent stands still; .findings
├── CheckpointError          a snapshot, rollback or commit could not be carried out
│   ├── ConflictError        somebody else changed what a commit would overwrite; .paths names it
│   ├── LateAttemptError     something forbidden was tried after the last result, so nothing is committed; .attempts
│   ├── BusyError            another process holds the transaction; .pid names it
│   └── ForeignError         a record on disk that we did not write, or not for that place
└── EvidenceError            a chain, key or bundle could not be made or read
    └── VerificationError    .step: the number of the verification step that failed
"""

from __future__ import annotations


class SandboxError(Exception):
    """The base class: catch it to catch every error and every refusal of ringfence itself."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(hint)  # a traceback shows it below the message

    def __reduce__(self) -> tuple[object, ...]:
        """Pools of processes send errors home pickled; by default that calls __init__ with the message."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[SandboxError], args: tuple[object, ...], state: dict[str, object]) -> SandboxError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


def is_of_a_call(error: BaseException) -> bool:
    """Whether the system refused a call. What a signal's handler raises, such as the TimeoutError of an alarm, may be
    an OSError too, but has no errno: it is the caller's own, to be passed on as it is."""
    return isinstance(error, OSError) and error.errno is not None


def hint_for_extra(extra: str) -> str:
    """How to install an extra, for a clone and for a wheel. It names no package of an index: ringfence is on none yet,
    so a package of that name there is somebody else's."""
    in_clone, by_wheel = f"pip install '.[{extra}]'", f"pip install './WHEEL[{extra}]'"
    return f"install the extra {extra}: {in_clone} in a clone, {by_wheel} with the file of the wheel (README, Install)"


class UsageError(SandboxError):
    """The caller asked for something malformed."""


class FieldError(UsageError, TypeError):
    """A record was given a value without the name of its field, e.g. ``SandboxPolicy(5)``."""


class PolicyError(UsageError):
    """A policy contradicts itself, is out of range or has an unknown key; ``field`` names it.

    ``where`` is ``file:line:column: `` for a policy read from a file; ``more`` holds the further
    errors of the same policy, so that a user can fix them all at once.
    """

    def __init__(
        self, field: str, problem: str, *, where: str = "", more: tuple[PolicyError, ...] = ()
    ) -> None:
        super().__init__(f"{where}{field}: {problem}" if field else f"{where}{problem}")
        self.field = field
        self.problem = problem
        self.where = where
        self.more = more


class UnavailableError(SandboxError):
    """This host cannot keep a promise that the policy asks for; nothing was run.

    If several things help, or several are needed, ``fixes`` lists them one by one.
    """

    def __init__(
        self, message: str, *, missing: tuple[str, ...] = (), hint: str = "", fixes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint or "; ".join(fixes))
        self.missing = missing
        self.fixes = fixes


class SetupError(SandboxError):
    """The sandbox failed before the program's first instruction; ``step`` names the plan step, ``errno`` is that of the
    system call that failed, or 0."""

    def __init__(self, step: str, problem: str, *, errno: int = 0, hint: str = "") -> None:
        super().__init__(f"{step}: {problem}", hint=hint)
        self.step = step
        self.errno = errno


class SupervisionError(SandboxError):
    """ringfence has lost track of a running job, after it killed the job."""


class FileError(SandboxError):
    """A file could not be put into a box, or taken out of it. ``errno`` is that of the call that failed in the box;
    EFBIG: the file is larger than was asked for; 0: a limit ended the transfer."""

    def __init__(self, message: str, *, errno: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.errno = errno


class CallError(SandboxError):
    """The call has no value. What this error says about the guest comes from the guest.

    ``type_name``, ``problem`` and ``traceback_text`` describe the exception that the function raised. If something
    else ended the call, the type and the traceback are empty.
    """

    def __init__(self, problem: str, *, type_name: str = "", traceback_text: str = "", hint: str = "") -> None:
        super().__init__(f"{type_name}: {problem}" if type_name else problem, hint=hint)
        self.problem = problem
        self.type_name = type_name
        self.traceback_text = traceback_text
        if traceback_text:
            self.add_note(f"inside the sandbox, in the guest's own words:\n{traceback_text}")


class RefusedError(SandboxError):
    """An agent's tool call was not allowed, and was not run."""

    def __init__(self, tool: str, problem: str, *, risk_score: float = 0.0, hint: str = "") -> None:
        super().__init__(f"{tool}: {problem}", hint=hint)
        self.tool = tool
        self.risk_score = risk_score


class AttackError(RefusedError):
    """Several tool calls together are an attack. The agent runs nothing more until somebody resets it."""

    def __init__(
        self, tool: str, problem: str, *, findings: tuple[str, ...] = (), risk_score: float = 0.0, hint: str = ""
    ) -> None:
        super().__init__(tool, problem, risk_score=risk_score, hint=hint)
        self.findings = findings


class CheckpointError(SandboxError):
    """A snapshot, rollback or commit could not be carried out."""


class ConflictError(CheckpointError):
    """Somebody else changed the same files in the base; nothing of theirs was overwritten. ``paths`` names the files,
    ``problem`` says what is wrong with all of them."""

    def __init__(self, message: str, *, paths: tuple[str, ...] = (), hint: str = "", problem: str = "") -> None:
        super().__init__(message, hint=hint)
        self.paths = paths
        self.problem = problem


class LateAttemptError(CheckpointError):
    """A process that an earlier visit left running has tried something forbidden, and no result has reported it yet.
    ``attempts`` names what it tried; ``since`` names the checkpoints before these visits, '' the beginning."""

    def __init__(
        self, message: str, *, attempts: tuple[str, ...] = (), since: tuple[str, ...] = (), hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.attempts = attempts
        self.since = since


class BusyError(CheckpointError):
    """Another process holds the transaction. ``pid`` is the id of that process, or 0 if it is not known."""

    def __init__(self, message: str, *, pid: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.pid = pid


class ForeignError(CheckpointError):
    """A record on disk has no valid seal of ringfence's own: its writer is not known, so ringfence does not use it."""


class EvidenceError(SandboxError):
    """A chain, key or bundle could not be made or read."""


class VerificationError(EvidenceError):
    """Evidence that does not hold; ``step`` is the number of the verification step that failed."""

    def __init__(self, step: int, problem: str, *, hint: str = "") -> None:
        super().__init__(f"step {step}: {problem}", hint=hint)
        self.step = step
