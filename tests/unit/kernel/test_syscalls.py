import ctypes
import errno
import os
import subprocess
import sys

import pytest
from seccompy import syscalls as second_opinion

from ringfence.kernel import syscalls
from ringfence.kernel.syscall_numbers import AUDIT_ARCH, NAMES, NUMBERS, name_of, name_of_audited


@pytest.mark.parametrize(
    ("arch", "theirs"),
    [("x86_64", second_opinion.X86_64_SYSCALLS), ("aarch64", second_opinion.AARCH64_SYSCALLS)],
)
def test_the_tables_agree_with_another_implementation(arch: str, theirs: dict[str, int]) -> None:
    assert len(theirs) > 300
    shared = NUMBERS[arch].keys() & theirs.keys()
    assert {name: NUMBERS[arch][name] for name in shared} == {name: theirs[name] for name in shared}
    # What only they have: second names of the same call, and 403 to 423, which 32-bit systems have.
    assert all(
        theirs[name] in NAMES[arch] or 403 <= theirs[name] <= 423 for name in theirs.keys() - shared
    )


@pytest.mark.parametrize(("arch", "count"), [("x86_64", 385), ("aarch64", 327)])
def test_every_name_has_its_own_number(arch: str, count: int) -> None:
    assert len(NUMBERS[arch]) == len(NAMES[arch]) == count
    assert all(NUMBERS[arch][name] == number for number, name in NAMES[arch].items())


@pytest.mark.parametrize(
    ("number", "arch", "name"),
    [
        (59, "x86_64", "execve"),
        (221, "aarch64", "execve"),
        (471, "x86_64", "rseq_slice_yield"),
        (9999, "aarch64", "call 9999"),
        (0x40000000 | 59, "x86_64", "x32 execve"),
        (0x40000000 | 9999, "x86_64", "x32 call 9999"),
        (0x80000000 | 59, "x86_64", "call 2147483707"),
        (0xC0000000 | 59, "x86_64", "call 3221225531"),
        (0xFFFFFFFF, "x86_64", "call 4294967295"),
    ],
)
def test_a_number_has_a_name_for_people(number: int, arch: str, name: str) -> None:
    assert name_of(number, arch) == name
    assert name_of_audited(number, AUDIT_ARCH[arch]) == name


@pytest.mark.parametrize(
    ("audit_arch", "name"), [(0x40000003, "i386 call 11"), (0x40000028, "arm call 11"), (5, "0x5 call 11")]
)
def test_a_foreign_call_is_named_by_its_architecture(audit_arch: int, name: str) -> None:
    assert name_of_audited(11, audit_arch) == name


def test_a_call_returns_what_the_kernel_returns() -> None:
    assert syscalls.call("getpid") == os.getpid()
    buffer = ctypes.create_string_buffer(64)
    assert syscalls.call("uname", ctypes.byref(ctypes.create_string_buffer(400))) == 0
    assert syscalls.call("getrandom", buffer, 64, 0) == 64
    assert buffer.raw != bytes(64)


def test_a_failed_call_is_an_oserror_that_names_the_call() -> None:
    with pytest.raises(OSError, match="openat: No such file") as caught:
        syscalls.call("openat", -100, b"/nowhere", os.O_RDONLY, 0)
    assert caught.value.errno == errno.ENOENT


def test_a_call_that_this_architecture_lacks_does_not_exist() -> None:
    with pytest.raises(OSError, match="no_such_call") as caught:
        syscalls.call("no_such_call")
    assert caught.value.errno == errno.ENOSYS


@pytest.mark.system
def test_the_profiles_load_nothing_slow() -> None:
    loaded = loaded_by("ringfence.kernel.seccomp.compile, ringfence.kernel.seccomp.profiles")
    assert "ringfence.kernel.seccomp.profiles" in loaded
    assert {"dataclasses", "inspect", "typing", "re", "ctypes"}.isdisjoint(loaded)


@pytest.mark.system
def test_what_runs_inside_loads_nothing_heavy() -> None:
    loaded = loaded_by("ringfence.kernel.seccomp.compile, ringfence.kernel.landlock, ringfence.kernel.seccomp.notify")
    assert "ringfence.kernel.seccomp.compile" in loaded
    heavy = {"dataclasses", "typing", "re", "json", "subprocess", "enum", "ctypes", "logging", "inspect"}
    assert heavy.isdisjoint(loaded)


def loaded_by(modules: str) -> set[str]:
    script = f"import sys; sys.path[:] = {sys.path!r}; import {modules}; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", script]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
