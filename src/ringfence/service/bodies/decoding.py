"""A body of JSON becomes a value of its route's shape. Nobody else waits for it, whatever is in it: more than a little
is decoded in a thread, in steps that are short."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ringfence.service.answer import Refused
from ringfence.service.bodies.texts import Lifted, TooMuch
from ringfence.service.routes import Route
from ringfence.service.schema import told

MOST_VALUES = 100_000
"""Of a body, unless its route says otherwise. An argument, a file and a variable are a value each."""
AT_ONCE_BYTES = 16 << 10
"""So much is decoded before a thread would have begun."""
_THREADS = ThreadPoolExecutor(2, "ringfence-body")
"""Few: all of them and the loop take turns."""
_MOST_DIGITS, _MOST_FLOAT_CHARS = 40, 1000


async def decoded(data: bytes, route: Route) -> Any:
    """The value; Refused if it is none, or not of the shape."""
    if len(data) <= AT_ONCE_BYTES:
        return _checked(data, route)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, _checked, data, route)


def _checked(data: bytes, route: Route) -> Any:
    assert route.body is not None
    try:
        value = value_of(data, route.values or MOST_VALUES)
    except TooMuch as error:
        raise Refused(413, str(error)) from None
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {str(error)[:200]}") from None
    problem = told(value, route.body)
    if problem:
        raise Refused(400, problem)
    return value


def value_of(data: bytes, most: int) -> Any:
    """The value of JSON with at most so many values in it."""
    if len(data) <= min(AT_ONCE_BYTES, most):  # it can't have more of them than bytes
        return _decoder(_finite)(data.decode("utf-8"))
    lifted = Lifted(data, most)
    return _decoder(lambda text: lifted.texts[text] if text in lifted.texts else _finite(text))(lifted.rest)


def _decoder(number: Callable[[str], object]) -> Callable[[str], Any]:
    return json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_integer, parse_float=number,
                            object_pairs_hook=_unique).decode  # fmt: skip


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _integer(text: str) -> int:
    """Python refuses to read thousands of digits, and no number of ours has them."""
    if len(text) > _MOST_DIGITS:
        raise ValueError("a number has too many digits")
    return int(text)


def _finite(text: str) -> float:
    if len(text) > _MOST_FLOAT_CHARS:
        raise ValueError("a number has too many digits")
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("a number is too large")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Parsers differ in which of two equal keys they take, and a proxy that checks requests may be one of them."""
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{twice[:60]!a} occurs twice in one object")
    return made
