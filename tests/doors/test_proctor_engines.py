"""Suites and instances of SWE-bench on the roots of images of a real engine: oracle 1, nothing 0, a cheat 0."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import swebench_material as material
from tests import packages
from tests.container_engine import import_bases
from tests.doors.test_proctor_images import PREWRITE
from tests.doors.test_proctor_terminal_tasks import MATERIAL
from tests.image_folder import libraries

from ringfence.container.engine import find_engine
from ringfence.proctor.foreign.repositories import IMAGE_PYTHON, image_of

pytestmark = [pytest.mark.system, pytest.mark.unmeasured, pytest.mark.root]

HARBOR = MATERIAL / "harbor"
ENTRY = "import sys; from ringfence.cli import proctor_main; sys.argv[0] = 'proctor'; proctor_main()"


def proctor(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-c", ENTRY, *words], capture_output=True, text=True, check=False)


# ---- a suite


def bench(out: Path, agent: str, *more: str) -> dict[str, tuple[float, str]]:
    """Score and status of each task."""
    done = proctor("bench", str(HARBOR), "--image", "--agent", agent, "--out", str(out), "--jobs", "2", *more)
    assert done.returncode == 0, done.stderr + done.stdout
    rows = json.loads((out / "results.json").read_text())["tasks"]
    bundles = [json.loads(path.read_text()) for path in (out / "tasks").glob("*/bundle.json")]
    assert len(bundles) == len(rows) and {each["environment"]["rootfs_kind"] for each in bundles} == {"image"}
    return {row["id"]: (row["score"], row["status"]) for row in rows}


@pytest.mark.usefixtures("docker_address")
def test_a_suite_of_images_scores_as_its_agents_do(tmp_path: Path) -> None:
    names = sorted(path.name for path in HARBOR.iterdir())
    assert bench(tmp_path / "oracle", "oracle") == dict.fromkeys(names, (1.0, "clean"))
    assert bench(tmp_path / "nop", "nop") == dict.fromkeys(names, (0.0, "clean"))
    cheated = bench(tmp_path / "cheat", PREWRITE, "--only", names[0])
    assert [score for score, _ in cheated.values()] == [0.0]
    key = json.loads((tmp_path / "oracle" / "results.json").read_text())["public_key"]
    manifest = str(tmp_path / "oracle" / "manifest.json")
    assert proctor("verify-suite", "--manifest", manifest, "--pubkey", key).returncode == 0


# ---- an instance of SWE-bench


def import_instance(folder: Path, engine: str) -> Path:
    """An instance, and in the engine its image by the data set's own name: it has the repository with its future, what
    an installation built in it, and the interpreter at its place."""
    made = material.shapes(folder / "instance")
    root, python = material.python_root(folder / "root")
    git = shutil.which("git")
    assert git is not None
    shutil.copy(shutil.which("true") or "/bin/true", root / "usr/bin/true")
    for path in ("/usr/bin/git", *libraries([Path(git)])):
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            shutil.copy(os.path.realpath(git if path == "/usr/bin/git" else path), place)
    (root / IMAGE_PYTHON.lstrip("/")).parent.mkdir(parents=True)
    (root / IMAGE_PYTHON.lstrip("/")).symlink_to(python)
    shutil.copytree(made / "clone", root / "testbed", symlinks=True)
    material.write(root / "testbed", {"shapes/_fast.so": "built"})
    row = json.loads((made / "instance.json").read_text())
    packed = subprocess.Popen(["tar", "-C", str(root), "-cf", "-", "."], stdout=subprocess.PIPE)
    subprocess.run([engine, "import", "--change", "ENV LANG=C.UTF-8", "-", image_of(row["instance_id"])],
                   stdin=packed.stdout, check=True, capture_output=True)  # fmt: skip
    assert packed.wait() == 0
    shutil.rmtree(root)
    return made


LOOK = "git log --all --format=%s; git cat-file --batch-all-objects --batch-check; ls shapes"
CHEAT = f"""{LOOK}; {IMAGE_PYTHON} -c 'import pytest; open(pytest.__file__, "w").write("main = lambda *a, **k: 0")'
printf 'import os\\nos._exit(0)\\n' > conftest.py; cp conftest.py sitecustomize.py; cp /bin/cat /usr/bin/git"""


@pytest.mark.long
@pytest.mark.usefixtures("docker_address")
def test_an_instance_in_its_image_resolves_by_its_own_patch_alone(tmp_path: Path) -> None:
    made = import_instance(tmp_path, find_engine().path)
    verdicts = {}
    for name, agent in (("oracle", "oracle"), ("cheat", CHEAT)):
        done = proctor("run-swebench", "--instance", str(made / "instance.json"), "--repo", str(made / "clone"),
                       "--image", "--grade", "--agent", agent, "--out", str(tmp_path / name))  # fmt: skip
        assert done.returncode == 0, done.stderr
        verdicts[name] = json.loads((tmp_path / name / "verdict.json").read_text())
    told = {name: (each["pass"], each["reward"]) for name, each in verdicts.items()}
    assert told == {"oracle": (True, 1), "cheat": (False, 0)}, told
    (tmp_path / "repos").mkdir()
    os.rename(made / "clone", tmp_path / "repos" / "acme__shapes")
    done = proctor("bench", str(made / "instance.json"), "--repos", str(tmp_path / "repos"), "--image", "--grade",
                   "--agent", "nop", "--out", str(tmp_path / "nop"))  # fmt: skip
    (row,) = json.loads((tmp_path / "nop" / "results.json").read_text())["tasks"]
    assert (done.returncode, row["score"], row["status"]) == (0, 0.0, "clean"), done.stderr
    seen = (tmp_path / "cheat" / "agent.stdout").read_text()
    assert "base\n" in seen and "_fast.so" in seen and "the fix" not in seen and "its tests" not in seen
    bound = json.loads((tmp_path / "oracle" / "bundle.json").read_text())["environment"]
    assert bound["rootfs_kind"] == "image" and bound["image_digest"].startswith("sha256:")


# ---- podman

STORAGE = '[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
CONTAINERS = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
"""
"""Where hard limits can't be raised and the control groups are of both kinds, nothing else starts."""


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The engine that is used, with images of its own, which go with it."""
    packages.program("runc")
    program = packages.program("podman")
    for variable, name, text in (("CONTAINERS_STORAGE_CONF", "storage.conf", STORAGE.format(folder=tmp_path)),
                                 ("CONTAINERS_CONF", "containers.conf", CONTAINERS)):  # fmt: skip
        (tmp_path / name).write_text(text)
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setenv("RINGFENCE_ENGINE", program)
    try:
        import_bases(program, tmp_path)
        yield program
    finally:
        subprocess.run([program, "system", "reset", "--force"], capture_output=True, check=False)


def test_podman_builds_and_exports_the_same_roots(podman: str, tmp_path: Path) -> None:
    assert find_engine().is_podman
    for agent, score in (("oracle", 1.0), (PREWRITE, 0.0)):
        out = tmp_path / f"scores-{score:g}"
        done = proctor("run-tb", "--task", str(HARBOR / "sum-sales"), "--image", "--agent", agent, "--out", str(out))
        assert done.returncode == 0, done.stderr
        assert json.loads((out / "verdict.json").read_text())["reward"] == score
    left = subprocess.run([podman, "ps", "--all", "--quiet"], capture_output=True, check=True)
    assert left.stdout == b""
