"""The executor over a cluster that is none: shipping, directories that hold, the first that stays, what leaves here."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("proctored runs need Linux", allow_module_level=True)

from tests.unit.cluster.fake_ray import FakeRay

from ringfence.cluster import ray_module
from ringfence.cluster.authentication import MODE, TOKEN
from ringfence.cluster.blobs import Blobs, Received
from ringfence.egress import upstream
from ringfence.errors import UnavailableError, UsageError
from ringfence.model.record import replace
from ringfence.proctor import run
from ringfence.proctor.suite import completeness, ray_executor, shipping
from ringfence.proctor.suite.entry import Entry, Order, Result, State
from ringfence.proctor.suite.ray_executor import RayExecutor, Sent, run_on_node
from ringfence.proctor.suite.shipping import Shipped, Shipping, place

ORDER = Order(agent="sh -c 'echo 42 > answer.txt'", seed="5a" * 32, suite="ab" * 32)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    for module in (ray_module, ray_executor):
        monkeypatch.setattr(module, "ray_module", lambda: fake)
    monkeypatch.setattr(ray_executor, "check_node", lambda version: None)
    monkeypatch.setattr(ray_executor, "keep_stdout", lambda: None)
    monkeypatch.setenv(MODE, "token")
    monkeypatch.setenv(TOKEN, "0123")
    return fake


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "out"
    made.mkdir(mode=0o700)
    return made


def _entry(tmp_path: Path, name: str = "sum") -> Entry:
    task = tmp_path / "tasks" / name
    for part in ("workspace", "oracle"):
        (task / part).mkdir(parents=True)
    (task / "workspace" / "readme.txt").write_text("write the answer into answer.txt\n")
    (task / "oracle" / "expected.txt").write_text("42\n")
    (task / "grade.sh").write_text('test "$(cat answer.txt)" = "$(cat /oracle/expected.txt)"\n')
    return Entry(id=name, kind="generic", path=str(task))


def _all(executor: RayExecutor, *entries: Entry) -> dict[str, Result]:
    for entry in entries:
        executor.submit(entry)
    return {result.id: result for result in executor.results()}


# ---- runs


@pytest.mark.system
def test_entries_run_once_each_although_nodes_die_and_are_used_again(
    ray: FakeRay, tmp_path: Path, folder: Path
) -> None:
    entries = [_entry(tmp_path, name) for name in ("one", "two")]
    ray.loses = 1
    first = _all(RayExecutor(ORDER, str(folder), 2), *entries)
    assert {result.state for result in first.values()} == {State.VERDICT}, first
    assert ray.lost == 1 and ray.begun == 3 and ray.options[0]["max_calls"] == 1
    assert sorted(os.listdir(folder)) == ["one", "two"]
    assert all(result.where and result.out == str(folder / name) for name, result in first.items())
    again = _all(RayExecutor(ORDER, str(folder), 2), *entries)
    assert all(result.reused for result in again.values()) and ray.begun == 3


@pytest.mark.system
def test_what_a_node_sends_must_hold_and_the_first_stays(
    ray: FakeRay, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = _entry(tmp_path)
    sent = run_on_node(entry, ORDER, (), "any")
    assert sent.result.state is State.VERDICT and "bundle.json" in sent.files

    def answering(answer: object) -> Result:
        monkeypatch.setattr(ray_executor, "run_on_node", lambda *_: answer)
        return _all(RayExecutor(ORDER, str(folder), 1), entry)[entry.id]

    spoilt = {**sent.files, "agent.stdout": b"other words"}
    for files in (spoilt, {**sent.files, "../up": b""}, {**sent.files, "more": b""}, {}):
        told = answering(replace(sent, files=files))
        assert told.state is State.FAILED and "is not valid" in told.error, files.keys()
        assert os.listdir(folder) == [] and not (tmp_path / "up").exists()
    assert answering("rubbish").state is State.FAILED
    assert answering(sent).state is State.VERDICT
    before = (folder / "sum" / "bundle.json").stat().st_ino
    executor = RayExecutor(ORDER, str(folder), 1)
    executor._entries["sum"] = entry
    executor._dispatch.submit("sum", entry, ORDER, (), "any")  # a second complete bundle of the same entry
    (second,) = executor.results()
    assert second.state is State.VERDICT and (folder / "sum" / "bundle.json").stat().st_ino == before
    assert os.listdir(folder) == ["sum"]
    completeness.verified(str(folder / "sum"), executor._public_key, ORDER.nonce("sum"))


def test_what_can_not_be_read_here_is_refused_here(ray: FakeRay, tmp_path: Path, folder: Path) -> None:
    entry = _entry(tmp_path)
    os.mkfifo(tmp_path / "tasks" / "sum" / "workspace" / "pipe")
    told = _all(RayExecutor(ORDER, str(folder), 1), entry)["sum"]
    assert told.state is State.REFUSED and "pipe" in told.error and ray.begun == 0


@pytest.mark.parametrize(("policy", "words"), [
    ("network: {mode: allowlist, allow: ['127.0.0.1:6379']}", "node of the cluster"),
    ("network: {mode: allowlist, allow: ['10.0.0.0/8:6379']}", "node of the cluster"),
    ("phases: {setup: {network: {mode: allowlist, allow: ['10.0.0.1:6379']}}}", "node of the cluster"),
    (f"env: {{allow: [{TOKEN}]}}", "is the cluster's own"),
])  # fmt: skip
def test_a_task_that_would_reach_the_cluster_is_refused(
    policy: str, words: str, ray: FakeRay, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sent the task would run code on every node."""
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeManagerAddress": "10.0.0.1"}])
    entry = _entry(tmp_path)
    Path(entry.path, "policy.yaml").write_text(f"version: 1\n{policy}\n")
    told = _all(RayExecutor(ORDER, str(folder), 1), entry)["sum"]
    assert told.state is State.REFUSED and words in told.error, told


def test_a_task_that_names_another_address_of_its_node_is_refused(
    ray: FakeRay, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = _entry(tmp_path)
    Path(entry.path, "policy.yaml").write_text("version: 1\nnetwork: {mode: allowlist, allow: ['192.0.2.7:6379']}\n")
    monkeypatch.setattr(run, "proctor", _handed_on)
    for own, words in (("192.0.2.7", "node of the cluster"), ("192.0.2.8", "it was handed on")):
        monkeypatch.setattr(upstream, "is_own", own.__eq__)
        told = _all(RayExecutor(ORDER, str(folder), 1), entry)["sum"]
        assert told.state is State.REFUSED and words in told.error, told


def _handed_on(*_: object, **__: object) -> None:
    raise UsageError("it was handed on")


def test_cancelled_and_lost_entries_are_told_apart(
    ray: FakeRay, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_executor, "run_on_node", lambda *_: None)
    executor = RayExecutor(ORDER, str(folder), 1)
    entries = [_entry(tmp_path, name) for name in ("one", "two")]
    for entry in entries:
        executor.submit(entry)
    executor.cancel("two")
    ray.loses = 100
    ends = {result.id: result.state for result in executor.results()}
    assert ends == {"one": State.FAILED, "two": State.CANCELLED}
    executor.close()
    executor.close()
    assert [*executor.results()] == []


def test_jobs_and_slots_bound_what_runs_at_once(ray: FakeRay, folder: Path) -> None:
    assert RayExecutor(ORDER, str(folder), 3).slots == 3
    assert RayExecutor(ORDER, str(folder), 30).slots == 4


# ---- what leaves this machine


def test_only_variables_that_a_policy_or_a_ready_agent_names_are_sent(tmp_path: Path) -> None:
    entry = _entry(tmp_path)
    Path(entry.path, "policy.yaml").write_text(
        "version: 1\nenv: {allow: [MODEL]}\nnetwork:\n  mode: allowlist\n  allow:\n"
        "    - {host: api.example.com, inject: {header: x-api-key, from_env: KEY}}\n"
    )
    have = {"MODEL": "m", "KEY": "k", "OTHER": "o", "ANTHROPIC_API_KEY": "a"}
    assert ray_executor._variables(entry, ORDER, have) == {"MODEL": "m", "KEY": "k"}
    kept = replace(entry, options={"no-env": "yes", "env": "OTHER"})
    assert ray_executor._variables(kept, ORDER, have) == {"KEY": "k", "OTHER": "o"}
    ready = replace(ORDER, agent="@claude-code")
    assert ray_executor._variables(entry, ready, have) == {"MODEL": "m", "KEY": "k", "ANTHROPIC_API_KEY": "a"}
    assert "5a5a" not in repr(replace(ORDER, environment=have)) and "'k'" not in repr(replace(ORDER, environment=have))


def test_all_files_of_the_caller_are_sent(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text("x")
    entry = replace(_entry(tmp_path), options={"policy": "/p.yaml", "repo": "/clone"})
    order = replace(ORDER, agent=f"python3 {script}", scaffold=("/prompts",))
    assert ray_executor._inputs(entry, order) == [entry.path, "/p.yaml", "/clone", str(script), "/prompts"]
    assert str(script) in ray_executor._inputs(entry, replace(ORDER, agent=f"@script:{script}"))


# ---- shipping


@pytest.fixture
def shipped(ray: FakeRay, tmp_path: Path) -> Iterator[Shipped]:
    source = tmp_path / "a" / "tree"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "run").write_text("#!/bin/sh\n")
    (source / "sub" / "run").chmod(0o755)
    (source / "big").write_bytes(os.urandom(100_000))
    (source / "link").symlink_to("sub")
    with open(os.fsencode(source) + b"/no \xff text", "wb") as file:
        file.write(b"x")
    (one,) = Shipping(ray).of([str(source), str(source)])
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    yield one


def test_a_missing_input_is_put_at_its_path_and_read_from_the_store_once(
    ray: FakeRay, shipped: Shipped, tmp_path: Path
) -> None:
    place(shipped, Received(), ray)
    assert len(ray.stored) == 1 and ray.fetched == 1
    there = tmp_path / "a" / "tree"
    assert (there / "link").is_symlink() and os.access(there / "sub" / "run", os.X_OK)
    place(shipped, Received(), ray)
    assert ray.fetched == 1  # it is there
    assert os.listdir(tmp_path / "a") == ["tree"]


def test_nothing_on_a_node_is_overwritten(ray: FakeRay, shipped: Shipped, tmp_path: Path) -> None:
    there = tmp_path / "a" / "tree"
    there.mkdir(parents=True)
    (there / "mine").write_text("mine")
    with pytest.raises(UnavailableError, match="another"):
        place(shipped, Received(), ray)
    assert os.listdir(there) == ["mine"]


def test_the_second_of_two_that_put_it_there_finds_the_first(
    ray: FakeRay, shipped: Shipped, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = shipping._rename

    def late(made: str, path: str) -> None:
        os.makedirs(path)
        Path(path, "foreign").write_text("first")
        plain(made, path)

    monkeypatch.setattr(shipping, "_rename", late)
    with pytest.raises(UnavailableError, match="another"):
        place(shipped, Received(), ray)
    assert os.listdir(tmp_path / "a" / "tree") == ["foreign"] and os.listdir(tmp_path / "a") == ["tree"]


def test_a_place_that_can_not_be_made_is_told(ray: FakeRay, shipped: Shipped, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file where a directory must be")
    with pytest.raises(UnavailableError, match="can't be made"):
        place(shipped, Received(), ray)
    with pytest.raises(UnavailableError, match="too large"):
        place(replace(shipped, path=str(tmp_path / "none"), pieces=()), Received(), ray)


def _evil(change: Callable[[tarfile.TarInfo], None]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        member = tarfile.TarInfo("it/x")
        change(member)
        archive.addfile(member)
    return file.getvalue()


@pytest.mark.parametrize("change", [
    lambda member: setattr(member, "name", "../up"), lambda member: setattr(member, "name", "/tmp/up"),
    lambda member: setattr(member, "name", "it/../../up"),
])  # fmt: skip
def test_an_archive_that_leaves_its_place_is_refused(
    ray: FakeRay, tmp_path: Path, change: Callable[[tarfile.TarInfo], None]
) -> None:
    blob = Blobs(ray).of(_evil(change))
    with pytest.raises(UsageError, match="points outside"):
        place(Shipped(path=str(tmp_path / "p" / "x"), sha256="0" * 64, pieces=(blob,)), Received(), ray)
    assert os.listdir(tmp_path / "p") == [] and not (tmp_path / "up").exists()


@pytest.mark.parametrize(("error", "state"), [(OverflowError("x"), State.REFUSED), (OSError(28, "full"), State.FAILED)])
def test_what_an_agent_may_have_brought_about_is_not_tried_again(
    error: Exception, state: State, ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> Result:
        raise error

    monkeypatch.setattr(ray_executor, "run_entry", failing)
    assert run_on_node(_entry(tmp_path), ORDER, (), "any").result.state is state


def test_the_answer_of_a_node_that_may_not_run_it(ray: FakeRay, tmp_path: Path) -> None:
    entry = replace(_entry(tmp_path), kind="unknown")
    told = run_on_node(entry, ORDER, (), "any")
    assert isinstance(told, Sent) and told.result.state is State.REFUSED and told.files == {}
