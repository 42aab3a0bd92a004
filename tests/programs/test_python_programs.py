"""Python's own ways of running things work in STRICT: processes, threads, loops, sockets, databases, environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs.workshop import inside, python, script, succeeded

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured, pytest.mark.long]

SNIPPETS = {
    "multiprocessing": """
import multiprocessing as m
def square(n): return n * n
if __name__ == "__main__":
    for how in ("fork", "spawn", "forkserver"):
        with m.get_context(how).Pool(3) as pool: print(how, sum(pool.map(square, range(10))))
    with m.Manager() as manager: print(len(manager.list([1, 2])))
    from multiprocessing import shared_memory
    s = shared_memory.SharedMemory(create=True, size=64); s.buf[0] = 7; print(s.buf[0]); s.close(); s.unlink()
""",
    "threads": """
import threading, queue
q = queue.Queue(); ts = [threading.Thread(target=q.put, args=(n,)) for n in range(50)]
[t.start() for t in ts]; [t.join() for t in ts]; print(sum(q.get() for _ in ts))
""",
    "asyncio": """
import asyncio, sys
async def handle(r, w): w.write((await r.readline()).upper()); await w.drain(); w.close()
async def main():
    for host in ("127.0.0.1", "::1", "localhost"):
        server = await asyncio.start_server(handle, host, 0)
        r, w = await asyncio.open_connection(host, server.sockets[0].getsockname()[1])
        w.write(b"hello\\n"); print((await r.read()).decode().strip()); w.close(); server.close()
    p = await asyncio.create_subprocess_exec(sys.executable, "-c", "print('sub')", stdout=-1)
    print((await p.communicate())[0].decode().strip())
    print(await asyncio.to_thread(lambda: "thread"))
asyncio.run(main())
""",
    "subprocess": """
import subprocess, sys
print(subprocess.run("echo $0; exit 3", shell=True, capture_output=True, text=True).returncode)
p = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]); p.terminate(); print(p.wait())
try: subprocess.run(["sleep", "60"], timeout=0.1)
except subprocess.TimeoutExpired: print("timeout")
""",
    "temporary files": """
import tempfile, os
with tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile(dir=d) as f:
    f.write(b"x"); f.flush(); print(os.path.getsize(f.name), tempfile.gettempdir())
with tempfile.TemporaryFile() as f: print(f.write(b"yy"))
""",
    "sqlite": """
import sqlite3
for mode in ("wal", "delete"):
    c = sqlite3.connect(f"{mode}.db"); print(c.execute(f"pragma journal_mode={mode}").fetchone()[0])
    with c: c.execute("create table t (n)"); c.executemany("insert into t values (?)", [(n,) for n in range(100)])
    print(sqlite3.connect(f"{mode}.db").execute("select sum(n) from t").fetchone()[0])
""",
    "sockets": """
import socket, threading, os
s = socket.create_server(("127.0.0.1", 0)); threading.Thread(target=lambda: s.accept()[0].sendall(b"tcp")).start()
print(socket.create_connection(s.getsockname()).recv(9).decode())
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("127.0.0.1", 0)); u.sendto(b"udp", u.getsockname())
print(u.recv(9).decode())
x = socket.socket(socket.AF_UNIX); x.bind("/tmp/sock"); x.listen(); y = socket.socket(socket.AF_UNIX)
y.connect("/tmp/sock"); y.send(b"unix"); print(x.accept()[0].recv(9).decode())
print(socket.gethostbyname(socket.gethostname()), socket.getservbyname("http"))
""",
    "http": """
import http.server, threading, urllib.request
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/README").read().decode().strip())
""",
    "pseudo terminals": """
import pty, os, sys
pid, fd = pty.fork()
if pid == 0: os.execvp("bash", ["bash", "--norc", "-i"])
os.write(fd, b"echo $((6*7)); exit\\n")
data = b""
try:
    while piece := os.read(fd, 1024): data += piece
except OSError: pass
print(b"42" in data, os.waitpid(pid, 0)[1])
""",
    "signals and timers": """
import signal, os, time
got = []
def note(number, frame): got.append(signal.Signals(number).name)
for s in (signal.SIGALRM, signal.SIGUSR1, signal.SIGCHLD): signal.signal(s, note)
signal.setitimer(signal.ITIMER_REAL, 0.01); os.kill(os.getpid(), signal.SIGUSR1)
if os.fork() == 0: os._exit(0)
os.wait(); time.sleep(0.05); print(sorted(got))
""",
    "mapped and shared memory": """
import mmap, os
m = mmap.mmap(-1, 4096)
if os.fork() == 0: m[0] = 9; os._exit(0)
os.wait(); print(m[0]); fd = os.memfd_create("x"); print(os.write(fd, b"abc"))
""",
    "users": """
import pwd, grp, os, getpass, pathlib
print(pwd.getpwuid(os.getuid()).pw_name == getpass.getuser(), grp.getgrgid(os.getgid()).gr_name, pathlib.Path.home())
""",
    "clocks and randomness": """
import time, random, secrets, datetime, zoneinfo, os
print(time.monotonic() > 0, len(secrets.token_bytes(8)), os.cpu_count() > 0, len(os.sched_getaffinity(0)) > 0)
""",
}
SAID = {
    "multiprocessing": "fork 285\nspawn 285\nforkserver 285\n2\n7\n",
    "threads": "1225\n",
    "asyncio": "HELLO\nHELLO\nHELLO\nsub\nthread\n",
    "subprocess": "3\n-15\ntimeout\n",
    "temporary files": "1 /tmp\n2\n",
    "sqlite": "wal\n4950\ndelete\n4950\n",
    "sockets": "tcp\nudp\nunix\n127.0.0.1 80\n",
    "http": "content of README\n",
    "pseudo terminals": "True 0\n",
    "signals and timers": "['SIGALRM', 'SIGCHLD', 'SIGUSR1']\n",
    "mapped and shared memory": "9\n3\n",
    "users": "True user /home/user\n",
    "clocks and randomness": "True 8 True True\n",
}


@pytest.mark.parametrize("what", SNIPPETS)
def test_the_standard_library_works(what: str, workspace: Path) -> None:
    outcome = inside("bash", "-c", f"cat > /tmp/program.py && {sys.executable} /tmp/program.py",
                     cwd=workspace, stdin=SNIPPETS[what].encode())  # fmt: skip
    assert succeeded(outcome) == SAID[what]


# A build backend of its own, so that nothing has to be fetched: what pip does is the same.
BACKEND = """
import zipfile
META = {"METADATA": "Metadata-Version: 2.1\\nName: parcel\\nVersion: 1.0\\n",
        "WHEEL": "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "entry_points.txt": "[console_scripts]\\nparcel = parcel:main\\n", "RECORD": ""}
def build_wheel(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(f"{folder}/parcel-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write("parcel/__init__.py")
        for name, text in META.items(): wheel.writestr(f"parcel-1.0.dist-info/{name}", text)
    return "parcel-1.0-py3-none-any.whl"
"""
PACKAGE = {
    "backend.py": BACKEND,
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "parcel/__init__.py": "def main():\n    print('installed')\n",
    "tests/test_parcel.py": "import os, pytest, parcel\n"
    "@pytest.mark.parametrize('n', range(40))\ndef test_it(n, tmp_path, capfd):\n"
    "    parcel.main()\n    assert capfd.readouterr().out == 'installed\\n'\n"
    "    assert len(os.environ.get('PYTEST_XDIST_WORKER', 'gw0')) == 3\n",
}


@pytest.fixture
def package(workspace: Path) -> Iterator[Path]:
    folder = workspace.parent / "package"
    for name, text in PACKAGE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    yield folder
    assert sorted(os.listdir(folder)) == sorted({name.split("/")[0] for name in PACKAGE}), "the base was written to"


def test_pip_builds_and_installs_a_local_folder_into_an_environment_made_inside(package: Path) -> None:
    pip = f"{sys.executable} -m pip --disable-pip-version-check --python $HOME/env/bin/python"
    told = script(
        f"{sys.executable} -m venv --without-pip $HOME/env && . $HOME/env/bin/activate && "
        f"{pip} install -q --no-index --no-build-isolation . && parcel && "
        f"{pip} uninstall -qy parcel && (test -e $HOME/env/bin/parcel || echo gone) && "
        f"{pip} wheel -q --no-index --no-build-isolation -w wheels . && "
        f"{pip} install -q --no-index --find-links wheels parcel && parcel",
        package,
    )
    assert told == "installed\ngone\ninstalled\n"


def test_pytest_with_several_workers_runs_inside(package: Path) -> None:
    told = succeeded(inside(sys.executable, "-m", "pytest", "-q", "-n3", "tests", cwd=package))
    assert "40 passed" in told


def test_an_interpreter_below_a_closed_home_works_also_when_root_runs_it_as_somebody_else() -> None:
    uid = 1000 if os.geteuid() == 0 else os.getuid()
    with tempfile.TemporaryDirectory(prefix="home-", dir="/var/tmp") as home:
        os.chmod(home, 0o700)
        environment = Path(home) / "env"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
        for path in (environment, *environment.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o700)
        told = succeeded(inside(str(environment / "bin" / "python"), "-c",
                                "import sys, os, json; print(sys.prefix, os.getuid())"))  # fmt: skip
        assert told == f"{environment} {uid}\n"


def test_this_interpreter_and_its_packages_are_there_and_read_only() -> None:
    told = python(
        "import pytest, sys, os\n"
        "for place in (sys.prefix, sys.base_prefix, os.path.dirname(pytest.__file__)):\n"
        "    try: open(os.path.join(place, 'new'), 'w'); print('written', place)\n"
        "    except OSError as error: print(error.errno in (13, 30))"
    )
    assert told == "True\n" * 3


def test_what_pip_needs_is_not_what_the_host_has(tmp_path: Path) -> None:
    """No configuration of the caller's own reaches the job: its home is another."""
    shutil.rmtree(tmp_path)
    told = script("test ! -e ~/.gitconfig && test ! -e ~/.ssh && test ! -e ~/.config && ls -A ~ | wc -l")
    assert told == "0\n"


def test_ids_of_others_are_refused_as_in_an_ordinary_account() -> None:
    """In a user namespace they are no ids at all: the kernel alone would say EINVAL, which nobody expects."""
    told = python(
        "import os, errno\nopen('f', 'w')\nme, mine = os.getuid(), os.getgid()\n"
        "for call, *args in ((os.setuid, 0), (os.setgid, 65534), (os.setreuid, -1, 0), (os.setresgid, 0, 0, 0),\n"
        "    (os.chown, 'f', 0, -1), (os.chown, 'f', -1, 65534), (os.lchown, 'f', 0, 0), (os.setuid, me),\n"
        "    (os.setresgid, mine, -1, mine), (os.chown, 'f', me, mine), (os.chown, 'f', -1, -1)):\n"
        "    try: call(*args); print('done', end=' ')\n"
        "    except OSError as error: print(errno.errorcode[error.errno], end=' ')"
    )
    assert told.split() == ["EPERM"] * 7 + ["done"] * 4
