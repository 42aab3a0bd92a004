"""A virtual machine with a real cgroup v2: Debian's kernel for this architecture under QEMU's emulator.

Owns getting the emulator and the kernel, the cache, and one run. There is no accelerator: /dev/kvm may exist
and still be unusable, and emulation is quick enough. What is missing is an error, never a skipped test.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import glob
import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import guest_image

HERE = os.path.dirname(os.path.abspath(__file__))
PROJECT = os.path.dirname(os.path.dirname(HERE))
CACHE = os.environ.get("RINGFENCE_TEST_CACHE") or os.path.expanduser("~/.cache/ringfence-tests")
MARK = "@@guest "
MEMORY_MIB, DISK_MIB = 1024, 1024
MODULES = ("virtio_pci", "virtio_blk", "overlay", "fuse")
"""Debian's kernels have these apart; what is not there is built in."""
COMMAND_LINE = "quiet loglevel=1 panic=-1 rdinit=/init cgroup_no_v1=all mitigations=off"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """What differs between the two processors this project is used on."""

    emulator: str
    emulator_package: str
    kernel_package: str
    console: str
    options: tuple[str, ...]


MACHINES = {
    "aarch64": Machine(
        emulator="qemu-system-aarch64",
        emulator_package="qemu-system-arm",
        kernel_package="linux-image-cloud-arm64",
        console="ttyAMA0",
        options=("-machine", "virt,gic-version=2", "-cpu", "max,pauth=off"),
    ),
    "x86_64": Machine(
        emulator="qemu-system-x86_64",
        emulator_package="qemu-system-x86",
        kernel_package="linux-image-cloud-amd64",
        console="ttyS0",
        options=("-machine", "q35", "-cpu", "max"),
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuestReport:
    """What the guest said; ``console`` is all of it, for when it said something else."""

    facts: tuple[dict[str, object], ...]
    console: str

    def of(self, key: str) -> list[dict[str, object]]:
        return [fact for fact in self.facts if key in fact]

    def fact(self, key: str) -> dict[str, object]:
        for fact in self.facts:
            if key in fact:
                return fact
        raise AssertionError(f"the guest never said {key!r}; its console:\n{self.console[-4000:]}")


def run(who: str, tests: tuple[str, ...], environment: dict[str, str], *, deadline_s: float = 900) -> GuestReport:
    """Boot, run these tests as ``root`` or as an ordinary ``user``, power off; the console, parsed."""
    machine = MACHINES[os.uname().machine]
    emulator = _program(machine.emulator, machine.emulator_package)
    with _locked(CACHE):
        kernel = _kernel(machine)
        disk = _interpreter_disk()
    image = os.path.join(CACHE, f"run-{os.getpid()}.cpio")
    try:
        _write_image(image, kernel, _job(who, tests, environment))
        argv = [emulator, *machine.options, "-accel", "tcg,thread=multi", "-smp", "2", "-m", str(MEMORY_MIB),
                "-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot",
                "-kernel", f"{kernel}/vmlinuz", "-initrd", image,
                # What the guest writes is thrown away, so that every run begins with the same disk.
                "-drive", f"file={disk},if=virtio,format=raw,snapshot=on",
                "-append", f"console={machine.console} {COMMAND_LINE}"]  # fmt: skip
        return _parsed(_console_of(argv, deadline_s))
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(image)


def _console_of(argv: list[str], deadline_s: float) -> str:
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(argv, stdin=none, stdout=pipe, stderr=subprocess.STDOUT) as guest:
        try:
            said, _ = guest.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            guest.kill()
            said, _ = guest.communicate()
    return said.decode(errors="replace").replace("\r", "")


def _parsed(console: str) -> GuestReport:
    lines = [line[len(MARK) :] for line in console.split("\n") if line.startswith(MARK)]
    return GuestReport(facts=tuple(json.loads(line) for line in lines), console=console)


def _job(who: str, tests: tuple[str, ...], environment: dict[str, str]) -> bytes:
    pytest_home = os.path.dirname(os.path.dirname(os.path.abspath(sys.modules["pytest"].__file__ or "")))
    ours = [PROJECT, *(os.path.join(PROJECT, name) for name in ("src", "tests/hosts", "tests/unit/linux"))]
    return json.dumps({
        "who": who,
        "tests": [os.path.join(PROJECT, test) for test in tests],
        "environment": environment,
        "ini": os.path.join(PROJECT, "pyproject.toml"),
        "pythonpath": [*ours, pytest_home],
    }).encode()  # fmt: skip


def _write_image(image: str, kernel: str, job: bytes) -> None:
    """What boots, and what is of this run; boot copies the latter onto the disk."""
    texts = [("/init", b"#!%s -IS\n" % os.path.realpath(sys.executable).encode() + _own("guest_boot.py"), 0o755),
             ("/fresh/guest/init.py", _own("guest_init.py"), 0o644), ("/fresh/guest/job.json", job, 0o644)]  # fmt: skip
    files = [(path, path) for path in guest_image.boot_files()]
    files += [(f"/modules/{name}", f"{kernel}/modules/{name}") for name in sorted(os.listdir(f"{kernel}/modules"))]
    files += [(f"/fresh{path}", path) for path in guest_image.project_files(PROJECT)]
    with open(image, "wb") as out:
        out.write(guest_image.archive(files, texts))


def _own(name: str) -> bytes:
    with open(os.path.join(HERE, name), "rb") as file:
        return file.read()


def _interpreter_disk() -> str:
    files = guest_image.interpreter_files()
    states = [(path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in files]
    key = hashlib.sha256(_own("guest_image.py") + repr((states, DISK_MIB)).encode()).hexdigest()[:16]
    path = os.path.join(CACHE, f"interpreter-{key}.ext4")
    if not os.path.exists(path):
        for old in glob.glob(os.path.join(CACHE, "interpreter-*")):
            os.unlink(old)
        guest_image.write_disk(path, files, [_program("mke2fs", "e2fsprogs"), "-q", "-t", "ext4"], f"{DISK_MIB}M")
    return path


def _program(name: str, package: str) -> str:
    """Where a program is, installed if it is missing."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if shutil.which(name, path=path) is None:
        _apt(["install", "-y", "--no-install-recommends", package])
    found = shutil.which(name, path=path)
    assert found, f"no {name}; fix: apt-get install {package}"
    return found


def _kernel(machine: Machine) -> str:
    """A folder with vmlinuz and the modules in the order in which they are loaded, from Debian's package."""
    folder = os.path.join(CACHE, "-".join(("kernel", machine.kernel_package, *MODULES)))
    if not os.path.exists(folder):
        scratch = f"{folder}.{os.getpid()}"
        os.makedirs(f"{scratch}/unpacked")
        try:
            _unpack_kernel(machine, scratch)
            shutil.rmtree(f"{scratch}/unpacked")
            os.rename(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _unpack_kernel(machine: Machine, scratch: str) -> None:
    shown = ["apt-cache", "depends", machine.kernel_package]
    said = subprocess.run(shown, capture_output=True, text=True, check=False).stdout
    if "Depends: linux-image" not in said:
        _apt(["update"])
        said = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    package = next(line.split()[-1] for line in said.splitlines() if "Depends: linux-image" in line)
    _apt(["download", package], cwd=scratch)
    (deb,) = glob.glob(f"{scratch}/*.deb")
    subprocess.run(["dpkg-deb", "-x", deb, f"{scratch}/unpacked"], check=True)
    os.unlink(deb)
    (vmlinuz,) = glob.glob(f"{scratch}/unpacked/boot/vmlinuz-*")
    os.rename(vmlinuz, f"{scratch}/vmlinuz")
    os.mkdir(f"{scratch}/modules")
    found: dict[str, bytes] = {}
    for name in MODULES:
        _find_module(f"{scratch}/unpacked", name, found)
    for number, (name, content) in enumerate(found.items()):
        _write_atomically(f"{scratch}/modules/{number:02}-{name}.ko", content)


def _find_module(unpacked: str, name: str, found: dict[str, bytes]) -> None:
    """A module after all that it depends on, as its own header tells."""
    places = glob.glob(f"{unpacked}/**/{name}.ko*", recursive=True)
    if name in found or not places:
        return
    with (lzma.open if places[0].endswith(".xz") else open)(places[0], "rb") as file:
        content = file.read()
    told = re.search(rb"\0depends=([^\0]*)\0", content)
    for needed in filter(None, told[1].decode().split(",") if told else ()):
        _find_module(unpacked, needed, found)
    found[name] = content


def _apt(words: list[str], cwd: str | None = None) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    argv = ["apt-get", "-qq", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=cwd, env=environment)
    if done.returncode != 0 and words[0] == "install":
        _apt(["update"])
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{' '.join(argv)} failed: {done.stderr[-1000:]}"


def _write_atomically(path: str, content: bytes) -> None:
    with open(f"{path}.{os.getpid()}", "wb") as file:
        file.write(content)
    os.rename(file.name, path)


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def names_of_tests(tests: tuple[str, ...]) -> set[str]:
    """``file.py::test_name`` of every test function in these files, so that none can be missing unnoticed."""
    found: set[str] = set()
    for path in tests:
        with open(os.path.join(PROJECT, path), encoding="utf-8") as file:
            names = re.findall(r"^def (test_\w+)", file.read(), re.MULTILINE)
        found |= {f"{os.path.basename(path)}::{name}" for name in names}
    return found


def assert_kept(report: GuestReport, tests: tuple[str, ...]) -> None:
    """Every test function of these files ran, none failed or was skipped, and no group was left behind."""
    ran = report.of("test")
    wrong = [f"{fact['test']}: {fact['outcome']}\n{fact['text']}" for fact in ran if not fact["passed"]]
    assert not wrong, "\n\n".join(wrong)
    assert report.fact("done") == {"done": True}
    names = {str(fact["test"]).partition("[")[0] for fact in ran}
    assert names_of_tests(tests) <= names, report.console[-4000:]
    end = report.fact("exit_code")
    assert (end["exit_code"], end["left_behind"]) == (0, [])
