"""Authentication of a cluster, inputs by content, and results exactly once, over a cluster that is none."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest
from tests.unit.cluster.fake_ray import FakeRay

from ringfence.cluster import dispatch as dispatching
from ringfence.cluster import ray_module
from ringfence.cluster.authentication import MODE, TOKEN, TOKEN_FILE, check_authentication
from ringfence.cluster.blobs import INLINE_BYTES, Blob, Blobs, Received
from ringfence.cluster.dispatch import CANCELLED, RETRIES, Dispatch
from ringfence.cluster.ray_module import SLOTS
from ringfence.cluster.routes import check_route
from ringfence.errors import SupervisionError, UnavailableError, UsageError
from ringfence.model.network_rule import NetworkRule

# ---- authentication


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef")
    path.chmod(0o600)
    return path


def _environment(token: Path, **more: str) -> dict[str, str]:
    return {MODE: "token", TOKEN_FILE: str(token), **more}


def test_a_token_that_only_we_can_read_is_enough(token: Path) -> None:
    check_authentication(_environment(token))
    check_authentication({MODE: "token", TOKEN: "in a variable"})


@pytest.mark.parametrize("mode", ["", "disabled", "tokens"])
def test_a_cluster_without_authentication_is_refused(token: Path, mode: str) -> None:
    with pytest.raises(UnavailableError, match="authentication is off") as told:
        check_authentication({**_environment(token), MODE: mode})
    assert f"export {MODE}=token" in told.value.hint


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o601])
def test_a_token_that_others_can_reach_is_refused(token: Path, mode: int) -> None:
    token.chmod(mode)
    with pytest.raises(UnavailableError, match=f"{mode:04o}") as told:
        check_authentication(_environment(token))
    assert "chmod 600" in told.value.hint


def test_what_is_no_file_of_ours_with_a_token_is_refused(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = token.with_name("link")
    link.symlink_to(token)
    fifo = token.with_name("fifo")
    os.mkfifo(fifo, 0o600)
    regular = "not a regular file"
    for path, word in ((link, regular), (fifo, regular), (token.with_name("none"), "No such file")):
        with pytest.raises(UnavailableError, match=word):
            check_authentication(_environment(path))
    token.write_text("")
    with pytest.raises(UnavailableError, match="empty"):
        check_authentication(_environment(token))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UnavailableError, match="another user"):
        check_authentication(_environment(token))


def test_no_cluster_no_slots_and_no_ray_are_told_apart(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _environment(token).items():
        monkeypatch.setenv(name, value)
    ray = FakeRay()
    monkeypatch.setattr(ray_module, "ray_module", lambda: ray)
    assert ray_module.connect() is ray
    ray.resources[SLOTS] = 0
    with pytest.raises(UnavailableError, match="no node of the cluster has room"):
        ray_module.connect()
    ray.initialized = False
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=f"no Ray cluster at {address}: nobody at {address}"):
            ray_module.connect(address)
    monkeypatch.setattr(ray, "init", None)  # Ray is not asked: it would go on for minutes
    with pytest.raises(UnavailableError, match=f"no Ray cluster at {address}: .*refused"):
        ray_module.connect(address)
    monkeypatch.setenv(MODE, "disabled")
    with pytest.raises(UnavailableError, match="authentication"):
        ray_module.connect()


# ---- routes to it


def _route(text: str, own: str = "") -> None:
    check_route((NetworkRule.of(text),), ("10.0.0.5", "node-2.corp"), lambda address: address == own)


@pytest.mark.parametrize("text", [
    "127.0.0.1:6379", "127.0.0.2:6379", "127.255.255.254:6379", "127.8.0.0/16:6379", "0.0.0.0/0:6379", "[::1]:6379",
    "0.1.2.0/24:6379", "localhost:6379", "head.localhost:6379", "*.localhost:6379", "10.0.0.5:6379", "10.0.0.5/32:6379",
    "10.0.0.4/30:6379", "node-2.corp:6379", "*.corp:6379",
])  # fmt: skip
def test_no_rule_leads_to_a_node_or_to_any_address_of_loopback(text: str) -> None:
    with pytest.raises(UsageError, match="node of the cluster"):
        _route(text)


@pytest.mark.parametrize("text", ["10.0.0.6:6379", "126.0.0.1", "128.0.0.0/16", "pypi.org", "localhost.example.org"])
def test_a_rule_that_leads_elsewhere_passes(text: str) -> None:
    _route(text)


@pytest.mark.parametrize("text", ["192.0.2.7:6379", "192.0.2.7/32:6379"])
def test_on_a_node_each_of_its_own_addresses_is_refused(text: str) -> None:
    _route(text)  # the control: the cluster does not know this one
    _route("192.0.2.0/24:6379", "192.0.2.7")  # the gateway wants an entry for exactly that address
    with pytest.raises(UsageError, match="node of the cluster"):
        _route(text, "192.0.2.7")


# ---- inputs


def test_the_same_bytes_are_stored_once_and_fetched_once_by_each_process() -> None:
    ray, data = FakeRay(), b"x" * (INLINE_BYTES + 1)
    blobs = Blobs(ray)
    one, two, short = blobs.of(data), blobs.of(bytes(data)), blobs.of(b"short")
    assert len(ray.stored) == 1 and one == two and one.data is None and short.data == b"short"
    received = Received()
    assert received.data(one, ray) == received.data(two, ray) == data and ray.fetched == 1
    assert received.data(short, ray) == b"short" and ray.fetched == 1


def test_an_input_that_arrives_as_another_one_is_refused() -> None:
    ray = FakeRay()
    for wrong in (b"y" * 100, "text"):
        blob = Blob(sha256=hashlib.sha256(b"x").hexdigest(), refs=(ray.put(wrong),))
        with pytest.raises(SupervisionError, match="was changed on its way"):
            Received().data(blob, ray)


def test_what_is_kept_has_an_end() -> None:
    ray = FakeRay()
    blobs, received = Blobs(ray), Received(most_bytes=100_000)
    many = [blobs.of(bytes([number]) * 40_000) for number in range(4)]
    for blob in many:
        received.data(blob, ray)
    assert ray.fetched == 4
    received.data(many[3], ray)
    assert ray.fetched == 4
    received.data(many[0], ray)
    assert ray.fetched == 5


def test_what_the_sender_keeps_has_an_end_too() -> None:
    ray = FakeRay()
    blobs = Blobs(ray, most_bytes=100_000)
    inputs = [bytes([number]) * 40_000 for number in range(4)]
    for data in inputs:
        blobs.of(data)
    blobs.of(inputs[3])
    blobs.of(inputs[2])  # the control: the latest are known
    assert len(ray.stored) == 4 and len(blobs._known) == 2
    blobs.of(inputs[0])
    assert len(ray.stored) == 5 and len(blobs._known) == 2
    blobs.of(inputs[2])  # it was asked for after the other one
    assert len(ray.stored) == 5
    blobs.close()
    assert not blobs._known
    blobs.of(inputs[2])
    assert len(ray.stored) == 6


# ---- tasks


def _ended(ray: FakeRay, count: int = 200, width: int = 1) -> dict[str, object]:
    dispatch = Dispatch(ray, lambda number: int(number) * 2, width=width)
    for number in range(count):
        dispatch.submit(str(number), number)
    seen: dict[str, object] = {}
    for name, value in dispatch.results():
        assert name not in seen
        seen[name] = value
    return seen


@pytest.mark.parametrize("seed", range(20))
def test_every_task_ends_exactly_once_although_nodes_die(seed: int) -> None:
    ray = FakeRay(chance=0.1, seed=seed)
    assert _ended(ray) == {str(number): 2 * number for number in range(200)}
    assert ray.lost > 0 and ray.begun == 200 + ray.lost


def test_no_more_tasks_are_with_ray_than_there_is_room_for() -> None:
    ray = FakeRay(slots=6)
    _ended(ray, width=2)
    assert ray.most_at_once == 6  # three workers of two slots, and as many again ahead
    assert ray.options == [{"num_cpus": 0, "resources": {SLOTS: 2}, "max_retries": RETRIES}]


def test_the_room_follows_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(slots=8)
    dispatch = Dispatch(ray, str)
    assert dispatch.room == 16
    ray.resources[SLOTS] = 2
    assert dispatch.room == 4
    ray.resources.clear()
    assert dispatch.room == 1
    assert Dispatch(FakeRay(slots=8), str, most=3, fresh=True).room == 3


def test_a_task_that_is_lost_again_and_again_is_an_error() -> None:
    ray = FakeRay(loses=RETRIES + 1)
    (value,) = _ended(ray, count=1).values()
    assert isinstance(value, SupervisionError) and "lost" in str(value)
    assert ray.begun == RETRIES + 1


def test_what_the_function_raises_is_not_tried_again() -> None:
    ray = FakeRay()
    dispatch = Dispatch(ray, lambda: 1 // 0)
    dispatch.submit("one")
    ((_, value),) = dispatch.results()
    assert isinstance(value, SupervisionError) and "division" in str(value) and ray.begun == 1


def test_a_name_under_way_is_not_begun_twice_and_can_be_given_again_later() -> None:
    ray = FakeRay()
    dispatch = Dispatch(ray, lambda: "value")
    dispatch.submit("one")
    dispatch.submit("one")
    assert [*dispatch.results()] == [("one", "value")] and ray.begun == 1
    dispatch.submit("one")
    assert [*dispatch.results()] == [("one", "value")]


def test_the_second_result_of_a_task_is_dropped() -> None:
    """Should Ray ever answer for a task that was given up as lost, and for its successor too."""
    ray = FakeRay(slots=1)
    dispatch = Dispatch(ray, lambda: "value")
    dispatch.submit("one")
    dispatch.submit("two")
    dispatch._hand_out()
    dispatch._running[dispatch._remote.remote()] = "one"  # its double
    names = [name for name, _ in dispatch.results()]
    assert sorted(names) == ["one", "two"]


def test_tasks_are_cancelled_in_the_line_and_under_way() -> None:
    ray = FakeRay(slots=1)
    dispatch = Dispatch(ray, lambda: "value")
    for name in "abcd":
        dispatch.submit(name)
    results = dispatch.results()
    first, _ = next(results)
    left = [name for name in "abcd" if name != first]
    under_way = next(iter(dispatch._running.values()))
    waiting = next(iter(dispatch._waiting))
    dispatch.cancel(under_way)
    dispatch.cancel(waiting)
    dispatch.cancel("unknown")
    ends = dict(results)
    assert set(ends) == set(left) and len(ray.cancelled) == 1
    assert {name for name, value in ends.items() if value is CANCELLED} == {under_way, waiting}


def test_close_ends_what_runs() -> None:
    ray = FakeRay(slots=2)
    dispatch = Dispatch(ray, lambda: "value")
    for name in "abcdef":
        dispatch.submit(name)
    results = dispatch.results()
    next(results)
    dispatch.close()
    assert not ray.under_way and [*results] == [] and [*dispatch.results()] == []


def test_somebody_is_called_while_results_are_waited_for() -> None:
    calls: list[int] = []
    dispatch = Dispatch(FakeRay(), lambda: "value", on_wait=lambda: calls.append(1))
    dispatch.submit("one")
    assert [*dispatch.results()] and calls
    assert dispatching._TICK_S < 1
