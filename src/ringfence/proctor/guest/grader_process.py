"""The first process in a grader's sandbox. The code under test can neither write to it nor speak for it.

``lead [REWARD [PREFERRED]] -- COMMAND``: runs the grader in a Landlock domain of its own, waits for it, ends everything
else in the sandbox, and reports over descriptor 3, which the grader never has. In that domain nobody can write
``/proc``, so no process changes another's memory, and nobody reaches this one by a signal (Linux 6.12) or through
``/proc``.

``confine [--oracle=HEX] COMMAND``: for graders, in front of code under test: it can't write the reward's directory,
can't read the oracle and the grader, makes no symbolic links, and neither traces nor signals the grader's script.

Stands alone: standard library, none of our modules.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import sys
import time

CHANNEL = 3
MAX_REWARD_BYTES = 64 * 1024 + 1
NO_WALL = 125
"""Exit status: this kernel has no Landlock, and nothing was run."""
_REWARD_VARIABLE = "PROCTOR_REWARD_FILE"
_SECRETS = ("/grader", "/oracle", "/tests")
ORACLE = "--oracle="
"""Where else the oracle is, in hexadecimal: the shell splits the variable that has it into words."""
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _BENEATH = 1, 1
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_CHANGES = sum(1 << bit for bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12))
"""Write, remove, make: all that ABI 1 knows of changes."""
_READS = 1 << 2 | 1 << 3
_ON_A_FILE = _WRITE_FILE | _TRUNCATE | 1 << 2
_SCOPE_SIGNAL = 1 << 1
_MAKE_LINK = 1 << 12
"""A symbolic link in place of an output file would lead the script, which may read the oracle, to the answer."""
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_MACHINES = {"x86_64": (0xC000003E, 302, 72), "aarch64": (0xC00000B7, 261, 25)}
"""Of each: its number for seccomp, and those of prlimit64 and fcntl."""
_F_SETLEASE = 1024
_MODIFY, _ATTRIB, _CLOSE_WRITE, _CLOSE_NOWRITE, _OPEN = 0x2, 0x4, 0x8, 0x10, 0x20
_DELETE_SELF, _MOVE_SELF, _OVERFLOW = 0x400, 0x800, 0x4000
_WATCHED = _MODIFY | _ATTRIB | _CLOSE_WRITE | _CLOSE_NOWRITE | _OPEN | _DELETE_SELF | _MOVE_SELF
_OF_THE_FOLDER = _ATTRIB | _DELETE_SELF | _MOVE_SELF
"""A mode that keeps the script out would make an earlier write the only one that counts."""
_TOUCHES = {_ATTRIB: "linked, removed or given another mode", _DELETE_SELF: "removed", _MOVE_SELF: "moved",
            _OVERFLOW: "used too often to be watched"}  # fmt: skip
_CUT = "changed without being opened"
_EVENT = struct.Struct("iIII")
_END_S = 10.0
_SIGKILL = 9  # the module ``signal`` loads more than all else here
_HOST_NAME = "ringfence"
"""Of every strict sandbox."""

if sys.platform != "win32":
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long


def call(number: int, *values: object) -> int:
    """Make a system call; OSError where it fails."""
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in values]
    result: int = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# ---- the wall


def abi() -> int:
    """The version of Landlock; 0: there is none."""
    try:
        return call(_CREATE, None, 0, _VERSION)
    except OSError:
        return 0


def beside(closed: list[str], top: str = "/") -> list[str]:
    """The highest paths below ``top`` that are not closed and have nothing closed below them. Links are left out: their
    targets are listed themselves, or are not open."""
    found = []
    for name in sorted(os.listdir(top)):
        path = os.path.join(top, name)
        if os.path.islink(path) or path in closed:
            continue
        if any(each.startswith(path + "/") for each in closed):
            found += beside(closed, path)
        else:
            found.append(path)
    return found


def restrict(rights: int, closed: list[str], version: int, nowhere: int = 0) -> None:
    """Give up these rights for this process and all that it starts, except for places beside the closed ones; those of
    ``nowhere`` for all places."""
    rights |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 and rights == _CHANGES else 0)
    handled = struct.pack("=QQQ", rights, 0, _SCOPE_SIGNAL) if version >= 6 else struct.pack("=Q", rights)
    ruleset = call(_CREATE, handled, len(handled), 0)
    for path in beside(closed):
        _allow(ruleset, path, rights & ~nowhere)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call(_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # gone meanwhile: then nothing there is opened
    granted = rights if os.path.isdir(path) else rights & _ON_A_FILE
    try:
        if granted:
            call(_ADD, ruleset, _BENEATH, struct.pack("=Qi", granted, place), 0)
    finally:
        os.close(place)


def keep_in_reach() -> None:
    """From here on no process sets another's limits or takes leases on files: either could keep the script from opening
    its reward file, and the script might go on all the same."""
    arch, prlimit, fcntl = _MACHINES.get(os.uname().machine, (0, 0, 0))
    if not arch:
        return
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.EPERM
    # Load the architecture and the number of the call, then the argument that decides: a process that is not itself
    # (0), or the command. What is loaded is compared by 0x15, with how many rows to skip if it is equal, or not.
    rows = [(0x20, 0, 0, 4), (0x15, 0, 8, arch), (0x20, 0, 0, 0), (0x15, 3, 0, prlimit), (0x15, 0, 5, fcntl),
            (0x20, 0, 0, 24), (0x15, 2, 3, _F_SETLEASE), (0x20, 0, 0, 16), (0x15, 1, 0, 0), (0x06, 0, 0, refuse),
            (0x06, 0, 0, allow)]  # fmt: skip
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = struct.pack("HxxxxxxP", len(rows), ctypes.addressof(code))
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if libc.prctl(_SET_SECCOMP, _FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "the filter can't be set")


# ---- who writes the reward


class Watch:
    """A new empty file and what happens to it: how often it is opened for writing, and what else is done to it."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        self.queue = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._folder = self._add(os.path.dirname(path), _OF_THE_FOLDER)
        self._add(path, _WATCHED)
        self.writers = 0
        self.touched: set[str] = set()
        self._is_open = self._is_cut = False

    def _add(self, path: str, events: int) -> int:
        number: int = libc.inotify_add_watch(self.queue, os.fsencode(path), events)
        if number < 0:
            raise OSError(ctypes.get_errno(), f"{path} can't be watched")
        return number

    def look(self) -> None:
        """Take what is in the queue. The kernel joins equal events that nobody has taken, so it is taken at once."""
        while True:
            try:
                data = os.read(self.queue, 1 << 16)
            except BlockingIOError:
                return
            place = 0
            while place < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, place)
                place += _EVENT.size + length
                if watch != self._folder:
                    self._note(mask)
                elif not length:  # else it is of something in it
                    self.touched.add("in a directory that was closed or moved")

    def _note(self, mask: int) -> None:
        """Two equal events may have become one, so openings and closings must alternate. A process that holds the file
        open while another writes is seen at its opening, however close the two closings are."""
        self.writers += bool(mask & _CLOSE_WRITE)
        # Whoever opens a file and empties it changes it before it counts as open, and will have written. A change that
        # no writer follows was made without opening it.
        self._is_cut = bool(mask & _MODIFY and not self._is_open) or (self._is_cut and not mask & _CLOSE_WRITE)
        if self._is_cut and mask & _CLOSE_NOWRITE:
            self.touched.add(_CUT)
        self.touched |= {text for bit, text in _TOUCHES.items() if mask & bit}
        if mask & (_OPEN | _CLOSE_WRITE | _CLOSE_NOWRITE):
            if self._is_open == bool(mask & _OPEN):
                self.touched.add("open twice at the same time")
            self._is_open = bool(mask & _OPEN)

    def report(self) -> dict[str, object]:
        """Read through our own descriptor: whatever is at the path now, this is the file that was watched."""
        self.look()
        self.touched |= {_CUT} if self._is_cut else set()
        data = os.pread(self._file, MAX_REWARD_BYTES, 0)
        return {"data": data.hex(), "writers": self.writers, "touched": sorted(self.touched)}


# ---- the grader


def lead(rewards: list[str], command: list[str]) -> int:
    """Run the grader to its end, then tell how it was; the exit status is the grader's own."""
    os.set_inheritable(CHANNEL, False)
    version = abi()
    if version < 1:
        tell({"wall": 0})
        return NO_WALL
    watches = [Watch(path) for path in rewards if path]
    child = os.fork()
    if child == 0:
        begin(command, version)
    code = os.waitstatus_to_exitcode(wait_for(child, watches))
    end_others()
    told: dict[str, object] = {"wall": version, "code": code}
    for name, watch in zip(("reward", "preferred"), watches, strict=False):
        told[name] = watch.report()
    tell(told)
    return code if code >= 0 else 128 - code


def begin(command: list[str], version: int) -> None:
    """Become the grader."""
    try:
        os.setsid()
        restrict(_WRITE_FILE, ["/proc"], version)
        keep_in_reach()
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, os.fsencode(f"{command[0]}: {error.strerror}\n"))
    finally:
        os._exit(127)


def wait_for(child: int, watches: list[Watch]) -> int:
    """Wait until it ends, and take events meanwhile."""
    end = os.pidfd_open(child)
    waiting = select.poll()
    waiting.register(end, select.POLLIN)
    for watch in watches:
        waiting.register(watch.queue, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in waiting.poll()}
        for watch in watches:
            watch.look()
        if end in ready:
            return os.waitpid(child, 0)[1]


def end_others() -> None:
    """Kill everything else in the sandbox: what the grader left running writes no reward any more."""
    until = time.monotonic() + _END_S
    while time.monotonic() < until:
        try:
            os.kill(-1, _SIGKILL)
        except OSError:
            return  # nobody is left
        _collect()
        time.sleep(0.002)


def is_in_sandbox() -> bool:
    """Whether everything else here may be killed: this is the job of a strict sandbox, and no process of a host."""
    return os.getppid() == 1 and os.uname().nodename == _HOST_NAME


def _collect() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def as_json(value: object) -> str:
    """By hand, for numbers and texts of ours that need no escape: each grading would wait for ``json`` to load."""
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{name}": {as_json(item)}' for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_json, value)) + "]"
    return str(value) if isinstance(value, int) else f'"{value}"'


def tell(what: dict[str, object]) -> None:
    data = as_json(what).encode()
    while data:
        data = data[os.write(CHANNEL, data) :]


def confine(words: list[str]) -> int:
    """Become code under test that can neither write the reward's directory nor read what it is graded by."""
    oracles = [oracle_of(word) for word in words[:1] if word.startswith(ORACLE)]
    command = words[len(oracles) :]
    if not command:
        return usage()
    version, reward = abi(), os.environ.get(_REWARD_VARIABLE, "")
    if version < 1:
        return NO_WALL
    try:
        restrict(_CHANGES, ["/proc", *([os.path.dirname(reward)] if reward else [])], version, _MAKE_LINK)
        restrict(_READS, [*_SECRETS, *oracles], version)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, os.fsencode(f"{command[0]}: {error.strerror}\n"))
    return 127


def oracle_of(word: str) -> str:
    return os.path.realpath(os.fsdecode(bytes.fromhex(word[len(ORACLE) :])))


def usage() -> int:
    os.write(2, b"usage: grader_process.py confine [--oracle=HEX] COMMAND...\n")
    return 2


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """What stands before ``--``, and what follows it."""
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def main(words: list[str]) -> int:
    """``lead [REWARD [PREFERRED]] -- COMMAND…`` or ``confine COMMAND…``."""
    rewards, command = split(words[1:])
    if words[:1] == ["lead"] and command and is_in_sandbox():
        return lead(rewards, command)
    return confine(words[1:]) if words[:1] == ["confine"] else usage()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
