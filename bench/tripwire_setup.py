"""How much does hiding N paths cost: to set up, for each attempt, and for what stays visible beside them?

Three ways side by side, as an ordinary user: a veil over the folder, a spot on each path, and (set-up only)
one FUSE mount on each path. Prints the median of five runs. Run: python bench/tripwire_setup.py
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "unit" / "linux"))

from tripwire_cage import ARENA, Cage, as_caller, enter_namespaces, furnish, mount

from ringfence.linux import tripwire_mount
from ringfence.linux.recorder import Recorder
from ringfence.linux.tripwire_layout import FILE_MODE as FILE
from ringfence.linux.tripwire_layout import Entry, Layout, Spot, Veil, lay_out

FOLDER = ARENA + b"/f"
VISIBLE = 20
RUNS = 5


def prepare(count: int) -> None:
    os.mkdir(FOLDER)
    for name in [b"h%d" % number for number in range(count)] + [b"v%d" % number for number in range(VISIBLE)]:
        os.close(os.open(FOLDER + b"/" + name, os.O_CREAT | os.O_WRONLY))


def stat_us(name: bytes, times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        os.path.exists(FOLDER + name)
    return (time.perf_counter() - started) / times * 1e6


def measure(layout: Layout, count: int) -> tuple[float, float, float]:
    """Set-up in ms, then one attempt and one visible stat in µs."""

    def scenario() -> tuple[float, float, float]:
        cage = Cage(layout, lambda: prepare(count), lambda: (stat_us(b"/h0", 2000), stat_us(b"/v0", 20000)))
        cage.recorder = Recorder(keep_full=0)
        ran = cage.serve()
        return ran.setup_s * 1e3, *ran.result

    return as_caller("user", scenario)  # type: ignore[no-any-return]


def one_mount_each(count: int) -> float:
    """Set-up in ms without any answering, so less than it would really be."""

    def scenario() -> float:
        enter_namespaces()
        furnish(lambda: prepare(count))
        started = time.perf_counter()
        for number in range(count):
            device = tripwire_mount.open_device()
            options = tripwire_mount.mount_options(device, root_mode=FILE)
            mount(b"none", FOLDER + b"/h%d" % number, b"fuse", tripwire_mount.MOUNT_FLAGS, options)
        return (time.perf_counter() - started) * 1e3

    return as_caller("user", scenario)  # type: ignore[no-any-return]


def veil(count: int) -> Layout:
    visible = tuple(Entry(name=b"v%d" % number, mode=FILE) for number in range(VISIBLE))
    hidden = frozenset(b"h%d" % number for number in range(count))
    return lay_out(veils=[Veil(folder=FOLDER, hidden=hidden, visible=visible)])


def spots(count: int) -> Layout:
    return lay_out(spots=[Spot(path=FOLDER + b"/h%d" % number, is_folder=False) for number in range(count)])


def main() -> None:
    shapes: dict[str, Callable[[int], Layout]] = {"veil": veil, "spots": spots}
    print(f"{'way':12} {'hidden':>7} {'set-up ms':>10} {'attempt µs':>11} {'visible stat µs':>16}")
    for count in (0, 100, 10_000):
        found: dict[str, list[tuple[float, ...]]] = {}
        for _ in range(RUNS):
            for name, shape in shapes.items():
                found.setdefault(name, []).append(measure(shape(count), count))
        for name, rows in found.items():
            setup_ms, attempt_us, visible_us = map(statistics.median, zip(*rows, strict=True))
            attempt = f"{attempt_us:.1f}" if count else "-"
            print(f"{name:12} {count:7} {setup_ms:10.2f} {attempt:>11} {visible_us:16.2f}")
    for count in (100, 500):
        took_ms = statistics.median(one_mount_each(count) for _ in range(RUNS))
        print(f"{'mount each':12} {count:7} {took_ms:10.2f} {'-':>11} {'-':>16}")


if __name__ == "__main__":
    main()
