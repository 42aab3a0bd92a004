"""Puts a result into words for a model: what happened, what was refused, and what it can do about it."""

from __future__ import annotations

from collections.abc import Iterator

from ringfence.errors import SandboxError
from ringfence.integrations.living.python import Cell
from ringfence.model.events import Event, EventKind
from ringfence.model.outcome import Outcome, Status
from ringfence.model.policy import SandboxPolicy
from ringfence.model.system_text import escape_controls

MOST_REFUSED = 10
# What the caller of the program can do; the policy itself is the operator's.
_ADVICE = {
    Status.TIMEOUT: "do less at a time; a program left in the background with & must also end",
    Status.MEM_LIMIT: "use less memory: work in pieces",
    Status.CPU_LIMIT: "this sandbox has used up its processor time; files are unchanged",
    Status.PIDS_LIMIT: "start fewer processes or threads at once",
    Status.DISK_LIMIT: "write less, or remove what is not needed",
    Status.FILE_SIZE_LIMIT: "write smaller files",
    Status.NOFILE_LIMIT: "open fewer files at once",
    Status.OUTPUT_LIMIT: "print less, or write it to a file",
    Status.FORBIDDEN_SYSCALL: "this system call is not allowed here; there is no way around that",
}
_FIXED = "The limits are the operator's; they can't be changed from here."


def text_of(data: bytes) -> str:
    """A guest's bytes as text; control characters are spelled out."""
    return escape_controls(data.decode("utf-8", "replace").replace("\r\n", "\n"), keep="\n\t")


def end_of(outcome: Outcome, policy: SandboxPolicy) -> str:
    """How a visit ended, in some lines; one where it ended well."""
    lines = [f"exit code {outcome.rc}"] if outcome.status in (Status.OK, Status.FAILED) else [
        f"{outcome.status}: {escape_controls(outcome.reason)}"]  # fmt: skip
    advice = _ADVICE.get(outcome.status, "")
    if advice:
        lines.append(f"{advice}. {_FIXED}")
    lines += list(refusals(outcome))
    if outcome.status is Status.FAILED and policy.network_rule == "none" and _speaks_of_a_network(outcome):
        lines.append("There is no network in this sandbox.")
    return "\n".join(lines)


def refusals(outcome: Outcome) -> Iterator[str]:
    """What it tried although that is not allowed, each once."""
    told = dict.fromkeys(filter(None, map(_refusal, outcome.events)))
    for number, line in enumerate(told):
        if number == MOST_REFUSED:
            yield f"… and {len(told) - number} more were refused"
            return
        yield f"refused: {escape_controls(line)}"


def _refusal(event: Event) -> str:
    details = event.details
    if event.kind is EventKind.VIOLATION:
        return f"{details.get('operation', 'access')} {details.get('path', '')} (not allowed by the policy)"
    if event.kind is EventKind.EGRESS and details.get("decision") == "refused":
        where = f"{details.get('name') or details.get('address')}:{details.get('port')}"
        return f"connection to {where} ({details.get('reason', 'not on the list')})"
    return ""


_NETWORK_WORDS = (b"Name or service not known", b"name resolution", b"Network is unreachable", b"Could not resolve")


def _speaks_of_a_network(outcome: Outcome) -> bool:
    return any(word in outcome.stderr or word in outcome.stdout for word in _NETWORK_WORDS)


def cell_end(cell: Cell, policy: SandboxPolicy) -> str:
    """What to say about a cell besides its output."""
    lines = [cell.raised.traceback.rstrip()] if cell.raised else []
    if cell.shown and cell.ok:
        lines.append(cell.shown)
    if cell.problem:
        lines.append(cell.problem)
    if cell.outcome is not None and cell.outcome.status in _ADVICE:
        lines.append(f"{_ADVICE[cell.outcome.status]}. {_FIXED}")
    if cell.outcome is not None:
        lines += list(refusals(cell.outcome))
    if cell.lost:
        lines.append("The interpreter ended and its variables are lost; the next call starts a new one.")
    return "\n".join(lines)


def refusal_text(error: SandboxError) -> str:
    """An error of ours, with what can be done."""
    return escape_controls(f"{error}; {error.hint}" if error.hint else str(error), keep="\n\t")
