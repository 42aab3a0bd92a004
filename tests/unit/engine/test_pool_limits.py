"""A limit ends a job in a sandbox that stood by as it ends one that did not."""

from __future__ import annotations

import sys

import pytest
from tests.unit.engine.pooled import policy_of

from ringfence import Pool, Status, run

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

LIMITS: dict[str, tuple[dict[str, object], str]] = {
    "wall_time": ({"wall_time_s": 0.4}, "import time; time.sleep(30)"),
    "cpu_time": ({"cpu_time_s": 1}, "while True: pass"),
    "memory": ({"mem_bytes": 200 << 20}, "x = bytearray(400 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1"),
    "pids": ({"pids_max": 8}, "import os, time\nfor _ in range(20):\n if not os.fork(): break\ntime.sleep(5)"),
    "nofile": ({"nofile": 64}, "import os\nfor _ in range(100): os.open('/dev/null', 0)"),
    "file_size": ({"file_bytes": 1 << 20}, "open('big', 'wb').write(bytes(3 << 20))"),
    "output": ({"output_bytes": 4096, "on_output_limit": "kill"}, "print('x' * 60000, flush=True)\ninput()"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_ends_a_job_of_a_warm_sandbox_with_the_status_of_run(level: str, name: str) -> None:
    fields, source = LIMITS[name]
    policy = policy_of(level, **fields)
    cold = run([sys.executable, "-c", source], policy)
    with Pool(policy, warm=1) as pool:
        warm, command = pool.run_source(source), pool.run([sys.executable, "-c", source])
    assert cold.status not in (Status.OK, Status.FAILED), cold.reason
    assert warm.status is cold.status, (warm.reason, warm.stderr)
    assert command.status is cold.status, command.reason
    assert warm.limits_hit == cold.limits_hit and warm.enforced.keys() == cold.enforced.keys()


def test_what_a_python_job_prints_and_how_it_exits_is_as_with_an_interpreter(pool: Pool) -> None:
    source = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"
    warm, cold = pool.run_source(source), pool.run([sys.executable, "-c", source])
    assert (warm.status, warm.rc, warm.stdout, warm.stderr) == (cold.status, cold.rc, cold.stdout, cold.stderr)
    assert warm.rc == 7
