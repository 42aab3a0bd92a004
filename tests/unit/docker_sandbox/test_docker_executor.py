"""The executor against an engine that is none: every scenario of the specification with its metric, line and result."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.unit.docker_sandbox.fake_client import FakeChannel, FakeClient, FakeContainer, answers, frame, reply

from ringfence.container import orphans, seccomp_profile
from ringfence.container.api import Listed
from ringfence.docker_sandbox import applied_table, conversation, one_run, warm_pool
from ringfence.docker_sandbox import executor as executor_module
from ringfence.docker_sandbox import executor as module
from ringfence.docker_sandbox.config import EMERGENCY, DockerConfig
from ringfence.docker_sandbox.conversation import Conversation
from ringfence.docker_sandbox.executor import DockerExecutor
from ringfence.docker_sandbox.result import StrategyStatus
from ringfence.errors import SetupError, UnavailableError, UsageError
from ringfence.evidence import strictjson
from ringfence.metrics import life_log, recorder
from ringfence.model.limits import SyscallProfile
from ringfence.model.outcome import Enforcement

Made = Callable[..., DockerExecutor]


class Lines(logging.Handler):
    """What was logged, by event."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, object] = getattr(record, "ringfence", {})
        self.told.append({"message": record.getMessage(), "level": record.levelname, **fields})

    def of(self, event: str) -> list[dict[str, object]]:
        return [line for line in self.told if line["event"] == event]


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, handler = logging.getLogger(life_log.LOGGER), Lines()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    monkeypatch.setattr(applied_table.applied, "read_back", lambda *_: {})
    monkeypatch.delenv(EMERGENCY, raising=False)
    recorder.enable()
    return FakeClient()


@pytest.fixture
def made(client: FakeClient) -> Iterator[Made]:
    every = []

    def make(**values: object) -> DockerExecutor:
        given = {"validate": False, "output_dir": "", "warm_containers": 0, **values}
        validator = given.pop("validator", None)
        executor = DockerExecutor(DockerConfig(**given), connect=lambda _: client, validator=validator,  # type: ignore[arg-type]
                                  guard=lambda _: client)  # fmt: skip
        every.append(executor)
        return executor

    yield make
    for executor in every:
        executor.close()


class Refuses:
    """A validator that takes nothing."""

    is_valid = False
    errors = ("line 2: os.system runs programs\x1b",)
    dangerous_imports, file_operations, network_operations = ["os"], [], ["socket"]

    def validate(self, code: str) -> Refuses:
        return self


def test_a_strategy_is_run_and_its_container_removed(made: Made, client: FakeClient, lines: Lines) -> None:
    result = made().execute("def run(data): ...", {"a": 1}, trace_id="t-1")
    assert result.success and result.metrics == {"code": "def run(data): ...", "data": '{"a": 1}'}
    assert (result.container_id, result.status, result.isolation) == ("c1", StrategyStatus.OK, "container")
    assert result.memory_used_mb == 40 and result.cpu_percent > 0 and result.log == "printed\n"
    assert client.containers == {} and result.error_message is None and not client.guarded
    events = [line["event"] for line in lines.told]
    assert events == ["engine_connected", "container_created", "container_started", "execution_started",
                      "container_removed", "execution_ended"]  # fmt: skip
    assert {line["trace_id"] for line in lines.told[3:]} == {"t-1"} == {result.trace_id}


def test_execute_strategy_returns_the_result_as_a_dict(made: Made) -> None:
    executor = made()
    told = executor.execute_strategy("x", [1])
    assert told["success"] is True and told["metrics"] == {"code": "x", "data": "[1]"}
    assert {*told} == {*asdict(executor.execute("x"))}  # type: ignore[call-overload]
    assert [*told][:8] == ["success", "metrics", "container_id", "execution_time", "memory_used_mb", "cpu_percent",
                           "error_message", "security_rejections"]  # fmt: skip


def test_the_methods_of_the_specification_work_one_by_one(made: Made, client: FakeClient) -> None:
    executor = made()
    container = executor._create_container("code")
    assert container in client.containers
    told = executor._run_container(container, 5)
    assert told["metrics"] == {"code": "code", "data": "null"} and told["status"] is StrategyStatus.OK
    executor._cleanup_container(container)
    assert client.containers == {}
    executor._cleanup_container("unknown")
    with pytest.raises(UsageError, match="not a container of this executor"):
        executor._run_container(container, 5)


def test_a_container_has_all_that_the_configuration_says(made: Made, client: FakeClient, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text('{"defaultAction": "SCMP_ACT_ERRNO"}')
    executor = made(memory_limit="64m", memory_swap_limit="96m", cpu_limit=0.25, pids_limit=9, nofile_limit=33,
                    runtime="runsc", user="1000:5", tmpfs_path="/scratch", tmpfs_size="5m", tmpfs_options="rw,noexec",
                    log_size="9k", seccomp_profile=str(profile))  # fmt: skip
    spec = client.containers[executor._create_container("x")].spec
    assert (spec.memory_bytes, spec.memory_swap_bytes, spec.cpus, spec.pids) == (64 << 20, 96 << 20, 0.25, 9)
    assert (spec.read_only, spec.network_mode, spec.user, spec.runtime) == (True, "none", "1000:5", "runsc")
    assert spec.tmpfs["/scratch"] == f"rw,noexec,nodev,mode=1777,size={5 << 20}" and spec.workdir == "/scratch"
    assert "uid=1000,gid=5" in spec.tmpfs["/input"] and "noexec" in spec.tmpfs["/output"]
    assert spec.ulimits["nofile"] == (33, 33) and spec.ulimits["core"] == (1, 1)
    assert spec.log_bytes == 9 << 10 and spec.stdin
    assert spec.cap_drop == ("ALL",) and spec.no_new_privileges and "SCMP_ACT_ERRNO" in spec.seccomp
    assert spec.labels[orphans.OWNER] == orphans.owner() and spec.labels[orphans.KIND] == "strategy"


def test_a_profile_that_is_no_json_is_refused_by_its_key(made: Made, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{")
    with pytest.raises(UsageError, match=r"docker\.seccomp_profile"):
        made(seccomp_profile=str(tmp_path / "p.json")).execute("x")


def test_a_rejection_comes_before_any_container(made: Made, client: FakeClient, lines: Lines) -> None:
    before = recorder.value("security_rejections_total", reason="network_operations")
    result = made(validator=Refuses()).execute("import os\nos.system('rm -rf /')")
    assert (result.success, result.status, client.calls) == (False, StrategyStatus.REJECTED, [])
    assert result.security_rejections == ["line 2: os.system runs programs\\x1b"]
    assert "os.system runs programs" in (result.error_message or "")
    assert recorder.value("security_rejections_total", reason="network_operations") == before + 1
    (line,) = lines.of("strategy_rejected")
    assert line["reasons"] == ["dangerous_imports", "network_operations"] and "rm -rf" in str(line["snippet"])


def test_without_an_engine_the_strategy_is_not_run(made: Made, client: FakeClient, lines: Lines) -> None:
    client.gone = True
    executor = made()
    result = executor.execute("x")
    assert (result.success, result.status) == (False, StrategyStatus.UNAVAILABLE)
    assert lines.of("docker_unavailable")[0]["level"] == "ERROR"
    client.gone = False
    assert executor.execute("x").success, "it recovers"


@pytest.mark.system
@pytest.mark.privileges
@pytest.mark.parametrize("level", ["strict", "process"])
def test_a_fallback_runs_at_a_level_of_ours_and_says_so(
    made: Made, client: FakeClient, lines: Lines, level: str, tmp_path: Path
) -> None:
    client.gone = True
    before = recorder.value("docker_fallback_total", level=level)
    executor = made(fallback_to_direct=True, fallback_level=level, memory_limit="256m")
    result = executor.execute("def run(data):\n    print('hello')\n    return {'sum': sum(data)}", [1, 2])
    assert result.success and result.metrics == {"sum": 3} and result.isolation == level, result.error_message
    assert lines.of("docker_fallback")[0]["message"] == f"Docker unavailable, falling back to {level.upper()} (UNSAFE)"
    assert recorder.value("docker_fallback_total", level=level) == before + 1
    assert "memory" in result.enforced and result.log == "hello\n" and result.execution_time > 0
    (tmp_path / "in.csv").write_text("7")
    assert executor.execute("def run(path): return {'x': open(path).read()}", tmp_path / "in.csv").metrics == {"x": "7"}
    failed = executor.execute("def run(data): raise ValueError('no')")
    assert (failed.status, failed.error_message) == (StrategyStatus.FAILED, "ValueError: no")
    slow = executor.execute("def run(data):\n    while True: pass", timeout=1)
    assert slow.status is StrategyStatus.TIMEOUT and not slow.metrics
    assert executor.execute("import os\ndef run(data): os._exit(0)").status is StrategyStatus.FAILED
    forged = ("import os\ndef run(data):\n    for d in range(3, 9):\n        try: os.write(d, b"
              "'x' * 99)\n        except OSError: pass")
    assert executor.execute(forged).status in (StrategyStatus.BAD_RESULT, StrategyStatus.FAILED)


@pytest.mark.system
@pytest.mark.privileges
@pytest.mark.parametrize("level", ["strict", "process"])
@pytest.mark.parametrize(("attack", "control"), [
    ("open(data + '/evil', 'w').write('x')", "open('evil', 'w').write('x')"),
    ("open(data + '/secret').read()", "open('/dev/null').read()"),
    ("__import__('socket').socket()", "__import__('socket')"),
    ("__import__('os').fork()", "__import__('threading').Thread(target=print).start()"),
    ("__import__('os').execv('/bin/true', ['true'])", "__import__('os')"),
], ids=["writes", "reads", "socket", "fork", "exec"])  # fmt: skip
def test_a_fallback_holds_what_the_container_would(
    made: Made, client: FakeClient, tmp_path: Path, level: str, attack: str, control: str
) -> None:
    (tmp_path / "secret").write_text("x")
    client.gone = True
    executor = made(fallback_to_direct=True, fallback_level=level, memory_limit="256m")
    assert executor.execute(f"def run(data):\n    {control}\n    return {{}}", str(tmp_path)).success
    result = executor.execute(f"def run(data):\n    {attack}\n    return {{}}", str(tmp_path))
    assert result.status is StrategyStatus.FAILED and "Error" in (result.error_message or "")
    assert [each.name for each in tmp_path.iterdir()] == ["secret"] and result.isolation == level


@pytest.mark.system
def test_a_level_that_can_not_be_had_is_no_reason_to_run_bare(
    made: Made, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UnavailableError("no user namespaces")

    monkeypatch.setattr(module, "run_at_level", refuse)
    client.gone = True
    result = made(fallback_to_direct=True).execute("x")
    assert result.status is StrategyStatus.UNAVAILABLE and "no user namespaces" in (result.error_message or "")


def test_the_emergency_switch_stops_all_containers(
    made: Made, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = made(enabled=True)
    assert executor.execute("x").success
    monkeypatch.setenv(EMERGENCY, "false")
    calls = len(client.calls)
    result = executor.execute("x")
    executor.warm_up()
    assert (result.status, len(client.calls)) == (StrategyStatus.DISABLED, calls)
    assert EMERGENCY in (result.error_message or "")
    monkeypatch.delenv(EMERGENCY)
    assert executor.execute("x").success
    assert made(enabled=False).execute("x").status is StrategyStatus.DISABLED


def test_a_missing_image_is_pulled_once(made: Made, client: FakeClient, lines: Lines) -> None:
    client.images, client.registry = set(), {"python:3.10-slim"}
    assert made().execute("x").success
    assert client.calls.count("create") == 2 and client.calls.count("pull") == 1
    assert lines.of("image_missing") and lines.of("image_pulled")


@pytest.mark.parametrize("pull", [True, False])
def test_an_image_that_is_nowhere_is_a_failed_creation(made: Made, client: FakeClient, pull: bool) -> None:
    client.images = set()
    before = recorder.value("container_creation_failed_total", reason="image")
    result = made(pull=pull).execute("x")
    assert (result.status, result.success) == (StrategyStatus.CREATION_FAILED, False)
    assert client.calls.count("pull") == pull
    assert recorder.value("container_creation_failed_total", reason="image") == before + 1


def test_a_failed_creation_is_counted_and_leaves_nothing(made: Made, client: FakeClient, lines: Lines) -> None:
    before = recorder.value("container_creation_failed_total", reason="create")
    client.fails = {"start": [SetupError("start the container", "no such runtime")]}
    result = made().execute("x")
    assert result.status is StrategyStatus.CREATION_FAILED and "no such runtime" in (result.error_message or "")
    assert client.containers == {} and lines.of("container_creation_failed")[0]["level"] == "ERROR"
    assert recorder.value("container_creation_failed_total", reason="create") == before + 1


def test_a_container_whose_python_does_not_begin_tells_its_log(made: Made, client: FakeClient) -> None:
    client.ready = b""
    result = made().execute("x")
    assert result.status is StrategyStatus.CREATION_FAILED
    assert "python3: not \\x1b found" in (result.error_message or "") and client.containers == {}


def test_a_strategy_that_takes_too_long_is_killed(
    made: Made, client: FakeClient, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_run, "SAMPLE_S", 0.1)
    before = [recorder.value("execution_timeout_total", isolation="container"),
              recorder.value("resource_limit_exceeded_total", isolation="container", resource="cpu")]  # fmt: skip
    client.play = lambda container, _head, _data: container.say(frame(reply({"a": 1})[:-2]))
    result = made().execute("x", timeout=1)
    assert (result.status, result.metrics) == (StrategyStatus.TIMEOUT, {}), "a part of a result is none"
    assert "kill" in client.calls and client.calls.count("stats") > 2 and client.containers == {}
    after = [recorder.value("execution_timeout_total", isolation="container"),
             recorder.value("resource_limit_exceeded_total", isolation="container", resource="cpu")]  # fmt: skip
    assert after == [before[0] + 1, before[1] + 1]
    assert recorder.value("execution_timeout_duration_seconds_count", isolation="container") >= 1
    assert lines.of("execution_timeout") and lines.of("resource_limit_exceeded")[0]["resource"] == "cpu"


def test_one_that_never_stops_talking_has_no_more_time(
    made: Made, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_run, "SAMPLE_S", 0.1)

    def talk(container: FakeContainer, _head: object, _data: bytes) -> None:
        while True:
            container.say(frame(b"x" * 60_000, 2))

    client.play = talk
    result = made().execute("x", timeout=1)
    assert result.status is StrategyStatus.TIMEOUT and client.calls.count("stats") > 2


def test_a_fork_of_the_caller_owns_none_of_its_containers(
    made: Made, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = made()
    executor._create_container("x")
    monkeypatch.setattr(executor, "_owner", executor._owner + 1)
    executor.close()
    assert len(client.containers) == 1
    with pytest.raises(UsageError, match="another process"):
        executor.execute("x")
    monkeypatch.undo()
    executor.close()
    assert client.containers == {}


def test_memory_that_is_used_up_is_a_limit(made: Made, client: FakeClient, lines: Lines) -> None:
    def die(container: FakeContainer, _head: object, _data: bytes) -> None:
        container.state["OOMKilled"] = True
        container.end()

    before = recorder.value("resource_limit_exceeded_total", isolation="container", resource="memory")
    client.play = die
    result = made(memory_limit="64m").execute("x")
    assert result.status is StrategyStatus.RESOURCE_LIMIT and "64m" in (result.error_message or "")
    assert recorder.value("resource_limit_exceeded_total", isolation="container", resource="memory") == before + 1
    assert lines.of("resource_limit_exceeded")[0]["resource"] == "memory"


def test_one_that_ends_without_a_result_has_failed(made: Made, client: FakeClient) -> None:
    client.play = lambda container, _head, _data: container.end()
    result = made().execute("x")
    assert result.status is StrategyStatus.FAILED and "137" in (result.error_message or "")


@pytest.mark.parametrize("said", [
    frame(b"\xff" * 64), b"no frame at all, but long enough for one", frame(reply(b"[1]")), frame(reply(b"{,}")),
    frame(reply(b'{"a": 1, "a": 2}')), frame(reply(b'{"a": NaN}')), frame(reply(b"[" * 10_000)),
    frame(reply(b"{}", bytes=-1)), frame(reply(b"{}", bytes=True)), frame(reply(b"{}", bytes=1 << 60)),
    frame((9).to_bytes(8, "big") + b"[1,2,3,4]"), frame((3).to_bytes(8, "big") + b"{,}"),
    b"".join(frame(b"x" * 60_000) for _ in range(4)), b"".join(frame(reply(b"x" * 50_000)) for _ in range(4)),
])  # fmt: skip
def test_nothing_that_comes_out_is_trusted(made: Made, client: FakeClient, said: bytes) -> None:
    def play(container: FakeContainer, _head: object, _data: bytes) -> None:
        container.say(said)
        container.end()

    client.play = play
    result = made(result_limit="100k").execute("x")
    assert result.status in (StrategyStatus.BAD_RESULT, StrategyStatus.FAILED) and result.metrics == {}
    assert client.containers == {}


def test_a_strategys_own_error_is_told(made: Made, client: FakeClient) -> None:
    client.play = answers(b"", ok=False, error="ValueError: no")
    assert made().execute("x").error_message == "ValueError: no"
    client.play = answers(b"", ok=False)
    assert made().execute("x").error_message == "it failed without an error message"


def test_an_engine_that_is_lost_in_the_middle_is_told_and_recovered_from(made: Made, client: FakeClient) -> None:
    def crash(container: FakeContainer, _head: object, _data: bytes) -> None:
        client.gone = True
        container.end()

    client.play = crash
    executor = made()
    result = executor.execute("x")
    assert result.status is StrategyStatus.UNAVAILABLE and executor.monitor.orphans == {"c1"}
    client.gone, client.play = False, answers({})
    assert executor.execute("x").success
    assert eventually(lambda: not executor.monitor.orphans) and client.containers == {}


def test_what_can_not_be_removed_is_tried_again_and_told(made: Made, client: FakeClient, lines: Lines) -> None:
    executor = made()
    executor._remover._first_s = 0.05
    client.stuck = True
    for _ in range(4):
        assert executor.execute("x").success
    (alert,) = lines.of("orphaned_containers_alert")
    assert alert["level"] == "ERROR" and alert["orphaned_containers"] == 4
    client.stuck = False
    assert eventually(lambda: recorder.value("orphaned_containers_alert") == 0)
    assert eventually(lambda: not executor.monitor.orphans and client.containers == {})
    assert recorder.value("orphaned_containers") == 0


def test_orphans_of_earlier_runs_are_removed_at_the_first_use(made: Made, client: FakeClient, lines: Lines) -> None:
    pid, start, _, *rest = orphans.owner().split(":")
    dead = {orphans.OWNER: ":".join((pid, start, "0" * 8, *rest)), orphans.KIND: "strategy"}
    client.strangers = [Listed(id="old", name=orphans.new_name(), labels=dead, state="exited")]
    executor = made()
    assert executor.execute("x").success
    assert client.strangers == [] and lines.of("orphans_removed")[0]["removed"] == 1
    client.strangers = [Listed(id="old", name=orphans.new_name(), labels=dead, state="exited")]
    client.fails = {"remove": [SetupError("remove the container", "busy")] * 2}
    assert executor.cleanup_orphaned_containers() == 0 and executor.monitor.orphans == {"old"}
    assert executor.cleanup_orphaned_containers() == 1 and not executor.monitor.orphans


def test_warm_containers_stand_by_and_each_is_used_once(made: Made, client: FakeClient) -> None:
    with made(warm_containers=2, max_containers=3) as executor:
        assert eventually(lambda: executor._pool is not None and len(executor._pool._warm) == 2)
        used = [executor.execute("x").container_id for _ in range(6)]
        assert len({*used}) == 6 and used[0] in ("c1", "c2")
        assert eventually(lambda: executor._pool is not None and len(executor._pool._warm) == 2)
    assert client.containers == {}
    with pytest.raises(UsageError, match="closed"):
        executor.execute("x")
    executor.close()


def test_no_more_stand_by_than_were_asked_for(made: Made, client: FakeClient) -> None:
    for _ in range(20):
        with made(warm_containers=2, max_containers=9) as executor:
            for _ in range(6):
                executor.execute("x")
            assert executor._pool is not None and len(executor._pool._warm) <= 2
            assert eventually(lambda: executor._pool is not None and len(executor._pool._warm) == 2)


def test_a_warm_one_that_died_is_not_used(made: Made, client: FakeClient) -> None:
    executor = made(warm_containers=1)
    executor.warm_up()
    assert eventually(lambda: executor._pool is not None and len(executor._pool._warm) == 1)
    client.containers["c1"].end()
    result = executor.execute("x")
    assert result.success and result.container_id != "c1"


def test_there_are_never_more_than_may_be(made: Made, client: FakeClient) -> None:
    most, lock, seen = 3, threading.Lock(), []

    def play(container: FakeContainer, _head: object, _data: bytes) -> None:
        with lock:
            seen.append(len(client.containers))
        container.say(frame(reply({})))

    client.play = play
    executor = made(warm_containers=2, max_containers=most)
    threads = [threading.Thread(target=executor.execute, args=("x",)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    executor.close()
    assert len(seen) == 20 and max(seen) <= most and client.containers == {}


def test_who_waits_for_a_container_is_told_of_the_close(made: Made, client: FakeClient) -> None:
    executor = made(max_containers=1)
    executor._create_container("x")
    told: list[Exception] = []

    def wait() -> None:
        try:
            executor._create_container("y")
        except UsageError as error:
            told.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert eventually(lambda: executor._pool is not None and len(executor._pool._waiting) == 1)
    executor.close()
    thread.join()
    assert "closed" in str(told) or client.containers == {}


@pytest.mark.parametrize("call", ["create", "created", "attach", "start", "inspect"])
def test_an_interrupt_at_any_call_leaves_no_container(made: Made, client: FakeClient, call: str) -> None:
    client.fails = {call: [KeyboardInterrupt()]}
    executor = made()
    with pytest.raises(KeyboardInterrupt):
        executor.execute("x")
    assert client.containers == {}
    assert executor.execute("x").success, "its place is free again"


def test_an_interrupt_while_a_strategy_runs_leaves_no_container(made: Made, client: FakeClient) -> None:
    client.play = lambda container, _head, _data: container.end()
    client.fails = {"wait": [KeyboardInterrupt()]}
    with pytest.raises(KeyboardInterrupt), made() as executor:
        executor.execute("x")
    assert client.containers == {}


def test_containers_are_kept_where_the_configuration_says_so(made: Made, client: FakeClient, lines: Lines) -> None:
    executor, active = made(cleanup_on_exit=False), recorder.value("active_containers", isolation="container")
    assert executor.execute("x").success
    assert recorder.value("active_containers", isolation="container") == active, "one that is kept does not run"
    client.fails = {"kill": [SetupError("kill the container", "busy")]}
    assert executor.execute("x").success
    assert [*client.containers] == ["c1", "c2"] and "kill" in client.calls and len(lines.of("container_kept")) == 2
    client.containers.clear()


def test_without_statistics_none_are_asked_for(made: Made, client: FakeClient) -> None:
    assert made(export_container_stats=False).execute("x").memory_used_mb == 0
    assert "stats" not in client.calls
    client.fails = {"stats": [SetupError("measure the container", "no")]}
    assert made().execute("x").success


def test_an_engine_that_hangs_while_it_measures_holds_nobody_up(
    made: Made, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_run, "_STATS_S", 0.01)
    answered, asked = threading.Event(), []
    monkeypatch.setattr(client, "stats", lambda _: asked.append(1) or answered.wait(40) or {})
    result = made().execute("x")
    assert result.success and asked == [1] and not answered.is_set()
    answered.set()


def test_results_are_kept_in_a_folder(made: Made, tmp_path: Path, lines: Lines) -> None:
    folder = tmp_path / "out"
    result = made(output_dir=str(folder)).execute("x", trace_id="abc")
    kept = json.loads((folder / "abc.json").read_text())
    assert kept["metrics"] == result.metrics and kept["trace_id"] == "abc"
    (tmp_path / "file").write_text("")
    assert made(output_dir=str(tmp_path / "file" / "x")).execute("x").success
    assert lines.of("result_not_kept")


def test_data_may_be_a_file(made: Made, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("1,2")
    assert made().execute("x", tmp_path / "in.csv").metrics["data"] == "1,2"


def test_large_data_and_much_output_at_once_do_not_wait_for_each_other(made: Made, client: FakeClient) -> None:
    def play(container: FakeContainer, _head: object, data: bytes) -> None:
        container.say(frame(b"p" * 500_000, 2) + frame(reply({"n": len(data)})))

    client.play = play
    result = made().execute("x", "y" * 3_000_000)
    assert result.metrics == {"n": 3_000_002} and len(result.log) == 4000


@pytest.mark.parametrize("wrong", [
    {"data": object()}, {"data": float("nan")}, {"data": "x" * 2000}, {"code": b"x"}, {"trace_id": "../x"},
    {"timeout": 0}, {"timeout": True}, {"data": Path("/none")}, {"data": Path("/")},
])  # fmt: skip
def test_what_the_caller_gets_wrong_is_raised(made: Made, client: FakeClient, wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        made(data_limit="1k").execute(**{"code": "x", **wrong})  # type: ignore[arg-type]
    assert client.calls == []


def test_start_has_a_bound(made: Made, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_pool, "START_S", 0.1)
    client.ready = b"rea"
    assert made().execute("x").status is StrategyStatus.CREATION_FAILED


@pytest.mark.parametrize("said", [b"", reply({"a": "x" * 90_000})[:-2]], ids=["nothing else", "most of a result"])
def test_one_that_talks_without_end_has_a_deadline_too(
    made: Made, client: FakeClient, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    def talk(container: FakeContainer, _head: object, _data: bytes) -> None:
        container.say(frame(said))
        give_up = time.monotonic() + 15  # without a deadline it would be its own end that is told
        while time.monotonic() < give_up:
            container.say(frame(b"x" * 60_000, 2) * 10)
        container.end()

    received = FakeChannel.receive

    def slowly(self: FakeChannel, at_most: int = 1 << 16) -> bytes:
        time.sleep(0.001)  # so that there is always more to read
        return received(self, at_most)

    monkeypatch.setattr(FakeChannel, "receive", slowly)
    monkeypatch.setattr(one_run, "SAMPLE_S", 0.1)
    client.play = talk
    result = made(result_limit="100k").execute("x", timeout=1)
    assert result.status is StrategyStatus.TIMEOUT and client.containers == {}
    assert client.calls.count("stats") > 2, "it is measured meanwhile"


def test_the_head_of_an_answer_in_many_pieces_is_read_once(
    made: Made, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, received, parse = [], FakeChannel.receive, strictjson.parse
    monkeypatch.setattr(conversation.strictjson, "parse", lambda data: read.append(data) or parse(data))
    monkeypatch.setattr(FakeChannel, "receive", lambda self, at_most: received(self, min(at_most, 50)))
    client.play = answers({"a": "x" * 2000}, traceback="y" * 1000)
    assert made().execute("x").metrics == {"a": "x" * 2000}
    assert len(read) == 2, "its head, and the result"


@pytest.mark.parametrize("stream", [1, 2])
def test_a_warm_one_that_talks_without_end_is_not_open(stream: int) -> None:
    class Endless(FakeChannel):
        def receive(self, at_most: int = 1 << 16) -> bytes:
            return frame(b"x" * 50_000, stream)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert Conversation(FakeChannel(ours), 100_000).is_open(), "one that says nothing is"
        theirs.send(b"x")
        assert not Conversation(Endless(ours), 100_000).is_open()


@pytest.mark.parametrize("call", ["kill", "stats"])
def test_one_that_had_its_time_is_not_run_once_more_elsewhere(
    made: Made, client: FakeClient, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    ran = []
    monkeypatch.setattr(executor_module, "run_at_level", lambda *_: ran.append(1))
    client.play = lambda container, _head, _data: None
    client.fails[call] = [UnavailableError("the container engine does not answer: timed out", missing=("engine",))]
    result = made(fallback_to_direct=True).execute("x", timeout=1)
    assert result.status is StrategyStatus.TIMEOUT and ran == [] and client.containers == {}


def test_a_strategys_words_are_one_line_of_the_log(made: Made, client: FakeClient, lines: Lines) -> None:
    client.play = answers(b"", ok=False, error="no\n2026-01-01 ERROR root logged in \x1b[2J\u2028x")
    assert "\n" in (made().execute("x").error_message or "")
    told = str(lines.of("execution_ended")[0]["message"])
    assert told.isprintable() and "root logged in" in told


def test_the_profile_that_is_shipped_is_the_default(made: Made, client: FakeClient, tmp_path: Path) -> None:
    """Not the engine's own, under which programs, processes and sockets are open."""
    spec = client.containers[made()._create_container("x")].spec
    closed = json.loads(spec.seccomp)
    assert closed == seccomp_profile.as_data(SyscallProfile.TIGHT) and "close_the_rest" in spec.argv[-1]
    named = client.containers[made(seccomp_profile=seccomp_profile.FILE)._create_container("x")].spec
    assert named.argv == spec.argv, "by its name it is the same"
    network = client.containers[made(network_mode="bridge")._create_container("x")].spec
    assert json.loads(network.seccomp) == seccomp_profile.as_data(SyscallProfile.DEFAULT)
    (tmp_path / "own.json").write_text('{"defaultAction": "SCMP_ACT_ERRNO"}')
    own = client.containers[made(seccomp_profile=str(tmp_path / "own.json"))._create_container("x")].spec
    assert "close_the_rest" not in own.argv[-1], "who brings a profile means that one"
def test_what_an_engine_does_not_hold_is_told(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    client, executor_config = FakeClient(), DockerConfig(validate=False, output_dir="", warm_containers=0)
    entry = Enforcement(requested=1, applied=False, mechanism="none", details="cgroup v1 and rootless")
    monkeypatch.setattr(applied_table.applied, "read_back", lambda *_: {"memory": entry})
    with DockerExecutor(executor_config, connect=lambda _: client, guard=lambda _: client) as executor:
        result = executor.execute("x")
    assert result.enforced == {"memory": {"requested": 1, "applied": False, "mechanism": "none",
                                          "details": "cgroup v1 and rootless"}}  # fmt: skip
    assert lines.of("not_enforced")[0]["missing"] == {"memory": "cgroup v1 and rootless"}


def test_rules_of_a_project_are_the_validators(made: Made, client: FakeClient, tmp_path: Path) -> None:
    assert made(validate=True).execute("import os\nos.system('x')").status is StrategyStatus.REJECTED
    assert client.calls == []
    assert made(validate=True).execute("def run(data): return {}").success
    (tmp_path / "rules.yaml").write_text("no_such_key: 1\n")
    with pytest.raises(UsageError, match="no_such_key"):
        made(validate=True, validator_rules=str(tmp_path / "rules.yaml")).execute("x = 1")


def test_a_machine_whose_calls_are_not_known_is_refused(made: Made, client: FakeClient) -> None:
    client.info = lambda: {"Architecture": "vax"}  # type: ignore[method-assign]
    result = made().execute("x")
    assert result.status is StrategyStatus.CREATION_FAILED and "vax" in (result.error_message or "")
    assert made(network_mode="bridge").execute("x").success, "there the second filter is not used"


def test_all_that_is_open_is_closed_at_the_exit(made: Made, client: FakeClient) -> None:
    executor = made(warm_containers=1)
    executor.warm_up()
    assert eventually(lambda: executor._pool is not None and executor._pool._warm)
    module._close_all()
    assert client.containers == {} and executor._closed


def test_warming_up_without_an_engine_is_no_error(made: Made, client: FakeClient, lines: Lines) -> None:
    client.gone = True
    with made(warm_containers=1):
        assert lines.of("docker_unavailable")
    client.gone = False


@pytest.mark.parametrize("call", ["info", "list"])
def test_an_engine_that_answers_nonsense_is_told_by_the_execution(
    made: Made, client: FakeClient, lines: Lines, call: str
) -> None:
    nonsense = SetupError("ask the container engine", "the engine's answer can't be used: 7")
    client.fails = {call: [nonsense]}
    executor = made(warm_containers=1)
    executor.warm_up()
    assert lines.of("warm_container_failed")
    client.fails = {call: [nonsense]}
    if call == "info":
        assert executor.execute("x").status is StrategyStatus.CREATION_FAILED
    result = executor.execute("x")
    assert result.success and executor._info, "what the engine says of itself is asked for again"
