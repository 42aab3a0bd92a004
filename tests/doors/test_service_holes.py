"""Clients of the service that want more than is theirs, or want others to have less. Each attack has its control."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S, eventually
from tests.service_server import QUICK, Here, ask, running, settings, token_file

import ringfence
from ringfence.errors import BusyError, CheckpointError, ConflictError, UsageError
from ringfence.integrations.living import checkpoints
from ringfence.model.own import private_place
from ringfence.service import boxes as kept_boxes
from ringfence.service.admission import Admission, Full
from ringfence.service.answer import INSTEAD, Ask, HostPaths
from ringfence.service.boxes import MOST_USES, MOST_VISITS
from ringfence.service.event_log import EventLog
from ringfence.service.mcp.place import KeptPlace
from ringfence.service.other_requests import OtherRequests
from ringfence.service.server import bound
from ringfence.service.service import Service
from ringfence.service.settings import NamedPolicy, NamedWorkspace, changed
from ringfence.service.tokens import Tenant

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]
_PIECE = b"x" * 65536


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    policies = {"default": NamedPolicy(name="default", policy=QUICK, preload=("json", "base64"))}
    with running(settings(tmp_path_factory.mktemp("service"), policies=policies)) as found:
        yield found


# ---- what is sent


def _taken(port: int, begin: bytes, most: int) -> tuple[int, bytes]:
    """How much of a request without end the service takes, up to so much; and what it says."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as link:
        link.sendall(begin)
        sent = 0
        try:
            while sent < most:
                link.sendall(_PIECE)
                sent += len(_PIECE)
        except OSError:
            return sent, b""
        try:
            return sent, link.recv(100)
        except TimeoutError:
            return sent, b""


@pytest.mark.parametrize("begin", [
    b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nX-Long: ",
    b"GET /",
    b"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: ",
], ids=["a header", "an address", "a trailer"])  # fmt: skip
def test_a_head_without_end_is_not_kept(here: Here, begin: bytes) -> None:
    """It comes before any token is asked for."""
    most = 64 << 20
    sent, _ = _taken(here.port, begin % here.port if b"%d" in begin else begin, most)
    assert sent < most


def test_a_long_body_and_a_long_head_are_heard(here: Here) -> None:
    status, _, _ = ask(here.port, "GET", "/healthz", headers={"x-long": "x" * 16000})
    assert status == 200
    given = {"argv": ["wc", "-c"], "input": "x" * (4 << 20)}
    status, _, made = ask(here.port, "POST", "/v1/runs", given)
    assert status == 200 and made["outcome"]["stdout"].strip() == str(4 << 20)


def _said(port: int, lines: list[str]) -> bytes:
    """The whole answer to a head that is sent at once."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as link:
        heard = b""
        with suppress(ConnectionError):  # it may be refused before all of it is sent
            link.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        with suppress(ConnectionError):
            while piece := link.recv(1 << 16):
                heard += piece
        return heard


@pytest.mark.parametrize(("path", "headers", "is_heard"), [
    ("/healthz", 3000, True), ("/healthz", 5000, False), ("/healthz", 20000, False),
    (f"/healthz?{'a' * 30000}", 1, True), (f"/healthz?{'a' * 40000}", 1, False),
], ids=["28K of headers", "48K of headers", "203K of headers", "30K of an address", "40K of an address"])  # fmt: skip
def test_a_head_that_comes_at_once_is_no_longer_than_others(
    here: Here, path: str, headers: int, is_heard: bool
) -> None:
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{here.port}", *(f"X{n}: y" for n in range(headers))]
    heard = _said(here.port, lines)
    assert (b"the head of the request has more than 32768 bytes" in heard) is not is_heard
    assert heard.startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize("name", ["Host", "Origin", "Authorization", "Sec-Fetch-Site", "Idempotency-Key"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_header_that_decides_something_is_sent_once(here: Here, name: str, is_first: bool) -> None:
    """A proxy that checks one of two may have taken the other."""
    values = {"Host": f"127.0.0.1:{here.port}", "Origin": f"http://127.0.0.1:{here.port}", "Authorization": "Bearer x",
              "Sec-Fetch-Site": "none", "Idempotency-Key": "one"}  # fmt: skip
    once = ["GET /healthz HTTP/1.1", *(f"{each}: {value}" for each, value in values.items())]
    assert _said(here.port, once).startswith(b"HTTP/1.1 200 ")  # the control
    more = f"{name.upper()}: evil.example"
    heard = _said(here.port, [once[0], more, *once[1:]] if is_first else [*once, more])
    assert heard.startswith(b"HTTP/1.1 400 ") and f"{name.lower()} occurs twice".encode() in heard
    assert _said(here.port, [*once, "X-Other: 1", "X-Other: 2"]).startswith(b"HTTP/1.1 200 "), "others may"


def test_requests_before_the_answer_to_the_last_one_are_not_kept(here: Here) -> None:
    """They come before any token is asked for, and each would be kept in fifty times its size."""
    one = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", here.port), timeout=PATIENCE_S) as link:
        for _ in range(3):  # the control: one after the other on one connection
            link.sendall(one)
            assert link.recv(4096).startswith(b"HTTP/1.1 200")
        link.sendall(one * 1000)
        heard = b""
        try:
            while piece := link.recv(1 << 16):
                heard += piece
        except ConnectionResetError:
            pass
    assert heard.count(b"HTTP/1.1 ") == 1 and heard.endswith(b"}"), "the answer under way is whole, and the last"


def test_a_stream_with_a_request_behind_it_ends_with_its_client(here: Here) -> None:
    streams = here.service.streams
    eventually(lambda: not streams.get("local"))
    begin = f"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\n\r\n".encode()
    for behind in (b"", begin):  # the first is the control
        with socket.create_connection(("127.0.0.1", here.port), timeout=PATIENCE_S) as link:
            link.sendall(begin + behind)
            assert link.recv(4096).startswith(b"HTTP/1.1 200")
            eventually(lambda: streams.get("local") == 1)
        eventually(lambda: streams.get("local") == 0)


def test_streams_of_one_tenant_share_their_pictures(
    shared: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant may have hundreds of them, and a picture of a hundred boxes takes milliseconds of everybody's loop."""
    here, token = shared
    made: list[str] = []
    picture = OtherRequests._picture

    def counted(self: OtherRequests, asked: Ask) -> dict[str, object]:
        made.append(asked.tenant.name)
        return picture(self, asked)

    monkeypatch.setattr(OtherRequests, "_picture", counted)
    monkeypatch.setattr("ringfence.service.other_requests._EVERY_S", 1000.0)

    def first(name: str) -> bytes:
        with socket.create_connection(("127.0.0.1", here.port), timeout=PATIENCE_S) as link:
            link.sendall(f"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\n"
                         f"Authorization: Bearer {token[name]}\r\n\r\n".encode())  # fmt: skip
            heard = b""
            while b'"name":"' not in heard:
                heard += link.recv(1 << 16)
        return heard

    for _ in range(5):
        assert b'"name":"greedy"' in first("greedy")
    assert b'"name":"other"' in first("other"), "nobody has another's"
    assert made == ["greedy", "other"]
    eventually(lambda: not any(here.service.streams.values()))


# ---- what errors tell of the host


def test_no_error_names_a_path_of_the_services_own(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """``ask`` holds that for all answers that tests provoke; here the layer of a box is gone, and each request says
    so."""
    box = ask(here.port, "POST", "/v1/boxes", {})[2]["id"]
    place = Path(here.service.settings.state) / "boxes" / box
    requests = [("GET", "changes", None), ("GET", "diff", None), ("POST", "checkpoints", {}), ("POST", "commit", {}),
                ("POST", "discard", {}), ("GET", "checkpoints", None)]  # fmt: skip
    place.rename(place.with_name("elsewhere"))
    try:
        answers = [ask(here.port, method, f"/v1/boxes/{box}/{name}", body) for method, name, body in requests]
        told = [answer["error"] for status, _, answer in answers if status >= 400]
        assert any(INSTEAD in str(each) for each in told), told
        monkeypatch.setattr(HostPaths, "without", lambda _, text: text)
        with pytest.raises(AssertionError, match="names"):  # control: without it the paths are told
            for method, name, body in requests:
                ask(here.port, method, f"/v1/boxes/{box}/{name}", body)
    finally:
        monkeypatch.undo()
        place.with_name("elsewhere").rename(place)
        assert ask(here.port, "DELETE", f"/v1/boxes/{box}")[0] == 204


def test_a_word_stands_for_paths_of_the_service_and_for_no_other(tmp_path: Path) -> None:
    paths = HostPaths(str(tmp_path / "state"), "")
    own = [f"{tmp_path}/state/boxes/a b", ringfence.__file__, f"{private_place.path()}/x", f"{sys.prefix}/lib/x.py"]
    for path in own:
        told = paths.error(UsageError(f"{path}: no room", hint=f"look at {path!r}"))
        assert str(told["message"]).startswith(INSTEAD) and INSTEAD in str(told["hint"])
        assert path not in str(told) and "no room" in str(told["message"])
    for path in (f"{tmp_path}/state2", "/workspace/a", "/usr/bin/env", "/proc/self", str(tmp_path)):
        assert paths.without(f"{path}: no") == f"{path}: no"
    late = ConflictError("changed", paths=(f"{tmp_path}/state/x", "/workspace/a"))
    assert paths.error(late)["paths"] == [INSTEAD, "/workspace/a"]


# ---- pools


def test_what_is_imported_outside_of_sandboxes_is_the_operators_choice(here: Here) -> None:
    """An import runs code, and that of a pool is before its sandboxes are made."""
    for name in ("antigravity", "unittest.__main__", "test.__main__", "json.tool"):
        status, _, told = ask(here.port, "POST", "/v1/pools", {"warm": 1, "preload": ["json", name]})
        assert status == 400 and name in told["error"]["message"]
    status, _, made = ask(here.port, "POST", "/v1/pools", {"warm": 1, "preload": ["json", "base64"]})
    assert status == 201
    assert ask(here.port, "DELETE", f"/v1/pools/{made['id']}")[0] == 204


# ---- one tenant's requests and another's


def _tenant(name: str, **given: Any) -> Tenant:
    return Tenant(name=name, scopes=frozenset(), digest=name.encode(), **given)


def test_a_pool_in_use_is_not_idle_however_long_its_runs_take(shared: tuple[Here, dict[str, str]]) -> None:
    here, tokens = shared
    token, pools = tokens["greedy"], here.service.pools

    def pool() -> str:
        return str(ask(here.port, "POST", "/v1/pools", {"warm": 0}, token=token)[2]["id"])

    def begun(where: str) -> str:
        body = {"argv": ["sleep", "600"], "wait": False}
        return str(ask(here.port, "POST", f"/v1/pools/{where}/runs", body, token=token)[2]["id"])

    def swept(idle_s: float) -> set[str]:
        asyncio.run_coroutine_threadsafe(pools.sweep(idle_s), here.loop).result(PATIENCE_S)
        return {row["id"] for row in ask(here.port, "GET", "/v1/pools", token=token)[2]["pools"]}

    def state(run: str) -> object:
        return ask(here.port, "GET", f"/v1/runs/{run}", token=token)[2]["state"]

    busy, waiting, idle = pool(), pool(), pool()
    runs = [begun(busy) for _ in range(here.service.settings.sandboxes)]
    queued = begun(waiting)
    eventually(lambda: {*map(state, runs)} == {"running"})
    assert swept(-1.0) == {busy, waiting} and idle not in swept(3600.0)  # the control is the third
    assert {*map(state, runs)} == {"running"} and state(queued) == "queued"
    began_s = pools._known[busy].used_s
    for run in (queued, *runs):
        ask(here.port, "DELETE", f"/v1/runs/{run}", token=token)
    eventually(lambda: not any(each.runs for each in pools._known.values()))
    assert pools._known[busy].used_s > began_s, "it is idle from the end of its last run on"
    assert swept(3600.0) == {busy, waiting} and swept(-1.0) == set()


def test_one_who_has_all_that_it_may_have_keeps_nobody_from_the_line() -> None:
    async def attack() -> None:
        line = Admission(sandboxes=4, memory_bytes=2**40, spare_bytes=0, queue=8)
        greedy, other = _tenant("greedy", sandboxes=1), _tenant("other")
        refused = 0
        for _ in range(20):
            try:
                line.join(greedy, 1)
            except Full:
                refused += 1
        assert refused and len(line.waiting) < line.queue
        # There is room, and nobody who could have it waits before.
        assert line.join(other, 1).turn.done()
        # Control: where the machine is full, everybody waits, and who came first is first.
        others = [line.join(other, 1) for _ in range(3)]
        assert [place.turn.done() for place in others] == [True, True, False]

    asyncio.run(attack())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Here, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("shared")
    path, tokens = token_file(folder, {"name": "greedy"}, {"name": "other"})
    # Room for the visits of a box: without a control group a visit is two tasks, and what they share counts for each.
    policies = {"default": NamedPolicy(name="default", policy=QUICK.with_changes(mem_bytes=1 << 30, pids_max=64))}
    with running(settings(folder, tokens=path, policies=policies, sandboxes=3, connections=16)) as found:
        yield found, tokens


def test_visits_to_boxes_take_no_thread_of_others(shared: tuple[Here, dict[str, str]]) -> None:
    here, tokens = shared
    greedy, other = tokens["greedy"], tokens["other"]
    boxes = [ask(here.port, "POST", "/v1/boxes", {}, token=greedy)[2]["id"] for _ in range(2)]
    for box in boxes:
        for _ in range(MOST_VISITS):
            given = {"argv": ["sleep", "600"], "wait": False}
            assert ask(here.port, "POST", f"/v1/boxes/{box}/runs", given, token=greedy)[0] == 202
    # More visits than the threads that all other work has together.
    assert len(boxes) * MOST_VISITS > here.service.settings.sandboxes + 16
    status, _, made = ask(here.port, "POST", "/v1/runs", {"argv": ["echo", "mine"]}, token=other)
    assert status == 200 and made["outcome"]["stdout"] == "mine\n"
    # Control: the visits are all there, and one more is refused.
    assert ask(here.port, "POST", f"/v1/boxes/{boxes[0]}/runs", {"argv": ["true"]}, token=greedy)[0] == 409
    for box in boxes:
        assert ask(here.port, "DELETE", f"/v1/boxes/{box}", token=greedy)[0] == 204


def test_requests_for_files_take_no_thread_of_others(shared: tuple[Here, dict[str, str]]) -> None:
    here, tokens = shared
    greedy, other = tokens["greedy"], tokens["other"]
    box = ask(here.port, "POST", "/v1/boxes", {}, token=greedy)[2]["id"]
    kept = here.service.boxes.find(Tenant(name="greedy", scopes=frozenset()), box)
    assert kept is not None
    answers: list[int] = []

    def diff() -> None:
        answers.append(ask(here.port, "GET", f"/v1/boxes/{box}/changes", token=greedy)[0])

    with kept.lock:  # as a long commit has it
        asking = [threading.Thread(target=diff) for _ in range(MOST_USES + 4)]
        for each in asking:
            each.start()
        eventually(lambda: len(answers) == 4)
        assert answers == [429] * 4
        assert ask(here.port, "POST", "/v1/runs", {"argv": ["true"]}, token=other)[0] == 200
    for each in asking:
        each.join(PATIENCE_S)
    assert sorted(answers) == [200] * MOST_USES + [429] * 4
    assert ask(here.port, "DELETE", f"/v1/boxes/{box}", token=greedy)[0] == 204


def test_who_waits_for_runs_leaves_room_for_others(shared: tuple[Here, dict[str, str]]) -> None:
    """Also who hangs up: the request goes on, and the server takes so many at one time."""
    here, tokens = shared
    greedy, other = tokens["greedy"], tokens["other"]
    run = ask(here.port, "POST", "/v1/runs", {"argv": ["sleep", "600"], "wait": False}, token=greedy)[2]["id"]
    lines = (f"GET /v1/runs/{run}?wait=true HTTP/1.1", f"Host: 127.0.0.1:{here.port}",
             f"Authorization: Bearer {greedy}", "", "")  # fmt: skip
    head = "\r\n".join(lines)
    counted = here.service.streams
    most = here.service.settings.connections // 2
    for place in range(most):
        with socket.create_connection(("127.0.0.1", here.port), timeout=PATIENCE_S) as link:
            link.sendall(head.encode())
            eventually(lambda wanted=place + 1: counted.get("greedy", 0) >= wanted)  # type: ignore[misc]
    for _ in range(most):
        assert ask(here.port, "GET", f"/v1/runs/{run}?wait=true", token=greedy)[0] == 429
    assert ask(here.port, "POST", "/v1/runs", {"argv": ["true"]}, token=other)[0] == 200
    assert ask(here.port, "DELETE", f"/v1/runs/{run}", token=greedy)[0] == 202
    eventually(lambda: counted["greedy"] == 0)
    assert ask(here.port, "GET", f"/v1/runs/{run}?wait=true", token=greedy)[0] == 200


# ---- what is kept


def test_of_a_run_that_is_over_its_body_is_not_kept(here: Here) -> None:
    """Two thousand are kept, and a body may have sixteen megabytes."""
    given = {"argv": ["true", "an argument"], "input": "x" * (1 << 20), "files": {"a": "y" * (1 << 20)}}
    run_id = ask(here.port, "POST", "/v1/runs", given)[2]["id"]
    run = here.service.runs.find(Tenant(name="local", scopes=frozenset()), run_id)
    assert run is not None and not run.spec and run.work is None
    status, _, told = ask(here.port, "GET", f"/v1/runs/{run_id}")  # the control: the run itself is
    assert status == 200 and told["argv"] == given["argv"] and told["outcome"]["rc"] == 0


def test_the_end_of_a_run_pushes_out_no_output_that_is_still_to_be_sent(here: Here) -> None:
    """It has all that was printed once more."""
    both = "yes | head -c 1000000; yes | head -c 1000000 >&2"
    _, _, made = ask(here.port, "POST", "/v1/runs", {"argv": ["sh", "-c", both]})
    run = here.service.runs._known[made["id"]]
    kept, missed, ended = run.log.since(0)
    assert len(made["outcome"]["stdout"]) == len(made["outcome"]["stderr"]) == 1_000_000
    assert not missed and ended and sum(len(json.loads(text).get("data", "")) for _, _, text in kept) == 2_000_000
    assert run.kept_bytes > 2_000_000 + len(run.text), "both count in what memory keeps"


def test_what_runs_printed_is_kept_up_to_a_sum(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of runs is when one ends."""
    for name in ("_MOST_KEPT_BYTES", "_LEAST_KEPT_BYTES"):
        monkeypatch.setattr(f"ringfence.service.runs.{name}", 1 << 20)
    printed = {"argv": ["sh", "-c", "head -c 200000 /dev/zero | tr '\\0' x"]}
    made = [ask(here.port, "POST", "/v1/runs", printed)[2]["id"] for _ in range(5)]
    states = [ask(here.port, "GET", f"/v1/runs/{run_id}")[0] for run_id in made]
    assert states[0] == 404 and states[-1] == 200
    assert 0 < here.service.runs.kept_bytes("local") <= 1 << 20


def test_bundles_of_runs_are_kept_up_to_the_same_sum(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """They name the files of the request: its client chooses how large they are."""
    for name in ("_MOST_KEPT_BYTES", "_LEAST_KEPT_BYTES"):
        monkeypatch.setattr(f"ringfence.service.runs.{name}", 400_000)
    given = {"argv": ["true"], "files": {f"{'a' * 200}/{number:04}": "x" for number in range(300)}}
    for is_signed in (False, True):  # the first is the control
        made = [ask(here.port, "POST", "/v1/runs", {**given, "bundle": is_signed})[2]["id"] for _ in range(6)]
        states = [ask(here.port, "GET", f"/v1/runs/{run_id}")[0] for run_id in made]
        assert states[-1] == 200 and (404 in states) is is_signed, states
        assert 0 < here.service.runs.kept_bytes("local") <= 400_000
    status, _, bundle = ask(here.port, "GET", f"/v1/runs/{made[-1]}/bundle")
    assert status == 200 and ask(here.port, "POST", "/v1/bundles/verify", {"bundle": bundle})[2]["holds"]


def test_a_bundle_is_the_same_from_memory_and_from_disk(tmp_path: Path) -> None:
    given = settings(tmp_path)
    with running(given) as first:
        asked = {"argv": ["echo", "\u00e9 \U0001f600"], "bundle": True, "wait": False}
        run = ask(first.port, "POST", "/v1/runs", asked)[2]["id"]
        told = ask(first.port, "GET", f"/v1/runs/{run}?wait=true")[2]
        bundle = ask(first.port, "GET", f"/v1/runs/{run}/bundle")[2]
    with running(given) as again:
        assert ask(again.port, "GET", f"/v1/runs/{run}")[2] == told and told["outcome"]["rc"] == 0
        assert ask(again.port, "GET", f"/v1/runs/{run}/bundle")[2] == bundle and bundle
        assert ask(again.port, "POST", "/v1/bundles/verify", {"bundle": bundle})[2]["holds"]


def test_who_goes_away_from_a_silent_run_is_forgotten() -> None:
    async def attack() -> None:
        log = EventLog()
        for _ in range(5):
            stream = log.follow(0)
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            assert len(log._waiting) == 1  # the control: it waits
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert not log._waiting

    asyncio.run(attack())


# ---- boxes


def test_a_box_is_not_opened_without_a_place(shared: tuple[Here, dict[str, str]]) -> None:
    """Who runs in a box while it is parked would have a sandbox that counts for nothing."""
    here, tokens = shared
    token = tokens["greedy"]
    box = ask(here.port, "POST", "/v1/boxes", {}, token=token)[2]["id"]
    kept = here.service.boxes.find(Tenant(name="greedy", scopes=frozenset()), box)
    assert kept is not None
    assert kept.with_box(here.service.boxes.registry) is not None  # the control: with a place it is
    assert ask(here.port, "POST", f"/v1/boxes/{box}/park", {}, token=token)[0] == 200
    with pytest.raises(BusyError):  # as a thread that was on its way
        kept.with_box(here.service.boxes.registry)
    assert ask(here.port, "POST", f"/v1/boxes/{box}/runs", {"argv": ["true"]}, token=token)[0] == 200
    assert kept.place is not None
    assert ask(here.port, "DELETE", f"/v1/boxes/{box}", token=token)[0] == 204


def test_parked_boxes_are_counted(shared: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    here, tokens = shared
    monkeypatch.setattr(kept_boxes, "MOST_BOXES", 2)
    made = []
    for _ in range(2):
        made.append(ask(here.port, "POST", "/v1/boxes", {}, token=tokens["greedy"])[2]["id"])
        assert ask(here.port, "POST", f"/v1/boxes/{made[-1]}/park", {}, token=tokens["greedy"])[0] == 200
    assert ask(here.port, "POST", "/v1/boxes", {}, token=tokens["greedy"])[0] == 400
    for box in made:
        assert ask(here.port, "DELETE", f"/v1/boxes/{box}", token=tokens["greedy"])[0] == 204
    status, _, again = ask(here.port, "POST", "/v1/boxes", {}, token=tokens["greedy"])
    assert status == 201 and ask(here.port, "DELETE", f"/v1/boxes/{again['id']}", token=tokens["greedy"])[0] == 204


def test_boxes_in_the_making_are_counted(shared: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else as many are made as wait at the same time for their place."""
    here, tokens = shared
    monkeypatch.setattr(kept_boxes, "MOST_BOXES", 2)
    going, make = threading.Event(), here.service.boxes._made

    def slow(*given: Any) -> Any:
        going.wait(PATIENCE_S)
        return make(*given)

    monkeypatch.setattr(here.service.boxes, "_made", slow)
    answers: list[tuple[int, Any]] = []

    def create() -> None:
        status, _, found = ask(here.port, "POST", "/v1/boxes", {}, token=tokens["greedy"])
        answers.append((status, found))

    threads = [threading.Thread(target=create) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: len(answers) == 1)
    finally:
        going.set()
        for thread in threads:
            thread.join(2 * PATIENCE_S)
    assert sorted(status for status, _ in answers) == [201, 201, 400]
    for _, found in filter(lambda answer: answer[0] == 201, answers):
        assert ask(here.port, "DELETE", f"/v1/boxes/{found['id']}", token=tokens["greedy"])[0] == 204


# ---- what the operator takes away


def test_what_is_taken_away_is_gone_for_what_was_made_before(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "file").write_text("of the operator")
    policies = {name: NamedPolicy(name=name, policy=QUICK) for name in ("default", "other")}
    workspaces = {"project": NamedWorkspace(name="project", path=str(project))}
    path, tokens = token_file(tmp_path, {"name": "one"})
    made: dict[str, str] = {}
    given = settings(tmp_path, tokens=path, policies=policies, workspaces=workspaces, sandboxes=1)
    with running(given) as here:
        for name, body in (("work", {"workspace": "project"}), ("policy", {"policy": "other"}), ("kept", {})):
            made[name] = ask(here.port, "POST", "/v1/boxes", body, token=tokens["one"])[2]["id"]
            assert ask(here.port, "GET", f"/v1/boxes/{made[name]}/files", token=tokens["one"])[0] == 200
            assert ask(here.port, "POST", f"/v1/boxes/{made[name]}/park", {}, token=tokens["one"])[0] == 200
    path, tokens = token_file(tmp_path, {"name": "one", "policies": ["default"], "workspaces": []})
    with running(given) as here:
        ends = {name: ask(here.port, "GET", f"/v1/boxes/{box}/files", token=tokens["one"])[0]
                for name, box in made.items()}  # fmt: skip
        assert ends == {"work": 403, "policy": 403, "kept": 200}
        assert ask(here.port, "GET", f"/v1/boxes/{made['work']}/changes", token=tokens["one"])[0] == 403
        assert ask(here.port, "DELETE", f"/v1/boxes/{made['work']}", token=tokens["one"])[0] == 204


@pytest.mark.parametrize(("later", "state"), [("one", "ended"), ("somebody", "lost")])
def test_a_run_that_waited_is_begun_again_only_for_a_token_that_may(tmp_path: Path, later: str, state: str) -> None:
    path, tokens = token_file(tmp_path, {"name": "one", "sandboxes": 1})
    policies = {"default": NamedPolicy(name="default", policy=QUICK)}
    given = settings(tmp_path, tokens=path, policies=policies, drain_s=0.01)
    with running(given) as here:
        sleeping = {"argv": ["sleep", "600"], "wait": False}
        first = ask(here.port, "POST", "/v1/runs", sleeping, token=tokens["one"])[2]["id"]
        waiting = ask(here.port, "POST", "/v1/runs", {"argv": ["true"], "wait": False}, token=tokens["one"])[2]["id"]
        eventually(lambda: ask(here.port, "GET", f"/v1/runs/{first}", token=tokens["one"])[2]["state"] == "running")
    path, tokens = token_file(tmp_path, {"name": later}, {"name": "boss", "scopes": ["read", "operator"]})
    with running(given) as here:
        status, _, told = ask(here.port, "GET", f"/v1/runs/{waiting}?wait=true", token=tokens["boss"])
        assert (status, told["state"]) == (200, state)


def test_a_bundle_takes_its_scope(tmp_path: Path) -> None:
    path, tokens = token_file(tmp_path, {"name": "plain", "scopes": ["read", "run", "box"]}, {"name": "signing"})
    policies = {"default": NamedPolicy(name="default", policy=QUICK)}
    with running(settings(tmp_path, tokens=path, policies=policies)) as here:
        given = {"argv": ["true"], "bundle": True}
        assert ask(here.port, "POST", "/v1/runs", given, token=tokens["plain"])[0] == 403
        assert ask(here.port, "POST", "/v1/runs", {"argv": ["true"]}, token=tokens["plain"])[0] == 200
        status, _, told = ask(here.port, "POST", "/v1/runs", given, token=tokens["signing"])
        assert status == 200 and told["bundle"]


def test_without_tokens_no_program_may_come_back_by_the_network(tmp_path: Path) -> None:
    for more in ({"allow_partial": True, "network": "none"}, {"network": "host"}):
        policy = QUICK.with_changes(isolation="process", **more)
        with pytest.raises(UsageError):
            settings(tmp_path, policies={"default": NamedPolicy(name="default", policy=policy)}).checked()
    closed = QUICK.with_changes(isolation="process", network="none")
    assert settings(tmp_path, policies={"default": NamedPolicy(name="default", policy=closed)}).checked()


@pytest.mark.parametrize(("host", "rules", "is_refused"), [
    ("127.0.0.1", ["127.0.0.1:8700"], True), ("127.0.0.1", ["pypi.org", "127.0.0.0/8:8600-8800"], True),
    ("127.0.0.1", ["0.0.0.0/8:8700"], True), ("localhost", ["[::1]:8700"], True), ("::1", ["[::1]:8700"], True),
    ("127.8.8.8", ["127.8.8.8:8700"], True), ("127.8.8.8", ["127.0.0.1:8700"], False),
    ("127.0.0.1", ["127.0.0.1:8701", "127.0.0.0/8:8500-8699"], False), ("127.0.0.1", ["0.0.0.0/0:8700"], False),
    ("127.0.0.1", ["localhost:8700", "10.0.0.0/8:8700", "pypi.org:8700"], False),
])  # fmt: skip
def test_without_tokens_no_network_list_leads_back(
    tmp_path: Path, host: str, rules: list[str], is_refused: bool
) -> None:
    """A wide rule opens no loopback address, nor does a name that leads there: they are controls."""
    policies = {"online": NamedPolicy(name="online", policy=QUICK.with_changes(network=rules))}
    given = settings(tmp_path, policies=policies, host=host, port=8700)
    if is_refused:
        with pytest.raises(UsageError, match="online: with the rule"):
            given.checked()
    else:
        assert given.checked()
    path, _ = token_file(tmp_path, {"name": "one"})
    assert settings(tmp_path, policies=policies, host=host, port=8700, tokens=path).checked()


def test_a_port_that_the_system_picks_is_looked_for_in_network_lists_too(tmp_path: Path) -> None:
    link, got = bound(settings(tmp_path).checked())
    for port, is_refused in ((got.port, True), (1, False)):  # the second is the control
        policy = QUICK.with_changes(network=[f"127.0.0.1:{port}"])
        given = changed(got, policies={"online": NamedPolicy(name="online", policy=policy)})
        assert changed(given, port=0).checked(), "before it has one"
        with pytest.raises(UsageError, match="reaches this service") if is_refused else nullcontext():
            Service(given)
    link.close()


def test_bodies_that_one_tenant_sends_at_a_time_are_bounded_in_all(
    shared: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, tokens = shared
    greedy, other = tokens["greedy"], tokens["other"]
    large = {"argv": ["true"], "input": "x" * 900}
    assert ask(here.port, "POST", "/v1/runs", large, token=greedy)[0] == 200  # the control
    monkeypatch.setattr(here.service.bodies, "_most", 1000)
    assert ask(here.port, "POST", "/v1/runs", large, token=greedy)[0] == 200  # one alone is never too much
    with socket.create_connection(("127.0.0.1", here.port)) as link:
        head = (f"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\nAuthorization: Bearer {greedy}\r\n"
                "Content-Type: application/json\r\nContent-Length: 900\r\n\r\n{")  # fmt: skip
        link.sendall(head.encode())
        eventually(lambda: bool(here.service.bodies._held))
        status, told, _ = ask(here.port, "POST", "/v1/runs", large, token=greedy)
        assert (status, told["retry-after"]) == (429, "1")
        assert ask(here.port, "POST", "/v1/runs", large, token=other)[0] == 200
    eventually(lambda: not here.service.bodies._held)
    assert ask(here.port, "POST", "/v1/runs", large, token=greedy)[0] == 200


# ---- results on disk


def test_a_disk_that_is_slow_for_one_holds_up_nobody_else(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promises and results are written, and read, beside the event loop."""
    store, going, held = here.service.store, threading.Event(), threading.Event()
    write = store.write_text

    def slow(*given: Any, **more: Any) -> None:
        held.set()
        going.wait(PATIENCE_S)
        write(*given, **more)

    monkeypatch.setattr(store, "write_text", slow)
    answers: list[int] = []
    asked = {"argv": ["true"], "wait": False}
    one = threading.Thread(target=lambda: answers.append(ask(here.port, "POST", "/v1/runs", asked)[0]))
    one.start()
    assert held.wait(PATIENCE_S)
    try:
        assert ask(here.port, "GET", "/healthz")[0] == 200
        assert ask(here.port, "POST", "/v1/runs", {"argv": ["true"]})[0] == 200
        assert not answers, "no promise before it is on disk"
    finally:
        going.set()
    one.join(PATIENCE_S)
    assert answers == [202]


def test_the_promise_of_a_run_that_lasts_is_not_swept_and_promises_are_bounded(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"argv": ["sleep", "50"], "wait": False}
    run = ask(here.port, "POST", "/v1/runs", asked)[2]["id"]
    eventually(lambda: ask(here.port, "GET", f"/v1/runs/{run}")[2]["state"] == "running")
    file = Path(here.service.store.folder, f"{run}.json")
    os.utime(file, (1, 1))
    asyncio.run_coroutine_threadsafe(here.service.runs.sweep(1), here.loop).result(PATIENCE_S)
    assert file.exists(), "who comes after a restart must hear at least that it was lost"
    monkeypatch.setattr(here.service.store, "_most_bytes", 1)
    status, headers, found = ask(here.port, "POST", "/v1/runs", asked)
    assert status == 429 and "retry-after" in headers and "disk space" in found["error"]["message"]
    assert ask(here.port, "POST", "/v1/runs", {"argv": ["true"]})[0] == 200, "one that is waited for needs no file"
    assert ask(here.port, "DELETE", f"/v1/runs/{run}")[0] == 202
    eventually(lambda: ask(here.port, "GET", f"/v1/runs/{run}")[2]["state"] == "ended")
    assert ask(here.port, "POST", "/v1/runs", {"argv": ["true"], "wait": False})[0] == 202, "the control"
    assert ask(here.port, "DELETE", f"/v1/runs/{run}")[0] == 204
    assert not file.exists() and ask(here.port, "GET", f"/v1/runs/{run}")[0] == 404


# ---- checkpoints


def _box(here: Here, token: str, policy: str = "default") -> str:
    return f"/v1/boxes/{ask(here.port, 'POST', '/v1/boxes', {'policy': policy}, token=token)[2]['id']}"


def _write(here: Here, token: str, box: str) -> None:
    """Another MiB in the place of the one that is there, which no file system makes smaller."""
    assert ask(here.port, "PUT", f"{box}/file?path=f", os.urandom(1 << 20), token=token)[0] == 204


def test_checkpoints_take_no_more_of_the_disk_than_their_limit(
    shared: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, tokens = shared
    token = tokens["greedy"]
    box = _box(here, token)
    limited = QUICK.with_changes(disk_bytes=2 << 20)
    monkeypatch.setattr(here.service, "policy", lambda *_: limited)
    made: list[str] = []
    for _ in range(20):
        _write(here, token, box)
        status, _, found = ask(here.port, "POST", f"{box}/checkpoints", {}, token=token)
        if status != 201:
            break
        made.append(found["id"])
    assert status == 409 and "; 8 MiB is the limit" in found["error"]["message"]
    assert "remove one" in found["error"]["hint"] and 5 <= len(made) <= 8
    assert ask(here.port, "DELETE", f"{box}/checkpoints/{made[0]}", token=token)[0] == 204
    assert ask(here.port, "POST", f"{box}/checkpoints", {}, token=token)[0] == 201, "the control: there is room again"
    assert ask(here.port, "POST", f"{box}/rollback", {"checkpoint": made[1]}, token=token)[0] == 200
    assert ask(here.port, "POST", f"{box}/rollback", {"checkpoint": made[0]}, token=token)[0] == 422
    assert ask(here.port, "DELETE", box, token=token)[0] == 204


def test_checkpoints_are_counted(shared: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    here, tokens = shared
    token = tokens["greedy"]
    monkeypatch.setattr(checkpoints, "MOST_CHECKPOINTS", 3)
    box = _box(here, token)
    made = [ask(here.port, "POST", f"{box}/checkpoints", {}, token=token) for _ in range(4)]
    assert [status for status, _, _ in made] == [201, 201, 201, 409]
    assert made[3][2]["error"]["message"] == "the box has 3 checkpoints, and may keep 3"
    for status in (204, 422):  # the second time it is not there
        assert ask(here.port, "DELETE", f"{box}/checkpoints/{made[0][2]['id']}", token=token)[0] == status
    assert ask(here.port, "POST", f"{box}/checkpoints", {}, token=token)[0] == 201
    assert ask(here.port, "DELETE", box, token=token)[0] == 204


def test_checkpoints_of_a_session_are_counted_too(
    shared: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, tokens = shared
    monkeypatch.setattr(checkpoints, "MOST_CHECKPOINTS", 1)
    box = _box(here, tokens["greedy"])
    kept = here.service.boxes.find(Tenant(name="greedy", scopes=frozenset()), box.rpartition("/")[2])
    assert kept is not None
    place = KeptPlace(kept, here.service.boxes.registry)
    assert place.checkpoint("first").name == "first"
    with pytest.raises(CheckpointError, match="may keep 1"):
        place.checkpoint("second")
    assert ask(here.port, "DELETE", box, token=tokens["greedy"])[0] == 204
