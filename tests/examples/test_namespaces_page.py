"""The example of docs/how-to/run-without-user-namespaces.md that has a control group made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.kernel.cgroup import group as cgroups
from tests.examples import program, shell, written
from tests.testable import not_testable_here

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]


def test_a_share_of_the_processor_in_a_scope(tmp_path: Path) -> None:
    """There is no systemd in charge where tests run: the stand-in notes its options and starts what they are for.

    In place of its scope root has the group that it may use. tests/hosts/test_cgroup_v2_guest.py has one that was
    delegated to an ordinary user.
    """
    if missing := cgroups.probe().missing("cpu_share"):
        not_testable_here(missing[0])
    program(tmp_path, "systemd-run", f'echo $1 $2 $3 $4 > {tmp_path}/options; shift 4; exec "$@"')
    (tmp_path / "work").mkdir()
    (tmp_path / "work/Makefile").write_text("test:\n\t@echo tested\n")
    text = written("docs/how-to/run-without-user-namespaces.md", "systemd-run")
    assert shell(text, tmp_path) == "tested\n"
    assert (tmp_path / "options").read_text() == "--user --scope -p Delegate=yes\n"
    refused = shell(f"{text.strip()} || test $? = 2", tmp_path, {"RINGFENCE_CGROUP": "/no/such/group"})
    assert "cpu_share" in refused and "tested" not in refused
