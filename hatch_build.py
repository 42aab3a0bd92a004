"""Make what is shipped beside the sources: filters as bytes, and four small native parts where there is a compiler.

Without a compiler the wheel is pure, and the package makes the same calls through ctypes. They need no C library, so
one wheel per architecture serves every Linux. ``python hatch_build.py`` builds all of it into the source tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a program: no build backend is needed for that
    BuildHookInterface = object

SOURCE = Path(__file__).resolve().parent / "src"
NATIVE = SOURCE / "ringfence" / "native"
ARCHITECTURES = ("x86_64", "aarch64")
ZIG_TARGETS = {name: f"{name}-linux-none" for name in ARCHITECTURES}
_COMMON = ("-O2", "-Wall", "-Wextra", "-nostdlib", "-ffreestanding", "-fno-stack-protector",
           "-fno-asynchronous-unwind-tables", "-Wl,-z,noexecstack", "-Wl,-z,defs",
           "-Wl,--build-id=none", "-s")  # fmt: skip
_PAGE = {"x86_64": 4096, "aarch64": 65536}
"""The largest page that a kernel of the architecture has: a smaller alignment is not loaded where pages are larger."""
_PROGRAM = ("-static", "-fno-pie", "-no-pie")
PARTS = {"calls": ("-fPIC", "-shared"), "init": _PROGRAM, "first": _PROGRAM, "visits": _PROGRAM}


def artefact(part: str, architecture: str) -> Path:
    """Return where a compiled part lies; ``kernel/calls/native.py`` looks there."""
    return NATIVE / f"{part}-{architecture}{'.so' if part == 'calls' else ''}"


def compiler(architecture: str) -> list[str] | None:
    """Return the command of a compiler for the architecture, or nothing.

    With ``RINGFENCE_ZIG`` it is Zig's whatever the host has: a release has the same bytes wherever it is built.
    """
    chosen = os.environ.get("CC", "")
    if architecture == os.uname().machine and not os.environ.get("RINGFENCE_ZIG"):
        for name in filter(None, (chosen, "cc", "gcc", "clang")):
            if shutil.which(name.split()[0]):
                return name.split()
    found = subprocess.run([sys.executable, "-m", "ziglang", "version"], capture_output=True, check=False)
    if found.returncode == 0:
        return [sys.executable, "-m", "ziglang", "cc", "-target", ZIG_TARGETS[architecture]]
    if os.environ.get("RINGFENCE_ZIG"):
        return None
    cross = shutil.which(f"{architecture}-linux-gnu-gcc")
    return [cross] if cross else None


def build(architecture: str) -> list[Path]:
    """Compile all parts; return them, or nothing where that can't be done."""
    command = compiler(architecture) if sys.platform == "linux" and architecture in ARCHITECTURES else None
    if command is None:
        return []
    made, page = [], f"-Wl,-z,max-page-size={_PAGE[architecture]}"
    for part, options in PARTS.items():
        target = artefact(part, architecture)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        ran = subprocess.run([*command, *_COMMON, page, *options, "-o", str(beside), str(NATIVE / f"{part}.c")],
                             check=False)  # fmt: skip
        if ran.returncode != 0:
            beside.unlink(missing_ok=True)
            print(f"ringfence: {part}.c could not be compiled; the package works without", file=sys.stderr)
            return []
        beside.replace(target)
        made.append(target)
    return made


def filters() -> list[Path]:
    """Compile the filters of all profiles for both architectures; return the files."""
    code = "from ringfence.kernel.seccomp.programs import main; main()"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(SOURCE)}, check=True)
    return sorted((SOURCE / "ringfence" / "kernel" / "seccomp").glob("programs-*.bin"))


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc, valid-type]
    """Run by hatchling for wheels and editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        for architecture in ARCHITECTURES:  # of an earlier build, perhaps for another machine
            for part in PARTS:
                artefact(part, architecture).unlink(missing_ok=True)
        programs = {str(path): f"ringfence/kernel/seccomp/{path.name}" for path in filters()}
        if version != "editable":
            build_data["force_include"].update(programs)
        architecture = os.environ.get("RINGFENCE_ARCHITECTURE") or os.uname().machine
        made = [] if os.environ.get("RINGFENCE_PURE") else build(architecture)
        if not made:
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux2014_{architecture}.musllinux_1_1_{architecture}"
        if version != "editable":
            build_data["force_include"].update({str(path): f"ringfence/native/{path.name}" for path in made})


if __name__ == "__main__":
    filters()
    made = build(sys.argv[1] if len(sys.argv) > 1 else os.uname().machine)
    print("\n".join(map(str, made)) or "no compiler: the package works without")
