"""The job: what can be handed to a program, and a UsageError for everything else."""

from __future__ import annotations

import enum
import os
import pickle
from pathlib import Path

import pytest

from ringfence.errors import UsageError
from ringfence.model.job import MAX_ARGUMENT_BYTES, Job


class Word(str, enum.Enum):  # noqa: UP042  (its str() is not its value)
    A = "value"


def test_arguments_may_be_text_bytes_and_paths() -> None:
    job = Job.of(["echo", Path("/etc"), b"\xff", Word.A])
    assert job.argv == ("echo", "/etc", "\udcff", "value")
    assert {type(part) for part in job.argv} == {str}


def test_a_job_is_taken_as_it_is() -> None:
    job = Job(argv=("true",))
    assert Job.of(job) is job


@pytest.mark.parametrize("what", ("ls -l", b"ls", 5, None))
def test_one_text_or_no_list_is_no_command(what) -> None:
    for make in (Job.of, lambda argv: Job(argv=argv)):
        with pytest.raises(UsageError):
            make(what)


@pytest.mark.parametrize(
    "argv", ([], [""], ["", "x"], ["a\0b"], ["true", "\ud800"], [5], ["true", None], ["true", "x" * MAX_ARGUMENT_BYTES])
)
def test_arguments_that_no_program_can_receive_are_refused(argv) -> None:
    with pytest.raises(UsageError):
        Job.of(argv)


def test_the_longest_argument_is_counted_in_bytes() -> None:
    assert Job(argv=("a", "x" * (MAX_ARGUMENT_BYTES - 1)))
    with pytest.raises(UsageError, match="128 KiB"):
        Job(argv=("a", "é" * (MAX_ARGUMENT_BYTES // 2)))


def test_the_working_folder_becomes_absolute() -> None:
    assert Job(argv=("a",), cwd="x").cwd == os.path.abspath("x")
    assert Job(argv=("a",), cwd=Path("/tmp")).cwd == "/tmp"  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        Job(argv=("a",), cwd=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "environment", ({"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "\0"}, {"A": "\ud800"}, {"A": 5}, {5: "x"})
)
def test_an_environment_that_no_program_can_receive_is_refused(environment) -> None:
    with pytest.raises(UsageError, match="environment"):
        Job(argv=("a",), environment=environment)


def test_an_environment_is_plain_text_and_a_copy() -> None:
    mine = {"A": Word.A, "B": "\udcff"}
    job = Job(argv=("a",), environment=mine)
    mine["A"] = "changed"  # type: ignore[assignment]
    assert dict(job.environment) == {"A": "value", "B": "\udcff"}
    assert {type(value) for value in job.environment.values()} == {str}


@pytest.mark.parametrize("stdin", ("text", True, -1, 1.5, bytearray(b"x"), object()))
def test_an_input_that_is_neither_bytes_nor_a_descriptor_is_refused(stdin) -> None:
    with pytest.raises(UsageError, match="stdin"):
        Job(argv=("a",), stdin=stdin)


def test_bytes_for_a_terminal_would_be_lost_and_are_refused() -> None:
    assert Job(argv=("a",), stdin=0, terminal=True).stdin == 0
    with pytest.raises(UsageError, match="terminal"):
        Job(argv=("a",), stdin=b"x", terminal=True)


@pytest.mark.parametrize("name", ("", "/etc/x", "../x", "a/../x", "./x", "a//b", "a/", "a\0b", "\ud800", 5, b"a", None))
def test_a_file_outside_the_working_folder_is_refused(name) -> None:
    with pytest.raises(UsageError, match="relative path"):
        Job(argv=("a",), files={name: b""})


def test_files_hold_bytes() -> None:
    assert Job(argv=("a",), files={"a/b": b"x", "..c": b""}).files["a/b"] == b"x"
    with pytest.raises(UsageError, match="bytes"):
        Job(argv=("a",), files={"a": "text"})  # type: ignore[dict-item]


def test_a_job_can_be_sent_to_another_process() -> None:
    job = Job(argv=("a",), environment={"A": "1"}, files={"f": b"x"})
    assert pickle.loads(pickle.dumps(job)) == job
