"""Hidden paths watched by notification: every route to one is recorded, nothing hangs, nothing else is told."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ringfence import Job, Outcome, Pool, SandboxPolicy, Status, run
from ringfence.sandbox import host
from tests.escape.raw_calls import KNOWN, calling

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

# Each route has a name of its own in the hidden directory, so that its record is known by it. P is that path.
ROUTES: Mapping[str, tuple[str, str]] = {
    "absolute": ("open", "open(P)"),
    "relative": ("open", "open('vault/relative')"),
    "dirfd": ("open", "os.open('vault/dirfd', 0, dir_fd=os.open('.', os.O_PATH))"),
    "dots": ("open", "open('deep/../vault/./dots')"),
    "link": ("open", "os.symlink(P, 'link'); open('link')"),
    "folder_link": ("open", "os.symlink('.', 'here'); open('here/here/vault/folder_link')"),
    "self_root": ("open", "open('/proc/self/root' + P)"),
    "thread_root": ("open", "open('/proc/thread-self/root' + P)"),
    "pid_root": ("open", "open(f'/proc/{os.getppid()}/root' + P)"),
    "self_cwd": ("open", "open('/proc/self/cwd/vault/self_cwd')"),
    "self_fd": ("open", "open(f'/dev/fd/{os.open(\".\", os.O_PATH)}/vault/self_fd')"),
    "other_cwd": ("open", "os.chdir('deep'); open('../vault/other_cwd')"),
    "created": ("open", "open(P, 'w')"),
    "openat2": ("open", "call('openat2', AT, P.encode(), bytes(24), 24)"),
    "execve": ("exec", "os.execv(P, [P])"),
    "execveat": ("exec", "call('execveat', AT, P.encode(), 0, 0, 0)"),
    "subprocess": ("exec", "import subprocess; subprocess.run([P])"),
    "stat": ("stat", "os.stat(P)"),
    "lstat": ("stat", "os.lstat(P)"),
    "statx": ("stat", "call('statx', AT, P.encode(), 0, 0x7ff, bytes(256))"),
    "empty_path_flag": ("stat", "call('statx', AT, P.encode(), 0x1000, 0x7ff, bytes(256))"),
    "statvfs": ("statfs", "os.statvfs(P)"),
    "access": ("access", "os.access(P, os.R_OK)"),
    "faccessat2": ("access", "call('faccessat2', AT, P.encode(), 0, 0)"),
    "readlink": ("readlink", "os.readlink(P)"),
    "hard_link": ("link", "os.link(P, 'mine')"),
    "link_to": ("link", "os.link('plain', P)"),
    "symlink_to": ("symlink", "os.symlink('plain', P)"),
    "rename_from": ("rename", "os.rename(P, 'mine')"),
    "rename_to": ("rename", "os.rename('plain', P)"),
    "renameat2": ("rename", "call('renameat2', AT, P.encode(), AT, b'mine', 1)"),
    "unlink": ("unlink", "os.unlink(P)"),
    "rmdir": ("unlink", "os.rmdir(P)"),
    "mkdir": ("mkdir", "os.mkdir(P)"),
    "mkfifo": ("mknod", "os.mkfifo(P)"),
    "truncate": ("truncate", "os.truncate(P, 0)"),
    "chmod": ("chmod", "os.chmod(P, 0o600)"),
    "setuid_bit": ("chmod", "os.chmod(P, 0o4755)"),
    "chown": ("chown", "os.chown(P, os.getuid(), -1)"),
    "foreign_owner": ("chown", "os.chown(P, 12345, -1)"),
    "utime": ("utime", "os.utime(P)"),
    "getxattr": ("xattr", "os.getxattr(P, 'user.a')"),
    "setxattr": ("xattr", "os.setxattr(P, 'user.a', b'')"),
    "listxattr": ("xattr", "os.listxattr(P)"),
    "removexattr": ("xattr", "os.removexattr(P, 'user.a')"),
    "chdir": ("chdir", "os.chdir(P)"),
    "chroot": ("chroot", "os.chroot(P)"),
    "inotify": ("watch", "call('inotify_add_watch', libc.inotify_init1(0), P.encode(), 1)"),
    "handle": ("handle", "call('name_to_handle_at', AT, P.encode(), bytes(136), bytes(8), 0)"),
    "connect": ("connect", "socket.socket(socket.AF_UNIX).connect(P)"),
    "bind": ("bind", "socket.socket(socket.AF_UNIX).bind(P)"),
    "sendto": ("sendto", "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', P)"),
    "thread": ("open", "import threading; t = threading.Thread(target=open, args=[P]); t.start(); t.join()"),
    "daemon": ("open", "os.setsid(); os.fork() or open(P)"),
    "not_dumpable": ("open", "libc.prctl(4, 0, 0, 0, 0); open(P)"),
    "spawned": ("exec", "os.posix_spawn(P, [P], {})"),
    "big_environment": ("exec", "os.execve(P, [P], {f'A{n}': 'x' * 10000 for n in range(50)})"),
    "script": ("exec", "script('/tmp/script', P); os.execv('/tmp/script', ['x'])"),
    "script_of_a_script": ("exec", "script('/tmp/a', P); script('/tmp/b', '/tmp/a'); os.execv('/tmp/b', ['x'])"),
    "script_without_name": ("exec", "os.execv(f'/proc/self/fd/{nameless(P)}', ['x'])"),
    "script_by_descriptor": ("exec", "call('execveat', nameless(P), b'', ARGV, 0, 0x1000)"),
    "loader": ("exec", "program('/tmp/program', P); os.execv('/tmp/program', ['x'])"),
    "script_of_a_link": ("exec", "os.symlink(P, 'a\\r\\v\\fb'); script('/tmp/c', './a\\r\\v\\fb'); "
                                 "os.execv('/tmp/c', ['x'])"),
    "write_only": ("open", "done(call('openat', AT, placed(P, 2), 0, 0))"),
    "write_only_end": ("open", "done(call('openat', AT, placed(P, 2, readable=5), 0, 0))"),
    "write_only_program": ("exec", "call('execve', placed(P, 2), ARGV, 0)"),
    "write_only_socket": ("connect", "call('connect', socket.socket(socket.AF_UNIX).fileno(), "
                                     "placed('\\1\\0' + P, 2), 2 + len(P))"),
    "removed_folder": ("open", "os.symlink('vault', 'alias'); os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); "
                               "os.symlink('/tmp', PLACE + '/gone (deleted)'); open('../alias/removed_folder')"),
    "passed_folder": ("open", "open('vault/passed_folder', opener=lambda p, f: os.open(p, f, dir_fd=passed('.')))"),
    "long": ("open", "open(PLACE + '/vault' + '/' * (4090 - len(P)) + '/long')"),
    "socket_tail": ("connect", "s = socket.socket(socket.AF_UNIX); "
                               "call('connect', s.fileno(), b'\\1\\0' + P.encode() + b'tail', 2 + len(P))"),
}
if "rmdir" in KNOWN:  # an architecture with the old calls has this one of its own
    ROUTES = {**ROUTES, "rmdir": ("rmdir", "os.rmdir(P)")}

GUEST = (
    "import ctypes, os, socket, sys\nAT = -100 & (2**64 - 1)\n"
    + calling("openat", "openat2", "execve", "execveat", "statx", "faccessat2", "renameat2", "inotify_add_watch",
              "name_to_handle_at", "connect")
    + """
import struct
ARGV = (ctypes.c_char_p * 2)(b'x', None)
def script(path, interpreter, mode=0o755):
    with open(path, 'w') as file: file.write(f'#!{interpreter}\\n')
    os.chmod(path, mode)
def nameless(interpreter):
    file = os.memfd_create('x', 0)
    os.write(file, f'#!{interpreter}\\n'.encode())
    return file
def program(path, loader):
    with open(os.path.realpath('/bin/true'), 'rb') as file: head = file.read(64)
    entry = struct.pack('<IIQQQQQQ', 3, 4, 120, 0, 0, len(loader) + 1, 0, 1)
    head = head[:32] + struct.pack('<Q', 64) + head[40:56] + b'\\1\\0' + bytes(6)
    with open(path, 'wb') as file: file.write(head + entry + loader.encode() + b'\\0')
    os.chmod(path, 0o755)
def placed(text, protection, readable=0):
    # Its address, in memory of this protection but for so many bytes.
    libc.mmap.restype = ctypes.c_void_p
    pages = libc.mmap(None, ctypes.c_size_t(8192), 3, 0x22, -1, ctypes.c_size_t(0))
    ctypes.memmove(pages + 4096 - readable, text.encode() + b'\\0', len(text) + 1)
    libc.mprotect(ctypes.c_void_p(pages + 4096), ctypes.c_size_t(4096), protection)
    return pages + 4096 - readable
def done(result):
    if result[1]: raise OSError(*result)
def passed(folder):
    here, there = socket.socketpair()
    if os.fork() == 0:
        socket.send_fds(there, [b'x'], [os.open(folder, os.O_PATH)])
        os._exit(0)
    return socket.recv_fds(here, 1, 1)[1][0]
def go(P, source):
    try: exec(source)
    except OSError as error: return error.errno
    return 0
for name, source in ROUTES.items():
    child = os.fork()
    if child == 0: os._exit(go(PLACE + '/vault/' + name, source))
    print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
)


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="watched-", dir="/var/tmp") as name:
        folder = Path(os.path.realpath(name))
        folder.chmod(0o755)
        (folder / "deep").mkdir()
        (folder / "vault").mkdir()
        for path in ("plain", *(f"vault/{route}" for route in ROUTES)):
            (folder / path).write_text("text\n")
        yield folder


@pytest.fixture(autouse=True)
def _no_fuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host where no tripwire can be mounted."""
    monkeypatch.setattr(host, "has_fuse", lambda: False)


def _run(place: Path, source: str, *, hidden: bool = True, **more: object) -> Outcome:
    names = [f"{place}/vault"] if hidden else []
    policy = SandboxPolicy.from_dict(
        {"isolation": "strict", "wall_time_s": 60, "pids_max": 64, "hidden_paths": names} | more
    )
    start = f"import os\nPLACE = {str(place)!r}\nROUTES = { {name: code for name, (_, code) in ROUTES.items()} }\n"
    return run(Job(argv=(sys.executable, "-c", start + source), cwd=str(place)), policy)


def _seen(outcome: Outcome) -> dict[str, Mapping[str, object]]:
    """Records by the name in the hidden directory."""
    records = [event.details for event in outcome.events if "/vault" in str(event.details.get("path"))]
    return {str(record["path"]).rpartition("/")[2]: record for record in records}


def test_every_route_to_a_hidden_path_is_recorded_and_ends_nowhere(place: Path) -> None:
    outcome = _run(place, GUEST)
    seen = _seen(outcome)
    assert outcome.status is Status.OK, outcome.stderr
    assert {name: seen[name]["operation"] if name in seen else "" for name in ROUTES} == {
        name: operation for name, (operation, _) in ROUTES.items()
    }
    assert outcome.recorder["complete"] and outcome.recorder["total"] == len(ROUTES), outcome.recorder
    assert "open notification" in outcome.enforced["hidden_paths"].details
    assert (place / "plain").exists() and len(list((place / "vault").iterdir())) == len(ROUTES)


def test_a_record_says_who_asked_for_what_by_which_call_and_what_came_of_it(place: Path) -> None:
    outcome = _run(place, "os.chdir('deep')\nos.execvp('cat', ['cat', '../vault/absolute'])")
    record = _seen(outcome)["absolute"]
    assert (record["comm"], record["argv"]) == ("cat", ["cat", "../vault/absolute"])
    assert (record["asked"], record["path"]) == ("../vault/absolute", f"{place}/vault/absolute")
    assert (record["operation"], record["errno"], record["writes"]) == ("open", 2, False)
    assert record["syscall"] in ("open", "openat") and int(str(record["pid"])) > 1
    assert int(str(record["time_ns"])) > 0 and int(str(record["wall_ns"])) > 0 and int(str(record["start_ticks"])) > 0


def test_no_file_of_proc_is_read_for_who_executes_it(place: Path) -> None:
    """As root, to read kmsg takes lines from the host's log; what may not be read at all would be a loss."""
    source = "for name in ('kmsg', 'self/mem', 'slabinfo'):\n try: os.execv(f'/proc/{name}', ['x'])\n"
    outcome = _run(place, source + " except OSError: pass\nprint('tried')")
    assert outcome.stdout == b"tried\n"
    assert outcome.recorder["complete"] and outcome.recorder["problems"] == [], outcome.recorder


@pytest.mark.control
def test_without_a_hidden_path_nobody_is_told_and_the_same_routes_lead_in(place: Path) -> None:
    outcome = _run(place, GUEST, hidden=False)
    assert "hidden_paths" not in outcome.enforced and outcome.recorder["caveat"] == ""
    told = {event.details.get("operation") for event in outcome.events} - {None}
    assert told <= {"connect", "bind", "sendto", "chroot", "chmod", "fchmodat"}, told
    codes = dict(line.split() for line in outcome.stdout.decode().splitlines())
    reached = ("absolute", "relative", "dirfd", "dots", "link", "folder_link", "self_root", "thread_root", "self_cwd",
               "self_fd", "write_only", "write_only_end", "stat", "lstat", "statvfs", "access", "hard_link",
               "truncate", "chmod", "utime")  # fmt: skip
    assert {name: codes[name] for name in reached} == dict.fromkeys(reached, "0")


def test_names_beside_a_hidden_one_and_links_that_are_not_followed_are_nobody_s_business(place: Path) -> None:
    source = (
        "os.symlink('vault/x', 'l'); os.lstat('l'); os.readlink('l'); os.rename('l', 'm'); os.unlink('m')\n"
        "open('plain'); open('vaults', 'w'); os.stat('/'); os.listdir('.')\nos.path.exists('/etc/shadow')"
    )
    outcome = _run(place, source)
    assert outcome.status is Status.OK, outcome.stderr
    assert outcome.recorder["total"] == 0 and outcome.recorder["complete"]


def test_the_hidden_name_itself_is_seen_from_folders_of_every_kind(place: Path) -> None:
    source = (
        "os.symlink('..', 'deep/up'); os.symlink(PLACE, '/tmp/out'); os.makedirs('/tmp/x/y')\n"
        "os.symlink('vault', 'dangling')\n"
        "for path in ('vault', 'deep/up/vault', '/tmp/out/vault', '/tmp/x/../out/deep/up/vault', 'dangling',\n"
        "             './/vault/', f'/proc/{os.getpid()}/cwd/vault', '/tmp/x/y/../../out/vault'):\n"
        "  for _ in range(2): os.path.exists(path)\n"
        "os.chdir('/tmp/x'); os.path.exists('../out/vault'); os.path.exists('y/vault'); print('done')"
    )
    outcome = _run(place, source)
    assert outcome.stdout == b"done\n", outcome.stderr
    assert outcome.recorder["total"] == 17, outcome.recorder
    assert {record["path"] for record in _seen(outcome).values()} == {f"{place}/vault"}


def test_a_path_that_was_harmless_is_looked_at_anew_when_it_leads_elsewhere(place: Path) -> None:
    source = (
        "for top in (PLACE, '/tmp'):\n"
        "  os.mkdir(top + '/a'); open(top + '/a/absolute', 'w')\n"
        "  for _ in range(3): open(top + '/a/absolute')\n"
        "  os.rename(top + '/a', top + '/b'); os.symlink(PLACE + '/vault', top + '/a')\n"
        "  try: open(top + '/a/absolute')\n"
        "  except OSError: print('gone')\n"
    )
    outcome = _run(place, source)
    assert outcome.stdout == b"gone\ngone\n", outcome.stderr
    assert outcome.recorder["total"] == 2


def test_a_flood_is_counted_and_summarised(place: Path) -> None:
    outcome = _run(place, "for i in range(3000): os.access('vault/absolute', 0)")
    health = outcome.recorder
    assert outcome.status is Status.OK, outcome.stderr
    assert health["total"] == 3000 == int(str(health["kept"])) + int(str(health["summarised"])) and health["complete"]
    assert 0 < int(str(health["kept"])) <= 200 and health["uncategorised"] == 0
    (row,) = health["summary"]  # type: ignore[misc]
    assert row["named"] and row["count"] == health["summarised"] and row["path"] == f"{place}/vault/absolute"


def test_bytes_that_are_no_text_are_recorded(place: Path) -> None:
    outcome = _run(place, "os.access(b'vault/\\xff\\xfe', 0)")
    assert list(_seen(outcome)) == ["\\xff\\xfe"] and outcome.recorder["complete"]


def test_processes_that_die_in_mid_call_leave_the_recorder_whole(place: Path) -> None:
    source = (
        "import signal, time\n"
        "for turn in range(60):\n"
        "  child = os.fork()\n"
        "  if child == 0:\n"
        "    while True: os.access('vault/absolute', 0)\n"
        "  time.sleep(turn % 6 / 1000); os.kill(child, signal.SIGKILL); os.waitpid(child, 0)\n"
        "os.access('vault/relative', 0); print('done')"
    )
    outcome = _run(place, source)
    assert outcome.stdout == b"done\n" and outcome.recorder["complete"], (outcome.stderr, outcome.recorder)
    after = _run(place, "os.access('vault/relative', 0)")
    assert "relative" in _seen(after)


def test_nothing_that_lies_on_the_way_can_stop_the_recorder(place: Path) -> None:
    source = (
        "os.mkfifo('pipe'); os.stat('pipe'); os.access('pipe/below', 0); os.symlink('round', 'round')\n"
        "os.access('round', 0); os.access('/dev/tty/x', 0); os.access('/proc/1/root/x', 0); os.access('x' * 5000, 0)\n"
        "os.symlink('pipe', 'to_pipe'); os.stat('to_pipe'); os.access('vault/absolute', 0); print('done')"
    )
    outcome = _run(place, source)
    assert outcome.stdout == b"done\n", outcome.stderr
    assert outcome.recorder["total"] == 1 and outcome.recorder["complete"], outcome.recorder


def test_the_tight_profile_watches_too(place: Path) -> None:
    outcome = _run(place, "os.access('vault/absolute', 0); print('done')", syscall_profile="tight")
    assert outcome.stdout == b"done\n", outcome.stderr
    assert list(_seen(outcome)) == ["absolute"] and outcome.recorder["complete"]


def test_a_path_too_long_to_follow_is_never_clean(place: Path) -> None:
    outcome = _run(place, "os.access('deep/../' * 400 + 'vault/absolute', 0); print('done')")
    assert outcome.stdout == b"done\n"
    assert not outcome.recorder["complete"] and outcome.recorder["lost"] == 1, outcome.recorder


def test_a_job_that_never_stops_asking_is_ended_at_its_deadline(place: Path) -> None:
    outcome = _run(place, "while True: os.access('deep/../' * 45 + 'vault/absolute', 0)", wall_time_s=1)
    assert outcome.status is Status.TIMEOUT and int(str(outcome.recorder["total"])) > 0
    assert outcome.usage.wall_s < 20


def test_the_health_says_what_a_notification_can_t_promise(place: Path) -> None:
    assert "before the kernel read them" in str(_run(place, "").recorder["caveat"])


def test_a_hidden_program_is_not_run_and_its_start_is_recorded(place: Path) -> None:
    policy = SandboxPolicy(isolation="strict", hidden_paths=(f"{place}/vault",))
    with pytest.raises(Exception, match="vault/execve"):
        run(Job(argv=(f"{place}/vault/execve",), cwd=str(place)), policy)


def test_a_python_job_that_never_execs_is_watched_as_well(place: Path) -> None:
    policy = SandboxPolicy(isolation="strict", wall_time_s=60, hidden_paths=("/srv/answers",))
    with Pool(policy) as pool:
        outcome = pool.run_source("import os; print(os.path.exists('/srv/answers'), os.path.exists('/srv'))")
    assert outcome.stdout == b"False False\n", outcome.stderr
    assert [event.details["path"] for event in outcome.events if "path" in event.details] == ["/srv/answers"]
    assert outcome.recorder["complete"] and outcome.recorder["caveat"], outcome.recorder
