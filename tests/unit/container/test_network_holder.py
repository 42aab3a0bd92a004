"""The container that holds a job's network: its program, who may have one, and what the helper refuses to touch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ringfence.container import group_files, network_entry, network_holder
from ringfence.container.hardening import Bind, ContainerSpec, create_arguments
from ringfence.errors import SetupError, UsageError
from ringfence.model.policy import SandboxPolicy
from ringfence.sandbox import networks

INFO: dict[str, object] = {"SecurityOptions": ["name=seccomp"], "DefaultRuntime": "runc"}
HOLDER = "0123456789abcdef" * 4


def gateway(*entries: object) -> networks.GatewayPlan:
    return networks.gateway(SandboxPolicy(isolation="strict", network=entries))  # type: ignore[arg-type]


@pytest.mark.parametrize(("info", "runtime", "is_local", "words"), [
    (INFO, "", True, ""), (INFO, "crun", True, ""), ({}, "", True, ""), (INFO, "runsc", True, "runsc"),
    (INFO | {"DefaultRuntime": "runsc-kvm"}, "", True, "runsc-kvm"), (INFO, "kata", True, "kata"),
    (INFO, "", False, "on this host"), (INFO | {"Rootless": True}, "", True, "rootless"),
    (INFO | {"SecurityOptions": ["name=rootless"]}, "", True, "rootless"),
])  # fmt: skip
def test_who_has_no_network_that_can_be_entered_is_named(
    monkeypatch: pytest.MonkeyPatch, info: dict[str, object], runtime: str, is_local: bool, words: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    missing, fix = network_holder.why_not(info, runtime, is_local=is_local)
    assert words in missing and bool(missing) == bool(words) == bool(fix)


def test_an_ordinary_user_is_refused_before_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in network_holder.why_not(INFO, "", is_local=True)[0]


def test_the_jobs_container_joins_and_is_shown_ours(tmp_path: Path) -> None:
    listed, inspected = gateway("a.example"), gateway({"host": "a.example", "methods": ["GET"]})
    job = ContainerSpec(argv=("a",), image="i:1", binds=(Bind(source="/mine", target="/etc/resolv.conf"),))
    spec = network_holder.joining(job, HOLDER, "/folder", listed)
    assert spec.binds == (Bind(source="/folder/resolv.conf", target="/etc/resolv.conf"),) and not spec.environment
    body = create_arguments(spec)
    assert body["Hostname"] == "" and body["HostConfig"]["NetworkMode"] == f"container:{HOLDER}"  # type: ignore[index]
    trusting = network_holder.joining(job, HOLDER, "/folder", inspected)
    assert trusting.binds[-1].target == trusting.environment["SSL_CERT_FILE"] == networks.CERTIFICATES
    network_holder.lay(str(tmp_path), inspected, b"PEM")
    assert (tmp_path / "certificates.pem").read_bytes() == b"PEM"
    assert (tmp_path / "resolv.conf").read_text().startswith("nameserver 127.")
    holder = network_holder.holding(job, str(tmp_path))
    assert holder.network == "none" and holder.image == "i:1" and not holder.tmpfs and holder.seccomp


@pytest.mark.parametrize("other", ["somebody", "host", HOLDER[:-1], HOLDER.upper(), f"{HOLDER} "])
def test_a_network_is_joined_by_a_whole_id_only(other: str) -> None:
    with pytest.raises(UsageError, match="not a container id"):
        ContainerSpec(argv=("a",), network_of=other)


@pytest.mark.system
def test_its_program_waits_and_does_nothing_else(tmp_path: Path) -> None:
    network_holder.lay(str(tmp_path), gateway("a.example"), b"")
    with subprocess.Popen([str(tmp_path / "hold")], stdin=subprocess.DEVNULL, env={}) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.kill()
    assert process.returncode == -signal.SIGKILL


def test_both_programs_are_elf_files_of_their_architecture() -> None:
    for machine, number in (("x86_64", 62), ("aarch64", 183)):
        made = network_holder.program(machine)
        assert made[:4] == b"\x7fELF" and int.from_bytes(made[18:20], "little") == number and len(made) < 200


@pytest.mark.parametrize("members", ["", "0\n", "1\n2\n"])
def test_a_holder_that_can_not_be_told_is_not_entered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, members: str
) -> None:
    (tmp_path / "cgroup.procs").write_text(members)
    monkeypatch.setattr(group_files, "locate", lambda holder: {"pids": str(tmp_path)})
    monkeypatch.setattr(network_holder, "_LOOK_S", 0)
    with pytest.raises(SetupError, match="can't be found"):
        network_holder.lead(HOLDER, 0, gateway("a.example"))


def test_one_that_ended_meanwhile_is_not_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([[os.getpid()], []])
    monkeypatch.setattr(group_files, "members", lambda places: next(seen))
    with pytest.raises(SetupError, match="has ended"):
        network_holder.lead(HOLDER, 0, gateway("a.example"))


@pytest.mark.system
def test_the_network_of_this_host_is_never_touched() -> None:
    """By the whole way: the process that the group names is this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_files, "members", lambda places: [os.getpid()])
        with pytest.raises(SetupError, match="the network of this host"), open(os.devnull) as nobody:
            network_holder.lead(HOLDER, nobody.fileno(), gateway("a.example"))


@pytest.mark.system
@pytest.mark.root
def test_a_network_that_leads_anywhere_is_refused() -> None:
    assert network_entry.devices_up() == [] or "lo" not in network_entry.devices_up()
    code = ("import os, subprocess, sys; from ringfence.container import network_entry as entry\n"
            "inside = os.open('/proc/self/ns/net', 0)\n"
            "def up(*words): subprocess.run(['ip', 'link', *words], check=True)\n"
            "up('add', 'near', 'type', 'veth', 'peer', 'name', 'far')\n"
            "os.unshare(os.CLONE_NEWNET) if hasattr(os, 'unshare') else entry.namespaces.unshare(['net'])\n"
            "home = os.open('/proc/self/ns/net', 0)\n"
            "if sys.argv[1] == 'up':\n"
            " entry.namespaces.enter_network(inside); up('set', 'near', 'up'); entry.namespaces.enter_network(home)\n"
            "try: entry.lead(inside, 0, [], {})\n"
            "except OSError as error: print(error)")  # fmt: skip
    for way, said in (("up", "is not empty: it has near"), ("down", "")):
        ran = subprocess.run(["unshare", "--net", sys.executable, "-c", code, way], capture_output=True, text=True,
                             stdin=subprocess.DEVNULL, check=False)  # fmt: skip
        assert said in ran.stdout and ("not empty" in ran.stdout) == bool(said), ran
