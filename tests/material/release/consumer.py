"""What a user's program looks like to a type checker: every line is checked from outside, nothing is run."""

from __future__ import annotations

import ringfence
from ringfence import IsolationLevel, Outcome, Pool, SandboxPolicy, Status

policy = SandboxPolicy(isolation=IsolationLevel.STRICT, wall_time_s=5.0, network="none")
outcome: Outcome = ringfence.run(["echo", "hello"], policy)
status: Status = outcome.status
code: int | None = outcome.rc
with ringfence.open(policy) as box:
    inside: Outcome = box.run(["true"])
with Pool(policy) as pool:
    many: list[Outcome] = [pool.run(["true"]) for _ in range(3)]
