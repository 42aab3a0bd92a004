"""Attacks on what no limit of a process counts: blocks without a byte written, and what the kernel counts for the whole
host or for a user as a whole. Who uses that up stops programs that have nothing to do with the sandbox.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from functools import partial

from tests.escape.attack import BOTH, Attack, Stage, in_workspace
from tests.escape.raw_calls import WITHOUT_ITS_FIRST_THREAD, calling

_attack = partial(Attack, family="quotas")
MIB = 1 << 20
_SMALL_DISK = {"disk_bytes": 4 * MIB}
_FILE = (
    "import fcntl, struct\nMIB = 1 << 20\nfile = os.open('reserving', os.O_CREAT | os.O_RDWR | os.O_TRUNC)\n"
    "def judge():\n held, size = os.fstat(file).st_blocks * 512, os.fstat(file).st_size\n print(held, size)\n"
    " if held > 16 * MIB or size > 16 * MIB: print('ESCAPED')\n"
)
# mode: the length may grow (0), KEEP_SIZE, ZERO_RANGE, INSERT_RANGE
_MODES = {"blocks by fallocate": 0, "blocks behind the end of a file": 1, "blocks by a range of zeros": 0x10,
          "length by an inserted range": 0x20}  # fmt: skip
_FALLOCATE = _FILE + calling("fallocate") + "os.write(file, bytes(MIB))\n"
_RESERVE = "print(fcntl.ioctl(file, {command}, struct.pack('hhqqiI4i', 0, 0, 0, 64 * MIB, 0, 0, 0, 0, 0, 0)) and 1)\n"
_COMMANDS = {"blocks by FS_IOC_RESVSP64": 0x4030582A, "blocks by FS_IOC_RESVSP": 0x40305828,
             "blocks by FS_IOC_ZERO_RANGE": 0x40305839}  # fmt: skip
_DISK_ATTACKS = [
    _attack(name=name, what="room on the host's disk is taken that no limit counts", policy=policy,
            probe=_FALLOCATE + f"print(call('fallocate', file, {mode}, 0, 64 * MIB))\njudge()\n")
    for policy in (_SMALL_DISK,) for name, mode in _MODES.items()
] + [
    _attack(name=name, what="room on the host's disk is taken that no limit counts", policy=_SMALL_DISK,
            probe=_FILE + "try: " + _RESERVE.format(command=command) + "except OSError as e: print(e)\njudge()\n")
    for name, command in _COMMANDS.items()
] + [
    _attack(name="a file larger than allowed by fallocate", what="the size of a file is passed by blocks behind its end",
            policy={"file_bytes": MIB}, probe=_FALLOCATE + "print(call('fallocate', file, 1, 0, 64 * MIB))\njudge()\n"),
]  # fmt: skip

# ---- what was written, and by whom nobody can say: as an ordinary user

_WRITE = "import os, time\nwith open('much', 'wb') as f:\n"
_WRITE += " for _ in range(60): f.write(bytes(1 << 20)); f.flush(); time.sleep(0.02)\ntime.sleep(3)\n"
_WRITE += "print('ESCAPED', flush=True)\n"  # a busy machine looks late at what was written
_UNSEEN = {
    "bytes of a process that can't be looked into": "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n" + _WRITE,
    "bytes of a program that can't be read": (
        "import shutil\nshutil.copy(os.path.realpath('/usr/bin/python3'), 'closed'); os.chmod('closed', 0o111)\n"
        f"os.execv('./closed', ['closed', '-I', '-S', '-c', {_WRITE!r}])\n"
    ),
    "bytes of a process whose first thread has ended": (
        WITHOUT_ITS_FIRST_THREAD + "def work():\n with open('much', 'wb') as f:\n"
        "  for _ in range(40): f.write(bytes(1 << 20)); f.flush()\n"
        " time.sleep(0 if 'RINGFENCE_CONTROL' in os.environ else 3)\n print('ESCAPED', flush=True); os._exit(0)\n"
        "go_on_without_first(work)\n"
    ),
    "bytes of orphans": (
        "for n in range(30):\n middle = os.fork()\n if middle == 0:\n  if os.fork() == 0:\n"
        "   open(f'much-{n}', 'wb').write(bytes(2 << 20))\n  os._exit(0)\n os.waitpid(middle, 0); time.sleep(0.05)\n"
        "print('ESCAPED')\n"
    ),
    "bytes of the dead that nobody waits for": (
        "for n in range(15):\n if os.fork() == 0:\n  with open(f'much-{n}', 'wb') as f:\n"
        "   for _ in range(4): f.write(bytes(1 << 20)); f.flush(); time.sleep(0.04)\n  os._exit(0)\n time.sleep(0.25)\n"
        "print('ESCAPED')\n"
    ),
}


@in_workspace
def _workspace(stage: Stage) -> Mapping[str, object]:
    stage.cwd = stage.folder / "workspace"
    stage.cwd.mkdir()
    stage.cwd.chmod(0o777)
    return {}


# The kernel adds what a child wrote to nobody's count when its parent ignores SIGCHLD.
_AUTOMATICALLY_REAPED = (
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    "for number in range(160):\n"
    " child = os.fork()\n"
    " if child == 0:\n"
    "  with open(f'part{number}', 'wb') as file: file.write(os.urandom(1 << 20)); os.fsync(file.fileno())\n"
    "  os._exit(0)\n"
    " try: os.waitpid(child, 0)\n"
    " except ChildProcessError: pass\n"
    "time.sleep(1)\n"
    "if sum(os.stat(name).st_blocks * 512 for name in os.listdir('.')) > 150 << 20: print('ESCAPED')\n"
)
_REAPED_ATTACK = _attack(name="bytes of children that nobody is told of", what="what is written is not counted",
                         policy={"disk_bytes": 16 * MIB}, prepare=_workspace, probe=_AUTOMATICALLY_REAPED)  # fmt: skip

# The same into files that lie in no directory, and that no descriptor of a process' first thread shows.
_PARTS = (
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nkept, total = [], 0\n"
    "def part(name):\n"
    " file = os.open(name, os.O_CREAT | os.O_RDWR); os.unlink(name)\n"
    " child = os.fork()\n"
    " if child == 0: os.write(file, os.urandom(1 << 20)); os._exit(0)\n"
    " try: os.waitpid(child, 0)\n"
    " except ChildProcessError: pass\n"
    " global total; total += os.fstat(file).st_blocks * 512\n"
    " return file\n"
)
_ALL_PARTS = "for number in range(32): hide(part(f'part{number}'))\n"
_JUDGED = (
    "time.sleep(0 if 'RINGFENCE_CONTROL' in os.environ else 1)\nif total > 30 << 20: print('ESCAPED', flush=True)\n"
    "os._exit(0)\n"
)
# A program for x86_64 that unmaps itself and waits: mmap, a copy of its last lines, munmap, pause. From then on nothing
# holds its file but what /proc/PID/exe shows. Elsewhere one that stays mapped.
_UNMAPS_ITSELF = (
    "7f454c4602010100000000000000000002003e00010000007800400000000000400000000000000000000000000000000000"
    "00004000380001000000000000000100000005000000000000000000000000004000000000000000400000000000cb000000"
    "00000000cb00000000000000001000000000000031ffbe00100000ba0700000041ba2200000049c7c0ffffffff4531c9b809"
    "0000000f054889c7488d351b000000b90b0000004889c3f3a4bf00004000be00100000b80b000000ffe30f05b8220000000f"
    "05ebf7"
)
_NOWHERE = {
    "files that only a mapping holds": (
        "libc = ctypes.CDLL(None)\n"
        "def hide(file): libc.mmap(None, ctypes.c_size_t(4096), 1, 1, file, ctypes.c_long(0)); os.close(file)\n"
        + _ALL_PARTS
    ),
    "files under way between sockets": (
        "def hide(file):\n"
        " a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [file]); os.close(file); kept.append((a, b))\n"
        + _ALL_PARTS
    ),
    "files that only another thread has open": (
        "import threading\nlibc = ctypes.CDLL(None)\n"
        "def apart(done): print(libc.unshare(0x400)); done.set(); time.sleep(20); os._exit(0)\n"
        "for batch in range(8):\n"
        " files = [part(f'part{number}') for number in range(4)]; done = threading.Event()\n"
        " threading.Thread(target=apart, args=(done,), daemon=True).start(); done.wait(); list(map(os.close, files))\n"
    ),
    "files that only run as programs": (
        "libc, own = ctypes.CDLL(None), os.uname().machine == 'x86_64'\n"
        f"program = bytes.fromhex('{_UNMAPS_ITSELF}') if own else open('/bin/sleep', 'rb').read()\n"
        "def hide(file):\n"
        " os.pwrite(file, program, 0); reader = os.open(f'/proc/self/fd/{file}', os.O_RDONLY); os.close(file)\n"
        " begun, begins = os.pipe()\n"
        " if os.fork() == 0: libc.prctl(1, 9); os.execv(f'/proc/self/fd/{reader}', ['sleep', '60'])\n"
        " os.close(begins); os.read(begun, 1); os.close(begun); os.close(reader)\n" + _ALL_PARTS
    ),
}
_NOWHERE_ATTACKS = [
    _attack(name=f"bytes in {name}", what="room on the host's disk is taken that no limit counts",
            policy={"disk_bytes": 8 * MIB}, prepare=_workspace, status=("DISK_LIMIT",), probe=_PARTS + probe + _JUDGED)
    for name, probe in _NOWHERE.items()
]  # fmt: skip

_UNSEEN_ATTACKS = [
    _attack(name=name, what="what is written is not counted", levels=BOTH, policy={"disk_bytes": 16 * MIB},
            prepare=_workspace, probe=probe)
    for name, probe in _UNSEEN.items()
]  # fmt: skip

_QUEUE = (
    "child = os.fork()\nif child == 0: signal.pthread_sigmask(signal.SIG_BLOCK, {40}); time.sleep(9); os._exit(0)\n"
    "time.sleep(0.5)\ninfo = (ctypes.c_int * 32)(); info[0] = 40; info[2] = -1; queued = 0\n"
    "while queued < 3000 and call('rt_sigqueueinfo', child, 40, ctypes.byref(info)) == (0, 0): queued += 1\n"
    "os.kill(child, 9); os.waitpid(child, 0); print(queued)\nif queued == 3000: print('ESCAPED')\n"
)
_CALLING_WITH_POINTERS = calling("rt_sigqueueinfo").replace("hasattr(a, '_type_')", "not isinstance(a, int)")
_SHARED = {
    "asynchronous reads": ("no other program of the host can read asynchronously any more",
                           calling("io_setup") + "room = (ctypes.c_ulong * 1)()\n"
                           "if call('io_setup', 8, ctypes.addressof(room))[0] == 0: print('ESCAPED')\n"),
    "watches": ("the caller's own programs can't watch files any more",
                "libc = ctypes.CDLL(None)\nif all(libc.inotify_init1(0) >= 0 for _ in range(40)): print('ESCAPED')\n"),
    "queued signals": ("the caller's own programs can make no timers any more", _CALLING_WITH_POINTERS + _QUEUE),
    "terminals": ("other sandboxes get no terminals any more",
                  "held = []\ntry:\n while len(held) < 150: held.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))\n"
                  " print('ESCAPED')\nexcept OSError as e: print(e)\n"),
}  # fmt: skip
_SHARED_ATTACKS = [_attack(name=name, what=what, probe=probe) for name, (what, probe) in _SHARED.items()]

# The kernel runs the host's helper, as root, for whoever crashes, unless the limit is 1.
_CORE = calling("prlimit64") + (
    "import resource, struct\nfor go in (lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),\n"
    "           lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 1)),\n"
    "           lambda: resource.prlimit(0, resource.RLIMIT_CORE, (0, 0)),\n"
    "           lambda: print(call('prlimit64', os.getpid(), 4, struct.pack('QQ', 0, 0), 0))):\n"
    " try: go()\n except (OSError, ValueError) as e: print(e)\n"
    "if resource.getrlimit(resource.RLIMIT_CORE)[0] != 1: print('ESCAPED')\n"
)


def _writable(stage: Stage) -> Mapping[str, object]:
    folder = stage.folder / "writable"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "file").write_text("x")
    (folder / "file").chmod(0o666)
    stage.policy["writable_paths"] = [str(folder)]
    return {"path": str(folder / "file")}


_LEASE = (
    "import fcntl\nfile = os.open(GIVEN['path'], os.O_RDONLY)\n"
    "try: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK); print('ESCAPED')\nexcept OSError as e: print(e)\n"
)

ATTACKS = [
    *_DISK_ATTACKS, *_UNSEEN_ATTACKS, _REAPED_ATTACK, *_NOWHERE_ATTACKS, *_SHARED_ATTACKS,
    _attack(name="the host's core helper", what="a crash has the host's helper read the guest's memory as root",
            possible=resource.getrlimit(resource.RLIMIT_CORE)[1] != 0, probe=_CORE),
    _attack(name="a lease", what="who opens a file of the host is held up", prepare=_writable, probe=_LEASE),
]  # fmt: skip
