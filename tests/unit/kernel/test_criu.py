"""What CRIU is told and says, what it is shown, and what the filter of restored processes comes to."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from pathlib import Path

import pytest

from ringfence.errors import UnavailableError
from ringfence.kernel import syscall_numbers
from ringfence.kernel.criu import criu
from ringfence.kernel.criu import dump as dumping
from ringfence.kernel.criu import processes as members
from ringfence.kernel.criu import restore as restoring
from ringfence.kernel.seccomp import bpf
from ringfence.kernel.seccomp import compile as seccomp
from ringfence.kernel.seccomp.chosen import profile_of
from ringfence.kernel.seccomp.rules import Kind, decide

pytestmark = pytest.mark.privileges

IDENTITY = 1879048255
HELD = {
    "NoNewPrivs": "1", "Seccomp": "2", "Uid": f"{IDENTITY} " * 4, "Gid": f"{IDENTITY} " * 4,
    **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16),
}  # fmt: skip


def _fake(folder: Path, script: str) -> None:
    (folder / "criu").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "criu").chmod(0o755)


@pytest.mark.system
@pytest.mark.parametrize(("script", "cause"), (
    ("", "is not installed"),
    ("echo Version: 3.17.1", "3.17.1, and 4.1 is needed"),
    ("echo hello", "of no known version"),
    ("test $1 = --version && echo Version: 4.2 && exit 0; echo 'Error (x.c:1): no such kernel' >&2; exit 1",
     "no such kernel"),
    ("exec /no/such/program", "no known version"),
))  # fmt: skip
def test_a_criu_that_is_of_no_use_is_refused_with_the_cause_and_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, cause: str
) -> None:
    if script:
        _fake(tmp_path, script)
    monkeypatch.setattr(criu, "_FOLDERS", str(tmp_path))
    for _ in range(2):  # it may be repaired between: what failed is asked again
        with pytest.raises(UnavailableError, match=re.escape(cause)) as error:
            criu.find()
    assert error.value.missing == ("criu",) and "install criu" in error.value.hint
    _fake(tmp_path, "test $1 = --version && echo Version: 4.1.1; exit 0")
    assert criu.find() == str(tmp_path / "criu")


def test_of_a_log_the_first_error_that_matters_is_told() -> None:
    always = b"(00.1) Error (criu/util.c:1): rlimit: Can't setup RLIMIT_NOFILE\n"
    log = always + b"(00.2) Error (x.c:2): the cause\n(00.3) Error (x): b\n"
    assert criu.told(log) == "the cause"
    assert criu.told(b"") == "criu gave no reason"


def test_the_filter_of_restored_processes_decides_as_any_visits_and_tells_of_all_that_it_refuses() -> None:
    ids = (1000, 1000)
    plain, told = (make("default", ids, watched=False) for make in (profile_of, restoring.profile))
    assert not [rule for rule in (*told.closed, told.unknown) if rule.action.kind is Kind.DENY]
    arch = syscall_numbers.architecture()
    own = syscall_numbers.AUDIT_ARCH[arch]
    for name, number in syscall_numbers.NUMBERS[arch].items():
        for args in ((0,) * 6, (1000,) * 6, (0x10000000,) * 6, (2**64 - 1,) * 6, (2, 1, 6, 0, 0, 0)):
            before, after = (decide(profile, number, args, own) for profile in (plain, told))
            if name == "setgroups":
                assert after.action.kind is Kind.WATCH_DENIED  # refused anyway: the namespace forbids it
                continue
            assert before.action.errno == after.action.errno, name
            kinds = (before.action.kind, after.action.kind)
            assert kinds[0] is kinds[1] or kinds == (Kind.DENY, Kind.WATCH_DENIED), name


@pytest.mark.parametrize("arch", sorted(syscall_numbers.NUMBERS))
@pytest.mark.parametrize("watched", (False, True))
def test_that_filter_can_be_installed_on_both_architectures(arch: str, watched: bool) -> None:
    program = seccomp.compile(restoring.profile("default", (1000, 1000), watched=watched), arch, notify=True)
    assert 0 < len(program) // bpf.INSTRUCTION_BYTES <= 4096  # the kernel's limit
    with_errno = [code for code in _returned(program) if code & 0xFFFF0000 == seccomp.RET_ERRNO]
    assert with_errno == []  # whatever it refuses, the supervisor is told


def _returned(program: bytes) -> list[int]:
    rows = struct.iter_unpack("=HBBI", program)
    return [value for code, _, _, value in rows if code == 0x06]  # BPF_RET | BPF_K


@pytest.mark.parametrize(("name", "value"), (
    ("NoNewPrivs", "0"), ("Seccomp", "0"), ("CapEff", "0000000000000001"), ("CapBnd", "000001ffffffffff"),
    ("CapAmb", "0000000000000400"), ("Uid", "0 0 0 0"), ("Gid", f"{IDENTITY} 0 {IDENTITY} {IDENTITY}"),
))  # fmt: skip
def test_a_restored_process_with_more_than_it_had_is_seen(name: str, value: str) -> None:
    assert restoring.unheld_status(HELD, IDENTITY) == ""
    assert name in restoring.unheld_status(HELD | {name: value}, IDENTITY)
    assert name in restoring.unheld_status({key: text for key, text in HELD.items() if key != name}, IDENTITY)


def test_mapped_files_are_shown_with_the_device_that_stat_names(tmp_path: Path) -> None:
    file = tmp_path / "mapped"
    file.write_text("x")
    found = file.stat()
    row = b"00400000-00401000 r-xp 00000000 ff:ff %d   %s\nSize: 4 kB\n"
    device = b"%02x:%02x" % (os.major(found.st_dev), os.minor(found.st_dev))
    changed = dumping._MAPPED.sub(dumping._as_stat, row % (found.st_ino, bytes(file)))
    assert device in changed and changed.endswith(b"\nSize: 4 kB\n")
    removed = row % (1, b"/no/such/file (deleted)")
    for other in (row % (found.st_ino + 1, bytes(file)), removed, b"00-01 rw-p 00 00:00 0\n"):
        assert dumping._MAPPED.sub(dumping._as_stat, other) == other


@pytest.mark.system
def test_members_are_those_of_one_pid_namespace_and_pipes_that_lead_out_are_found() -> None:
    with subprocess.Popen(["sleep", "1000"]) as other:
        me = next(member for member in members.of(other.pid) if member.pid == os.getpid())
        other.kill()
    assert not me.filtered and not me.stopped and me in members.below(me, [me])
    reader, writer = os.pipe()
    try:
        inode = os.fstat(reader).st_ino
        assert members.pipe_of(os.getpid(), reader) == inode
        assert inode not in dict(members.outer_pipes([me]))  # both ends are here
        os.close(reader)
        assert dict(members.outer_pipes([me]))[inode] == "w"
    finally:
        os.close(writer)
    assert __file__ not in members.paths_of(me.pid)
    with open(__file__):
        assert __file__ in members.paths_of(me.pid)
    assert members.status(2**30) == {} and members.threads(2**30) == [] and members.paths_of(2**30) == set()
