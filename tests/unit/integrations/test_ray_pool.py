"""``RayPool`` over a cluster that is none: what goes to a node, what comes back, and which policies are refused."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("pools need Linux", allow_module_level=True)

from tests.unit.cluster.fake_ray import FakeRay

from ringfence import SandboxPolicy
from ringfence.cluster import ray_module
from ringfence.cluster.authentication import MODE, TOKEN
from ringfence.engine.call_result import CallResult
from ringfence.errors import CallError, SetupError, UnavailableError, UsageError
from ringfence.integrations.ray import RayPool, worker
from ringfence.integrations.ray import pool as ray_pool
from ringfence.model.outcome import Status

POLICY = SandboxPolicy(isolation="strict", wall_time_s=60)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    fake = FakeRay()
    for module in (ray_module, worker):
        monkeypatch.setattr(module, "ray_module", lambda: fake)
    monkeypatch.setattr(worker, "check_node", lambda version: None)
    monkeypatch.setenv(MODE, "token")
    monkeypatch.setenv(TOKEN, "0123")
    yield fake
    with worker._kept._lock:
        worker._kept._close()


@pytest.mark.system
def test_the_methods_of_a_pool(ray: FakeRay) -> None:
    with RayPool(POLICY) as pool:
        assert pool.run_source("import sys; print(sys.argv, open('f').read(), input())", arguments=["a"],
                               stdin=b"in\n", files={"f": b"file"}).stdout == b"['<job>', 'a'] file in\n"  # fmt: skip
        assert pool.run_source(b"# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))").stdout == b"'\\xe9'\n"
        assert pool.call(lambda a, b=1: a * b, 6, b=7) == 42
        assert pool.map(lambda n: n * n, range(40)) == [n * n for n in range(40)]
        assert pool.run(["sh", "-c", "cat; exit 3"], input=b"x", env={"A": "1"}).rc == 3
        assert pool.map(len, []) == []
        with pytest.raises(CallError, match="ZeroDivisionError"):
            pool.call(lambda: 1 // 0)
        ended = pool.try_map(lambda n: 6 // n, [2, 0])
        assert [each.ok for each in ended] == [True, False] and isinstance(ended[0], CallResult)
        assert pool.run_source("while True: pass", timeout=0.5).status is Status.TIMEOUT
        with pytest.raises(SetupError, match="exec"):
            pool.run(["/no/such/program"])


@pytest.mark.system
def test_every_source_ends_once_although_nodes_die_and_a_long_input_is_sent_once(ray: FakeRay) -> None:
    ray.chance = 0.2
    data = os.urandom(100_000)

    def length(_: int, text: bytes = data) -> int:
        return len(text)

    with RayPool(POLICY) as pool:
        places = [place for place, _ in pool.run_sources([f"print({number})" for number in range(60)])]
        assert sorted(places) == [*range(60)] and ray.lost
        assert pool.map(length, range(20)) == [100_000] * 20
    assert len(ray.stored) == 1 and ray.fetched == 1


class _Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch pwned",)


@pytest.mark.system
def test_a_pickle_of_a_guest_is_never_loaded(ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    evil = pickle.dumps(_Evil())
    pickle.loads(evil)
    assert (tmp_path / "pwned").exists()  # the control: who loads it runs it
    (tmp_path / "pwned").unlink()

    def write(raw: bytes) -> None:
        import os

        os.write(3, raw)
        os._exit(0)

    with RayPool(POLICY) as pool:
        ended = pool.try_call(write, evil)
        assert not ended.ok and ended.problem
        assert pool.call(lambda raw: raw, evil) == evil  # as bytes they are what they are
    assert not (tmp_path / "pwned").exists()


# ---- what is refused


def test_what_can_not_leave_this_machine_is_refused(ray: FakeRay) -> None:
    with RayPool(POLICY) as pool:
        with pytest.raises(UsageError, match="descriptor"):
            pool.run_source("pass", stdin=0)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="cwd"):
            pool.run(["true"], cwd="/")
        with pytest.raises(UsageError, match="on_output"):
            pool.run(["true"], on_output=print)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="on_output"):
            pool.run_source("pass", on_output=print)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="more than"):
            pool.run(["true"], timeout=100)
        with pytest.raises(UsageError):
            pool.run_source(5)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            pool.run_source("pass", arguments="one")
    with pytest.raises(UsageError, match="closed"):
        pool.run(["true"])
    assert ray.begun == 0
    with pytest.raises(UsageError, match="width"):
        RayPool(POLICY, width=5)


@pytest.mark.parametrize(("policy", "word"), [
    (SandboxPolicy(isolation="process"), "cluster's token"),
    (SandboxPolicy(isolation="strict", network="host"), "ports of the cluster"),
    (SandboxPolicy(isolation="strict", network=["10.0.0.2:6379"]), "node of the cluster"),
    (SandboxPolicy(isolation="strict", network=["10.0.0.0/8:6379"]), "node of the cluster"),
    (SandboxPolicy(isolation="strict", network=["127.0.0.1:6379"]), "node of the cluster"),
    (SandboxPolicy(isolation="strict", network=["127.8.0.0/16:6379"]), "node of the cluster"),
    (SandboxPolicy(isolation="strict", network=["10.0.0.2/31:443"]), "node of the cluster"),
])  # fmt: skip
def test_a_policy_that_leads_to_the_cluster_is_refused(ray: FakeRay, policy: SandboxPolicy, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        RayPool(policy)


def test_a_pool_that_somebody_closes_ends_what_runs_in_it(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_pool, "run_jobs", lambda *_: pool.close())
    pool = RayPool(POLICY)
    pool._blobs.of(b"x" * 100_000)
    with pytest.raises(UsageError, match="closed"):
        pool.map(len, ["a"] * 50)
    assert not pool._blobs._known


def test_a_policy_that_leads_elsewhere_is_not(ray: FakeRay) -> None:
    RayPool(SandboxPolicy(isolation="strict", network=["pypi.org:443", "10.1.0.0/16:443"])).close()


def test_a_node_refuses_each_of_its_own_addresses(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster knows one of them."""
    policy = SandboxPolicy(isolation="strict", network=["192.0.2.7:6379"])
    monkeypatch.setattr(worker, "is_own", "192.0.2.7".__eq__)
    with RayPool(policy) as pool, pytest.raises(UsageError, match="node of the cluster"):
        pool.run(["true"])
    assert worker._kept._pool is None
    monkeypatch.setattr(worker, "is_own", "192.0.2.8".__eq__)  # the control: it is another machine's
    monkeypatch.setattr(worker, "_ends", lambda pool, jobs, timeout: [UsageError("it was handed on")] * len(jobs))
    monkeypatch.setattr(worker, "Pool", _NoPool)
    with RayPool(policy) as pool, pytest.raises(UsageError, match="it was handed on"):
        pool.run(["true"])


class _NoPool:
    """It stands for a pool, and says whether it is open."""

    def __init__(self, *_: object, **__: object) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


def test_a_timer_that_comes_too_late_closes_nothing_that_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has fired and waits for the lock while the pool is lent to somebody else."""
    monkeypatch.setattr(worker, "Pool", _NoPool)
    kept, settings = worker._Kept(), ray_pool.PoolSettings(policy=POLICY, preload=(), width=1, version="1")
    with kept.lent(settings) as first:
        pass
    late = kept._timer
    assert late is not None
    with kept.lent(settings) as pool:
        _as_thread(late, kept._idle)
        assert pool is first and pool.is_open  # type: ignore[attr-defined]
    idle = kept._timer
    assert idle is not None
    _as_thread(idle, kept._idle)  # the control: nobody came in the meantime
    assert not first.is_open  # type: ignore[attr-defined]
    idle.cancel()


def _as_thread(thread: threading.Thread, work: Callable[[], None]) -> None:
    """Do this as if that thread did it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "current_thread", lambda: thread)
        work()


def test_the_width_is_that_of_the_smallest_node(ray: FakeRay) -> None:
    assert RayPool(POLICY)._settings.width == 2
    assert RayPool(POLICY, width=1)._settings.width == 1


def test_a_node_with_another_version_or_without_a_token_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, ray: FakeRay
) -> None:
    monkeypatch.undo()
    settings = ray_pool.PoolSettings(policy=POLICY, preload=(), width=1, version="0.0.1")
    (error,) = worker.run_jobs(settings, [None], None)  # type: ignore[list-item]
    assert isinstance(error, UnavailableError) and "0.0.1" in str(error)
