"""Runs inside: takes one strategy from its input, calls ``run(data)``, hands the result out. Standard library only.

Its text is the program of the container's first process, for any Python from 3.8 on. Nothing that it says is trusted:
the strategy runs in the same process and may speak in its place.

In come 8 bytes of length, a JSON head, and the data; out go ``ready`` and a line end, then the same for the result.
What the strategy prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READY = b"ready\n"
RESULT = "result.json"
ENCODED = 24000
"""How many bytes of JSON an error takes, and its traceback: together with the rest less than the host reads."""
DEPTH, LARGEST = 64, 2**53 - 1


def take(source: int, count: int) -> bytes:
    """Read this many bytes; exit at the end of the input: nobody wants the result any more."""
    data = bytearray()
    while len(data) < count:
        piece = os.read(source, min(count - len(data), 1 << 20))
        if not piece:
            os._exit(143)
        data += piece
    return bytes(data)


def give(target: int, head: dict[str, object], payload: bytes) -> None:
    words = json.dumps(head).encode()
    data = memoryview(len(words).to_bytes(8, "big") + words + payload)
    while data:
        data = data[os.write(target, data) :]


def plain(value: Any, depth: int = 1) -> object:
    """A value for JSON: NaN and infinity become null, numpy numbers become numbers."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return whole(value)
    if isinstance(value, float):
        return value if value - value == 0 else None
    if depth > DEPTH:
        raise ValueError(f"a result is nested deeper than {DEPTH}")
    if isinstance(value, dict):
        return named(value, depth)
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), depth)
    raise TypeError(f"a value of type {type(value).__name__} can't be part of a result")


def whole(value: int) -> int:
    if abs(value) > LARGEST:
        raise ValueError("an integer of a result is beyond 2**53, where others would read it differently; make it text")
    return value


def named(value: Any, depth: int) -> dict[str, object]:
    """The keys of JSON are text: 1 and "1" would be the same one."""
    found: dict[str, object] = {}
    for key, item in value.items():
        if str(key) in found:
            raise ValueError(f"two keys of a result are {str(key)[:80]!r} in JSON")
        found[str(key)] = plain(item, depth + 1)
    return found


def fitting(text: str, last: bool = False) -> str:
    """The beginning or the end of a text, as much as fits once it is encoded: a character takes up to 12 bytes."""
    text = text[-ENCODED:] if last else text[:ENCODED]
    text = text.encode("utf-8", "backslashreplace").decode()
    while len(json.dumps(text)) > ENCODED:
        text = text[len(text) // 8 + 1 :] if last else text[: -(len(text) // 8 + 1)]
    return text


def called(code: str, data: object) -> object:
    names: dict[str, Any] = {"__name__": "__strategy__", "__builtins__": __builtins__}
    exec(compile(code, "strategy.py", "exec"), names)
    run = names.get("run")
    if not callable(run):
        raise TypeError("the strategy defines no function run(data)")
    result = run(data)
    if not isinstance(result, dict):
        raise TypeError(f"run(data) returned {type(result).__name__}, not a dict")
    return result


def written(folder: str, result: object) -> bytes:
    """Write the result into the file that the contract names, and read it from there."""
    path = os.path.join(folder, RESULT)
    with open(path, "w") as file:
        json.dump(plain(result), file, allow_nan=False)
    with open(path, "rb") as file:
        return file.read()


def data_of(head: Any, payload: bytes) -> object:
    """The data itself, or the path of the file that it is."""
    name = os.path.join(head["input"], head["name"])
    with open(name, "wb") as file:
        file.write(payload)
    return name if head["is_file"] else json.loads(payload.decode())


def answer(head: Any, payload: bytes) -> tuple[dict[str, object], bytes]:
    try:
        os.makedirs(head["input"], exist_ok=True)
        os.makedirs(head["output"], exist_ok=True)
        return {"ok": True}, written(head["output"], called(head["code"], data_of(head, payload)))
    except BaseException as error:
        import traceback

        told = f"{type(error).__name__}: {error}"
        return {"ok": False, "error": fitting(told), "traceback": fitting(traceback.format_exc(), last=True)}, b""


def watch(source: int) -> None:
    """Exit when the input ends: nobody wants the result any more."""
    while os.read(source, 1 << 16):
        pass
    os._exit(143)


def limit_processor(seconds: int) -> None:
    """Set it for good: a safety net if nobody watches any more. A lower limit stays."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    seconds = seconds if hard == resource.RLIM_INFINITY else min(seconds, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def main() -> None:
    source, target = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.write(target, READY)
    head = json.loads(take(source, int.from_bytes(take(source, 8), "big")).decode())
    payload = take(source, head["bytes"])
    limit_processor(head["cpu_s"])
    if head["watch"]:
        threading.Thread(target=watch, args=(source,), daemon=True).start()
    said, result = answer(head, payload)
    sys.stdout.flush()
    sys.stderr.flush()
    give(target, dict(said, bytes=len(result)), result)
    if head["watch"]:
        threading.Event().wait()  # until somebody has read what was used, and removes the container
    os._exit(0)


if __name__ == "__main__":
    main()
