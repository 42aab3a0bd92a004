"""The client of an engine: what is asked, and what comes of answers that nobody should give."""

from __future__ import annotations

import io
import json
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.container.fake_engine import FakeEngine, engine

from ringfence.container import api, sdk
from ringfence.container.hardening import ContainerSpec
from ringfence.errors import SandboxError, SetupError, UnavailableError, UsageError

SPEC = ContainerSpec(argv=("python3", "-c", "pass"))
ID = "a" * 64


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeEngine]:
    with engine(tmp_path) as made:
        yield made


@pytest.fixture
def client(fake: FakeEngine) -> Iterator[api.Client]:
    made = api.connect(fake.url)
    yield made
    made.close()


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def link(name: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    return info, b""


@pytest.mark.parametrize("url", ["unix:///run/e.sock", "unix://run/e.sock", "http+unix:///run/e.sock", "/run/e.sock",
                                 "unix:/run/e.sock"])  # fmt: skip
def test_the_socket_is_known_however_its_address_is_written(client: api.Client, url: str) -> None:
    """By which it is kept from jobs."""
    client.url = url
    assert client.socket_path == "/run/e.sock" and client.is_local
    client.url = "tcp://127.0.0.1:2375"
    assert client.socket_path == ""


def test_a_container_goes_through_its_life(fake: FakeEngine, client: api.Client) -> None:
    fake.answers |= {
        "POST /containers/create": (201, {"Id": ID, "Warnings": []}), f"POST /containers/{ID}/start": (204, {}),
        f"POST /containers/{ID}/wait": (200, {"StatusCode": 3}), f"DELETE /containers/{ID}": (204, {}),
        f"GET /containers/{ID}/json": (200, {"State": {"ExitCode": 3}}),
    }  # fmt: skip
    assert client.create(SPEC) == ID
    client.start(ID)
    assert client.wait(ID) == 3 and client.inspect(ID)["State"] == {"ExitCode": 3}
    client.remove(ID)
    sent = json.loads(next(body for what, body in fake.asked if what == "POST /containers/create"))
    assert sent["HostConfig"]["NetworkMode"] == "none" and sent["HostConfig"]["CapDrop"] == ["ALL"]


def test_what_is_gone_already_is_no_mistake(client: api.Client) -> None:
    client.remove(ID)
    assert not client.kill(ID)
    assert not client.has_image("python:3.10-slim")


def test_what_somebody_else_removes_is_gone_before_it_is_said_to_be(
    fake: FakeEngine, client: api.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers |= {f"DELETE /containers/{ID}": (409, {"message": f"removal of {ID} is already in progress"}),
                     f"GET /containers/{ID}/json": (200, {"State": {"Status": "removing"}})}  # fmt: skip
    slept: list[float] = []

    def gone(pause_s: float) -> None:
        slept.append(pause_s)
        del fake.answers[f"GET /containers/{ID}/json"]

    monkeypatch.setattr(api.time, "sleep", gone)
    client.remove(ID)
    assert len(slept) == 1
    fake.answers[f"GET /containers/{ID}/json"] = (200, {"State": {"Status": "removing"}})
    monkeypatch.setattr(api, "_REMOVAL_S", -1.0)
    with pytest.raises(SetupError, match="still there"):
        client.remove(ID)


def test_a_missing_image_is_told_from_another_refusal(fake: FakeEngine, client: api.Client) -> None:
    fake.answers["POST /containers/create"] = (404, {"message": "No such image: python:3.10-slim"})
    with pytest.raises(SetupError, match=r"No such image: python:3.10-slim") as caught:
        client.create(SPEC)
    assert caught.value.step == api.IMAGE_STEP
    fake.answers["GET /images/python:3.10-slim/json"] = (200, {"Id": "sha256:1"})
    fake.answers["POST /containers/create"] = (500, {"message": "no space left on device"})
    with pytest.raises(SetupError, match="no space left") as caught:
        client.create(SPEC)
    assert caught.value.step == "create the container"


@pytest.mark.parametrize("answer", [
    (201, {"Id": 7}), (201, {}), (201, []), (201, "x"), (201, None), (500, {"message": "\x1b[2Jboo"}),
    b"HTTP/1.1 201 Said\r\nContent-Length: 500\r\n\r\n{", b"HTTP/1.1 201 Said\r\nContent-Length: 2\r\n\r\n{{",
    b"", b"\xff\xfe\x00 nothing of the kind",
], ids=repr)  # fmt: skip
def test_a_broken_answer_is_an_error_of_ours(fake: FakeEngine, client: api.Client, answer: object) -> None:
    fake.answers["POST /containers/create"] = answer  # type: ignore[assignment]
    with pytest.raises(SandboxError) as caught:
        client.create(SPEC)
    assert "\x1b" not in str(caught.value)


def test_an_engine_that_is_not_there_is_named_with_what_helps(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="does not answer") as caught:
        api.connect(f"unix://{tmp_path}/none.sock")
    assert caught.value.missing == ("engine",) and "docker.io" in caught.value.hint


def test_an_engine_that_ends_in_the_middle_is_unavailable(fake: FakeEngine, client: api.Client) -> None:
    fake.answers[f"POST /containers/{ID}/wait"] = lambda connection: connection.close()
    with pytest.raises(UnavailableError):
        client.wait(ID, 30)


def test_waiting_ends_after_its_time(fake: FakeEngine, client: api.Client) -> None:
    fake.answers[f"POST /containers/{ID}/wait"] = lambda connection: connection.recv(1)  # type: ignore[assignment,return-value]
    assert client.wait(ID, 0.05) is None


def test_what_is_attached_goes_both_ways(fake: FakeEngine, client: api.Client) -> None:
    def talk(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\n"
                           b"Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n")  # fmt: skip
        said = b""
        while piece := connection.recv(100):
            said += piece
        connection.sendall(said[::-1])

    fake.answers[f"POST /containers/{ID}/attach"] = talk
    attached = client.attach(ID)
    assert attached.send(b"hello") == 5
    attached.close_input()
    assert attached.receive() == b"olleh" and attached.receive() == b""
    attached.close()


def test_one_regular_file_is_taken(fake: FakeEngine, client: api.Client) -> None:
    fake.answers[f"GET /containers/{ID}/archive"] = (200, archive((tarfile.TarInfo("result.json"), b'{"a": 1}')))
    assert client.get(ID, "/output/result.json", 100) == b'{"a": 1}'
    with pytest.raises(UsageError, match="at most 7 are"):
        client.get(ID, "/output/result.json", 7)


@pytest.mark.parametrize("members", [
    [link("result.json", tarfile.SYMTYPE)], [link("result.json", tarfile.LNKTYPE)], [link("r", tarfile.DIRTYPE)],
    [link("r", tarfile.FIFOTYPE)], [link("r", tarfile.CHRTYPE)], [],
    [(tarfile.TarInfo("a"), b"1"), (tarfile.TarInfo("b"), b"2")],
])  # fmt: skip
def test_what_is_no_regular_file_is_refused(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    with pytest.raises(UsageError):
        api.read_one_file([archive(*members)], 1000)


def test_a_file_that_lies_about_its_size_is_not_read() -> None:
    info = tarfile.TarInfo("big")
    info.size = 1 << 50
    with pytest.raises(UsageError, match="at most"):
        api.read_one_file([info.tobuf(tarfile.PAX_FORMAT)], 1000)
    info.size = 600
    with pytest.raises(UsageError, match="ends in the middle"):
        api.read_one_file([info.tobuf(), b"x" * 10], 1000)


def test_labels_and_states_are_listed(fake: FakeEngine, client: api.Client) -> None:
    row = {"Id": ID, "Names": ["/one"], "Labels": {"a": "b"}, "State": "exited"}
    fake.answers["GET /containers/json"] = (200, [row])
    assert client.list("a") == [api.Listed(id=ID, name="one", labels={"a": "b"}, state="exited")]
    fake.answers["GET /containers/json"] = (200, [{"Names": None, "Labels": 7}])
    with pytest.raises(SetupError):
        client.list("a")


def of_json(body: bytes) -> bytes:
    return b"HTTP/1.1 200 Said\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize("answer", [
    (200, None), (200, 7), (200, "x"), (200, [1]), (200, [None]), (200, [[1]]), (200, {"Id": 7}),
    of_json(b"[" * 100_000 + b"]" * 100_000), of_json(b'[{"Id": ' + b"9" * 5000 + b"}]"), of_json(b"\xff\xfe"),
], ids=lambda answer: repr(answer)[:40])  # fmt: skip
def test_no_answer_becomes_a_traceback(fake: FakeEngine, client: api.Client, answer: object) -> None:
    fake.answers |= {"GET /containers/json": answer, f"GET /containers/{ID}/json": answer}  # type: ignore[dict-item]
    with pytest.raises(SandboxError):
        client.list("a")
    assert client.logs(ID) == b"", "for which the SDK looks at the container first"


@pytest.mark.parametrize(("variables", "kind", "url"), [
    ({"DOCKER_HOST": "tcp://127.0.0.1:1"}, "docker", "tcp://127.0.0.1:1"),
    ({"RINGFENCE_ENGINE": "podman", "CONTAINER_HOST": "unix:///p.sock"}, "podman", "unix:///p.sock"),
    ({"RINGFENCE_ENGINE": "/usr/bin/podman", "DOCKER_HOST": "tcp://no"}, "podman", None),
])  # fmt: skip
def test_the_environment_names_the_engine(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], kind: str, url: str | None
) -> None:
    for name in ("DOCKER_HOST", "CONTAINER_HOST", "RINGFENCE_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = sdk.address()
    assert found[0] == kind and (found[1] == url if url else found[1].endswith("podman.sock"))


def test_a_socket_that_is_not_there_is_told_in_words_and_not_by_its_number() -> None:
    with pytest.raises(UnavailableError, match="does not answer: No such file or directory\n"):
        api.connect("unix:///no/such.sock")


def test_an_engine_behind_ssh_is_refused_by_name() -> None:
    with pytest.raises(UnavailableError, match="by a socket or TCP"):
        api.connect("ssh://somewhere")


@pytest.mark.parametrize(("ref", "parts"), [
    ("python", ("python", "latest")), ("python:3", ("python", "3")), ("p@sha256:ab", ("p@sha256:ab", None)),
    ("localhost:5000/p", ("localhost:5000/p", "latest")), ("p@sha256:ab", ("p@sha256:ab", None)),
])  # fmt: skip
def test_references_are_split(ref: str, parts: tuple[str, str | None]) -> None:
    assert api.split_ref(ref) == parts
