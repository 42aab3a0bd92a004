"""``shown_at``: something of the host at another path inside, read-only or as the workspace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import ringfence
from ringfence import PolicyError, SandboxPolicy, Status, run
from ringfence.checkpoint.transaction import Transaction
from ringfence.sandbox.hiding import hidden_by

pytestmark = [pytest.mark.system, pytest.mark.privileges]


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    folder = tmp_path / "answers"
    (folder / "deep").mkdir(parents=True)
    (folder / "key.txt").write_text("42\n")
    (folder / "deep" / "secret.txt").write_text("7\n")
    return folder


def _strict(**fields: object) -> SandboxPolicy:
    return SandboxPolicy.from_dict({"isolation": "strict", **fields})


def test_a_folder_and_a_file_are_shown_at_their_places_and_nowhere_else(answers: Path) -> None:
    policy = _strict(shown_at={str(answers): "/oracle", str(answers / "key.txt"): "/given/key"})
    seen = run(["sh", "-c", f"cat /oracle/key.txt /given/key; ls {answers}; echo x > /oracle/new"], policy)
    assert seen.stdout == b"42\n42\n" and seen.stderr.count(b"No such file") == 1
    assert b"Read-only" in seen.stderr and not (answers / "new").exists()


def test_the_workspace_is_changed_in_its_layer_and_committed_to_its_folder(answers: Path) -> None:
    policy = _strict(shown_at={str(answers): "/app"})
    words = ["sh", "-c", "pwd; echo 43 > key.txt; cat /app/key.txt"]
    thrown = run(words, policy, cwd=answers)
    assert thrown.stdout == b"/app\n43\n" and (answers / "key.txt").read_text() == "42\n"
    assert [change.path for change in thrown.changes] == ["key.txt"]
    assert run(words, policy, cwd=answers, commit=True).committed
    assert (answers / "key.txt").read_text() == "43\n"


def test_a_transaction_and_a_box_work_at_the_place(answers: Path, tmp_path: Path) -> None:
    policy = _strict(shown_at={str(answers): "/app"})
    with Transaction.create(tmp_path / "kept", [str(answers)], kind="overlay") as transaction:
        for number in (1, 2):
            counted = run(["sh", "-c", "echo >> /app/n; wc -l < n"], policy, transaction=transaction)
            assert counted.stdout == b"%d\n" % number
        inner = run(["pwd"], policy, cwd=answers / "deep", transaction=transaction)
        assert inner.stdout == b"/app/deep\n"
    with ringfence.open(policy, str(answers)) as box:
        assert box.run(["pwd"]).stdout == b"/app\n"
        assert box.run(["pwd"], cwd=str(answers / "deep")).stdout == b"/app/deep\n"


@pytest.mark.parametrize("name", ["/oracle/deep", "answers/deep"])
def test_what_is_hidden_by_either_name_is_absent_at_the_place(answers: Path, name: str) -> None:
    hidden = name if name.startswith("/") else str(answers / "deep")
    shown = {str(answers): "/oracle"}
    look = ["sh", "-c", "cat /oracle/deep/secret.txt; ls /oracle"]
    assert run(look, _strict(shown_at=shown)).stdout == b"7\ndeep\nkey.txt\n"
    assert run(look, _strict(shown_at=shown, hidden_paths=[hidden])).stdout == b"key.txt\n"


@pytest.mark.parametrize("hidden", ["/usr/local/share", "/given/share"])
def test_tripwires_lie_at_every_name_of_what_is_hidden(hidden: str) -> None:
    """Not below /tmp, where none can be laid: whiteouts know one name only, tripwires need all."""
    places = {"/usr/local": "/given", "/usr": "/all"}
    look = ["sh", "-c", "ls -d /given/share /all/local/share /usr/local/share /given/bin"]
    assert run(look, _strict(shown_at=places)).stdout.count(b"share") == 3
    assert run(look, _strict(shown_at=places, hidden_paths=[hidden])).stdout == b"/given/bin\n"


def test_what_is_hidden_by_a_link_at_the_place_is_absent(answers: Path) -> None:
    (answers / "link").symlink_to("deep")
    policy = _strict(shown_at={str(answers): "/oracle"}, hidden_paths=["/oracle/link/secret.txt"])
    assert set(hidden_by(policy)) == {f"{answers}/deep/secret.txt", "/oracle/deep/secret.txt"}
    assert run(["sh", "-c", "cat /oracle/*/secret.txt; cat /oracle/key.txt"], policy).stdout == b"42\n"


@pytest.mark.parametrize("hidden", ["{}", "{}/..", "/a", "/a/b"])
def test_what_is_shown_at_a_place_cannot_be_hidden_above_it(answers: Path, hidden: str) -> None:
    policy = _strict(shown_at={str(answers): "/a/b"}, hidden_paths=[os.path.normpath(hidden.format(answers))])
    with pytest.raises(PolicyError, match="the job must see it"):
        run(["true"], policy)


def test_a_place_and_what_is_shown_at_its_own_path_do_not_cover_each_other(answers: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(PolicyError, match="shown at its own path"):
        run(["true"], _strict(shown_at={str(answers): "/srv/in"}, readable_paths=["/srv"]))
    with pytest.raises(PolicyError, match="shown at its own path"):
        run(["true"], _strict(shown_at={str(answers): "/srv/in"}, writable_paths=["/srv"]))
    with pytest.raises(PolicyError, match="shown at its own path"):
        run(["true"], _strict(shown_at={str(answers): "/workspace"}))
    assert run(["true"], _strict(shown_at={str(work): "/workspace"}), cwd=work).ok


def test_one_thing_has_one_place(answers: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(answers)
    with pytest.raises(PolicyError, match="one thing twice"):
        run(["true"], _strict(shown_at={str(answers): "/a", str(tmp_path / "link"): "/b"}))


def test_what_is_hidden_in_a_workspace_by_its_place_is_absent(answers: Path) -> None:
    policy = _strict(shown_at={str(answers): "/app"}, hidden_paths=["/app/deep"])
    done = run(["sh", "-c", "ls; mkdir deep; echo planted > deep/secret.txt"], policy, cwd=answers, commit=True)
    assert done.stdout == b"key.txt\n" and (answers / "deep" / "secret.txt").read_text() == "7\n"


def test_an_attempt_on_a_place_that_is_hidden_and_not_there_is_recorded(answers: Path) -> None:
    done = run(["cat", "/oracle/key.txt"], _strict(hidden_paths=["/oracle"]), cwd=answers)
    assert done.status is Status.FAILED
    paths = [event.details.get("path") for event in done.events if event.kind == "violation"]
    assert "/oracle/key.txt" in paths or "/oracle" in paths, paths


@pytest.mark.parametrize(
    ("places", "problem"),
    [
        ({"/srv": "/etc/x"}, "its own /etc"), ({"/srv": "/usr/share"}, "its own /usr"),
        ({"/srv": "/proc"}, "its own /proc"), ({"/srv": "/tmp/x"}, "its own /tmp"), ({"/srv": "/home"}, "its own"),
        ({"/srv": "/a", "/var": "/a/b"}, "inside another"), ({"/srv": "/a", "/var": "/a"}, "inside another"),
        ({"/srv": "relative"}, "not absolute"), ({"/srv": "/"}, "whole system"), ({"/srv": "/a/../b"}, "plain form"),
        ({"/nowhere/at/all": "/a"}, "No such file"), ("text", "mapping"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_place_is_refused(places: object, problem: str) -> None:
    with pytest.raises(PolicyError, match=problem):
        run(["true"], _strict(shown_at=places))


def test_other_levels_refuse_it() -> None:
    with pytest.raises(PolicyError, match="choose strict"):
        SandboxPolicy(shown_at={"/srv": "/a"})


def test_a_link_is_followed_once_and_a_fifo_never(answers: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(answers)
    os.mkfifo(tmp_path / "pipe")
    assert run(["cat", "/oracle/key.txt"], _strict(shown_at={str(tmp_path / "link"): "/oracle"})).stdout == b"42\n"
    with pytest.raises(ringfence.UnavailableError, match="FIFO"):
        run(["true"], _strict(shown_at={str(tmp_path / "pipe"): "/oracle"}))
