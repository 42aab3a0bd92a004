"""Running processes as a part of checkpoints: their images on disk, made at the same moment as the layer's checkpoint.

Images come out of a sandbox: only CRIU reads them, inside a sandbox, and only if they are byte for byte what was
written. They lie in ``processes`` beside the checkpoints; images that no checkpoint refers to are removed.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ringfence.checkpoint import store
from ringfence.checkpoint.transaction import Transaction
from ringfence.errors import CheckpointError, SandboxError
from ringfence.manager.sandbox import Sandbox

FOLDER, KEY = "processes", "processes"
_CHUNK_BYTES = 1 << 20


@contextmanager
def taken(sandbox: Sandbox) -> Iterator[dict[str, Any]]:
    """Write the sandbox's processes to images; they stand still until the end of the ``with``, and then go on.

    UnavailableError, or CheckpointError for a process that can't be written; then nothing was changed.
    """
    from ringfence.backends import process_images
    from ringfence.kernel.criu import criu
    from ringfence.kernel.criu import processes as members

    held = sandbox.box().confinement()
    criu.find()
    top = os.path.join(sandbox.context.folder, FOLDER)
    name = secrets.token_hex(6)
    folder = os.path.join(top, name)
    stopped = None
    try:
        os.makedirs(top, mode=0o700, exist_ok=True)
        os.mkdir(folder, 0o700)
        stopped = members.Stopped(held.first)
        trees = process_images.dump(held, stopped, folder)
        members.write_back(stopped.members)
        stopped.check()
        yield {"folder": name, "trees": trees, "digests": _sealed(folder), "commands": list(sandbox.programs())}
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise CheckpointError(f"running processes could not be written: {error}") from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        if stopped is not None:
            stopped.resume()


def _sealed(folder: str) -> dict[str, str]:
    """Make them root's alone from now on; return digests by name.

    By descriptors, and through no link: the images were made inside, perhaps no longer by CRIU.
    """
    digests = {}
    for here, folders, names, within in os.fwalk(folder):
        for name in folders:
            os.close(_taken_over(name, within, os.O_DIRECTORY, 0o755))  # the directory above is closed
        for name in names:
            descriptor = _taken_over(name, within, os.O_NONBLOCK, 0o444)
            digests[os.path.relpath(os.path.join(here, name), folder)] = _digest(descriptor)
    os.chmod(folder, 0o755)
    return digests


def _taken_over(name: str, within: int, flags: int, mode: int) -> int:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=within)
    os.fchown(descriptor, 0, 0)
    os.fchmod(descriptor, mode)
    return descriptor


def _digest_of(path: str) -> str:
    return _digest(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))


def _digest(descriptor: int) -> str:
    """Return the digest of a file, and close the descriptor."""
    found = hashlib.sha256()
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("an image that is not a file")
        while piece := file.read(_CHUNK_BYTES):
            found.update(piece)
    return found.hexdigest()


def of(made: store.Checkpoint) -> Mapping[str, Any] | None:
    """What is known of the processes of a checkpoint; None: they are not part of it."""
    found: Mapping[str, Any] | None = made.state_data.get(KEY)
    return found


def check(sandbox: Sandbox, kept: Mapping[str, Any]) -> None:
    """Check that they can be restored, as far as possible before anything is changed."""
    from ringfence.kernel.criu import criu

    sandbox.box().confinement()
    criu.find()
    folder = _folder(sandbox, kept)
    try:
        names = [os.path.relpath(os.path.join(here, name), folder) for here, _, files in os.walk(folder)
                 for name in files]  # fmt: skip
        same = {name: _digest_of(os.path.join(folder, name)) for name in names} == kept["digests"]
    except OSError as error:
        raise CheckpointError(f"the images of running processes can't be read: {error}") from error
    if not same or not os.path.isdir(folder):
        raise CheckpointError("the images of running processes are not those that were written",
                              hint="roll back with processes=False to have the files alone")  # fmt: skip


def restore(sandbox: Sandbox, kept: Mapping[str, Any]) -> str:
    """Restore them in a new box on the restored layer: all of them, or none, with the reason."""
    from ringfence.backends import process_images

    try:
        box = sandbox.box()
        for tree in process_images.restore(box.confinement(), kept["trees"], _folder(sandbox, kept)):
            box.adopt(tree)
    except SandboxError as error:
        sandbox.close_box()
        return f"files were rolled back, but the running processes were not restored: {error}"
    return ""


def _folder(sandbox: Sandbox, kept: Mapping[str, Any]) -> str:
    return os.path.join(sandbox.context.folder, FOLDER, os.path.basename(str(kept["folder"])))


def sweep(sandbox: Sandbox, transaction: Transaction) -> None:
    """Remove images that no checkpoint has."""
    top = os.path.join(sandbox.context.folder, FOLDER)
    if not os.path.isdir(top):
        return
    used = {str(kept["folder"]) for kept in map(of, transaction.checkpoints()) if kept}
    for name in set(os.listdir(top)) - used:
        shutil.rmtree(os.path.join(top, name), ignore_errors=True)


def used_bytes(sandbox: Sandbox) -> int:
    """What all images take on the disk."""
    top = os.path.join(sandbox.context.folder, FOLDER)
    paths = (os.path.join(here, name) for here, _, names in os.walk(top) for name in names)
    return sum(os.lstat(path).st_blocks * 512 for path in paths)
