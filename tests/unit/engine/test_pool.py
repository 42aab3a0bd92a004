"""What a job finds in a sandbox that stood by, and how it ends: as with run."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.engine.pooled import policy_of

from ringfence import CallError, Job, Pool, SetupError, Status, UsageError, run
from ringfence.backends import leader_client
from ringfence.engine.streams import MESSAGE_BYTES
from ringfence.python_jobs import job as python_job
from ringfence.python_jobs.encode import MAX_BYTES
from ringfence.python_jobs.reply import channel_bytes
from ringfence.roles.standby import INLINE_BYTES

pytestmark = [pytest.mark.system, pytest.mark.privileges]

# ---- what a job finds


def test_every_job_has_a_sandbox_of_its_own(pool: Pool) -> None:
    write = "open('kept', 'x').close(); import builtins; assert not hasattr(builtins, 'mark'); builtins.mark = 1"
    assert [pool.run_source(write).status for _ in range(4)] == [Status.OK] * 4


@pytest.mark.parametrize("stdin", [b"typed", None, b"x" * 300_000], ids=["some", "none", "much"])
def test_stdin_arrives(pool: Pool, stdin: bytes | None) -> None:
    read = "import sys; sys.stdout.buffer.write(b'%d' % len(sys.stdin.buffer.read()))"
    expected = b"%d" % len(stdin or b"")
    assert pool.run_source(read, stdin=stdin).stdout == expected
    assert pool.run(Job(argv=(sys.executable, "-c", read), stdin=stdin)).stdout == expected


def test_stdin_may_be_a_descriptor(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"from a file")
    with open(tmp_path / "input", "rb") as file:
        outcome = pool.run_source("print(input())", stdin=file.fileno())
    assert outcome.stdout == b"from a file\n"


def test_files_arrive_also_in_folders_and_large_ones(pool: Pool) -> None:
    files = {"a.txt": b"a", "deep/er/b.bin": bytes(range(256)) * 4096}
    read = "import sys; sys.stdout.buffer.write(open('a.txt', 'rb').read() + open('deep/er/b.bin', 'rb').read()[-3:])"
    assert pool.run_source(read, files=files).stdout == b"a\xfd\xfe\xff"
    listed = pool.run(Job(argv=("cat", "a.txt"), files=files))
    assert listed.stdout == b"a"


def test_the_environment_is_the_jobs_and_the_policys_never_the_callers(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLERS_OWN", "secret")
    show = "import os; print(os.environ.get('FROM_POLICY'), os.environ.get('FROM_JOB'), os.environ.get('CALLERS_OWN'))"
    with Pool(policy_of(level, environment={"FROM_POLICY": "p"}), warm=1) as pool:
        warm = pool.run_source(show, environment={"FROM_JOB": "j"})
        cold = pool.run(Job(argv=(sys.executable, "-c", show), environment={"FROM_JOB": "j"}))
    assert warm.stdout == cold.stdout == b"p j None\n"


def test_one_text_is_no_list_of_arguments(pool: Pool) -> None:
    with pytest.raises(UsageError, match="arguments"):
        pool.run_source("0", arguments="abc")


def test_arguments_and_the_name_of_a_source_arrive(pool: Pool) -> None:
    outcome = pool.run_source("import sys; print(sys.argv)", arguments=["one", "two"], name="job.py")
    assert outcome.stdout == b"['job.py', 'one', 'two']\n"


def test_output_is_streamed_while_the_job_runs(pool: Pool) -> None:
    pieces: list[tuple[str, bytes]] = []
    reader, writer = os.pipe()

    def hear(name: str, piece: bytes) -> None:
        pieces.append((name, piece))
        if len(pieces) == 1:
            os.write(writer, b"go on\n")  # the job waits for this, so it was heard before its end

    outcome = pool.run_source("print('first', flush=True); print(input())", stdin=reader, on_output=hear)
    os.close(reader)
    os.close(writer)
    assert pieces[0] == ("stdout", b"first\n") and outcome.stdout == b"first\ngo on\n"


def test_output_of_a_job_in_the_background_is_streamed_too(pool: Pool) -> None:
    came, go_on = threading.Event(), os.pipe()
    heard: list[bytes] = []

    def hear(stream: str, piece: bytes) -> None:
        heard.append(piece)
        came.set()

    ticket = pool.submit(Job(argv=("sh", "-c", "echo one; read line; echo $line"), stdin=go_on[0]), on_output=hear)
    assert came.wait(30) and not ticket.done
    os.write(go_on[1], b"two\n")
    assert ticket.result(30).stdout == b"one\ntwo\n" == b"".join(heard)
    for descriptor in go_on:
        os.close(descriptor)


def test_files_come_out_as_values_or_through_a_writable_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with Pool(policy_of("strict", writable_paths=[str(tmp_path)]), warm=1) as strict:
        assert strict.run(["sh", "-c", f"echo made > {tmp_path}/file"]).ok
        assert strict.call(lambda name: Path(name).read_bytes(), f"{tmp_path}/file") == b"made\n"
    assert (tmp_path / "file").read_text() == "made\n"


def test_a_source_larger_than_a_message_arrives(pool: Pool) -> None:
    source = f"text = {'x' * (3 * INLINE_BYTES)!r}\nprint(len(text))"
    assert pool.run_source(source).stdout == b"%d\n" % (3 * INLINE_BYTES)


def test_a_source_of_any_size_around_that_of_a_message_arrives(pool: Pool) -> None:
    for extra in range(-1500, 1, 125):
        source = "print('whole')#" + "x" * (INLINE_BYTES + extra)
        assert pool.run_source(source).stdout == b"whole\n"


def test_a_large_value_comes_back(pool: Pool) -> None:
    for length in (3_000_000, MAX_BYTES - 2):  # two quotes are part of it
        assert pool.call(lambda n: "v" * n, length) == "v" * length


def test_modules_that_were_asked_for_are_imported_already(level: str) -> None:
    shown = "import sys; print('colorsys' in sys.modules)"
    with Pool(policy_of(level), warm=1, preload=["colorsys"]) as pool:
        assert pool.run_source(shown).stdout == b"True\n"
    with Pool(policy_of(level), warm=1) as pool:
        assert pool.run_source(shown).stdout == b"False\n"


def test_a_module_that_is_not_there_is_said_when_the_pool_is_made(level: str) -> None:
    with pytest.raises(SetupError, match="no_such_module") as caught:
        Pool(policy_of(level), preload=["no_such_module"])
    assert caught.value.step == "preload"


@pytest.mark.parametrize("body", ["raise ValueError('boom')", "raise SystemExit('boom')"])
def test_a_module_that_can_not_be_imported_is_named_with_the_cause(
    level: str, body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raising.py").write_text(body)
    monkeypatch.setattr(python_job, "package_folders", lambda: (str(tmp_path),))
    with pytest.raises(SetupError, match=r"raising: (ValueError|SystemExit): boom") as caught:
        Pool(policy_of(level), preload=["raising"])
    assert caught.value.step == "preload"


def test_arguments_of_a_call_may_have_any_name(pool: Pool) -> None:
    assert pool.call(lambda function, self: [function, self], function=1, self=2) == [1, 2]


# ---- how it ends


def test_the_time_that_a_sandbox_stood_by_is_not_the_jobs(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the caller is slow to say that the clock starts."""
    with Pool(policy_of(level, wall_time_s=1), warm=1) as pool:
        pool.run_source("0")
        time.sleep(1.5)
        client = leader_client.LeaderClient
        send = client._send
        monkeypatch.setattr(client, "_send", lambda self, data: (time.sleep(0.2), send(self, data))[1])
        outcome = pool.run_source("print('in time')")
    assert outcome.status is Status.OK and outcome.duration_ms < 1400, (outcome.reason, outcome.duration_ms)


def test_a_program_that_is_not_there_is_a_set_up_error_as_with_run(pool: Pool) -> None:
    problems = []
    for attempt in (lambda: pool.run(["/no/such/program"]), lambda: run(["/no/such/program"], pool.policy)):
        with pytest.raises(SetupError) as caught:
            attempt()
        problems.append((caught.value.step, str(caught.value), caught.value.hint))
    assert problems[0] == problems[1] and problems[0][0] == "exec"
    assert pool.run_source("print(1)").ok


REPLIES = {
    "garbage": ("os.write(3, b'\\xff' * 1000)", "not a message|no message|garbled|understand"),
    "nothing": ("os._exit(0)", "nothing|no value|without"),
    "closed": ("os.close(3)", "nothing|no value|without"),
    "half": ("os.write(3, b'RF'); os._exit(0)", ""),
    "endless": ("[os.write(3, bytes(1 << 20)) for _ in range(20)]", ""),
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_guest_that_spoils_its_reply_gives_a_problem_in_words_and_no_value(pool: Pool, name: str) -> None:
    namespace: dict[str, Callable[[], object]] = {}
    exec(f"def spoil():\n import os\n {REPLIES[name][0]}\n return 'forged'", namespace)
    got = pool.try_call(namespace["spoil"])
    assert not got.ok and got.problem, got
    with pytest.raises(CallError):
        _ = got.value
    assert pool.call(lambda: "next") == "next"


def test_a_value_that_is_too_large_or_can_not_be_sent_is_said(pool: Pool) -> None:
    assert "16777216 are allowed" in pool.try_call(lambda n: "v" * n, MAX_BYTES).problem
    assert "object" in pool.try_call(lambda: object()).problem


def test_the_channel_takes_the_largest_value() -> None:
    assert channel_bytes() <= MESSAGE_BYTES


def test_an_exception_of_the_guest_has_type_message_and_traceback(pool: Pool) -> None:
    def fails(value: int) -> None:
        raise ZeroDivisionError(f"not {value}")

    with pytest.raises(CallError, match="not 5") as caught:
        pool.call(fails, 5)
    assert caught.value.type_name == "ZeroDivisionError" and "in fails" in caught.value.traceback_text


def test_an_exception_in_on_output_reaches_the_caller_and_frees_the_place(pool: Pool) -> None:
    def refuse(*_: object) -> None:
        raise LookupError("no more")

    for _ in range(3):
        with pytest.raises(LookupError):
            pool.run_source("print(1); input()", on_output=refuse)
    assert pool.run_source("print(1)").ok


def test_a_python_job_may_read_of_itself_what_any_process_may(pool: Pool) -> None:
    """And so may whoever holds its limits: what it writes is counted there."""
    assert b"write_bytes" in pool.run_source("print(open('/proc/self/io').read())").stdout


def test_ctrl_c_in_a_wait_does_not_make_a_running_job_look_ended(pool: Pool) -> None:
    ticket = pool.submit(["sleep", "600"])
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        ticket.result(60)
    assert not ticket.done
    ticket.cancel()
    assert ticket.result(20).status is Status.KILLED_KILL
