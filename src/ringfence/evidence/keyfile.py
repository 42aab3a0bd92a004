"""Private keys on disk: created so that nobody else can read or replace them.

Owns: modes, ownership and links of the file and its directory. On Windows the directory's access list decides, and
the POSIX checks are left out.
Does not: know encodings (keys).
"""

from __future__ import annotations

import os
import stat

from ringfence.errors import EvidenceError
from ringfence.evidence.keys import KeyFormat, SigningKey

SEED_FILE = "signing-seed.hex"
_MAX_KEY_BYTES = 16 << 10
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_POSIX = os.name == "posix"


def find_key(seed: str | None, folder: str) -> SigningKey:
    """The key to sign with: the given seed, else the environment's, else one kept in the output directory."""
    if seed is not None:
        return SigningKey.from_seed_hex(seed)
    from_environment = SigningKey.from_environment()
    if from_environment is not None:
        return from_environment
    path = os.path.join(folder, SEED_FILE)
    if not os.path.lexists(path):
        _make_key(path)
    return read_key(path)


def _make_key(path: str) -> None:
    """A new key appears complete, and if several are made at the same time, one is kept."""
    key, beside = SigningKey.generate(), f"{path}.{os.urandom(8).hex()}.part"
    try:
        write_key(beside, key)
        os.link(beside, path)
    except FileExistsError:
        pass  # somebody was faster: theirs is the key
    except OSError:  # a file system without hard links
        write_key(path, key)
    finally:
        if os.path.lexists(beside):
            os.unlink(beside)


def write_key(path: str, key: SigningKey, form: KeyFormat = KeyFormat.HEX) -> None:
    """Create a key file with mode 0600. An existing file is never overwritten."""
    folder = os.path.dirname(path) or "."
    try:
        _require_safe_folder(folder)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            if _POSIX:
                os.fchmod(descriptor, 0o600)  # whatever the umask was
            file.write(key.secret_bytes(form))
            file.flush()
            os.fsync(descriptor)
    except FileExistsError:
        raise EvidenceError(
            f"{path!r} exists; a key is never overwritten", hint="choose another name"
        ) from None
    except OSError as error:
        raise EvidenceError(f"cannot write the key {path!r}: {error.strerror}") from error


def read_key(path: str) -> SigningKey:
    """Read a key file; refused when it is a link, not ours, or readable by others."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            _require_private(os.fstat(descriptor), path)
            data = file.read(_MAX_KEY_BYTES + 1)
    except OSError as error:
        raise EvidenceError(f"cannot read the key {path!r}: {error.strerror}") from error
    if len(data) > _MAX_KEY_BYTES:
        raise EvidenceError(f"{path!r} is too large for a key")
    return SigningKey.from_bytes(data)


def _require_private(status: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise EvidenceError(f"the key {path!r} is not a regular file")
    if not _POSIX:
        return
    if status.st_uid not in (os.geteuid(), 0):
        raise EvidenceError(f"the key {path!r} belongs to another user")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise EvidenceError(f"the key {path!r} is open to others (mode {mode:04o})", hint=f"chmod 600 {path}")


def _require_safe_folder(folder: str) -> None:
    """In a directory that others write to they could put their key in place of ours, unless it is sticky."""
    mode = os.stat(folder).st_mode
    if _POSIX and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise EvidenceError(
            f"the directory {folder!r} is writable by everybody, so a key is not safe in it",
            hint="use a directory of your own",
        )
