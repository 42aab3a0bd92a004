"""Attacks on what is known: of the caller, of the host and its users, and of how the sandbox is built.

What the machine is (processor, kernel version, total memory, load, uptime) is no secret.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import socket
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.escape.attack import BOTH, Attack, Stage, in_workspace
from tests.escape.bait import SECRET, fresh_spawner, secret_file, victim

_attack = partial(Attack, family="information")
_CONTROL = "CONTROL = 'RINGFENCE_CONTROL' in os.environ\n"
_TRY = "try:\n {what}\n print('ESCAPED')\nexcept (OSError, LookupError) as e: print(e)\n"
_SEARCH = (
    "import glob\nfor name in glob.glob('{pattern}'):\n try: text = open(name, 'rb').read()\n"
    " except OSError: continue\n if GIVEN['word'].encode() in text: print('ESCAPED')\n"
)

# ---- of the caller


def _variable(stage: Stage) -> Mapping[str, object]:
    """A secret in the caller's environment, there when everything of ours is started."""
    name, word = "RINGFENCE_SECRET", f"word-{os.urandom(8).hex()}"
    os.environ[name] = word
    stage.callback(os.environ.pop, name)
    fresh_spawner(stage)
    return {"name": name, "half": word[:12], "rest": word[12:], "parent": os.getpid()}


def _named_folder(stage: Stage) -> Mapping[str, object]:
    """A directory in the caller's PATH whose name says something of him."""
    before, word = os.environ["PATH"], f"client-{os.urandom(8).hex()}"
    os.environ["PATH"] = f"/srv/{word}/bin:{before}"
    stage.callback(os.environ.__setitem__, "PATH", before)
    fresh_spawner(stage)
    return {"half": word[:12], "rest": word[12:]}


# The word is put together here, for on the command line it would be found in every case.
_WORD = "GIVEN['word'] = GIVEN['half'] + GIVEN['rest']\n"
_CALLER_ATTACKS = [
    _attack(name="a variable of the caller", what="the caller's environment is inherited", levels=BOTH,
            prepare=_variable, probe="if GIVEN['name'] in os.environ: print('ESCAPED')\n"),
    _attack(name="the PATH of the caller", what="names of directories that are not shown are told", prepare=_named_folder,
            probe="if GIVEN['half'] + GIVEN['rest'] in os.environ['PATH']: print('ESCAPED')\n"),
    _attack(name="the environment of every process", what="the environment of pid 1 or of the caller is read",
            prepare=_variable, probe=_WORD + _SEARCH.format(pattern="/proc/[0-9]*/environ")),
    _attack(name="the stack of its own process", what="traces of the caller's environment are left in "
                                                      "memory", levels=BOTH,
            prepare=_variable,
            probe="at = [l for l in open('/proc/self/maps') if '[stack]' in l][0].split()[0].split('-')\n"
                  "with open('/proc/self/mem', 'rb') as f:\n f.seek(int(at[0], 16)); "
                  "text = f.read(int(at[1], 16) - int(at[0], 16))\n"
                  "if f\"{GIVEN['name']}={GIVEN['half']}\".encode() in text: print('ESCAPED')\n"),
    _attack(name="the parent's command line", what="pid 1 tells how the sandbox was started",
            probe="text = open(f'/proc/{os.getppid()}/cmdline', 'rb').read()\n"
                  "if b'/' in text or b'-c' in text: print('ESCAPED')\n"),
    _attack(name="the memory map of the parent", what="addresses of the supervisor are read",
            probe=_CONTROL + "if CONTROL and os.fork(): os.wait(); sys.exit()\n"
                  + _TRY.format(what="assert open(f'/proc/{os.getppid()}/maps').read()")),
    _attack(name="the files of the parent's start", what="its auxiliary vector tells addresses",
            probe=_CONTROL + "if CONTROL and os.fork(): os.wait(); sys.exit()\n"
                  + _TRY.format(what="assert open(f'/proc/{os.getppid()}/auxv', 'rb').read()")),
]  # fmt: skip

# ---- of other processes


def _listening(stage: Stage) -> Mapping[str, object]:
    server = stage.enter_context(socket.socket())
    server.bind(("127.0.0.1", 0))
    server.listen()
    return {"word": f":{server.getsockname()[1]:04X} "}


def _named_socket(stage: Stage) -> Mapping[str, object]:
    word = f"name-{os.urandom(8).hex()}"
    server = stage.enter_context(socket.socket(socket.AF_UNIX))
    server.bind(f"\0{word}")
    return {"word": word}


def _segment(stage: Stage) -> Mapping[str, object]:
    """A System V segment of the caller with a secret in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    segment = libc.shmget(0, ctypes.c_size_t(4096), 0o1666)
    stage.callback(libc.shmctl, segment, 0, None)
    address = libc.shmat(segment, None, 0)
    ctypes.memmove(address, SECRET.encode(), len(SECRET))
    libc.shmdt(ctypes.c_void_p(address))
    return {"segment": segment, "secret": SECRET}


def _folder_of_another(stage: Stage) -> Mapping[str, object]:
    path = Path(f"/tmp/ringfence-{os.urandom(8).hex()}")
    path.mkdir(mode=0o755)
    stage.callback(path.rmdir)
    return {"name": path.name}


_OTHERS_ATTACKS = [
    _attack(name="the list of processes", what="a process of the host is seen", prepare=victim,
            probe="if os.path.exists(f\"/proc/{GIVEN['pid']}\"): print('ESCAPED')\n"),
    _attack(name="a process that is not on the list", what="a hidden pid answers when asked by its number",
            prepare=victim, probe=_TRY.format(what="open(f\"/proc/{GIVEN['pid']}/stat\").read()")),
    _attack(name="command lines of the host", what="what others run is read",
            probe="import glob\nsaid = set()\nfor name in glob.glob('/proc/[0-9]*/cmdline'):\n"
                  "  try: said.add(open(name, 'rb').read())\n"
                  "  except OSError: pass  # it ended while the others were read\n"
                  "own = open('/proc/self/cmdline', 'rb').read()\n"
                  "if any(text.strip(b'\\0') not in (b'', b'init', own.strip(b'\\0')) for text in said): "
                  "print('ESCAPED')\n"),
    _attack(name="ports of the host", what="who listens on the host is told", prepare=_listening,
            probe=_SEARCH.format(pattern="/proc/net/tcp*")),
    _attack(name="sockets of the host", what="names of Unix sockets are told", prepare=_named_socket,
            probe=_SEARCH.format(pattern="/proc/net/unix")),
    _attack(name="a segment of the host", what="System V memory of the caller is read", prepare=_segment,
            probe="libc = ctypes.CDLL(None); libc.shmat.restype = ctypes.c_void_p\n"
                  "at = libc.shmat(GIVEN['segment'], None, 0o10000)\n"
                  "if at not in (None, 2 ** 64 - 1) and ctypes.string_at(at).decode() == GIVEN['secret']: "
                  "print('ESCAPED')\n"),
    _attack(name="the list of segments", what="System V memory of the host is listed", prepare=_segment,
            probe="if len(open('/proc/sysvipc/shm').readlines()) > 1: print('ESCAPED')\n"),
    _attack(name="directories of other sandboxes", what="private directories in /tmp are listed", prepare=_folder_of_another,
            probe="if GIVEN['name'] in os.listdir('/tmp'): print('ESCAPED')\n"),
]  # fmt: skip

# ---- of the host

# Exact, and changed by what any sandbox holds: two of them could pass numbers to each other.
_COUNTS = (
    "for name in ('sys/fs/file-nr', 'sys/fs/inode-nr', 'sys/fs/inode-state', 'sys/fs/dentry-state',\n"
    "             'sys/kernel/pty/nr', 'key-users', 'locks'):\n"
    " try: text = open(f'/proc/{name}').read()\n except OSError: continue\n if text.strip(): print('ESCAPED', name)\n"
)

def _host(_: Stage) -> Mapping[str, object]:
    """What the host is called, and who lives on it."""
    own = {"root", "nobody", "user"}
    return {
        "hostname": socket.gethostname(),
        "users": sorted({entry.pw_name for entry in pwd.getpwall()} - own),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text(),
    }


_HOST_ATTACKS = [
    _attack(name=name, what="the host can be told from others", prepare=_host, probe=source)
    for name, source in {
        "the name of the host": "if socket.gethostname() == GIVEN['hostname']: print('ESCAPED')\n",
        "the name of the host in /proc":
            "if open('/proc/sys/kernel/hostname').read().strip() == GIVEN['hostname']: print('ESCAPED')\n",
        "the users of the host":
            "import pwd\nif {e.pw_name for e in pwd.getpwall()} & set(GIVEN['users']): print('ESCAPED')\n",
        "a user of the host by number": "import pwd\n" + _TRY.format(what="assert pwd.getpwuid(1).pw_name"),
        "the boot id": "if open('/proc/sys/kernel/random/boot_id').read() == GIVEN['boot']: print('ESCAPED')\n",
        "the machine id": _TRY.format(what="assert open('/etc/machine-id').read()"),
        "the kernel's command line": "if open('/proc/cmdline').read().strip(): print('ESCAPED')\n",
        "the kernel's symbols": "if open('/proc/kallsyms').readline(): print('ESCAPED')\n",
        "the keys of the host": "if open('/proc/key-users').read(): print('ESCAPED')\n",
        "counts of the host": _COUNTS,
        "network interfaces": "if [n for _, n in socket.if_nameindex() if n != 'lo']: print('ESCAPED')\n",
        "routes": "if len(open('/proc/net/route').readlines()) > 1: print('ESCAPED')\n",
        "name servers": "if 'nameserver' in open('/etc/resolv.conf').read(): print('ESCAPED')\n",
        "devices in /sys": "if os.path.exists('/sys/class'): print('ESCAPED')\n",
        "logs": "if os.listdir('/var/log'): print('ESCAPED')\n",
        "services in /run": "if os.listdir('/run'): print('ESCAPED')\n",
        "disks": "if len(open('/proc/partitions').readlines()) > 2: print('ESCAPED')\n",
        "mounted file systems of the host":
            "if any(l.split()[1] in ('/sys', '/run', '/dev/mqueue') for l in open('/proc/self/mounts')): print('ESCAPED')\n",
    }.items()
] + [
    _attack(name=name, what="the kernel's log is read", needs_root=True, probe=source)
    for name, source in {
        "the kernel's log by syslog":
            "box = ctypes.create_string_buffer(64)\nif ctypes.CDLL(None).klogctl(10, None, 0) > 0: print('ESCAPED')\n",
        "the kernel's log by /dev/kmsg": _TRY.format(what="os.close(os.open('/dev/kmsg', os.O_RDONLY | "
                                                          "os.O_NONBLOCK))"),
        "the kernel's log by /proc/kmsg": _TRY.format(what="os.close(os.open('/proc/kmsg', os.O_RDONLY | "
                                                           "os.O_NONBLOCK))"),
        "hashed passwords": _TRY.format(what="open('/etc/shadow').close()"),
        "physical memory by page": _TRY.format(what="assert open('/proc/kpagecount', 'rb').read(8)"),
        "the kernel's objects": _TRY.format(what="assert open('/proc/slabinfo').read()"),
    }.items()
]  # fmt: skip

_HOST_ATTACKS.append(_attack(
    name="a watch on the load of the host", what="the kernel works for a job that pays nothing for it",
    possible=os.path.exists("/proc/pressure/cpu"),
    probe="for name in ('cpu', 'memory', 'io'):\n"
          " try:\n  with open(f'/proc/pressure/{name}', 'r+') as file: file.write('some 150000 2000000\\0')\n"
          "  print('ESCAPED', name)\n"
          " except OSError: pass\n",
))  # fmt: skip

# ---- of how the sandbox is built


@in_workspace
def _workspace(stage: Stage) -> Mapping[str, object]:
    """A project at its own path, with the answers in the directory above."""
    secret_file(stage)
    stage.cwd = stage.folder / "project"
    stage.cwd.mkdir()
    return {"above": str(stage.folder), "here": str(stage.cwd)}


def _beside(stage: Stage) -> Mapping[str, object]:
    """As when the caller is ``python script.py``: its directory is the first place that modules are looked for."""
    sys.path.insert(0, str(stage.folder))
    stage.callback(sys.path.remove, str(stage.folder))
    return {"path": str(secret_file(stage))}


_TABLE = "lines = [l.split() for l in open('/proc/self/mountinfo')]\n"
# A line tells where in its file system lies what is shown; the control stands on the host's own table.
_BUILD_ATTACKS = [
    _attack(name="the private directory in the mount table", what="where the caller keeps the sandbox is told",
            probe=_TABLE + "if any('ringfence-' in ' '.join(l) for l in lines): print('ESCAPED')\n",
            control="libc = ctypes.CDLL(None, use_errno=True)\nos.makedirs('ringfence-x/work'); os.mkdir('there')\n"
                    "assert libc.unshare(0x10020000 if os.geteuid() else 0x20000) == 0\n"
                    "assert libc.mount(None, b'/', None, 0x44000, None) == 0\n"
                    "assert libc.mount(b'ringfence-x/work', b'there', None, 0x1000, None) == 0\n"
                    + _TABLE + "if any('ringfence-' in l[3] for l in lines): print('ESCAPED')\n"),
    _attack(name="the base of the workspace in the mount table", what="the options of the overlay name host directories",
            prepare=_workspace,
            probe=_TABLE + "found = [l for l in lines if l[4] == GIVEN['here']]\n"
                  "if not found or any('=/' in l[-1] or l[3] != '/' for l in found): print('ESCAPED')\n",
            control=_TABLE + "if not [l for l in lines if l[4] == GIVEN['here']]: print('ESCAPED')\n"),
    _attack(name="the directory above the workspace", what="what lies beside the project is listed", prepare=_workspace,
            probe="try:\n if 'secret.txt' in os.listdir(GIVEN['above']): print('ESCAPED')\n"
                  "except OSError as e: print(e)\n"),
    _attack(name="leftovers of building", what="a directory that was only used for building is still there",
            probe="print([n for n in os.listdir('/') if n.startswith('.')])\n"
                  "if any(n.startswith('.') for n in os.listdir('/')): print('ESCAPED')\n",
            control="os.mkdir('.build')\nif any(n.startswith('.') for n in os.listdir('.')): print('ESCAPED')\n"),
    _attack(name="the name of its control group", what="/proc/self/cgroup tells names of the host",
            probe="if any(l.split(':', 2)[2].strip() != '/' for l in open('/proc/self/cgroup')): print('ESCAPED')\n"),
    _attack(name="the control group of pid 1", what="/proc/1/cgroup tells names of the host",
            probe="if any(l.split(':', 2)[2].strip() != '/' for l in open(f'/proc/{os.getppid()}/cgroup')): "
                  "print('ESCAPED')\n"),
    _attack(name="the script's own directory", what="what lies beside the caller's script is shown as if it were a "
                                                 "package",
            prepare=_beside, probe=_TRY.format(what="open(GIVEN['path']).close()")),
]  # fmt: skip


ATTACKS = [*_CALLER_ATTACKS, *_OTHERS_ATTACKS, *_HOST_ATTACKS, *_BUILD_ATTACKS]
