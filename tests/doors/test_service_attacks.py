"""Attacks on the service by clients, browsers, sandboxes and other tenants, each with its control."""

from __future__ import annotations

import base64
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S, eventually
from tests.service_server import QUICK, Here, ask, running, settings, token_file

from ringfence.client import Client
from ringfence.errors import SandboxError, UsageError
from ringfence.service import guard
from ringfence.service import tokens as token_rules
from ringfence.service.routes import ROUTES
from ringfence.service.settings import NamedPolicy, NamedWorkspace, Settings

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]
RUN = {"argv": ["echo", "ran"]}
MARK = "what only the host's user may read"
_MARK_64 = base64.b64encode(MARK.encode())[:24].decode()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "secret.txt").write_text(MARK)
    (folder / "work").mkdir()
    return folder


@pytest.fixture(scope="module")
def known(place: Path) -> tuple[str, dict[str, str]]:
    return token_file(
        place, {"name": "owner"}, {"name": "other"}, {"name": "reader", "scopes": ["read"]},
        {"name": "boxer", "scopes": ["read", "run", "box"]}, {"name": "limited", "policies": ["small"]},
        {"name": "operator", "scopes": ["read", "operator"]},
    )  # fmt: skip


@pytest.fixture(scope="module")
def here(place: Path, known: tuple[str, dict[str, str]]) -> Iterator[Here]:
    policies = {
        "default": NamedPolicy(name="default", policy=QUICK, warm=1),
        "small": NamedPolicy(name="small", policy=QUICK.with_changes(mem_bytes=64 << 20)),
        # Without a control group each visit counts two tasks and what it shares with the others.
        "roomy": NamedPolicy(name="roomy", policy=QUICK.with_changes(mem_bytes=1 << 30, pids_max=256)),
        "walled": NamedPolicy(name="walled", policy=QUICK.with_changes(isolation="process", readable_paths=("/usr",))),
        "secret": NamedPolicy(name="secret", policy=QUICK.with_changes(environment={"KEY": MARK})),
    }  # fmt: skip
    workspaces = {"work": NamedWorkspace(name="work", path=str(place / "work"), commit=True)}
    with running(settings(place, tokens=known[0], policies=policies, workspaces=workspaces, request_s=2.0,
                          body_bytes=1 << 20)) as found:  # fmt: skip
        yield found


@pytest.fixture(scope="module")
def token(known: tuple[str, dict[str, str]]) -> dict[str, str]:
    return known[1]


@pytest.fixture(scope="module")
def owned(here: Here, token: dict[str, str]) -> Iterator[dict[str, str]]:
    """One of each, of the owner's."""
    client = Client(here.address, token=token["owner"])
    box, pool = client.open(), client.Pool(warm=0)
    box.put("mine.txt", b"the owner's own")
    done = client.run(["echo", MARK], bundle=True)
    yield {"box": box.id, "pool": pool.id, "run": done.run_id}
    box.close()
    pool.close()


# ---- tokens


def test_only_a_token_that_is_known_lets_in(here: Here, token: dict[str, str]) -> None:
    right = token["owner"]
    assert ask(here.port, "POST", "/v1/runs", RUN, token=right)[0] == 200  # the control
    for wrong in ("", "x", right[:-1], right + "x", right.upper(), f"{right}, {right}", "\xff" * 40):
        status, told, _ = ask(here.port, "POST", "/v1/runs", RUN, token=wrong)
        assert (status, told["www-authenticate"]) == (401, "Bearer"), wrong
    for header in (f"Basic {right}", right, f"bearer{right}"):
        assert ask(here.port, "GET", "/v1/status", headers={"authorization": header})[0] == 401
    for route in ROUTES:
        path = route.path.replace("{run}", "0" * 24).replace("{box}", "0" * 24).replace("{pool}", "0" * 24)
        body = None if route.body is None else {}
        assert (ask(here.port, route.method, path, body)[0] == 401) is bool(route.scope), route.path


def test_without_the_check_of_tokens_everybody_would_come_in(
    here: Here, token: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the one above."""
    monkeypatch.setattr(token_rules.Tokens, "tenant_of", lambda self, header: self.named("owner"))
    assert ask(here.port, "POST", "/v1/runs", RUN, token="wrong")[0] == 200


def test_all_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return one == other

    monkeypatch.setattr(token_rules.hmac, "compare_digest", compare)
    digest = token_rules.digest_of
    rows = tuple(token_rules.Tenant(name=name, scopes=frozenset(), digest=digest(name)) for name in "abc")
    found = token_rules.Tokens(rows).tenant_of("Bearer a")
    assert found is rows[0] and compared == [row.digest for row in rows]


def test_a_file_of_tokens_has_no_token_and_is_nobody_elses(tmp_path: Path, known: tuple[str, dict[str, str]]) -> None:
    text = Path(known[0]).read_text()
    assert not [each for each in known[1].values() if each in text]
    mine = tmp_path / "tokens.yaml"
    made = token_rules.add_token(str(mine), "new", ("run", "read"))
    assert made not in mine.read_text() and mine.stat().st_mode & 0o777 == 0o600
    assert token_rules.read_tokens(str(mine)).tenant_of(f"Bearer {made}").name == "new"  # type: ignore[union-attr]
    mine.chmod(0o622)
    with pytest.raises(UsageError, match="writable by others"):
        token_rules.read_tokens(str(mine))
    with pytest.raises(UsageError):
        token_rules.add_token(str(mine), "x", ("everything",))


def test_a_token_does_what_its_scopes_say(here: Here, token: dict[str, str], owned: dict[str, str]) -> None:
    for method, path, body in (("POST", "/v1/runs", RUN), ("POST", "/v1/boxes", {}), ("POST", "/v1/pools", {}),
                               ("GET", "/metrics", None), ("POST", "/v1/bundles/verify", {"bundle": {}})):  # fmt: skip
        assert ask(here.port, method, path, body, token=token["reader"])[0] == 403, path
    assert ask(here.port, "GET", "/v1/status", token=token["reader"])[0] == 200
    # An operator sees all, and still begins nothing without the scope for it.
    assert ask(here.port, "GET", f"/v1/runs/{owned['run']}", token=token["operator"])[0] == 200
    assert ask(here.port, "POST", "/v1/runs", RUN, token=token["operator"])[0] == 403


def test_a_commit_takes_its_own_scope(here: Here, token: dict[str, str], place: Path) -> None:
    for name, allowed in (("boxer", False), ("owner", True)):
        with Client(here.address, token=token[name]).open(workspace="work") as box:
            box.put(f"{name}.txt", b"x")
            if allowed:
                box.commit()
            else:
                with pytest.raises(SandboxError, match="may not commit changes"):
                    box.commit()
        assert (place / "work" / f"{name}.txt").exists() is allowed


# ---- other tenants


OF_ONE = [route for route in ROUTES if "{" in route.path]


@pytest.mark.parametrize("route", OF_ONE, ids=lambda route: f"{route.method} {route.path}")
def test_what_is_another_tenants_is_not_there(
    here: Here, token: dict[str, str], owned: dict[str, str], route: Any
) -> None:
    bodies: dict[str, object] = {
        "signal_run": {"signal": 9}, "feed_run": {}, "run_in_box": RUN, "run_in_pool": RUN, "write_file": b"x",
        "roll_back": {"checkpoint": "x"}, "create_checkpoint": {}, "discard": {}, "commit": {}, "park_box": {},
    }  # fmt: skip
    query = "?path=mine.txt" if "path" in route.needs else ""
    path, missing = route.path, route.path
    for name in ("run", "box", "pool"):
        path, missing = path.replace(f"{{{name}}}", owned[name]), missing.replace(f"{{{name}}}", "f" * 24)
    body = bodies.get(route.handler)
    theirs = ask(here.port, route.method, path + query, body, token=token["other"])
    nothing = ask(here.port, route.method, missing + query, body, token=token["other"])
    assert theirs[0] == nothing[0] == 404
    assert theirs[2] == nothing[2], "nobody learns that it is there"
    if route.method == "GET" and route.handler != "follow_run":
        status, _, found = ask(here.port, "GET", path + query, token=token["owner"])
        assert status == 200 and found, "the control: its owner finds it"


def test_lists_streams_and_keys_are_each_tenants_own(here: Here, token: dict[str, str], owned: dict[str, str]) -> None:
    for path, name in (("/v1/runs", "run"), ("/v1/boxes", "box"), ("/v1/pools", "pool")):
        assert owned[name] in json.dumps(ask(here.port, "GET", path, token=token["owner"])[2])
        assert owned[name] not in json.dumps(ask(here.port, "GET", path, token=token["other"])[2])
    key = {"idempotency-key": "the same"}
    first = ask(here.port, "POST", "/v1/runs", RUN, token=token["owner"], headers=key)[2]
    second = ask(here.port, "POST", "/v1/runs", RUN, token=token["other"], headers=key)[2]
    assert first["id"] != second["id"]
    assert ask(here.port, "POST", "/v1/runs", RUN, token=token["owner"], headers=key)[2]["id"] == first["id"]


def test_a_policy_that_a_token_does_not_have_is_not_there(here: Here, token: dict[str, str]) -> None:
    body = {**RUN, "policy": "default"}
    status, _, found = ask(here.port, "POST", "/v1/runs", body, token=token["limited"])
    assert status == 400 and "no policy" in found["error"]["message"]
    assert ask(here.port, "POST", "/v1/runs", {**RUN, "policy": "small"}, token=token["limited"])[0] == 200
    names = [row["name"] for row in ask(here.port, "GET", "/v1/policies", token=token["limited"])[2]["policies"]]
    assert names == ["small"]
    assert MARK not in json.dumps(ask(here.port, "GET", "/v1/policies", token=token["owner"])[2])


# ---- more than the operator allows


@pytest.mark.parametrize("tighten", [
    {"mem_bytes": "8G"}, {"isolation": "none"}, {"isolation": "process"}, {"network": "host"}, {"allow_partial": True},
    {"readable_paths": ["/"]}, {"writable_paths": ["/tmp"]}, {"pass_environment": ["PATH"]}, {"wall_time_s": 1e6},
    {"shown_at": {"/etc": "/x"}}, {"root": "/"}, {"environment": {"LD_PRELOAD": "x"}}, {"nonsense": 1},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("where", ["/v1/runs", "/v1/boxes", "/v1/pools"])
def test_nobody_widens_a_policy(here: Here, token: dict[str, str], tighten: dict[str, object], where: str) -> None:
    body = {"tighten": tighten, **(RUN if where == "/v1/runs" else {})}
    status, _, found = ask(here.port, "POST", where, body, token=token["owner"])
    assert (status, found["error"]["type"]) == (400, "PolicyError"), found


def test_a_run_cannot_name_a_directory_of_the_host(here: Here, token: dict[str, str], place: Path) -> None:
    body = {"argv": ["cat", "secret.txt"], "cwd": str(place)}
    assert ask(here.port, "POST", "/v1/runs", body, token=token["owner"])[0] == 400
    # The control: with that directory the library's run would show it.
    import ringfence

    assert MARK in ringfence.run(["cat", "secret.txt"], QUICK, cwd=str(place)).stdout.decode()


READ = "import sys\nfor each in sys.argv[1:]:\n try: print(open(each).read())\n except OSError as e: print(e)\n"


@pytest.fixture(scope="module")
def installed(place: Path) -> Path:
    """A virtual environment of the operator's, with something in it that is for nobody else."""
    environment = place / "app"
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (environment / "settings.txt").write_text(MARK)
    (environment / "bin/python").symlink_to("/usr/bin/python3")
    return environment


@pytest.mark.parametrize("how", ["PYTHONPATH", "PATH", "program"])
@pytest.mark.parametrize("policy", ["small", "walled"])
def test_what_a_client_names_is_not_shown_for_that(
    here: Here, token: dict[str, str], place: Path, installed: Path, how: str, policy: str
) -> None:
    import ringfence

    variables = {"PYTHONPATH": {"PYTHONPATH": str(place)}, "PATH": {"PATH": f"{installed}/bin"}, "program": {}}[how]
    program = {"PYTHONPATH": "python3", "PATH": "python", "program": f"{installed}/bin/python"}[how]
    argv = [program, "-c", READ, str(place / "secret.txt"), str(installed / "settings.txt")]
    status, _, found = ask(here.port, "POST", "/v1/runs", {"argv": argv, "env": variables, "policy": policy},
                           token=token["owner"])  # fmt: skip
    assert MARK not in json.dumps(found) and _MARK_64 not in json.dumps(found), (status, found)
    # The control: of a caller of the library it is shown, who has it anyway.
    own = here.service.settings.policies[policy].policy
    assert MARK in ringfence.run(argv, own, env=variables).stdout.decode()


def test_no_path_leads_out_of_a_box(here: Here, token: dict[str, str], place: Path) -> None:
    secret = str(place / "secret.txt")
    assert Path(secret).read_text() == MARK  # the control: it is there, and this process may read it
    with Client(here.address, token=token["owner"]).open() as box:
        box.run(["ln", "-s", secret, "link"])
        box.run(["ln", "-s", str(place), "folder"])
        up = "../" * 20
        ways = (secret, f"{up}{secret[1:]}", "link", "folder/secret.txt", "/proc/1/root" + secret, f"./{up}etc/shadow")
        for path in ways:
            with pytest.raises(SandboxError):
                assert MARK not in box.get(path).decode()
                raise SandboxError("not what was wanted")
            with pytest.raises(SandboxError):
                box.put(path, b"overwritten")
                if Path(secret).read_text() == MARK:  # its own file of that name
                    raise SandboxError("in its own root")
        for path in ("../x", "/etc/passwd", "a/../../x", "a//b", ""):
            assert ask(here.port, "GET", f"/v1/boxes/{box.id}/diff?path={path}", token=token["owner"])[0] == 400
        for path in ("%00", "a%00b"):
            assert ask(here.port, "GET", f"/v1/boxes/{box.id}/file?path={path}", token=token["owner"])[0] in (400, 422)
        for name in ("..", "../..", "..%2f..%2fetc", "%2e%2e", "0" * 23 + "/"):
            assert ask(here.port, "GET", f"/v1/boxes/{name}", token=token["owner"])[0] in (404, 405)
            assert ask(here.port, "GET", f"/v1/runs/{name}", token=token["owner"])[0] in (404, 405)
    assert Path(secret).read_text() == MARK


# ---- browsers


FOREIGN = [
    ({"host": "evil.example"}, 421), ({"host": "evil.example:{port}"}, 421), ({"host": "127.0.0.1:1"}, 421),
    ({"host": ""}, 421),
    ({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403), ({"origin": "http://127.0.0.1:1"}, 403),
    ({"sec-fetch-site": "cross-site"}, 403), ({"sec-fetch-site": "same-site"}, 403),
    ({"content-type": "text/plain"}, 415), ({"content-type": "application/x-www-form-urlencoded"}, 415),
    ({"content-type": "multipart/form-data"}, 415),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "status"), FOREIGN, ids=str)
def test_what_a_page_of_another_site_can_send_is_refused(
    here: Here, token: dict[str, str], headers: dict[str, str], status: int
) -> None:
    given = {name: value.format(port=here.port) for name, value in headers.items()}
    assert ask(here.port, "POST", "/v1/runs", RUN, token=token["owner"], headers=given)[0] == status
    own = {"origin": here.address, "sec-fetch-site": "same-origin", "host": f"localhost:{here.port}"}
    own["origin"] = f"http://localhost:{here.port}"
    assert ask(here.port, "POST", "/v1/runs", RUN, token=token["owner"], headers=own)[0] == 200  # the control


def test_without_the_guard_a_rebound_name_would_be_served(
    here: Here, token: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the one above."""
    monkeypatch.setattr(guard, "refuse_foreign", lambda settings, headers: None)
    assert ask(here.port, "POST", "/v1/runs", RUN, token=token["owner"], headers={"host": "evil.example"})[0] == 200


def test_answers_forbid_what_a_browser_could_make_of_them(
    here: Here, token: dict[str, str], owned: dict[str, str]
) -> None:
    client = Client(here.address, token=token["owner"])
    box = client.attach(owned["box"])
    box.put("page.html", b"<script>alert(1)</script>")
    path = f"/v1/boxes/{owned['box']}/file?path=page.html"
    for where in ("/", "/page/main.js", "/v1/status", path, "/nothing"):
        told = ask(here.port, "GET", where, token=token["owner"])[1]
        assert told["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in told["content-security-policy"], where
        assert "frame-ancestors 'none'" in told["content-security-policy"]
        assert "access-control-allow-origin" not in told and "set-cookie" not in told and "server" not in told
    told = ask(here.port, "GET", path, token=token["owner"])[1]
    assert (told["content-type"], told["content-disposition"]) == ("application/octet-stream", "attachment")


# ---- too much, too slow


CUT_OFF = b"(closed)"


def _raw(here: Here, data: bytes, wait_s: float = 2 * PATIENCE_S) -> bytes:
    heard = b""
    with socket.create_connection(("127.0.0.1", here.port), timeout=wait_s) as link:
        try:
            link.sendall(data)
            while piece := link.recv(65536):
                heard += piece
                if b"\r\n\r\n" in heard and b"413" in heard[:20]:
                    break
        except ConnectionError:
            return heard or CUT_OFF
    return heard


def test_a_body_is_no_larger_than_the_operator_says(here: Here, token: dict[str, str]) -> None:
    large = {"argv": ["true"], "input": "x" * (2 << 20)}
    assert ask(here.port, "POST", "/v1/runs", large, token=token["owner"])[0] == 413
    assert ask(here.port, "POST", "/v1/runs", {"argv": ["true"], "input": "x" * 1000}, token=token["owner"])[0] == 200
    head = (f"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\nAuthorization: Bearer {token['owner']}\r\n"
            "Content-Type: application/json\r\n")  # fmt: skip
    claimed = _raw(here, f"{head}Content-Length: 99999999999\r\n\r\n".encode())
    assert claimed.startswith(b"HTTP/1.1 413")
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    # A body that does not say its size is refused; whoever goes on sending may find the connection closed by then.
    cut = _raw(here, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 40)
    assert cut.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400", CUT_OFF))


@pytest.mark.parametrize("body", [
    b"[" * 90_000, b'{"argv":' + b"[" * 50_000, b'{"timeout": ' + b"9" * 5000 + b"}", b"NaN", b"{", b"\xff", b"",
    b'{"argv": ["a", 1]}', b'{"argv": []}', b'{"argv": ["\\u0000"]}', b'{"argv": ["\\ud800"]}', b'{"argv": "ls"}',
    b'{"timeout": 1e999, "argv": ["true"]}', b'{"argv": ["true"], "env": {"A=B": "x"}}',
    b'{"argv": ["true"], "files": {"../x": "y"}}', b'{"argv": ["true"], "source": "x"}', b"null", b"3",
    b'{"argv": ["true"], "input": {"base64": "?"}}', b'{"source": "x", "arguments": ["\\u0000"]}',
], ids=lambda body: repr(body[:40]))  # fmt: skip
def test_what_is_malformed_is_told_so(here: Here, token: dict[str, str], body: bytes) -> None:
    given = {"content-type": "application/json"}
    status, _, found = ask(here.port, "POST", "/v1/runs", body, token=token["owner"], headers=given)
    assert status in (200, 400), found
    assert status == 400 or found["state"] == "failed", found


def test_what_stands_twice_in_a_body_is_not_read_as_either(here: Here, token: dict[str, str]) -> None:
    """A proxy that reads the first and a service that reads the last would not check what is run."""
    given = {"content-type": "application/json"}
    for body in (b'{"argv": ["true"], "argv": ["false"]}', b'{"argv": ["true"], "env": {"A": "1", "\\u0041": "2"}}'):
        status, _, found = ask(here.port, "POST", "/v1/runs", body, token=token["owner"], headers=given)
        assert status == 400 and "occurs twice" in found["error"]["message"], found
    once = b'{"argv": ["true"], "env": {"A": "1", "B": "2"}}'  # the control
    assert ask(here.port, "POST", "/v1/runs", once, token=token["owner"], headers=given)[0] == 200


@pytest.mark.parametrize(("address", "sent"), [
    ("http://127.0.0.1:1", True), ("http://localhost:1", True), ("http://[::1]:1", True), ("https://example.org", True),
    ("http://example.org", False), ("http://127.0.0.1.example.org", False), ("http://10.0.0.1:8700", False),
    ("http://localhost.example.org", False), ("http://127.0.0.1@example.org", False),
])  # fmt: skip
def test_a_token_does_not_go_to_another_machine_in_the_open(address: str, sent: bool) -> None:
    Client(address, token="")  # the control: without a token there is nothing to show
    Client(address, token="rf_x", plain_http=True)
    if sent:
        Client(address, token="rf_x")
        return
    with pytest.raises(UsageError, match="would expose the token"):
        Client(address, token="rf_x")


def test_who_sends_slowly_is_sent_away(here: Here, token: dict[str, str]) -> None:
    heads = [b"", b"POST /v1/runs HT", f"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\nX: ".encode()]
    for head in heads:
        began = time.monotonic()
        assert b"200" not in _raw(here, head)
        assert time.monotonic() - began < 2 * PATIENCE_S, "it was closed"
    head = (f"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\nAuthorization: Bearer {token['owner']}\r\n"
            "Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{")  # fmt: skip
    assert _raw(here, head.encode()).startswith(b"HTTP/1.1 408")
    # The control: who is slow and in time is served.
    with socket.create_connection(("127.0.0.1", here.port), timeout=2 * PATIENCE_S) as link:
        for piece in (head.encode(), b'"argv": ["true"]', b" " * 32 + b"}"):
            link.sendall(piece)
            time.sleep(0.1)
        assert link.recv(100).startswith(b"HTTP/1.1 200")


def test_a_flood_of_output_stays_small_and_what_is_missing_is_told(here: Here, token: dict[str, str]) -> None:
    client = Client(here.address, token=token["owner"])
    body = {"argv": ["sh", "-c", f"while :; do echo {'x' * 60}; done"], "wait": False, "timeout": 1}
    run = client.connection.json("POST", "/v1/runs", body)["id"]
    found = client.connection.json("GET", f"/v1/runs/{run}", query={"wait": "true"})
    log = here.service.runs._known[run].log
    assert log._bytes <= 5 << 20 and len(log._kept) <= 4096
    assert found["outcome"]["stdout_dropped"] > 0 or found["outcome"]["status"] in ("TIMEOUT", "OUTPUT_LIMIT")


def test_one_box_does_not_take_all_threads(here: Here, token: dict[str, str]) -> None:
    client = Client(here.address, token=token["owner"], patience_s=0)
    with client.open("roomy") as box:
        spec = {"argv": ["sleep", "60"], "wait": False}
        answers = [ask(here.port, "POST", f"/v1/boxes/{box.id}/runs", spec, token=token["owner"])[0] for _ in range(18)]
        assert answers[:16] == [202] * 16 and set(answers[16:]) == {409}
        assert ask(here.port, "POST", "/v1/runs", RUN, token=token["other"])[0] == 200
    pools = [ask(here.port, "POST", "/v1/pools", {"warm": 0}, token=token["other"]) for _ in range(5)]
    assert [status for status, _, _ in pools] == [201] * 4 + [400]
    for _, _, made in pools[:4]:
        ask(here.port, "DELETE", f"/v1/pools/{made['id']}", token=token["other"])


def test_who_writes_to_programs_that_do_not_read_blocks_nobody_else(here: Here, token: dict[str, str]) -> None:
    import threading

    client = Client(here.address, token=token["owner"], patience_s=0)
    with client.open() as box:
        run = client.connection.json("POST", f"/v1/boxes/{box.id}/runs",
                                     {"argv": ["sleep", "60"], "wait": False, "interactive": True})["id"]  # fmt: skip
        big = {"data": "x" * (1 << 19)}
        answers: list[int] = []

        def write() -> None:
            answers.append(ask(here.port, "POST", f"/v1/runs/{run}/input", big, token=token["owner"])[0])

        threads = [threading.Thread(target=write) for _ in range(10)]
        for thread in threads:
            thread.start()
        eventually(lambda: answers.count(429) == 2)
        assert ask(here.port, "GET", "/v1/key", token=token["other"])[0] == 200
    for thread in threads:
        thread.join()
    assert len(answers) == 10


# ---- where it listens, and who its sandboxes are


def test_it_listens_for_others_only_with_tokens(tmp_path: Path, known: tuple[str, dict[str, str]]) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "::"):
        with pytest.raises(UsageError, match="without tokens"):
            settings(tmp_path, host=host).checked()
        assert settings(tmp_path, host=host, tokens=known[0]).checked()
    for host in ("127.0.0.1", "::1", "127.8.8.8", "localhost"):
        assert settings(tmp_path, host=host).checked()


def test_a_sandbox_with_the_hosts_network_needs_a_token(tmp_path: Path, known: tuple[str, dict[str, str]]) -> None:
    policies = {"open": NamedPolicy(name="open", policy=QUICK.with_changes(network="host"))}
    with pytest.raises(UsageError, match="host's network"):
        settings(tmp_path, policies=policies).checked()
    assert settings(tmp_path, policies=policies, tokens=known[0]).checked()


def test_no_sandbox_sees_the_state_of_the_service(here: Here, token: dict[str, str], place: Path) -> None:
    state = here.service.settings.state
    assert os.listdir(state)  # the control
    client = Client(here.address, token=token["owner"])
    done = client.run(["sh", "-c", f"ls -la {state} {state}/runs; cat {state}/*"])
    assert not done.ok and b"json" not in done.stdout and b"signing" not in done.stdout
    with client.open() as box:
        assert not box.run(["ls", f"{state}/runs"]).ok


def test_settings_that_are_wrong_are_named() -> None:
    from ringfence.errors import PolicyError
    from ringfence.service.settings import from_plain

    for wrong in ({"prot": 1}, {"port": "x"}, {"policies": {"A": {}}}, {"policies": {"a": {"mem_bytes": "x"}}},
                  {"workspaces": {"w": {"path": "/no/such"}}}, {"queue": -1}, {"idle_s": 0}):  # fmt: skip
        with pytest.raises(PolicyError):
            from_plain(wrong)
    assert isinstance(from_plain({"policies": {"a": {"warm": 2}}}), Settings)
    assert from_plain({"policies": {"a": {}}}).policies["a"].policy.isolation == "strict"
