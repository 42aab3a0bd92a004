"""Python jobs in a forked interpreter: the same as ``python FILE``, and nothing of one job in the next."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ringfence.model.python_job import Surroundings, source_job
from ringfence.model.reply import ReplyKind, read_reply
from tests.unit.posix.forked_python import ENVIRONMENT, Ended, lines, run_forked, run_python
from tests.unit.posix.python_programs import PROGRAMS, TOLD_OTHERWISE, WITH_SOURCE_LINES, Program


def _folder(place: Path, program: Program) -> Path:
    place.mkdir()
    source = program.source.encode() if isinstance(program.source, str) else program.source
    (place / "program.py").write_bytes(source)
    (place / "neighbour.py").write_text("VALUE = 42\nfile = None\n")
    return place


def _seen(ended: Ended, folder: str) -> dict[str, object]:
    """What a user sees, without the name of the folder and the addresses of objects."""
    left = Path(folder) / "out.txt"
    stdout, stderr = (text.replace(folder.encode(), b"HERE") for text in (ended.stdout, ended.stderr))
    return {
        "status": ended.status,
        "stdout": stdout,
        "stderr": re.sub(rb"0x[0-9a-f]+", b"0x_", stderr),
        "file": left.read_bytes() if left.exists() else None,
    }


def _expected(program: Program, folder: Path) -> dict[str, object]:
    ended = run_python(folder / "program.py", program.arguments, stdin=program.stdin, cwd=folder)
    return _seen(ended, str(folder))


def _ours(program: Program, folder: Path, name: str) -> dict[str, object]:
    job = source_job((folder / "program.py").read_bytes(), name=name, arguments=program.arguments,
                     surroundings=Surroundings(path=(str(folder),)))  # fmt: skip
    return _seen(run_forked(job, stdin=program.stdin, cwd=folder), name.rpartition("/")[0])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_does_the_same_as_under_a_new_interpreter(program: Program, tmp_path: Path) -> None:
    theirs, ours = _folder(tmp_path / "theirs", program), _folder(tmp_path / "ours", program)
    assert _ours(program, ours, f"{ours}/program.py") == _expected(program, theirs)


@pytest.mark.parametrize("program", TOLD_OTHERWISE, ids=lambda program: program.name)
def test_a_source_that_can_not_be_decoded_is_a_syntax_error_too(program: Program, tmp_path: Path) -> None:
    theirs, ours = _folder(tmp_path / "theirs", program), _folder(tmp_path / "ours", program)
    made, expected = _ours(program, ours, f"{ours}/program.py"), _expected(program, theirs)
    assert made["status"] == expected["status"] == 1
    assert b"SyntaxError: " in made["stderr"] and b"SyntaxError: " in expected["stderr"]  # type: ignore[operator]


@pytest.mark.parametrize("program", [each for each in PROGRAMS if each.name in WITH_SOURCE_LINES], ids=lambda p: p.name)
def test_the_lines_of_a_source_that_is_in_no_file_are_shown(program: Program, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "theirs", program)
    expected, made = _expected(program, folder), _ours(program, folder, "/nowhere/program.py")
    if program.name == "bad indentation" and sys.version_info < (3, 12):
        expected["stderr"] = expected["stderr"].replace(b"    ^\n", made["stderr"].splitlines(True)[2])  # type: ignore
    assert made == expected
