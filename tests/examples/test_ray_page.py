"""The examples of docs/how-to/ray.md: a cluster as the page starts it, and a pool over its two nodes."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.examples import filled, program, written
from tests.examples.own_network import own_network
from tests.framework_environment import SILENT
from tests.ray_environment import ray_environment

if sys.platform != "linux":
    pytest.skip("pools need Linux", allow_module_level=True)

pytestmark = [pytest.mark.system, pytest.mark.unmeasured, pytest.mark.long]
HEAD = "127.0.0.1"
"""The head and the further node are on one machine, which has no other address."""
_OWN_USER = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
ENDS_WITH_ITS_SHELL = ["unshare", *_OWN_USER, "--pid", "--fork", "--mount-proc", "--kill-child"]
"""The nodes run on in the background, and «ray stop» would end those of others too."""


def test_a_pool_runs_over_the_cluster_that_the_page_starts(tmp_path: Path) -> None:
    program(tmp_path, "ray", f'exec {sys.executable} -P -m ray.scripts.scripts "$@"')
    start = filled(written("docs/how-to/ray.md", "export RAY_AUTH"), HEAD=HEAD)
    (tmp_path / "example.py").write_text(filled(written("docs/how-to/ray.md", "pool.map(len"), HEAD=HEAD))
    (tmp_path / "awaited.py").write_text(written("docs/how-to/ray.md", "asyncio.to_thread"))
    (tmp_path / "ray").mkdir()
    script = f"{start}\npython ../example.py > printed.txt\npython ../awaited.py > awaited.txt\nray status"
    command = shlex.join([*ENDS_WITH_ITS_SHELL, "bash", "-euo", "pipefail", "-c", script])
    # Paths of sockets are short, so its files are not below the test's directory.
    variables = {**SILENT, "PYTHONPATH": ray_environment()["PYTHONPATH"], "RAY_TMPDIR": "/mnt", "no_proxy": "*"}
    with own_network(tmp_path, {"/mnt": tmp_path / "ray"}) as network:
        status = network.shell(f"exec {command}", variables)
    source, product, lengths, code, *snippets = (tmp_path / "work" / "printed.txt").read_text().splitlines()
    assert "/16.0 sandbox_slots" in status
    assert (source, product, lengths, code) == (r"b'2\n'", "42", "[1, 2, 3]", "3")
    assert sorted(snippets) == sorted(rf"{n} b'{n * n}\n'" for n in range(100))
    assert (tmp_path / "work" / "awaited.txt").read_text() == "b'2\\n' 20 b'7\\n'\n"
    assert (tmp_path / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600
