"""The level container by podman: root's holds all limits; a rootless one that ignores them is found out."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import ordinary_user, podman_service
from tests.doors.test_container_level import BOMB

import ringfence
from ringfence import DockerConfig, DockerExecutor, Job, Outcome, Pool, SandboxPolicy, run
from ringfence.container.api import connect
from ringfence.docker_sandbox.result import StrategyStatus
from ringfence.errors import UnavailableError
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Status

pytestmark = [pytest.mark.system, pytest.mark.unmeasured, pytest.mark.root, pytest.mark.long]

POLICY = SandboxPolicy(isolation=IsolationLevel.CONTAINER, image=podman_service.IMAGE)


@pytest.fixture(scope="module")
def of_root() -> Iterator[str]:
    with podman_service.serving() as address:
        yield address


@pytest.fixture(scope="module")
def rootless() -> Iterator[str]:
    subprocess.run(["useradd", "--create-home", ordinary_user.NAME], check=False, capture_output=True)
    with podman_service.serving(ordinary_user.NAME) as address:
        yield address


def python(code: str, address: str, monkeypatch: pytest.MonkeyPatch, **changes: object) -> Outcome:
    monkeypatch.setenv("RINGFENCE_ENGINE", "podman")
    monkeypatch.setenv("CONTAINER_HOST", address)
    return run(Job(argv=("python3", "-I", "-S", "-c", code)), POLICY.with_changes(**changes))


def test_a_service_of_root_holds_what_it_is_asked_for(of_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = python("import os; print(os.getuid())", of_root, monkeypatch, cpu_share=0.5)
    assert outcome.stdout == b"65534\n" and all(entry.applied for entry in outcome.enforced.values())
    assert "control group's own files" in outcome.enforced["memory"].details


@pytest.mark.parametrize(("code", "limit", "status"), [
    ("x = []\nwhile True: x.append(bytearray(1 << 20))", {"mem_bytes": 64 << 20}, Status.MEM_LIMIT),
    (BOMB, {"pids_max": 16}, Status.PIDS_LIMIT),
    ("import time; time.sleep(60)", {"wall_time_s": 0.5}, Status.TIMEOUT),
    ("open('/etc/x', 'w')", {}, Status.FAILED), ("import sys; sys.exit(3)", {}, Status.FAILED),
])  # fmt: skip
def test_the_end_is_told_by_facts_here_too(
    of_root: str, monkeypatch: pytest.MonkeyPatch, code: str, limit: dict[str, object], status: Status
) -> None:
    assert python(code, of_root, monkeypatch, **limit).status is status
    monkeypatch.setenv("RINGFENCE_ENGINE", "podman")
    assert connect(of_root).list("ringfence.owner") == []


def test_a_box_of_podman_takes_visits(of_root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RINGFENCE_ENGINE", "podman")
    monkeypatch.setenv("CONTAINER_HOST", of_root)
    (tmp_path / "a").write_text("shown")
    tmp_path.chmod(0o755)
    with ringfence.open(POLICY, tmp_path) as box:
        assert box.run(["cat", "a"]).stdout == b"shown"
        box.put("/tmp/b", b"put")
        assert box.get("/tmp/b") == b"put"
        assert box.run(["sleep", "60"], timeout=1).status is Status.TIMEOUT
        assert box.run(["sh", "-c", "exit 137"]).status is Status.FAILED
    with Pool(POLICY, warm=1) as pool:
        assert pool.call(lambda a: a + 1, 41) == 42


def test_a_rootless_engine_that_ignores_limits_is_found_out(rootless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFENCE_ENGINE", "podman")
    if str(connect(rootless).info().get("CgroupVersion")) != "1":
        pytest.skip("not testable here: control groups of version 2 are delegated")
    with pytest.raises(UnavailableError, match="mem_bytes \\(--memory\\) needs an engine that holds it"):
        python("pass", rootless, monkeypatch)
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64)"
    outcome = python(code, rootless, monkeypatch, allow_partial=True, nofile=64)
    assert outcome.stdout == b"True\n", "it holds it: then the table should say so"
    lost = {name for name, entry in outcome.enforced.items() if not entry.applied}
    assert lost == {"memory", "pids", "nofile", "cpu_time"} and outcome.partial and outcome.status is Status.OK


# ---- strategies

STRATEGY = {"memory_limit": "256m", "tmpfs_size": "16m", "output_dir": "", "validate": False, "cpu_limit": 1,
            "warm_containers": 1, "max_containers": 2, "timeout_seconds": 120}  # fmt: skip


@pytest.fixture
def executor(of_root: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerExecutor]:
    monkeypatch.setenv("RINGFENCE_ENGINE", "podman")
    monkeypatch.setenv("CONTAINER_HOST", of_root)
    with DockerExecutor(DockerConfig(podman_service.IMAGE, **STRATEGY)) as made:  # type: ignore[arg-type]
        yield made
    assert connect(of_root).list("ringfence.owner") == [], "containers were left"


def test_podman_runs_strategies_and_holds_their_limits(executor: DockerExecutor) -> None:
    result = executor.execute("def run(data):\n    return {'sum': sum(data)}", [1, 2, 3])
    assert result.success and result.metrics == {"sum": 6}, result.error_message
    held = {name for name, row in result.enforced.items() if isinstance(row, dict) and row["applied"]}
    assert held >= {"memory", "pids", "network", "read_only_root", "capabilities", "new_privileges"}
    hungry = "def run(data):\n    kept = []\n    while True: kept.append(b'x' * 10_000_000)"
    assert executor.execute(hungry).status is StrategyStatus.RESOURCE_LIMIT


@pytest.mark.parametrize("code", [
    "import socket\ndef run(data): return {'x': str(socket.create_connection(('192.0.2.1', 80), 3))}",
    "import subprocess\ndef run(data): return {'x': str(subprocess.run(['id']))}",
    "def run(data):\n    open('/etc/x', 'w')\n    return {'x': 1}",
])  # fmt: skip
def test_in_podman_a_strategy_is_closed_in_too(executor: DockerExecutor, code: str) -> None:
    result = executor.execute(code)
    assert not result.success and result.metrics == {} and result.status is StrategyStatus.FAILED, result
    assert executor.execute("def run(data):\n    open('/tmp/x', 'w').write('1')\n    return {'x': 1}").success


def test_a_deadline_ends_a_strategy_in_podman(executor: DockerExecutor) -> None:
    result = executor.execute("import time\ndef run(data):\n    time.sleep(60)", timeout=2)
    assert result.status is StrategyStatus.TIMEOUT and result.metrics == {}


def test_a_rootless_podman_tells_what_it_does_not_hold(rootless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFENCE_ENGINE", "podman")
    monkeypatch.setenv("CONTAINER_HOST", rootless)
    if str(connect(rootless).info().get("CgroupVersion")) != "1":
        pytest.skip("not testable here: control groups of version 2 are delegated")
    config = DockerConfig(podman_service.IMAGE, **STRATEGY | {"warm_containers": 0})  # type: ignore[arg-type]
    with DockerExecutor(config) as executor:
        result = executor.execute("def run(data):\n    return {'x': 1}")
    lost = {name for name, row in result.enforced.items() if isinstance(row, dict) and not row["applied"]}
    assert result.success and lost >= {"memory", "pids"}, result


def test_what_a_rootless_service_started_ends_with_it() -> None:
    """Podman keeps a process that holds its user namespace, and nobody else ends it."""
    subprocess.run(["useradd", "--create-home", ordinary_user.NAME], check=False, capture_output=True)
    with podman_service.serving(ordinary_user.NAME) as address:
        folder = Path(address.removeprefix("unix://")).parent
        assert podman_service.left(folder), "nothing to see"
    assert not podman_service.left(folder) and not folder.exists()
