"""Attacks that try to be more than an ordinary process: identity, capabilities, namespaces, terminals, keys."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from tests.escape.attack import BOTH, Attack, Stage
from tests.escape.raw_calls import calling

_TRY = "try:\n  {}\nexcept OSError as e: print(e)\nelse: print('ESCAPED')\n"


def _setuid_program(stage: Stage) -> Mapping[str, object]:
    """A program of the host's root that anybody may start as root."""
    folder = stage.folder / "shown"
    folder.mkdir()
    path = folder / "id"
    shutil.copy("/usr/bin/id", path)
    path.chmod(0o4755)
    if os.geteuid() == 0:
        stage.policy["readable_paths"] = [str(folder)]
    return {"path": str(path)}


_EXEC_SETUID = (
    "import subprocess\n"
    "if os.geteuid() == 0: os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
    "said = subprocess.run([GIVEN['path']], capture_output=True, text=True)\n"
    "print(said)\n"
    "if 'euid=0' in said.stdout: print('ESCAPED')\n"
)



_SYSTEM_SETUID = (
    "import glob, stat, subprocess\n"
    "if os.geteuid() == 0: os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
    "for path in ('/usr/bin/su', '/usr/bin/passwd', '/usr/bin/mount', '/usr/bin/newgrp', '/usr/bin/chsh'):\n"
    "  if not os.path.exists(path) or not os.stat(path).st_mode & stat.S_ISUID: continue\n"
    "  child = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
    "  for _ in range(40):\n"
    "    lines = open(f'/proc/{child.pid}/status').read().splitlines()\n"
    "    seen = [line.split()[2] for line in lines if line.startswith('Uid:')]\n"
    "    if seen == ['0']: print('ESCAPED'); break\n"
    "    time.sleep(0.005)\n"
    "  try: child.kill()\n"
    "  except OSError: pass\n"
    "  child.wait(); print(path, seen)\n"
)
_CAPSET = calling("capset", "capget") + (
    "import struct\n"
    "header = struct.pack('Ii', 0x20080522, 0)\n"
    "call('capset', header, struct.pack('6I', 1 << 21, 1 << 21, 1 << 21, 0, 0, 0))\n"
    "now = ctypes.create_string_buffer(24)\n"
    "call('capget', header, now)\n"
    "print(struct.unpack('6I', now.raw))\n"
    "if struct.unpack('6I', now.raw)[0]: print('ESCAPED')\n"
)
_AMBIENT = calling("capset", "prctl") + (
    "import struct\n"
    "call('capset', struct.pack('Ii', 0x20080522, 0), struct.pack('6I', 1 << 21, 1 << 21, 1 << 21, 0, 0, 0))\n"
    "if call('prctl', 47, 2, 21, 0, 0)[0] == 0: print('ESCAPED')\n"
)
_BOUNDING = calling("prctl") + "if call('prctl', 23, 21, 0, 0, 0)[0] == 1: print('ESCAPED')\n"
_SECUREBITS = calling("prctl") + "if call('prctl', 28, 0x10, 0, 0, 0)[0] == 0: print('ESCAPED')\n"
_NO_NEW_PRIVS = calling("prctl") + (
    "call('prctl', 38, 0, 0, 0, 0)\nif call('prctl', 39, 0, 0, 0, 0)[0] == 0: print('ESCAPED')\n"
)
_FORGE_MM = calling("prctl") + (
    "size = ctypes.c_uint(0)\nif call('prctl', 35, 15, ctypes.addressof(size), 0, 0)[0] == 0: print('ESCAPED')\n"
)
_FILE_CAPABILITY = (
    "import struct, tempfile\nos.chdir(tempfile.mkdtemp())\nopen('program', 'w').close()\n"
    + _TRY.format("os.setxattr('program', 'security.capability', struct.pack('<5I', 0x2000001, 1 << 21, 0, 0, 0))")
    + "os.unlink('program'); os.rmdir(os.getcwd())\n"
)
_NESTED = calling("unshare") + (
    "who = os.getuid()\n"
    "result, error = call('unshare', 0x10000000)\n"
    "if result: host_refuses('unshare', error)\n"
    "try:\n"
    "  for name, text in (('setgroups', 'deny'), ('uid_map', f'0 {who} 1')):\n"
    "    open(f'/proc/self/{name}', 'w').write(text)\n"
    "except OSError as e: print(e)\n"
    "held = [line for line in open('/proc/self/status') if line.startswith('CapEff')]\n"
    "if os.getuid() == 0 or int(held[0].split()[1], 16): print('ESCAPED')\n"
)


def _caller(_: Stage) -> Mapping[str, object]:
    return {"pid": os.getpid()}


def _setns(kind: str, flag: int) -> str:
    return calling("setns") + (
        f"for who in (1, GIVEN['pid'], os.getppid()):\n"
        f"  try: place = os.open(f'/proc/{{who}}/ns/{kind}', os.O_RDONLY)\n"
        f"  except OSError as e: print(e); continue\n"
        f"  result, error = call('setns', place, {flag})\n"
        f"  print(who, result, error)\n"
        f"  if result == 0: print('ESCAPED'); break\n"
    )


_SETNS_PIDFD = calling("setns") + (
    "for who in (1, GIVEN['pid'], os.getppid()):\n"
    "  try: place = os.pidfd_open(who)\n"
    "  except OSError as e: print(e); continue\n"
    "  if call('setns', place, 0x4000000)[0] == 0: print('ESCAPED')\n"
)
_ON_A_TERMINAL = (
    "import fcntl, pty, termios\n"
    "child, terminal = pty.fork()\n"
    "if child == 0:\n"
    "  try:\n"
    "    {}\n"
    "  except OSError as e: told = errno.errorcode[e.errno]\n"
    "  else: told = 'WORKED'\n"
    "  print(told, flush=True); time.sleep(0.05); os._exit(0)\n"
    "said = b''\n"
    "try:\n"
    "  while piece := os.read(terminal, 100): said += piece\n"
    "except OSError: pass\n"
    "print(said)\n"
    "if b'WORKED' in said or b'ENOTTY' in said or b'EINVAL' in said: print('ESCAPED')\n"
)
_TIOCSTI = _ON_A_TERMINAL.format("fcntl.ioctl(0, termios.TIOCSTI, b'x')")
_TIOCSTI_UPPER = "libc = ctypes.CDLL(None, use_errno=True)\n" + _ON_A_TERMINAL.format(
    "if libc.ioctl(0, ctypes.c_ulong(termios.TIOCSTI | 1 << 32), b'x'): raise OSError(ctypes.get_errno(), '')"
)
_TIOCLINUX = _ON_A_TERMINAL.format("fcntl.ioctl(0, 0x541C, b'\\x06')")
_TIOCSETD = _ON_A_TERMINAL.format("fcntl.ioctl(0, termios.TIOCSETD, (0).to_bytes(4, 'little'))")


def _key(what: str) -> str:
    return calling("add_key", "request_key", "keyctl") + (
        f"result, error = {what}\nprint(result, error)\n"
        "print('ESCAPED') if result != -1 or error not in REFUSED else host_refuses('keys', error)\n"
    )


_PTRACE = calling("ptrace") + (
    "child = os.fork()\n"
    "if child == 0: time.sleep(0.5); os._exit(0)\n"
    "for target in (os.getppid(), 1, child):\n"
    "  result, error = call('ptrace', 0x4206, target, 0, 0)\n"
    "  print(target, result, error)\n"
    "  if result == 0: print('ESCAPED'); call('ptrace', 17, target, 0, 0)\n"
    "os.kill(child, 9)\n"
)
_PERSONALITY = calling("personality") + "if call('personality', 0x400000)[0] != -1: print('ESCAPED')\n"
_CHROOT = _TRY.format("os.chroot('/')")
_REAL_TIME = _TRY.format("os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))")
_NICE = _TRY.format("os.setpriority(os.PRIO_PROCESS, 0, -5)")
_SIGNAL = _TRY.format("os.kill(GIVEN['pid'], 0)")
_LIMIT_OF_CALLER = "import resource\n" + _TRY.format("resource.prlimit(GIVEN['pid'], resource.RLIMIT_NOFILE)")
_SETUID_BIT = (
    "import shutil\n"
    "os.chdir(GIVEN['path'])\n"
    "def made(how, path):\n"
    "  try: how(path)\n"
    "  except OSError as e: print(path, e); return\n"
    "  if os.path.exists(path) and os.stat(path).st_mode & 0o6000: print('ESCAPED', path)\n"
    "def empty(path): open(path, 'w').close()\n"
    "def by_chmod(path): empty(path); os.chmod(path, 0o4755)\n"
    "def by_fchmod(path):\n  with open(path, 'w') as f: os.fchmod(f.fileno(), 0o2755)\n"
    "def by_fchmodat(path): empty(path); os.chmod(path, 0o4711, dir_fd=os.open('.', os.O_RDONLY))\n"
    "def by_open(path): os.open(path, os.O_CREAT | os.O_WRONLY, 0o4755)\n"
    "def by_mknod(path): os.mknod(path, 0o104755)\n"
)
_SETUID_ROUTES = {
    "chmod": "made(by_chmod, 'a')\n", "fchmod": "made(by_fchmod, 'b')\n", "fchmodat": "made(by_fchmodat, 'c')\n",
    "open": "made(by_open, 'd')\n", "mknod": "made(by_mknod, 'e')\n",
    "openat2": calling("openat2") + "import struct\nmade(lambda path: call('openat2', -100, path.encode(), struct.pack("
               "'3Q', os.O_CREAT | os.O_WRONLY, 0o4755, 0), 24), 'f')\n",
    "fchmodat2": calling("fchmodat2") + "made(lambda path: (empty(path), call('fchmodat2', -100, path.encode(), 0o4755,"
                 " 0)), 'g')\n",
}  # fmt: skip


def _writable(stage: Stage) -> Mapping[str, object]:
    folder = stage.folder / "writable"
    folder.mkdir()
    stage.policy["writable_paths"] = [str(folder)]
    return {"path": str(folder)}


# (name, what must not happen, probe, the control needs root, what the stage prepares)
_ROWS = (
    ("setuid 0", "the job becomes root", _TRY.format("os.setuid(0)"), True, None),
    ("setresuid to another user", "the job becomes somebody else", _TRY.format("os.setresuid(7, 7, 7)"), True, None),
    ("setgid 0", "the job joins root's group", _TRY.format("os.setgid(0)"), True, None),
    ("setgroups", "the job joins groups", _TRY.format("os.setgroups([0])"), True, None),
    ("capset", "a capability is raised", _CAPSET, True, None),
    ("ambient capability", "a capability is kept over exec", _AMBIENT, True, None),
    ("bounding set", "a capability may come back", _BOUNDING, False, None),
    ("securebits", "the rules for root are changed", _SECUREBITS, True, None),
    ("forge the memory map", "the process forges what /proc tells of it", _FORGE_MM, False, None),
    ("file capability", "a file gives capabilities", _FILE_CAPABILITY, True, None),
    ("nested user namespace", "capabilities are had in a namespace of its own", _NESTED, False, None),
    ("setns through /proc", "the caller's namespace is entered", _setns("uts", 0x4000000), True, _caller),
    ("setns of the mounts", "the caller's mounts are entered", _setns("mnt", 0x20000), True, _caller),
    ("setns by pidfd", "the caller's namespace is entered by a pidfd", _SETNS_PIDFD, True, _caller),
    ("a setuid program", "a program of root's is run as root", _EXEC_SETUID, True, _setuid_program),
    ("the system's setuid programs", "su and passwd are run as root", _SYSTEM_SETUID, False, None),
    ("TIOCSTI", "input is typed into a terminal", _TIOCSTI, True, None),
    ("TIOCSTI with upper bits", "input is typed past a filter of 64 bits", _TIOCSTI_UPPER, True, None),
    ("TIOCLINUX", "the console is controlled", _TIOCLINUX, False, None),
    ("TIOCSETD", "a line discipline is loaded", _TIOCSETD, False, None),
    ("add_key", "a key is left for others", _key("call('add_key', b'user', b'rf', b'x', 1, -2)"), False, None),
    ("request_key", "a key is asked for", _key("call('request_key', b'user', b'rf-none', 0, 0)"), False, None),
    ("read the session keyring", "the caller's keys are listed", _key("call('keyctl', 6, -3, 0, 0, 0)"), False, None),
    ("join a session keyring", "a named keyring is shared", _key("call('keyctl', 1, b'ringfence-corpus')"), False,
     None),
    ("ptrace pid 1", "a process that did not ask for it is seized", _PTRACE, False, None),
    ("personality", "memory protection is weakened", _PERSONALITY, False, None),
    ("chroot", "the root is changed", _CHROOT, True, None),
    ("real-time priority", "the machine is taken over by a real-time process", _REAL_TIME, True, None),
    ("negative nice", "the job goes before everybody", _NICE, True, None),
    ("signal the caller", "the caller is reached by a signal", _SIGNAL, False, _caller),
    ("limits of the caller", "the caller's limits are read or changed", _LIMIT_OF_CALLER, False, _caller),
)  # fmt: skip

ATTACKS = [
    *(Attack(name=name, family="privilege", what=what, probe=probe, needs_root=root, prepare=prepare or (lambda _: {}))
      for name, what, probe, root, prepare in _ROWS),
    *(Attack(name=f"setuid bit by {route}", family="privilege", prepare=_writable, probe=_SETUID_BIT + source,
             what="a file with the setuid or setgid bit is left on the host")
      for route, source in _SETUID_ROUTES.items()),
    Attack(name="no_new_privs", family="privilege", what="the switch is off or can be taken off", levels=BOTH,
           probe=_NO_NEW_PRIVS),
]  # fmt: skip
