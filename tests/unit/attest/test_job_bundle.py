"""One bundle of many runs, and the plug-in of Harbor that makes it of a job; Harbor itself is in tests/doors."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from attested import HELD, KEY, attempt, outcome

from ringfence.attest.job_bundle import job_bundle
from ringfence.attest.run_bundle import POLICY_NAME, artifacts_folder
from ringfence.errors import UsageError, VerificationError
from ringfence.evidence.keyfile import write_key
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import Verification, verify_bundle
from ringfence.integrations.harbor_bundle import NAME, SignedBundle, ledger_of
from ringfence.model.outcome import Enforcement, Outcome
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace

POLICY = SandboxPolicy(wall_time_s=7)
OPEN = POLICY.with_changes(network="host")


def _verified(path: Path) -> Verification:
    trust = Trust.pinned(KEY.public_hex)
    return verify_bundle(path.read_bytes(), trust=trust, artifacts_folder=artifacts_folder(str(path)))


def _bundle(out: Path, *outcomes: Outcome) -> Verification:
    job_bundle(outcomes, key=KEY, policies=[POLICY], out=out, name="job", command="a harness",
               artifacts={"harness/result.json": b"{}"})  # fmt: skip
    return _verified(out)


def test_every_run_is_a_phase_and_all_of_them_are_bound(tmp_path: Path) -> None:
    out = tmp_path / "bundle.json"
    found = _bundle(out, outcome(), outcome(attempt()), outcome(attempt()))
    assert found.run is not None and [row["name"] for row in found.run["phases"]] == ["run", "run 2", "run 3"]
    assert found.verdict["status"] == "compromised" and found.verdict["pass"] is False
    assert [record["step"] for record in found.violations] == [1, 2]
    (Path(artifacts_folder(str(out))) / "harness" / "result.json").write_bytes(b'{"reward": 1}')
    with pytest.raises(VerificationError):
        _verified(out)


def test_a_protection_that_was_missing_once_is_not_claimed(tmp_path: Path) -> None:
    without = HELD | {"network": Enforcement(requested="none", applied=False, mechanism="none")}
    once = _bundle(tmp_path / "once.json", outcome(), replace(outcome(), enforced=without)).run
    always = _bundle(tmp_path / "always.json", outcome(), outcome()).run
    assert once is not None and always is not None
    row = next(row for row in once["enforcement"] if row["protection"] == "network")
    assert not row["applied"] and all(row["applied"] for row in always["enforcement"])


def test_nothing_that_was_run_is_nothing_to_sign(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing was run"):
        _bundle(tmp_path / "bundle.json")


def _ended(folder: Path, key: Path, *, runs: bool = True) -> None:
    plugin = SignedBundle(key=str(key))

    async def job() -> None:
        await plugin.on_job_start(SimpleNamespace(job_dir=folder))
        trial = folder / "trial__1"
        (trial / "verifier").mkdir(parents=True, exist_ok=True)
        (trial / "result.json").write_text('{"reward": 1}')
        (trial / "verifier" / "reward.txt").symlink_to("/etc/hostname")
        ledger = ledger_of(str(trial))
        assert ledger is not None and ledger_of(str(folder.parent / "other" / "trial__1")) is None
        if runs:
            for policy in (POLICY, OPEN, POLICY):
                ledger.add("trial__1", policy, replace(outcome(), stdout=b"secret"))
        await plugin.on_job_end(SimpleNamespace(id="0193"))

    asyncio.run(job())


def test_a_job_of_harbor_leaves_a_bundle_that_binds_its_results(tmp_path: Path) -> None:
    key, folder = tmp_path / "key", tmp_path / "jobs" / "one"
    write_key(str(key), KEY)
    _ended(folder, key)
    found = _verified(folder / NAME)
    names = set(found.run["artifact_bytes"] if found.run else ())
    assert {"harbor/trial__1/result.json", "commands.json"} <= names
    assert "harbor/trial__1/verifier/reward.txt" not in names, "no link of a trial is followed"
    kept = Path(artifacts_folder(str(folder / NAME)))
    assert [each["policy"] for each in json.loads((kept / "commands.json").read_bytes())] == [1, 2, 1]
    assert json.loads((kept / "unbound.json").read_bytes()) == ["trial__1/verifier/reward.txt"], "and it is told"
    stated = json.loads((kept / POLICY_NAME).read_bytes())
    assert [each["network"] for each in stated] == [POLICY.to_dict()["network"], "host"], "no policy stands for another"
    assert b"secret" not in b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file())
    assert ledger_of(str(folder / "trial__1")) is None, "nothing is kept of a job that is over"
    with pytest.raises(UsageError, match="already exists"):  # evidence is not written over
        _ended(folder, key)
    with pytest.raises(UsageError, match="nothing to sign"):
        _ended(tmp_path / "jobs" / "two", key, runs=False)


def test_without_a_key_the_job_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if "SEED" in name or "KEY" in name]:
        monkeypatch.delenv(name)
    with pytest.raises(UsageError, match="no key"):
        SignedBundle()
