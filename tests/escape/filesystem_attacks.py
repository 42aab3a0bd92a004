"""Attacks on the file system: reading what is not shown, writing what is not the job's.

The routes to a hidden path are in ``hidden_attacks``, changes to what is shown in ``change_attacks``, links that are
to choose what is shown in ``link_attacks``.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ringfence.model import state_folder
from tests.escape.attack import BOTH, Attack, Stage, in_workspace
from tests.escape.bait import mount_at
from tests.escape.change_attacks import ATTACKS as CHANGES
from tests.escape.hidden_attacks import ATTACKS as HIDDEN
from tests.escape.link_attacks import ATTACKS as LINKS
from tests.escape.raw_calls import calling
from tests.private_folders import left_in

Prepare = Callable[[Stage], Mapping[str, object]]
SECRET = "the answer"


def _is_root() -> bool:
    return os.geteuid() == 0


def _secret(stage: Stage) -> Mapping[str, object]:
    path = stage.folder / "secret.txt"
    path.write_text(SECRET)
    path.chmod(0o644)
    return {"path": str(path), "folder": str(stage.folder), "pid": os.getpid()}


@in_workspace
def _workspace(stage: Stage) -> Mapping[str, object]:
    """A workspace beside a secret."""
    stage.cwd = stage.folder / "workspace"
    stage.cwd.mkdir()
    (stage.cwd / "file.txt").write_text("base")
    (stage.cwd / "folder").mkdir()
    (stage.cwd / "folder" / "inner.txt").write_text("base")
    return _secret(stage)


def _reading(path: str, before: str = "") -> str:
    return (f"try:\n{before} if open({path}).read() == {SECRET!r}: print('ESCAPED')\n"
            "except (OSError, UnicodeDecodeError) as e: print(e)\n")  # fmt: skip


_TRY = "try: {}\nexcept OSError as e: print(e)\nelse: print('ESCAPED')\n"
READ = _reading("GIVEN['path']")
_SWAP_RACE = (
    "import threading\n"
    "os.makedirs('real'); open('real/secret.txt', 'w').write('harmless')\n"
    "os.symlink(GIVEN['folder'], 'link'); os.symlink('real', 'place')\n"
    "done, swaps = [], []\n"
    "def swap():\n"
    "  while not done:\n"
    "    for to in (GIVEN['folder'], 'real'):\n"
    "      os.symlink(to, 'next'); os.rename('next', 'place'); swaps.append(1)\n"
    "thread = threading.Thread(target=swap); thread.start()\n"
    "until = time.monotonic() + (60 if 'RINGFENCE_CONTROL' in os.environ else 0.2)\n"
    "while not done and thread.is_alive() and (time.monotonic() < until or len(swaps) < 500):\n"
    "  try:\n"
    f"    if open('place/secret.txt').read() == {SECRET!r}: done.append(1); print('ESCAPED')\n"
    "  except OSError: pass\n"
    "done.append(1); thread.join()\n"
)
_EXCHANGE_RACE = calling("renameat2") + (
    "import threading\n"
    "os.makedirs('a'); open('a/secret.txt', 'w').write('harmless'); os.symlink(GIVEN['folder'], 'b')\n"
    "done, swaps = [], []\n"
    "def swap():\n"
    "  while not done: call('renameat2', -100, b'a', -100, b'b', 2); swaps.append(1)\n"
    "thread = threading.Thread(target=swap); thread.start()\n"
    "until = time.monotonic() + (60 if 'RINGFENCE_CONTROL' in os.environ else 0.2)\n"
    "while not done and thread.is_alive() and (time.monotonic() < until or len(swaps) < 500):\n"
    "  try:\n"
    f"    if open('a/secret.txt').read() == {SECRET!r}: done.append(1); print('ESCAPED')\n"
    "  except OSError: pass\n"
    "done.append(1); thread.join()\n"
)


# ---- what the host does with what the job left


def _precious(stage: Stage) -> Mapping[str, object]:
    """A directory of the host that a careless removal of the job's directory would empty."""
    folder = stage.folder / "precious"
    folder.mkdir()
    (folder / "file").write_text("kept")
    stage.escaped = lambda: not (folder / "file").exists()
    stage.alone = True
    return {"path": str(folder)}


_LINK_FOR_REMOVAL = (
    "os.symlink(GIVEN['path'], 'folder')\nos.symlink(GIVEN['path'], os.environ.get('TMPDIR', '.') + '/x')\n"
)
_CARELESS_REMOVAL = (
    "import tempfile\nos.chdir(tempfile.mkdtemp())\nos.symlink(GIVEN['path'], 'folder')\n"
    "def remove(path):\n"
    "  if not os.path.isdir(path): return os.unlink(path)\n"
    "  for name in os.listdir(path): remove(f'{path}/{name}')\n"
    "  os.unlink(path) if os.path.islink(path) else os.rmdir(path)\n"
    "remove(os.getcwd())\n"
)


def _own_tmp(stage: Stage) -> Mapping[str, object]:
    """Scratch directories of this test only; what is left in it was not removed."""
    folder = stage.folder / "tmp"
    folder.mkdir()
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    stage.callback(lambda: os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before))
    stage.escaped = lambda: bool(left_in(folder))
    stage.alone = True
    stage.callback(subprocess.run, ["rm", "-rf", str(folder)], check=True)
    return {"path": str(folder)}


_DEEP = "for _ in range(1200): os.mkdir('d'); os.chdir('d')\n"
_DEEP_CONTROL = (
    "import shutil\nos.chdir(GIVEN['path'])\n" + _DEEP + "os.chdir(GIVEN['path'])\n"
    "try: shutil.rmtree('d')\nexcept (RecursionError, OSError): print('ESCAPED')\n"
)
_LOCKED = "os.makedirs('a/b'); open('a/b/c', 'w').close(); os.chmod('a/b', 0); os.chmod('a', 0)\n"
_LOCKED_CONTROL = (  # what rmdir and unlink alone make of it, as a user
    "import shutil\nif os.geteuid() == 0: os.chown(GIVEN['path'], 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
    "os.chdir(GIVEN['path'])\n" + _LOCKED + "try: shutil.rmtree('a')\nexcept OSError: print('ESCAPED')\n"
    "os.chmod('a', 0o700); os.chmod('a/b', 0o700)\n"
)
_FIFO = "os.mkfifo('result.txt'); os.mkfifo(os.environ.get('TMPDIR', '.') + '/out')\n"
_FIFO_CONTROL = (  # whoever opens it waits for ever
    "import tempfile\nos.chdir(tempfile.mkdtemp()); os.mkfifo('result.txt')\n"
    "signal.signal(signal.SIGALRM, lambda *_: (print('ESCAPED', flush=True), os._exit(0)))\n"
    "signal.setitimer(signal.ITIMER_REAL, 0.2)\nopen('result.txt')\n"
)


# ---- devices, mounts, the kernel's files


def _device(kind: str, major: str, minor: str, flags: str) -> str:
    made = f"os.mknod('device', {kind} | 0o666, os.makedev({major}, {minor}))"
    return (f"import stat\ntry: {made}; os.open('device', {flags})\nexcept OSError as e: print(e)\n"
            "else: print('ESCAPED')\n")  # fmt: skip


_WHITEOUT = "import stat\n" + _TRY.format("os.mknod('file.txt.gone', stat.S_IFCHR, 0)")
_RENAME_WHITEOUT = calling("renameat2") + (
    "if call('renameat2', -100, b'file.txt', -100, b'moved', 4)[0] == 0: print('ESCAPED')\n"
)
_CHROOT = (
    "try:\n"
    "  os.mkdir('cell'); place = os.open('.', os.O_RDONLY); os.chroot('cell'); os.fchdir(place)\n"
    "  for _ in range(50): os.chdir('..')\n"
    "  os.chroot('.')\n"
    "except OSError as e: print(e)\n"
) + READ


def _mounted(options: str) -> Prepare:
    """A readable directory of the host with something else mounted below it; only root can mount."""

    def prepare(stage: Stage) -> Mapping[str, object]:
        folder = stage.folder / "shown"
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "secret.txt").write_text(SECRET)
        mount_at(stage, folder / "sub", options)
        stage.policy["readable_paths"] = [str(folder)]
        return {"path": str(folder / "sub")}

    return prepare


_WRITE_BELOW = _TRY.format("open(GIVEN['path'] + '/made', 'w').close()")
_REMOUNT = calling("mount") + (
    "for flags in (32, 32 | 4096, 32 | 2 | 4 | 4096):\n"  # MS_REMOUNT alone, with MS_BIND, with what is locked
    "  for path in (GIVEN['path'], os.path.dirname(GIVEN['path']), '/'):\n"
    "    if path != '/' or 'RINGFENCE_CONTROL' not in os.environ: call('mount', b'none', path.encode(), 0, flags, 0)\n"
) + _WRITE_BELOW
_UNMOUNT = calling("umount2") + (
    "def mounted(): return open('/proc/self/mountinfo').read().count('\\n')\n"
    "before = mounted()\n"
    "for path in [GIVEN['path']] + ([] if 'RINGFENCE_CONTROL' in os.environ else ['/tmp', '/usr', '/dev/shm']):\n"
    "  print(call('umount2', path.encode(), 2))\n"
    "if mounted() < before: print('ESCAPED')\n"
)
_HANDLE = calling("open_by_handle_at") + (
    "handle = ctypes.create_string_buffer(bytes.fromhex(GIVEN['handle']))\n"
    "for place in ('.', '/usr', GIVEN['folder']):\n"
    "  try: mount = os.open(place, os.O_RDONLY)\n"
    "  except OSError: continue\n"
    "  result, error = call('open_by_handle_at', mount, handle, 0)\n"
    "  print(place, result, error)\n"
    f"  if result != -1 and os.read(result, 100) == {SECRET.encode()!r}: print('ESCAPED')\n"
)


def _handle(stage: Stage) -> Mapping[str, object]:
    """The number under which the file system knows the secret."""
    import ctypes

    from ringfence.kernel import syscalls

    given = _secret(stage)
    handle, mount = ctypes.create_string_buffer(b"\x80" + bytes(135)), ctypes.c_int()
    syscalls.call("name_to_handle_at", -100, os.fsencode(str(given["path"])), handle, ctypes.byref(mount), 0)
    return {**given, "handle": handle.raw.hex()}


def _opens(paths: str, flags: str = "os.O_WRONLY") -> str:
    """Opens for writing and writes nothing: that it can be opened is the damage."""
    return (f"import glob\nfor path in {paths}:\n  try: os.open(path, {flags})\n"
            "  except OSError as e: print(e)\n  else: print('ESCAPED', path)\n")  # fmt: skip


_DEVICES = ("('/dev/mem', '/dev/kmsg', '/dev/fuse', '/dev/loop-control', '/dev/vda', '/dev/sda', '/dev/kvm',"
            " '/dev/net/tun', '/dev/console')")  # fmt: skip
_SYSCTL = (
    "('/proc/sysrq-trigger', '/proc/sys/vm/drop_caches', '/proc/sys/kernel/panic', '/proc/sys/kernel/hostname',"
    " '/proc/sys/net/ipv4/ip_forward', '/proc/sys/user/max_user_namespaces', '/proc/sys/fs/file-max')"
)
_CGROUP = "glob.glob('/sys/fs/cgroup/*/cgroup.procs') + glob.glob('/sys/fs/cgroup/cgroup.procs')"
# Programs that no test runs: while one is open for writing, as the control has it, nobody can execute it.
_SYSTEM = "('/usr/bin/tsort', '/usr/bin/factor', '/etc/passwd', '/etc/hosts', '/etc/ld.so.cache', '/etc/os-release')"
_IN_SYSTEM = (
    "for place in ('/usr/bin', '/etc', '/', '/usr/lib'):\n  try: os.mkdir(place + '/ringfence-made')\n"
    "  except OSError as e: print(e)\n  else: print('ESCAPED'); os.rmdir(place + '/ringfence-made')\n"
)


def _interpreter(_: Stage) -> Mapping[str, object]:
    packages = [path for path in sys.path if path.endswith("site-packages")]
    return {"files": [os.__file__, *glob.glob(f"{packages[0]}/*/__init__.py")[:3]]}


_TOUCH_DEVICE = _TRY.format("os.utime('/dev/null')")


# ---- other people's files


def _home(stage: Stage) -> Mapping[str, object]:
    """A program that was started from a script in the home directory, as ``python ~/script.py`` does."""
    key = stage.folder / "home" / ".ssh" / "id_ed25519"
    key.parent.mkdir(parents=True)
    key.write_text(SECRET)
    sys.path.insert(0, str(stage.folder / "home"))
    stage.callback(sys.path.remove, str(stage.folder / "home"))
    return {"path": str(key)}


def _other_scratch(stage: Stage) -> Mapping[str, object]:
    folder = Path(state_folder.private_place(), os.urandom(8).hex())
    (folder / "work").mkdir(parents=True)
    (folder / "work" / "secret.txt").write_text(SECRET)
    stage.callback(subprocess.run, ["rm", "-rf", str(folder)], check=True)
    return {"path": str(folder / "work" / "secret.txt")}


def _fifo(stage: Stage) -> Mapping[str, object]:
    """A FIFO of the host in a readable directory; a reader waits at it."""
    folder = stage.folder / "shown"
    folder.mkdir()
    path = folder / "fifo"
    os.mkfifo(path)
    path.chmod(0o666)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    stage.callback(os.close, reader)
    stage.escaped = lambda: os.read(reader, 10) == b"hello"
    stage.policy["readable_paths"] = [str(folder)]
    return {"path": str(path)}


def _fifo_beside_a_mount(stage: Stage) -> Mapping[str, object]:
    given = _fifo(stage)
    mount_at(stage, stage.folder / "shown" / "sub")
    return given


def _under_a_mount(stage: Stage) -> Mapping[str, object]:
    """Since it was mounted, nobody on the host sees the secret. Something beside it is hidden, without a tripwire."""
    mount = _mounted("mode=755")(stage)["path"]
    stage.policy["hidden_paths"] = [f"{mount}/other", "/tmp/no-such-file"]
    return {"path": f"{mount}/secret.txt", "mount": mount}


@in_workspace
def _under_a_mount_in_the_workspace(stage: Stage) -> Mapping[str, object]:
    given = _under_a_mount(stage)
    stage.policy.clear()
    stage.cwd = stage.folder / "shown"
    return given


_TAKE_IT_AWAY = calling("unshare", "mount", "umount2") + (  # in a mount namespace of its own
    "assert call('unshare', 0x20000)[0] == 0 and call('mount', b'none', b'/', 0, 0x44000, 0)[0] == 0\n"
    "call('umount2', GIVEN['mount'].encode(), 2)\n"
)
_WRITE_FIFO = (
    "try: os.write(os.open(GIVEN['path'], os.O_WRONLY | os.O_NONBLOCK), b'hello')\n"
    "except OSError as e: print(e)\ntime.sleep(0.05)\n"
)


_SPARSE = "try:\n  with open('big', 'wb') as file: file.truncate(1 << 40)\nexcept OSError as e: print(e)\n" \
          "if os.path.getsize('big') > 20 << 20: print('ESCAPED')\nos.unlink('big')\n"  # fmt: skip

# (name, what must not happen, probe, the control needs root, what the stage prepares)
_ROWS = (
    ("read a file that is not shown", "a file outside the workspace is read", READ, False, _secret),
    ("symlink out", "a link leads out of the workspace", _reading("'link'", " os.symlink(GIVEN['path'], 'link')\n"),
     False, _workspace),
    ("hard link out", "a link leads out of the workspace", _reading("'link'", " os.link(GIVEN['path'], 'link')\n"),
     False, _workspace),
    ("dots", "a relative path leads out", _reading("'../secret.txt'"), False, _workspace),
    ("/proc/self/root", "the root's own name leads out", _reading("'/proc/self/root' + GIVEN['path']"), False, _secret),
    ("/proc/self/cwd", "the directory's own name leads out", _reading("'/proc/self/cwd/../secret.txt'"), False,
     _workspace),
    ("/proc/PID/root of the caller", "the caller's root leads out",
     _reading("f\"/proc/{GIVEN['pid']}/root\" + GIVEN['path']"), False, _secret),
    ("/proc/PID/root of the parent", "the parent's root leads out",
     _reading("f'/proc/{os.getppid()}/root' + GIVEN['path']"), False, _secret),
    ("/proc/PID/cwd of the parent", "the parent's directory leads out",
     _reading("f'/proc/{os.getppid()}/cwd/../../../../../../../..' + GIVEN['path']"), False, _secret),
    ("swap race", "a directory swapped for a link leads out", _SWAP_RACE, False, _workspace),
    ("exchange race", "a directory exchanged with a link leads out", _EXCHANGE_RACE, False, _workspace),
    ("character device", "a device is made and opened",
     _device("stat.S_IFCHR", "1", "3", "os.O_RDWR"), True, None),
    ("block device", "a disk is made",
     "import stat\n" + _TRY.format("os.mknod('device', stat.S_IFBLK, 0x707)"), True, None),
    ("whiteout by mknod", "a deletion is forged in the layer", _WHITEOUT, False, _workspace),
    ("whiteout by rename", "a deletion is forged in the layer", _RENAME_WHITEOUT, True, _workspace),
    ("write below a submount", "something mounted in a readable directory is written", _WRITE_BELOW, True,
     _mounted("mode=777")),
    ("remount", "a read-only mount is made writable", _REMOUNT, True, _mounted("mode=777,ro")),
    ("unmount", "a cover is taken away", _UNMOUNT, True, _mounted("mode=777")),
    ("chroot and dots", "a descriptor kept outside a root leads out", _CHROOT, True, _workspace),
    ("open by handle", "a file is opened by its number", _HANDLE, True, _handle),
    ("core_pattern", "the host runs a program of the job's choice", _opens("['/proc/sys/kernel/core_pattern']"), True,
     None),
    ("kernel settings", "settings of the host are changed", _opens(_SYSCTL), True, None),
    ("kernel log", "the kernel's log is read", _opens("['/proc/kmsg']", "os.O_RDONLY"), True, None),
    ("physical pages", "the machine's memory map is read",
     _opens("['/proc/kpagecount', '/proc/kpageflags']", "os.O_RDONLY"), True, None),
    ("cgroup files", "the job leaves its group", _opens(_CGROUP), True, None),
    ("/sys", "the kernel's objects are listed", _TRY.format("os.listdir('/sys/kernel')"), False, None),
    ("devices of the host", "a device of the host is opened",
     _opens(_DEVICES, "os.O_RDONLY | os.O_NONBLOCK"), True, None),
    ("touch a device", "a device file of the host is changed", _TOUCH_DEVICE, False, None),
    ("system files", "a file of the system is opened for writing", _opens(_SYSTEM), True, None),
    ("system directories", "something is made in a directory of the system", _IN_SYSTEM, True, None),
    ("interpreter and packages", "code that others run is opened for writing", _opens("GIVEN['files']"), True,
     _interpreter),
    ("keys in the home directory", "an ssh key is read", READ, False, _home),
    ("scratch directory of another sandbox", "another sandbox's files are read", READ, False, _other_scratch),
    ("FIFO in a readable directory", "a FIFO of the host is written", _WRITE_FIFO, False, _fifo),
    ("FIFO beside a mount in a readable directory", "a FIFO of the host is written", _WRITE_FIFO, False,
     _fifo_beside_a_mount),
)  # fmt: skip


def _row(name: str, what: str, probe: str, needs_root: bool, prepare: Prepare | None) -> Attack:
    return Attack(name=name, family="filesystem", what=what, probe=probe, needs_root=needs_root,
                  prepare=prepare or (lambda _: {}))  # fmt: skip


ATTACKS = [
    *(_row(*row) for row in _ROWS),
    *(Attack(name=f"under a mount in a {place}", family="filesystem", what="what a mount covers is read", probe=READ,
             control=_TAKE_IT_AWAY + READ, needs_root=True, possible=_is_root(), prepare=prepare)
      for place, prepare in (("readable directory", _under_a_mount), ("workspace", _under_a_mount_in_the_workspace))),
    *CHANGES,
    Attack(name="/proc/1/root", family="filesystem", what="the first process leads out", prepare=_secret,
           probe=_reading("'/proc/1/root' + GIVEN['path']"), control=_reading("'/proc/self/root' + GIVEN['path']")),
    Attack(name="link for the removal", family="filesystem", what="cleaning up follows a link out", levels=BOTH,
           prepare=_precious, probe=_LINK_FOR_REMOVAL, control=_CARELESS_REMOVAL, status=("OK",)),
    Attack(name="deep tree", family="filesystem", what="a tree is too deep to be removed", levels=BOTH,
           prepare=_own_tmp, probe=_DEEP, control=_DEEP_CONTROL, status=("OK",)),
    Attack(name="locked tree", family="filesystem", what="a directory without permissions stays", levels=BOTH,
           prepare=_own_tmp, probe=_LOCKED, control=_LOCKED_CONTROL, status=("OK",)),
    Attack(name="FIFO for the host", family="filesystem", what="the host waits at a FIFO that the job left",
           levels=BOTH, probe=_FIFO, control=_FIFO_CONTROL, status=("OK",)),
    Attack(name="sparse file of 1 TiB", family="filesystem", what="a file is larger than allowed", levels=BOTH,
           probe=_SPARSE, policy={"file_bytes": "10M"}),
    *HIDDEN,
    *LINKS,
]  # fmt: skip
