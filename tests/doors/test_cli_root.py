"""``ringfence run --root``: the directory is the root, and what is changed in it is kept aside, shown and committed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests import clean_root
from tests.examples import written
from tests.image_folder import make_root

pytestmark = [pytest.mark.system]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return make_root(tmp_path / "rootfs", ("sh", "cat", "ls"))


def _ringfence(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ringfence", *words], capture_output=True, text=True, timeout=120)


def test_what_is_changed_in_a_root_is_kept_shown_gone_on_with_and_committed(root: Path) -> None:
    done = _ringfence("run", "--root", "rootfs", "--json", "--", "sh", "-c", "pwd; cat /etc/made-by; echo 1 > /app/new")
    told = json.loads(done.stdout)
    assert told["stdout"] == "/\nan image\n" and [change["path"] for change in told["changes"]] == ["app/new"], done
    kept = os.path.basename(told["transaction"])
    assert "+1" in _ringfence("diff", kept).stdout
    seen = _ringfence("run", "--root", "rootfs", "--transaction", kept, "--", "cat", "/app/new")
    assert seen.stdout == "1\n" and not (root / "app" / "new").exists()
    assert _ringfence("commit", kept).returncode == 0
    assert (root / "app" / "new").read_text() == "1\n"


@pytest.mark.parametrize(("words", "said"), [
    (("--isolation", "process"), "choose strict"), (("--here-anyway",), "neither the current directory nor"),
    (("--root", "nowhere"), "no such file"),
])  # fmt: skip
def test_what_does_not_go_with_a_root_is_said(root: Path, words: tuple[str, ...], said: str) -> None:
    done = _ringfence("run", "--root", str(root), *words, "--", "ls")
    assert done.returncode == 2 and said in done.stderr, done


_APT = """
echo "deb [trusted=yes] file:/srv/repository ./" > /etc/apt/sources.list; rm -rf /etc/apt/sources.list.d
apt-get update; hello-tiny
{step}
apt-get update && apt-get install -y hello-tiny && hello-tiny; apt-get install -y of-a-group
"""


@pytest.mark.root
@pytest.mark.long
def test_apt_installs_in_a_root_once_it_is_told_to_stay_the_one_user(root: Path, tmp_path: Path) -> None:
    """As graders of tasks do it (docs/reference/proctor/terminal-bench.md). A package with files of others fails."""
    debian = clean_root.root_of("trixie")
    for name, group in (("hello-tiny", "root"), ("of-a-group", "mail")):
        _package(tmp_path / "repository", name, group)
    (tmp_path / "policy.yaml").write_text(
        f"root: {debian}\nshown_at: {{{tmp_path}/repository: /srv/repository}}\nmem_bytes: 1G\n"
    )
    step = written("docs/reference/proctor/terminal-bench.md", "one-id").removeprefix("RUN ")
    script = _APT.format(step=step)
    done = _ringfence("run", "--discard", "--policy", "policy.yaml", "--", "sh", "-c", script)
    said = done.stdout + done.stderr
    assert "setgroups" in said and said.count("hello-tiny: not found") == 1, said
    assert "\nit runs\n" in said and "Operation not permitted" in said.partition("\nit runs\n")[2], said


def _package(folder: Path, name: str, group: str) -> None:
    """A package of one program, and its line in the index of the repository."""
    made = folder.parent / name
    (made / "DEBIAN").mkdir(parents=True)
    (made / "usr" / "bin").mkdir(parents=True)
    folder.mkdir(exist_ok=True)
    about = f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: a test\n"
    (made / "DEBIAN" / "control").write_text(about)
    program = made / "usr" / "bin" / name
    program.write_text("#!/bin/sh\necho it runs\n")
    program.chmod(0o755)
    for path in (made, *made.rglob("*")):
        shutil.chown(path, "root", group if path == program else "root")
    file = folder / f"{name}.deb"
    subprocess.run(["dpkg-deb", "--build", made, file], check=True, stdout=subprocess.DEVNULL)
    data = file.read_bytes()
    with (folder / "Packages").open("a") as index:
        index.write(f"{about}Filename: ./{file.name}\nSize: {len(data)}\n"
                    f"SHA256: {hashlib.sha256(data).hexdigest()}\n\n")  # fmt: skip
