"""What a container around us closes is told with the flag that opens it; what it leaves open is not blamed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ringfence.kernel.mount import namespaces
from ringfence.sandbox import container_around as around

DOCKERS = 0xA80425FB
"""The capabilities of root in a container, by default."""
ALL = 0x1FFFFFFFFFF
COVERED = """\
10 9 0:50 / / rw - overlay overlay rw
20 10 0:51 / /proc rw - proc proc rw
21 20 0:51 /bus /proc/bus ro - proc proc rw
22 20 0:52 / /proc/acpi ro - tmpfs tmpfs ro
"""
PLAIN = """\
10 9 8:1 / / rw - ext4 /dev/sda rw
20 10 0:51 / /proc rw - proc proc rw
21 20 0:53 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw
"""
BESIDE = COVERED + "30 10 0:51 / /hostproc rw - proc proc rw\n"


@pytest.mark.parametrize(("held", "missing"), [(DOCKERS, ["SYS_PTRACE", "SYS_ADMIN"]), (ALL, []), (1 << 24 ^ ALL, [])])
def test_capabilities_that_root_lacks_are_named(tmp_path: Path, held: int, missing: list[str]) -> None:
    _write(tmp_path, "status", f"Name:\tx\nCapPrm:\t0\nCapEff:\t{held:016x}\n")
    assert around.missing_capabilities(str(tmp_path)) == missing


def test_root_is_told_to_be_somebody_else_and_an_ordinary_user_is_asked_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, "status", f"CapEff:\t{DOCKERS:016x}\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = around.closed(str(tmp_path))
    assert found is not None and "SYS_ADMIN" in found[0] and "--user" in found[1]
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    assert around.closed(str(tmp_path)) is None


@pytest.mark.parametrize(("table", "covered"), [(COVERED, True), (PLAIN, False), (BESIDE, False)])
def test_a_covered_proc_is_found_by_what_lies_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, covered: bool
) -> None:
    _write(tmp_path, "mountinfo", table)
    monkeypatch.setattr(around, "_device", lambda path, absent: absent + 1)
    assert around.is_proc_covered(str(tmp_path)) is covered
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    assert around.closed(str(tmp_path)) == (around.COVERED if covered else None)


def test_the_mount_table_is_not_read_where_nothing_is_covered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, "timer_list", "")
    _write(tmp_path, "mountinfo", COVERED)
    assert not around.is_proc_covered(str(tmp_path))


@pytest.mark.parametrize(
    ("step", "number", "word"),
    [("clone sources", errno.EINVAL, "ordinary user"), ("clone sources", errno.EPERM, ""), ("exec", errno.EINVAL, ""),
     ("file system /proc", errno.EPERM, "systempaths=unconfined"), ("file system /tmp", errno.EPERM, "")],
)
def test_a_failed_step_has_a_hint_only_where_the_cause_is_known(step: str, number: int, word: str) -> None:
    found = around.hint(step, number)
    assert word in found and bool(word) is bool(found)


@pytest.mark.parametrize("is_overlay", [True, False])
def test_a_layer_that_fails_blames_an_overlay_only_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, is_overlay: bool
) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr(around, "is_on_overlay", lambda path: is_overlay and path == "/nowhere")
    assert ("--tmpfs /nowhere" in around.hint("overlay /workspace", errno.EINVAL)) is is_overlay


@pytest.mark.system
@pytest.mark.parametrize("in_chroot", [False, True])
def test_a_chroot_is_told_before_anything_runs_and_by_the_step_that_fails(tmp_path: Path, in_chroot: bool) -> None:
    told = _told_by_a_child(tmp_path if in_chroot else None)
    assert told == (around.CHROOT[1] * 3 if in_chroot else around.CHROOT[1])


def _told_by_a_child(root: Path | None) -> str:
    """The hint in this root: before anything runs, when no leader comes up, and when a zygote fails."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if root is not None:
                if os.geteuid() != 0:
                    namespaces.unshare(["user"])  # in which everybody may change the root
                os.chroot(root)
            before = "" if around.is_a_mount("/") else around.CHROOT[1]
            failed = around.hint("lead", 0), around.hint("enter zygote", errno.EPERM)
            os.write(writer, "\n".join((before, *failed)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as told:
        text = told.read()
    os.waitpid(child, 0)
    return around.CHROOT[1] * text.count(around.CHROOT[1])


def _write(root: Path, name: str, text: str) -> None:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc" / (name if name == "timer_list" else f"self/{name}")).write_text(text)


@pytest.mark.parametrize("step", ["enter zygote", "enter namespaces"])
def test_namespaces_that_are_used_up_are_told_with_the_limit(step: str) -> None:
    assert "user.max_user_namespaces" in around.hint(step, errno.ENOSPC)
    assert around.hint("exec", errno.ENOSPC) == ""
