"""A file of the sandbox as text, for a model. An error says what is wrong, where, and what to do about it with the
tools that a model has."""

from __future__ import annotations

import errno

from ringfence.errors import FileError, SandboxError
from ringfence.integrations.living import words
from ringfence.integrations.living.place import Place
from ringfence.model.job import Job
from ringfence.model.limits import format_size
from ringfence.roles.file_transfer import NO_REGULAR_FILE

_LISTED = "list_files shows what is there; a relative path is one in the working directory"
_BY_PARTS = "read a part of it with run_command: head -c, tail -c, sed -n, grep"
_CONVERTED = "look at it with run_command: file and xxd, or iconv if it is text in another encoding"
# errno: (what is wrong, what to do)
_WORDS = {
    errno.ENOENT: ("there is no such file", _LISTED),
    errno.ENOTDIR: ("a part of its path is a file, not a directory", _LISTED),
    errno.EISDIR: ("it is a directory", "list_files lists it; name a file in it"),
    NO_REGULAR_FILE: ("it is a FIFO, a socket or a device, not a file", "have run_command write it to a file"),
    errno.EACCES: ("its permissions, or those of a directory on the way, do not allow it",
                   "run_command with ls -l shows them; chmod changes your own"),
    errno.ELOOP: ("its links point in a circle", "run_command with ls -l shows where they point"),
    errno.ENAMETOOLONG: ("its path is too long", _LISTED),
}  # fmt: skip


def text_of_file(place: Place, path: str, most_bytes: int) -> str:
    """The text of a file; FileError if it can't be had."""
    try:
        data = place.get(path, most_bytes)
    except FileError as error:
        raise _told(place, path, most_bytes, error) from error
    return words.text_of(_checked(path, data))


def _told(place: Place, path: str, most_bytes: int, error: FileError) -> FileError:
    if error.errno == errno.EFBIG:
        return _unread(path, f"it is larger than {format_size(most_bytes)}", _BY_PARTS, error.errno)
    is_directory = error.errno == NO_REGULAR_FILE and _is_directory(place, path)
    number = errno.EISDIR if is_directory else error.errno
    return _unread(path, *_WORDS[number], number) if number in _WORDS else error


def _is_directory(place: Place, path: str) -> bool:
    try:
        return place.run(Job(argv=("test", "-d", path))).ok
    except SandboxError:  # a root without this program
        return False


def _checked(path: str, data: bytes) -> bytes:
    """FileError if it is not text: a model would take replacement characters for the file's content."""
    try:
        wrong = data.find(b"\0")
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = error.start
    if wrong < 0:
        return data
    raise _unread(path, f"it is not UTF-8 text: byte {data[wrong]:#04x} at {wrong}", _CONVERTED, errno.EILSEQ)


def _unread(path: str, wrong: str, hint: str, number: int) -> FileError:
    return FileError(f"{path!r} could not be read: {wrong}", errno=number, hint=hint)
