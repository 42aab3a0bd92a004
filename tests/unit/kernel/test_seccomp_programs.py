"""Ordinary programs run under the default filter as without it, and give the supervisor nothing to hear."""

import errno
import os
import selectors
import shutil
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from forked import Child, supervised

from ringfence.kernel.seccomp.notify import Listener
from ringfence.kernel.seccomp.profiles import DEFAULT, TIGHT_EXEC
from ringfence.kernel.seccomp.rules import Profile, decide

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

LIMIT_S = 120


def answer_all(listener: Listener) -> list[str]:
    """Supervise until the last filtered process is gone; the names of the calls that were told."""
    told: list[str] = []
    deadline = time.monotonic() + LIMIT_S
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while not listener.finished and time.monotonic() < deadline:
            selector.select(0.5)
            notification = listener.handle()
            if notification is None:
                continue
            told.append(notification.name)
            rule = decide(DEFAULT, notification.number, notification.args, notification.audit_arch)
            listener.deny(notification, rule.action.errno or errno.EPERM)
    return told


def run_under(profile: Profile, argv: list[str], folder: str) -> tuple[int, list[str]]:
    child, listener = supervised(profile, lambda: _exec(argv, folder))
    told = answer_all(listener)
    listener.close()
    return _exit_code(child), told


def _exec(argv: list[str], folder: str) -> None:
    os.chdir(folder)
    os.environ.update(HOME=folder, GIT_CONFIG_NOSYSTEM="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
    os.execvp(argv[0], argv)


def _exit_code(child: Child) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])


def shell(script: str) -> list[str]:
    return ["sh", "-ec", script]


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


GIT = (
    "git init -q . && git config user.email a@b.c && git config user.name n && echo 1 > f && git add f && "
    "git commit -qm one && git worktree add -q ../wt$$ && git -C ../wt$$ log --oneline && git gc -q && "
    "git worktree remove ../wt$$"
)
GCC = """
cat > t.c <<'E'
#include <pthread.h>
#include <stdio.h>
static void *work(void *p) { puts(p); return 0; }
int main(void) { pthread_t t; pthread_create(&t, 0, work, "hello"); return pthread_join(t, 0); }
E
gcc -O1 -pthread -o t t.c && ./t | grep -q hello
"""
BACKEND = """
import zipfile
INFO = "tinyone-1.dist-info/"
def build_wheel(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(folder + "/tinyone-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tinyone.py", "x = 1")
        wheel.writestr(INFO + "METADATA", "Metadata-Version: 2.1\\nName: tinyone\\nVersion: 1\\n")
        wheel.writestr(INFO + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(INFO + "RECORD", "")
    return "tinyone-1-py3-none-any.whl"
"""
PIP = f"""
mkdir p
cat > p/pyproject.toml <<'E'
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
E
cat > p/backend.py <<'E'
{BACKEND}
E
{sys.executable} -m pip install -q --no-index --target t ./p
PYTHONPATH=t {sys.executable} -c 'import tinyone; assert tinyone.x == 1'
"""
ASYNCIO = """
import asyncio, sys
async def main():
    async def serve(reader, writer):
        writer.write((await reader.readline()).upper()); await writer.drain(); writer.close()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello\\n")
    assert await reader.readline() == b"HELLO\\n"
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(7)", stdout=pipe)
    assert (await process.communicate())[0] == b"7\\n"
    server.close()
asyncio.run(main())
"""
MULTIPROCESSING = """
import multiprocessing
def square(x): return x * x
if __name__ == "__main__":
    for method in ("fork", "forkserver", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(square, range(9)) == [x * x for x in range(9)]
"""
SOCKETS = """
import socket
a, b = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
a.bind(("127.0.0.1", 0)); b.sendto(b"x", a.getsockname()); assert a.recv(1) == b"x"
assert socket.getaddrinfo("127.0.0.1", 80)
assert any(name == "lo" for _, name in socket.if_nameindex())
"""
NODE = """
const fs = require("fs"), os = require("os"), { execFileSync } = require("child_process");
const { Worker } = require("worker_threads"), net = require("net");
fs.writeFileSync("x", "1"); os.networkInterfaces(); execFileSync("true");
new Worker("1", { eval: true }).on("exit", () => {
  const server = net.createServer(s => s.end("hi")).listen(0, "127.0.0.1", () =>
    net.connect(server.address().port, "127.0.0.1").on("data", () => server.close()));
});
"""
PROGRAMS = {
    "shell": shell("ls -l / | sort | head -1 >/dev/null; (sleep 0 &); wait; id; uname -a; df / >/dev/null"),
    "python": python("import sys, ssl, sqlite3; sqlite3.connect('d').execute('create table t (x)')"),
    "threads": python("import threading; [threading.Thread(target=print).start() for _ in range(9)]"),
    "subprocess": python("import subprocess as s; assert s.check_output(['echo', '1']) == b'1\\n'"),
    "multiprocessing": shell(f"cat > m.py <<'E'\n{MULTIPROCESSING}\nE\n{sys.executable} m.py"),
    "asyncio": python(ASYNCIO),
    "sockets": python(SOCKETS),
    "pytest": shell(f"echo 'def test_x(): assert 1' > test_x.py; {sys.executable} -m pytest -q"),
    "git": shell(GIT),
    "gcc": shell(GCC),
    "node": ["node", "-e", NODE],
    **({"pip": shell(PIP)} if find_spec("pip") else {}),
    "tar": shell("mkdir d; echo 1 > d/f; tar czf a.tgz d; rm -r d; tar xzf a.tgz; test -f d/f"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_ordinary_program_works_and_is_never_told_of(name: str) -> None:
    if name in ("git", "gcc", "node") and shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer) / "home"
        folder.mkdir()
        assert run_under(DEFAULT, PROGRAMS[name], str(folder)) == (0, [])


def test_a_program_that_does_something_forbidden_is_told_of() -> None:
    with tempfile.TemporaryDirectory() as folder:
        code, told = run_under(DEFAULT, shell("unshare -r true"), folder)
    assert (code != 0, told) == (True, ["unshare"])


def test_a_debugger_can_start_its_program() -> None:
    script = (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    libc.ptrace(0, 0, 0, 0)\n"
        "    os.execv('/bin/true', ['true'])\n"
        "assert os.WIFSTOPPED(os.waitpid(child, 0)[1])\n"
        "assert libc.ptrace(7, child, 0, 0) == 0\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        assert run_under(DEFAULT, python(script), folder) == (0, [])


def test_a_computation_works_under_the_tight_filter() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = python("import threading, json; open('out', 'w').write(json.dumps(sum(range(10))))")
        assert run_under(TIGHT_EXEC, program, folder) == (0, [])
        assert (Path(folder) / "out").read_text() == "45"
