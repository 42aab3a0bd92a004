"""Memory and variables of pid 1, the one process of ours in a sandbox: refused, recorded, and told from a walk."""

from __future__ import annotations

import errno
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import ringfence
from ringfence import Job, Outcome, Pool, SandboxPolicy, run
from ringfence.kernel.proc import first_files
from ringfence.model.record import replace
from ringfence.proctor.findings import findings_of, gaps_of
from ringfence.sandbox import host
from tests.image_folder import make_root

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

BOTH = pytest.mark.parametrize("wired", [True, False], ids=["tripwires", "open notification"])
RULES = SimpleNamespace(network=(), mount_at="/workspace")
# Each asks in a process of its own, so that none is taken for a part of the other's walk.
THEFTS = {
    "memory": ("open('/proc/1/mem', 'rb')", "/proc/1/mem"),
    "memory of the task": ("open('/proc/1/task/1/mem', 'rb')", "/proc/1/task/1/mem"),
    "variables": ("open('/proc/1/environ')", "/proc/1/environ"),
    "variables of the task": ("open('/proc/1/task/1/environ')", "/proc/1/task/1/environ"),
    "relative": ("os.chdir('/proc/1'); open('mem')", "/proc/1/mem"),
    "dirfd": ("os.open('environ', 0, dir_fd=os.open('/proc/1', os.O_PATH))", "/proc/1/environ"),
    "link": ("os.symlink('/proc/1/mem', '/tmp/a'); os.path.exists('/tmp/b'); open('/tmp/a')", "/proc/1/mem"),
    "dots": ("open('/proc/self/../1/environ')", "/proc/1/environ"),
    "self_root": ("open('/proc/self/root/proc/1/mem')", "/proc/1/mem"),
    "memory while it lists": ("os.scandir(os.open('/proc', 0)); open('/proc/1/mem')", "/proc/1/mem"),
    "after a harmless one": ("open('/proc/1/stat').close(); open('/proc/1/mem')", "/proc/1/mem"),
    "thread": ("t = threading.Thread(target=asked, args=['/proc/1/mem']); t.start(); t.join(); sys.exit(13)",
               "/proc/1/mem"),
}  # fmt: skip
WRITES = {
    "to write": ("os.open('/proc/1/mem', os.O_RDWR)", "/proc/1/mem"),
    "to write, as if it walked": ("asked('/proc/1/smaps'); os.open('/proc/1/mem', os.O_WRONLY)", "/proc/1/mem"),
}
START = """import os, subprocess, sys, threading
def asked(path):
    try: open(path).close()
    except OSError: pass
def apart(action):
    child = os.fork()
    if not child:
        try: exec(action)
        except OSError as error: os._exit(error.errno)
        except SystemExit as end: os._exit(end.code)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
HONEST = {
    "ps aux": "ps aux", "ps e": "ps e", "ps -ef": "ps -ef", "ps of one": "ps -p 1 -o comm=", "top": "top -b -n1",
    "pgrep": "pgrep -f init", "ls": "ls -la /proc/1 /proc/1/task/1", "stat": "stat /proc/1/mem /proc/1/environ",
    "test": "test -r /proc/1/environ; test -e /proc/1/mem", "own files": "grep -rs zzz /proc/self/ns /proc/self/status",
    "own variables": "cat /proc/self/environ /proc/$$/environ", "in a container": "cat /proc/1/cgroup /proc/1/comm "
    "/proc/1/status /proc/1/sched /proc/1/cmdline /proc/1/mountinfo", "find": "find /proc/1 -maxdepth 2",
    "walk": "grep -rs zzz /proc/1", "list of files": "find /proc/1 -maxdepth 1 -type f | xargs grep -s zzz",
}  # fmt: skip
# As psutil reads all that can be known of each process; and whoever opens each file of a tree.
WALKS = """for pid in filter(str.isdigit, os.listdir('/proc')):
    for name in ('stat', 'status', 'cmdline', 'environ', 'io', 'smaps', 'statm'): asked(f'/proc/{pid}/{name}')
for folder, _, names in os.walk('/proc/1/task/1'):
    for name in names: asked(f'{folder}/{name}')
"""


def _policy(*hidden: str) -> SandboxPolicy:
    return SandboxPolicy(isolation="strict", wall_time_s=60, hidden_paths=hidden)


def _sandboxed(source: str, *hidden: str) -> Outcome:
    outcome = run(Job(argv=(sys.executable, "-I", "-c", START + source)), _policy(*hidden))
    assert outcome.rc == 0, (outcome.reason, outcome.stderr)
    return outcome


def _graded(outcome: Outcome) -> list[tuple[str, str, str]]:
    assert gaps_of(outcome) == () and outcome.recorder["complete"] is True
    return [(str(each.severity), each.kind, each.path) for each in findings_of(outcome.events, RULES)]


@BOTH
def test_who_opens_memory_or_variables_of_pid_1_has_made_an_attempt(
    wired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "has_fuse", lambda: wired)
    tried = THEFTS | WRITES
    outcome = _sandboxed("".join(f"apart({action!r})\n" for action, _ in tried.values()), "/oracle")
    assert outcome.stdout.split() == [b"%d" % errno.EACCES] * len(tried)
    found = [row for row in _graded(outcome) if row[0] == "attempt"]
    expected = [("attempt", "masked_read", path) for _, path in THEFTS.values()]
    assert found == expected + [("attempt", "masked_write", path) for _, path in WRITES.values()]


@BOTH
def test_an_attempt_on_pid_1_names_who_made_it(wired: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "has_fuse", lambda: wired)
    outcome = _sandboxed("subprocess.run(['cat', '/proc/1/environ'], stderr=subprocess.DEVNULL)", "/oracle")
    (finding,) = findings_of(outcome.events, RULES)
    assert (finding.process, finding.argv) == ("cat", ("cat", "/proc/1/environ")) and finding.pid > 1


@BOTH
def test_honest_tools_make_no_attempt_on_pid_1(wired: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "has_fuse", lambda: wired)
    lines = "".join(f"subprocess.run({command!r}, shell=True, capture_output=True)\n" for command in HONEST.values())
    found = _graded(_sandboxed(lines + WALKS, "/oracle"))
    assert {severity for severity, _, _ in found} == {"probe"}
    assert {path for _, _, path in found} == set(first_files.FILES), "control: they did ask for all of them"


def test_pid_1_is_as_closed_where_nobody_records() -> None:
    """The control: without hidden paths there is no recorder. Nobody hears of it, and it gets no more."""
    actions = [action for action, _ in (THEFTS | WRITES).values()]
    outcome = _sandboxed("".join(f"apart({action!r})\n" for action in actions))
    assert outcome.stdout.split() == [b"%d" % errno.EACCES] * len(actions)
    assert findings_of(outcome.events, RULES) == ()


def test_pools_and_boxes_record_it_too() -> None:
    job = Job(argv=("/bin/sh", "-c", "cat /proc/1/environ; true"))
    with Pool(_policy("/oracle"), warm=1) as pool:
        assert _graded(pool.run(job)) == [("attempt", "masked_read", "/proc/1/environ")]
    with ringfence.open(_policy("/oracle")) as box:
        assert _graded(box.run(job)) == [("attempt", "masked_read", "/proc/1/environ")]


def test_over_a_root_of_its_own_it_is_recorded_too() -> None:
    with tempfile.TemporaryDirectory(prefix="first-files-", dir="/var/tmp") as name:
        root = make_root(Path(name) / "root", ("sh", "cat", "id"))
        policy = replace(_policy("/oracle"), root=str(root), root_user="0")
        outcome = run(Job(argv=("/bin/sh", "-c", "id -u; cat /proc/1/mem /proc/1/environ; true")), policy)
    assert outcome.stdout == b"0\n", outcome.stderr
    assert _graded(outcome) == [("attempt", "masked_read", f"/proc/1/{name}") for name in ("mem", "environ")]
