"""What lies in deploy/: a unit that systemd accepts, and that takes nothing away that sandboxes need."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.documented_flags import sandbox_pods
from tests.testable import not_testable_here

from ringfence.service.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "systemd" / "ringfence.service"
# Each closes user namespaces, or a fresh /proc in one, or the groups of sandboxes.
CLOSING = ("ProtectProc", "ProcSubset", "ProtectKernelTunables", "ProtectControlGroups", "ProtectKernelLogs",
           "SystemCallFilter",
           "ProtectHostname", "PrivateUsers", "MemoryDenyWriteExecute")  # fmt: skip


def _of_the_unit() -> dict[str, str]:
    return dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line and line[0] != "#")


def test_the_unit_takes_nothing_away_that_a_sandbox_needs() -> None:
    given = _of_the_unit()
    assert given["RestrictNamespaces"] == "no" and "pids" in given["Delegate"]
    assert not set(CLOSING) & set(given)
    assert given["NoNewPrivileges"] == "yes" and given["CapabilityBoundingSet"] == ""


def test_the_unit_has_a_place_for_all_that_is_kept() -> None:
    """Its user has no home, where it would be otherwise."""
    given = _of_the_unit()
    place = f"/var/lib/{given['StateDirectory']}"
    assert given["Environment"] == f"XDG_STATE_HOME={place}" and f" --state {place}/" in given["ExecStart"]


def test_supervisors_wait_for_longer_than_the_service_drains() -> None:
    given = _of_the_unit()
    (pod,) = sandbox_pods(ROOT / "deploy" / "kubernetes" / "ringfence.yaml")
    for seconds in (int(given["TimeoutStopSec"]), pod["terminationGracePeriodSeconds"]):
        assert seconds >= Settings().drain_s + 20, "runs that are ended must be written down, and boxes parked"


@pytest.mark.long
@pytest.mark.parametrize(("change", "accepted"), [(("", ""), True), (("KillMode=mixed", "KillMode=nonsense"), False)])
def test_systemd_accepts_the_unit(tmp_path: Path, change: tuple[str, str], accepted: bool) -> None:
    if shutil.which("systemd-analyze") is None:
        not_testable_here("there is no systemd-analyze")
    # The program that is named must be there, or systemd complains of that.
    text = UNIT.read_text().replace("/opt/ringfence/bin/ringfence", "/bin/true").replace(*change)
    path = tmp_path / UNIT.name
    path.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode == 0 and UNIT.name not in done.stderr) is accepted, done.stderr
