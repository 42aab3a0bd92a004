"""``ringfence run --bundle``: evidence of a real run, and what a job tries against it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringfence.evidence.keys import SEED_VARIABLE, SigningKey
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import Verification, verify_bundle

pytestmark = pytest.mark.privileges
SEED = "0d" * 32
PUBLIC = SigningKey.from_seed_hex(SEED).public_hex


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of the command; evidence goes beside it."""
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def _run(command: list[str], work: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*command, "run", *words], cwd=work, capture_output=True, check=False, timeout=60, **options)


def _verified(out: Path, public: str = PUBLIC) -> Verification:
    folder = str(out.with_suffix(".artifacts"))
    return verify_bundle(out.read_bytes(), trust=Trust.pinned(public), artifacts_folder=folder)


def test_a_run_leaves_evidence_and_its_own_exit_code(ringfence_command: list[str], work: Path) -> None:
    out = work.parent / "evidence.json"
    script = r"printf '\377\033[2J'; echo err >&2; exit 5"
    done = _run(
        ringfence_command, work, "--bundle", "../evidence.json", "--signing-seed", SEED, "--", "sh", "-c", script
    )
    assert (done.returncode, done.stdout) == (5, b"\xff\x1b[2J")
    assert f"--pubkey {PUBLIC}".encode() in done.stderr
    found = _verified(out)
    assert found.run is not None and found.run["phases"][0]["exit_code"] == 5
    assert found.verdict["status"] == "clean" and found.verdict["pass"] is False
    assert (out.with_suffix(".artifacts") / "run.stdout").read_bytes() == b"\xff\x1b[2J"
    assert os.listdir(work) == []


def test_what_it_prints_checks_the_bundle(ringfence_command: list[str], work: Path) -> None:
    done = _run(ringfence_command, work, "--bundle", "../e.json", "--signing-seed", SEED, "--", "true")
    words = done.stderr.decode().partition("check it: ringfence ")[2].split()
    checked = subprocess.run([*ringfence_command, *words], capture_output=True, text=True, check=False, timeout=60)
    assert checked.returncode == 0 and "bundle OK" in checked.stdout, checked.stderr
    assert "nobody decided whether it passed" in checked.stdout


def test_a_touched_secret_is_in_the_evidence(ringfence_command: list[str], work: Path) -> None:
    (work / "answer").write_text("42")
    words = ("--hidden", "answer", "--bundle", "../e.json", "--signing-seed", SEED, "--", "cat", "answer")
    done = _run(ringfence_command, work, *words)
    found = _verified(work.parent / "e.json")
    assert done.returncode == 1 and found.verdict["status"] == "compromised"
    assert {(record["kind"], record["path"]) for record in found.violations} == {("masked_read", str(work / "answer"))}
    lines = [json.loads(line) for line in (work.parent / "e.artifacts" / "events.jsonl").read_text().splitlines()]
    told = next(line for line in lines if line["kind"] == "violation")
    assert (told["process"], told["argv"], told["result"]) == ("cat", ["cat", "answer"], "ENOENT")


def test_a_new_key_beside_the_bundle_is_told_and_hidden_from_the_job(ringfence_command: list[str], work: Path) -> None:
    """The evidence may lie in the directory that the job is shown: the key must not be among what it sees."""
    words = ("--", "sh", "-c", "cat signing-seed.hex; ls -a")
    first = _run(ringfence_command, work, "--bundle", "one.json", *words)
    seed = (work / "signing-seed.hex").read_text().strip()
    assert b"a new signing key was made" in first.stderr
    second = _run(ringfence_command, work, "--bundle", "two.json", *words)
    for done in (first, second):
        assert seed.encode() not in done.stdout + done.stderr and b"signing-seed" not in done.stdout
    public = SigningKey.from_seed_hex(seed).public_hex
    assert _verified(work / "one.json", public).verdict["status"] == "compromised"
    assert _verified(work / "two.json", public).violations[0]["path"] == str(work / "signing-seed.hex")


def test_without_hiding_the_key_would_be_read(ringfence_command: list[str], work: Path) -> None:
    """The positive control of the test before."""
    (work / "signing-seed.hex").write_text(SEED)
    (work / "signing-seed.hex").chmod(0o600)
    done = _run(ringfence_command, work, "--discard", "--", "cat", "signing-seed.hex")
    assert done.stdout == SEED.encode()


def test_a_key_in_an_environment_that_the_job_is_shown_is_hidden(ringfence_command: list[str], work: Path) -> None:
    """Nobody named that directory: the job's Python needs it, so all of it is shown."""
    environment, script = work.parent / "env", "import sys; print(sys.prefix); print(open(sys.argv[1]).read())"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    key = environment / "ops.key"
    key.write_text(SEED)
    key.chmod(0o600)
    found = os.environ | {"PATH": f"{environment}/bin:{os.environ['PATH']}"}
    words = ("--", "python3", "-c", script, str(key))
    control = _run(ringfence_command, work, "--discard", *words, env=found)
    assert control.stdout.decode().split() == [str(environment), SEED], control.stderr
    done = _run(ringfence_command, work, "--bundle", "../e.json", "--key", str(key), *words, env=found)
    assert done.stdout.decode().split() == [str(environment)] and SEED.encode() not in done.stderr
    assert b"FileNotFoundError" in done.stderr
    assert [each["path"] for each in _verified(work.parent / "e.json").violations] == [str(key)]


@pytest.mark.parametrize(("words", "problem"), [
    (("--bundle", "../there.json"), "already exists"),
    (("--bundle", "../no/e.json"), "no such directory"),
    (("--bundle", "../e.json", "--key", "../absent"), "cannot read the key"),
    (("--bundle", "../e.json", "--signing-seed", "abc"), "64 lower-case hex"),
    (("--bundle", "../e.json", "--signing-seed", SEED, "--key", "x"), "both --signing-seed and --key"),
    (("--bundle", "../e.json", "--output", "unlimited"), "can't be unlimited"),
    (("--bundle", "../e.json", "--env", SEED_VARIABLE), "would be passed to the job"),
    (("--bundle", "e.json", "--commit"), "can't be there"),
    (("--bundle", "../w/e.json", "--writable", "../w"), "can't be there"),
    (("--signing-seed", SEED), "no bundle was asked for"),
    (("--key", "x"), "no bundle was asked for"),
])  # fmt: skip
def test_what_is_wrong_is_told_before_anything_runs(
    ringfence_command: list[str], work: Path, words: tuple[str, ...], problem: str
) -> None:
    (work.parent / "there.json").write_text("mine")
    (work.parent / "w").mkdir()
    done = _run(ringfence_command, work, *words, "--", "sh", "-c", "echo ran")
    assert (done.returncode, done.stdout) == (2, b""), done.stderr
    assert problem in done.stderr.decode()
    assert (work.parent / "there.json").read_text() == "mine"
    assert not (work.parent / "e.json").exists() and os.listdir(work) == []


def test_a_key_file_and_json(ringfence_command: list[str], work: Path) -> None:
    key = work.parent / "ops.key"
    made = subprocess.run([*ringfence_command, "keygen", "--out", str(key)], capture_output=True, text=True, check=True)
    done = _run(ringfence_command, work, "--json", "--bundle", "../e.json", "--key", str(key), "--", "true")
    assert json.loads(done.stdout)["bundle"] == str(work.parent / "e.json")
    _verified(work.parent / "e.json", made.stdout.strip().removeprefix("pubkey="))


def test_a_job_that_takes_the_evidences_place_gets_an_error_and_no_bundle(
    ringfence_command: list[str], work: Path
) -> None:
    """At isolation process it writes where the caller can."""
    script = "ln -s / ../e.artifacts; echo forged > ../e.json"
    words = ("--isolation", "process", "--bundle", "../e.json", "--signing-seed", SEED, "--", "sh", "-c", script)
    done = _run(ringfence_command, work, *words)
    assert done.returncode == 1 and b"no bundle: " in done.stderr
    assert (work.parent / "e.json").read_text() == "forged\n"
    assert sorted(os.listdir(work.parent)) == ["e.artifacts", "e.json", "work"]


def test_at_a_level_without_a_recorder_nothing_is_called_clean(ringfence_command: list[str], work: Path) -> None:
    words = ("--isolation", "process", "--bundle", "../e.json", "--signing-seed", SEED, "--", "true")
    done = _run(ringfence_command, work, *words)
    found = _verified(work.parent / "e.json")
    assert done.returncode == 0 and found.verdict["status"] == "compromised"
    assert any("nothing recorded this run" in note for note in found.notes)
    assert b"could read what you can" in done.stderr


def test_a_killed_job_leaves_evidence_of_its_end(ringfence_command: list[str], work: Path) -> None:
    words = ("--wall", "0.3", "--bundle", "../e.json", "--signing-seed", SEED, "--", "sleep", "20")
    done = _run(ringfence_command, work, *words)
    found = _verified(work.parent / "e.json")
    assert done.returncode == 124 and found.run is not None
    assert found.run["phases"][0]["timed_out"] is True and found.run["phases"][0]["wall_limit_ms"] == 300


def test_changes_that_are_kept_are_in_the_evidence(ringfence_command: list[str], work: Path) -> None:
    words = ("--commit", "--bundle", "../e.json", "--signing-seed", SEED, "--", "sh", "-c", "echo x > made")
    assert _run(ringfence_command, work, *words).returncode == 0
    _verified(work.parent / "e.json")
    told = json.loads((work.parent / "e.artifacts" / "changes.json").read_text())
    assert told == {"changes": [["added", "made"]], "committed": True, "complete": True}
