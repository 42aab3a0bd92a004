"""Attacks that change what is the caller's: the base of a workspace, and directories that are only readable.

Part of the family of the file system.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.escape.attack import Attack, Stage, in_workspace

_TRY = "try: {}\nexcept OSError as e: print(e)\nelse: print('ESCAPED')\n"


def _picture(folder: Path) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for path in sorted(folder.rglob("*")):
        seen = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found.append((str(path), seen.st_mode, seen.st_uid, seen.st_mtime_ns, content))
    return found


@in_workspace
def _guarded(stage: Stage) -> Mapping[str, object]:
    folder = stage.cwd = stage.folder / "workspace"
    (folder / "folder").mkdir(parents=True)
    for name in ("file.txt", "folder/inner.txt"):
        (folder / name).write_text("base")
    before = _picture(folder)
    stage.escaped = lambda: _picture(folder) != before
    return {}


_CHANGES = {
    "written": "open('file.txt', 'a').write('x')\n",
    "overwritten in place": "os.pwrite(os.open('file.txt', os.O_RDWR), b'x', 0)\n",
    "overwritten through a mapping": "import mmap\nmmap.mmap(os.open('file.txt', os.O_RDWR), 4)[0:1] = b'x'\n",
    "deleted": "os.unlink('file.txt')\nimport shutil; shutil.rmtree('folder')\n",
    "renamed": "os.rename('file.txt', 'other.txt')\nos.rename('folder/inner.txt', 'file.txt')\n",
    "given another mode": "os.chmod('file.txt', 0o777); os.chmod('folder', 0o700)\n",
    "given another time": "os.utime('file.txt', (1, 1)); os.utime('folder/inner.txt', (1, 1))\n",
    "replaced by a link": "os.unlink('file.txt'); os.symlink('/etc/passwd', 'file.txt')\n",
    "truncated": "os.truncate('file.txt', 0)\n",
    "replaced directory by file": "os.unlink('folder/inner.txt'); os.rmdir('folder'); open('folder', 'w').close()\n",
}


def _readable(stage: Stage) -> Mapping[str, object]:
    folder = stage.folder / "shown"
    folder.mkdir()
    path = folder / "file.txt"
    path.write_text("base")
    path.chmod(0o666)
    folder.chmod(0o777)
    stage.policy["readable_paths"] = [str(folder)]
    return {"path": str(path), "folder": str(folder)}


_READ_ONLY_CHANGES = {
    "write": "open(GIVEN['path'], 'a').write('x')", "create": "open(GIVEN['folder'] + '/new', 'w')",
    "unlink": "os.unlink(GIVEN['path'])", "rename": "os.rename(GIVEN['path'], GIVEN['folder'] + '/moved')",
    "chmod": "os.chmod(GIVEN['path'], 0o600)", "touch": "os.utime(GIVEN['path'])",
    "xattr": "os.setxattr(GIVEN['path'], 'user.x', b'y')",
    "reopen by /proc/self/fd": "os.open(f\"/proc/self/fd/{os.open(GIVEN['path'], os.O_RDONLY)}\", os.O_RDWR)",
}  # fmt: skip

ATTACKS = [
    *(Attack(name=f"base {how}", family="filesystem", what=f"the workspace's base is {how}", probe=probe,
             prepare=_guarded) for how, probe in _CHANGES.items()),
    *(Attack(name=f"{how} in a readable directory", family="filesystem", what="what is only readable is changed",
             probe=_TRY.format(source), prepare=_readable) for how, source in _READ_ONLY_CHANGES.items()),
]  # fmt: skip
