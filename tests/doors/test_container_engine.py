"""A real Docker engine: images are built and read, their roots unpacked, and nothing of ours stays in it."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import eventually

from ringfence.container import images, orphans
from ringfence.container.engine import Engine, Image, find_engine
from ringfence.errors import SetupError, UsageError

pytestmark = [pytest.mark.system, pytest.mark.unmeasured, pytest.mark.root]

HOSTILE = """FROM debian:bookworm
RUN mkdir -p /deep /var/run && cp /bin/cat /bin/su && chmod 6755 /bin/su && ln -s ../../../../etc /deep/out \
 && ln -s / /deep/top && ln /etc/passwd /deep/linked && touch '/deep/ a\\nb' && chmod 0 /deep/linked
ENV A="b c" PATH=/bin:/usr/bin
WORKDIR /app/work
VOLUME /deep
USER agent
"""


@pytest.fixture
def engine(docker_address: str) -> Engine:
    assert docker_address == os.environ["DOCKER_HOST"]
    return find_engine()


def build(engine: Engine, folder: Path, text: str, **also: object) -> Image:
    (folder / "context").mkdir(exist_ok=True)
    (folder / "context" / "Dockerfile").write_text(text)
    return engine.build(str(folder / "context"), str(folder / "context" / "Dockerfile"),
                        log=str(folder / "build.log"), **also)  # type: ignore[arg-type]  # fmt: skip


def containers(engine: Engine) -> bytes:
    """Of builds and exports: tests of the level run beside, with the same engine."""
    words = [engine.path, "ps", "--all", "--format", f'{{{{.ID}}}} {{{{.Label "{orphans.OWNER}"}}}}']
    told = subprocess.run(words, capture_output=True, check=True).stdout.splitlines()
    return b" ".join(line for line in told if len(line.split()) == 1)


def test_an_image_is_built_read_and_unpacked(engine: Engine, tmp_path: Path) -> None:
    image = build(engine, tmp_path, HOSTILE, network="none")
    assert (image.workdir, image.user, image.environment["A"]) == ("/app/work", "agent", "b c")
    assert "mkdir" in (tmp_path / "build.log").read_text()
    root = Path(images.root_of(engine, image).folder)
    assert not stat.S_IMODE((root / "bin/su").stat().st_mode) & 0o6000
    assert os.readlink(root / "deep/out") == "../../../../etc"
    assert (root / "deep/linked").stat().st_ino == (root / "etc/passwd").stat().st_ino
    assert (root / "app/work").is_dir() and not (root / ".dockerenv").exists()
    kinds = {stat.S_IFMT(path.lstat().st_mode) for path in root.rglob("*")}
    assert kinds <= {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}
    assert containers(engine) == b"" and image.volumes == ("/deep",)
    volumes = subprocess.run([engine.path, "volume", "ls", "--quiet"], capture_output=True, check=True).stdout
    assert not re.findall(rb"\b[0-9a-f]{64}\b", volumes), "others beside this test have volumes with names"
    assert engine.image(image.id) == image


def test_the_steps_of_a_build_have_no_network_unless_it_is_said(engine: Engine, tmp_path: Path) -> None:
    seen = "RUN test \"$(grep -c : /proc/net/dev)\" = 1 && cat /proc/net/dev"
    build(engine, tmp_path, f"FROM debian:bookworm\n{seen}\n")
    assert "lo:" in (tmp_path / "build.log").read_text()
    assert not engine.has_network(), "this daemon runs without a bridge"


def test_a_build_that_fails_says_why_and_leaves_nothing(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="build the image"):
        build(engine, tmp_path, "FROM debian:bookworm\nRUN echo the reason >&2; exit 3\n")
    assert "the reason" in (tmp_path / "build.log").read_text() and containers(engine) == b""
    with pytest.raises(UsageError, match="no image 'absent:1'"):
        engine.image("absent:1")


def test_an_interrupted_build_leaves_nothing(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "Dockerfile").write_text("FROM debian:bookworm\nRUN echo began; sleep 571\n")
    code = f"""from ringfence.container.engine import Engine
Engine({engine.path!r}).build({str(tmp_path / "context")!r}, {str(tmp_path / "context/Dockerfile")!r}, network='none',
                              log={str(tmp_path / "log")!r})"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, start_new_session=True) as caller:
        try:
            eventually(lambda: (tmp_path / "log").exists() and "began\n" in (tmp_path / "log").read_text())
            caller.send_signal(signal.SIGINT)
            eventually(lambda: caller.poll() is not None)
        finally:
            caller.kill()
    eventually(lambda: not _runs("571") and containers(engine) == b"")


def _runs(word: str) -> bool:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"\0{word}\0".encode() in entry.read_bytes():
                return True
        except OSError:
            continue  # it has ended meanwhile
    return False
