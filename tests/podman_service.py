"""A podman service for tests, of root or rootless, with directories of its own; it ends with whoever has it, and so
does whatever it started."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import packages
from tests.container_image import lay
from tests.patience import eventually
from tests.testable import not_testable_here

IMAGE = "localhost/python:3.10-slim"


@contextmanager
def serving(user: str = "") -> Iterator[str]:
    """The address of a service, which has an image with a Python in it; ``user``: whose, else root's."""
    for program in ("podman", "runc", "newuidmap"):
        packages.program(program)
    folder = Path(tempfile.mkdtemp(prefix="rfp-"))  # a short path, for the socket
    (folder / "run").mkdir()
    own = pwd.getpwnam(user) if user else pwd.getpwuid(0)
    for path in (folder, folder / "run"):
        os.chown(path, own.pw_uid, own.pw_gid)
        path.chmod(0o700 if path != folder else 0o755)
    runc = shutil.which("runc") or "/usr/sbin/runc"
    command = [*_becoming(own), "podman", f"--root={folder}/root", f"--runroot={folder}/run/c", f"--runtime={runc}",
               "--cgroup-manager=cgroupfs", "--storage-driver=vfs"]  # fmt: skip
    environment = {"HOME": own.pw_dir, "PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": f"{folder}/run"}
    _import(command, environment, folder)
    address = f"unix://{folder}/podman.sock"
    service_command = [*command, "system", "service", "--time=0", address]
    with subprocess.Popen(service_command, env=environment, cwd="/", stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, start_new_session=True) as service:  # fmt: skip
        try:
            eventually((folder / "podman.sock").exists)
            yield address
        finally:
            service.terminate()
    subprocess.run([*_becoming(own), "podman", "unshare", "rm", "-rf", f"{folder}/root"] if user else ["true"],
                   env=environment, cwd="/", check=False, capture_output=True)  # fmt: skip
    end_left(folder)
    shutil.rmtree(folder, ignore_errors=True)


def left(folder: Path) -> list[int]:
    """The processes that still live with this directory: a rootless podman keeps one that holds its user namespace."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        if f"XDG_RUNTIME_DIR={folder}/run".encode() in variables:
            found.append(int(name))
    return found


def end_left(folder: Path) -> None:
    """The directory has a name of its own, so they are ours."""
    for pid in left(folder):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    eventually(lambda: not left(folder))


def _becoming(own: pwd.struct_passwd) -> list[str]:
    return ["setpriv", f"--reuid={own.pw_uid}", f"--regid={own.pw_gid}", "--init-groups"] if own.pw_uid else []


def _import(command: list[str], environment: dict[str, str], folder: Path) -> None:
    lay(folder / "files")
    with subprocess.Popen(["tar", "-C", str(folder / "files"), "--owner=0", "--group=0", "-cf", "-", "."],
                          stdout=subprocess.PIPE) as packed:  # fmt: skip
        done = subprocess.run([*command, "import", "-", IMAGE], stdin=packed.stdout, env=environment, cwd="/",
                              capture_output=True, text=True, check=False)  # fmt: skip
    shutil.rmtree(folder / "files")
    if done.returncode:
        not_testable_here(f"podman can't import an image: {done.stderr.strip()[-300:]}")
