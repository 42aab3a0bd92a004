"""What a preloaded module has made when it was imported leads from no job to another, and into no job's channel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.engine.pooled import policy_of

from ringfence import Pool, SetupError
from ringfence.python_jobs import job as python_job

pytestmark = [pytest.mark.system, pytest.mark.privileges]
Module = Callable[[str], None]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    """Writes the module ``preloaded``, which pools find."""
    monkeypatch.setattr(python_job, "package_folders", lambda: (str(tmp_path),))
    return lambda text: (tmp_path / "preloaded.py").write_text(text) and None


@pytest.mark.parametrize("text", [
    "import mmap; page = mmap.mmap(-1, 4096)",
    "import mmap; page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ)",
    "import multiprocessing; lock = multiprocessing.Lock()",
    "import multiprocessing; counter = multiprocessing.Value('i', 0)",
], ids=["a page", "one that mprotect can open", "a lock", "a counter"])  # fmt: skip
def test_memory_that_jobs_would_share_is_refused(level: str, text: str, module: Module) -> None:
    module(text)
    with pytest.raises(SetupError, match=r"preloaded: importing it maps .* \(r.-s, .*import it in the jobs") as no:
        Pool(policy_of(level), preload=["json", "preloaded"])
    assert no.value.step == "preload"


def test_memory_of_its_own_is_each_jobs(level: str, module: Module) -> None:
    """The control: the module may have mapped memory, and have had some that was shared."""
    module(
        "import gc, mmap\npage = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "class Ring:\n    page = mmap.mmap(-1, 4096)\n    def __init__(self): self.own = self\n"
        "    def __del__(self): self.page.close()\nRing()\n"
    )
    used = "import preloaded; print(preloaded.page[:1]); preloaded.page[:1] = b'A'"
    with Pool(policy_of(level), warm=1, preload=["preloaded"]) as pool:
        assert [pool.run_source(used).stdout for _ in range(3)] == [b"b'\\x00'\n"] * 3


def test_modules_that_map_nothing_themselves_are_loaded(level: str) -> None:
    names = ["multiprocessing.shared_memory", "sqlite3", "ssl", "asyncio", "concurrent.futures.process", "locale"]
    with Pool(policy_of(level), warm=1, preload=names) as pool:
        assert pool.run_source("import sys; print('ssl' in sys.modules)").stdout == b"True\n"


def test_a_file_of_a_module_is_closed_and_its_number_no_other_of_the_job(level: str, module: Module) -> None:
    """What the module had buffered went into the job's channel, and the job failed."""
    module(
        "import os\nfiles = [open(os.memfd_create(str(n)), 'w') for n in range(8)]\n"
        "for file in files: file.write('buffered')\n"
    )

    def flush() -> list[object]:
        import preloaded  # type: ignore[import-not-found]

        own, ends = [open("/dev/null") for _ in range(50)], []  # noqa: SIM115
        for file in preloaded.files:
            try:
                ends.append(file.flush())
            except OSError as error:
                ends.append(error.strerror)
        return [len(own), *ends]

    with Pool(policy_of(level), warm=1, preload=["preloaded"]) as pool:
        assert pool.call(flush) == [50] + ["Bad file descriptor"] * 8
