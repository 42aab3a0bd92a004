"""``CallResult``: what became of a call or a source in a sandbox: a value, the guest's exception, or how else it ended.

Everything the guest does is in it as data; it raises only if the caller asks for a value that is not there. It does
not run anything, and trusts the outcome (ours) over the reply (the guest's): a job that was killed returns nothing.
"""

from __future__ import annotations

from ringfence.engine import claims
from ringfence.errors import CallError
from ringfence.model.limits import LIMIT_OF
from ringfence.model.outcome import Outcome, Status
from ringfence.model.record import record
from ringfence.python_jobs.reply import Raised, Reply, ReplyKind, read_reply


@record
class CallResult:
    """How a call ended; ``outcome`` has the output, the usage and what was enforced."""

    outcome: Outcome
    reply: Reply

    @property
    def ok(self) -> bool:
        """It succeeded, and there is a value."""
        return self.outcome.ok and self.reply.kind is ReplyKind.VALUE

    @property
    def status(self) -> Status:
        return self.outcome.status

    @property
    def value(self) -> object:
        """What the function returned; CallError if no value arrived."""
        if self.ok:
            return self.reply.value
        raised = self.raised
        if raised is None:
            raise CallError(self.problem, hint=self._hint)
        raise CallError(raised.message, type_name=raised.type_name, traceback_text=raised.traceback)

    @property
    def raised(self) -> Raised | None:
        """The exception that ended the call; None: there was none, or a limit ended it first."""
        ended_by_it = self.outcome.status in (Status.OK, Status.FAILED)
        return self.reply.raised if ended_by_it else None

    @property
    def problem(self) -> str:
        """Why there is no value, in one line; empty if there is one."""
        if self.ok:
            return ""
        if self.raised is not None:
            return f"{self.raised.type_name}: {self.raised.message}".splitlines()[0]
        if not self.outcome.ok:
            return f"{self.outcome.status}: {self.outcome.reason}"
        return self.reply.problem

    @property
    def _hint(self) -> str:
        """What would help. If something else ended the call, the missing reply is not the reason."""
        if self.outcome.ok:
            return _HINTS.get(self.reply.kind, "")
        fields = ", ".join(LIMIT_OF[name].field for name in self.outcome.limits_hit if name in LIMIT_OF)
        return f"raise {fields} of the policy, if it may need so much" if fields else ""


_HINTS = {
    ReplyKind.TOO_LARGE: "return less, or have it write a file in a box and get that",
    ReplyKind.UNSENDABLE: "return None, numbers, texts, bytes, times, and lists, tuples, dicts and sets of these",
    ReplyKind.NOTHING: "the function ended the process itself, or closed the channel",
}


def call_result(outcome: Outcome) -> CallResult:
    """The result of an outcome whose message is a Python job's reply. The exception may say which limit it hit."""
    reply = read_reply(outcome.message)
    raised = reply.raised
    if raised is not None and outcome.near_limits:
        capability = claims.capability_of(raised.type_name, raised.message)
        outcome = claims.limited(outcome, capability, f"{raised.type_name}: {raised.message}")
    return CallResult(outcome=outcome, reply=reply)
