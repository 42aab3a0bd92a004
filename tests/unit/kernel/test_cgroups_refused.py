"""Who has no control group of his own is refused, and told why and what to do."""

from __future__ import annotations

import os

import group_jobs as jobs
import pytest

from ringfence.errors import UnavailableError
from ringfence.kernel.cgroup import group as cgroups
from ringfence.kernel.cgroup.group import CgroupLimits

pytestmark = [pytest.mark.system, pytest.mark.privileges]


def test_someone_who_has_no_group_is_told_what_to_do() -> None:
    """As root by becoming nobody; as an ordinary user by asking for the root group, which is never his."""
    with jobs.pipe() as (read, write):

        def ask() -> None:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            try:
                cgroups.create(CgroupLimits(mem_bytes=1 << 20), host=cgroups.probe(parent="/"))
            except UnavailableError as error:
                os.write(write, f"{error}\n{error.missing}\n{error.hint}".encode())

        assert jobs.end(jobs.start(None, ask)) == 0
        said, missing, hint = os.read(read, 4096).decode().split("\n")
    assert "memory" in said and "not this user's" in said
    assert missing == "('memory',)"
    assert "sudo mkdir -p /sys/fs/cgroup" in hint or "systemd-run" in hint
