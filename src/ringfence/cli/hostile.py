"""What a hostile script tries, one attempt after the other. Runs inside the sandbox of ``demo``.

It stands alone: standard library only, started by its path. For each attempt it writes one line ``name<TAB>what
happened`` into the channel that the job was given. ``argv`` says which attempt to begin with, and what targets there
are outside. Where it gets through, it changes nothing.
"""

import os
import sys
import time
from collections import namedtuple

CHANNEL = 3
REACHED, UNDER_WAY = "REACHED", "…"
ON_WINDOWS = os.name == "nt"
HIDDEN = r"C:\Windows\System32\config\SAM" if ON_WINDOWS else "/etc/shadow"
_PROGRAM = r"C:\Windows\System32\cmd.exe" if ON_WINDOWS else "/usr/bin/env"
HELPFUL = "write a file"
# The targets that ``demo`` provides: a file of the caller, a port on loopback where it listens, and its own process.
Bait = namedtuple("Bait", "file port process")


def tell(name: str, result: str) -> None:
    os.write(CHANNEL, f"{name}\t{result}\n".encode())


def write_result(_: Bait) -> str:
    with open("result.txt", "w", encoding="ascii") as file:
        file.write("fine\n")
    return "in its private directory"


def read_environment(_: Bait) -> str:
    found = [name for name in os.environ if "SECRET" in name or "TOKEN" in name]
    return f"{REACHED} {found[0]}" if found else "nothing there"


def read_descriptors(_: Bait) -> str:
    found = [fd for fd in range(4, 256) if _is_open(fd)]
    return f"{REACHED} {found}" if found else "none inherited"


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def read_file(bait: Bait) -> str:
    with open(bait.file, encoding="ascii") as file:
        return f"{REACHED} {len(file.read())} bytes"


def read_passwords(_: Bait) -> str:
    with open(HIDDEN, "rb") as file:
        return f"{REACHED} {len(file.read())} bytes"


def change_the_system(_: Bait) -> str:
    os.close(os.open(_PROGRAM, os.O_WRONLY))
    return f"{REACHED} it could be changed"


def connect(bait: Bait) -> str:
    import socket

    socket.create_connection(("127.0.0.1", int(bait.port)), timeout=5).close()
    return f"{REACHED} port {bait.port}"


def signal_the_caller(bait: Bait) -> str:
    if ON_WINDOWS:
        import ctypes

        may_end = ctypes.WinDLL("kernel32").OpenProcess(1, 0, int(bait.process))  # type: ignore[attr-defined]
        return f"{REACHED} process {bait.process}" if may_end else "refused"
    os.kill(int(bait.process), 0)
    return f"{REACHED} process {bait.process}"


def gain_privileges(_: Bait) -> str:
    if ON_WINDOWS:
        found = privileges()
        return f"{REACHED} {found} privileges" if found > 1 else "its token has only the one to traverse directories"
    with open("/proc/self/status", encoding="ascii") as status:
        locked = any(line.split() == ["NoNewPrivs:", "1"] for line in status)
    return "set-user-id programs give nothing" if locked else f"{REACHED} set-user-id programs"


def privileges() -> int:
    """How many the token of this process has, enabled or not."""
    import ctypes

    kernel, security = ctypes.WinDLL("kernel32"), ctypes.WinDLL("advapi32")  # type: ignore[attr-defined]
    token, size, room = ctypes.c_void_p(), ctypes.c_uint32(), (ctypes.c_uint32 * 1024)()
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    security.OpenProcessToken(ctypes.c_void_p(kernel.GetCurrentProcess()), 8, ctypes.byref(token))
    security.GetTokenInformation(token, 3, room, ctypes.sizeof(room), ctypes.byref(size))
    return int(room[0])


def open_many_files(_: Bait) -> str:
    opened: list[int] = []
    try:
        while len(opened) < 5000:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return f"stopped at {len(opened)} ({error.strerror})"
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return f"{REACHED} 5000 descriptors"


def flood_output(_: Bait) -> str:
    for _number in range(64):
        os.write(1, b"x" * 65536)
    return "4 MiB printed, never blocked"


def sleeper(flags: int = 0) -> "object":
    """On Windows, where nobody can fork."""
    import subprocess

    return subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"], creationflags=flags)


def leave_daemon(_: Bait) -> str:
    if ON_WINDOWS:
        detached, breakaway = 0x8, 0x01000000
        sleeper(detached)
        try:
            sleeper(detached | breakaway)
        except OSError:
            return "it may not leave the job object, and ended with the rest"
        return f"{REACHED} a process outside the job object"
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
    return "double-forked, in a session of its own: ended with the rest"


def fork_bomb(_: Bait) -> str:
    children: list[int] = []
    try:
        while len(children) < 200:
            child = sleeper().pid if ON_WINDOWS else os.fork()  # type: ignore[attr-defined]
            if child == 0:
                time.sleep(60)
                os._exit(0)
            children.append(child)
        time.sleep(1)  # the counter may only look now and then
    except OSError as error:
        return f"stopped at {len(children)} ({error.strerror})"
    finally:
        for child in children:
            os.kill(child, 9)
            if not ON_WINDOWS:
                os.waitpid(child, 0)
    return f"{REACHED} 200 processes"


def allocate(_: Bait) -> str:
    blocks: list[bytes] = []
    try:
        while len(blocks) < 64:
            blocks.append(b"\1" * (64 << 20))
    except MemoryError:
        return f"stopped at {len(blocks) * 64} MiB"
    return f"{REACHED} 4 GiB"


ATTEMPTS = (
    (HELPFUL, write_result),
    ("read a secret from the environment", read_environment),
    ("use the caller's descriptors", read_descriptors),
    ("read a file of yours", read_file),
    (f"read {HIDDEN}", read_passwords),
    ("change a program of the system", change_the_system),
    ("connect to a service of the host", connect),
    ("signal the process that started it", signal_the_caller),
    ("gain privileges", gain_privileges),
    ("open 5,000 files", open_many_files),
    ("flood the output", flood_output),
    ("leave a daemon behind", leave_daemon),
    ("fork bomb", fork_bomb),
    ("allocate 4 GiB", allocate),
)


def main(begin: str, *bait: str) -> None:
    for name, attempt in ATTEMPTS[int(begin) :]:
        tell(name, UNDER_WAY)
        try:
            tell(name, attempt(Bait(*bait)))
        except OSError as error:
            tell(name, f"refused ({error.strerror})")


if __name__ == "__main__":
    main(*sys.argv[1:])
