"""The task that ``proctor init`` writes: small, complete, and with a grader that passes for the solution beside it."""

from __future__ import annotations

import os

from ringfence.errors import UsageError
from ringfence.model.own_files import set_mode

SOLUTION = (
    "awk -F, '{ sum[$1] += $2 } END { for (name in sum) print name \",\" sum[name] }' sales.csv"
    " | LC_ALL=C sort > totals.csv"
)
"""An agent that solves it."""
_SALES = "north,12\nsouth,7\nnorth,30\nwest,5\nsouth,11\neast,40\nwest,8\nnorth,1\n"
_TOTALS = "east,40\nnorth,43\nsouth,18\nwest,13\n"
_INSTRUCTION = """\
The file `sales.csv` has one sale in each line: a region and a whole number, with a comma between them.

Write `totals.csv`: one line for each region, with the region, a comma and the sum of its numbers, sorted by region.
"""
_GRADER = """\
#!/bin/sh
# Runs in the workspace, which holds what the agent left. The agent never saw /oracle. Exit status 0 is a pass.
# It compares and runs nothing of the agent's: what is never started can not deceive.
if cmp totals.csv /oracle/totals.csv; then
    echo "all totals are right"
else
    echo "totals.csv is missing, or has a wrong line"
    exit 1
fi
"""
_POLICY = """\
version: 1
workspace:
  mount_at: /workspace        # where the agent finds the workspace
forbidden:                    # absent for the agent, and asking for it is recorded
  reads: [/oracle, /grader]
  writes: []
network:
  mode: deny                  # or allowlist, with allow: ["api.example.com:443"]
# git:
#   base_commit: 0123456789abcdef0123456789abcdef01234567   # the workspace is a repository, and arrives at this commit
# env:
#   allow: [MODEL_NAME]       # variables of yours that the agent gets
limits:
  wall_time_secs: 1800
  pids: 512
  memory_bytes: 2147483648
"""
_SETTINGS = """\
version: 1
grader:
  reference: solution         # a solution, as files that are laid over the workspace
"""
_README = """\
# A task to start from

| path | what |
|---|---|
| `instruction.md` | what the agent is told |
| `workspace/` | what it works in; each run has a copy of its own |
| `oracle/` | the answer; only the grader sees it, as `/oracle` |
| `grade.sh` | the grader; exit status 0 is a pass |
| `policy.yaml` | what the agent may do, and how much |
| `task.yaml` | what else there is to say about the task |
| `solution/` | a solution |

Try it with an agent that is one line of shell, and look at `../out/report.html` then:

```sh
agent=$(cat <<'END'
SOLUTION
END
)
proctor run --task . --policy policy.yaml --out ../out --agent "$agent"
```
"""
FILES = {
    "README.md": _README.replace("SOLUTION", SOLUTION),
    "instruction.md": _INSTRUCTION,
    "policy.yaml": _POLICY,
    "task.yaml": _SETTINGS,
    "grade.sh": _GRADER,
    "workspace/sales.csv": _SALES,
    "oracle/totals.csv": _TOTALS,
    "solution/totals.csv": _TOTALS,
}


def write_task(folder: str) -> None:
    """Write a task to start from into a new or empty directory; UsageError where something is there already."""
    try:
        os.makedirs(folder, exist_ok=True)
        if os.listdir(folder):
            raise UsageError(f"{folder} is not empty", hint="name a new directory; nothing is overwritten")
        for name, text in FILES.items():
            _write(os.path.join(folder, name), text)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: {error.strerror}", hint="name another directory") from error


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "x", encoding="utf-8", newline="\n") as file:
        file.write(text)
        if path.endswith(".sh"):
            set_mode(file.fileno(), 0o755)
