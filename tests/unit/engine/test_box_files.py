"""Files into and out of a box whose guest is hostile and whose caller makes mistakes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import ringfence
from ringfence import Job, SandboxError, SandboxPolicy, Status, UsageError
from ringfence.engine import supervision
from ringfence.engine.box import Box

pytestmark = [pytest.mark.system, pytest.mark.privileges]

ODD = os.fsdecode(b"n\xff\xe4")


@pytest.fixture(scope="module", params=["strict", "process"])
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    policy = SandboxPolicy(isolation=request.param, wall_time_s=30, on_output_limit="kill")
    with ringfence.open(policy) as opened:
        yield opened


@pytest.mark.parametrize(
    "name", [ODD, Path("a/path"), b"bytes", "new\nline", "n" * 255, f"a/{ODD}{'n' * 252}"],
    ids=lambda name: ascii(name)[:20],
)
def test_a_name_may_be_whatever_a_name_can_be(box: Box, name: str) -> None:
    box.put(name, b"content")
    assert box.get(name) == b"content"
    assert box.run(["cat", name]).stdout == b"content"


@pytest.mark.parametrize("name", ["", "half\0name", 5, None], ids=ascii)
def test_what_is_no_name_is_refused(box: Box, name: object) -> None:
    for use in (lambda: box.put(name, b""), lambda: box.get(name)):  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            use()


def test_a_number_is_no_content_and_no_descriptor_of_the_caller_is_read(box: Box) -> None:
    secret, teller = os.pipe()
    os.write(teller, b"a secret")
    os.close(teller)
    for content in (secret, 0, None, "text", ["x"]):
        with pytest.raises(UsageError, match="content of a file must be bytes"):
            box.put("file", content)  # type: ignore[arg-type]
    assert os.read(secret, 99) == b"a secret"
    os.close(secret)
    box.put("file", bytearray(b"1"))
    assert box.get("file") == b"1"


@pytest.mark.parametrize("most", [0, -1, 1.5, float("nan"), True, "9", None, 2**64], ids=ascii)
def test_a_bound_that_is_none_is_refused_by_its_name(box: Box, most: int) -> None:
    with pytest.raises(UsageError, match="max_bytes"):
        box.get("file", most)


def test_a_file_that_never_ends_is_read_no_further_than_asked(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    assert box.run(["truncate", "-s", "1T", "endless"]).ok
    counted = _counting_reads(monkeypatch)
    with pytest.raises(SandboxError, match="larger than 1000 bytes"):
        box.get("endless", 1000)
    assert sum(counted) < 2000


def _counting_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    from ringfence.engine.streams import Capture

    counted: list[int] = []
    add = Capture.add

    def counting(self: Capture, piece: bytes) -> None:
        counted.append(len(piece))
        add(self, piece)

    monkeypatch.setattr(Capture, "add", counting)
    return counted


def test_the_deadline_of_a_visit_holds_for_files_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its leader, and not only by the net that is there for a leader that was lost."""
    monkeypatch.setattr(supervision, "_NET_S", 60.0)
    with ringfence.open(SandboxPolicy(isolation="strict", wall_time_s=0.5)) as strict:
        assert strict.run(["truncate", "-s", "1T", "endless"]).ok
        with strict._occupancy.enter() as occupant:
            job, step = Job(argv=("get", "endless")), ("get file", "endless", 2**40)
            assert strict._transfer(step, job, strict.policy, occupant).status is Status.TIMEOUT


@pytest.mark.parametrize("name", ["file/below", "folder", "folder/"])
def test_why_a_file_can_not_be_put_is_said_and_nothing_is_left_of_it(box: Box, name: str) -> None:
    assert box.run(["sh", "-c", "rm -rf * .[!.]*; touch file; mkdir folder"]).ok
    with pytest.raises(SandboxError, match=r"could not be written: (Not a directory|File exists|Is a directory)"):
        box.put(name, b"content")
    assert box.run(["sh", "-c", "find . | sort"]).stdout == b".\n./file\n./folder\n"


def test_files_of_a_job_that_has_another_folder_are_refused(box: Box) -> None:
    with pytest.raises(UsageError, match="another directory than its box"):
        box.run(Job(argv=("true",), cwd="/tmp", files={"file": b""}))


def test_a_signal_or_a_time_that_is_none_is_refused(box: Box) -> None:
    handle = box.start(["sleep", "30"])
    for number in (0, -1, 65, 300, 1.5, "TERM", None):
        with pytest.raises(UsageError, match="not a signal"):
            handle.signal(number)  # type: ignore[arg-type]
    for time_s in (float("nan"), "1"):
        with pytest.raises(UsageError, match="number of seconds"):
            handle.wait(time_s)  # type: ignore[arg-type]
    handle.signal(signal.SIGTERM)
    assert handle.wait(float("inf")).status is Status.KILLED_TERM


@pytest.mark.parametrize("where", ["box", "run"])
def test_a_signal_that_comes_before_the_program_runs_is_not_lost(box: Box, where: str) -> None:
    if where == "box":
        handle = box.start(["sleep", "29"])
        handle.signal(signal.SIGTERM)
        outcome = handle.wait()
    else:
        outcome = ringfence.run(["sleep", "29"], box.policy, attach=lambda visit, _: visit.signal(signal.SIGTERM))
    assert outcome.status is Status.KILLED_TERM


def test_a_workspace_may_be_named_in_every_way_that_a_folder_can(tmp_path: Path) -> None:
    for name in (tmp_path, str(tmp_path), os.fsencode(tmp_path)):
        with ringfence.open(SandboxPolicy(isolation="strict"), name) as opened:  # type: ignore[arg-type]
            assert opened.run(["pwd"]).stdout.decode().strip() == str(tmp_path)
    with pytest.raises(UsageError, match="not a directory"):
        ringfence.open(SandboxPolicy(isolation="strict"), 5)  # type: ignore[arg-type]


def test_what_is_written_to_a_visit_with_a_terminal_arrives_and_nothing_else(box: Box) -> None:
    handle = box.start(Job(argv=("sh", "-c", "read line; echo got $line"), terminal=True))
    secret, teller = os.pipe()  # takes the number that the visit's input had here
    os.write(teller, b"a secret\n")
    handle.write(b"word\n")
    assert b"got word" in handle.wait(30).stdout
    assert os.read(secret, 99) == b"a secret\n"
    os.close(secret)
    os.close(teller)


@pytest.mark.parametrize(
    ("name", "problem", "hint"),
    [("nope", "No such file or directory", "run(['ls', '-a'])"), ("folder", "not a regular file", "tar")],
)
def test_a_file_that_does_not_come_out_says_why_and_what_to_do(box: Box, name: str, problem: str, hint: str) -> None:
    box.run(["mkdir", "-p", "folder"])
    with pytest.raises(SandboxError, match=f"'{name}' could not be read: .*{problem}") as error:
        box.get(name)
    assert hint in error.value.hint
    box.put("folder/there", b"it is")
    assert box.get("folder/there") == b"it is"
