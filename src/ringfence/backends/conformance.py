"""The suite that every backend must pass, as data: an attack, the promise it tests, and a control.

Each probe is a small program that prints ``ESCAPED`` when it got what it must not get. It runs twice:
in the sandbox, where it must fail in the way that is promised, and plainly on the host as the positive
control, where it must succeed. A check whose control fails proves nothing, and says so.

The suite is given the engine's ``run``; it does not import upwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from ringfence.backends.facts import Traits
from ringfence.model.job import Job
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import STATUS_OF, Outcome, Status
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import record

Run = Callable[[Job, SandboxPolicy], Outcome]
CANARY = "RINGFENCE_CANARY"
ESCAPED = b"ESCAPED"
_PYTHON = (sys.executable, "-I", "-S", "-c")
_HERE = Traits()
"""For a level whose jobs use the caller's own interpreter."""
_SETTLE_S, _CONTROL_S = 2.6, 15.0
"""How long we wait for survivors of a job to show themselves: the least, and the most for the control, which tells how
long this host takes."""


@record
class Check:
    """One promise with its attack."""

    name: str
    promise: str
    probe: str
    policy: Mapping[str, object] = MappingProxyType({})
    expect: Status | None = None
    """Absent: any status will do as long as the probe did not escape."""
    aftermath: bool = False
    """The probe leaves ``marker`` (its first argument) when it escaped, some time after its end."""


@record
class Finding:
    """How one check went."""

    check: Check
    held: bool
    proven: bool
    """The control succeeded: without the sandbox the probe really gets what it is after."""
    problem: str = ""


_DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {before}
        time.sleep(2)
        open(sys.argv[1], "w").close()
        time.sleep(30)
    os._exit(0)
time.sleep({stay})
"""
_MEMORY = """
import os, time
def hog(mib):
    block = bytearray(mib << 20)
    for place in range(0, len(block), 4096): block[place] = 1
    return block
"""

CHECKS: tuple[Check, ...] = (
    Check(name="deadline", promise="a program is ended at the deadline", expect=Status.TIMEOUT,
          probe="import time; time.sleep(1); print('ESCAPED')", policy={"wall_time_s": 0.4}),
    Check(name="deadline ignores", promise="a program that ignores every signal is ended at the deadline",
          expect=Status.TIMEOUT, policy={"wall_time_s": 0.4},
          probe="import signal, time\nfor n in (1, 2, 3, 15, 24): signal.signal(n, signal.SIG_IGN)\n"
                "time.sleep(1); print('ESCAPED')"),
    Check(name="deadline stopped", promise="a stopped tree is ended at the deadline", expect=Status.TIMEOUT,
          policy={"wall_time_s": 0.4}, aftermath=True,
          probe="import os, signal, sys, time\nif os.fork() == 0:\n os.kill(os.getppid(), signal.SIGSTOP)\n"
                " time.sleep(0.8); open(sys.argv[1], 'w').close(); os._exit(0)\ntime.sleep(1)"),
    Check(name="daemon", promise="a double-forked daemon in its own session ends with the job",
          probe=_DAEMON.format(before="pass", stay=0), aftermath=True, expect=Status.OK),
    Check(name="daemon deadline", promise="a double-forked daemon ends at the deadline",
          probe=_DAEMON.format(before="pass", stay=20), aftermath=True, expect=Status.TIMEOUT,
          policy={"wall_time_s": 0.4}),
    Check(name="daemon deaf", promise="a daemon that ignores SIGTERM and SIGHUP ends with the job",
          probe=_DAEMON.format(before="import signal; signal.signal(15, signal.SIG_IGN); "
                                      "signal.signal(1, signal.SIG_IGN)", stay=0),
          aftermath=True, expect=Status.OK),
    Check(name="pipe holder", promise="a child that holds the output open does not hold the caller",
          probe=_DAEMON.format(before="pass", stay=0), aftermath=True, expect=Status.OK,
          policy={"wall_time_s": 25}),
    Check(name="processor time", promise="processor time is bounded", expect=Status.CPU_LIMIT,
          policy={"cpu_time_s": 0.2},
          probe="import time\nend = time.process_time() + 1.5\nwhile time.process_time() < end: pass\n"
                "print('ESCAPED')"),
    Check(name="processor time deaf", promise="ignoring SIGXCPU does not help", expect=Status.CPU_LIMIT,
          policy={"cpu_time_s": 0.2},
          probe="import signal, time\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
                "end = time.process_time() + 1.5\nwhile time.process_time() < end: pass\nprint('ESCAPED')"),
    Check(name="processor time tree", promise="the processor time of many processes together is bounded",
          expect=Status.CPU_LIMIT, policy={"cpu_time_s": 0.2},
          probe="import os, time\nkids = []\nfor _ in range(5):\n pid = os.fork()\n if pid == 0:\n"
                "  while time.process_time() < 0.4: pass\n  os._exit(0)\n kids.append(pid)\n"
                "ends = [os.waitpid(pid, 0)[1] for pid in kids]\nif not any(ends): print('ESCAPED')"),
    Check(name="memory", promise="the memory of one process is bounded", expect=Status.MEM_LIMIT,
          policy={"mem_bytes": 200 << 20}, probe=_MEMORY + "hog(400); print('ESCAPED')"),
    Check(name="memory tree", promise="the memory of many small processes together is bounded",
          expect=Status.MEM_LIMIT, policy={"mem_bytes": 200 << 20},
          probe=_MEMORY + "kids = []\nfor _ in range(6):\n pid = os.fork()\n if pid == 0:\n"
                "  block = hog(60); time.sleep(0.8); os._exit(0)\n kids.append(pid)\n"
                "ends = [os.waitpid(pid, 0)[1] for pid in kids]\nif not any(ends): print('ESCAPED')"),
    Check(name="processes", promise="the number of processes is bounded", policy={"pids_max": 8},
          expect=Status.PIDS_LIMIT,
          # It stays a moment after a refusal: in a container what was refused is forgotten with the last process.
          probe="import os, time\nkids = []\nfor _ in range(20):\n try: pid = os.fork()\n"
                " except OSError: time.sleep(0.8); raise\n if pid == 0:\n"
                "  time.sleep(0.8); os._exit(0)\n kids.append(pid)\n"
                "ends = [os.waitpid(pid, 0)[1] for pid in kids]\nif not any(ends): print('ESCAPED')"),
    Check(name="threads", promise="the number of threads is bounded", policy={"pids_max": 8},
          expect=Status.PIDS_LIMIT,
          probe="import _thread, time\nfor _ in range(20):\n try: _thread.start_new_thread(time.sleep, (0.8,))\n"
                " except RuntimeError: time.sleep(0.8); raise\ntime.sleep(0.8); print('ESCAPED')"),
    Check(name="descriptors", promise="the number of open descriptors is bounded",
          expect=Status.NOFILE_LIMIT, policy={"nofile": 64},
          probe="import os\nfor _ in range(100): os.open('/dev/null', 0)\nprint('ESCAPED')"),
    Check(name="file size", promise="the size of a file is bounded", expect=Status.FILE_SIZE_LIMIT,
          policy={"file_bytes": 1 << 20},
          probe="import os\nwith open('big', 'wb') as file:\n for _ in range(3): file.write(bytes(1 << 20))\n"
                "print('ESCAPED')"),
    Check(name="disk", promise="the bytes written to storage are bounded", expect=Status.DISK_LIMIT,
          policy={"disk_bytes": 4 << 20},
          probe="import os, time\nwith open('f', 'wb') as file:\n for _ in range(24):\n  file.write(bytes(1 << 20))\n"
                "  file.flush(); os.fsync(file.fileno()); time.sleep(0.02)\nprint('ESCAPED')"),
    Check(name="output", promise="output beyond the bound ends the job where that is asked for",
          expect=Status.OUTPUT_LIMIT, policy={"output_bytes": 4096, "on_output_limit": "kill"},
          probe="import os, time\nos.write(1, b'x' * 60000)\ntime.sleep(1)\nos.write(1, b'ESCAPED')"),
    Check(name="environment", promise="the caller's environment stays with the caller", expect=Status.OK,
          probe=f"import os\nif os.environ.get('{CANARY}'): print('ESCAPED')"),
    Check(name="inherited descriptor", promise="no descriptor of the caller is inherited", expect=Status.OK,
          probe=f"import os\nfor fd in range(3, 1024):\n try: text = os.pread(fd, 64, 0)\n"
                f" except OSError: continue\n if b'{CANARY}' in text: print('ESCAPED')"),
    Check(name="terminal", promise="the caller's session is out of reach", expect=Status.OK,
          probe="import os, sys\nif os.getsid(0) == int(sys.argv[2]): print('ESCAPED')"),
    Check(name="privileges", promise="a set-user-id program gains nothing", expect=Status.OK,
          probe="for line in open('/proc/self/status'):\n"
                " if line.startswith('NoNewPrivs') and line.split()[1] == '0': print('ESCAPED')"),
)  # fmt: skip

_BAIT = "import os, sys\nbait = os.path.join(os.path.dirname(sys.argv[1]), 'bait')\n"
APART: tuple[Check, ...] = (
    Check(name="hidden file", promise="a file of the host that the policy does not show can't be read",
          expect=Status.OK, probe=_BAIT + "try:\n if open(bait).read(): print('ESCAPED')\nexcept OSError: pass"),
    Check(name="host file", promise="a file of the host that the policy does not show can't be changed",
          expect=Status.OK,
          probe=_BAIT + "try:\n with open(bait, 'r+') as file: file.write('x')\n print('ESCAPED')\n"
                        "except OSError: pass"),
    Check(name="host process", promise="the host's other processes can't be seen", expect=Status.OK,
          probe="import sys\npid, start = sys.argv[4].split()\ntry: text = open(f'/proc/{pid}/stat').read()\n"
                "except OSError: text = ''\nif start in text.rpartition(')')[2].split(): print('ESCAPED')"),
    Check(name="network", promise="the host's network can't be reached, not even its loopback", expect=Status.OK,
          probe="import socket, sys\ntry: socket.create_connection(('127.0.0.1', int(sys.argv[3])), 5); "
                "print('ESCAPED')\nexcept OSError: pass"),
    Check(name="system calls", promise="dangerous system calls are closed: no new user namespace can be made",
          expect=Status.OK, probe="import ctypes\nif ctypes.CDLL(None).unshare(0x10000000) == 0: print('ESCAPED')"),
)  # fmt: skip
"""For levels whose jobs have only those of the host's files that are shown to them."""


_FORKS, _SIGNALS = "there is no fork", "there are no signals"
ON_WINDOWS: Mapping[str, tuple[str, str]] = {
    "deadline ignores": (_SIGNALS, ""),
    "deadline stopped": (f"{_FORKS}, and {_SIGNALS}", "nothing_outlives_a_job"),
    "daemon": (_FORKS, "nothing_outlives_a_job"),
    "daemon deadline": (_FORKS, "nothing_outlives_a_job"),
    "daemon deaf": (f"{_FORKS}, and {_SIGNALS}", "nothing_outlives_a_job"),
    "pipe holder": (_FORKS, "nothing_outlives_a_job"),
    "processor time deaf": (_SIGNALS, ""),
    "processor time tree": (_FORKS, "processor_time_of_the_tree_is_bounded"),
    "memory tree": (_FORKS, "memory_of_the_tree_is_bounded"),
    "processes": (_FORKS, "the_number_of_processes_is_bounded"),
    "threads": ("job objects count processes, not threads", ""),
    "descriptors": ("handles of all kinds are counted, by a check every 25 ms, and not refused", "handles_are_bounded"),
    "file size": ("there is no limit for the size of a file", ""),
    "inherited descriptor": ("what is inherited are handles", "no_handle_is_inherited_but_what_is_named"),
    "terminal": ("there are no sessions; a job has a console of its own without a window", ""),
    "privileges": ("a token without privileges is used instead of no_new_privs", "privileges_are_gone"),
}
"""Checks that can't run on Windows, by name: why, and the check of tests/programs/windows_checks.py that makes the same
attack there. Without such a check, Windows does not get the promise."""


def checks_here(windows: bool = os.name == "nt", traits: Traits = _HERE) -> tuple[Check, ...]:
    """Return those that this system can run, for a level with these traits."""
    checks = (*CHECKS, *APART) if traits.files_apart else CHECKS
    return tuple(check for check in checks if not (windows and check.name in ON_WINDOWS))


def perform(
    run: Run, level: IsolationLevel, policy: SandboxPolicy | None = None, traits: Traits = _HERE
) -> Iterator[Finding]:
    """Every check that this system can run on one level, one after the other."""
    for check in checks_here(traits=traits):
        yield perform_one(run, level, check, policy, traits)


def perform_one(
    run: Run, level: IsolationLevel, check: Check, policy: SandboxPolicy | None = None, traits: Traits = _HERE
) -> Finding:
    """The attack without the sandbox, then the same attack in it. ``traits``: of the level."""
    with _Bait() as bait:
        needed_s = _control(check, bait)
    proven = needed_s is not None
    problem = attack(run, level, check, policy, settle_s=max(_SETTLE_S, needed_s or 0), traits=traits)
    broken = bool(problem)
    if not broken and not proven:
        problem = "this host stops the probe even without the sandbox, so nothing was shown"
    return Finding(check=check, held=not broken, proven=proven, problem=problem)


def attack(
    run: Run, level: IsolationLevel, check: Check, policy: SandboxPolicy | None = None, settle_s: float = _SETTLE_S,
    traits: Traits = _HERE,
) -> str:  # fmt: skip
    """The attack without its control, for another way to run under the same level; what went wrong, or nothing."""
    plain = (policy or SandboxPolicy()).to_dict() | {"isolation": str(level)}
    with _Bait() as bait:
        return _attack(run, SandboxPolicy.from_dict(plain | dict(check.policy)), check, bait, settle_s, traits)


def _attack(run: Run, policy: SandboxPolicy, check: Check, bait: _Bait, settle_s: float, traits: Traits) -> str:
    marker = bait.marker("attack")
    python = (traits.python, *_PYTHON[1:]) if traits.python else _PYTHON
    outcome = run(Job(argv=(*python, check.probe, marker, *bait.words())), policy)
    if ESCAPED in outcome.stdout:
        return "the probe escaped"
    if check.expect is not None and outcome.status not in _expected(check.expect, traits):
        told = outcome.stderr[-300:].decode("utf-8", "replace")
        return f"ended with {outcome.status} ({outcome.reason}), not {check.expect}: {told!r}"
    if check.aftermath and _appears(marker, settle_s):
        return "something outlived the job"
    return ""


def _expected(status: Status, traits: Traits) -> tuple[Status, ...]:
    """A limit that ends a job is its status, or, where the level can't tell, the job's own failure."""
    untold = {STATUS_OF[name] for name in traits.untold}
    return (status, Status.FAILED) if status in untold else (status,)


def _control(check: Check, bait: _Bait) -> float | None:
    """How long the probe takes to succeed without protection; None: it does not, so the attack proves nothing."""
    start = time.monotonic()
    marker = bait.marker("control")
    command = [*_PYTHON, check.probe, marker, *bait.words()]
    plain = subprocess.Popen(command, stdout=subprocess.PIPE, close_fds=False, cwd=bait.folder)
    assert plain.stdout is not None
    if check.aftermath:
        escaped = _appears(marker, _CONTROL_S)
        _end_session_strays(marker)
    else:
        escaped = ESCAPED in plain.stdout.read()
    plain.kill()
    plain.stdout.close()
    plain.wait()
    return time.monotonic() - start if escaped else None


def _own_start() -> str:
    """When this process began, in the kernel's ticks: with its pid, that is a process and no other."""
    try:
        with open("/proc/self/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode("ascii")
    except OSError:
        return "-"


def _appears(path: str, within_s: float) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if os.path.exists(path):
            return True
        time.sleep(0.02)
    return False


def _end_session_strays(marker: str) -> None:
    """End the control's own daemon, which is still there; the marker on its command line identifies it."""
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if os.fsencode(marker) in file.read():
                    os.kill(int(name), 9)
        except OSError:
            continue


class _Bait:
    """What the probes are after: a variable, an inheritable descriptor, a file, a server, a place for markers."""

    def __enter__(self) -> _Bait:
        import socket
        import tempfile

        self._folder = tempfile.TemporaryDirectory(prefix="ringfence-check-")
        self.folder = self._folder.name
        os.chmod(self.folder, 0o777)
        os.environ[CANARY] = "1"
        bait = os.path.join(self.folder, "bait")
        with open(bait, "w", encoding="ascii") as file:
            file.write(CANARY)
        self._descriptor = os.open(bait, os.O_RDONLY)
        os.set_inheritable(self._descriptor, True)
        self._server = socket.create_server(("127.0.0.1", 0))
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.pop(CANARY, None)
        os.close(self._descriptor)
        self._server.close()
        self._folder.cleanup()

    def words(self) -> tuple[str, ...]:
        """What probes are told, after their marker: the caller's session, a port that it listens on, its process."""
        session = str(os.getsid(0)) if hasattr(os, "getsid") else ""
        return session, str(self._server.getsockname()[1]), f"{os.getpid()} {_own_start()}"

    def marker(self, name: str) -> str:
        return os.path.join(self.folder, name)
