"""What one tenant's results, answers and connections take from others. Each attack has its control."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.patience import PATIENCE_S, eventually
from tests.service_server import QUICK, Here, ask, running, settings, token_file

from ringfence.service import server as servers
from ringfence.service.admission import Unread
from ringfence.service.answer import Refused
from ringfence.service.app import InPieces, json_response
from ringfence.service.json_text import Written
from ringfence.service.protocol import Patient
from ringfence.service.settings import NamedPolicy, Settings

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]
_POLICIES = {"default": NamedPolicy(name="default", policy=QUICK)}
_DATED = {"argv": ["sh", "-c", "cat /proc/sys/kernel/random/uuid"]}
"""No two of its runs print the same."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Here, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("crowds")
    path, tokens = token_file(folder, {"name": "greedy"}, {"name": "other"})
    with running(settings(folder, tokens=path, policies=_POLICIES, sandboxes=3)) as found:
        yield found, tokens


def _run(here: Here, token: str, body: Any = _DATED, *, key: str = "") -> tuple[int, Any]:
    status, _, made = ask(here.port, "POST", "/v1/runs", body, token=token,
                          headers={"idempotency-key": key} if key else {})  # fmt: skip
    return status, made


# ---- results


def test_what_one_tenant_runs_pushes_out_nobody_elses_results(
    shared: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, tokens = shared
    monkeypatch.setattr("ringfence.service.runs._MOST_KEPT", 4)
    theirs = [_run(here, tokens["other"])[1]["id"] for _ in range(3)]
    made = [_run(here, tokens["greedy"])[1]["id"] for _ in range(8)]
    assert [ask(here.port, "GET", f"/v1/runs/{run}", token=tokens["other"])[0] for run in theirs] == [200] * 3
    own = [ask(here.port, "GET", f"/v1/runs/{run}", token=tokens["greedy"])[0] for run in made]
    assert own == [404] * 4 + [200] * 4  # the control: of its own the oldest go


@pytest.mark.parametrize("wait", [True, False])
def test_a_key_never_begins_a_second_run(
    shared: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    """Also where the first is not in memory any more: whoever repeats a request does not know that."""
    here, tokens = shared
    monkeypatch.setattr("ringfence.service.runs._MOST_KEPT", 1)
    token, key, body = tokens["other"], f"once {wait}", {**_DATED, "wait": wait}
    status, first = _run(here, token, body, key=key)
    again = _run(here, token, body, key=key)
    assert again[0] == status and again[1]["id"] == first["id"]  # the control
    eventually(lambda: ask(here.port, "GET", f"/v1/runs/{first['id']}", token=token)[2]["state"] == "ended")
    _run(here, token)
    assert first["id"] not in here.service.runs._known
    status, told = _run(here, token, body, key=key)
    if wait:
        assert "410" in ask(here.port, "GET", "/openapi.json")[2]["paths"]["/v1/runs"]["post"]["responses"]
        assert status == 410 and first["id"] in told["error"]["message"] and "another key" in told["error"]["hint"]
    else:  # promised: it is on disk
        assert status == 202 and told["id"] == first["id"] and told["outcome"]["stdout"]
        assert not {"spec", "key", "bundle_document"} & set(told)
    assert _run(here, token, {"argv": ["true"]}, key=key)[0] == 400, "nor is the key free for another one"
    status, other = _run(here, tokens["greedy"], body, key=key)
    assert other["id"] != first["id"], "a key is each tenant's own"


def test_a_key_never_begins_a_second_run_in_a_box(shared: tuple[Here, dict[str, str]]) -> None:
    """Not even while the first request waits until the parked box is open; and a repeated one opens none."""
    here, tokens = shared
    token = tokens["other"]
    box = ask(here.port, "POST", "/v1/boxes", {}, token=token)[2]["id"]
    body = {"argv": ["sh", "-c", "echo once >> log; cat log"]}

    def visit(key: str, body: object = body) -> tuple[int, Any]:
        headers = {"idempotency-key": key}
        return ask(here.port, "POST", f"/v1/boxes/{box}/runs", body, token=token, headers=headers)[::2]

    def park() -> object:
        return ask(here.port, "POST", f"/v1/boxes/{box}/park", {}, token=token)[2]["state"]

    assert park() == "parked"
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(visit, ["in a box"] * 4))
    assert {(status, each["id"], each["outcome"]["stdout"]) for status, each in made} == {
        (200, made[0][1]["id"], "once\n")
    }
    assert park() == "parked" and visit("in a box")[1]["id"] == made[0][1]["id"]
    assert ask(here.port, "GET", f"/v1/boxes/{box}", token=token)[2]["state"] == "parked"
    assert visit("in a box", {"argv": ["true"]})[0] == 400
    assert visit("another")[1]["outcome"]["stdout"] == "once\nonce\n"  # the control
    assert ask(here.port, "DELETE", f"/v1/boxes/{box}", token=token)[0] == 204


def test_a_key_of_a_forgotten_run_stays_used_until_results_go(shared: tuple[Here, dict[str, str]]) -> None:
    here, tokens = shared
    token = tokens["other"]
    first = _run(here, token, key="forgotten")[1]["id"]
    assert ask(here.port, "DELETE", f"/v1/runs/{first}", token=token)[0] == 204
    assert _run(here, token, key="forgotten")[0] == 410
    here.service.runs.keys.sweep(3600.0)
    assert _run(here, token, key="forgotten")[0] == 410
    here.service.runs.keys.sweep(-1.0)  # its time is over
    status, again = _run(here, token, key="forgotten")
    assert status == 200 and again["id"] != first


def test_keys_are_bounded_and_none_is_given_up_early(
    shared: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, tokens = shared
    here.service.runs.keys.sweep(-1.0)
    monkeypatch.setattr("ringfence.service.run._MOST_KEYS", 2)
    first = [_run(here, tokens["greedy"], key=f"bounded {number}")[1]["id"] for number in range(2)]
    assert _run(here, tokens["greedy"], key="bounded 2")[0] == 429
    assert [_run(here, tokens["greedy"], key=f"bounded {number}")[1]["id"] for number in range(2)] == first
    assert _run(here, tokens["greedy"])[0] == _run(here, tokens["other"], key="bounded 2")[0] == 200  # the control


def test_a_promised_run_is_the_same_in_the_next_life(tmp_path_factory: pytest.TempPathFactory) -> None:
    given = settings(tmp_path_factory.mktemp("lives"), policies=_POLICIES)
    body = {**_DATED, "wait": False}
    with running(given) as here:
        first = _run(here, "", body, key="lives")[1]["id"]
        eventually(lambda: ask(here.port, "GET", f"/v1/runs/{first}")[2]["state"] == "ended")
    with running(given) as here:
        status, again = _run(here, "", body, key="lives")
        assert (status, again["id"], again["state"]) == (202, first, "ended")
        assert _run(here, "", body, key="another")[1]["id"] != first  # the control


# ---- answers that nobody reads


def _large(here: Here, token: str) -> str:
    """A run whose document is larger than what the kernel keeps for a client that does not read."""
    status, made = _run(here, token, {"argv": ["sh", "-c", "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2"]})
    assert status == 200
    return str(made["id"])


def _unread(here: Here, token: str, run: str) -> socket.socket:
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.settimeout(PATIENCE_S)
    link.connect(("127.0.0.1", here.port))
    link.sendall(f"GET /v1/runs/{run} HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\nAuthorization: Bearer {token}\r\n"
                 "\r\n".encode())  # fmt: skip
    return link


def test_answers_that_one_tenant_leaves_unread_are_bounded_in_all(
    shared: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, tokens = shared
    unread = here.service.unread
    runs = {name: _large(here, tokens[name]) for name in ("greedy", "other")}
    eventually(lambda: not unread._held)  # what was read counts no more
    size = len(here.service.runs._known[runs["greedy"]].text)
    monkeypatch.setattr(unread, "_most", 3 * size)
    links = [_unread(here, tokens["greedy"], runs["greedy"]) for _ in range(3)]
    try:
        eventually(lambda: unread._held.get("greedy") == 3 * size)
        status, told, answer = ask(here.port, "GET", f"/v1/runs/{runs['greedy']}", token=tokens["greedy"])
        assert (status, told["retry-after"]) == (429, "1") and "read them first" in answer["error"]["message"]
        # The controls: small answers, another tenant's large ones, and the same one once there is room.
        assert ask(here.port, "GET", "/v1/status", token=tokens["greedy"])[0] == 200
        assert ask(here.port, "GET", f"/v1/runs/{runs['other']}", token=tokens["other"])[0] == 200
        links.pop().close()
        eventually(lambda: unread._held.get("greedy") == 2 * size)
        whole = ask(here.port, "GET", f"/v1/runs/{runs['greedy']}", token=tokens["greedy"])[2]
        assert len(whole["outcome"]["stdout"]) == len(whole["outcome"]["stderr"]) == 1000000
    finally:
        for link in links:
            link.close()
    eventually(lambda: not unread._held)


def test_nothing_is_carried_out_whose_answer_is_then_refused(
    shared: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is told to come again asks for the same work once more."""
    here, tokens = shared
    token, unread = tokens["greedy"], here.service.unread
    run, box = _large(here, token), ask(here.port, "POST", "/v1/boxes", {}, token=token)[2]["id"]
    body = {"argv": ["sh", "-c", "echo once >> log; head -c 1000000 /dev/zero"]}

    def visit(key: str = "") -> tuple[int, Any]:
        headers = {"idempotency-key": key} if key else {}
        return ask(here.port, "POST", f"/v1/boxes/{box}/runs", body, token=token, headers=headers)[::2]

    def log() -> bytes:
        return bytes(ask(here.port, "GET", f"/v1/boxes/{box}/file?path=log", token=token)[2])

    eventually(lambda: not unread._held)
    size = len(here.service.runs._known[run].text)
    monkeypatch.setattr(unread, "_most", size + 1)
    link = _unread(here, token, run)
    try:
        eventually(lambda: unread._held.get("greedy") == size)
        assert visit()[0] == 200 and log() == b"once\n"  # there was some room, and then it is answered
        eventually(lambda: unread._held.get("greedy") == size)
        assert visit("mine")[0] == 429  # with a key it may be asked for again: that is the same run
        monkeypatch.setattr(unread, "_most", size)
        assert visit()[0] == visit("other")[0] == 429 and log() == b"once\n" * 2, "without room nothing is begun"
    finally:
        link.close()
    eventually(lambda: not unread._held)
    assert visit("mine")[0] == 200 and log() == b"once\n" * 2
    assert visit()[0] == 200 and log() == b"once\n" * 3  # the control
    ask(here.port, "DELETE", f"/v1/boxes/{box}", token=token)


def test_an_answer_is_made_piece_by_piece_as_it_is_taken() -> None:
    text = Written('"' + "x" * 1_000_000 + '"')
    made, again = (json_response(200, text, {}) for _ in range(2))
    assert isinstance(made, InPieces) and isinstance(again, InPieces)
    assert made._whole is again._whole is text, "answers about one run share its text"
    assert not isinstance(json_response(200, {"small": 1}, {}), InPieces)
    unread, taken = Unread(), asyncio.Semaphore(3)
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        await taken.acquire()
        sent.append(message.get("body", b""))

    async def attack() -> None:
        made.count(unread, "one")
        sending = asyncio.ensure_future(made({}, None, send))  # type: ignore[arg-type]
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(sent) == 3 and sum(map(len, sent)) < len(text) // 4, "the rest is not made yet"
        assert unread._held == {"one": len(text)}
        for _ in range(100):
            taken.release()
        await sending
        assert b"".join(sent) == text.encode() and not unread._held  # the control

    asyncio.run(attack())


def test_one_large_answer_alone_is_never_too_much() -> None:
    unread = Unread()
    unread._most = 10
    unread.take("one", 1000)
    with pytest.raises(Refused, match="1000 bytes"):
        unread.take("one", 1)
    unread.take("other", 1)
    unread.give_back("one", 1000)
    unread.take("one", 1)


# ---- connections


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Here, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("narrow")
    path, tokens = token_file(folder, {"name": "one"})
    with running(settings(folder, tokens=path, policies=_POLICIES, connections=6)) as found:
        yield found, tokens


def _asked(here: Here, link: socket.socket, path: str, token: str = "") -> bytes:
    """The answer to one more request on this connection; empty where it has ended."""
    shown = f"Authorization: Bearer {token}\r\n" if token else ""
    try:
        link.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\n{shown}\r\n".encode())
        return link.recv(1 << 16)
    except (ConnectionResetError, BrokenPipeError):
        return b""


def _strangers(here: Here, count: int) -> list[socket.socket]:
    """Connections that stay open after one request, which takes no token."""
    links = [socket.create_connection(("127.0.0.1", here.port), timeout=PATIENCE_S) for _ in range(count)]
    for link in links:
        _asked(here, link, "/healthz")
    return links


def test_who_has_no_token_keeps_nobody_out_by_idle_connections(
    narrow: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, tokens = narrow
    monkeypatch.setattr("ringfence.service.protocol.STRANGER_S", 3600)
    known = socket.create_connection(("127.0.0.1", here.port), timeout=PATIENCE_S)
    assert b" 200 " in _asked(here, known, "/v1/status", tokens["one"])
    links = _strangers(here, 12)
    assert ask(here.port, "GET", "/v1/status", token=tokens["one"])[0] == 200
    assert b" 200 " in _asked(here, known, "/v1/status", tokens["one"]), "older than all of them, and a tenant's"
    assert b" 200 " in _asked(here, links[-1], "/healthz")  # the control: while there is room they may stay
    assert [_asked(here, link, "/healthz") for link in links[:6]] == [b""] * 6, "who was idle the longest made room"
    for link in (known, *links):
        link.close()


def test_a_full_service_says_so_in_json_and_when_to_come_again(
    narrow: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the one above: nobody makes room."""
    here, tokens = narrow
    monkeypatch.setattr("ringfence.service.protocol.STRANGER_S", 3600)
    monkeypatch.setattr(Patient, "_make_room", lambda self: None)
    links = _strangers(here, 6)
    status, told, answer = ask(here.port, "GET", "/v1/status", token=tokens["one"])
    assert (status, told["retry-after"], told["connection"]) == (503, "1", "close")
    assert "reached its limit of connections" in answer["error"]["message"]
    for link in links:
        link.close()
    eventually(lambda: ask(here.port, "GET", "/v1/status", token=tokens["one"])[0] == 200)


def test_a_connection_is_kept_for_those_who_have_shown_a_token(
    narrow: tuple[Here, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, tokens = narrow
    monkeypatch.setattr("ringfence.service.protocol.STRANGER_S", 0)
    with socket.create_connection(("127.0.0.1", here.port), timeout=PATIENCE_S) as link:
        for path, token in (("/v1/status", tokens["one"]), ("/healthz", ""), ("/healthz", "")):  # the control
            assert b" 200 " in _asked(here, link, path, token)
    for path, token in (("/healthz", ""), ("/v1/status", ""), ("/v1/status", "rf_wrong"), ("/page/main.js", "")):
        with socket.create_connection(("127.0.0.1", here.port), timeout=PATIENCE_S) as link:
            assert _asked(here, link, path, token).startswith(b"HTTP/1.1 ")
            while link.recv(1 << 16):  # the rest of it, and then the end
                pass


@pytest.mark.parametrize(("soft", "hard", "raised", "connections"), [
    (256, 1 << 20, 3088, 1000), (256, -1, 3088, 1000), (256, 1000, 1000, 500), (4000, 5000, 4000, 1000),
    (-1, -1, -1, 1000),
])  # fmt: skip
def test_there_are_descriptors_for_sandboxes_beside_those_for_connections(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int, connections: int
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: limits.append(given))
    found = servers.with_descriptors(Settings(connections=1000, sandboxes=1))
    assert (limits[-1], found.connections) == ((raised, hard), connections)
