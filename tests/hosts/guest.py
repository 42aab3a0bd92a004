"""A virtual machine with a real cgroup v2: Debian's kernel and Debian's interpreter under QEMU's emulator.

Owns one run and what it said. The machine may be of this host's architecture or of the other one. There is no
accelerator: /dev/kvm may exist and still be unusable, and emulation is quick enough. What is missing is an error,
never a skipped test.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping

import guest_image
from guest_packages import CACHE, program

HERE = os.path.dirname(os.path.abspath(__file__))
PROJECT = os.path.dirname(os.path.dirname(HERE))
MARK = "@@guest "
MEMORY_MIB = 1024
COMMAND_LINE = "quiet loglevel=1 panic=-1 rdinit=/init cgroup_no_v1=all mitigations=off"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """What differs between the two processors this project is used on."""

    debian: str
    emulator: str
    emulator_package: str
    kernel_package: str
    console: str
    options: tuple[str, ...]


MACHINES = {
    "aarch64": Machine(
        debian="arm64",
        emulator="qemu-system-aarch64",
        emulator_package="qemu-system-arm",
        kernel_package="linux-image-cloud-arm64",
        console="ttyAMA0",
        options=("-machine", "virt,gic-version=2", "-cpu", "max,pauth=off"),
    ),
    "x86_64": Machine(
        debian="amd64",
        emulator="qemu-system-x86_64",
        emulator_package="qemu-system-x86",
        kernel_package="linux-image-cloud-amd64",
        console="ttyS0",
        options=("-machine", "q35", "-cpu", "max"),
    ),
}
OWN = os.uname().machine
OTHER = {"aarch64": "x86_64", "x86_64": "aarch64"}[OWN]
STEADY = ("-smp", "1", "-icount", "shift=2,sleep=off", "-rtc", "clock=vm")
"""The guest's time is what it has executed, and its sleep takes none: a busy host makes no job of the guest late.
It takes one thread for all processors, which costs a third less than two that agree on every change of a page table."""


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


def run(
    tests: Mapping[str, tuple[str, ...]], environment: dict[str, str], *, machine: str = OWN, deadline_s: float = 900
) -> GuestReport:
    """Boot once, run tests as ``root`` and as an ordinary ``user``, power off; the console, parsed."""
    kind = MACHINES[machine]
    emulator = program(kind.emulator, kind.emulator_package)
    with _locked(CACHE):
        parts = guest_image.parts(kind.debian, kind.kernel_package)
    with tempfile.TemporaryDirectory(prefix="run-", dir=CACHE) as scratch:
        image = _write_image(scratch, parts, _job(tests, environment))
        argv = [emulator, *kind.options, "-accel", "tcg", *STEADY, "-m", str(MEMORY_MIB),
                "-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot",
                "-kernel", f"{parts}/vmlinuz", "-initrd", image,
                # What the guest writes is thrown away, so that every run begins with the same disk.
                "-drive", f"file={parts}/disk,if=virtio,format=raw,snapshot=on",
                "-append", f"console={kind.console} {COMMAND_LINE}"]  # fmt: skip
        return _parsed(_console_of(argv, deadline_s))


def _first() -> list[str]:
    """A guest computes all the time, beside many tests that mostly wait: it would end long after the last of them."""
    return ["nice", "-n", "-5"] if os.geteuid() == 0 else []


def _console_of(argv: list[str], deadline_s: float) -> str:
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen([*_first(), *argv], stdin=none, stdout=pipe, stderr=subprocess.STDOUT) as guest:
        try:
            said, _ = guest.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            guest.kill()
            said, _ = guest.communicate()
    return said.decode(errors="replace").replace("\r", "")


def _parsed(console: str) -> GuestReport:
    lines = [line[len(MARK) :] for line in console.split("\n") if line.startswith(MARK)]
    return GuestReport(facts=tuple(json.loads(line) for line in lines), console=console)


OWN_PARTS = ("src", "tests/hosts", "tests/unit/kernel", "tests/unit/sandbox")


def _job(tests: Mapping[str, tuple[str, ...]], environment: dict[str, str]) -> bytes:
    ours = [PROJECT, *(os.path.join(PROJECT, name) for name in OWN_PARTS)]
    return json.dumps({
        "tests": {who: [os.path.join(PROJECT, test) for test in names] for who, names in tests.items()},
        "environment": environment,
        "ini": os.path.join(PROJECT, "pyproject.toml"),
        "pythonpath": [*ours, guest_image.TEST_MODULES_HOME],
    }).encode()  # fmt: skip


def _write_image(scratch: str, parts: str, job: bytes) -> str:
    """What boots, and what is of this run; boot copies the latter onto the disk."""
    root, image = f"{scratch}/root", f"{scratch}/image"
    modules = [(f"/modules/{name}", f"{parts}/modules/{name}") for name in sorted(os.listdir(f"{parts}/modules"))]
    guest_image.put(root, [("/init", f"{HERE}/guest_boot.sh"), ("/bin/busybox", f"{parts}/busybox"), *modules])
    guest_image.put(f"{root}/fresh", [("/guest/init.py", f"{HERE}/guest_init.py"), *guest_image.project_files(PROJECT)])
    guest_image.compile_all(f"{root}/fresh", parts)
    with open(f"{root}/fresh/guest/job.json", "wb") as file:
        file.write(job)
    with open(image, "wb") as file:
        file.write(guest_image.archive(root))
    return image


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def names_of_tests(tests: tuple[str, ...]) -> set[str]:
    """``file.py::test_name`` of every test function in these files, so that none can be missing unnoticed."""
    found: set[str] = set()
    for test in tests:
        path, _, only = test.partition("::")
        with open(os.path.join(PROJECT, path), encoding="utf-8") as file:
            names = re.findall(r"^def (test_\w+)", file.read(), re.MULTILINE)
        found |= {f"{os.path.basename(path)}::{name}" for name in names if only in ("", name)}
    return found


def assert_kept(report: GuestReport, tests: Mapping[str, tuple[str, ...]]) -> None:
    """Every test function of these files ran, none failed or was skipped, and no group was left behind."""
    ran = report.of("test")
    wrong = [f"{fact['test']} as {fact['who']}: {fact['outcome']}\n{fact['text']}"
             for fact in ran if not fact["passed"]]  # fmt: skip
    assert not wrong, "\n\n".join(wrong)
    assert report.fact("done") == {"done": True}
    for who, named in tests.items():
        names = {str(fact["test"]).partition("[")[0] for fact in ran if fact["who"] == who}
        assert names_of_tests(named) <= names, report.console[-4000:]
    ends = [(fact["who"], fact["exit_code"], fact["left_behind"]) for fact in report.of("exit_code")]
    assert ends == [(who, 0, []) for who in tests]
