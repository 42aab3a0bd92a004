"""Tools over one sandbox for any agent of LangChain. The sandbox of a deep agent is in ``integrations/deepagents``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from ringfence.errors import SandboxError
from ringfence.integrations.living import words
from ringfence.integrations.living.session import Session
from ringfence.integrations.living.tools import functions
from ringfence.model.outcome import Outcome


def tools(session: Session) -> list[BaseTool]:
    """Those of ``living.tools``. A commit is the caller's: ``session.commit(session.to_commit())``."""
    command, *others = functions(session)
    return [_command(session, command), *map(_tool, others)]


def _refused(error: SandboxError) -> ToolException:
    return ToolException(words.refusal_text(error))


def _tool(work: Callable[..., str]) -> BaseTool:
    def told(**arguments: Any) -> str:
        try:
            return work(**arguments)
        except SandboxError as error:
            raise _refused(error) from error

    asked = StructuredTool.from_function(work)
    return StructuredTool.from_function(told, name=asked.name, description=asked.description,
                                        args_schema=asked.args_schema, handle_tool_error=True)  # fmt: skip


def _command(session: Session, asked: Callable[..., str]) -> BaseTool:
    """The outcome is the artifact: a caller of the tool may want more than text."""

    def run_command(command: str, timeout_s: float | None = None) -> tuple[str, Outcome]:
        try:
            outcome = session.run(command, timeout_s)
        except SandboxError as error:
            raise _refused(error) from error
        return session.told(outcome), outcome

    return StructuredTool.from_function(run_command, description=asked.__doc__, handle_tool_error=True,
                                        response_format="content_and_artifact")  # fmt: skip
