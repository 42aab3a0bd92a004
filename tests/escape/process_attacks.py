"""Attacks with processes: more of them than allowed, longer than allowed, or against others."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from tests.escape.attack import BOTH, Attack, Stage
from tests.escape.bait import signalled, tagged, victim
from tests.escape.raw_calls import WITHOUT_ITS_FIRST_THREAD, calling
from tests.patience import PATIENCE_S

_attack = partial(Attack, family="process")
_START = (
    "CONTROL = 'RINGFENCE_CONTROL' in os.environ\nSTAY = 0.2 if CONTROL else 15\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "def quiet():\n null = os.open('/dev/null', os.O_RDWR)\n for n in (0, 1, 2): os.dup2(null, n)\n"
    # Newer kernels refuse the signal (Landlock), older ones let pid 1 ignore it.
    "def send(pid, n):\n try: os.kill(pid, n)\n except PermissionError: pass\n"
)


def _in_time(stage: Stage) -> Mapping[str, object]:
    """Nothing of it lives on, and killing it did not take long either."""
    given = tagged(stage)
    left = stage.escaped
    stage.escaped = lambda: left() or (stage.outcome is not None and stage.outcome.duration_ms > 5000)
    return given


def _in_flight(stage: Stage) -> Mapping[str, object]:
    """As above, of a process that is always on its way to the next program, and then on no list."""
    given = _in_time(stage)
    left = stage.escaped
    stage.escaped = lambda: any(left() or time.sleep(0.01) for _ in range(20))
    return given


def _settled(stage: Stage) -> Mapping[str, object]:
    """As above, of processes that are seldom caught on a list before they settle down. The control waits for that."""
    given = tagged(stage)
    left, begun = stage.escaped, time.monotonic()

    def escaped() -> bool:
        until = begun + (1.2 if stage.level else PATIENCE_S)
        while not (found := left()) and time.monotonic() < until:
            time.sleep(0.05)
        return found

    stage.escaped = escaped
    return given


# ---- beyond the number of processes

_BOMB = (
    # All stay until the first one ends, however long it takes to start them: only then do they live at one time.
    "r, w = os.pipe(); held, hold = os.pipe()\n"
    "def stay(): os.write(w, b'x'); quiet(); os.close(hold); os.read(held, 1); os._exit(0)\n"
    "def bomb():\n{body}\n"
    "try: bomb()\nexcept (OSError, RuntimeError): sys.exit(1)\n"
    # Nothing holds a control: it waits until all are there, however busy the machine is.
    "import select\ntime.sleep(0.3); until = time.monotonic() + (50 if CONTROL else 0); seen = 0\n"
    "while seen < 60 and select.select([r], [], [], max(0, until - time.monotonic()))[0]:\n"
    " seen += os.read(r, 1000).count(b'x')\n"
    "if seen >= 60: print('ESCAPED')\nelse: sys.exit(1)\n"
)
_BOMBS = {
    "plain": " for _ in range(60):\n  if os.fork() == 0: stay()",
    "each in its own session": " for _ in range(60):\n  if os.fork() == 0: os.setsid(); stay()",
    "of orphans": (
        " for _ in range(60):\n  pid = os.fork()\n  if pid == 0:\n   try:\n    if os.fork() == 0: stay()\n"
        "   finally: os._exit(0)\n  os.waitpid(pid, 0)"
    ),
    "that doubles": (
        " root = os.getpid()\n for _ in range(6):\n  try: os.fork()\n"
        "  except OSError:\n   if os.getpid() == root: raise\n   os._exit(0)\n if os.getpid() != root: stay()"
    ),
    "by vfork and exec": (
        " for _ in range(60): os.posix_spawn('/bin/sleep', [GIVEN['tag'], '3'], {}, file_actions="
        "[(os.POSIX_SPAWN_CLOSE, 1), (os.POSIX_SPAWN_CLOSE, 2)]); os.write(w, b'x')"
    ),
    "of threads": (
        " import _thread\n for _ in range(60): _thread.start_new_thread(lambda: (os.write(w, b'x'), time.sleep(60)), ())"
    ),
    "of threads behind a first one that has ended": (
        " done, tell = os.pipe()\n"
        " def many():\n"
        "  quiet()\n"
        "  for _ in range(60): _thread.start_new_thread(lambda: (os.write(w, b'x'), time.sleep(60)), ())\n"
        "  os.write(tell, b'x'); os.close(hold); os.read(held, 1); os._exit(0)\n"
        " if os.fork() == 0: go_on_without_first(many)\n"
        " os.close(tell); os.read(done, 1)"
    ),
    "of zombies": (
        " for _ in range(100):\n  if os.fork() == 0: os._exit(0)\n"
        " os.write(w, b'x' * len(open(f'/proc/self/task/{os.getpid()}/children').read().split()))"
    ),
}
_BOMB_ATTACKS = [
    _attack(name=f"fork bomb {shape}", what="more tasks than allowed live at one time", levels=BOTH, prepare=tagged,
            probe=_START + WITHOUT_ITS_FIRST_THREAD + _BOMB.replace("{body}", body),
            # Time enough for an emulated processor: no deadline is to end it.
            policy={"pids_max": 16, "mem_bytes": 2 << 30, "wall_time_s": 120, "cpu_time_s": 120}, status=("PIDS_LIMIT",))
    for shape, body in _BOMBS.items()
]  # fmt: skip

# ---- longer than the deadline, or than the job

_DAEMON = "if os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  quiet(); {before}\n  time.sleep(15)\n os._exit(0)\n"
_OUTLIVING = {
    "double fork": _DAEMON.replace("{before}", "pass"),
    "setsid": "if os.fork() == 0: os.setsid(); quiet(); time.sleep(15); os._exit(0)\n",
    "group of its own": "if os.fork() == 0: os.setpgid(0, 0); quiet(); time.sleep(15); os._exit(0)\n",
    "daemon that is deaf": _DAEMON.replace(
        "{before}",
        "[signal.signal(n, signal.SIG_IGN) for n in signal.valid_signals() if n not in (9, 19, 32, 33)]",
    ),
    "daemon that is stopped": _DAEMON.replace("{before}", "os.kill(os.getpid(), signal.SIGSTOP)"),
    "daemon without a death signal": _DAEMON.replace("{before}", "libc.prctl(1, 0, 0, 0, 0)"),
    "subreaper of its own": "libc.prctl(36, 1, 0, 0, 0)\n" + _DAEMON.replace("{before}", "libc.prctl(36, 1, 0, 0, 0)"),
    "parent that waits in vfork": (
        # CLONE_VFORK without CLONE_VM: the parent sleeps uninterruptibly until the child execs, which it never does.
        "if os.fork() == 0:\n os.setsid(); quiet()\n"
        " number = {'x86_64': 56, 'aarch64': 220}[os.uname().machine]\n"
        " libc.syscall(number, 0x4000 | 17, 0, 0, 0, 0); time.sleep(15)\n"
    ),
    "tracee that nobody continues": (
        "if os.fork() == 0:\n os.setsid(); quiet()\n if os.fork() == 0: libc.ptrace(0, 0, 0, 0); "
        "os.kill(os.getpid(), 19)\n"
        " time.sleep(15)\n"
    ),
}
_END_ATTACKS = [
    _attack(name=f"{name} after the job's end", what="a process outlives the job", levels=BOTH, prepare=tagged,
            probe=_START + source + "time.sleep(0.1)\n", status=("OK",))
    for name, source in _OUTLIVING.items()
]  # fmt: skip
_PREPARED = {"rabbit": _settled, "exec of itself for ever": _in_flight}
_DEADLINE_ATTACKS = [
    _attack(name=f"{name} past the deadline", what="a process outlives the deadline", levels=BOTH,
            prepare=_PREPARED.get(name, _in_time), probe=_START + source + "time.sleep(STAY)\n",
            # A rabbit's unburied dead may add up to more tasks than are allowed before its time is over.
            status=("TIMEOUT", "PIDS_LIMIT") if name == "rabbit" else ("TIMEOUT",), policy={"wall_time_s": 0.4})
    for name, source in {
        "double fork": _OUTLIVING["double fork"],
        "tracee": _OUTLIVING["tracee that nobody continues"],
        "parent in vfork": _OUTLIVING["parent that waits in vfork"],
        "rabbit": (  # each process lives for a moment and leaves a child behind
            "if os.fork() == 0:\n quiet(); end = time.monotonic() + 0.7\n while time.monotonic() < end:\n"
            "  if os.fork(): os._exit(0)\n  os.setsid()\n time.sleep(9)\n"
        ),
        "exec of itself for ever": (
            "if os.fork() == 0:\n quiet()\n os.execv('/bin/sh', ['sh', '-c', 'i=$1; [ $i = 0 ] || exec /bin/sh -c "
            "\"$0\" \"$0\" $((i - 1)) $2', 'i=$1; [ $i = 0 ] && exec sleep 9; exec /bin/sh -c \"$0\" \"$0\" $((i - 1)) "
            "$2', '20000', GIVEN['tag']])\n"
        ),
        "stop and continue": (
            "if os.fork() == 0:\n quiet(); end = time.monotonic() + 9; other = os.getppid()\n"
            " while time.monotonic() < end:\n  try: os.kill(other, 19); time.sleep(0.01); os.kill(other, 18)\n"
            "  except OSError: pass\n  time.sleep(0.01)\n"
        ),
        "signals blocked": (
            "if os.fork() == 0:\n quiet(); signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
            " signal.sigwait([signal.SIGUSR1])\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        ),
        "streams closed": "if os.fork() == 0:\n os.closerange(0, 64); time.sleep(9)\nos.closerange(0, 64)\n",
    }.items()
]  # fmt: skip
_LATE = "time.sleep(3); print('ESCAPED', flush=True)\n"  # also on a machine that is busy a deadline is not so late
_STOPPED_PARENT = (
    # The control is its own «leader»: its parent is another half of the probe, not the test's process.
    "if CONTROL and os.fork(): time.sleep(3.3); sys.exit()\n"
    "send(os.getppid(), signal.SIGSTOP)\n" + _LATE + "send(os.getppid(), signal.SIGCONT)\n"
)
_LATE_ATTACKS = [
    _attack(name="ignoring every signal", what="the deadline is not held", levels=BOTH, status=("TIMEOUT",),
            policy={"wall_time_s": 0.4},
            probe="for n in signal.valid_signals():\n try: signal.signal(n, signal.SIG_IGN)\n except OSError: pass\n"
                  + _LATE),
    _attack(name="stopping its parent", what="a stopped supervisor lets the deadline pass", status=("TIMEOUT",),
            policy={"wall_time_s": 0.4}, probe=_START + _STOPPED_PARENT),
    _attack(name="a storm of signals for its parent", what="a busy supervisor lets the deadline pass",
            status=("TIMEOUT",), policy={"wall_time_s": 0.4},
            probe=_START + "if CONTROL and os.fork(): signal.pause()\n"
                  "end = time.monotonic() + 0.9\nwhile time.monotonic() < end: send(os.getppid(), signal.SIGCHLD)\n"
                  "print('ESCAPED', flush=True)\nif CONTROL: os.kill(os.getppid(), 9)\n"),
]  # fmt: skip

# ---- more processor time than allowed

_BURN = (
    "def burn(s):\n end = time.process_time() + s\n while time.process_time() < end: pass\n"
    "def several(n, work):\n kids = []\n for _ in range(n):\n  pid = os.fork()\n  if pid == 0: work(); os._exit(0)\n"
    "  kids.append(pid)\n return kids\n"
    "def wait(kids): return all(os.waitpid(pid, 0)[1] == 0 for pid in kids)\n"
)
_CPU_ATTACKS = [
    _attack(name="processor time of many processes", what="a tree uses more processor time than allowed", levels=BOTH,
            status=("CPU_LIMIT",), policy={"cpu_time_s": 0.2},
            probe=_BURN + "if wait(several(3, lambda: burn(0.6))): print('ESCAPED')\n"),
    _attack(name="processor time of short lives", what="children that are collected early are not counted",
            levels=BOTH, status=("CPU_LIMIT",), policy={"cpu_time_s": 0.2},
            probe=_BURN + "def row():\n for _ in range(5): wait(several(1, lambda: burn(0.18)))\n"
                  "if wait(several(2, row)): print('ESCAPED')\n"),
    _attack(name="processor time of children nobody waits for", what="children that collect themselves are not counted",
            status=("CPU_LIMIT",), policy={"cpu_time_s": 0.2},
            probe=_BURN + "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\ndef gone(pid):\n"
                  " try: os.waitpid(pid, 0)\n except ChildProcessError: pass\n"
                  "for _ in range(5):\n for pid in several(2, lambda: burn(0.18)): gone(pid)\nprint('ESCAPED')\n"),
]  # fmt: skip

# ---- against other processes

_TRY = "try:\n {what}\n print('ESCAPED')\nexcept OSError as e: print(e)\n"
_ON_VICTIM = {
    "kill": "os.kill(GIVEN['pid'], 9); time.sleep(0.1)",
    "stop": "os.kill(GIVEN['pid'], 19); time.sleep(0.1)",
    "look for": "os.kill(GIVEN['pid'], 0)",
    "kill by pidfd": "signal.pidfd_send_signal(os.pidfd_open(GIVEN['pid']), 9)",
    "kill the group of": "os.killpg(os.getpgid(GIVEN['pid']), 0)",
    "lower the priority of": "os.setpriority(os.PRIO_PROCESS, GIVEN['pid'], 19)",
    "pin": "os.sched_setaffinity(GIVEN['pid'], os.sched_getaffinity(GIVEN['pid']))",
    "give another scheduling class to": "os.sched_setscheduler(GIVEN['pid'], os.SCHED_BATCH, os.sched_param(0))",
    "limit": "__import__('resource').prlimit(GIVEN['pid'], 7, (64, 64))",
    "see the session of": "os.getsid(GIVEN['pid'])",
}
_VICTIM_ATTACKS = [
    _attack(name=f"{name} a process of the caller", what="a process outside the sandbox is reached", prepare=victim,
            probe=_TRY.replace("{what}", what))
    for name, what in _ON_VICTIM.items()
]  # fmt: skip
_TRACE = "libc = ctypes.CDLL(None, use_errno=True)\nif libc.ptrace({how}, {who}, 0, 0) == 0: print('ESCAPED')\n"
_KID = "pid = os.fork()\nif pid == 0: time.sleep(2); os._exit(0)\ntime.sleep(0.05)\n"
_END_KID = "os.kill(pid, 9)\n"
_VM = (
    "libc = ctypes.CDLL(None, use_errno=True)\nbox = ctypes.create_string_buffer(b'mine', 8)\nr, w = os.pipe()\n"
    "pid = os.fork()\nif pid == 0:\n box.value = b'theirs'; os.write(w, b'.'); time.sleep(0.5)\n"
    " os._exit(7 if box.value == b'written' else 0)\nos.read(r, 1)\n"
    "class Vec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]\n"
    "here = ctypes.create_string_buffer(b'written', 8)\nlocal = Vec(ctypes.addressof(here), 8)\n"
    "remote = Vec(ctypes.addressof(box), 8)\n"
    "libc.{call}(pid, ctypes.byref(local), ctypes.c_ulong(1), ctypes.byref(remote), ctypes.c_ulong(1), "
    "ctypes.c_ulong(0))\n"
)
# A half of the probe stands for pid 1 in the control, and lets itself be traced where Yama is on.
_OWN_PARENT = (
    "CONTROL = 'RINGFENCE_CONTROL' in os.environ\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    "if CONTROL:\n libc.prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)\n kid = os.fork()\n"
    " if kid: os.waitpid(kid, os.WUNTRACED); sys.exit()\nUP = os.getppid()\n"
)
_TRACE_ATTACKS = [
    _attack(name="attach to a process of the caller", what="the caller's process is traced", prepare=victim,
            probe=_TRACE.format(how=16, who="GIVEN['pid']")),
    _attack(name="seize a process of the caller", what="the caller's process is traced", prepare=victim,
            probe=_TRACE.format(how=0x4206, who="GIVEN['pid']")),
    _attack(name="attach to a sibling", what="a process is traced that did not ask for it",
            probe=_KID + _TRACE.format(how=16, who="pid") + _END_KID),
    _attack(name="seize pid 1", what="the supervisor inside is traced",
            probe=_OWN_PARENT + _TRACE.format(how=0x4206, who="UP")),
    _attack(name="read a sibling's memory", what="process_vm_readv reads another process",
            probe=_VM.format(call="process_vm_readv") + "if here.value == b'theirs': print('ESCAPED')\n"),
    _attack(name="write a sibling's memory", what="process_vm_writev changes another process",
            probe=_VM.format(call="process_vm_writev") + "if os.waitpid(pid, 0)[1] >> 8 == 7: print('ESCAPED')\n"),
    _attack(name="read the memory of pid 1", what="/proc/1/mem tells what the supervisor knows",
            probe=_OWN_PARENT + _TRY.replace("{what}", "os.close(os.open(f'/proc/{UP}/mem', os.O_RDONLY))")),
    _attack(name="write the memory of pid 1", what="/proc/1/mem changes the supervisor",
            probe=_OWN_PARENT + _TRY.replace("{what}", "os.close(os.open(f'/proc/{UP}/mem', os.O_RDWR))")),
    _attack(name="take a descriptor of pid 1", what="pidfd_getfd copies a descriptor of the supervisor",
            probe=_OWN_PARENT + "if libc.syscall(438, os.pidfd_open(UP), 1, 0) >= 0: print('ESCAPED')\n"),
]  # fmt: skip
_HOLD_UP = {
    "scheduling class": "os.sched_setscheduler(UP, os.SCHED_IDLE, os.sched_param(0))",
    "priority": "os.setpriority(os.PRIO_PROCESS, UP, 19)",
    "processors": "os.sched_setaffinity(UP, {min(os.sched_getaffinity(0))})",
    "limits": "__import__('resource').prlimit(UP, 7, (64, 64))",
}
_PID_1_ATTACKS = [
    _attack(name=f"change the {name} of pid 1", what="pid 1, which ends the job, hardly runs or is ended",
            probe=_OWN_PARENT + _TRY.replace("{what}", what))
    for name, what in _HOLD_UP.items()
]  # fmt: skip
_KILL_ALL_CONTROL = (
    # kill(-1) is only let loose where it reaches nobody else: as a child of pid 1 of a pid namespace of its own.
    "libc = ctypes.CDLL(None, use_errno=True)\nassert libc.unshare(0x30000000) == 0\n"
    "if os.fork(): os.wait(); sys.exit()\nassert os.getpid() == 1\nvictim = os.fork()\n"
    "if victim == 0: time.sleep(5); os._exit(0)\n"
    "if os.fork() == 0: assert os.getppid() == 1; os.kill(-1, 9); os._exit(0)\n"
    "if os.waitpid(victim, 0)[1] == 9: print('ESCAPED', flush=True)\n"
)
# The leader ends whoever makes such a call, and reads whose thread it was below the name that the thread gave itself.
_FORGED_NAME = calling("kexec_load") + (
    "libc.prctl(15, b'\\rTgid:\\t%d' % GIVEN['pid'], 0, 0, 0)\nprint(call('kexec_load', 0, 0, 0, 0))\n"
)
_SIGNAL_ATTACKS = [
    _attack(name="have a process of the caller killed by a forged name", what="the leader ends a process outside",
            prepare=victim, probe=_FORGED_NAME, control="os.kill(GIVEN['pid'], 9); print('ESCAPED')\n"),
    _attack(name="kill everybody", what="kill(-1) reaches a process outside", prepare=victim, status=("OK",),
            probe="try: os.kill(-1, 9)\nexcept OSError as e: print(e)\n", control=_KILL_ALL_CONTROL),
    _attack(name="signal its own group", what="the caller is in the group", levels=BOTH, prepare=signalled,
            probe="signal.signal(10, signal.SIG_IGN); os.kill(0, 10); time.sleep(0.1)\n",
            control="os.setpgid(0, 0); signal.signal(10, lambda *_: print('ESCAPED', flush=True))\n"
                    "if os.fork() == 0: signal.signal(10, signal.SIG_IGN); os.kill(0, 10); os._exit(0)\nos.wait()\n"),
    _attack(name="signal the caller by its pid", what="the caller gets a signal", prepare=signalled,
            probe=_TRY.replace("{what}", "os.kill(GIVEN['pid'], 10); time.sleep(0.1)")),
    _attack(name="kill pid 1", what="the supervisor inside dies of a signal", status=("OK",),
            probe=_START + _OWN_PARENT + "for n in range(1, 32):\n"
                                " if n not in (18, 19) and not (CONTROL and n != 9): send(UP, n)\n"
                  "for _ in range(1000 if CONTROL else 1):\n time.sleep(0.05)\n"
                  " if os.getppid() != UP: print('ESCAPED', flush=True); break\n"),
    _attack(name="blame the parent's death on a signal", what="PR_SET_PDEATHSIG hits the supervisor or the caller",
            levels=BOTH, prepare=signalled, status=("OK",),
            probe="libc = ctypes.CDLL(None); libc.prctl(1, 10, 0, 0, 0)\nif os.fork() == 0: os._exit(0)\nos.wait()\n",
            control="r, w = os.pipe(); signal.signal(10, lambda *_: print('ESCAPED', flush=True))\nmid = os.fork()\n"
                    "if mid == 0:\n if os.fork() == 0:\n  ctypes.CDLL(None).prctl(1, 10, 0, 0, 0); os.write(w, b'.')\n"
                    "  time.sleep(0.5); os._exit(0)\n os.read(r, 1); os._exit(0)\nos.waitpid(mid, 0); "
                    "time.sleep(0.2)\n"),
]  # fmt: skip

# ---- more than its share of the machine

_NOW = "time.clock_gettime(time.CLOCK_REALTIME)"
_SHARE_ATTACKS = [
    _attack(name=name, what=what, needs_root=True, probe=_TRY.replace("{what}", source))
    for name, what, source in (
        ("raise its priority", "it runs before everybody else", "os.nice(-5)"),
        ("become a real-time process", "it never gives the processor back",
         "os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))"),
        ("choose the next pid", "pids are reused on purpose",
         "f = open('/proc/sys/kernel/ns_last_pid', 'r+'); n = f.read(); f.seek(0); f.write(n); f.flush()"),
        ("set the clock", "the time of the whole host changes", f"time.clock_settime(time.CLOCK_REALTIME, {_NOW})"),
    )
]  # fmt: skip

ATTACKS = [
    *_BOMB_ATTACKS, *_END_ATTACKS, *_DEADLINE_ATTACKS, *_LATE_ATTACKS, *_CPU_ATTACKS, *_VICTIM_ATTACKS, *_TRACE_ATTACKS,
    *_PID_1_ATTACKS, *_SIGNAL_ATTACKS, *_SHARE_ATTACKS,
]  # fmt: skip
