"""What a tree of processes holds, read from /proc: memory of its own, sandboxes, descriptors, threads.

Only this process and what descends from it: what others do on the machine is not counted, but in ``processor_s``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.harness import NotHere


@dataclass(frozen=True, kw_only=True)
class Memory:
    private_bytes: int = 0
    """Written pages that no other process shares. A fork's untouched pages are nobody's by this measure."""
    anonymous_bytes: int = 0
    """Pages that belong to no file, shared ones by their share: added up over a tree, what it really holds."""
    unreadable: int = 0
    """Living processes whose memory this caller may not look at."""


def descendants(of: int | None = None) -> set[int]:
    """Every process below this one, itself left out."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(_parent(name), []).append(int(name))
    found: set[int] = set()
    waiting = [of or os.getpid()]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            found.add(child)
            waiting.append(child)
    return found


def tree() -> set[int]:
    """This process too: a child that has not yet replaced its program shares this one's pages."""
    return {os.getpid(), *descendants()}


def _parent(pid: str) -> int:
    return int((_words(pid) or ("", "0"))[1])


def _words(pid: int | str) -> list[str]:
    """State, parent and so on. The name before them, in brackets, may hold anything."""
    text = _read(f"/proc/{pid}/stat")
    return text[text.rindex(")") + 1 :].split() if text else []


# Of all groups together: v2, and v1 under the names that distributions give it.
_USED = (
    ("/sys/fs/cgroup/cpu.stat", r"usage_usec (\d+)", 1e-6),
    ("/sys/fs/cgroup/cpuacct/cpuacct.usage", r"(\d+)", 1e-9),
    ("/sys/fs/cgroup/cpu,cpuacct/cpuacct.usage", r"(\d+)", 1e-9),
)


def processor_s() -> float:
    """What all processes of the machine have used, and the kernel's threads for them: measure on an idle machine.

    Not added up over a tree: what is running when its pid namespace ends is collected for nobody, so no parent's
    counter has it. Of a pooled snippet that is the half.
    """
    for path, used, unit in _USED:
        if found := re.match(used, _read(path)):
            return int(found[1]) * unit
    raise NotHere("no control group tells the processor time of the machine")


def all_asleep(pids: set[int]) -> bool:
    return all(_words(pid)[:1] in (["S"], ["Z"], []) for pid in pids)


def sandboxes(pids: set[int]) -> int:
    """How many of them are the first process of a pid namespace of their own."""
    return sum(_is_first(_read(f"/proc/{pid}/status")) for pid in pids)


def _is_first(status: str) -> bool:
    numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == "1"


def memory(pids: set[int]) -> Memory:
    by_pid = {pid: _read(f"/proc/{pid}/smaps_rollup") for pid in pids}
    told = by_pid.values()
    return Memory(
        private_bytes=sum(_kib(text, "Private_Dirty:", "Private_Hugetlb:") for text in told) * 1024,
        anonymous_bytes=sum(_kib(text, "Pss_Anon:") for text in told) * 1024,
        unreadable=sum(not text and _lives(pid) for pid, text in by_pid.items()),
    )


def _lives(pid: int) -> bool:
    return _words(pid)[:1] not in ([], ["Z"])


def _kib(text: str, *names: str) -> int:
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(names))


def threads(pids: set[int]) -> int:
    return sum(_kib(_read(f"/proc/{pid}/status"), "Threads:") for pid in pids)


def resident_bytes(pid: int) -> int:
    return _kib(_read(f"/proc/{pid}/status"), "VmRSS:") * 1024


def descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def available_bytes() -> int:
    """What the whole machine could still give; tells of the kernel's own share, and of everybody else's."""
    return _kib(_read("/proc/meminfo"), "MemAvailable:") * 1024


def wait_until(holds: Callable[[], bool], *, patience_s: float, every_s: float = 0.05) -> bool:
    end = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(every_s)
    return True


def _read(path: str) -> str:
    """Empty when the process is gone or not ours to look at."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
