"""What servers of the world can offer as plain files: an index of Python packages, a package of npm's."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path


def wheel(folder: Path, name: str, version: str = "1.0") -> Path:
    """A wheel with one module, whose ``WORD`` is ``installed``."""
    module = name.replace("-", "_")
    about, path = f"{module}-{version}.dist-info", folder / f"{module}-{version}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(f"{module}.py", "WORD = 'installed'\n")
        packed.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        packed.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        packed.writestr(f"{about}/RECORD", "")
    return path


def index(served: Path, wheels: Iterable[Path], files: str = "") -> None:
    """Offer wheels at ``/simple/``; ``files``: the server that the pages of the index name for the files themselves."""
    for path in wheels:
        name = re.sub(r"[-_.]+", "-", path.name.split("-")[0]).lower()
        folder = served / "simple" / name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder)
        link = f'<a href="{files}/simple/{name}/{path.name}">{path.name}</a>'
        (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{link}</body></html>")


def npm_project(project: Path, served: Path, registry: str, name: str) -> None:
    """A directory with a locked dependency, and at its place in a registry the tarball of that; no advisory."""
    manifest = json.dumps({"name": name, "version": "1.0.0", "main": "index.js"})
    tarball = served / name / "-" / f"{name}-1.0.0.tgz"
    advisories = served / "-/npm/v1/security/advisories/bulk"
    for path in (tarball, advisories):
        path.parent.mkdir(parents=True, exist_ok=True)
    advisories.write_text("{}")
    with tarfile.open(tarball, "w:gz") as packed:
        for path, text in (("package/package.json", manifest), ("package/index.js", "module.exports = 'installed'\n")):
            entry = tarfile.TarInfo(path)
            entry.size = len(text)
            packed.addfile(entry, io.BytesIO(text.encode()))
    digest = base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    wanted = {"name": "project", "version": "1.0.0", "dependencies": {name: "1.0.0"}}
    found = {"version": "1.0.0", "resolved": f"{registry}/{name}/-/{tarball.name}", "integrity": f"sha512-{digest}"}
    locked = {"lockfileVersion": 3, "requires": True, "packages": {"": wanted, f"node_modules/{name}": found}}
    (project / "package.json").write_text(json.dumps(wanted))
    (project / "package-lock.json").write_text(json.dumps(wanted | locked))
