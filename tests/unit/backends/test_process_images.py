"""Processes of a living box are written and restored where the host can do that, and else it is said why not."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from tests import criu_program

import ringfence
from ringfence import IsolationLevel, SandboxPolicy, UnavailableError
from ringfence.backends import process_images
from ringfence.checkpoint.transaction import Transaction
from ringfence.engine.box import Box
from ringfence.errors import CheckpointError
from ringfence.kernel.criu import criu
from ringfence.kernel.criu import processes as members
from ringfence.model.limits import SyscallProfile

pytestmark = [pytest.mark.system, pytest.mark.privileges]

PYTHON = os.path.realpath(sys.executable)
LOOP = "import time, sys\nfor number in range(10**9): print(number, sys.stdin and '', flush=True) or time.sleep(0.02)"
PATIENCE_S = 60.0


def strict(**more: object) -> SandboxPolicy:
    return SandboxPolicy(isolation=IsolationLevel.STRICT, **more)  # type: ignore[arg-type]


def test_others_than_root_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with ringfence.open(strict()) as box:
        monkeypatch.setattr(process_images.os, "geteuid", lambda: 1234)
        with pytest.raises(UnavailableError, match="needs root") as error:
            box.confinement()
        monkeypatch.undo()
    assert error.value.missing == ("criu",) and "leave processes out" in error.value.hint


def test_the_tight_profile_has_no_socket_for_criu_and_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with ringfence.open(strict(syscall_profile=SyscallProfile.TIGHT)) as box:
        monkeypatch.setattr(process_images.os, "geteuid", lambda: 0)
        with pytest.raises(UnavailableError, match="tight"):
            box.confinement()
        monkeypatch.undo()


def test_the_process_level_has_nowhere_to_restore_them() -> None:
    policy = SandboxPolicy(isolation=IsolationLevel.PROCESS)
    with ringfence.open(policy) as box, pytest.raises(UnavailableError, match="isolation process") as error:
        box.confinement()
    assert "strict" in error.value.hint


def test_our_own_processes_get_numbers_that_no_restored_one_needs() -> None:
    start = process_images._free_room({1001, 1600, 5})
    assert not {1001, 1600} & set(range(start, start + process_images._PID_ROOM + 1))
    with pytest.raises(CheckpointError, match="no free range"):
        process_images._free_room(set(range(1000, int(Path("/proc/sys/kernel/pid_max").read_text()), 256)))


def _first_line(output: object, stream: str = "stdout") -> bytes:
    give_up = time.monotonic() + PATIENCE_S
    while b"\n" not in getattr(output, stream) and time.monotonic() < give_up:
        time.sleep(0.01)
    return bytes(getattr(output, stream)).split(b"\n")[0]


@pytest.mark.usefixtures("unmeasured_spawner")
def test_a_process_moves_from_one_box_to_the_next(tmp_path: Path) -> None:
    """As the manager has it done; for an ordinary user the first step is refused."""
    base, images = tmp_path / "base", tmp_path / "images"
    base.mkdir()
    images.mkdir(0o700)
    if os.geteuid():
        with ringfence.open(strict()) as box, pytest.raises(UnavailableError, match="needs root"):
            box.confinement()
        return
    criu_program.install()
    with Transaction.create(str(tmp_path / "kept"), [str(base)], kind="overlay") as transaction:
        with Box(strict(), transaction=transaction) as box:
            handle = box.start([PYTHON, "-c", LOOP])
            assert _first_line(handle).startswith(b"0")
            confinement = box.confinement()
            stopped = members.Stopped(confinement.first)
            try:
                with pytest.raises(CheckpointError, match="can't be checkpointed"):
                    process_images._dump_tree(confinement, "/usr/bin/false", *_only(stopped), str(images / "nothing"))
                trees = process_images.dump(confinement, stopped, str(images))
                stopped.check()
            finally:
                stopped.resume()
        shutil.rmtree(images / "nothing")
        for path in (images, *images.rglob("*")):
            path.chmod(0o755)
        with Box(strict(), transaction=transaction) as box:
            (tree,) = process_images.restore(box.confinement(), trees, str(images))
            box.adopt(tree)
            assert int(_first_line(tree)) > 0 and not tree.done
            assert box.restored == (tree,) and tree.stderr == b""
        assert tree.done
        with Box(strict(), transaction=transaction) as box, pytest.raises(CheckpointError):
            process_images.restore(box.confinement(), trees, str(tmp_path))  # where no images are


def _only(stopped: members.Stopped) -> tuple[members.Member, list[members.Member]]:
    (root,) = members.roots(stopped.members)
    return root, members.below(root, stopped.members)


def test_criu_is_called_with_the_pipes_that_take_the_place_of_the_old_ones() -> None:
    argv = criu.restore_command("criu", 9, [(4, 77)])
    assert "fd[4]:pipe:[77]" in argv and "/proc/self/fd/9" in argv
    # What it is not to do: read somebody's configuration, or touch groups.
    assert {"--no-default-config", "--manage-cgroups=ignore"} <= set(argv) & set(criu.dump_command("criu", 9, 3))
