"""The audit log: nothing secret in clear, nothing lost, and every change found."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ringfence.errors import EvidenceError
from ringfence.integrations.deep_agent.audit import AuditLog, verify_audit
from ringfence.integrations.deep_agent.redaction import Redactor

SECRET = "hunter2-hunter2"
TOKEN = "ghp_" + "a1B2" * 8


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(5):
        log.append("s", "call", step=number, tool="read", parameters={"path": f"{number}.txt"})
    return log


def test_a_log_that_nobody_touched_holds(log: AuditLog) -> None:
    summary = verify_audit(log.path, head=log.head)
    assert (summary.count, summary.head, summary.events) == (5, log.head, {"call": 5})


TAMPERINGS = {
    "changed": lambda rows: [*rows[:2], rows[2].replace(b"2.txt", b"9.txt"), *rows[3:]],
    "taken out": lambda rows: [*rows[:2], *rows[3:]],
    "swapped": lambda rows: [rows[1], rows[0], *rows[2:]],
    "doubled": lambda rows: [*rows[:3], rows[2], *rows[3:]],
    "put in": lambda rows: [*rows[:2], rows[2].replace(b'"step":2', b'"step":7'), *rows[2:]],
    "first gone": lambda rows: rows[1:],
    "not ours": lambda rows: [*rows, b'{"chain":"0"}\n'],
    "not JSON": lambda rows: [*rows[:2], b"garbage\n", *rows[2:]],
    "an empty line": lambda rows: [*rows[:2], b"\n", *rows[2:]],
    "too deep": lambda rows: [*rows, b"[" * 100_000 + b"\n"],
    "torn": lambda rows: [*rows[:-1], rows[-1][:-5]],
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_tampered_log_is_found_and_the_line_named(log: AuditLog, name: str) -> None:
    path = Path(log.path)
    verify_audit(path)  # control
    path.write_bytes(b"".join(TAMPERINGS[name](lines(path))))
    with pytest.raises(EvidenceError, match=r"^record [1-6]\b"):
        verify_audit(path)


def test_a_cut_end_is_found_by_a_head_that_was_noted(log: AuditLog) -> None:
    path, noted = Path(log.path), log.head
    log.append("s", "call")
    assert verify_audit(path, head=noted).count == 6
    path.write_bytes(b"".join(lines(path)[:4]))
    assert verify_audit(path).count == 4  # control: without the head it looks whole
    with pytest.raises(EvidenceError, match="is gone"):
        verify_audit(path, head=noted)


def test_a_writer_refuses_to_go_on_after_records_are_gone(log: AuditLog) -> None:
    Path(log.path).write_bytes(b"".join(lines(Path(log.path))[:4]))
    with pytest.raises(EvidenceError, match="records are gone"):
        log.append("s", "call")


def test_a_log_that_is_not_there_or_is_a_link_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="cannot read"):
        verify_audit(tmp_path / "none")
    (tmp_path / "target").touch()
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(EvidenceError, match="cannot open"):
        AuditLog(tmp_path / "link").append("s", "call")
    assert (tmp_path / "target").read_bytes() == b""


def test_a_pipe_in_the_place_of_a_log_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    end = os.open(tmp_path / "pipe", os.O_RDWR)  # so that it would be read from, and not only opened
    try:
        with pytest.raises(EvidenceError, match="not a regular file"):
            verify_audit(tmp_path / "pipe")
    finally:
        os.close(end)


WRITER = """
import sys
from ringfence.integrations.deep_agent.audit import AuditLog
log = AuditLog(sys.argv[1])
for number in range(int(sys.argv[2])):
    log.append(sys.argv[3], "call", step=number)
    print(number, flush=True)
"""


def writer(path: Path, count: int, name: str, **more: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WRITER, str(path), str(count), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, **more)  # type: ignore[call-overload, no-any-return]


@pytest.mark.system
def test_two_processes_and_several_threads_share_a_log_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    others = [writer(path, 40, f"p{number}") for number in range(2)]
    log = AuditLog(path)
    threads = [threading.Thread(target=lambda: [log.append("t", "call") for _ in range(20)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [other.wait() for other in others] == [0, 0]
    assert verify_audit(path).count == 2 * 40 + 3 * 20
    for name in ("p0", "p1"):
        steps = [row["step"] for row in map(json.loads, lines(path)) if row["session"] == name]
        assert steps == list(range(40))
    for other in others:
        assert other.stdout is not None
        other.stdout.close()


@pytest.mark.system
def test_what_was_acknowledged_before_kill_9_is_there_and_the_log_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with writer(path, 10_000, "killed") as other:
        assert other.stdout is not None
        told = [other.stdout.readline() for _ in range(30)]
        os.kill(other.pid, signal.SIGKILL)
    AuditLog(path).append("after", "call")
    assert verify_audit(path).count >= len(told) + 1


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_line_torn_by_a_crash_is_cut_and_the_log_goes_on(log: AuditLog, kept: int) -> None:
    path = Path(log.path)
    whole = lines(path)
    path.write_bytes(b"".join(whole[:4]) + whole[4][:kept])
    AuditLog(path).append("after", "call")
    assert verify_audit(path).count == 5 and lines(path)[:4] == whole[:4]


# ---- what is written down


def written(parameters: dict[str, object], **options: object) -> str:
    return json.dumps(Redactor(**options).parameters(parameters))  # type: ignore[arg-type]


SECRETS: tuple[dict[str, object], ...] = (
    {"password": SECRET},
    {"apiKey": SECRET},
    {"API-KEY": SECRET},
    {"pаssword": SECRET},
    {"headers": {"Authorization": SECRET}},
    {"credentials": {"user": "me", "value": SECRET}},
    {"rows": [{"secrets": [SECRET]}]},
    {"cookie": SECRET.encode()},
    {"text": f"password={SECRET}"},
    {"text": f"Authorization: Bearer {SECRET}"},
    {"url": f"https://me:{SECRET}@example.org/"},
    {"text": "x" * 390 + f" password={SECRET} " + "y" * 500},
    {"text": "x" * 70 + f" password={SECRET} " + "y" * 500},
    {f"password={SECRET}": 1},
)


@pytest.mark.parametrize("parameters", SECRETS, ids=lambda parameters: ascii(next(iter(parameters)))[:20])
def test_no_secret_stands_in_the_log_in_clear(parameters: dict[str, object]) -> None:
    text = written(parameters)
    assert "hunter2" not in text
    assert "hunter2" in json.dumps(parameters, default=lambda value: value.decode())  # control: it was given


def test_what_is_no_secret_stands_there_in_clear() -> None:
    given = {"path": "a.txt", "max_tokens": 100, "deep": {"rows": [1, None, True, "x"]}, "key": "k"}
    assert Redactor().parameters(given) == given


def test_a_digest_tells_type_and_length_and_can_not_be_guessed() -> None:
    (said,) = Redactor().parameters({"password": "1234"}).values()
    assert (said["type"], said["length"]) == ("str", 4)
    assert said["hmac_sha256"] != hashlib.sha256(b"1234").hexdigest()
    assert said != Redactor().parameters({"password": "1234"})["password"]  # another log, another key
    same = Redactor(b"k" * 32)
    assert same.digest("1234") == same.digest("1234") != same.digest("1235")


def test_what_is_secret_can_be_chosen() -> None:
    assert "hunter2" in written({"token": SECRET}, clear=["token"])
    assert "hunter2" not in written({"memo": SECRET}, secret=["memo"])
    everything = written({"memo": SECRET, "n": 17, "rows": ["hunter2"]}, every_parameter=True)
    assert "hunter2" not in everything and "17" not in json.loads(everything)["n"]


def test_messages_lose_known_secrets_and_what_looks_like_one() -> None:
    redact = Redactor()
    known = redact.known_secrets({"password": SECRET, "deep": [{"token": {"a": "abcd-efgh"}}], "path": "plain"})
    assert known == [SECRET, "abcd-efgh"]
    message = redact.text(f"login with {SECRET} and abcd-efgh and {TOKEN} failed at plain", known)
    assert message == "login with [redacted] and [redacted] and [redacted] failed at plain"


@pytest.mark.parametrize("name", ["DB_PASS", "pass", "passphrase", "credential", "PRIVATE_KEY", "APIKEY"])
def test_what_names_a_secret_is_known_in_messages_and_in_parameters(name: str) -> None:
    assert "hunter2" not in Redactor().text(f"no login with {name}={SECRET} at db")
    assert "hunter2" not in written({name: SECRET})
    assert Redactor().text("compass: northwest, bypass=northeast") == "compass: northwest, bypass=northeast"


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    ["\ud800", 2**80, 10**5000, float("nan"), 1.5, b"\xff", object(), {1: 2}, {"x" * 500: 1}, "z" * 10**6, Path("a"),
     {1, 2}, [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]], [{"a": "b" * 300}] * 90],
    ids=lambda value: "huge" if isinstance(value, int) else ascii(value)[:20],
)  # fmt: skip
def test_any_parameter_can_be_written_down(tmp_path: Path, value: object) -> None:
    log = AuditLog(tmp_path / "a")
    log.append("s", "call", parameters=log.redact.parameters({"value": value}))
    assert verify_audit(log.path).count == 1 and os.path.getsize(log.path) < 70_000
