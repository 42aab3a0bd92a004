"""What a hostile script tries, one attempt after the other. Runs inside the sandbox of ``demo``.

It stands alone: standard library only, started by its path. For each attempt it writes one line
``name<TAB>what happened`` into the channel that the job was given.
"""

import os
import time

CHANNEL = 3


def tell(name: str, result: str) -> None:
    os.write(CHANNEL, f"{name}\t{result}\n".encode())


def read_environment() -> str:
    found = [name for name in os.environ if "SECRET" in name or "TOKEN" in name]
    return f"REACHED {found[0]}" if found else "nothing there"


def read_descriptors() -> str:
    found = [fd for fd in range(4, 256) if _is_open(fd)]
    return f"REACHED {found}" if found else "none inherited"


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def open_many_files() -> str:
    opened: list[int] = []
    try:
        while len(opened) < 5000:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        return f"stopped at {len(opened)} ({error.strerror})"
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return "REACHED 5000 descriptors"


def gain_privileges() -> str:
    with open("/proc/self/status", encoding="ascii") as status:
        locked = any(line.split() == ["NoNewPrivs:", "1"] for line in status)
    return "set-user-id programs give nothing" if locked else "REACHED set-user-id programs"


def flood_output() -> str:
    for _ in range(64):
        os.write(1, b"x" * 65536)
    return "4 MiB printed, never blocked"


def leave_daemon() -> str:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
    return "double-forked, in its own session"


def allocate() -> str:
    blocks: list[bytearray] = []
    try:
        while len(blocks) < 64:
            blocks.append(bytearray(64 << 20))
    except MemoryError:
        return f"stopped at {len(blocks) * 64} MiB"
    return "REACHED 4 GiB"


def write_result() -> str:
    with open("result.txt", "w", encoding="ascii") as file:
        file.write("fine\n")
    return "in its private folder"


def fork_bomb() -> str:
    for _ in range(200):
        if os.fork() == 0:
            time.sleep(60)
    time.sleep(60)
    return "REACHED 200 processes"


ATTEMPTS = (
    ("write a file", write_result),
    ("read a secret from the environment", read_environment),
    ("use the caller's descriptors", read_descriptors),
    ("gain privileges", gain_privileges),
    ("open 5,000 files", open_many_files),
    ("allocate 4 GiB", allocate),
    ("flood the output", flood_output),
    ("leave a daemon behind", leave_daemon),
    ("fork bomb", fork_bomb),
)


def main() -> None:
    for name, attempt in ATTEMPTS:
        tell(name, "…")
        try:
            tell(name, attempt())
        except OSError as error:
            tell(name, f"refused ({error.strerror})")


if __name__ == "__main__":
    main()
