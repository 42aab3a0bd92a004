"""Strategies on a real Docker engine: the integration list of the specification, and attacks with the validator off."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests import container_image, docker_daemon
from tests.patience import eventually

from ringfence import DockerConfig, DockerExecutionResult, DockerExecutor
from ringfence.container import seccomp_profile
from ringfence.docker_sandbox.one_run import OneRun
from ringfence.docker_sandbox.result import StrategyStatus
from ringfence.metrics import recorder, serving
from ringfence.model.limits import SyscallProfile

pytestmark = [pytest.mark.system, pytest.mark.unmeasured, pytest.mark.root]

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"memory_limit": "256m", "tmpfs_size": "16m", "output_dir": "", "validate": False, "cpu_limit": 1}
BUY_AND_HOLD = """
def run(data):
    prices = data["prices"]
    returns = [after / before - 1 for before, after in zip(prices, prices[1:])]
    worst = min(prices[day] / max(prices[: day + 1]) - 1 for day in range(len(prices)))
    return {"total_return": prices[-1] / prices[0] - 1, "max_drawdown": worst, "days": len(returns)}
"""


def ours(address: str = "", *, pid: int = 0, running: bool = False) -> list[str]:
    """The containers of strategies of this process, or of another; other workers have theirs in the same engine."""
    command = ["docker", *(["--host", address] if address else []), "ps", *([] if running else ["--all"]), "--filter",
               "label=ringfence.kind=strategy", "--format", '{{.ID}} {{.Label "ringfence.owner"}}']  # fmt: skip
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in told if line.split()[1].startswith(f"{pid or os.getpid()}:")]


@pytest.fixture
def image(python_image: str) -> Iterator[str]:
    yield python_image
    assert ours() == [], "containers were left"


@pytest.fixture
def executor(image: str) -> Iterator[DockerExecutor]:
    with DockerExecutor(DockerConfig(image, warm_containers=0, **SMALL)) as made:  # type: ignore[arg-type]
        yield made


def test_a_valid_strategy_runs_and_its_container_is_gone(executor: DockerExecutor) -> None:
    result = executor.execute(BUY_AND_HOLD, {"prices": [100.0, 90.0, 120.0]})
    assert result.success, result.error_message
    assert result.metrics["days"] == 2 and result.metrics["total_return"] == pytest.approx(0.2)
    assert result.metrics["max_drawdown"] == pytest.approx(-0.1)
    assert len(result.container_id) == 64 and result.memory_used_mb > 1 and ours() == []
    held = {name for name, row in result.enforced.items() if isinstance(row, dict) and row["applied"]}
    assert held >= {"memory", "pids", "cpu_share", "network", "read_only_root", "capabilities", "new_privileges"}


def test_a_strategy_of_three_gigabytes_is_killed_at_two(image: str) -> None:
    hungry = "def run(data):\n    kept = []\n    for _ in range(300): kept.append(b'x' * 10_000_000)\n    return {'n': len(kept)}"
    config = DockerConfig(image, "2g", 2.0, 120, warm_containers=0, validate=False, output_dir="")
    with DockerExecutor(config) as executor:
        result = executor.execute(hungry)
        assert result.status is StrategyStatus.RESOURCE_LIMIT and not result.success
        assert "2g" in (result.error_message or "") and result.metrics == {}
    roomy = config.with_arguments(memory_limit="4g", memory_swap_limit="4g")
    with DockerExecutor(roomy) as executor:
        assert executor.execute(hungry).metrics == {"n": 300}, "with more memory the same one ends"


@pytest.mark.parametrize("code", [
    "import urllib.request\ndef run(data): return {'x': str(urllib.request.urlopen('http://192.0.2.1', timeout=3))}",
    "import socket\ndef run(data): return {'x': str(socket.create_connection(('127.0.0.1', data), 3))}",
    "import socket\ndef run(data): return {'x': socket.gethostbyname('example.com')}",
    "import socket\ndef run(data):\n    s = socket.socket(socket.AF_UNIX)\n    s.connect('/run/docker.sock')\n    return {'x': 1}",
])  # fmt: skip
def test_there_is_no_network_even_if_the_validator_missed_it(executor: DockerExecutor, code: str) -> None:
    served = serving.serve(0)
    try:
        result = executor.execute(code, served.port)
    finally:
        served.close()
    assert result.status is StrategyStatus.FAILED and "rror: " in (result.error_message or "")


def test_etc_is_refused_and_tmp_is_writable(executor: DockerExecutor) -> None:
    result = executor.execute("def run(data):\n    open('/etc/malicious', 'w')")
    assert result.status is StrategyStatus.FAILED
    assert any(word in (result.error_message or "") for word in ("Read-only", "Permission denied"))
    code = "def run(data):\n    open('/tmp/test.txt', 'w').write('x')\n    return {'text': open('/tmp/test.txt').read()}"
    assert executor.execute(code).metrics == {"text": "x"}
    full = "def run(data):\n    with open('/tmp/big', 'wb') as f:\n        while True: f.write(b'x' * 1_000_000)"
    assert "No space left" in (executor.execute(full).error_message or "")


def test_a_file_is_in_input(executor: DockerExecutor, tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text("1,2,3")
    result = executor.execute("def run(path): return {'path': path, 'text': open(path).read()}", tmp_path / "prices.csv")
    assert result.metrics == {"path": "/input/prices.csv", "text": "1,2,3"}


def test_one_that_takes_too_long_is_killed_and_told(executor: DockerExecutor) -> None:
    result = executor.execute("def run(data):\n    while True: pass", timeout=2)
    assert result.status is StrategyStatus.TIMEOUT and result.metrics == {} and ours() == []
    sleepy = executor.execute("import time\ndef run(data):\n    time.sleep(99)", timeout=1)
    loud = executor.execute("def run(data):\n    while True: print('x' * 10_000)", timeout=2)
    assert loud.status is StrategyStatus.TIMEOUT and len(loud.log) == 4000
    assert sleepy.status is StrategyStatus.TIMEOUT and "cores" not in (sleepy.error_message or "")


ATTACKS = {
    "programs": "import subprocess\ndef run(data): return {'x': subprocess.check_output(['/bin/sh', '-c', 'echo 7 > /etc/x && echo 7']).decode()}",
    "the host's files": "def run(data): return {'x': open(data).read()}",
    "the host's processes": "import os\ndef run(data): return {'x': [p for p in os.listdir('/proc') if p.isdigit() and p != str(os.getpid())][0]}",
    "another user": "import os\ndef run(data):\n    os.setuid(0)\n    return {'x': 1}",
    "a mount": "import ctypes\ndef run(data):\n    libc = ctypes.CDLL(None, use_errno=True)\n    assert libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0\n    return {'x': 1}",
    "a new namespace": "import ctypes\ndef run(data):\n    assert ctypes.CDLL(None).unshare(0x10000000) == 0\n    return {'x': 1}",
    "a device": "import os\ndef run(data):\n    os.mknod('/tmp/d', 0o60666, os.makedev(8, 0))\n    open('/tmp/d')\n    return {'x': 1}",
    "another's memory": "import os\ndef run(data):\n    open('/proc/1/mem', 'rb') if os.getpid() != 1 else open('/proc/kcore', 'rb').read(9)\n    open('/dev/mem')\n    return {'x': 1}",
    "a program of its own": "import os, shutil, sys\ndef run(data):\n    shutil.copy(sys.executable, '/tmp/p')\n    os.chmod('/tmp/p', 0o755)\n    os.execv('/tmp/p', ['p'])",
    "kernel settings": "def run(data):\n    open('/proc/sys/kernel/core_pattern', 'w').write('x')\n    return {'x': 1}",
    "the group's own limits": "def run(data):\n    open('/sys/fs/cgroup/memory/memory.limit_in_bytes', 'w').write('-1')\n    return {'x': 1}",
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_fails_with_the_validator_off(executor: DockerExecutor, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("secret")
    result = executor.execute(ATTACKS[name], str(tmp_path / "secret"), timeout=20)
    assert not result.success, result.metrics
    assert (tmp_path / "secret").read_text() == "secret"


TRIES = """
import os, socket
def tried(call):
    try:
        call()
    except OSError as error:
        return error.errno
    return 0
def fork():
    if os.fork() == 0:
        os._exit(0)
def run(data):
    return {"fork": tried(fork), "exec": tried(lambda: os.execv("/nothing", ["x"])),
            "socket": tried(lambda: socket.socket(socket.AF_INET))}
"""


def test_no_program_no_process_and_no_socket_once_python_runs(image: str, tmp_path: Path) -> None:
    """The second filter closes what Python itself needed to start; under another profile the same calls are made."""
    config = DockerConfig(image, warm_containers=0, **SMALL)  # type: ignore[arg-type]
    with DockerExecutor(config) as executor:
        assert executor.execute(TRIES).metrics == {"fork": errno.EPERM, "exec": errno.EPERM, "socket": errno.EACCES}
    (tmp_path / "open.json").write_text(seccomp_profile.text(SyscallProfile.DEFAULT))
    with DockerExecutor(config.with_arguments(seccomp_profile=str(tmp_path / "open.json"))) as executor:
        assert executor.execute(TRIES).metrics == {"fork": 0, "exec": errno.ENOENT, "socket": 0}


CLOSED = {
    "a program": "import subprocess; print(subprocess.check_output(['true']) == b'' and 'ESCAPED')",
    "a program in its place": "import os; os.execv('/usr/bin/env', ['env', 'echo=ESCAPED'])",
    "a process": "import os; pid = os.fork(); pid and print('ESCAPED'); pid or os._exit(0)",
    "a socket": "import socket; socket.socket(socket.AF_INET); print('ESCAPED')",
}


@pytest.mark.parametrize("name", CLOSED)
def test_there_are_no_programs_no_processes_and_no_sockets(executor: DockerExecutor, image: str, name: str) -> None:
    """With the default profile, though every engine's own has all of it open."""
    control = ["docker", "run", "--rm", "--network=none", "--user=65534", image, "python3", "-c", CLOSED[name]]
    assert "ESCAPED" in subprocess.run(control, capture_output=True, text=True, check=True).stdout
    result = executor.execute(f"def run(data):\n    exec({CLOSED[name]!r}, {{}})\n    return {{}}", timeout=20)
    assert result.status is StrategyStatus.FAILED and "ESCAPED" not in result.log
    assert "PermissionError" in (result.error_message or "")


def test_a_bomb_of_processes_and_threads_stays_inside(executor: DockerExecutor) -> None:
    forks = "import os\ndef run(data):\n    n = 0\n    while True:\n        if os.fork() == 0:\n            import time; time.sleep(60)\n        n += 1"
    assert executor.execute(forks, timeout=20).status in (StrategyStatus.FAILED, StrategyStatus.TIMEOUT)
    threads = ("import threading\ndef run(data):\n    n = 0\n    try:\n        while n < 5000:\n"
               "            threading.Thread(target=threading.Event().wait, daemon=True).start(); n += 1\n"
               "    except RuntimeError: pass\n    return {'n': n}")  # fmt: skip
    result = executor.execute(threads, timeout=20)
    assert result.status is not StrategyStatus.OK or int(str(result.metrics["n"])) < 64


FORGERIES = {
    "a huge head": "import os\ndef run(data):\n    [os.write(d, b'\\xff' * 9000) for d in range(3, 9) if _open(d)]",
    "a huge result": "import os\ndef run(data):\n    while True:\n        [os.write(d, b'\\0' * 65536) for d in range(3, 9) if _open(d)]",
    "deep nesting": "import os\ndef run(data):\n    b = b'{\"ok\": true, \"bytes\": 99999}'\n    m = len(b).to_bytes(8, 'big') + b + b'[' * 99999\n    [os.write(d, m) for d in range(3, 9) if _open(d)]\n    os._exit(0)",
}  # fmt: skip
_OPEN = "import os, stat\ndef _open(d):\n    try: return stat.S_ISFIFO(os.fstat(d).st_mode) and os.readlink(f'/proc/self/fd/{d}')\n    except OSError: return False\n"


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_answer_is_no_result(executor: DockerExecutor, name: str) -> None:
    result = executor.execute(_OPEN + FORGERIES[name], timeout=20)
    assert not result.success and result.metrics == {}
    assert executor.execute(BUY_AND_HOLD, {"prices": [1.0, 2.0]}).success


def test_five_run_at_once(image: str) -> None:
    together = threading.Barrier(5, timeout=60)
    config = DockerConfig(image, max_containers=10, warm_containers=5, **SMALL)  # type: ignore[arg-type]
    code = "import time\ndef run(data):\n    time.sleep(1)\n    return {'n': data}"

    def one(number: int) -> DockerExecutionResult:
        together.wait()
        return executor.execute(code, number)

    with DockerExecutor(config) as executor, ThreadPoolExecutor(5) as threads:
        results = [*threads.map(one, range(5))]
    assert [result.metrics for result in results] == [{"n": number} for number in range(5)]
    assert len({result.container_id for result in results}) == 5


@pytest.mark.long
@pytest.mark.parametrize("number", [25, pytest.param(100, marks=pytest.mark.soak)])
def test_many_are_made_and_none_is_left(image: str, number: int) -> None:
    config = DockerConfig(image, max_containers=10, warm_containers=4, **SMALL)  # type: ignore[arg-type]
    with DockerExecutor(config) as executor, ThreadPoolExecutor(8) as threads:
        results = [*threads.map(lambda n: executor.execute("def run(data): return {'n': data}", n), range(number))]
        assert len({result.container_id for result in results}) == number
    assert [result.metrics["n"] for result in results] == [*range(number)] and ours() == []


def test_ctrl_c_leaves_no_container(image: str) -> None:
    code = ("import sys\nfrom ringfence import DockerConfig, DockerExecutor\n"
            f"with DockerExecutor(DockerConfig({image!r}, validate=False, output_dir='', warm_containers=2)) as e:\n"
            "    print('up', flush=True)\n    e.execute('import time\\ndef run(d): time.sleep(99)')\n")  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    assert eventually(lambda: len(ours(pid=process.pid)) >= 2)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert ours(pid=process.pid) == []


def test_a_killed_caller_leaves_no_container(image: str) -> None:
    code = ("from ringfence import DockerConfig, DockerExecutor\n"
            f"e = DockerExecutor(DockerConfig({image!r}, validate=False, output_dir='', warm_containers=0))\n"
            "e.execute('def run(d):\\n    while True: pass')\n")  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", code])
    assert eventually(lambda: ours(pid=process.pid))
    process.kill()
    process.wait()
    assert eventually(lambda: ours(pid=process.pid) == []), "by its guardian"
    with DockerExecutor(DockerConfig(image, warm_containers=0, **SMALL)) as executor:  # type: ignore[arg-type]
        assert executor.execute("def run(d): return {}").success


def test_a_strategy_that_holds_its_process_does_not_outlive_a_killed_caller(image: str) -> None:
    """It takes the input from whoever watches for its end; nobody comes after."""
    hold = ("import os, time\ndef run(d):\n    pipe = os.pipe()\n    for fd in range(3, 20):\n        if fd not in pipe:\n"
            "            try: os.dup2(pipe[0], fd)\n            except OSError: pass\n"
            "    os.write(2, b'held\\n')\n    time.sleep(9999)")  # fmt: skip
    code = ("from ringfence import DockerConfig, DockerExecutor\n"
            f"e = DockerExecutor(DockerConfig({image!r}, validate=False, output_dir='', warm_containers=0))\n"
            f"e.execute({hold!r})\n")  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", code])
    assert eventually(lambda: any("held" in logs(each.split()[0]) for each in ours(pid=process.pid)))
    process.kill()
    process.wait()
    assert eventually(lambda: ours(pid=process.pid) == [])


def logs(container: str) -> str:
    told = subprocess.run(["docker", "logs", container], capture_output=True, text=True, check=False)
    return told.stdout + told.stderr


@pytest.mark.parametrize("fallback", [True, False])
def test_a_daemon_killed_in_the_middle_is_told_and_recovered_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fallback: bool
) -> None:
    begun, conversed = threading.Event(), OneRun._conversed
    monkeypatch.setattr(OneRun, "_conversed", lambda run: begun.set() or conversed(run))
    with docker_daemon.daemon() as daemon:
        image = container_image.imported(tmp_path)
        config = DockerConfig(image, warm_containers=1, fallback_to_direct=fallback, **SMALL)  # type: ignore[arg-type]
        with DockerExecutor(config) as executor:
            code = "import time\ndef run(data):\n    time.sleep(data)\n    return {'done': True}"
            with ThreadPoolExecutor(1) as threads:
                running = threads.submit(executor.execute, code, 3)
                assert begun.wait(60) and ours(daemon.address)
                daemon.kill()
                result = running.result()
            if fallback:
                assert result.metrics == {"done": True} and result.isolation == "strict"
            else:
                assert result.status is StrategyStatus.UNAVAILABLE and not result.success
                assert executor.execute(code, 0).status is StrategyStatus.UNAVAILABLE
            daemon.start()
            again = executor.execute(code, 0)
            assert again.success and again.isolation == "container", again.error_message
            assert eventually(lambda: not executor.monitor.orphans)
        assert ours(daemon.address) == []


@pytest.mark.long
def test_a_strategy_runs_in_gvisor_by_configuration(tmp_path: Path) -> None:
    with docker_daemon.daemon(docker_daemon.gvisor(tmp_path)) as daemon:
        image = container_image.imported(tmp_path)
        with DockerExecutor(DockerConfig(image, runtime="runsc", warm_containers=0, **SMALL)) as executor:  # type: ignore[arg-type]
            seen = executor.execute("def run(data): return {'version': open('/proc/version').read()}")
            assert "gVisor" in str(seen.metrics) or "4.4.0" in str(seen.metrics), seen
            assert executor.execute(TRIES).metrics["exec"] == errno.EPERM
            assert executor.execute(BUY_AND_HOLD, {"prices": [1.0, 2.0]}).success
        assert ours(daemon.address) == []


def test_an_image_that_is_missing_is_pulled_once(image: str, tmp_path: Path) -> None:
    with docker_daemon.registry(tmp_path) as address:
        name = f"{address}/strategies:1"
        for words in (["tag", image, name], ["push", name], ["rmi", name]):
            subprocess.run(["docker", *words], check=True, capture_output=True)
        config = DockerConfig(name, warm_containers=0, **SMALL)  # type: ignore[arg-type]
        with DockerExecutor(config.with_arguments(pull=False)) as executor:
            assert executor.execute(BUY_AND_HOLD, {"prices": [1.0, 2.0]}).status is StrategyStatus.CREATION_FAILED
        with DockerExecutor(config) as executor:
            assert executor.execute(BUY_AND_HOLD, {"prices": [1.0, 2.0]}).success
            nowhere = DockerExecutor(config.with_arguments(image=f"{address}/nothing:1"))
            assert nowhere.execute("x").status is StrategyStatus.CREATION_FAILED
            nowhere.close()
        subprocess.run(["docker", "rmi", name], check=True, capture_output=True)


def test_metrics_of_containers_are_the_engines(executor: DockerExecutor) -> None:
    recorder.enable()
    before = recorder.value("executions_total", isolation="container", status="ok")
    active = recorder.value("active_containers", isolation="container")  # engines that were killed took some along
    assert executor.execute("def run(data):\n    return {'n': len(bytearray(40_000_000))}").memory_used_mb > 40
    assert recorder.value("executions_total", isolation="container", status="ok") == before + 1
    assert recorder.value("active_containers", isolation="container") == active
