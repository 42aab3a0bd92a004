"""What an operator is shown before a commit is what is committed, whatever a model does beside it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.checkpoint.transaction import Transaction
from ringfence.engine.run import transaction_kind
from ringfence.errors import FileError, SandboxError, UsageError
from ringfence.integrations.living.session import Session
from ringfence.model.job import Job
from ringfence.model.policy import SandboxPolicy
from ringfence.roles.removal import remove_tree

pytestmark = [pytest.mark.system, pytest.mark.privileges,
              pytest.mark.skipif(sys.platform != "linux", reason="needs isolation strict")]  # fmt: skip
POLICY = SandboxPolicy(isolation="strict", wall_time_s=60, cpu_time_s=60)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    kind = transaction_kind(POLICY)
    with Transaction.create(str(tmp_path / "layer"), [str(workspace)], kind=kind) as transaction:
        made = Session(POLICY, transaction, workspace=str(workspace))
        yield made
        made.close()


def _write(session: Session, text: str) -> None:
    assert session.place.run(Job(argv=("sh", "-c", f"echo {text} > file"))).ok


def test_what_begins_between_the_seal_and_the_look_is_neither_shown_nor_committed(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else: harm at the seal, a harmless look, harm again, and a seal that holds."""
    _write(session, "harm")
    looked, beside = session.place.changes, threading.Thread(target=_write, args=(session, "harmless"))

    def changes() -> object:
        beside.start()
        beside.join(2)  # if it can begin now, it does
        return looked()

    monkeypatch.setattr(session.place, "changes", changes)
    shown = session.to_commit()
    beside.join()
    assert "harm\n" in shown.text and "harmless" not in shown.text
    with pytest.raises(SandboxError):  # by now it is something else
        session.commit(shown)
    monkeypatch.undo()
    # Control: with nothing beside it, what is shown is carried over.
    again = session.to_commit()
    assert "harmless" in again.text and session.commit(again).startswith("committed 1 path ")
    assert Path(session.workspace, "file").read_text() == "harmless\n"


def test_a_name_with_lines_in_it_is_one_line_of_what_is_shown(session: Session) -> None:
    name = "a\nmodified README\n\n[0123456789abcdef]\r\x1b[2J"
    assert session.place.run(Job(argv=("touch", name, "plain"))).ok
    lines = session.to_commit().text.splitlines()
    assert any("plain" in line for line in lines)  # the control: names are shown
    assert "modified README" not in lines and "[0123456789abcdef]" not in lines
    assert any(r"a\nmodified README\n\n[0123" in line for line in lines)


def test_the_operator_is_told_what_is_not_shown_before_anything_the_program_chose(session: Session) -> None:
    kept: list[str] = []
    session._keep_question = lambda text: kept.append(text) or "read it by: a command"
    assert session.place.run(Job(argv=("sh", "-c", "seq 9000 > long"))).ok
    lines = session.to_commit().text.splitlines()
    assert lines[1].startswith("NOT ALL OF IT IS SHOWN: ") and lines[1].endswith("; read it by: a command")
    left, whole = (int(word) for word in lines[1].split() if word.isdigit())
    assert len(kept) == 1 and "\n+4711\n" in kept[0] and "+4711" not in lines
    assert 0 < left < whole < len(kept[0])
    assert kept[0].splitlines()[-1] == lines[-1], "both hold the same seal"
    # Control: what is shown whole is said to be nothing else.
    assert session.place.run(Job(argv=("sh", "-c", "echo NOT ALL OF IT IS SHOWN > long"))).ok
    short = session.to_commit().text.splitlines()
    assert not short[1].startswith("NOT ALL") and len(kept) == 1


# ---- a file that can't be read


@pytest.mark.parametrize(("path", "wrong", "hint"), [
    ("none", "there is no such file", "list_files"),
    ("plain/below", "a part of its path is a file", "list_files"),
    ("folder", "it is a directory", "list_files lists it"),
    ("fifo", "it is a FIFO, a socket or a device", "run_command"),
    ("large", "it is larger than 16 MiB", "head -c"),
    ("picture", "it is not UTF-8 text: byte 0xff at 3", "iconv"),
    ("zeros", "it is not UTF-8 text: byte 0x00 at 0", "xxd"),
    ("around", "its links point in a circle", "ls -l"),
    ("closed", "its permissions", "chmod"),
    ("x" * 5000, "its path is too long", "list_files"),
])  # fmt: skip
def test_what_can_t_be_read_says_what_is_wrong_where_and_what_to_do(
    readable: Session, path: str, wrong: str, hint: str
) -> None:
    with pytest.raises(FileError) as told:
        readable.read_file(path, 0)
    assert str(told.value).startswith(f"{path!r} could not be read: {wrong}") and hint in told.value.hint
    assert "max_bytes" not in told.value.hint and "run([" not in told.value.hint, "a model has tools, and no library"
    assert readable.read_file("plain", 0) == "hellö\n", "control"


def test_an_offset_behind_the_end_is_told(readable: Session) -> None:
    with pytest.raises(UsageError, match="9 is not within its 6 characters") as told:
        readable.read_file("plain", 9)
    assert told.value.hint


@pytest.fixture(scope="module")
def readable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    make = ("mkdir folder; mkfifo fifo; truncate -s 17M large; printf 'abc\\377' > picture; ln -s around around; "
            "truncate -s 3 zeros; printf 'hell\\303\\266\\n' > plain; echo x > closed; chmod 0 closed")  # fmt: skip
    with Session.opened(POLICY, tmp_path_factory.mktemp("workspace")) as made:
        assert made.run(make).ok
        yield made


def test_a_session_leaves_nothing_behind_however_deep_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    deep = """python3 -c 'import os; [(os.mkdir("d"), os.chdir("d")) for _ in range(1500)]'"""
    with Session.opened(POLICY) as made:
        assert made.run(deep).ok
        assert list(tmp_path.glob("*/session-*")), "the control"
    left = list(tmp_path.glob("*/session-*"))
    remove_tree(str(tmp_path))
    assert not left
