"""Attacks from one sandbox on another: two run at once, and one must not notice the other.

The neighbour runs at the same level as the attack, or plainly in the control; it says «ready» and stays until
the stage closes its input. Both are told one random name, so that a meeting is no accident.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping

from ringfence import Job, run
from tests.escape.attack import PARTIAL, STRICT, Attack, Stage, command_of
from tests.escape.raw_calls import calling

Prepare = Callable[[Stage], Mapping[str, object]]
_STAY = "\nprint('ready', flush=True)\nsys.stdin.read()\n"
_START = "import fcntl, glob, struct\nNAME = 'rf-' + GIVEN['token']\nKEY = int(GIVEN['token'][:7], 16)\n"


def beside(source: str, more: Callable[[Stage], Mapping[str, object]] = lambda _: {}) -> Prepare:
    """Start a neighbour with this source, and go on when it is ready."""

    def prepare(stage: Stage) -> Mapping[str, object]:
        given = {"token": os.urandom(6).hex(), **more(stage)}
        command = command_of(_START + source + _STAY, given, stage.level)
        reader, writer = os.pipe()
        stage.callback(os.close, reader)
        join = _plainly(command, reader) if stage.level is None else _sandboxed(command, reader, stage)
        stage.callback(join)
        stage.callback(os.close, writer)
        return given

    return prepare


def _plainly(command: tuple[str, ...], stdin: int) -> Callable[[], object]:
    process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said == b"ready\n", said

    def join() -> None:
        process.communicate(timeout=120)

    return join


def _sandboxed(command: tuple[str, ...], stdin: int, stage: Stage) -> Callable[[], object]:
    policy = stage.sandbox_policy({})
    ready = threading.Event()
    job = Job(argv=command, stdin=stdin)
    heard = []

    def listen(stream: str, piece: bytes) -> None:
        heard.append(piece)
        if stream == "stdout" and b"ready" in piece:
            ready.set()

    def live() -> None:
        run(job, policy, on_output=listen)
        ready.set()

    thread = threading.Thread(target=live)
    thread.start()
    assert ready.wait(10), heard
    # Without namespaces it is not hidden from others but kept from trying: then there is nobody to be noticed.
    assert stage.level == PARTIAL or b"ready" in b"".join(heard), heard
    return thread.join


_TRY = "try: {}\nexcept OSError as e: print(e)\nelse: print('ESCAPED')\n"


def _file(folder: str) -> tuple[str, str]:
    return (f"open('{folder}/' + NAME, 'w').close()\nimport atexit; atexit.register(os.unlink, '{folder}/' + NAME)",
            _TRY.format(f"os.stat('{folder}/' + NAME)"))  # fmt: skip


def _sysv(get: str, arguments: str, remove: str) -> tuple[str, str]:
    calls = calling(get, remove.split()[0])
    made = f"made = call('{get}', KEY, {arguments})[0]\nassert made >= 0\n"
    gone = f"import atexit; atexit.register(call, '{remove.split()[0]}', made, {remove.split(maxsplit=1)[1]})"
    look = f"print(call('{get}', KEY, {arguments.replace('0o1666', '0')}))\n"
    return calls + made + gone, calls + look + f"if call('{get}', KEY, {arguments.replace('0o1666', '0')})[0] >= 0: print('ESCAPED')\n"


_QUEUE = calling("mq_open", "mq_unlink")
_TALK = "try: link.connect({}); link.send(b'x')\nexcept OSError as e: print(e)\nelse: print('ESCAPED')\n"


def _socket(address: str) -> tuple[str, str]:
    made = f"link = socket.socket(socket.AF_UNIX); link.bind({address}); link.listen()"
    if "tmp" in address:
        made += f"\nimport atexit; atexit.register(os.unlink, {address})"
    return made, "link = socket.socket(socket.AF_UNIX)\n" + _TALK.format(address)


_PORT = "20000 + KEY % 10000"


def _flock(paths: str) -> tuple[str, str]:
    each = f"held = []\nfor path in {paths}:\n  held.append(os.open(path, os.O_RDONLY))\n"
    # Two names may be one file, which is then taken already.
    taken = each + ("  try: fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
                    "  except BlockingIOError: pass\n")  # fmt: skip
    asked = each + ("  try: fcntl.flock(held[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)\n"
                    "  except BlockingIOError: print('ESCAPED', path)\n")  # fmt: skip
    return taken, asked


# A read lock, and the question who would be in the way of a write lock: neither needs the file open for writing.
_RECORD = "place = os.open('/usr/bin/env', os.O_RDONLY)\n"
_RECORD_LOCK = (
    _RECORD + "fcntl.lockf(place, fcntl.LOCK_SH, 1, KEY)\n",
    _RECORD + "asked = fcntl.fcntl(place, 5, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, KEY, 1, 0))\n"
              "if struct.unpack_from('h', asked)[0] != fcntl.F_UNLCK: print('ESCAPED')\n",
)  # fmt: skip
_FIND = (
    "def others():\n"
    "  for path in glob.glob('/proc/[0-9]*/cmdline'):\n"
    "    pid = int(path.split('/')[2])\n"
    "    try: words = open(path, 'rb').read()\n"
    "    except OSError: continue\n"
    "    if GIVEN['token'].encode() in words and pid != os.getpid(): yield pid\n"
)
_SIGNAL = _FIND + "for pid in others():\n  os.kill(pid, 0); print('ESCAPED')\n"
_ENVIRONMENT = _FIND + "for pid in others():\n  if open(f'/proc/{pid}/environ').read(): print('ESCAPED')\n"
_MEMORY = _FIND + "for pid in others():\n  os.open(f'/proc/{pid}/mem', os.O_RDONLY); print('ESCAPED')\n"
_PTRACE = _FIND + calling("ptrace") + (
    "for pid in others():\n"
    "  if call('ptrace', 0x4206, pid, 0, 0)[0] == 0: print('ESCAPED')\n"
)
_WATCH = calling("inotify_init1", "inotify_add_watch") + (
    "seen = call('inotify_init1', 0o4000)[0]\n"
    "call('inotify_add_watch', seen, PATH, 0x20)\n"  # IN_OPEN
    "until = time.monotonic() + (60 if 'RINGFENCE_CONTROL' in os.environ else 0.15)\n"
    "while time.monotonic() < until:\n"
    "  try:\n"
    "    if os.read(seen, 4096): print('ESCAPED'); break\n"
    "  except BlockingIOError: time.sleep(0.01)\n"
)
_OPEN_OFTEN = (
    "import threading\n"
    "def knock():\n"
    "  while True: open({}).close(); time.sleep(0.005)\n"
    "threading.Thread(target=knock, daemon=True).start()\n"
)
_TERMINAL = (
    "main, side = os.openpty()\n",
    "if glob.glob('/dev/pts/[0-9]*'): print('ESCAPED')\n",
)
_KEY = (
    calling("add_key", "keyctl") + "call('add_key', b'user', NAME.encode(), b'x', 1, -4)\n",
    calling("request_key", "keyctl")
    + "if call('keyctl', 10, -4, b'user', NAME.encode(), 0)[0] > 0: print('ESCAPED')\n",
)


def _readable(stage: Stage) -> Mapping[str, object]:
    """A directory that both may read."""
    folder = stage.folder / "shown"
    folder.mkdir()
    (folder / "file").write_text("both")
    os.mkfifo(folder / "fifo", 0o666)
    os.chmod(folder / "fifo", 0o666)
    stage.policy["readable_paths"] = [str(folder)]
    return {"folder": str(folder)}


_FIFO = (
    "place = os.open(GIVEN['folder'] + '/fifo', os.O_RDONLY | os.O_NONBLOCK)\n",
    _TRY.format("os.write(os.open(GIVEN['folder'] + '/fifo', os.O_WRONLY | os.O_NONBLOCK), b'x')"),
)

# name: (the neighbour, the probe)
_PAIRS: dict[str, tuple[str, str]] = {
    "file in /tmp": _file("/tmp"),
    "file in /var/tmp": _file("/var/tmp"),
    "file in /dev/shm": _file("/dev/shm"),
    "System V shared memory": _sysv("shmget", "4096, 0o1666", "shmctl 0, 0"),
    "System V semaphores": _sysv("semget", "1, 0o1666", "semctl 0, 0, 0"),
    "System V messages": _sysv("msgget", "0o1666", "msgctl 0, 0"),
    "POSIX message queue": (
        _QUEUE + "call('mq_open', NAME.encode(), os.O_CREAT | os.O_RDWR, 0o600, 0)\n"
                 "import atexit; atexit.register(call, 'mq_unlink', NAME.encode())",
        _QUEUE + "if call('mq_open', NAME.encode(), os.O_RDWR, 0, 0)[0] >= 0: print('ESCAPED')\n"),
    "abstract socket": _socket("'\\0' + NAME"),
    "socket in /tmp": _socket("'/tmp/' + NAME + '.s'"),
    "TCP on loopback": (
        f"link = socket.socket(); link.bind(('127.0.0.1', {_PORT})); link.listen()",
        "link = socket.socket()\n" + _TALK.format(f"('127.0.0.1', {_PORT})")),
    "UDP on loopback": (
        f"link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); link.bind(('127.0.0.1', {_PORT}))",
        "link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f"try: link.bind(('127.0.0.1', {_PORT}))\nexcept OSError: print('ESCAPED')\n"),
    "lock on a program of the system": _flock("['/usr/bin/env']"),
    "lock on a directory of the system": _flock("['/usr', '/usr/lib']"),
    "lock on the interpreter": _flock("[os.__file__, sys.executable]"),
    "lock on configuration": _flock("['/etc/os-release', '/etc/ld.so.cache']"),
    "lock on namespaces": _flock("glob.glob('/proc/self/ns/*')"),
    "lock on /proc": _flock("['/proc', '/proc/cpuinfo', '/proc/sys']"),
    "lock on what is told of its limits": _flock("['/proc/meminfo', '/sys/fs/cgroup', *glob.glob('/sys/fs/cgroup/m*')]"),
    "record lock": _RECORD_LOCK,
    "signal": ("", _SIGNAL),
    "environment": ("", _ENVIRONMENT),
    "memory": ("", _MEMORY),
    "ptrace": ("", _PTRACE),
    "watch a program of the system": (_OPEN_OFTEN.format("'/usr/bin/env'"), _WATCH.replace("PATH", "b'/usr/bin/env'")),
    "terminals": _TERMINAL,
    "keyring": _KEY,
}  # fmt: skip
_SHARED_FOLDER: dict[str, tuple[str, str]] = {
    "lock in a readable directory": _flock("[GIVEN['folder'] + '/file', GIVEN['folder']]"),
    "FIFO in a readable directory": _FIFO,
    "watch a readable directory": (_OPEN_OFTEN.format("GIVEN['folder'] + '/file'"),
                                _WATCH.replace("PATH", "(GIVEN['folder'] + '/file').encode()")),
}  # fmt: skip

# A job under the tight profile may be in a network namespace that another one was in before, never at the same time.
_ROWS = "rows = [row.split() for row in open('/proc/net/unix')][1:]\n"
_TIGHT: dict[str, tuple[str, str]] = {
    "lock on namespaces under the tight profile": _flock("glob.glob('/proc/self/ns/*')"),
    "pairs of sockets under the tight profile": (
        "held = [socket.socketpair() for _ in range(100)]\n",
        _ROWS + "if len(rows) >= 200: print('ESCAPED')\n"),
    "named pair of sockets under the tight profile": (  # the kernel gives it a name when it tells who sends
        "ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1); ours.send(b'x')\n",
        _ROWS + "if any(row[4] == '0005' and row[-1][:1] == '@' for row in rows): print('ESCAPED')\n"),
}  # fmt: skip


def _tight(stage: Stage) -> Mapping[str, object]:
    """Others came before, so that there is a network namespace to be used again."""
    stage.policy["syscall_profile"] = "tight"
    for _ in range(3 if stage.level == STRICT else 0):
        run(["true"], stage.sandbox_policy({}))
    return {}


def _attack(name: str, pair: tuple[str, str], more: Prepare = lambda _: {}) -> Attack:
    return Attack(name=name, family="neighbours", what="one sandbox notices another",
                  levels=(STRICT,),
                  prepare=beside(pair[0], more), probe=_START + pair[1])  # fmt: skip


ATTACKS = [
    *(_attack(name, pair) for name, pair in _PAIRS.items()),
    *(_attack(name, pair, _readable) for name, pair in _SHARED_FOLDER.items()),
    *(_attack(name, pair, _tight) for name, pair in _TIGHT.items()),
]  # fmt: skip
