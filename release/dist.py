"""``make dist``: build the sdist and every wheel, byte for byte the same each time, list their parts and sign all.

Owns: what is built from which files, and with which tools. What is built is what git knows, as it lies in the tree;
wheels are built from the sdist. Nothing in the tree is written but the directory ``dist``.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from release.native_parts import Untrue, check_wheel
from release.sbom import sbom
from ringfence.errors import EvidenceError
from ringfence.evidence.keyfile import read_key
from ringfence.evidence.keys import SigningKey
from ringfence.evidence.release import NAME, made

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "release" / "tools.txt"
# What the build hook is told, one wheel each.
WHEELS: Mapping[str, Mapping[str, str]] = {
    "any": {"RINGFENCE_PURE": "1"},
    "x86_64": {"RINGFENCE_ARCHITECTURE": "x86_64"},
    "aarch64": {"RINGFENCE_ARCHITECTURE": "aarch64"},
}


class NotBuilt(Exception):
    """Why there is no release."""


def wheel_name(version: str, kind: str) -> str:
    """Return the file name of a wheel; the native parts need no C library, so one wheel serves both of them."""
    tag = "any" if kind == "any" else f"manylinux2014_{kind}.musllinux_1_1_{kind}"
    return f"ringfence-{version}-py3-none-{tag}.whl"


def build(target: Path, source: Path = ROOT, epoch: int | None = None) -> list[Path]:
    """Build everything into the directory; return the files, the sdist first."""
    epoch = _epoch(source) if epoch is None else epoch
    environment = _environment(str(epoch))
    python = tools()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ringfence-dist-") as scratch:
        tree, built = Path(scratch, "tree"), Path(scratch, "built")
        _export(source, tree)
        _build(python, ["--sdist"], tree, built, environment)
        (sdist,) = built.glob("*.tar.gz")
        version = sdist.name.removeprefix("ringfence-").removesuffix(".tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch, filter="data")
        unpacked = Path(scratch, f"ringfence-{version}")
        names = [sdist.name]
        for kind, told in WHEELS.items():
            _build(python, ["--wheel"], unpacked, built, {**environment, **told})
            names.append(wheel_name(version, kind))
            if not (built / names[-1]).exists():
                raise NotBuilt(f"there is no {names[-1]}; there is {', '.join(sorted(os.listdir(built)))}")
            check_wheel(built / names[-1], None if kind == "any" else kind)
        files = [Path(shutil.copy(built / name, target / name)) for name in names]
    listed = target / f"ringfence-{version}.cdx.json"
    listed.write_bytes(sbom(files, epoch, _pinned()))
    return [*files, listed]


def sign(folder: Path, key: SigningKey, source: Path = ROOT) -> Path:
    """Leave one signed statement over all files in the directory."""
    (sdist,) = folder.glob("ringfence-*.tar.gz")
    version = sdist.name.removeprefix("ringfence-").removesuffix(".tar.gz")
    about = {"version": version, "commit": _commit(source), "source_date_epoch": str(_epoch(source)),
             "python": platform.python_version(), "tools": _pinned()}  # fmt: skip
    (folder / NAME).write_text(json.dumps(made(str(folder), about, key)) + "\n")
    return folder / NAME


def _pinned() -> list[str]:
    return [line for line in TOOLS.read_text().splitlines() if line and not line.startswith("#")]


def _commit(source: Path) -> str:
    """Return what was built: a commit, and whether the tree had changes that are in none."""
    asked = [["git", "-C", str(source), *words] for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))]
    head, changed = (subprocess.run(each, capture_output=True, text=True, check=False).stdout.strip() for each in asked)
    return (head or "unknown") + (" with changes" if changed else "")


def tools() -> str:
    """Return an interpreter that has the tools, in a cache directory; made on first use."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringfence-release"
    key = hashlib.sha256(TOOLS.read_bytes() + sys.version.encode()).hexdigest()[:16]
    base.mkdir(parents=True, exist_ok=True)
    place = base / f"tools-{key}"
    with open(base / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / ".ready").exists():
            _run([sys.executable, "-m", "venv", "--clear", str(place)])
            _run([str(place / "bin/python"), "-m", "pip", "install", "--quiet", "--requirement", str(TOOLS)])
            (place / ".ready").touch()
    return str(place / "bin/python")


def _epoch(source: Path) -> int:
    """Return the time that every file of the release has: the last commit's, unless somebody says another."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is not None:
        return int(given)
    done = subprocess.run(["git", "-C", str(source), "log", "-1", "--format=%ct"], capture_output=True, text=True,
                          check=False)  # fmt: skip
    if done.returncode:
        raise NotBuilt("this is no git repository, so there is no time of a commit: set SOURCE_DATE_EPOCH")
    return int(done.stdout)


def _export(source: Path, target: Path) -> None:
    """Copy what git knows, without anything that was built or left in the tree; all of an unpacked sdist."""
    if not (source / ".git").exists():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", ".venv*", "dist"))
        (target / "PKG-INFO").unlink(missing_ok=True)  # of the sdist that this was; it is written anew
        return
    listed = subprocess.run(["git", "-C", str(source), "ls-files", "-z"], capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (source / name).exists():  # else it was removed, and git has not been told
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, target / name)


def _environment(epoch: str) -> dict[str, str]:
    """Nothing of the caller's environment is part of a release but where programs are."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "XDG_CACHE_HOME") if name in os.environ}
    return {**kept, "SOURCE_DATE_EPOCH": epoch, "LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1", "RINGFENCE_ZIG": "1"}  # fmt: skip


def _build(python: str, what: Sequence[str], tree: Path, made: Path, environment: Mapping[str, str]) -> None:
    _run([python, "-m", "build", "--no-isolation", *what, "--outdir", str(made), str(tree)], environment)


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)  # fmt: skip
    if done.returncode:
        raise NotBuilt(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m release.dist", description=__doc__)
    parser.add_argument("--out", metavar="DIR", default=str(ROOT / "dist"), help="where to (default: dist)")
    parser.add_argument("--key", metavar="FILE", default=os.environ.get("RINGFENCE_RELEASE_KEY"),
                        help="sign with this key, as keygen makes it (default: RINGFENCE_RELEASE_KEY, else a new one)")
    given = parser.parse_args(arguments)
    target = Path(given.out)
    shutil.rmtree(target, ignore_errors=True)
    try:
        key = read_key(given.key) if given.key else SigningKey.generate()
        files = build(target)
        files.append(sign(target, key))
    except (NotBuilt, Untrue, EvidenceError) as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    for path in files:
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
    whose = "" if given.key else "; it was made for this build and is nobody's: name one with RINGFENCE_RELEASE_KEY"
    print(f"signed with the key {key.public_hex}{whose}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
