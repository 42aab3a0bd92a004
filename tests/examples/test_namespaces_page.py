"""docs/how-to/run-without-user-namespaces.md: its commands do what they say, and its lines are those of ``probe``."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ringfence.kernel.cgroup import fixes as cgroup_fixes
from ringfence.kernel.cgroup import group as cgroups
from ringfence.sandbox import container_around, host
from tests.examples import ROOT, program, shell, written
from tests.examples.own_network import own_network
from tests.testable import not_testable_here

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]

PAGE = (ROOT / "docs/how-to/run-without-user-namespaces.md").read_text("utf-8")
_FOR_GOOD = re.compile(r"`(echo '([\w.]+) = (\d+)' [^`]+)`")


def test_a_share_of_the_processor_in_a_scope(tmp_path: Path) -> None:
    """There is no systemd in charge where tests run: the stand-in notes its options and starts what they are for.

    In place of its scope root has the group that it may use. tests/hosts/test_cgroup_v2_guest.py has one that was
    delegated to an ordinary user.
    """
    if missing := cgroups.probe().missing("cpu_share"):
        not_testable_here(missing[0])
    program(tmp_path, "systemd-run", f'echo $1 $2 $3 $4 > {tmp_path}/options; shift 4; exec "$@"')
    (tmp_path / "work").mkdir()
    (tmp_path / "work/Makefile").write_text("test:\n\t@echo tested\n")
    text = written("docs/how-to/run-without-user-namespaces.md", "--cpu-share")
    assert shell(text, tmp_path) == "tested\n"
    assert (tmp_path / "options").read_text() == "--user --scope -p Delegate=yes\n"
    refused = shell(f"{text.strip()} || test $? = 2", tmp_path, {"RINGFENCE_CGROUP": "/no/such/group"})
    assert "cpu_share" in refused and "tested" not in refused


def test_each_cause_that_the_probe_names_is_in_the_table() -> None:
    around = (container_around.FILTERED, container_around.COVERED, container_around.CHROOT)
    causes = [problem for _, _, _, problem, _ in host._SWITCHES]
    causes += [problem for problem, _ in (*around, host._NO_KERNEL_SUPPORT)]
    assert [cause for cause in causes if f"\n| {cause} |" not in PAGE] == []


def test_what_lasts_sets_what_the_probe_sets_until_the_next_boot(tmp_path: Path) -> None:
    """The program that reads the files is a stand-in: the host's own would set the host's switches."""
    for_good = [(found[1].replace("\\|", "|"), f"{found[2]}={found[3]}") for found in _FOR_GOOD.finditer(PAGE)]
    fixes = {fix.removeprefix("sudo sysctl -w ") for *_, fix in host._SWITCHES}
    assert {setting for _, setting in for_good} == fixes
    program(tmp_path, "sudo", 'exec "$@"')
    program(tmp_path, "sysctl", 'test "$*" = --system && tr -d " " < /etc/sysctl.d/60-userns.conf')
    (tmp_path / "sysctl.d").mkdir()
    with own_network(tmp_path, {"/etc/sysctl.d": tmp_path / "sysctl.d"}) as network:
        for command, setting in for_good:
            assert network.shell(command).splitlines()[-1] == setting


def test_the_samples_are_what_the_probe_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, fix = next((problem, fix) for name, _, _, problem, fix in host._SWITCHES if "apparmor" in name)
    assert f"  no   user namespaces\n       missing: {problem}\n       fix:     {fix}\n" in PAGE
    monkeypatch.setattr(cgroup_fixes, "_systemd", lambda: True)
    monkeypatch.setattr(cgroup_fixes, "_read_only", lambda directory: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    group = "/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope"
    problem, fix = cgroup_fixes.not_delegated(group, 2, "/sys/fs/cgroup")
    assert f"       missing: a control group ({problem})\n       fix:     {fix}\n" in PAGE


def test_the_drop_in_is_the_probes_and_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = written("docs/how-to/run-without-user-namespaces.md", "user@.service.d")
    program(tmp_path, "sudo", 'exec "$@"')
    program(tmp_path, "systemctl", 'test "$*" = daemon-reload')
    (tmp_path / "system").mkdir()
    with own_network(tmp_path, {"/etc/systemd/system": tmp_path / "system"}) as network:
        network.shell(command)
    written_there = tmp_path / "system/user@.service.d/ringfence.conf"
    assert written_there.read_text() == "[Service]\nDelegate=cpu io memory pids\n"
    monkeypatch.setattr(cgroup_fixes, "_systemd", lambda: True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cgroup_fixes.no_controller("v2", "cpu", "/cg/a")[1] == command.strip()
