"""Transactions at the level container on a real Docker engine: working copies at their own paths, commit and rollback,
the manager and the safe agent; and what of the originals a job can reach, which is nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import ringfence
from ringfence import Job, SandboxConfig, SandboxManager, SandboxPolicy, run
from ringfence.checkpoint.transaction import Transaction
from ringfence.container.api import Client
from ringfence.engine.run import transaction_kind
from ringfence.errors import UsageError
from ringfence.integrations.deep_agent import Commit, SafeConfig, SafeDeepAgent
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Status

pytestmark = [pytest.mark.system, pytest.mark.root]

REMOVE = "python3 -c 'import os, sys; os.remove(sys.argv[1])'"
POLICY = SandboxPolicy(isolation=IsolationLevel.CONTAINER, wall_time_s=120)


@pytest.fixture(autouse=True)
def engine(container_client: Client) -> Client:
    return container_client


@pytest.fixture
def base(tmp_path: Path) -> Path:
    made = tmp_path / "base"
    (made / "sub").mkdir(parents=True)
    (made / "a").write_text("one\n")
    (made / "sub" / "b").write_text("two\n")
    (made / "program").write_text("#!/bin/sh\n")
    (made / "program").chmod(0o4755)
    (made / "a").chmod(0o600)
    return made


@pytest.fixture
def transaction(base: Path, tmp_path: Path) -> Iterator[Transaction]:
    with Transaction.create(tmp_path / "transaction", [base], kind=transaction_kind(POLICY)) as made:
        yield made


def test_a_job_works_on_the_copy_at_its_own_path(base: Path, transaction: Transaction) -> None:
    code = f"pwd; cat {base}/a; echo new >> a; {REMOVE} sub/b; touch {base}/sub/c"
    done = run(["sh", "-c", code], POLICY, transaction=transaction)
    assert done.ok and done.stdout.decode() == f"{base}\none\n", done
    assert (base / "a").read_text() == "one\n" and (base / "sub" / "b").exists() and not (base / "sub" / "c").exists()
    assert {change.path for change in done.changes} == {f"{base}/{name}" for name in ("a", "sub/b", "sub/c")}
    transaction.commit()
    assert (base / "a").read_text() == "one\nnew\n" and not (base / "sub" / "b").exists()
    kept = (base / "sub" / "c").stat()
    assert kept.st_uid == base.stat().st_uid and (base / "program").stat().st_mode & 0o7777 == 0o4755
    assert run(["cat", "a"], POLICY, transaction=transaction, cwd=base).stdout == b"one\nnew\n"


def test_nothing_is_changed_by_giving_the_copy_away(base: Path, transaction: Transaction) -> None:
    assert run(["true"], POLICY, transaction=transaction).changes == ()
    assert list(transaction.changes()) == []
    (base / "a").write_text("changed beside\n")
    (base / "program").write_text("#!/bin/other\n")
    transaction.commit()  # no conflict: nothing of the copy differs from what it was made of
    assert (base / "a").read_text() == "changed beside\n"


def test_a_box_goes_back_and_forth(base: Path, transaction: Transaction) -> None:
    with ringfence.open(POLICY, transaction=transaction) as box:
        assert box.run(["sh", "-c", "echo first > a"]).ok
        box.put("sub/d", b"put")
        then = transaction.create_checkpoint("then")
        assert box.run(["sh", "-c", f"echo second > a; {REMOVE} sub/d"]).ok
        transaction.rollback(then.checkpoint_id)
        assert box.run(["cat", "a", "sub/d"]).stdout == b"first\nput"
        assert box.run(["sh", "-c", "echo third >> a"]).ok, "what was brought back is the job's to write"
        box.commit()
    assert (base / "a").read_text() == "first\nthird\n" and (base / "sub" / "d").read_bytes() == b"put"
    with ringfence.open(POLICY, transaction=transaction) as box:
        assert box.run(["sh", "-c", f"{REMOVE} sub/d"]).ok
    transaction.discard()
    transaction.commit()
    assert (base / "sub" / "d").exists()


ATTACK = """
import os
for path in ({base!r}, {above!r}):
    for name in ('a', '../base/a', 'out'):
        try:
            with open(os.path.join(path, name), 'a') as file: file.write('ESCAPED')
        except OSError: pass
os.chdir({base!r})
os.symlink({above!r}, 'link')
try: open('link/evil', 'w').write('ESCAPED')
except OSError: pass
"""


def test_the_originals_are_out_of_reach(base: Path, transaction: Transaction) -> None:
    code = ATTACK.format(base=str(base), above=str(base.parent))
    policy = POLICY.with_changes(mem_bytes=256 << 20)
    run(Job(argv=("python3", "-c", code)), policy, transaction=transaction)
    held = {path.name: path.read_bytes() for path in base.parent.rglob("*") if path.is_file() and
            "transaction" not in path.parts}  # fmt: skip
    assert not any(b"ESCAPED" in content for content in held.values()), held
    assert sorted(path.name for path in base.parent.iterdir()) == ["base", "transaction"]
    words = ["docker", "run", "--rm", "--network=none", f"--volume={base.parent}:{base.parent}", "python:3.10-slim"]
    subprocess.run([*words, "python3", "-c", code], check=False, capture_output=True)
    assert "ESCAPED" in (base / "a").read_text() and (base.parent / "evil").exists(), "the attack proves nothing"


@pytest.mark.parametrize("asked", [{"disk_bytes": 32 << 20}, {"mem_bytes": 64 << 20}], ids=["asked", "by default"])
def test_what_grows_in_a_copy_is_bounded(asked: dict[str, int], transaction: Transaction) -> None:
    code = "import time\nwith open('big', 'wb') as file:\n for _ in range(600):\n  file.write(bytes(1 << 20)); " \
           "file.flush(); time.sleep(0.01)"  # fmt: skip
    done = run(Job(argv=("python3", "-c", code)), POLICY.with_changes(**asked), transaction=transaction)
    assert done.status is Status.DISK_LIMIT and "32 MiB are allowed" in done.reason, done
    assert done.enforced["disk"].applied and "working copies" in done.enforced["disk"].details


def test_what_can_not_be_is_said(base: Path, transaction: Transaction, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="would be written directly"):
        run(["true"], POLICY.with_changes(writable_paths=(str(base / "sub"),)), transaction=transaction)
    with pytest.raises(UsageError):
        run(["true"], POLICY, transaction=transaction, cwd=tmp_path)
    with pytest.raises(UsageError, match="was hidden only after"):
        run(["true"], POLICY.with_changes(hidden_paths=(str(base / "a"),)), transaction=transaction)


def add(name: str, text: str) -> int:
    with open(name, "a") as file:
        return file.write(text)


def test_the_manager_undoes_and_commits(base: Path, tmp_path: Path) -> None:
    manager = SandboxManager(sandbox_root=tmp_path / "state")
    config = SandboxConfig(isolation_level=IsolationLevel.CONTAINER, allowed_paths=[base])
    context = manager.create_sandbox(config)
    try:
        first = manager.execute_in_sandbox(context, add, {"name": str(base / "a"), "text": "more\n"})
        assert first.success and first.value == 5, first
        kept = manager.rollback_system.create_checkpoint(context.sandbox_id)
        assert manager.execute_in_sandbox(context, add, {"name": str(base / "sub/b"), "text": "worse"}).success
        manager.rollback(context, kept.checkpoint_id)
        assert (base / "a").read_text() == "one\n"
        manager.commit(context)
    finally:
        manager.destroy_sandbox(context.sandbox_id)
        manager.close()
    assert (base / "a").read_text() == "one\nmore\n" and (base / "sub" / "b").read_text() == "two\n"


def write_file(path: str, text: str) -> int:
    return add(path, text)


def execute_badly(path: str) -> None:
    add(path, "half")
    raise RuntimeError("could not finish")


def test_the_safe_agent_commits_what_succeeds_and_undoes_the_rest(base: Path, tmp_path: Path) -> None:
    sandbox = SandboxConfig(isolation_level=IsolationLevel.CONTAINER, allowed_paths=[base],
                            sandbox_root=tmp_path / "state")  # fmt: skip
    config = SafeConfig(sandbox=sandbox, commit=Commit.EACH_CALL)
    tools = {"write_file": write_file, "execute_badly": execute_badly}
    with SafeDeepAgent(tools, safe_config=config) as agent:
        assert agent.run_tool("write_file", path=str(base / "a"), text="more\n").success
        assert (base / "a").read_text() == "one\nmore\n"
        failed = agent.run_tool("execute_badly", path=str(base / "a"))
        assert not failed.success and failed.rolled_back
        assert agent.run_tool("write_file", path=str(base / "sub/b"), text="!").success
    assert (base / "a").read_text() == "one\nmore\n" and (base / "sub" / "b").read_text() == "two\n!"
