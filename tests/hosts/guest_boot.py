"""The first program of the guest: loads the disk's driver, makes the disk the root, goes on as guest_init.py.

Runs as pid 1 on the initramfs, under the few modules of the interpreter that the archive carries. The tests need
a real root on a real disk: nothing can pivot away from an initramfs, and io.max counts on a block device.
"""

from __future__ import annotations

import ctypes
import os
import sys

libc = ctypes.CDLL(None, use_errno=True)
DISK, FRESH, MOVE = "/dev/vda", "/fresh", 0x2000


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def load_modules() -> None:
    """In the order of their names, which is the order in which they need each other."""
    number = {"x86_64": 175, "aarch64": 105}[os.uname().machine]
    for name in sorted(os.listdir("/modules")):
        with open(f"/modules/{name}", "rb") as file:
            content = file.read()
        check(libc.syscall(number, content, ctypes.c_ulong(len(content)), b""), f"init_module {name}")


def copy_tree(source: str, target: str) -> None:
    """The project of this run, from the archive onto the disk that holds the interpreter."""
    for here, _, names in os.walk(source):
        there = target + here[len(source) :]
        os.makedirs(there, exist_ok=True)
        for name in names:
            with open(f"{here}/{name}", "rb") as old, open(f"{there}/{name}", "wb") as new:
                new.write(old.read())


def main() -> None:
    os.makedirs("/dev", exist_ok=True)
    check(libc.mount(b"devtmpfs", b"/dev", b"devtmpfs", 0, b""), "mount /dev")
    load_modules()
    os.mkdir("/disk")
    check(libc.mount(DISK.encode(), b"/disk", b"ext4", 0, b""), f"mount {DISK}")
    copy_tree(FRESH, "/disk")
    os.chdir("/disk")
    check(libc.mount(b".", b"/", None, MOVE, None), "move the root")
    os.chroot(".")
    os.execv(sys.executable, [sys.executable, "-I", "/guest/init.py"])


try:
    main()
except BaseException as error:
    os.write(1, f"\nthe guest did not boot: {error!r}\n".encode())
    libc.reboot(0x4321FEDC)
