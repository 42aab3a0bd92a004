"""What runs inside, as a plain process: the contract of a strategy, and an end when nobody wants the result."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ringfence.docker_sandbox.conversation import Data, Reply, read_reply, read_result, request
from ringfence.docker_sandbox.recipe import runner_argv
from ringfence.docker_sandbox.strategy_runner import READY, answer, give, limit_processor, plain, take

pytestmark = pytest.mark.system


def played(folder: Path, code: str, data: Data) -> tuple[Reply, str]:
    asked = request(code, data, cpu_s=60, input=str(folder / "in"), output=str(folder / "out"), watch=False)
    done = subprocess.run(runner_argv(sys.executable), input=asked, capture_output=True, check=True)
    assert done.stdout.startswith(READY)
    reply = read_reply(done.stdout.removeprefix(READY), 1 << 20)
    assert reply is not None
    return reply, done.stderr.decode()


def test_run_is_called_with_the_data_and_its_dict_is_the_result(tmp_path: Path) -> None:
    code = ("print('loud')\ndef run(data):\n"
            "    return {'n': data['n'] + 1, 'bad': float('inf'), 't': (1, None, True), 3: 'x'}")
    reply, printed = played(tmp_path, code, Data(payload=b'{"n": 1}'))
    assert read_result(reply.payload) == {"n": 2, "bad": None, "t": [1, None, True], "3": "x"} and printed == "loud\n"
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == read_result(reply.payload)
    assert (tmp_path / "in" / "data.json").read_bytes() == b'{"n": 1}'


def test_a_file_is_handed_on_by_its_path(tmp_path: Path) -> None:
    code = "def run(path):\n    with open(path) as file: return {'path': path, 'text': file.read()}"
    reply, _ = played(tmp_path, code, Data(payload=b"a,b", name="prices.csv", is_file=True))
    assert read_result(reply.payload) == {"path": str(tmp_path / "in" / "prices.csv"), "text": "a,b"}


@pytest.mark.parametrize(("code", "error"), [
    ("def run(data): raise ValueError('no')", "ValueError: no"), ("x = 1", "no function run"),
    ("run = 1", "no function"),
    ("def run(data): return [1]", "list, not a dict"), ("def run(data): return {'a': object()}", "type object"),
    ("def run(:", "SyntaxError"), ("def run(data): raise SystemExit(3)", "SystemExit: 3"),
    ("def run(data): raise KeyboardInterrupt", "KeyboardInterrupt"),
    ("def run(data): return run(data)", "RecursionError"),
])  # fmt: skip
def test_whatever_a_strategy_raises_is_told(tmp_path: Path, code: str, error: str) -> None:
    reply, _ = played(tmp_path, code, Data(payload=b"null"))
    assert not reply.ok and error in reply.error and "Traceback" in reply.traceback and reply.payload == b""


@pytest.mark.parametrize("text", ["'\\U0001f600' * 9000", "'\\0' * 30000", "'\\udc80'", "'x' * 100_000"])
def test_a_long_error_is_told_whatever_its_characters_take(tmp_path: Path, text: str) -> None:
    reply, _ = played(tmp_path, f"def run(data): raise ValueError({text})", Data(payload=b"null"))
    assert not reply.ok and reply.error.startswith("ValueError: ") and len(reply.error) > 12


def nested(depth: int) -> str:
    return "def run(data):\n    x = {}\n" + "".join("    x = {'a': x}\n" for _ in range(depth - 1)) + "    return x"


@pytest.mark.parametrize(("good", "bad", "error"), [
    ("def run(data): return {'n': [-(2**53 - 1)]}", "def run(data): return {'n': [-2**53]}", "beyond 2**53"),
    (nested(64), nested(65), "nested deeper than 64"),
    ("def run(data): return {1: 0, '2': 0}", "def run(data): return {'a': {1: 0, '1': 0}}", "two keys of a result"),
], ids=["integer", "depth", "keys"])  # fmt: skip
def test_what_would_not_be_one_result_everywhere_is_an_error_of_the_strategy(
    tmp_path: Path, good: str, bad: str, error: str
) -> None:
    reply, _ = played(tmp_path, good, Data(payload=b"null"))
    assert reply.ok and read_result(reply.payload)
    reply, _ = played(tmp_path, bad, Data(payload=b"null"))
    assert not reply.ok and error in reply.error


def test_it_ends_when_nobody_is_there_any_more(tmp_path: Path) -> None:
    waited = subprocess.run(runner_argv(sys.executable), input=b"", capture_output=True, check=False)
    assert (waited.returncode, waited.stdout) == (143, READY)
    asked = request("def run(data):\n    while True: pass", Data(payload=b"1"), cpu_s=60, input=str(tmp_path),
                    output=str(tmp_path))  # fmt: skip
    assert subprocess.run(runner_argv(sys.executable), input=asked, capture_output=True, check=False).returncode == 143


def test_processor_time_has_an_end_that_can_not_be_raised(tmp_path: Path) -> None:
    code = ("import resource\ndef run(data):\n    try: resource.setrlimit(resource.RLIMIT_CPU, (9999, 9999))\n"
            "    except (ValueError, OSError): pass\n    return {'limits': resource.getrlimit(resource.RLIMIT_CPU)}")
    reply, _ = played(tmp_path, code, Data(payload=b"1"))
    if read_result(reply.payload)["limits"] != [9999, 9999]:  # who has CAP_SYS_RESOURCE may; inside nobody has
        assert read_result(reply.payload) == {"limits": [60, 60]}


class Number:
    def tolist(self) -> float:
        return 1.5


def test_numbers_of_other_libraries_are_numbers() -> None:
    assert plain({"a": [Number(), 2.0, float("nan")]}) == {"a": [1.5, 2.0, None]}


def head(folder: Path, code: str, **more: object) -> dict[str, object]:
    return {"code": code, "input": str(folder / "in"), "output": str(folder / "out"), "name": "data.json",
            "is_file": False, **more}  # fmt: skip


def test_an_answer_is_the_result_or_what_went_wrong(tmp_path: Path) -> None:
    said, payload = answer(head(tmp_path, "def run(data): return {'n': data}"), b"[1]")
    assert (said, payload) == ({"ok": True}, b'{"n": [1]}')
    path = str(tmp_path / "in" / "x.csv")
    code = f"def run(data): return {{'same': data == {path!r}}}"
    assert answer(head(tmp_path, code, name="x.csv", is_file=True), b"1")[1] == b'{"same": true}'
    for code, error in (("x = 1", "TypeError"), ("def run(data): return 1", "TypeError"), ("1 / 0", "ZeroDivision")):
        said, payload = answer(head(tmp_path, code), b"1")
        assert said["ok"] is False and str(said["error"]).startswith(error) and payload == b""


def test_what_is_given_is_what_is_taken() -> None:
    ours, theirs = os.pipe()
    give(theirs, {"a": 1}, b"payload")
    length = int.from_bytes(take(ours, 8), "big")
    assert (json.loads(take(ours, length)), take(ours, 7)) == ({"a": 1}, b"payload")
    os.close(ours)
    os.close(theirs)


def test_a_lower_limit_of_processor_time_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _which, pair: told.append(pair))
    for hard in (resource.RLIM_INFINITY, 5, 500):
        monkeypatch.setattr(resource, "getrlimit", lambda _which, hard=hard: (hard, hard))
        limit_processor(60)
    assert told == [(60, 60), (5, 5), (60, 60)]
