"""The tools of a ``Session`` as a server of the Model Context Protocol: texts, progress, cancellation, and a question
to the operator before a commit. Decides nothing about the sandbox."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import anyio
from anyio.to_thread import run_sync
from mcp.server import MCPServer
from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel, Field

from ringfence import __version__
from ringfence.errors import SandboxError
from ringfence.integrations.living import words
from ringfence.integrations.living.session import Session, Shown

Commit = Literal["ask", "always", "never"]
_T = TypeVar("_T")
_SIGKILL = 9
_PROGRESS_S = 1.0
_NEVER = "commits are switched off here; the operator keeps what changed with: {}"
_CANT_ASK = "this application can't ask its operator, so nothing is committed; the operator does so with: {}"

INSTRUCTIONS = """\
One sandbox. Commands, Python and files are inside it; limits and network are the operator's policy and can't be changed
from here. {where} A result that is cut says how to read on. checkpoint before risky steps, rollback to undo them."""
PRIVATE = "Its working directory is private, and gone afterwards."
ON_WORKSPACE = "Its working directory is {}: changes are kept in a layer until commit, and diff shows them."

NUMBERS = frozenset({"timeout_s", "offset", "reset"})
"""The arguments of all tools that are no texts."""
_MOST_NUMBER_CHARS = 100
Seconds = Annotated[float | None, Field(gt=0, description="less time than the policy gives")]
Offset = Annotated[int, Field(ge=0, description="character to start at, to read on")]


class Consent(BaseModel):
    """The operator's answer."""

    commit: bool = Field(description="commit these changes")


def build(
    session: Session, *, commit: Commit = "ask", by_hand: str = "", at_once: int = 40, told: Callable[[str], str] = str
) -> MCPServer[Any]:
    """The server of one session. ``by_hand``: how the operator commits without it. ``at_once``: how many calls may wait
    for the sandbox, each in a thread; sessions that share a process do not take each other's threads. ``told``: turns
    an error's text into what its client may see."""
    threads = _Threads(at_once, told)
    where = ON_WORKSPACE.format(session.workspace) if session.workspace else PRIVATE
    server = _Server("ringfence", version=__version__, instructions=INSTRUCTIONS.format(where=where),
                     log_level="WARNING")  # fmt: skip
    tools = (*_running(session, threads), *_files(session, threads), *_history(session, threads),
             _committing(session, threads, commit, by_hand))  # fmt: skip
    for tool in tools:
        server.add_tool(tool, structured_output=False)
    return server


class _Server(MCPServer[Any]):
    """Refuses long texts as numbers: the framework decodes any text as JSON that an argument has in place of a number,
    however much it is, and everybody else in the process waits meanwhile."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        for each in NUMBERS & arguments.keys():
            given = arguments[each]
            if isinstance(given, str) and len(given) > _MOST_NUMBER_CHARS:
                raise ToolError(f"{each}: a string of {len(given)} characters is not a number")
        return await super().call_tool(name, arguments, context)


class _Threads:
    """Where calls wait for the sandbox."""

    def __init__(self, at_once: int, told: Callable[[str], str]) -> None:
        self._limiter, self._told = anyio.CapacityLimiter(at_once), told

    async def whole(self, work: Callable[[], _T]) -> _T:
        """Run to the end, even if the caller gives up: half a rollback is useless."""
        return await self._carried_out(work, abandon=False)

    async def unless_cancelled(self, work: Callable[[], _T]) -> _T:
        return await self._carried_out(work, abandon=True)

    async def _carried_out(self, work: Callable[[], _T], *, abandon: bool) -> _T:
        try:
            return await run_sync(work, abandon_on_cancel=abandon, limiter=self._limiter)
        except SandboxError as error:
            raise ToolError(self._told(words.refusal_text(error))) from error


def _running(session: Session, threads: _Threads) -> list[Callable[..., Any]]:
    async def run_command(command: str, ctx: Context, timeout_s: Seconds = None) -> str:
        """Run a command of the shell in the sandbox; a fresh shell each time, in the working directory."""
        printed = _Printed()
        handle = await threads.whole(lambda: session.start(command, timeout_s, printed.add))
        async with anyio.create_task_group() as group:
            group.start_soon(_tell_progress, ctx, session.place.seconds(timeout_s), printed)
            try:
                outcome = await threads.unless_cancelled(handle.wait)
            except anyio.get_cancelled_exc_class():
                handle.signal(_SIGKILL)
                raise
            group.cancel_scope.cancel()
        return session.told(outcome)

    async def run_python(code: str, ctx: Context, timeout_s: Seconds = None, reset: bool = False) -> str:
        """Run Python in an interpreter that keeps its variables between calls; reset begins a fresh one first. The
        value of the last expression is shown."""
        given_up = threading.Event()
        if reset:
            await threads.whole(session.python.reset)
        async with anyio.create_task_group() as group:
            group.start_soon(_tell_progress, ctx, session.place.seconds(timeout_s), _Printed())
            work = functools.partial(session.python.run, code, timeout=timeout_s, given_up=given_up)
            try:
                cell = await threads.unless_cancelled(work)
            except anyio.get_cancelled_exc_class():
                given_up.set()  # only this cell: another may be running while this one waits for it
                raise
            group.cancel_scope.cancel()
        return session.told_cell(cell)

    async def read_output(name: str, offset: Offset = 0) -> str:
        """Read on in an output that was cut."""
        return await threads.whole(lambda: session.read_output(name, offset))

    return [run_command, run_python, read_output]


class _Printed:
    """How much a command has printed, and its last line."""

    def __init__(self) -> None:
        self.last = b""

    def add(self, _: str, piece: bytes) -> None:
        self.last = (self.last + piece)[-200:]

    @property
    def line(self) -> str:
        lines = words.text_of(self.last).strip().splitlines()
        return lines[-1] if lines else ""


async def _tell_progress(ctx: Context, seconds: float, printed: _Printed) -> None:
    """Once a second, to clients that asked for it."""
    begun = time.monotonic()
    while True:
        await anyio.sleep(_PROGRESS_S)
        await ctx.report_progress(min(time.monotonic() - begun, seconds), seconds, printed.line)


def _files(session: Session, threads: _Threads) -> list[Callable[..., Any]]:
    async def write_file(path: str, content: str) -> str:
        """Write a text file; a relative path is one in the working directory."""
        return await threads.whole(lambda: session.write_file(path, content))

    async def read_file(path: str, offset: Offset = 0) -> str:
        """Read a text file."""
        return await threads.whole(lambda: session.read_file(path, offset))

    async def list_files(path: str = ".") -> str:
        """List a directory; names of directories end with a slash."""
        return await threads.whole(lambda: session.list_files(path))

    return [write_file, read_file, list_files]


def _history(session: Session, threads: _Threads) -> list[Callable[..., Any]]:
    async def diff(path: str = "") -> str:
        """What has changed in the working directory, all of it or one path, as a unified diff."""
        return await threads.whole(lambda: session.diff(path))

    async def checkpoint(name: str = "") -> str:
        """Remember the files as they are now."""
        return await threads.whole(lambda: session.checkpoint(name))

    async def rollback(checkpoint_id: str = "") -> str:
        """Take the files back to a checkpoint, the newest if none is named. Ends all that runs."""
        return await threads.whole(lambda: session.rollback(checkpoint_id))

    return [diff, checkpoint, rollback]


def _committing(session: Session, threads: _Threads, how: Commit, by_hand: str) -> Callable[..., Any]:
    """Ask the operator: exactly the shown changes are carried over, or nothing. The question holds the seal of what it
    shows, so an answer never applies to other changes."""

    async def shown() -> Shown:
        if how == "never":
            raise ToolError(_NEVER.format(by_hand))
        return await threads.whole(session.to_commit)

    async def consent(ctx: Context, shown: Annotated[Shown, Resolve(shown)]) -> Consent | Elicit[Consent]:
        if how == "always":
            return Consent(commit=True)
        offered = ctx.client_capabilities
        if offered is None or offered.elicitation is None:
            raise ToolError(_CANT_ASK.format(by_hand))
        return Elicit(shown.text, Consent)

    async def commit(shown: Any, answer: Any) -> str:
        """Carry the changes over into the operator's workspace. The operator is asked, and may decline."""
        if not isinstance(answer, AcceptedElicitation) or not answer.data.commit:
            return "the operator declined: nothing was committed, and the changes stay in the sandbox"
        return await threads.whole(functools.partial(session.commit, shown))

    # Set by hand: annotations as text would be looked up in this module, but the resolvers belong to this session.
    commit.__annotations__ = {"shown": Annotated[Shown, Resolve(shown)], "return": str,
                              "answer": Annotated[ElicitationResult[Consent], Resolve(consent)]}  # fmt: skip
    consent.__annotations__ = {"ctx": Context, "shown": Annotated[Shown, Resolve(shown)],
                               "return": Consent | Elicit[Consent]}  # fmt: skip
    return commit
