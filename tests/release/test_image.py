"""The image of deploy/image in a real Docker engine, under exactly the flags that the documents name.

With Podman too, in a user namespace, as a pod with ``hostUsers: false`` has it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from release.container_seccomp import OPENED, profile
from tests import docker_daemon, packages
from tests.deployed_image import build_with, built
from tests.documented_flags import documented_flags, pods, sandbox_pods
from tests.examples import filled, program, shell, written
from tests.examples.own_network import OwnNetwork, own_network
from tests.patience import eventually
from tests.testable import not_testable_here

if sys.platform != "linux":
    pytest.skip("containers of Linux", allow_module_level=True)

pytestmark = [pytest.mark.long, pytest.mark.unmeasured, pytest.mark.timeout(900)]
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MANIFEST, KUBERAY = ROOT / "deploy/kubernetes/ringfence.yaml", ROOT / "deploy/kuberay/raycluster.yaml"
SECCOMP = ("--security-opt", "seccomp=deploy/image/seccomp.json")
# Flags without which it is refused, and a part of the words.
NEEDED = {
    "seccomp": ("seccomp=", "--security-opt seccomp=FILE"),
    "systempaths": ("systempaths", "--security-opt systempaths=unconfined"),
    "temporary files": ("/tmp", "/tmp"),
    "state": ("/var/lib/ringfence", "could not be kept: /var/lib/ringfence"),
}
AS_ROOT = ("--security-opt", "seccomp=unconfined", "--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE")
ON_A_VOLUME = (*AS_ROOT, "--volume", "/workspace")
PROGRAM = ("--volume", f"{HERE}/in_image.py:/in_image.py:ro", "--volume", "/workspace", "--entrypoint", "python3")
EXPECTED = {"attack": "FileNotFoundError|ConnectionRefusedError", "listed": "1\n", "again": [0] * 6,
            "pool": [42] * 12, "box": "put", "hidden": "what nobody else reads", "no_new_privileges": True}  # fmt: skip


@pytest.fixture(scope="module")
def image(docker_address: str, folder_of_all_workers: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    text = written("docs/how-to/run-in-a-container.md", "make dist")
    return built(tmp_path_factory.mktemp("image"), folder_of_all_workers, text)


def _run(
    flags: Sequence[Sequence[str]], *words: str, engine: Sequence[str] = ("docker",)
) -> subprocess.CompletedProcess[str]:
    given = [word for flag in flags for word in flag]
    command = [*engine, "run", "--rm", "--pull=never", "--network=none", *given, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _without(part: str) -> list[tuple[str, ...]]:
    left = [flag for flag in documented_flags() if part not in " ".join(flag)]
    assert len(left) == len(documented_flags()) - 1
    return left


def _in_a_clone(folder: Path) -> Path:
    """The directory in which a block of the page is run."""
    work = folder / "work"
    work.mkdir()
    (work / "deploy").symlink_to(ROOT / "deploy")
    return work


def test_the_command_of_the_page_runs_a_job_in_a_sandbox(image: str, tmp_path: Path) -> None:
    _in_a_clone(tmp_path)
    printed = shell(written("docs/how-to/run-in-a-container.md", "docker run -"), tmp_path)
    assert printed.splitlines()[-1].startswith("uid=10001("), printed


def test_strict_and_probe_work_under_the_documented_flags(image: str) -> None:
    done = _run(documented_flags(), image, "run", "--strict", "--", "id", "-u")
    assert (done.returncode, done.stdout) == (0, "10001\n"), done
    told = json.loads(_run(documented_flags(), image, "probe", "--json").stdout)
    assert told["mechanisms"]["user namespaces"]["available"], told


@pytest.mark.parametrize("name", NEEDED)
def test_a_needed_flag_that_is_missing_is_named(image: str, name: str) -> None:
    part, words = NEEDED[name]
    done = _run(_without(part), image, "run", "--strict", "--", "id", "-u")
    assert done.returncode and not done.stdout and words in done.stderr, done


@pytest.mark.parametrize(("more", "words"), [((), "SYS_PTRACE, SYS_ADMIN"), (AS_ROOT, "/workspace"), (ON_A_VOLUME, "")])
def test_root_is_told_to_be_an_ordinary_user(image: str, more: tuple[str, ...], words: str) -> None:
    """With what it lacks, and on a volume, root has a sandbox too: that is the control."""
    flags = ("--user", "0", "--tmpfs", "/tmp", "--security-opt", "systempaths=unconfined", *(more or SECCOMP))
    done = _run([flags], image, "run", "--strict", "--", "id", "-u")
    if not words:
        assert (done.returncode, done.stdout) == (0, "1000\n"), done
        return
    assert done.returncode and not done.stdout and "ordinary user" in done.stderr and words in done.stderr, done


def test_no_job_reads_what_is_hidden_or_reaches_the_container(image: str) -> None:
    """The program reads the hidden file itself, and whoever listens tells everybody: that is the control."""
    told = _told(_run(documented_flags(), *PROGRAM, image, "/in_image.py", "/workspace"))
    assert told.items() >= EXPECTED.items(), told
    assert "violation" in told["attempts"] and {"network", "hidden_paths", "syscalls"} <= set(told["applied"])


def test_without_a_sandbox_the_same_attack_succeeds(image: str) -> None:
    told = _told(_run(documented_flags(), *PROGRAM, image, "/in_image.py", "/workspace", "none"))
    assert told["attack"] == "what nobody else reads|what nobody else reads", told


@pytest.mark.parametrize("call", OPENED)
def test_no_call_is_open_that_is_not_needed(image: str, call: str, tmp_path: Path) -> None:
    """Without the one row for it a sandbox is not made, or a hidden path is asked for unseen."""
    (tmp_path / "less.json").write_text(json.dumps(_less(call)))
    flags = [("--security-opt", f"seccomp={tmp_path}/less.json") if flag == SECCOMP else flag
             for flag in documented_flags()]  # fmt: skip
    done = _run(flags, *PROGRAM, image, "/in_image.py", "/workspace")
    assert done.returncode or "violation" not in _told(done)["attempts"], done


def _less(call: str) -> dict[str, object]:
    data = profile()
    rows = data["syscalls"]
    assert isinstance(rows, list)
    conditions = list(OPENED[call][0])
    kept = [{**row, "names": [name for name in row["names"] if name != call or row.get("args", []) != conditions]}
            for row in rows]  # fmt: skip
    refused = [{"names": [call], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}] if call == "clone3" else []
    return {**data, "syscalls": [row for row in kept if row["names"]] + refused}


def _told(done: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    assert done.returncode == 0, done
    told: dict[str, list[str]] = json.loads(done.stdout)
    return told


def test_the_service_answers_with_the_settings_of_the_deployment(image: str, tmp_path: Path) -> None:
    settings, probe = _deployment()
    (tmp_path / "service.yaml").write_text(settings)
    new = ("--volume", f"{tmp_path}:/etc/ringfence-tokens", "--user", "0", image)
    words = ("serve", "--new-token", "ci", "--tokens", "/etc/ringfence-tokens/tokens.yaml", "--scope", "run")
    made = subprocess.run(["docker", "run", "--rm", "--pull=never", "--network=none", *new, *words],
                          capture_output=True, text=True, check=True)  # fmt: skip
    (tmp_path / "tokens.yaml").chmod(0o644)
    token = made.stdout.split()[-1]
    volumes = [("--volume", f"{tmp_path}/service.yaml:/etc/ringfence/service.yaml:ro"),
               ("--volume", f"{tmp_path}/tokens.yaml:/etc/ringfence-tokens/tokens.yaml:ro")]  # fmt: skip
    with _serving([*documented_flags(), *volumes, ("--network", "none")], image) as container:
        eventually(lambda: _asked(container, probe["path"], probe["httpHeaders"][0]["value"]).startswith("200"), 60)
        assert _asked(container, probe["path"], "elsewhere.example").startswith("421")
        said = _asked(container, "/v1/runs", "localhost:8700", token, '{"argv": ["id", "-u"], "wait": true}')
        assert said.startswith("20") and "10001" in said, said


def test_a_client_of_the_host_reaches_the_service_of_the_page(image: str, tmp_path: Path) -> None:
    """In a network of its own, for the page's port is fixed, and the engine of all tests has no bridge."""
    work = _in_a_clone(tmp_path)
    (work / "service.yaml").write_text(written("docs/how-to/run-in-a-container.md", "host: 0.0.0."))
    program(tmp_path, "sudo", 'exec "$@"')  # whoever runs this is root
    flags = " ".join(word for flag in documented_flags() for word in flag)
    text = filled(written("docs/how-to/run-in-a-container.md", "sudo chown 10001"), **{"…": f"--detach {flags}"})
    with own_network(tmp_path) as network, _engine_with(image, network):
        said = network.shell(text)
        (token,) = re.findall(r"\brf_\S+", said)
        ask = ["curl", "-s", "http://127.0.0.1:8700/v1/runs", "-H", f"Authorization: Bearer {token}",
               "-H", "content-type: application/json", "-d", '{"argv": ["id", "-u"]}']  # fmt: skip
        logs = ["docker", "logs", said.split()[-1]]
        eventually(lambda: network.shell("curl -s http://localhost:8700/healthz || true"), 60,
                   told=lambda: subprocess.run(logs, capture_output=True, check=False))  # fmt: skip
        run = json.loads(network.shell(shlex.join(ask)))
        refused = network.shell(shlex.join(ask).replace(token, "rf_other"))
        elsewhere = network.shell("curl -so /dev/null -w '%{http_code}' http://127.0.0.1:8700/ -H host:elsewhere")
    assert (run["outcome"]["status"], run["outcome"]["stdout"]) == ("OK", "10001\n"), run
    assert "outcome" not in refused and elsewhere == "421"


@contextmanager
def _engine_with(image: str, network: OwnNetwork) -> Iterator[None]:
    """One that has a bridge in this network, and the image."""
    bridged = ["ip", "link", "add", "any", "type", "bridge"]
    if subprocess.run([*network.enter, *bridged], capture_output=True, check=False).returncode:
        not_testable_here("the kernel has no bridges")
    saved = subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE)
    with docker_daemon.daemon("--bridge=", enter=network.enter):
        subprocess.run(["docker", "load", "--quiet"], stdin=saved.stdout, check=True, capture_output=True)
        assert saved.wait() == 0
        yield


def _deployment() -> tuple[str, dict[str, list[dict[str, str]]]]:
    configuration, *_ = yaml.safe_load_all(MANIFEST.read_text())
    (pod,) = sandbox_pods(MANIFEST)
    return configuration["data"]["service.yaml"], pod["containers"][0]["readinessProbe"]["httpGet"]


@contextmanager
def _serving(flags: Sequence[Sequence[str]], image: str, *words: str) -> Iterator[str]:
    given = [word for flag in flags for word in flag]
    command = ["docker", "run", "--detach", "--pull=never", *given, image, *words]
    started = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    try:
        yield started
    finally:
        logs = subprocess.run(["docker", "logs", started], capture_output=True, text=True, check=False)
        print(logs.stdout[-2000:], logs.stderr[-2000:])
        subprocess.run(["docker", "rm", "--force", "--volumes", started], capture_output=True, check=True)


_ASK = """\
import sys, http.client
path, host, token, body = sys.argv[1:]
link = http.client.HTTPConnection("127.0.0.1", 8700, timeout=30)
headers = {"host": host, "content-type": "application/json", **({"authorization": "Bearer " + token} if token else {})}
link.request("POST" if body else "GET", path, body or None, headers)
answer = link.getresponse()
print(answer.status, answer.read().decode())
"""


def _asked(container: str, path: object, host: str, token: str = "", body: str = "") -> str:
    command = ["docker", "exec", container, "python3", "-c", _ASK, str(path), host, token, body]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


KUBECTL = """
echo "$*" >> kubectl.txt
test "$1" = exec || exit 0
head=$3
shift 4
exec docker exec --interactive "$head" "$@"
"""
"""There is no cluster of Kubernetes: what it would run in a pod is run in the container that has the pod's settings."""


def test_squares_run_in_a_ray_cluster_of_the_image_for_it(docker_address: str, tmp_path: Path) -> None:
    text = written("docs/how-to/run-in-a-container.md", "docker build --file deploy/image/Dockerfile --build")
    build, *others = text.splitlines()
    _in_a_clone(tmp_path)
    program(tmp_path, "kubectl", KUBECTL)
    build_with(tmp_path / "build", build, "ray", "ray[default]")
    with _ray_cluster("ringfence-ray") as head:
        printed = shell(filled("\n".join(others), HEAD=head), tmp_path, timeout_s=120)
    assert str([number * number for number in range(20)]) in printed
    applied, _ = (tmp_path / "work" / "kubectl.txt").read_text().splitlines()
    assert applied == f"apply -f {KUBERAY.relative_to(ROOT)}"


@contextmanager
def _ray_cluster(image: str) -> Iterator[str]:
    """A head and a worker as the manifest has them, in one network of their own; the head."""
    cluster = yaml.safe_load(KUBERAY.read_text())["spec"]
    of_head, (of_worker,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    (pod,) = pods(of_head)
    probe = pod["containers"][0]["readinessProbe"]["exec"]["command"]
    token = [("--env", "RAY_AUTH_MODE=token"), ("--env", "RAY_AUTH_TOKEN=of-this-cluster-and-of-no-other-one")]
    flags = [*documented_flags(), *token, ("--shm-size", "512m"), ("--entrypoint", "ray")]
    with ExitStack() as stack:
        alone = [*flags, ("--network", "none")]
        head = stack.enter_context(_serving(alone, image, "start", "--block", "--head", *_params(of_head)))
        eventually(lambda: _inside(head, *probe).returncode == 0, 120)
        joined = [*flags, ("--network", f"container:{head}")]
        join = ("start", "--block", "--address=127.0.0.1:6379", *_params(of_worker))
        stack.enter_context(_serving(joined, image, *join))
        eventually(lambda: "8.0 sandbox_slots" in _inside(head, "ray", "status").stdout, 120)
        yield head


def _inside(container: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", "exec", container, *words], capture_output=True, text=True, check=False)


def _params(group: dict[str, Any]) -> list[str]:
    """As the operator passes them to ``ray start``, through a shell."""
    return [word for name, value in group["rayStartParams"].items() for word in shlex.split(f"--{name}={value}")]


def test_podman_runs_it_in_a_user_namespace_with_volumes_as_pods_have_them(image: str) -> None:
    packages.program("podman")
    folder = Path(tempfile.mkdtemp(prefix="rfi-"))
    engine = ["podman", f"--root={folder}/root", f"--runroot={folder}/run", "--cgroup-manager=cgroupfs",
              "--storage-driver=vfs", f"--runtime={packages.program('runc')}"]  # fmt: skip
    try:
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saved:
            subprocess.run([*engine, "load", "--quiet"], stdin=saved.stdout, check=True, capture_output=True)
        # By itself it raises limits, which not every root may.
        flags = [*_of_podman(folder), ("--ulimit", "nofile=1024:1024"), ("--ulimit", "nproc=1024:1024")]
        words = (*PROGRAM, f"localhost/{image}", "/in_image.py", "/workspace")
        told = _told(_run(flags, *words, engine=engine))
        assert told.items() >= EXPECTED.items() and "violation" in told["attempts"], told
        masked = [flag for flag in flags if "unmask=ALL" not in flag]
        assert "parts of /proc are covered" in _run(masked, *words, engine=engine).stderr
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _of_podman(folder: Path) -> list[tuple[str, ...]]:
    """The documented flags in its words; AppArmor is the host's, and volumes are as ``fsGroup`` leaves them."""
    others = {"systempaths=unconfined": "unmask=ALL"}
    flags = [(flag[0], *(others.get(value, value) for value in flag[1:])) for flag in documented_flags()
             if flag[0] not in ("--volume", "--tmpfs", "--read-only") and "apparmor" not in flag[1]]  # fmt: skip
    for number, place in enumerate(("/tmp", "/var/lib/ringfence")):
        volume = folder / f"volume-{number}"
        volume.mkdir()
        os.chown(volume, 100000, 110001)
        volume.chmod(0o2777)
        flags.append(("--volume", f"{volume}:{place}"))
    return [*flags, ("--read-only",), ("--read-only-tmpfs=false",), ("--uidmap=0:100000:65536",),
            ("--gidmap=0:100000:65536",)]  # fmt: skip
