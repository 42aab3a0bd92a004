"""What a reward file says, and whether it counts. Pure: who wrote it was found out elsewhere.

One finite number, as text or as JSON: a number, or an object with the key ``reward``. A reward counts only if the
grader's exit status is 0, and only if the file was opened for writing exactly once, no matter by whom. A second file
may be preferred to it.
"""

from __future__ import annotations

import json
import math

from ringfence.model.record import record

MAX_BYTES = 64 * 1024
MAX_REWARD = (1 << 53) - 1
"""No verdict can hold more (docs/reference/formats.md): code under test could cause an error."""
KEY = "reward"
_NUMBER_CHARACTERS = frozenset("0123456789+-.eE")


@record
class Written:
    """What became of a reward file while the grader ran."""

    data: bytes = b""
    writers: int = 0
    """How often it was opened for writing."""
    touched: tuple[str, ...] = ()
    """What else happened to it: it was moved, removed, linked, or its mode was changed."""


@record
class Reward:
    """The result of reading a reward file."""

    value: float = 0.0
    problem: str = ""
    """Why there is none; empty: there is one."""
    forged: str = ""
    """Why that is a forgery; empty: it is not."""


def judged(written: Written, path: str) -> Reward:
    """Whether a file with this history counts, and what it says."""
    if written.touched:
        done = ", ".join(written.touched)
        return Reward(forged=f"{path} was {done} while the grader ran; the grader may only write it, once")
    if written.writers > 1:
        return Reward(forged=f"{path} was opened for writing {written.writers} times; the grader may do that once")
    if written.writers == 0:
        return Reward(problem=f"the grader wrote no {path}")
    try:
        return Reward(value=read(written.data))
    except ValueError as error:
        return Reward(problem=f"{path}: {error}")


def preferred(first: Written, path: str, other: Written, other_path: str) -> Reward:
    """Return the first of two files if anybody wrote it, else the other. If both were written, they have to agree: else
    the code under test could write the one that the script does not write, and outrank it."""
    if not first.writers and not first.touched:
        return judged(other, other_path)
    found = judged(first, path)
    if not other.writers and not other.touched:
        return found
    against = judged(other, other_path)
    if found.forged or against.forged:
        return Reward(forged=found.forged or against.forged)
    if found.problem or against.problem or found.value != against.value:
        return Reward(forged=f"{path} and {other_path} were both written, and do not agree")
    return found


def read(data: bytes) -> float:
    """The number in a reward file; ValueError where there is none, or one that is not finite.

    >>> read(b"0.5\\n"), read(b'{"reward": 1, "tests": 3}')
    (0.5, 1.0)
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    try:
        text = data.decode("ascii" if not data.lstrip().startswith(b"{") else "utf-8").strip()
    except UnicodeDecodeError:
        raise ValueError("it is not text") from None
    value = _of_object(text) if text.startswith("{") else _of_text(text)
    if not math.isfinite(value):
        raise ValueError("its number is not finite")
    if abs(value) > MAX_REWARD:
        raise ValueError(f"its number is beyond {MAX_REWARD}")
    return value


def _of_text(text: str) -> float:
    if not text or not _NUMBER_CHARACTERS.issuperset(text):
        raise ValueError("it does not hold one finite number")
    try:
        return float(text)
    except ValueError:
        raise ValueError("it does not hold one finite number") from None


def _of_object(text: str) -> float:
    try:
        found = json.loads(text, object_pairs_hook=_without_doubles, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not plain JSON ({type(error).__name__})") from None
    value = found.get(KEY)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"its key {KEY} is not a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("its number is not finite") from None


def _without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key appears twice")
    return found


def _refused(_: str) -> float:
    raise ValueError("it is not a JSON number")
