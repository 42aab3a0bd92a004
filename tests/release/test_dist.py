"""``make dist``: which files there are, that their tags are true, and that a second build has the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from release.dist import ROOT, wheel_name
from release.native_parts import Untrue, check_wheel, problems
from tests.examples import filled, shell, written
from tests.framework_environment import framework_environment
from tests.release_files import EPOCH, release_folder

import ringfence
from ringfence.evidence.keyfile import write_key
from ringfence.evidence.keys import SigningKey
from ringfence.evidence.release import NAME

pytestmark = [pytest.mark.long, pytest.mark.unmeasured,
              pytest.mark.skipif(sys.platform != "linux", reason="Linux only")]  # fmt: skip
ARCHITECTURES = ("x86_64", "aarch64")


@pytest.fixture(scope="module")
def folder() -> Path:
    return release_folder()


def test_there_are_an_sdist_and_a_wheel_for_each_machine_and_for_any(folder: Path) -> None:
    wheels = {wheel_name(ringfence.__version__, kind) for kind in ("any", *ARCHITECTURES)}
    others = {f"ringfence-{ringfence.__version__}{end}" for end in (".tar.gz", ".cdx.json")}
    assert set(os.listdir(folder)) == {*others, *wheels}


def test_the_list_of_parts_is_valid_cyclonedx_and_names_what_the_base_needs(folder: Path) -> None:
    path = folder / f"ringfence-{ringfence.__version__}.cdx.json"
    check = ("import sys; from cyclonedx.schema import SchemaVersion; from cyclonedx.validation.json import "
             "JsonStrictValidator; found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()); "
             "sys.exit(found and str(found))")  # fmt: skip
    environment = framework_environment("cyclonedx")
    for text, code in ((path.read_text(), 0), (path.read_text().replace('"library"', '"nonsense"'), 1)):
        done = subprocess.run([sys.executable, "-c", check], input=text, text=True, env=environment, check=False,
                              capture_output=True)  # fmt: skip
        assert done.returncode == code, done.stderr
    parts = {each["name"]: each for each in json.loads(path.read_text())["components"]}
    assert {name for name, each in parts.items() if each["scope"] == "required" and each["type"] == "library"} == {
        "cryptography", "h11", "pyyaml", "rfc8785"}  # fmt: skip
    assert parts["ray"]["scope"] == "optional" and "mypy" not in parts


@pytest.mark.parametrize("kind", ["any", *ARCHITECTURES])
def test_a_wheel_has_types_filters_and_the_parts_that_its_tag_promises(folder: Path, kind: str) -> None:
    path = folder / wheel_name(ringfence.__version__, kind)
    check_wheel(path, None if kind == "any" else kind)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        told = archive.read(next(name for name in names if name.endswith("/WHEEL"))).decode()
        executable = [info.filename for info in archive.infolist() if info.external_attr >> 16 & 0o111]
    assert "ringfence/py.typed" in names
    assert {f"ringfence/kernel/seccomp/programs-{each}.bin" for each in ARCHITECTURES} <= set(names)
    assert all(name.startswith(("ringfence/", "ringfence-")) for name in names)
    assert f"Root-Is-Purelib: {str(kind == 'any').lower()}" in told
    tags = {line.removeprefix("Tag: ") for line in told.splitlines() if line.startswith("Tag: ")}
    systems = ("any",) if kind == "any" else (f"manylinux2014_{kind}", f"musllinux_1_1_{kind}")
    assert tags == {f"py3-none-{system}" for system in systems}
    assert kind == "any" or {f"ringfence/native/{part}-{kind}" for part in ("first", "init")} <= set(executable)


@pytest.mark.parametrize(("told", "change"), [
    ("is for the machine", (18, b"\x03\x00")),
    ("asks for a loader", (64, b"\x03\x00\x00\x00")),
    ("is aligned to 16", (64, b"\x01\x00\x00\x00" + bytes(44) + (16).to_bytes(8, "little"))),
])  # fmt: skip
def test_a_part_that_is_not_what_the_tag_says_is_found(folder: Path, told: str, change: tuple[int, bytes]) -> None:
    with zipfile.ZipFile(folder / wheel_name(ringfence.__version__, "x86_64")) as archive:
        data = bytearray(archive.read("ringfence/native/init-x86_64"))
    assert problems(bytes(data), "x86_64") == []
    data[change[0] : change[0] + len(change[1])] = change[1]
    assert told in problems(bytes(data), "x86_64")[0]


def test_a_part_with_a_library_is_found() -> None:
    """This interpreter is one: it asks for a loader, and for the C library."""
    told = problems(Path(os.path.realpath(sys.executable)).read_bytes(), os.uname().machine)
    assert {"asks for a loader", "asks for a library"} <= set(told)


def test_a_wheel_without_parts_has_no_tag_of_a_machine(folder: Path) -> None:
    with pytest.raises(Untrue, match="should have"):
        check_wheel(folder / wheel_name(ringfence.__version__, "any"), "x86_64")
    with pytest.raises(Untrue, match="should have"):
        check_wheel(folder / wheel_name(ringfence.__version__, "x86_64"), None)


def test_the_sdist_is_what_git_knows(folder: Path) -> None:
    with tarfile.open(folder / f"ringfence-{ringfence.__version__}.tar.gz") as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    known = {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}
    assert names == known | {"PKG-INFO"}


def test_a_build_elsewhere_from_the_sdist_has_the_same_bytes_and_verifies(folder: Path, tmp_path: Path) -> None:
    """With other rights for new files, another time zone, and a tree that lies elsewhere and has no repository."""
    (tmp_path / "tmp").mkdir()
    with tarfile.open(folder / f"ringfence-{ringfence.__version__}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    tree = (tmp_path / f"ringfence-{ringfence.__version__}").rename(tmp_path / "work")
    _set_up(tree)
    key = SigningKey.generate()
    write_key(str(tmp_path / "key"), key)
    told = {"SOURCE_DATE_EPOCH": str(EPOCH), "TZ": "Asia/Tokyo", "LC_ALL": "C", "TMPDIR": str(tmp_path / "tmp"),
            "PYTHONHASHSEED": "7", "CC": "false", "RINGFENCE_RELEASE_KEY": str(tmp_path / "key")}  # fmt: skip
    said = shell(f"umask 077\n{written('docs/release.md', 'make dist')}", tmp_path, told)
    assert {path.name for path in (tree / "dist").iterdir()} == {*os.listdir(folder), NAME}
    for path in folder.iterdir():
        assert (tree / "dist" / path.name).read_bytes() == path.read_bytes(), path.name
        assert f"{hashlib.sha256(path.read_bytes()).hexdigest()}  dist/{path.name}\n" in said
    verify = written("docs/release.md", "ringfence verify")
    verify = filled(verify, KEY=key.public_hex, **{"0.1.0": ringfence.__version__})
    assert shell(verify, tmp_path).count("release OK") == 2


def _set_up(tree: Path) -> None:
    """As ``make`` leaves it after its first run, with the interpreter of the tests: to install one takes minutes."""
    (tree / ".venv" / "bin").mkdir(parents=True)
    python = tree / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for name in (".installed", ".ready", ".native"):  # else it would be installed over what the tests run
        (tree / ".venv" / name).touch()
