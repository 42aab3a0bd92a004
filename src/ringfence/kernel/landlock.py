"""Landlock: a process gives up files, ports, sockets and signals outside what it names, for good.

A ruleset is plain data; ``missing`` says what a kernel can't keep of it, ``restrict`` applies it to the
calling thread. It deliberately makes no mount and knows no policy: it is the second wall, behind the mounts,
and has to be put up after them (a restricted process can't mount).
"""

from __future__ import annotations

import errno
import os
import stat
from struct import pack

from ringfence.errors import PolicyError, SetupError, UnavailableError
from ringfence.kernel import syscalls

# right: (bit, first ABI that knows it); all of them up to ABI 10 (Linux 7.2)
FILE_RIGHTS = {
    "execute": (1 << 0, 1),
    "write_file": (1 << 1, 1),
    "read_file": (1 << 2, 1),
    "read_dir": (1 << 3, 1),
    "remove_dir": (1 << 4, 1),
    "remove_file": (1 << 5, 1),
    "make_char": (1 << 6, 1),
    "make_dir": (1 << 7, 1),
    "make_reg": (1 << 8, 1),
    "make_sock": (1 << 9, 1),
    "make_fifo": (1 << 10, 1),
    "make_block": (1 << 11, 1),
    "make_sym": (1 << 12, 1),
    "refer": (1 << 13, 2),
    "truncate": (1 << 14, 3),
    "ioctl_dev": (1 << 15, 5),
    "resolve_unix": (1 << 16, 9),
}
PORT_RIGHTS = {
    "bind_tcp": (1 << 0, 4),
    "connect_tcp": (1 << 1, 4),
    "bind_udp": (1 << 2, 10),
    "connect_send_udp": (1 << 3, 10),
}
SCOPES = {"abstract_unix_socket": (1 << 0, 6), "signal": (1 << 1, 6)}

READ = ("read_file", "read_dir", "execute")
# Everything but devices: nobody in a sandbox makes one.
WRITE = (
    *READ,
    *("write_file", "truncate", "remove_dir", "remove_file", "make_dir", "make_reg", "make_sym", "make_fifo"),
    *("make_sock", "refer"),
)
# For /dev: its devices are there to be used, ioctl included.
DEVICES = (*READ, "write_file", "truncate", "ioctl_dev")
# The rights that a rule on a single file may name; the kernel refuses the others there.
_ON_A_FILE = ("execute", "write_file", "read_file", "truncate", "ioctl_dev", "resolve_unix")

_CREATE_VERSION = 1
_RULE_PATH, _RULE_PORT = 1, 2
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS = 2, 4


class Ruleset:
    """What is handled (closed unless a rule opens it), and the rules. Names are the keys of the tables above.

    files, ports: the rights that are handled; scopes: what ends at the sandbox's border.
    beneath: (path or O_PATH descriptor, rights), for a file or a directory and all under it. open_ports: (port,
    rights); port 0 with a bind right is "any port the kernel picks". What a rule opens and nothing handles is
    open anyway.
    """

    __slots__ = ("beneath", "files", "open_ports", "ports", "scopes")

    def __init__(
        self,
        *,
        files: tuple[str, ...] = (),
        beneath: tuple[tuple[str | int, tuple[str, ...]], ...] = (),
        ports: tuple[str, ...] = (),
        open_ports: tuple[tuple[int, tuple[str, ...]], ...] = (),
        scopes: tuple[str, ...] = (),
    ) -> None:
        self.files, self.ports, self.scopes = files, ports, scopes
        self.beneath, self.open_ports = beneath, open_ports
        _check("files", FILE_RIGHTS, files)
        _check("ports", PORT_RIGHTS, ports)
        _check("scopes", SCOPES, scopes)
        for place, rights in beneath:
            _check("beneath", FILE_RIGHTS, rights)
            if isinstance(place, str) and "\0" in place:
                raise PolicyError("beneath", f"{place!r} is not a path")
        for port, rights in open_ports:
            _check("open_ports", PORT_RIGHTS, rights)
            if not 0 <= port <= 65535:
                raise PolicyError("open_ports", f"{port} is not a port")


def _check(field: str, known: dict[str, tuple[int, int]], names: tuple[str, ...]) -> None:
    for name in names:
        if name not in known:
            raise PolicyError(field, f"{name!r} is not one of {', '.join(known)}")


def abi() -> int:
    """The version of Landlock that this kernel has, 0 for none (not built, or switched off at boot)."""
    try:
        return syscalls.call("landlock_create_ruleset", None, 0, _CREATE_VERSION)
    except OSError:
        return 0


def known(table: dict[str, tuple[int, int]], version: int) -> tuple[str, ...]:
    """The names in one of the tables that this ABI has."""
    return tuple(name for name, (_, since) in table.items() if since <= version)


def missing(ruleset: Ruleset, version: int) -> tuple[str, ...]:
    """The handled rights and scopes that a kernel with this ABI can't keep."""
    wanted = ((FILE_RIGHTS, ruleset.files), (PORT_RIGHTS, ruleset.ports), (SCOPES, ruleset.scopes))
    return tuple(name for table, names in wanted for name in names if table[name][1] > version)


def _bits(table: dict[str, tuple[int, int]], names: tuple[str, ...], version: int) -> int:
    bits = 0
    for name in names:
        bit, since = table[name]
        bits |= bit if since <= version else 0
    return bits


def restrict(ruleset: Ruleset, *, allow_partial: bool = False) -> tuple[str, ...]:
    """Put the calling thread, and what it starts, under the ruleset; return what the kernel can't keep of it.

    Sets no_new_privs. Raises UnavailableError when there is something it can't keep, unless allow_partial.
    """
    version = abi()
    lacking = missing(ruleset, version)
    if version == 0 or (lacking and not allow_partial):
        raise UnavailableError(
            f"Landlock ABI {version} can't enforce: {', '.join(lacking)}",
            missing=tuple(f"Landlock {name}" for name in lacking),
            hint="use a newer kernel with landlock in its lsm= list, or allow partial enforcement",
        )
    put_up(*compiled(ruleset, version))
    return lacking


Row = tuple[str | int, int, int]
"""(path or descriptor, the bits that are open below a directory, the bits that are open for a file)."""


def compiled(ruleset: Ruleset, version: int) -> tuple[bytes, list[Row], list[bytes]]:
    """The ruleset for a kernel with this ABI as plain data: what is handled, what is open beneath paths, and ports."""
    # An older kernel takes the longer structure as long as the fields that it does not know are zero.
    handled = pack(
        "=QQQ",
        _bits(FILE_RIGHTS, ruleset.files, version),
        _bits(PORT_RIGHTS, ruleset.ports, version),
        _bits(SCOPES, ruleset.scopes, version),
    )
    return handled, [_row(*rule, ruleset.files, version) for rule in ruleset.beneath], _open_ports(ruleset, version)


def _row(place: str | int, rights: tuple[str, ...], handled: tuple[str, ...], version: int) -> Row:
    allowed = _common(rights, handled)
    return place, _bits(FILE_RIGHTS, allowed, version), _bits(FILE_RIGHTS, _common(allowed, _ON_A_FILE), version)


def _open_ports(ruleset: Ruleset, version: int) -> list[bytes]:
    common = ((port, _common(rights, ruleset.ports)) for port, rights in ruleset.open_ports)
    allowed = ((port, _bits(PORT_RIGHTS, rights, version)) for port, rights in common)
    return [pack("=QQ", bits, port) for port, bits in allowed if bits]


def put_up(handled: bytes, beneath: list[Row], open_ports: list[bytes]) -> None:
    """Put the calling thread, and what it starts, under a compiled ruleset. Sets no_new_privs."""
    descriptor = _create(handled)
    try:
        for row in beneath:
            _add_path(descriptor, *row)
        for port in open_ports:
            syscalls.call("landlock_add_rule", descriptor, _RULE_PORT, port, 0)
        syscalls.set_no_new_privs()
        syscalls.call("landlock_restrict_self", descriptor, 0)
    except OSError as error:
        raise SetupError("landlock", str(error)) from error
    finally:
        os.close(descriptor)


def _create(attributes: bytes) -> int:
    try:
        return syscalls.call("landlock_create_ruleset", attributes, len(attributes), 0)
    except OSError as error:
        raise SetupError("landlock", str(error)) from error


def _add_path(ruleset_fd: int, place: str | int, on_folder: int, on_file: int) -> None:
    descriptor = place if isinstance(place, int) else _open(place)
    try:
        allowed = on_folder if stat.S_ISDIR(os.fstat(descriptor).st_mode) else on_file
        if allowed:
            syscalls.call("landlock_add_rule", ruleset_fd, _RULE_PATH, pack("=Qi", allowed, descriptor), 0)
    finally:
        if descriptor is not place:
            os.close(descriptor)


def _common(rights: tuple[str, ...], among: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(right for right in rights if right in among)


def _open(path: str) -> int:
    """A path without any link in it: one in a workspace could have been made by an earlier guest."""
    how = pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS)
    try:
        return syscalls.call("openat2", -100, os.fsencode(path), how, len(how))
    except OSError as error:
        hint = "give the real path, without links" if error.errno == errno.ELOOP else ""
        raise SetupError("landlock", f"{path}: {error}", hint=hint) from error
