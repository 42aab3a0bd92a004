"""What does a proctored run cost: of real work, of many file operations, of nothing at all, and of many at once?

The work is a C program of many modules with a Makefile and a test: an agent builds, edits, builds again and tests it.
An agent that makes many file operations (make, write, look, rename, read, remove) meets the recorder only where it asks
for what is hidden; its own phase is told beside the whole run. A run that does nothing shows what staging, grading and
signing take.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from bench.contenders import Gathered, run_strict
from bench.harness import Answer, Effort, NotHere, Row, Table, race, timed_ms
from bench.installing import temporary_folder
from ringfence import SandboxPolicy, run
from ringfence.evidence.keys import SigningKey
from ringfence.proctor import Task, proctor

QUESTION = "A proctored run against the plain work, strict without a recorder, and `ringfence run --strict -- true`"
_KEY = SigningKey.generate()
_SOURCE = "#include <stdio.h>\nint main(void) { return 0; }\n"
_MODULE = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int step{n}_{i}(int x) {{ char text[64]; snprintf(text, sizeof text, "%d", x * {i}); return atoi(text) % 97; }}
"""
_SUM = "int module{n}(int x) {{ int all = 0; for (int k = 0; k < 9; k++) all += {calls}; return all; }}\n"
_MAKEFILE = """\
OBJECTS = $(patsubst %.c,%.o,$(sort $(wildcard *.c)))
program: $(OBJECTS)
\tcc -o $@ $(OBJECTS)
%.o: %.c
\tcc -O2 -c -o $@ $<
test: program
\t./program > out.txt
\tgrep -q '^sum' out.txt
"""
_STEPS = 20
_WORK = """
make -s test || exit 1
for round in {rounds}; do
  sed -i "s/k < [0-9]*/k < 1$round/" module$round.c
  make -s test || exit 1
done
"""
_FILES = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int count, char **words) {
  char name[64], other[64], text[256] = "some text";
  struct stat found;
  for (int i = 0; i < atoi(words[1]) / 5; i++) {
    snprintf(name, sizeof name, "file-%d", i % 500);
    snprintf(other, sizeof other, "other-%d", i % 500);
    int file = open(name, O_CREAT | O_WRONLY, 0644);
    if (file < 0 || write(file, text, sizeof text) < 0 || close(file)) return 1;
    if (stat(name, &found) || rename(name, other)) return 2;
    file = open(other, O_RDONLY);
    if (file < 0 || read(file, text, sizeof text) < 0 || close(file) || unlink(other)) return 3;
  }
  return 0;
}
"""


def ask(effort: Effort) -> Answer:
    if not shutil.which("cc") or not shutil.which("make"):
        raise NotHere("there is no C compiler, or no make")
    with temporary_folder("bench-proctor-") as folder:
        place = Path(folder)
        tables = [ask_for(place, effort) for ask_for in (_work, _file_operations, _nothing, _typed, _at_once)]
    return Gathered().answer(*tables)


def _task(place: Path, name: str, grade: str = "true\n") -> Task:
    folder = place / name
    (folder / "workspace").mkdir(parents=True)
    (folder / "workspace" / "main.c").write_text(_SOURCE)
    (folder / "oracle").mkdir()
    (folder / "oracle" / "answer.txt").write_text("42\n")
    (folder / "grade.sh").write_text(grade)
    return Task.from_folder(str(folder))


_numbers = count()


def _proctored(task: Task, agent: str, place: Path) -> Callable[[], object]:
    def once() -> None:
        verdict = proctor(task, agent, place / f"out-{next(_numbers)}", key=_KEY)
        assert verdict.passed and verdict.status == "clean", verdict.grading

    return once


@contextmanager
def _copy(task: Task, place: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=place) as folder:
        shutil.copytree(task.workspace, folder, dirs_exist_ok=True)
        yield folder


def _write_project(folder: Path, modules: int) -> None:
    for n in range(modules):
        steps = "".join(_MODULE.format(n=n, i=i) if i == 0 else _MODULE.format(n=n, i=i).splitlines()[-1] + "\n"
                        for i in range(_STEPS))  # fmt: skip
        calls = " + ".join(f"step{n}_{i}(x + k)" for i in range(_STEPS))
        (folder / f"module{n}.c").write_text(steps + _SUM.format(n=n, calls=calls))
    names = [f"module{n}" for n in range(modules)]
    declared = "".join(f"int {name}(int);\n" for name in names)
    body = " + ".join(f"{name}(1)" for name in names)
    (folder / "main.c").write_text(f'#include <stdio.h>\n{declared}int main(void) {{ printf("sum %d\\n", {body}); }}\n')
    (folder / "Makefile").write_text(_MAKEFILE)


def _work(place: Path, effort: Effort) -> Table:
    task = _task(place, "work")
    modules = effort.pick(60, 30, 2)
    _write_project(Path(task.workspace), modules)
    script = place / "work.sh"
    script.write_text(_WORK.format(rounds=" ".join(map(str, range(min(6, modules))))))

    def plain() -> None:
        with _copy(task, place) as folder:
            subprocess.run(["sh", str(script)], cwd=folder, check=True)

    contenders = {"plain": timed_ms(plain), "proctored": timed_ms(_proctored(task, f"sh {script}", place))}
    return race("edit, build, test", contenders, turns=effort.pick(8, 3))


@contextmanager
def _in_memory(place: Path) -> Iterator[Path]:
    """A directory of memory that layers lie in too; for an ordinary user, who can't mount one, the directory as it is.
    An ext4 without a journal takes no inode again that was freed lately: it looks at each of them, so that the second
    contender pays for all that was removed before it."""
    if os.geteuid() != 0:
        yield place
        return
    folder, usual = place / "memory", os.environ.get("TMPDIR")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "bench", str(folder)], check=True)
    os.environ["TMPDIR"] = str(folder)
    try:
        yield folder
    finally:
        os.environ.pop("TMPDIR")
        os.environ.update({} if usual is None else {"TMPDIR": usual})
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _file_operations(disk: Path, effort: Effort) -> Table:
    """The first is the same sandbox without anything to record; of both the agent's own time, and then all of a run."""
    with _in_memory(disk) as place:
        return _raced_operations(place, effort)


def _raced_operations(place: Path, effort: Effort) -> Table:
    task = _task(place, "files")
    source, program = place / "operations.c", place / "operations"
    source.write_text(_FILES)
    subprocess.run(["cc", "-O1", "-o", str(program), str(source)], check=True)
    command = (str(program), str(effort.pick(100_000, 100_000, 100)))
    limits = {"wall_time_s": 600, "cpu_time_s": 600, "readable_paths": [str(program)]}
    policy = SandboxPolicy.from_dict({"isolation": "strict", **limits})
    whole: list[float] = []

    def strict() -> float:
        with _copy(task, place) as folder:
            done = run(list(command), policy, cwd=folder)
        assert done.ok, done.reason
        return float(done.duration_ms)

    def proctored() -> float:
        start = time.perf_counter()
        verdict = proctor(task, " ".join(command), place / f"out-{next(_numbers)}", key=_KEY)
        whole.append((time.perf_counter() - start) * 1e3)
        assert verdict.passed and verdict.status == "clean", verdict.grading
        return float(verdict.agents[0].duration_ms)

    contenders = {"strict": strict, "proctored: the agent": proctored, "proctored: from start to bundle": whole.pop}
    return race("100,000 file operations", contenders, turns=effort.pick(8, 3))


def _nothing(place: Path, effort: Effort) -> Table:
    task = _task(place, "nothing")
    contenders = {"ringfence run, true": timed_ms(run_strict(["/bin/true"], b"")),
                  "proctored, true": timed_ms(_proctored(task, "true", place))}  # fmt: skip
    return race("nothing, from start to signed bundle", contenders, turns=effort.pick(30, 10))


def _typed(place: Path, effort: Effort) -> Table:
    """The same as somebody types it: two commands, each with the start of its interpreter."""
    _task(place, "typed")
    beside = Path(sys.executable).parent
    if not all((beside / name).exists() for name in ("ringfence", "proctor")):
        raise NotHere("ringfence is not installed beside this Python")

    def sandboxed() -> None:
        _call([str(beside / "ringfence"), "run", "--strict", "--", "true"])

    def proctored() -> None:
        out = str(place / f"out-{next(_numbers)}")
        _call([str(beside / "proctor"), "run", "--task", str(place / "typed"), "--agent", "true", "--out", out])

    contenders = {"ringfence run --strict -- true": timed_ms(sandboxed), "proctor run": timed_ms(proctored)}
    return race("nothing, as two commands", contenders, turns=effort.pick(30, 10))


def _call(words: list[str]) -> None:
    quiet = subprocess.DEVNULL
    subprocess.run(words, stdin=quiet, stdout=quiet, stderr=quiet, check=True)


def _at_once(place: Path, effort: Effort) -> Table:
    """Each has an answer of its own; one that is lost or mixed up ends the question."""
    number = effort.pick(50, 50, 3)
    tasks = [_task(place, f"many-{each}", f'test "$(cat answer)" = {each}\n') for each in range(number)]

    def one(each: int) -> float:
        start = time.perf_counter()
        _proctored(tasks[each], f"sh -c 'echo {each} > answer'", place)()
        return time.perf_counter() - start

    started = time.perf_counter()
    with ThreadPoolExecutor(number) as at_once:
        times = sorted(at_once.map(one, range(number)))
    whole = time.perf_counter() - started
    row = Row(name=f"{number} at once, {os.cpu_count()} cores", median=times[number // 2], low=times[0], high=times[-1],
              turns=number)  # fmt: skip
    share = whole / number
    each = Row(name="share of one", median=share, low=share, high=share, turns=1)
    return Table(title="many at once: time of each", unit="s", rows=(row, each))
