"""One table of limits, languages, levels and doors: each row run twice, both times the status that the limit has.

A row is one line. «own» has what this caller can have, for root a control group; «none» has no control group, as an
ordinary user has none on most hosts. The whole table is run as root and as an ordinary user, and printed.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

import ringfence
from ringfence import (
    Job,
    Outcome,
    Pool,
    ResourceLimits,
    SandboxConfig,
    SandboxManager,
    SandboxPolicy,
    run,
    run_pytests_v2,
)
from ringfence.engine.run import traits_of
from ringfence.model.limits import IsolationLevel

pytestmark = [pytest.mark.privileges, pytest.mark.long, pytest.mark.unmeasured]

EXPECTED = {
    "memory": ("MEM_LIMIT", ("memory",)), "cpu": ("CPU_LIMIT", ("cpu_time",)), "wall": ("TIMEOUT", ("wall_time",)),
    "fork": ("PIDS_LIMIT", ("pids",)), "thread": ("PIDS_LIMIT", ("pids",)), "nofile": ("NOFILE_LIMIT", ("nofile",)),
    "file": ("FILE_SIZE_LIMIT", ("file_size",)), "disk": ("DISK_LIMIT", ("disk",)),
    "output": ("OUTPUT_LIMIT", ("output",)), "none": ("OK", ()), "words": ("FAILED", ()), "caught": ("OK", ("memory",)),
}  # fmt: skip
LIMITS: dict[str, dict[str, object]] = {
    "memory": {"mem_bytes": 256 << 20}, "cpu": {"cpu_time_s": 1}, "wall": {"wall_time_s": 1}, "fork": {"pids_max": 16},
    "thread": {"pids_max": 16}, "nofile": {"nofile": 128}, "file": {"file_bytes": 1 << 20},
    "disk": {"disk_bytes": 4 << 20}, "output": {"output_bytes": 4096, "on_output_limit": "kill"},
    "caught": {"mem_bytes": 256 << 20},
}  # fmt: skip
PYTHON = {
    "memory": "x = []\nwhile True: x.append(b'x' * 100_000)",
    "cpu": "while True: pass",
    "wall": "import time\ntime.sleep(60)",
    "fork": "import os, time\nfor _ in range(40):\n  if os.fork() == 0: time.sleep(20); os._exit(0)\ntime.sleep(20)",
    "thread": "import _thread, time\nfor _ in range(60): _thread.start_new_thread(time.sleep, (20,))\ntime.sleep(20)",
    "nofile": "import os\nwhile True: os.open('/dev/null', 0)",
    "file": "with open('f', 'wb') as file:\n  for _ in range(4): file.write(bytes(1 << 20))",
    "disk": "import os, time\nwith open('f', 'wb') as file:\n  while True:\n    file.write(bytes(1 << 20))\n"
            "    file.flush(); os.fsync(file.fileno()); time.sleep(0.02)",
    "output": "import sys, time\nsys.stdout.write('x' * 60000); sys.stdout.flush(); time.sleep(20)",
    "none": "print(1)",
    "words": "import sys\nsys.stderr.write('MemoryError'); sys.exit(3)",
    "caught": "try: x = bytearray(1 << 30)\nexcept MemoryError: pass",
}  # fmt: skip
SHELL = {
    "cpu": "while :; do :; done", "wall": "sleep 60", "fork": "for i in $(seq 40); do sleep 20 & done; wait",
    "file": "head -c 3000000 /dev/zero > f; exit $?", "output": "head -c 60000 /dev/zero; sleep 20", "none": "true",
    "words": "echo 'fork: Resource temporarily unavailable' >&2; exit 7",
}  # fmt: skip
NODE = {
    "memory": "const kept = []; for (;;) kept.push(new Array(100000).fill(1.5))", "cpu": "for (;;);",
    "wall": "setTimeout(() => 0, 60000)", "none": "console.log(1)",
}  # fmt: skip
C = {
    "memory": "for (;;) { char *p = malloc(1000); if (!p) return 3; memset(p, 1, 1000); }",
    "nofile": "for (;;) if (open(\"/dev/null\", 0) < 0) return 3;",
    "fork": "for (int i = 0; i < 40; i++) { int p = fork(); if (p < 0) return 3; if (!p) { sleep(20); return 0; } }"
            " sleep(20);",
    "file": "int f = open(\"f\", O_WRONLY | O_CREAT, 0600); for (;;) if (write(f, kept, sizeof kept) < 0) return 3;",
    "cpu": "for (volatile int i = 0;; i++);",
}  # fmt: skip
_C = "".join(f"#include <{name}.h>\n" for name in ("fcntl", "stdlib", "string", "unistd"))
_C += "char kept[4096];\nint main() { %s }\n"
JAVA = "public class Hog { public static void main(String[] a) { var kept = new java.util.ArrayList<long[]>(); %s } }\n"

# limit, language, level, door, control group
_TABLE = """
memory python process run own
memory python process run none
memory python strict  run own
memory python strict  run none
memory python process box own
memory python process box none
memory python strict  box none
memory python process pool own
memory python process pool none
memory python strict  pool own
memory python strict  pool none
memory python process pytest own
memory python process pytest none
memory python strict  pytest none
memory python process manager own
memory python process manager none
memory c      process run own
memory c      process run none
memory c      strict  run none
memory node   process run none
memory node   strict  run own
memory node   strict  run none
memory java   process run none
memory java   strict  run own
caught python process run none
caught python strict  run none
cpu    python process run own
cpu    python strict  pool own
cpu    sh     strict  run own
cpu    node   process run own
cpu    c      strict  box own
wall   python process pytest own
wall   sh     process run own
wall   sh     strict  box own
wall   node   strict  run none
fork   python process run own
fork   python process run none
fork   python strict  run none
fork   python strict  pytest own
fork   sh     process run own
fork   sh     process box none
fork   c      strict  run own
thread python process run own
thread python process run none
thread python strict  run none
thread python process pytest own
nofile python process run own
nofile python strict  run none
nofile python strict  box own
nofile python process pool own
nofile python process pytest own
nofile python process manager own
nofile c      process run own
nofile c      strict  run own
file   python process run own
file   python strict  run own
file   sh     process run own
file   sh     strict  box own
file   c      process run own
file   c      strict  run own
disk   python process run own
disk   python strict  run own
output python process run own
output sh     strict  run own
none   node   strict  pool none
none   java   process run none
words  sh     process run own
words  sh     strict  run none
words  python process run none
words  python strict  pool own
memory python container run own
cpu    python container run own
cpu    sh     container run own
wall   sh     container run own
fork   python container run own
thread python container run own
nofile python container run own
file   python container run own
file   sh     container run own
disk   python container run own
output python container run own
output sh     container run own
none   sh     container run own
words  python container run own
words  sh     container run own
"""
ROWS = tuple(line.split() for line in _TABLE.strip().splitlines())
UNTOLD = {("nofile", "python"), ("file", "python"), ("file", "sh"), ("disk", "python")}
"""What the level container holds and can't tell from outside: the job failed (docs/reference/container-level.md)."""
FAILED = ("FAILED", ())
SELDOM_TOLD = {("fork", "python"), ("thread", "python")}
"""The same where the job ends so soon that its group is gone before it is read."""


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> dict[str, bytes]:
    """Compiled programs by name."""
    folder = tmp_path_factory.mktemp("table")
    for limit, body in C.items():
        (folder / f"{limit}.c").write_text(_C % body)
        subprocess.run(["gcc", "-O0", "-o", f"c_{limit}", f"{limit}.c"], check=True, cwd=folder)
    for limit, body in (("memory", "while (true) kept.add(new long[100000]);"), ("none", "")):
        (folder / "Hog.java").write_text(JAVA % body)
        subprocess.run(["javac", "-d", limit, "Hog.java"], check=True, cwd=folder)
    java = {f"java_{limit}": (folder / limit / "Hog.class").read_bytes() for limit in ("memory", "none")}
    return java | {f"c_{limit}": (folder / f"c_{limit}").read_bytes() for limit in C}


def _argv(limit: str, language: str, level: IsolationLevel) -> tuple[str, ...]:
    found = {
        "python": lambda: (traits_of(level).python or sys.executable, "-I", "-S", "-c", PYTHON[limit]),
        "sh": lambda: ("sh", "-c", SHELL[limit]),
        "node": lambda: (str(Path(shutil.which("node") or "node").resolve()), "-e", NODE[limit]),
        "c": lambda: ("sh", "-c", "cp program p && chmod 700 p && exec ./p"),
        "java": lambda: (str(Path(shutil.which("java") or "java").resolve()), "-Xmx2g", "-Xms32m", "-cp", ".", "Hog"),
    }
    return found[language]()


def _files(limit: str, language: str, built: dict[str, bytes]) -> dict[str, bytes]:
    name = {"c": "program", "java": "Hog.class"}.get(language)
    return {name: built[f"{language}_{limit}"]} if name else {}


def _policy(limit: str, level: str, language: str) -> SandboxPolicy:
    roomy = {"mem_bytes": 512 << 20, "wall_time_s": 240, "cpu_time_s": 200, "isolation": level}
    java = {"mem_bytes": 512 << 20} if language == "java" else {}
    return SandboxPolicy.from_dict(roomy | LIMITS.get(limit, {}) | java)


def _by_run(limit: str, language: str, policy: SandboxPolicy, files: dict[str, bytes], _: Path) -> Outcome:
    return run(Job(argv=_argv(limit, language, policy.isolation), files=files), policy)


def _by_box(limit: str, language: str, policy: SandboxPolicy, files: dict[str, bytes], _: Path) -> Outcome:
    with ringfence.open(policy) as box:
        for name, content in files.items():
            box.put(name, content)
        return box.run(_argv(limit, language, policy.isolation))


def _by_pool(limit: str, language: str, policy: SandboxPolicy, files: dict[str, bytes], _: Path) -> Outcome:
    with Pool(policy, warm=1) as pool:
        if language == "python":
            return pool.run_source(PYTHON[limit])
        return pool.run(_argv(limit, language, policy.isolation))


def _by_pytest(limit: str, language: str, policy: SandboxPolicy, files: dict[str, bytes], folder: Path) -> object:
    body = PYTHON[limit].replace("\n", "\n    ")
    (folder / "test_it.py").write_text(f"def test_it():\n    {body}\n")
    with contextlib.chdir(folder):
        return run_pytests_v2(["test_it.py"], policy)


def _by_manager(limit: str, language: str, policy: SandboxPolicy, files: dict[str, bytes], folder: Path) -> Outcome:
    numbers = ResourceLimits(max_memory_mb=policy.mem_bytes >> 20, max_execution_time=100, max_file_operations=10**6)
    with SandboxManager(sandbox_root=folder / "root") as manager, \
            manager.sandbox(SandboxConfig(resource_limits=numbers)) as context:  # fmt: skip
        done = manager.execute_in_sandbox(context, lambda code: exec(code, {}), {"code": PYTHON[limit]})
    assert done.outcome is not None
    return done.outcome


DOORS: dict[str, Callable[..., object]] = {
    "run": _by_run, "box": _by_box, "pool": _by_pool, "pytest": _by_pytest, "manager": _by_manager,
}  # fmt: skip


def _told(result: object) -> tuple[str, int, tuple[str, ...]]:
    if isinstance(result, Outcome):
        return str(result.status), result.rc, result.limits_hit
    assert isinstance(result, dict)
    return result["status"], result["rc"], tuple(result["limits_hit"])


def _param(row: list[str]) -> object:
    """To start an engine takes root."""
    return pytest.param(row, id="-".join(row), marks=[pytest.mark.root] if row[2] == "container" else [])


@pytest.mark.parametrize("row", [_param(row) for row in ROWS])
def test_a_row_of_the_table(row: list[str], built, tmp_path: Path, capsys, request) -> None:
    limit, language, level, door, group = row
    if level == "container":
        request.getfixturevalue("python_image")
    policy, files = _policy(limit, level, language), _files(limit, language, built)
    with mock.patch("ringfence.backends.groups.make", return_value=None) if group == "none" else mock.MagicMock():
        first, second = (_told(DOORS[door](limit, language, policy, files, _new(tmp_path, n))) for n in "12")
    with capsys.disabled():
        print(f"\n{' '.join(f'{word:7}' for word in row)} {first[0]:16}{first[1]:4}  {','.join(first[2])}", end="")
    if level == "container" and (limit, language) in SELDOM_TOLD:
        assert {(told[0], told[2]) for told in (first, second)} <= {EXPECTED[limit], FAILED}
        return
    expected = FAILED if level == "container" and (limit, language) in UNTOLD else EXPECTED[limit]
    assert first == second and (first[0], first[2]) == expected


def _new(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def test_the_table_says_enough() -> None:
    assert len(ROWS) >= 60 and len({tuple(row) for row in ROWS}) == len(ROWS)
    columns = [set(column) for column in zip(*ROWS, strict=True)]
    assert columns[0] == set(EXPECTED) and columns[3] == set(DOORS)
    assert (columns[1], columns[2]) == ({"python", "sh", "node", "java", "c"},
                                        {"process", "strict", "container"})  # fmt: skip
