"""The end of a sandbox writes nothing back: each layer on the disk is mounted volatile, and can be mounted again."""

from __future__ import annotations

from pathlib import Path

import pytest

import ringfence
from ringfence import Pool, SandboxPolicy, run
from ringfence.checkpoint.transaction import Transaction

pytestmark = [pytest.mark.system, pytest.mark.privileges]

VOLATILE = {"volatile", "fsync=volatile"}
"""As older and newer kernels show it."""
MOUNTS = "print(open('/proc/self/mounts').read())"


def _writable_layers(mounts: bytes) -> list[list[str]]:
    options = [line.split()[3].split(",") for line in mounts.decode().splitlines() if line.startswith("overlay ")]
    return [each for each in options if any(option.startswith("upperdir=") for option in each)]


def test_layers_of_a_job_are_volatile(tmp_path: Path) -> None:
    policy, look = SandboxPolicy(isolation="strict"), ["cat", "/proc/self/mounts"]
    with Pool(policy, warm=1) as pool, ringfence.open(policy, str(tmp_path)) as box:
        seen = [run(look, policy).stdout, pool.run_source(MOUNTS).stdout, box.run(look).stdout]
    layers = [layer for mounts in seen for layer in _writable_layers(mounts)]
    assert len(layers) >= 2  # that of a pool's sandbox may be in memory
    assert all(VOLATILE & set(options) for options in layers), layers


def test_layers_of_a_job_whose_disk_is_slowed_are_not() -> None:
    policy = SandboxPolicy(isolation="strict", io_bytes_per_s=1 << 20, allow_partial=True)
    layers = _writable_layers(run(["cat", "/proc/self/mounts"], policy).stdout)
    assert layers and not any(VOLATILE & set(options) for options in layers)


def test_a_layer_is_mounted_again(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    policy = SandboxPolicy(isolation="strict")
    with Transaction.create(tmp_path / "kept", [str(tmp_path / "base")], kind="overlay") as transaction:
        for number in (1, 2, 3):
            count = ["sh", "-ec", f"cd {tmp_path}/base; echo >> file; wc -l < file"]
            counted = run(count, policy, transaction=transaction)
            assert counted.stdout.split() == [str(number).encode()], counted.stderr
