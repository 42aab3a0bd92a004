"""A small root file system for tests: a few programs of this host, each with the libraries that it names."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PROGRAMS = ("sh", "cat", "chmod", "cp", "cut", "env", "grep", "id", "ln", "ls", "mkdir", "mknod", "mv", "readlink",
            "rm", "sleep", "stat", "touch", "wc")  # fmt: skip
_PASSWD = "root:x:0:0:root:/root:/bin/sh\nworker:x:1234:2345::/home/worker:/bin/sh\n"
_GROUP = "root:x:0:\nworkers:x:2345:\nothers:x:777:\n"


def make_root(folder: Path, programs: tuple[str, ...] = PROGRAMS) -> Path:
    """With /bin as a link, as most images have it, and without /proc, /dev, /sys and /tmp."""
    for name in ("usr/bin", "etc", "root", "app", "home/worker", "var"):
        (folder / name).mkdir(parents=True)
    (folder / "bin").symlink_to("usr/bin")
    (folder / "etc" / "passwd").write_text(_PASSWD)
    (folder / "etc" / "group").write_text(_GROUP)
    (folder / "etc" / "made-by").write_text("an image\n")
    (folder / "app" / "data.txt").write_text("of the image\n")
    for name in programs:
        source = shutil.which(name)
        assert source is not None, name
        shutil.copy(os.path.realpath(source), folder / "usr" / "bin" / name)
    for library in libraries([folder / "usr" / "bin" / name for name in programs]):
        place = folder / library.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            shutil.copy(os.path.realpath(library), place)
    return folder


def libraries(programs: list[Path]) -> set[str]:
    """The paths of the loader and of all libraries that these programs name."""
    told = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=True).stdout
    words = (word for line in told.splitlines() if not line.endswith(":") for word in line.split())
    return {word for word in words if word.startswith("/") and os.path.isfile(word)}
