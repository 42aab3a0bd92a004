"""Attacks through descriptors: those of the caller, of the leader and of pid 1, and those that others hand over."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

from tests.escape.attack import BOTH, Attack, Stage
from tests.escape.bait import SECRET, fresh_spawner, giver, inheritable, secret_file

_attack = partial(Attack, family="descriptors")
_HIGH = 900
_CONTROL = "CONTROL = 'RINGFENCE_CONTROL' in os.environ\n"

# ---- inherited from the caller


def _open_file(number: int) -> Callable[[Stage], Mapping[str, object]]:
    return lambda stage: {"secret": SECRET, "fd": inheritable(stage, os.open(secret_file(stage), os.O_RDONLY), number)}


def _open_folder(stage: Stage) -> Mapping[str, object]:
    secret_file(stage)
    return {"secret": SECRET, "fd": inheritable(stage, os.open(stage.folder, os.O_RDONLY | os.O_DIRECTORY), 41)}


def _open_pipe(stage: Stage) -> Mapping[str, object]:
    """What arrives in the caller's pipe was written by the job."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    stage.callback(os.close, reader)

    def written() -> bool:
        try:
            return bool(os.read(reader, 64))
        except BlockingIOError:
            return False

    stage.escaped = written
    return {"fd": inheritable(stage, writer, 42)}


def _open_pidfd(stage: Stage) -> Mapping[str, object]:
    return {"fd": inheritable(stage, os.pidfd_open(os.getpid()), 43)}


def _open_input(stage: Stage) -> Mapping[str, object]:
    """The caller's own standard input has something to read."""
    kept = os.dup(0)
    reader, writer = os.pipe()
    os.write(writer, SECRET.encode())
    os.dup2(reader, 0)
    for descriptor in (reader, writer):
        os.close(descriptor)
    stage.callback(os.close, kept)
    stage.callback(os.dup2, kept, 0)
    fresh_spawner(stage)
    return {"secret": SECRET}


_EACH = "for fd in {numbers}:\n try:\n  {what}\n except OSError: pass\n"
_READ_ALL = _EACH.format(
    numbers="range(0, 4096)",
    what="if GIVEN['secret'].encode() in os.pread(fd, 99, 0): print('ESCAPED')",
)
_INHERITED_ATTACKS = [
    _attack(name="a file of the caller", what="an inherited descriptor is read", levels=BOTH, prepare=_open_file(40),
            probe=_READ_ALL),
    _attack(name="a file of the caller with a high number", what="a descriptor is missed when all are closed",
            levels=BOTH, prepare=_open_file(_HIGH), probe=_READ_ALL),
    _attack(name="a file of the caller by /dev/fd", what="an inherited descriptor is opened anew", levels=BOTH,
            prepare=_open_file(40),
            probe=_EACH.format(numbers="os.listdir('/dev/fd')", what="again = os.open(f'/dev/fd/{fd}', "
                               "os.O_RDONLY | os.O_NONBLOCK)\n"
                               "  if GIVEN['secret'].encode() in os.pread(again, 99, 0): print('ESCAPED')")),
    _attack(name="a directory of the caller", what="a file is opened relative to an inherited directory", levels=BOTH,
            prepare=_open_folder, probe=_EACH.format(
                numbers="range(3, 4096)", what="os.open('secret.txt', 0, dir_fd=fd); print('ESCAPED')")),
    _attack(name="the way up from a directory of the caller", what="fchdir leaves the root", levels=BOTH,
            prepare=_open_folder, probe=_EACH.format(
                numbers="range(3, 4096)", what="os.fchdir(fd); print('ESCAPED')")),
    _attack(name="a pipe of the caller", what="an inherited pipe is written", levels=BOTH, prepare=_open_pipe,
            probe=_CONTROL + _EACH.format(numbers="[GIVEN['fd']] if CONTROL else range(3, "
                                                  "4096)", what="os.write(fd, b'x')")),
    _attack(name="a pidfd of the caller", what="an inherited pidfd signals the caller", levels=BOTH,
            prepare=_open_pidfd,
            probe=_EACH.format(numbers="range(3, 4096)", what="signal.pidfd_send_signal(fd, 0); print('ESCAPED')")),
    _attack(name="more than the standard three", what="anything else is open at the start", levels=BOTH,
            prepare=_open_file(40), probe="FIRST = 4 if sys.argv[0] == '<job>' else 3  # a Python job has its channel\n"
            + _EACH.format(numbers="range(FIRST, 4096)", what="os.fstat(fd); print('ESCAPED')")
            + "if FIRST == 4 and os.fstat(3).st_mode & 0o170000 != 0o010000: print('ESCAPED')\n"),
    _attack(name="the caller's standard input", what="what is meant for the caller is read", levels=BOTH,
            prepare=_open_input, probe="if os.read(0, 99).decode() == GIVEN['secret']: print('ESCAPED')\n",
            control="r, w = os.pipe(); os.write(w, GIVEN['secret'].encode()); os.dup2(r, 0)\n"
                    "if os.fork() == 0:\n if os.read(0, 99).decode() == GIVEN['secret']: print('ESCAPED', flush=True)\n"
                    "else: os.wait()\n"),
]  # fmt: skip

# ---- the supervisors' own

# An honest end: frame E, wait status 0, no cause. Enough numbers for any number of fields.
_FORGE = (
    "import struct, glob\n"
    "forged = [struct.pack('!cI', b'E', 8 * n) + bytes(8 * n) for n in range(8, 24)] + [bytes(4)]\n"
    "def forge(fd):\n os.set_blocking(fd, False)\n for frame in forged:\n  try: os.write(fd, frame)\n"
    "  except OSError: pass\n"
)


def _fails_with_7(stage: Stage) -> Mapping[str, object]:
    stage.escaped = lambda: stage.outcome is not None and stage.outcome.rc != 7
    return {}


# The control's parent believes what it reads from the pipe that its child inherited, as a leader might.
_BELIEVING = (
    "r, w = os.pipe(); os.set_inheritable(w, True); kid = os.fork()\nif kid:\n os.close(w); told = b''\n"
    " while piece := os.read(r, 4096): told += piece\n os.wait()\n if told: print('ESCAPED', flush=True)\n sys.exit()\n"
)
_PARENT = _CONTROL + "if CONTROL and os.fork(): os.wait(); sys.exit()\nUP = os.getppid()\n"
_TRY = "try:\n {what}\n print('ESCAPED', flush=True)\nexcept OSError as e: print(e)\n"
_FORGE_HERE = _FORGE + "for fd in range(3, 4096):\n try: forge(fd)\n except OSError: pass\nos._exit(7)\n"
_FORGE_THERE = (
    _FORGE + "for name in glob.glob('/proc/[0-9]*/fd/*'):\n"
    " if name.split('/')[2] in ('self', str(os.getpid())): continue\n"
    " try: forge(os.open(name, os.O_WRONLY | os.O_NONBLOCK))\n except OSError: pass\nos._exit(7)\n"
)
_SUPERVISOR_ATTACKS = [
    _attack(name="a forged end on an inherited pipe", what="a failure is reported as a success", levels=BOTH,
            prepare=_fails_with_7, probe=_FORGE_HERE, control=_BELIEVING + _FORGE + "forge(w)\n"),
    _attack(name="a forged end on the supervisors' pipes", what="a failure is reported as a success",
            prepare=_fails_with_7, probe=_FORGE_THERE,
            # Only the pipe of its own parent is forged: the control must not write to anybody else.
            control=_BELIEVING.replace("os.close(w); ", "") .replace("while piece := os.read(r, 4096): told += piece",
                    "told = os.read(r, 4096)") + _FORGE + "forge(os.open(f'/proc/{os.getppid()}/fd/{w}', "
                                                          "os.O_WRONLY))\n"),
    *(_attack(name=f"{name} of pid 1", what="the supervisor inside is looked into",
              probe=_PARENT + _TRY.format(what=what))
      for name, what in {
          "the list of descriptors": "os.listdir(f'/proc/{UP}/fd')",
          "the positions of descriptors": "os.listdir(f'/proc/{UP}/fdinfo')",
          "the working directory": "os.readlink(f'/proc/{UP}/cwd'); os.open(f'/proc/{UP}/cwd/', 0)",
          "the root": "os.readlink(f'/proc/{UP}/root'); os.open(f'/proc/{UP}/root/', 0)",
          "the program": "os.close(os.open(f'/proc/{UP}/exe', 0))",
          "the mapped files": "os.listdir(f'/proc/{UP}/map_files')",
          "the mount namespace": "os.open(f'/proc/{UP}/ns/mnt', 0)",
          "the user namespace": "os.open(f'/proc/{UP}/ns/user', 0)",
          "the children's pid namespace": "os.open(f'/proc/{UP}/ns/pid_for_children', 0)",
      }.items()),
]  # fmt: skip

# ---- handed over by somebody outside

_TAKE = (
    "s = socket.socket(socket.AF_UNIX)\ntry:\n s.connect(GIVEN['address'])\n fds = socket.recv_fds(s, 1, 1)[1]\n"
    " if os.read(fds[0], 99).decode() == GIVEN['secret']: print('ESCAPED')\nexcept OSError as e: print(e)\n"
)


def _by_path(stage: Stage) -> Mapping[str, object]:
    address = str(stage.folder / "giver")
    giver(stage, address)
    return {"address": address, "secret": SECRET}


def _in_a_writable_folder(stage: Stage) -> Mapping[str, object]:
    (stage.folder / "shared").mkdir()
    stage.policy["writable_paths"] = [str(stage.folder / "shared")]
    address = str(stage.folder / "shared" / "giver")
    giver(stage, address)
    return {"address": address, "secret": SECRET}


def _by_name(stage: Stage) -> Mapping[str, object]:
    address = f"\0giver-{os.urandom(8).hex()}"
    giver(stage, address)
    return {"address": address, "secret": SECRET}


_HANDED_ATTACKS = [
    _attack(name="a descriptor from a socket of the host", what="SCM_RIGHTS brings a file in", prepare=_by_path,
            probe=_TAKE),
    _attack(name="a descriptor from a socket in a writable directory", what="SCM_RIGHTS brings a file in",
            prepare=_in_a_writable_folder, probe=_TAKE),
    _attack(name="a descriptor from an abstract socket of the host", what="SCM_RIGHTS brings a file in",
            prepare=_by_name, probe=_TAKE),
]  # fmt: skip

ATTACKS = [*_INHERITED_ATTACKS, *_SUPERVISOR_ATTACKS, *_HANDED_ATTACKS]
