"""The service as its clients meet it: real sandboxes over real connections."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S, eventually
from tests.service_server import QUICK, Here, ask, command, running, settings, token_file

import ringfence
from ringfence.client import Client
from ringfence.errors import ConflictError, PolicyError, SandboxError, SetupError, UnavailableError, UsageError
from ringfence.service.settings import NamedPolicy, NamedWorkspace

pytestmark = [pytest.mark.privileges]
SLEEP = ["sleep", "600"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def workspace(place: Path) -> Path:
    folder = place / "project"
    folder.mkdir()
    (folder / "kept.txt").write_text("as it was\n")
    return folder


@pytest.fixture(scope="module")
def here(place: Path, workspace: Path) -> Iterator[Here]:
    hidden = place / "secret"
    hidden.write_text("hidden")
    policies = {
        "default": NamedPolicy(name="default", policy=QUICK, warm=1),
        "watched": NamedPolicy(name="watched", policy=QUICK.with_changes(
            readable_paths=(str(place / "shown"),), hidden_paths=(str(place / "shown" / "answer"),))),
    }  # fmt: skip
    (place / "shown").mkdir()
    (place / "shown" / "answer").write_text("42")
    workspaces = {"project": NamedWorkspace(name="project", path=str(workspace), commit=True)}
    with running(settings(place, policies=policies, workspaces=workspaces)) as found:
        yield found


@pytest.fixture
def client(here: Here) -> Iterator[Client]:
    with Client(here.address, token="", patience_s=2 * PATIENCE_S) as made:
        yield made


# ---- runs


def test_a_run_is_what_it_is_in_the_library(client: Client) -> None:
    job = ["sh", "-c", "cat; echo err >&2; printf '\\377'; exit 3"]
    there, local = client.run(job, input=b"in\n"), ringfence.run(job, QUICK, input=b"in\n")
    for name in ("status", "rc", "reason", "stdout", "stderr", "argv", "limits_hit", "partial", "changes"):
        assert getattr(there, name) == getattr(local, name), name
    assert there.stdout == b"in\n\xff" and there.rc == 3
    assert there.enforced.keys() == local.enforced.keys()
    assert there.enforced["memory"].by == local.enforced["memory"].by
    assert [event.kind for event in there.events] == [event.kind for event in local.events]


def test_files_environment_and_time_go_along(client: Client) -> None:
    job = ringfence.Job(argv=("sh", "-c", "cat a/b; echo $WORD"), files={"a/b": b"\xfe\n"}, environment={"WORD": "x"})
    assert client.run(job).stdout == b"\xfe\nx\n"
    assert client.run(SLEEP, timeout=0.2).status == "TIMEOUT"
    assert client.run(SLEEP, {"wall_time_s": 0.2}).status == "TIMEOUT"
    assert client.run(["echo"], QUICK.with_changes(mem_bytes=64 << 20)).enforced["memory"].requested == 64 << 20


def test_a_python_source_and_a_call(client: Client) -> None:
    assert client.run_source("import sys; print(sys.argv[1:])", arguments=["a"]).stdout == b"['a']\n"
    assert client.run_source("print(6 * 7)", {"mem_bytes": "64M"}).stdout == b"42\n"
    with client.Pool(warm=1) as pool:
        assert pool.call(lambda a, b: a * b, 6, 7) == 42
        assert pool.map(len, ["a", "bb", b"ccc"]) == [1, 2, 3]
        assert pool.try_call(lambda: 1 / 0).problem.startswith("ZeroDivisionError")
        assert pool.run(["echo", "x"]).stdout == b"x\n"


def test_errors_are_those_of_the_library(client: Client) -> None:
    with pytest.raises(SetupError) as caught:
        client.run(["no-such-program"])
    assert caught.value.step == "exec"
    with pytest.raises(PolicyError) as wider:
        client.run(["true"], {"mem_bytes": "1T"})
    assert wider.value.field == "mem_bytes"
    with pytest.raises(UsageError, match="no policy"):
        client.run(["true"], "other")
    with pytest.raises(UsageError, match="directory"):
        client.run(ringfence.Job(argv=("true",), cwd="/tmp"))


def test_output_and_attempts_come_as_they_happen(client: Client, place: Path) -> None:
    heard: list[Any] = []
    script = f"echo one; cat {place}/shown/answer; echo two"
    done = client.run(["sh", "-c", script], "watched", on_output=lambda name, data: heard.append((name, data)),
                      on_event=heard.append)  # fmt: skip
    said = b"".join(each[1] for each in heard if isinstance(each, tuple) and each[0] == "stdout")
    assert said == b"one\ntwo\n" == done.stdout
    told = [each for each in heard if isinstance(each, ringfence.Event)]
    assert any("answer" in str(event.details.get("path")) for event in told), heard


def test_what_honest_programs_do_is_heard_and_is_no_attempt(client: Client, place: Path) -> None:
    """ls asks for names of users by a socket that is not there, and a limit is no crime; the control reads what is
    hidden."""
    flood = ["head", "-c", "300M", "/dev/zero"]
    for argv, is_attempt in ((["ls", "-l", "/"], False), (flood, False), (["cat", f"{place}/shown/answer"], True)):
        heard: list[ringfence.Event] = []
        client.run(argv, "watched", on_event=heard.append)
        row = next(each for each in client.connection.json("GET", "/v1/runs")["runs"] if each["argv"] == argv)
        assert heard and bool(row["attempts"]) is is_attempt, heard


def _read_events(answer: http.client.HTTPResponse, until: str = "end") -> Iterator[tuple[int, str, Any]]:
    number, name = 0, ""
    while line := answer.readline():
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "id":
            number = int(value)
        elif field == "event":
            name = value
        elif field == "data":
            yield number, name, json.loads(value)
            if name == until:
                return


def _stream(here: Here, path: str, last: int = 0) -> http.client.HTTPResponse:
    link = http.client.HTTPConnection("127.0.0.1", here.port, timeout=2 * PATIENCE_S)
    link.request("GET", path, headers={"last-event-id": str(last)})
    return link.getresponse()


def test_a_run_survives_its_client_and_is_followed_from_where_one_was(here: Here, client: Client) -> None:
    with client.open() as box:
        script = "echo one; read word; echo $word; read word; echo $word"
        handle = box.start(["sh", "-c", script])
        first = _stream(here, f"/v1/runs/{handle.id}/events")
        seen = next(each for each in _read_events(first) if each[1] == "output")
        first.close()  # a client that is gone
        handle.write(b"two\n")
        eventually(lambda: handle.stdout == b"one\ntwo\n")
        rest = _stream(here, f"/v1/runs/{handle.id}/events", seen[0])
        handle.write(b"three\n")
        told = list(_read_events(rest))
        assert "".join(each[2]["data"] for each in told if each[1] == "output") == "two\nthree\n"
        assert [each[0] for each in told] == sorted({each[0] for each in told}) and told[0][0] == seen[0] + 1
        assert told[-1][2]["outcome"]["status"] == "OK"
        assert handle.wait(PATIENCE_S).stdout == b"one\ntwo\nthree\n"


def test_a_client_that_hangs_up_in_mid_request_loses_nothing(here: Here, client: Client) -> None:
    body = json.dumps({"argv": ["sh", "-c", "sleep 0.3; echo done"]}).encode()
    link = http.client.HTTPConnection("127.0.0.1", here.port)
    link.request("POST", "/v1/runs", body, {"content-type": "application/json", "idempotency-key": "mine"})
    eventually(lambda: _doing(here))
    link.close()
    status, _, found = ask(here.port, "POST", "/v1/runs", json.loads(body), headers={"idempotency-key": "mine"})
    assert status == 200 and found["outcome"]["stdout"] == "done\n"
    assert len(_doing(here)) == 1, "it ran once"
    other = {"argv": ["true"]}
    assert ask(here.port, "POST", "/v1/runs", other, headers={"idempotency-key": "mine"})[0] == 400


def _doing(here: Here) -> list[dict[str, Any]]:
    return [run for run in ask(here.port, "GET", "/v1/runs")[2]["runs"] if run["argv"][-1].endswith("echo done")]


def test_a_run_can_be_ended(here: Here) -> None:
    _, told, begun = ask(here.port, "POST", "/v1/runs", {"argv": SLEEP, "wait": False})
    assert told["location"] == f"/v1/runs/{begun['id']}"
    eventually(lambda: ask(here.port, "GET", f"/v1/runs/{begun['id']}")[2]["state"] == "running")
    assert ask(here.port, "DELETE", f"/v1/runs/{begun['id']}")[0] == 202
    found = ask(here.port, "GET", f"/v1/runs/{begun['id']}?wait=true")[2]
    assert found["outcome"]["status"] == "KILLED_KILL" and "the service" not in found["reason"]
    assert ask(here.port, "DELETE", f"/v1/runs/{begun['id']}")[0] == 204
    assert ask(here.port, "GET", f"/v1/runs/{begun['id']}")[0] == 404


# ---- boxes


def test_a_box_is_what_it_is_in_the_library(client: Client) -> None:
    with client.open() as box:
        box.put("data.txt", b"41\xff\n")
        assert box.get("data.txt") == b"41\xff\n"
        assert box.run(["sh", "-c", "mkdir d; echo new > d/f; rm -f nothing; pwd"]).ok
        assert [row["name"] for row in box.files()] == ["d", "data.txt"]
        assert [row["name"] for row in box.files("d")] == ["f"]
        assert {change.path for change in box.changes()} >= {"data.txt", "d/f"}
        assert "+new" in box.diff() and "+new" in box.diff("d/f") and "+new" not in box.diff("data.txt")
        server = box.start(["sh", "-c", "echo up; cat"])
        eventually(lambda: server.stdout == b"up\n")
        server.signal(signal.SIGTERM)
        assert server.wait(PATIENCE_S).status == "KILLED_TERM"
        with pytest.raises(SandboxError, match="could not be read"):
            box.get("missing")
    with pytest.raises(UsageError, match="no such box"):
        box.get("data.txt")


def test_checkpoints_rollback_discard_and_parking(client: Client) -> None:
    with client.open() as box:
        box.put("f", b"one")
        first = box.create_checkpoint("first")
        box.put("f", b"two")
        assert box.rollback(first) >= 1 and box.get("f") == b"one"
        assert [each["name"] for each in box.checkpoints()] == ["first"]
        box.park()
        assert client.connection.json("GET", f"/v1/boxes/{box.id}")["state"] == "parked"
        assert box.get("f") == b"one", "it opens by itself"
        box.discard()
        assert box.changes() == ()
        with pytest.raises(SandboxError):
            box.rollback("no-such-checkpoint")
        box.remove_checkpoint(first)
        assert box.checkpoints() == []
        with pytest.raises(SandboxError, match="no checkpoint nosuch"):
            box.remove_checkpoint("nosuch")


def test_a_workspace_is_changed_by_a_commit_alone(client: Client, workspace: Path) -> None:
    with client.open(workspace="project") as box:
        box.run(["sh", "-c", "echo changed > kept.txt; echo new > other.txt"])
        assert (workspace / "kept.txt").read_text() == "as it was\n"
        assert sorted(change.path for change in box.changes()) == ["kept.txt", "other.txt"]
        box.commit(["other.txt"])
        assert (workspace / "other.txt").read_text() == "new\n"
        (workspace / "kept.txt").write_text("by somebody else\n")
        with pytest.raises(ConflictError):
            box.commit()
        assert (workspace / "kept.txt").read_text() == "by somebody else\n"
        box.commit(on_conflict="mine")
        assert (workspace / "kept.txt").read_text() == "changed\n"


# ---- bundles and the service itself


def test_a_bundle_is_signed_and_its_verdict_told(here: Here, client: Client) -> None:
    done = client.run(["echo", "proof"], bundle=True)
    assert done.bundle_problem == ""
    made = client.bundle_of(done.run_id)
    assert client.connection.json("POST", "/v1/bundles/verify", {"bundle": made})["holds"] is True
    made["verdict"]["payload"] = made["verdict"].get("payload", "")[::-1]
    broken = {**made, "violations": [{"step": 1}]}
    assert client.connection.json("POST", "/v1/bundles/verify", {"bundle": broken})["holds"] is False
    assert len(client.connection.json("GET", "/v1/key")["public_key"]) == 64


def test_a_run_has_not_ended_before_its_bundle_is_there(here: Here, client: Client, monkeypatch: Any) -> None:
    runs = here.service.runs
    sign = runs._sign
    states = []

    def swept_meanwhile(*given: Any) -> Any:
        states.extend(run.state for run in runs.living() if run.id == given[-1])
        asyncio.run_coroutine_threadsafe(runs.sweep(3600), here.loop).result(PATIENCE_S)
        return sign(*given)

    monkeypatch.setattr(runs, "_sign", swept_meanwhile)
    done = client.run(["true"], bundle=True)
    assert states == ["running"] and client.bundle_of(done.run_id)["verdict"]


def test_figures_health_and_what_may_be_picked(here: Here, client: Client) -> None:
    client.run(["true"])
    status, told, text = ask(here.port, "GET", "/metrics")
    assert status == 200 and told["content-type"].startswith("text/plain")
    lines = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#"))
    assert float(lines['ringfence_service_runs_total{policy="default",status="OK"}']) >= 1
    assert ask(here.port, "GET", "/healthz")[2] == {"status": "ok"}
    rows = ask(here.port, "GET", "/v1/policies")[2]
    assert {row["name"] for row in rows["policies"]} == {"default", "watched"}
    assert rows["workspaces"] == [{"name": "project", "commit": True}]


def test_all_that_happens_is_one_stream(here: Here, client: Client, place: Path) -> None:
    stream = _stream(here, "/v1/events")
    client.run(["cat", f"{place}/shown/answer"], "watched")
    found = next(each for each in _read_events(stream) if each[1] == "attempt" and each[2]["kind"] == "violation")
    assert "answer" in found[2]["details"]["path"]
    picture = next(each for each in _read_events(stream) if each[1] == "picture")[2]
    assert picture["service"]["state"] == "ok" and picture["runs"]
    stream.close()


# ---- how much


def test_quotas_the_line_and_when_to_come_again(tmp_path: Path) -> None:
    rows = ({"name": "one", "sandboxes": 1}, {"name": "few", "runs_per_minute": 2},
            {"name": "small", "memory_bytes": "64M"})  # fmt: skip
    path, tokens = token_file(tmp_path, *rows)
    with running(settings(tmp_path, tokens=path, queue=1)) as here:
        begin = {"argv": SLEEP, "wait": False}
        first = ask(here.port, "POST", "/v1/runs", begin, token=tokens["one"])[2]
        second = ask(here.port, "POST", "/v1/runs", begin, token=tokens["one"])[2]
        eventually(lambda: _state(here, first, tokens) == "running")
        assert _state(here, second, tokens) == "queued"
        status, told, found = ask(here.port, "POST", "/v1/runs", begin, token=tokens["one"])
        assert status == 429 and int(told["retry-after"]) >= 1 and found["error"]["type"] == "Full"
        ask(here.port, "DELETE", f"/v1/runs/{first['id']}", token=tokens["one"])
        eventually(lambda: _state(here, second, tokens) == "running")
        ask(here.port, "DELETE", f"/v1/runs/{second['id']}", token=tokens["one"])

        def few() -> int:
            return ask(here.port, "POST", "/v1/runs", {"argv": ["true"]}, token=tokens["few"])[0]

        assert [few(), few(), few()] == [200, 200, 429]
        status, _, found = ask(here.port, "POST", "/v1/runs", {"argv": ["true"]}, token=tokens["small"])
        assert status == 422 and "never fits" in found["error"]["message"]
        less = {"argv": ["true"], "tighten": {"mem_bytes": "32M"}}
        assert ask(here.port, "POST", "/v1/runs", less, token=tokens["small"])[0] == 200
        impatient = Client(here.address, token=tokens["few"], patience_s=0)
        with pytest.raises(UnavailableError):
            impatient.run(["true"])


def _state(here: Here, run: dict[str, Any], tokens: dict[str, str]) -> str:
    return str(ask(here.port, "GET", f"/v1/runs/{run['id']}", token=tokens["one"])[2]["state"])


def test_a_box_that_nobody_uses_is_parked_and_one_that_nobody_comes_back_to_is_removed(tmp_path: Path) -> None:
    with running(settings(tmp_path, idle_s=0.4)) as here, Client(here.address, token="") as client:
        box = client.open()
        box.put("f", b"kept")
        eventually(lambda: client.connection.json("GET", f"/v1/boxes/{box.id}")["state"] == "parked")
        eventually(lambda: here.service.admission.running == 0)
        assert box.get("f") == b"kept"
        here.service.settings.__dict__["keep_s"] = 0.5
        eventually(lambda: ask(here.port, "GET", f"/v1/boxes/{box.id}")[0] == 404)
        eventually(lambda: not os.listdir(tmp_path / "state" / "boxes"))


# ---- the end and the next life


def test_an_end_loses_no_result_and_the_next_life_finds_all(tmp_path: Path) -> None:
    config = tmp_path / "service.yaml"
    config.write_text("sandboxes: 1\ndrain_s: 1\nspare_bytes: 1\npolicies: {default: {mem_bytes: 128M}}\n")
    with command(tmp_path, "--config", str(config)) as (address, process), Client(address, token="") as client:
        box = client.open()
        box.put("f", b"kept")
        box.park()
        runs = [client.connection.json("POST", "/v1/runs", {"argv": argv, "wait": False})["id"]
                for argv in (["echo", "first"], SLEEP, ["echo", "third"])]  # fmt: skip
        eventually(lambda: client.connection.json("GET", f"/v1/runs/{runs[1]}")["state"] == "running")
        process.terminate()
        assert process.wait(2 * PATIENCE_S) == 0
    with command(tmp_path, "--config", str(config)) as (address, process), Client(address, token="") as client:
        found = [client.connection.json("GET", f"/v1/runs/{each}", query={"wait": "true"}) for each in runs]
        assert found[0]["outcome"]["stdout"] == "first\n"
        assert found[1]["outcome"]["status"] == "KILLED_KILL"
        assert "the service was told to end" in found[1]["outcome"]["reason"] == found[1]["reason"]
        assert found[2]["outcome"]["stdout"] == "third\n", "it had not begun, and was begun by the next"
        assert client.attach(box.id).get("f") == b"kept"
        client.attach(box.id).park()  # there is one place
        _kill_hard(client, process)
    with command(tmp_path, "--config", str(config)) as (address, _), Client(address, token="") as client:
        lost = [run for run in _stored(tmp_path) if run["state"] == "lost"]
        assert len(lost) == 1 and client.connection.json("GET", f"/v1/runs/{lost[0]['id']}")["error"]["message"]
        assert client.attach(box.id).get("f") == b"kept"
        client.attach(box.id).close()
    assert not os.listdir(tmp_path / "state" / "boxes")


MARK = "7311.25"


def _kill_hard(client: Client, process: Any) -> None:
    """In the middle of a run: nothing of the sandbox is left."""
    begun = client.connection.json("POST", "/v1/runs", {"argv": ["sleep", MARK], "wait": False})["id"]
    eventually(lambda: client.connection.json("GET", f"/v1/runs/{begun}")["state"] == "running")
    eventually(_sleepers)
    process.kill()
    process.wait()
    eventually(lambda: not _sleepers())


def _sleepers() -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes() == f"sleep\0{MARK}\0".encode():
                found.append(pid)
        except OSError:
            continue
    return found


def _stored(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (folder / "state" / "runs").glob("*.json")]


def test_many_clients_at_once(here: Here) -> None:
    failed: list[str] = []

    def one(number: int) -> None:
        try:
            with Client(here.address, token="", patience_s=4 * PATIENCE_S) as client:
                said = client.run_source(f"print({number})").stdout
                if said != f"{number}\n".encode():
                    failed.append(f"{number}: {said!r}")
        except Exception as error:
            failed.append(f"{number}: {error!r}")

    threads = [threading.Thread(target=one, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    began = time.monotonic()
    eventually(lambda: here.service.admission.running == 0, told=lambda: time.monotonic() - began)


def test_a_policy_that_can_not_be_enforced_ends_the_start_in_words(
    ringfence_command: list[str], tmp_path: Path
) -> None:
    config = tmp_path / "service.yaml"
    config.write_text("policies: {default: {isolation: none, warm: 1, network: none}}\n")
    words = [*ringfence_command, "serve", "--config", str(config), "--port", "0", "--state", str(tmp_path / "state")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "isolation none can't enforce this policy: " in done.stderr
