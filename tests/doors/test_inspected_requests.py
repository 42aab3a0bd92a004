"""Requests of a sandbox under rules with methods, paths and inject: what a server hears, what a guest has.

The server is on this host's loopback and listed by its address, so nobody needs a namespace or a resolver for it.
"""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

import ringfence
from ringfence import IsolationLevel, Outcome, SandboxPolicy
from ringfence.egress.authority import Authority

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

HERE = "127.0.0.1"
HALF = "s3cret-0123456789abcdef"
SECRET = f"{HALF}-fedcba9876543210"
VARIABLE = "RINGFENCE_TEST_KEY"
CURL = ["curl", "-sS", "-m", "30", "--path-as-is"]


class Server:
    """Speaks HTTP/1.1 over TLS, keeps the heads that it hears, and never says them back."""

    def __init__(self, certified_by: Authority, context: ssl.SSLContext) -> None:
        self.authority = certified_by
        self.heard: list[str] = []
        self.door = socket.create_server((HERE, 0))
        self.port: int = self.door.getsockname()[1]
        self.context = context
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                link = self.door.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        try:
            with self.context.wrap_socket(link, server_side=True) as tls:
                head = b""
                while data := tls.recv(65536):
                    head += data
                    if head.endswith(b"\r\n\r\n"):
                        self.heard.append(head.decode("latin-1"))
                        tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
                        head = b""
        except OSError:
            link.close()

    def rule(self, **more: object) -> dict[str, object]:
        inject = {"header": "x-api-key", "from_env": VARIABLE}
        return {"host": HERE, "ports": [self.port], "inject": inject, **more}

    def url(self, path: str) -> str:
        return f"https://{HERE}:{self.port}{path}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    authority = Authority([HERE])
    made = Server(authority, authority.context_for(HERE))
    monkeypatch.setenv(VARIABLE, SECRET)
    monkeypatch.setattr("ringfence.backends.egress_link._bundle", lambda: made.authority.pem().encode())
    yield made
    made.door.close()


def run(argv: list[str], *rules: dict[str, object]) -> Outcome:
    return ringfence.run(argv, SandboxPolicy(isolation=IsolationLevel.STRICT, network=list(rules)))  # type: ignore[arg-type]


def told(outcome: Outcome) -> list[tuple[object, object]]:
    """Return decision and reason of what the gateway says."""
    rows = [event.details for event in outcome.events if "decision" in event.details]
    return [(row["decision"], row["reason"]) for row in rows]


def test_the_server_hears_the_secret_and_nothing_of_the_sandbox_has_it(server: Server) -> None:
    search = (
        f"env; cat /proc/self/environ /proc/1/environ /proc/1/cmdline; cat $SSL_CERT_FILE; {' '.join(CURL)} -v"
        f" -H 'X-API-Key: mine' -H 'x_api_key: mine' {server.url('/v1/x')} 2>&1; grep -rs {HALF} /etc /tmp /job /home"
    )
    outcome = run(["sh", "-c", search], server.rule())
    assert b"hello" in outcome.stdout, outcome.stdout[-2000:]
    (head,) = server.heard
    assert f"x-api-key: {SECRET}\r\n" in head and "mine" not in head
    everything = json.dumps(outcome.to_dict(), default=str) + repr(outcome) + outcome.stdout.decode("latin-1")
    assert SECRET not in everything and HALF not in outcome.stdout.decode("latin-1")
    assert told(outcome) == [("allowed", "")]


PYTHON = "import urllib.request, sys; print(urllib.request.urlopen(sys.argv[1]).read().decode())"
NODE = "fetch(process.argv[1]).then(r => r.text()).then(t => console.log(t))"
CLIENTS = {
    "curl": [*CURL],
    "python": ["python3", "-c", PYTHON],
    "node": ["node", "-e", NODE],
}


@pytest.mark.parametrize("client", CLIENTS)
def test_programs_trust_the_gateway_by_the_variables_of_the_sandbox(server: Server, client: str) -> None:
    if not shutil.which(CLIENTS[client][0]):
        pytest.fail(f"{client} is not installed here")
    outcome = run([*CLIENTS[client], server.url("/v1/x")], server.rule(methods=["GET"], paths=["/v1/*"]))
    assert outcome.stdout.strip() == b"hello", (outcome.reason, outcome.stderr[-1000:], told(outcome))


@pytest.mark.parametrize(("words", "path", "says"), [
    (["-X", "DELETE"], "/v1/x", 'add "DELETE" to methods'), (["-X", "get"], "/v1/x", 'add "get" to methods'),
    ([], "/v2/x", "/v2/x is not allowed"), ([], "/v1/../v2/x", "/v2/x is not allowed"),
    ([], "/v1/%2e%2e/v2/x", "/v2/x is not allowed"), ([], "/v1/..%2fv2", "read %2f differently"),
    ([], "/v1//../v2", "an empty part"), ([], "/v1/%252e%252e/v2", "read %25 differently"),
    (["-H", "Upgrade: websocket"], "/v1/x", "Upgrade"),
    (["-H", "X-HTTP-Method-Override: PUT"], "/v1/x", "another method"),
    (["-H", "Host: other.example"], "/v1/x", "the request is for other.example"),
    (["-H", "Transfer-Encoding: chunked", "-H", "Content-Length: 5", "-d", "x"], "/v1/x", "not both or several"),
])  # fmt: skip
def test_what_a_rule_does_not_allow_is_answered_in_words_and_reaches_nobody(
    server: Server, words: list[str], path: str, says: str
) -> None:
    outcome = run([*CURL, *words, server.url(path)], server.rule(methods=["GET", "POST"], paths=["/v1/*"]))
    assert says in outcome.stdout.decode(), outcome.stdout
    assert server.heard == []
    ((decision, reason),) = told(outcome)
    assert decision == "refused" and says in str(reason)


def test_a_server_that_is_not_certified_hears_nothing(server: Server) -> None:
    server.authority = Authority([HERE])
    outcome = run([*CURL, server.url("/v1/x")], server.rule())
    assert b"certificate" in outcome.stdout and b"not valid" in outcome.stdout and server.heard == []
    ((decision, reason),) = told(outcome)
    assert decision == "ended" and "certificate" in str(reason)


ASK = """
import os, sys, urllib.error, urllib.request
for name in ("/proc/self/environ", "/proc/1/environ", "/proc/1/cmdline", os.environ["SSL_CERT_FILE"]):
    try: print(open(name, errors="replace").read())
    except OSError as error: print(error)
for line in sys.argv[1:]:
    method, url = line.split()
    request = urllib.request.Request(url, method=method, headers={"X-API-Key": "mine"})
    try: print(urllib.request.urlopen(request, timeout=30).read().decode())
    except urllib.error.HTTPError as error: print(error.read().decode())
"""


def ask_in_a_container(*lines: str, rule: dict[str, object]) -> Outcome:
    policy = SandboxPolicy(isolation=IsolationLevel.CONTAINER, network=[rule], wall_time_s=60)  # type: ignore[list-item]
    return ringfence.run(["python3", "-I", "-c", ASK, *lines], policy)


@pytest.mark.root
@pytest.mark.usefixtures("docker_address", "python_image")
def test_in_a_container_the_server_hears_the_secret_and_only_what_is_allowed(server: Server) -> None:
    lines = [f"GET {server.url('/v1/x')}", f"DELETE {server.url('/v1/x')}", f"GET {server.url('/v2/x')}"]
    outcome = ask_in_a_container(*lines, rule=server.rule(methods=["GET"], paths=["/v1/*"]))
    said = outcome.stdout.decode("latin-1")
    assert "hello" in said and 'add "DELETE" to methods' in said and "/v2/x is not allowed" in said, said[-2000:]
    (head,) = server.heard
    assert f"x-api-key: {SECRET}\r\n" in head and "mine" not in head
    assert HALF not in json.dumps(outcome.to_dict(), default=str) + repr(outcome) + said
    assert [decision for decision, _ in told(outcome)] == ["allowed", "refused", "refused"]


@pytest.mark.root
@pytest.mark.usefixtures("docker_address", "python_image")
def test_in_a_container_a_server_that_is_not_certified_hears_nothing(server: Server) -> None:
    server.authority = Authority([HERE])
    outcome = ask_in_a_container(f"GET {server.url('/v1/x')}", rule=server.rule())
    assert b"certificate" in outcome.stdout and b"not valid" in outcome.stdout, outcome
    assert server.heard == []
