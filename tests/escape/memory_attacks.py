"""Attacks on memory: every kind of memory that a program can make the kernel spend on it.

What is nobody's resident memory (files in memory, segments, buffers, kernel objects) is bounded by the memory
cgroup alone; where the caller has none, those attacks are not promised to fail and only their controls run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tests.escape.attack import BOTH, Attack, Stage, in_workspace
from tests.escape.bait import tagged
from tests.escape.raw_calls import WITHOUT_ITS_FIRST_THREAD

_attack = partial(Attack, family="memory")
MIB = 1 << 20
_SMALL = {"mem_bytes": 64 * MIB}
_TINY = {"mem_bytes": 24 * MIB}
_START = (
    "import mmap\nCONTROL = 'RINGFENCE_CONTROL' in os.environ\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    "MIB = 1 << 20\n"
    "def touch(block):\n for place in range(0, len(block), 4096): block[place] = 1\n"
)

# ---- resident memory: held at every level

_RESIDENT = {
    "heap": "block = bytearray(160 * MIB); touch(block)\n",
    "shared anonymous mapping": "block = mmap.mmap(-1, 160 * MIB); touch(block)\n",
    "huge pages": "block = mmap.mmap(-1, 160 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
                  "block.madvise(mmap.MADV_HUGEPAGE)\ntouch(block)\n",
    "written copy of a file": (
        "open('base', 'wb').truncate(160 * MIB)\n"
        "block = mmap.mmap(os.open('base', os.O_RDWR), 160 * MIB, mmap.MAP_PRIVATE); touch(block)\n"
    ),
    "a process that can't be looked into": (
        "libc.prctl(4, 0, 0, 0, 0)\nblock = mmap.mmap(-1, 40 * MIB); touch(block)\n"
        "kids = []\nfor _ in range(3):\n pid = os.fork()\n if pid == 0:\n  mine = bytearray(40 * MIB); touch(mine)\n"
        "  time.sleep(0.5); os._exit(0)\n kids.append(pid)\n"
        "if any(os.waitpid(pid, 0)[1] for pid in kids): sys.exit(1)\n"
    ),
    "many small processes": (
        "kids = []\nfor _ in range(10):\n pid = os.fork()\n if pid == 0:\n  block = bytearray(16 * MIB); touch(block)\n"
        "  time.sleep(0.6); os._exit(0)\n kids.append(pid)\n"
        "if any(os.waitpid(pid, 0)[1] for pid in kids): sys.exit(1)\n"
    ),
    "processes whose first thread has ended": WITHOUT_ITS_FIRST_THREAD + (
        "def hold():\n block = bytearray(16 * MIB); touch(block); time.sleep(0.6); os._exit(0)\n"
        "kids = []\nfor _ in range(10):\n pid = os.fork()\n if pid == 0: go_on_without_first(hold)\n kids.append(pid)\n"
        "if any(os.waitpid(pid, 0)[1] for pid in kids): sys.exit(1)\n"
    ),
    "page tables": (  # each page that is only read is the one zero page, and 512 of them cost a page of tables
        "size = 48 << 30\nblock = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)\n"
        "block.madvise(mmap.MADV_NOHUGEPAGE)\nfor place in range(0, size, 2 * MIB): block[place]\n"
    ),
}  # fmt: skip
# Where a watchdog holds it, that looks every 25 ms on an idle machine; to hold memory is to have it for longer than that.
_HELD = "if not CONTROL: time.sleep(2)\nprint('ESCAPED')\n"
_RESIDENT_ATTACKS = [
    _attack(name=name, what="a tree holds more memory than allowed", levels=BOTH, policy=_SMALL, prepare=tagged,
            status=("MEM_LIMIT",), probe=_START + source + _HELD)
    for name, source in _RESIDENT.items()
]  # fmt: skip

# ---- file systems in memory: each bounded by its size, with or without a cgroup

_FILL = (
    "def fill(folder, mib):\n name = f'{folder}/filling-{os.getpid()}'\n file = os.open(name, os.O_CREAT | os.O_RDWR)\n"
    " try:\n  for _ in range(mib): os.write(file, bytes(MIB))\n  return True\n"
    " except OSError as e: print(e); return False\n finally:\n  if CONTROL: os.unlink(name)\n"
)
_IN_MEMORY = {"/tmp": "/tmp", "/dev/shm": "/dev/shm", "/var/tmp": "/var/tmp", "the home directory": "/home/user"}
_FILE_ATTACKS = [
    _attack(name=f"files in {name}", what="a file system in memory grows beyond the memory limit", policy=_SMALL,
            probe=_START + _FILL + f"if fill('/dev/shm' if CONTROL else '{folder}', 160): print('ESCAPED')\n")
    for name, folder in _IN_MEMORY.items()
] + [
    _attack(name="files in /tmp when much may be written", what="the disk limit is taken for a memory limit",
            policy=_SMALL | {"disk_bytes": 1 << 30},
            probe=_START + _FILL + "if fill('/dev/shm' if CONTROL else '/tmp', 160): print('ESCAPED')\n"),
    _attack(name="all file systems in memory together", what="each is small and all together are not", policy=_SMALL,
            probe=_START + _FILL + "folders = ['/tmp', '/dev/shm', '/var/tmp', os.path.expanduser('~')]\n"
                  "if CONTROL: folders = ['/dev/shm'] * 4\nif all([fill(f, 40) for f in folders]): print('ESCAPED')\n"),
    _attack(name="reserved space in /dev/shm", what="fallocate takes memory without a write", policy=_SMALL,
            probe=_START + "name = f'/dev/shm/reserved-{os.getpid()}'\nfile = os.open(name, os.O_CREAT | os.O_RDWR)\n"
                  "os.unlink(name)\ntry: os.posix_fallocate(file, 0, 160 * MIB); print('ESCAPED')\n"
                  "except OSError as e: print(e)\n"),
    _attack(name="empty files by the ten thousand", what="names and inodes take memory without a byte in them",
            policy=_TINY, probe=_START + "folder = 'many' if CONTROL else '/tmp/many'; os.mkdir(folder)\n"
                  "try:\n for n in range(12000): os.mknod(f'{folder}/{n}')\n print('ESCAPED')\n"
                  "except OSError as e: print(e)\n"),
]  # fmt: skip

# ---- memory that belongs to no process: held by the memory cgroup

_SHM = "libc.shmat.restype = ctypes.c_void_p\n"
_NOBODYS = {
    "memfd": "file = os.memfd_create('m')\nfor _ in range(160): os.write(file, bytes(MIB))\n",
    "many memfds": (
        "files = [os.memfd_create('m') for _ in range(160)]\nfor file in files: os.write(file, bytes(MIB))\n"
    ),
    "memfd in flight between sockets": (
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\nfor _ in range(5):\n"
        " file = os.memfd_create('m')\n for _ in range(32): os.write(file, bytes(MIB))\n"
        " socket.send_fds(a, [b'x'], [file]); os.close(file)\n"
    ),
    "System V segments": _SHM + (
        "for _ in range(20):\n seg = libc.shmget(0, ctypes.c_size_t(8 * MIB), 0o1600)\n if seg < 0: sys.exit(1)\n"
        " at = libc.shmat(seg, None, 0); libc.shmctl(seg, 0, None)\n ctypes.memset(at, 1, 8 * MIB)\n"
        " if not CONTROL and os.fork() == 0: time.sleep(9)\n"
        " if not CONTROL: libc.shmdt(ctypes.c_void_p(at))\n"
    ),
    "mappings of sleeping children": (  # the pages are in nobody's page tables, and so in nobody's resident size
        "kids = []\nfor _ in range(5):\n block = mmap.mmap(-1, 32 * MIB); touch(block); pid = os.fork()\n"
        " if pid == 0: time.sleep(9); os._exit(0)\n kids.append(pid); block.close()\n"
        "for pid in kids: os.kill(pid, 9)\n"
    ),
}  # fmt: skip
_BUFFERS = {
    "pipe buffers": (
        "keep = []\nfor _ in range(700):\n r, w = os.pipe(); os.set_blocking(w, False); keep += [r, w]\n"
        " while True:\n  try: os.write(w, bytes(65536))\n  except BlockingIOError: break\n"
            ),
    "socket buffers": (
        "keep = []\nfor _ in range(300):\n a, b = socket.socketpair(); a.setblocking(False); keep += [a, b]\n"
        " while True:\n  try: a.send(bytes(65536))\n  except BlockingIOError: break\n"
    ),
    "pages given to pipes": (  # vmsplice: the pipe keeps pages that the process has unmapped again
        "keep = []\nclass Vec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]\n"
        "def fill():\n for _ in range(900):\n  r, w = os.pipe(); keep.extend((r, w)); block = mmap.mmap(-1, 65536)\n"
        "  touch(block); at = ctypes.c_char.from_buffer(block); vec = Vec(ctypes.addressof(at), 65536)\n"
        "  if libc.vmsplice(w, ctypes.byref(vec), ctypes.c_ulong(1), 0) != 65536: return False\n"
        "  del at; block.close()\n return True\n"
        # A user has so many pages in all pipes together, and others of this user's tests have some of them.
        "tries = 0\nwhile not fill():\n while keep: os.close(keep.pop())\n tries += 1; time.sleep(0.2)\n"
        " if tries > 50: sys.exit(1)\n"
    ),
    "message queues": (
        "class Message(ctypes.Structure): _fields_ = [('type', ctypes.c_long), ('text', ctypes.c_char * 8000)]\n"
        "message = Message(1, b'x' * 7999); queues = []\ntry:\n for _ in range(3000):\n"
        "  q = libc.msgget(0, 0o1600); assert q >= 0; queues.append(q)\n"
        "  for _ in range(2): assert libc.msgsnd(q, ctypes.byref(message), ctypes.c_size_t(8000), 0o4000) == 0\n"
        "finally:\n for q in queues: libc.msgctl(q, 0, None)\n"
    ),
}
_NOBODYS_ATTACKS = [
    _attack(name=name, what="memory that is no process' own is not counted", held_by_group=True, policy=policy,
            prepare=tagged, probe=_START + source + "print('ESCAPED')\n", status=("MEM_LIMIT",))
    for policy, table in ((_SMALL, _NOBODYS), (_TINY | {"nofile": 4096}, _BUFFERS)) for name, source in table.items()
]  # fmt: skip


@in_workspace
def _workspace(stage: Stage) -> Mapping[str, object]:
    """A workspace with a large file that takes no room on disk."""
    stage.cwd = stage.folder / "workspace"
    stage.cwd.mkdir()
    with (stage.cwd / "large").open("wb") as file:
        file.truncate(192 * MIB)
    return {}


_CACHED = (
    "size = 192 * MIB\nwith open('large', 'rb') as file:\n while file.read(MIB): pass\n"
    "libc.mmap.restype = ctypes.c_void_p\n"
    "libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]\n"
    "at = libc.mmap(None, size, 1, 1, os.open('large', os.O_RDONLY), 0)\n"
    "found = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()\n"
    "assert libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), found) == 0\n"
    "if sum(x & 1 for x in found) * mmap.PAGESIZE > 96 * MIB: print('ESCAPED')\n"
)


# Connections over the loopback of its own: on v1 their buffers are beside the limit, and have one of their own.
_CONNECTIONS = (
    "server = socket.create_server(('127.0.0.1', 0), backlog=4); keep, sent = [], 0\n"
    "while len(keep) < 200 and sent < 48 * MIB:\n"
    " near = socket.socket(); near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)\n"
    " near.connect(server.getsockname()); keep += [near, server.accept()[0]]; near.setblocking(False)\n"
    " try:\n  while sent < 48 * MIB: sent += near.send(bytes(65536))\n except BlockingIOError: pass\n"
    "print(sent)\nif sent >= 48 * MIB: print('ESCAPED')\n"
)

ATTACKS = [
    *_RESIDENT_ATTACKS, *_FILE_ATTACKS, *_NOBODYS_ATTACKS,
    _attack(name="buffers of connections", what="memory that is no process' own is not counted", held_by_group=True,
            policy=_TINY, probe=_START + _CONNECTIONS),
    _attack(name="page cache", what="files that are read fill the host's memory", held_by_group=True, policy=_SMALL,
            prepare=_workspace, probe=_START + _CACHED),
    _attack(name="locked memory", what="memory that can't be taken back is beyond the "
                                       "limit", levels=BOTH, policy=_SMALL,
            needs_root=True, prepare=tagged, status=("MEM_LIMIT", "FAILED"),
            probe=_START + "block = mmap.mmap(-1, 160 * MIB); at = ctypes.addressof(ctypes.c_char.from_buffer(block))\n"
                  "if libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(160 * MIB)): sys.exit(1)\nprint('ESCAPED')\n"),
]  # fmt: skip
