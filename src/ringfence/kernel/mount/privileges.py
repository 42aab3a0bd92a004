"""Gives up, for good, everything a process could be more than an ordinary one: capabilities, keyrings."""

from __future__ import annotations

from struct import pack

from ringfence.kernel import syscalls

CAPBSET_DROP, SET_SECUREBITS, CAP_AMBIENT, CAP_AMBIENT_CLEAR_ALL = 24, 28, 47, 4
# SECBIT_NOROOT, NO_SETUID_FIXUP, KEEP_CAPS, NO_CAP_AMBIENT_RAISE: each off or on, and each locked.
SECUREBITS = 0x1 | 0x2 | 0x4 | 0x8 | 0x20 | 0x40 | 0x80
CAPABILITY_VERSION_3 = 0x20080522
_KEYCTL_JOIN_SESSION_KEYRING = 1
_EINVAL, _ENOSYS = 22, 38


def drop_all() -> None:
    """No capability in any set, none to be had again by any exec, and the switches locked."""
    lock()
    clear()


def lock() -> None:
    """No exec and no change of id adds a capability any more; needs CAP_SETPCAP."""
    for number in range(64):
        try:
            syscalls.prctl(CAPBSET_DROP, number)
        except OSError as error:
            if error.errno != _EINVAL:
                raise
            break  # past the last capability that this kernel knows
    syscalls.prctl(SET_SECUREBITS, SECUREBITS)


def clear() -> None:
    """Give up the capabilities that this process has."""
    syscalls.prctl(CAP_AMBIENT, CAP_AMBIENT_CLEAR_ALL)
    syscalls.call("capset", pack("Ii", CAPABILITY_VERSION_3, 0), bytes(24))


def new_session_keyring() -> None:
    """A session keyring of its own: the caller's may hold keys and is a way to talk to other sandboxes."""
    try:
        syscalls.call("keyctl", _KEYCTL_JOIN_SESSION_KEYRING, None)
    except OSError as error:
        if error.errno != _ENOSYS:  # a kernel without keyrings has none to share
            raise
