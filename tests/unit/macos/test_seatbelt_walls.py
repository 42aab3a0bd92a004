"""Which directories the profile of a box names. Nothing runs: that a profile holds, only a Mac can show."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringfence.backends import process
from ringfence.backends.on_macos import walls
from ringfence.errors import SetupError, UnavailableError, UsageError
from ringfence.macos import trial
from ringfence.macos.seatbelt import real
from ringfence.model.outcome import Mechanism
from ringfence.model.policy import SandboxPolicy

HIDDEN = "(deny file* process-exec* "


def _rules(tmp_path: Path, *, folder: str = "work", transaction: Any = None, **asked: object) -> list[str]:
    built = walls.SeatbeltWalls(SandboxPolicy.from_dict({"isolation": "process", **asked}))
    if transaction is not None:
        assert built.work_on(transaction) == {}
    scratch: Any = SimpleNamespace(path=str(tmp_path / "scratch"), folders=("work", "home"))
    step = built.through(("exec", ["sh", "-c", "x"], {"PATH": "/bin"}), str(tmp_path / folder), scratch)
    assert step[0] == "exec" and step[3] == trial.SANDBOX_EXEC
    words: Any = step[1]
    assert words[:2] == [trial.SANDBOX_EXEC, "-p"] and words[3:] == ["/bin/sh", "-c", "x"]
    return list(words[2].splitlines())


def _below(path: Path) -> str:
    return f'(subpath "{real(str(path))}")'


def _writes(rules: list[str], place: Path) -> str:
    """What the last rule for writes says that names the place."""
    return [rule for rule in rules if "file-write*" in rule.split(" (")[0] and _below(place) in rule][-1].split(" ")[0]


def test_a_job_writes_its_folders_and_what_the_policy_names(tmp_path: Path) -> None:
    rules = _rules(tmp_path, writable_paths=[str(tmp_path / "out")])
    for name in ("scratch/work", "scratch/home", "work", "out"):
        assert _writes(rules, tmp_path / name) == "(allow", name


def test_a_folder_that_is_only_readable_is_not_written(tmp_path: Path) -> None:
    rules = _rules(tmp_path, readable_paths=[str(tmp_path / "work")])
    assert not [rule for rule in rules if rule.startswith("(allow file-write* ") and _below(tmp_path / "work") in rule]


def test_a_transaction_is_worked_on_in_its_copies(tmp_path: Path) -> None:
    """Originals are not written, though the policy names them, and what is hidden is hidden in the copy too."""
    base, copy = tmp_path / "base", tmp_path / "state" / "copy"
    transaction = SimpleNamespace(bases=(str(base),), place=lambda _: str(copy), ours=(str(tmp_path / "state"),))
    rules = _rules(tmp_path, folder="state/copy", transaction=transaction, writable_paths=[str(base)],
                   hidden_paths=[str(base / "secret")])  # fmt: skip
    assert _writes(rules, base) == "(deny" and _writes(rules, copy) == "(allow"
    assert _writes(rules, tmp_path / "state") == "(deny"
    hidden = next(rule for rule in rules if rule.startswith(HIDDEN))
    assert _below(base / "secret") in hidden and _below(copy / "secret") in hidden


def test_a_link_that_a_guest_made_in_its_copy_opens_nothing(tmp_path: Path) -> None:
    copy, secret = tmp_path / "state" / "copy", tmp_path / "secret"
    copy.mkdir(parents=True)
    secret.mkdir()
    (copy / "sub").symlink_to(secret)
    transaction = SimpleNamespace(bases=(str(tmp_path / "base"),), place=lambda _: str(copy),
                                  ours=(str(tmp_path / "state"),))  # fmt: skip
    rules = _rules(tmp_path, folder="state/copy/sub", transaction=transaction)
    assert _writes(rules, copy) == "(allow" and not [rule for rule in rules if _below(secret) in rule]
    plain = _rules(tmp_path, folder="secret", transaction=transaction)  # the control: a caller's choice
    assert _writes(plain, secret) == "(allow"


@pytest.mark.parametrize("folder", ["home", "home/state/ringfence", "home/state/ringfence/sandboxes"])
def test_a_working_folder_opens_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """It is granted as a whole, behind the rule that closes our records and the key that seals them."""
    (tmp_path / "home" / "state" / "ringfence" / "sandboxes").mkdir(parents=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home" / "state"))
    with pytest.raises(UsageError, match="ringfence"):
        _rules(tmp_path, folder=folder)
    assert _writes(_rules(tmp_path, folder="home/project"), tmp_path / "home" / "project") == "(allow"


def test_a_link_is_named_by_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    rules = _rules(tmp_path, hidden_paths=[str(tmp_path / "link")])
    assert _below(tmp_path / "there") in rules[-1] and _below(tmp_path / "link") in rules[-1]


def test_a_list_of_hosts_is_lacking_and_closes_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_found", [""])
    asked: dict[str, Any] = {"isolation": "process", "network": ["example.org"], "hidden_paths": ["/a"]}
    held, lacks = walls.rows(SandboxPolicy.from_dict(asked))
    assert held and [lack.capability for lack in lacks] == ["network"]
    assert "(deny network*)" in _rules(tmp_path, network=["example.org"])


def test_what_nobody_asks_for_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "problem", lambda: pytest.fail("it was tried"))
    assert walls.rows(SandboxPolicy.from_dict({"isolation": "process"})) == ({}, ())


def test_no_box_stands_by_and_no_missing_program_is_started(tmp_path: Path) -> None:
    built = walls.SeatbeltWalls(SandboxPolicy.from_dict({"isolation": "process", "hidden_paths": ["/a"]}))
    with pytest.raises(UnavailableError):
        built.refuse_standby()
    scratch: Any = SimpleNamespace(path=str(tmp_path), folders=())
    with pytest.raises(SetupError):
        built.through(("exec", ["no-such-program"], {"PATH": "/bin"}), str(tmp_path), scratch)


def test_the_platform_says_which_walls_a_box_of_the_level_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third kind of wall is one row: what asks for it, what it enforces, and what makes it."""
    policy = SandboxPolicy.from_dict({"isolation": "process", "network": "none", "allow_partial": True})
    monkeypatch.setattr(process, "make_group", lambda _: None)
    monkeypatch.setitem(process._WALLS_OF, sys.platform, (("network",), lambda: (walls.rows, walls.SeatbeltWalls)))
    monkeypatch.setattr(trial, "_found", [""])
    box = process.ProcessBackend().open(policy)
    assert isinstance(box._walls, walls.SeatbeltWalls) and box.enforced["network"].by == (Mechanism.SEATBELT,)
    assert "network" not in {lack.capability for lack in process.ProcessBackend().lacks(policy)}
    box.close()
    monkeypatch.setitem(process._WALLS_OF, sys.platform, (("hidden_paths",), lambda: pytest.fail("nobody asks for it")))
    process.ProcessBackend().open(policy).close()
