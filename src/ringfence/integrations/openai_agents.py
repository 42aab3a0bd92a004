"""Function tools over one sandbox for agents of the OpenAI Agents SDK: ``Agent(tools=tools(session))``."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

from agents import FunctionTool, function_tool

from ringfence.errors import SandboxError
from ringfence.integrations.living import words
from ringfence.integrations.living.session import Session
from ringfence.integrations.living.tools import functions


def tools(session: Session) -> list[FunctionTool]:
    """Those of ``living.tools``. A commit is the caller's: ``session.commit(session.to_commit())``."""
    return [function_tool(_told(each)) for each in functions(session)]


def _told(work: Callable[..., str]) -> Callable[..., object]:
    """Run in a thread, and report refusals in words that the model can act on."""

    @functools.wraps(work)
    async def told(*args: object, **kwargs: object) -> str:
        try:
            return await asyncio.to_thread(work, *args, **kwargs)
        except SandboxError as error:
            return words.refusal_text(error)

    return told
