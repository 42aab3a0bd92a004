"""What lies in deploy/ for containers: manifests, Dockerfile and profiles say the same as the table of flags.

They are started in test_image.py.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tests import packages
from tests.documented_flags import PAGE, documented_flags, pods, sandbox_pods
from tests.examples import program, written
from tests.examples.own_network import own_network

from release import container_seccomp

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = (DEPLOY / "kubernetes/ringfence.yaml", DEPLOY / "kuberay/raycluster.yaml")
DOCKERFILE = (DEPLOY / "image/Dockerfile").read_text()
# Each would be a way out of the container, or around the filters of sandboxes.
NEVER = ("bpf", "ptrace", "init_module", "finit_module", "kexec_load", "reboot", "open_by_handle_at", "fsopen",
         "perf_event_open", "io_uring_setup", "userfaultfd", "process_vm_writev", "swapon", "settimeofday",
         "chroot")  # fmt: skip
OF_POD = {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001,
          "seccompProfile": {"type": "Localhost", "localhostProfile": "ringfence/seccomp.json"},
          "appArmorProfile": {"type": "Localhost", "localhostProfile": "ringfence-container"}}  # fmt: skip
OF_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True,
                "procMount": "Unmasked"}  # fmt: skip


def test_every_flag_is_in_the_table_and_every_row_is_a_flag() -> None:
    rows = re.findall(r"^\| `(--[^`]+)` \|", PAGE, re.MULTILINE)
    assert sorted(" ".join(flag) for flag in documented_flags()) == sorted(rows)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_pod_with_sandboxes_has_what_the_table_says_and_nothing_more(path: Path) -> None:
    (pod,) = sandbox_pods(path)
    (container,) = pod["containers"]
    assert pod["securityContext"] == OF_POD and container["securityContext"] == OF_CONTAINER
    assert pod["hostUsers"] is False and pod["automountServiceAccountToken"] is False
    places = {each["mountPath"] for each in container["volumeMounts"]}
    assert {"/tmp", "/var/lib/ringfence"} <= places
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert not any("hostPath" in each for each in pod["volumes"])


def test_the_lines_of_the_page_are_those_of_the_manifest() -> None:
    pod = yaml.safe_load(written("docs/how-to/run-in-a-container.md", "localhostProfile"))["spec"]
    (container,) = pod.pop("containers")
    mounts, volumes = container.pop("volumeMounts"), pod.pop("volumes")
    assert pod == {"hostUsers": False, "securityContext": OF_POD}
    assert container == {"name": "ringfence", "securityContext": OF_CONTAINER}
    (whole,) = sandbox_pods(MANIFESTS[0])
    assert {each["mountPath"] for each in mounts} == {"/tmp", "/var/lib/ringfence"}
    assert [each for each in whole["containers"][0]["volumeMounts"] if each in mounts] == mounts
    assert [each for each in whole["volumes"] if each in volumes] == volumes
    assert {each["name"] for each in mounts} == {each["name"] for each in volumes}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_what_is_mounted_is_there_and_every_kubernetes_word_of_the_table_is_used(path: Path) -> None:
    for pod in pods(yaml.safe_load_all(path.read_text())):
        names = {each["name"] for each in pod["volumes"]}
        assert all(each["name"] in names for part in pod["containers"] for each in part["volumeMounts"])
    words = re.findall(r"^\| `--[^|]+\| `(\w+)", PAGE, re.MULTILINE)
    assert words and all(f"{word}:" in path.read_text() for word in words)


def test_the_head_of_a_cluster_has_the_engines_defaults() -> None:
    (cluster,) = yaml.safe_load_all(MANIFESTS[1].read_text())
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert head["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "procMount" not in head["securityContext"] and cluster["spec"]["authOptions"] == {"mode": "token"}
    slots = cluster["spec"]["workerGroupSpecs"][0]["rayStartParams"]["resources"]
    assert json.loads(json.loads(slots)) == {"sandbox_slots": 8}


def test_the_image_is_an_ordinary_users_and_names_no_registry() -> None:
    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE)[-1] == "10001:10001"
    assert re.search(r"^ARG BASE=python:3\.\d+-slim$", DOCKERFILE, re.MULTILINE)
    assert not re.search(r"--mount=|<<|# syntax", DOCKERFILE), "only BuildKit has that"


def test_the_profile_is_what_its_table_makes_it() -> None:
    assert container_seccomp.FILE.read_text() == container_seccomp.text()
    assert container_seccomp.page(PAGE) == PAGE
    rows = container_seccomp.profile()["syscalls"]
    assert isinstance(rows, list)
    opened = {name for row in rows if row["action"] == "SCMP_ACT_ALLOW" for name in row["names"]}
    assert container_seccomp.OPENED.keys() <= opened and not opened & set(NEVER)


def test_the_profile_for_apparmor_4_is_the_other_one_with_user_namespaces() -> None:
    older, newer = ((DEPLOY / "image" / name).read_text() for name in ("apparmor", "apparmor-4"))
    rules, with_namespaces = (each[each.index("#include") :] for each in (older, newer))
    assert "userns" not in rules and with_namespaces == rules.replace("  network,\n", "  userns,\n  network,\n")
    assert "-r deploy/image/apparmor\n" in older and "-r deploy/image/apparmor-4\n" in newer
    assert "deploy/image/apparmor-4" in PAGE and "add the line" not in PAGE + older


@pytest.mark.long
@pytest.mark.parametrize(("change", "accepted"), [(("", ""), True), (("  network,", "  network nonsense,"), False)])
def test_apparmor_accepts_the_profile(tmp_path: Path, change: tuple[str, str], accepted: bool) -> None:
    parser = packages.program("apparmor_parser")
    path = tmp_path / "profile"
    path.write_text((DEPLOY / "image/apparmor").read_text().replace(*change))
    done = subprocess.run([parser, "-Q", "-K", "-T", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is accepted, done.stderr


@pytest.mark.long
@pytest.mark.unmeasured
def test_the_commands_put_on_a_node_and_into_a_cluster_what_the_manifest_names(tmp_path: Path) -> None:
    """Without a kernel with AppArmor and a cluster: the parser does all but load, and kubectl only notes its words."""
    parser = packages.program("apparmor_parser")
    program(tmp_path, "apparmor_parser", f'test "$1" = -r && exec {parser} -Q -K -T "$2"')
    program(tmp_path, "kubectl", 'echo "$*" >> kubectl.txt')
    (tmp_path / "work").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "work" / "deploy").symlink_to(DEPLOY)
    with own_network(tmp_path, {"/var/lib": tmp_path / "lib"}) as network:
        network.shell(written("docs/how-to/run-in-a-container.md", "install -D deploy"))
    (pod,) = sandbox_pods(MANIFESTS[0])
    seccomp = pod["securityContext"]["seccompProfile"]["localhostProfile"]
    assert (tmp_path / "lib/kubelet/seccomp" / seccomp).read_text() == container_seccomp.text()
    name = pod["securityContext"]["appArmorProfile"]["localhostProfile"]
    assert f"\nprofile {name} " in (DEPLOY / "image/apparmor").read_text()
    (secret,) = (each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each)
    assert (tmp_path / "work/kubectl.txt").read_text().splitlines() == [
        f"create secret generic {secret} --from-file=tokens.yaml",
        f"apply -f {MANIFESTS[0].relative_to(ROOT)}"]  # fmt: skip
    (token,) = yaml.safe_load((tmp_path / "work/tokens.yaml").read_text())["tokens"]
    assert (token["name"], token["scopes"]) == ("ci", ["run", "read"])
