"""What depends on the architecture; run in a guest of the other one by test_other_machine_guest.py, never elsewhere.

Numbers, entries and layouts of system calls: each as this kernel has it, each filter installed for real, and STRICT
around it all. What is the same on every machine is tried outside, where it is quick.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import test_seccomp_attacks as seccomp_attacks
from forked import MINUS_ONE, Died, attempt, filtered, in_child
from test_seccomp_attacks import ALWAYS_CLOSED, FORBIDDEN, MARK, marked
from tests.escape import syscalls_attacks
from tests.escape.attack import ESCAPED, STRICT, Attack, Stage, control, perform
from tests.escape.raw_calls import calling

from ringfence import IsolationLevel, Job, Outcome, Pool, SandboxPolicy, Status, run
from ringfence.backends import conformance
from ringfence.kernel import syscalls
from ringfence.kernel.calls import native
from ringfence.kernel.seccomp.profiles import DEFAULT, TIGHT
from ringfence.kernel.syscall_numbers import NAMES, NUMBERS, X32_BIT, X86_64, architecture
from ringfence.model.events import EventKind

MIB = 1 << 20
PATIENCE_S = 300
"""What is no test of the deadline must not meet it: emulation on a busy machine is slow."""
PYTHON = (sys.executable, "-I", "-S", "-c")
ARCH = architecture()
ON_X86 = ARCH == X86_64

# ---- the tables

TRACING = "/sys/kernel/tracing"
EVENTS = ("raw_syscalls/sys_enter", "syscalls")
"""The first tells the number of a call, the second its name, in this order."""
OTHER_NAMES = {"newstat": "stat", "newlstat": "lstat", "newfstat": "fstat", "newuname": "uname", "umount": "umount2",
               "sendfile64": "sendfile", "fadvise64_64": "fadvise64", "arm64_personality": "personality"}  # fmt: skip
"""What the kernel's own functions are called where the call is not."""
NEVER_BACK = {"vfork", "exit", "exit_group", "rt_sigreturn", "pause"}
"""With these the caller goes no further."""


def test_the_kernel_has_our_name_for_every_number() -> None:
    names = sorted(NUMBERS[ARCH].keys() - NEVER_BACK)
    heard = _names_heard(lambda: [_try_number(NUMBERS[ARCH][name]) for name in names])
    assert len(heard) > 280
    wrong = [(number, name) for number, name in heard.items() if NAMES[ARCH].get(number) != name]
    assert not wrong, wrong


def _try_number(number: int) -> None:
    """With every argument -1 no call can do harm; only a fork succeeds."""
    if syscalls.libc().syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6) == 0 and NAMES[ARCH][number] == "fork":
        os._exit(0)


def _names_heard(work: Callable[[], object]) -> dict[int, str]:
    """Number and name of every call that a child made, as the kernel's own tracing tells them."""

    def traced() -> str:
        os.setsid()
        _write("set_event_pid", str(os.getpid()))
        for events in EVENTS:
            _write(f"events/{events}/enable", "1")
        work()
        return ""

    in_child(traced)
    _write("events/enable", "0")
    with open(f"{TRACING}/trace", encoding="ascii", errors="replace") as file:
        return _parsed(file.read())


def _write(name: str, text: str) -> None:
    with open(f"{TRACING}/{name}", "w", encoding="ascii") as file:
        file.write(text)


def _parsed(trace: str) -> dict[int, str]:
    heard: dict[int, str] = {}
    number = -1
    for told, name in re.findall(r": sys_(?:enter: NR (\d+) |(\w+)\()", trace):
        if told:
            number = int(told)
        else:
            heard[number] = OTHER_NAMES.get(name, name)
    return heard


# ---- the filters


def test_the_kernel_sees_no_closed_call() -> None:
    def work() -> dict[str, int]:
        return {call: attempt(call, *MINUS_ONE)() for call in ALWAYS_CLOSED}

    assert filtered(marked(DEFAULT), work) == dict.fromkeys(ALWAYS_CLOSED, MARK)


@pytest.mark.parametrize("call", FORBIDDEN)
def test_a_call_that_only_an_attack_makes_ends_the_process(call: str) -> None:
    with pytest.raises(Died) as caught:
        filtered(DEFAULT, attempt(call, *MINUS_ONE))
    assert caught.value.signal == signal.SIGSYS


# Those in which a number, a flag or the place of an argument might be another on another machine.
NAMES_OF_FILTERED = ("type into the terminal", "io_uring", "seize a sibling", "user namespace by clone",
                     "the same, bits in the upper half", "user namespace by clone3", "a child that is a sibling",
                     "read implies execute", "a whiteout", "a whiteout by rename", "netlink uevents")  # fmt: skip


def _make_an_old_whiteout() -> int:
    """By the call that only the older architecture has."""
    with tempfile.TemporaryDirectory() as directory:
        return attempt("mknod", os.fsencode(directory) + b"/whiteout", 0o020600, 0)()


FILTERED = {name: seccomp_attacks.ATTACKS[name] for name in NAMES_OF_FILTERED}
FILTERED |= {"a whiteout by the old call": (_make_an_old_whiteout, errno.EPERM)} if ON_X86 else {}


@pytest.mark.parametrize("name", FILTERED)
def test_an_attack_that_works_without_the_filter_fails_under_it(name: str) -> None:
    attack, code = FILTERED[name]
    assert in_child(attack) == 0
    assert filtered(DEFAULT, attack) == code


@pytest.mark.parametrize("name", seccomp_attacks.NATIVE_TIGHT)
def test_the_tight_filter_stops_network_and_processes(name: str) -> None:
    attack, code = seccomp_attacks.NATIVE_TIGHT[name]
    assert filtered(TIGHT, attack) == code


def test_a_call_with_the_bit_of_the_x32_interface_is_no_call_of_ours() -> None:
    def work() -> int:
        syscalls.libc().syscall(ctypes.c_long(X32_BIT | NUMBERS[ARCH]["getpid"]))
        return ctypes.get_errno()

    assert in_child(work) in (0, errno.ENOSYS), "the kernel itself ends nobody, whether it has the interface or not"
    if not ON_X86:
        assert filtered(marked(DEFAULT), work) == MARK, "there it is a number without a name"
        return
    with pytest.raises(Died) as caught:
        filtered(DEFAULT, work)
    assert caught.value.signal == signal.SIGSYS


# ---- STRICT


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """The first sandbox loads everything, which takes longer here than the short deadlines of some checks."""
    assert _run("pass").status is Status.OK


PATIENT = {"wall_time_s": PATIENCE_S, "cpu_time_s": PATIENCE_S}


def _run(source: str, **policy: object) -> Outcome:
    return run([*PYTHON, source], SandboxPolicy(isolation=IsolationLevel.STRICT, **PATIENT, **policy))


@pytest.fixture
def stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="stage-", dir="/var/tmp") as name, Stage(Path(name)) as made:
        os.chmod(name, 0o755)
        made.policy |= PATIENT
        yield made


NAMES_OF_ATTACKS = {"a 32-bit program", *(("int 0x80", "modify_ldt", "iopl") if ON_X86 else ())}
ATTACKS = [attack for attack in syscalls_attacks.ATTACKS if attack.name in NAMES_OF_ATTACKS]


def test_this_machine_can_run_the_attacks_that_are_named_here() -> None:
    assert {attack.name for attack in ATTACKS if attack.possible} == NAMES_OF_ATTACKS


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_on_an_entry_of_this_machine_fails(attack: Attack, stage: Stage) -> None:
    told = control(attack, stage)
    assert ESCAPED in told, told
    outcome = perform(attack, STRICT, stage)
    told = outcome.stdout + outcome.stderr
    assert ESCAPED not in outcome.stdout, told
    assert not attack.status or str(outcome.status) in attack.status, (outcome.reason, told)


def test_a_forbidden_call_is_named_with_its_interface() -> None:
    number = X32_BIT | NUMBERS[ARCH]["getpid"] if ON_X86 else NUMBERS[ARCH]["reboot"]
    outcome = _run(f"import ctypes\nctypes.CDLL(None).syscall({number}, 0, 0, 0, 0)")
    assert outcome.status is Status.FORBIDDEN_SYSCALL, outcome.reason
    assert ("x32 getpid" if ON_X86 else "reboot") in outcome.reason


def test_the_command_runs_a_program_in_a_strict_sandbox() -> None:
    words = [sys.executable, "-m", "ringfence", "run", "--strict", "--discard", "--wall", str(PATIENCE_S), "--"]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "XDG_STATE_HOME": "/tmp/state"}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        script = "echo $$; uname -m; echo x > made; exit 7"
        done = subprocess.run([*words, "/bin/sh", "-c", script], capture_output=True, env=variables, cwd=folder)
        left = os.listdir(folder)
    assert (done.returncode, done.stdout, left) == (7, f"2\n{ARCH}\n".encode(), []), done.stderr


def test_pid_one_is_the_program_that_was_compiled_for_this_machine() -> None:
    """The job takes over the memory of both: its threads, signals and children are those of any process."""
    assert native.library() is not None
    source = ("import os, signal, subprocess, threading\nprint(open('/proc/1/comm').read().strip(), os.getpid())\n"
              "thread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join()\n"
              "print(subprocess.run(['true']).returncode, flush=True)\n"
              "os.kill(os.getpid(), signal.SIGTERM)")  # fmt: skip
    outcome = _run(source)
    assert (outcome.stdout, outcome.status) == (b"init 2\nthread\n0\n", Status.KILLED_TERM), outcome


def test_a_sandbox_that_stood_by_runs_python_jobs() -> None:
    with Pool(SandboxPolicy(isolation=IsolationLevel.STRICT, **PATIENT), warm=1) as pool:
        told = [pool.run_source(f"import threading; print({number} + 1)").stdout for number in range(3)]
    assert told == [b"1\n", b"2\n", b"3\n"]


def test_memory_is_bounded() -> None:
    source = "block = bytearray(48 << 20); print('had it')"
    held, free = (_run(source, mem_bytes=size * MIB) for size in (32, 256))
    assert (held.status, held.stdout) == (Status.MEM_LIMIT, b""), held.reason
    assert (free.status, free.stdout) == (Status.OK, b"had it\n"), free.reason


QUICK = [check for check in conformance.CHECKS if check.name in ("processes", "deadline")]


@pytest.mark.parametrize("check", QUICK, ids=lambda check: check.name)
def test_the_backend_conforms(check: conformance.Check) -> None:
    finding = conformance.perform_one(run, IsolationLevel.STRICT, check)
    assert finding.held, finding.problem
    assert finding.proven, finding.problem


# What only the older architecture has; there each of these reaches a file like its successor.
OLD_CALLS = {"open": "0, 0", "stat": "BUFFER", "lstat": "BUFFER", "access": "0", "readlink": "BUFFER, 99",
             "chmod": "0o777", "truncate": "0", "unlink": ""}  # fmt: skip
NEW_CALLS = {"openat": "0, 0", "newfstatat": "BUFFER, 0", "faccessat": "0", "unlinkat": "0"}


def _reaching(path: str) -> tuple[list[str], str]:
    """The names of these calls and a program that tries each of them on a path."""
    old = [(name, f"{path!r}.encode(), {rest}") for name, rest in OLD_CALLS.items() if name in NUMBERS[ARCH]]
    new = [(name, f"-100, {path!r}.encode(), {rest}") for name, rest in NEW_CALLS.items()]
    names = [name for name, _ in (*old, *new)]
    tries = "".join(f"print({name!r}, call({name!r}, {arguments})[1])\n" for name, arguments in (*old, *new))
    return names, "import ctypes, os\nBUFFER = ctypes.create_string_buffer(256)\n" + calling(*names) + tries


def test_a_hidden_path_is_absent_for_every_call_and_each_is_recorded() -> None:
    with tempfile.TemporaryDirectory(prefix="data-", dir="/var/tmp") as directory:
        hidden = Path(directory) / "answers"
        hidden.write_text("secret")
        names, source = _reaching(str(hidden))
        policy = SandboxPolicy(isolation="strict", hidden_paths=(str(hidden),), **PATIENT)
        outcome = run(Job(argv=(*PYTHON, source), cwd=directory), policy)
        assert hidden.read_text() == "secret"
        found = subprocess.run([*PYTHON, source], capture_output=True, check=True).stdout.split()
    assert b"%d" % errno.ENOENT not in found[: 2 * names.index("unlink" if ON_X86 else "unlinkat")], "the control"
    assert outcome.stdout.decode().splitlines() == [f"{name} {errno.ENOENT}" for name in names], outcome
    violations = [event.details for event in outcome.events if event.kind is EventKind.VIOLATION]
    assert [told["syscall"] for told in violations] == names
    assert {told["path"] for told in violations} == {str(hidden)}
