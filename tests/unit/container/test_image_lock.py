"""Workers of a session import an image of tests once, however many want it at the same time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from tests import container_image

pytestmark = [pytest.mark.system]

# An engine that takes its time to import, and has an image only afterwards.
DOCKER = """#!/bin/sh
if [ "$1" = image ]; then test -e "$ENGINE/has"; exit; fi
echo "$1" >> "$ENGINE/log"
cat > /dev/null
sleep 0.3
touch "$ENGINE/has"
"""
WORKERS = 4


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("ENGINE", str(tmp_path))
    monkeypatch.setattr(container_image, "lay", lambda root: (root / "etc").mkdir(parents=True))
    return tmp_path


def test_an_image_that_many_workers_want_is_imported_once(engine: Path) -> None:
    together, names = threading.Barrier(WORKERS), []

    def wants() -> None:
        together.wait()
        names.append(container_image.imported(engine))

    workers = [threading.Thread(target=wants) for _ in range(WORKERS)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert names == [container_image.NAME] * WORKERS
    assert (engine / "log").read_text() == "import\n"


def test_what_a_worker_left_that_was_ended_in_the_middle_is_in_nobodys_way(engine: Path) -> None:
    (engine / "python-root" / "etc").mkdir(parents=True)
    assert container_image.imported(engine) == container_image.NAME
    assert not (engine / "python-root").exists()
