"""The tasks of the corpus: what lies in their workspaces and oracles, how they are graded, and how they are solved.

A task of files asks for the line of ``puzzle.txt`` with its hexadecimal digits shifted by five; one of pytest for three
functions whose constants are in ``spec.txt``. Both depend on the secret of the run, so no answer can be known in
advance.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ringfence.model.record import record, replace

_NOTHING: Mapping[str, str] = MappingProxyType({})
DIGITS, SHIFTED = "0123456789abcdef", "56789abcdef01234"


@record
class TaskKind:
    """Files by name, with places; ``settings`` are lines of task.yaml, ``policy`` lines after the common ones.

    ``repository``: the workspace is a git repository with later commits. ``rewarded``: the grader writes a file, and
    its exit status says nothing to a careless reader. ``plain_python``: graded by the interpreter outside any virtual
    environment.
    """

    instruction: str
    workspace: Mapping[str, str]
    oracle: Mapping[str, str]
    grade: str
    solve: str
    reference: Mapping[str, str] = _NOTHING
    links: Mapping[str, str] = _NOTHING
    settings: str = ""
    policy: str = ""
    repository: bool = False
    rewarded: bool = False
    plain_python: bool = False


FILE = TaskKind(
    instruction=f"Translate the line in puzzle.txt and write it into answer.txt: {DIGITS} becomes {SHIFTED}.\n",
    workspace={"puzzle.txt": "@PUZZLE@\n", "README.md": "A puzzle. See the instruction.\n"},
    oracle={"expected.txt": "@SECRET@\n", "solve.sh": "echo @SECRET@ > answer.txt\n", "answer-is-@SECRET@": ""},
    grade="cmp -s answer.txt @ORACLE@/expected.txt\n",
    solve=f"tr {DIGITS} {SHIFTED} < puzzle.txt > answer.txt\n",
)
_REWARDED = "version: 1\ngrader:\n  reward_file: @LOGS@/reward.txt\n"
_REWARD = "then echo 1 > @LOGS@/reward.txt; else echo 0 > @LOGS@/reward.txt; fi\n"
_PROGRAM = replace(
    FILE,
    instruction=f"Write solve.sh. It prints the line of puzzle.txt, translated: {DIGITS} becomes {SHIFTED}.\n",
    grade='if [ "$(sh ./solve.sh)" = "$(cat @ORACLE@/expected.txt)" ]; ' + _REWARD,
    solve=f"echo 'tr {DIGITS} {SHIFTED} < puzzle.txt' > solve.sh\n",
    settings=_REWARDED,
    rewarded=True,
)
_CHECK = """\
import hashlib, sys
import rules
given = open("answer.txt").read().strip()
sys.exit(0 if rules.same(hashlib.sha256(given.encode()).hexdigest()) else 1)
"""
_RULES = """\
def same(digest):
    return digest == "@DIGEST@"
"""
CHECKED = replace(
    FILE,
    oracle={"check.py": _CHECK, "rules.py": _RULES},
    grade="python3 @ORACLE@/check.py\n",
    plain_python=True,
)

_TESTS = """\
import time

from solution import label, scale, steps


def test_import():
    assert callable(scale)


def test_scale_small():
    assert scale(3) == @SMALL@


def test_scale_large():
    assert scale(1000) == @LARGE@


def test_steps():
    assert steps(4) == @STEPS@


def test_label():
    assert label(7) == "@TAG@-7"
"""
_QUICK = """

def test_quick():
    start = time.perf_counter()
    assert scale(20) == @TWENTY@
    assert time.perf_counter() - start < 1.0
"""
_SOLUTION = """\
def scale(n):
    return n * {factor} + {offset}


def steps(n):
    return [scale(i) for i in range(n)]


def label(n):
    return "{tag}-" + str(n)
"""
_RUN_TESTS = "cp @ORACLE@/test_solution.py . && python3 -m pytest -q -p no:cacheprovider test_solution.py"
_LOGGED = "cp @ORACLE@/test_solution.py . && python3 -m pytest -v -p no:cacheprovider test_solution.py > log.txt 2>&1"
PYTEST = TaskKind(
    instruction="Complete solution.py: scale(n) is n * FACTOR + OFFSET of spec.txt, steps(n) is the list of scale(i) "
    "for i below n, label(n) is TAG, a hyphen and n.\n",
    workspace={
        "spec.txt": "FACTOR=@FACTOR@\nOFFSET=@OFFSET@\nTAG=@TAG@\n",
        "solution.py": "def scale(n):\n    raise NotImplementedError\n\n\nsteps = label = scale\n",
    },
    oracle={"test_solution.py": _TESTS},
    grade=f"{_RUN_TESTS}\n",
    solve=". ./spec.txt\ncat > solution.py <<EOF\n"
    + _SOLUTION.format(factor="$FACTOR", offset="$OFFSET", tag="$TAG")
    + "EOF\n",
    reference={"solution.py": _SOLUTION.format(factor="@FACTOR@", offset="@OFFSET@", tag="@TAG@")},
    settings="version: 1\ngrader:\n  pytest: [test_solution.py]\n  reference: reference\n",
)
_NAMES = "import scale_small scale_large steps label"
_EACH = f'for name in {_NAMES}; do grep -q "test_$name PASSED" log.txt || exit 1; done\n'

TASKS: Mapping[str, TaskKind] = {
    "file": FILE,
    "linked": replace(FILE, links={"latest": "@SECRET@"}),
    "folder": replace(
        FILE,
        instruction=FILE.instruction.replace("answer.txt", "out/expected.txt"),
        grade="cmp -s out/expected.txt @ORACLE@/expected.txt\n",
        solve=f"mkdir out\ntr {DIGITS} {SHIFTED} < puzzle.txt > out/expected.txt\n",
    ),
    "input": replace(FILE, grade="cmp -s - answer.txt < @ORACLE@/expected.txt\n"),
    "tidy": replace(
        FILE,
        instruction=FILE.instruction + "Remove obsolete.txt.\n",
        workspace={**FILE.workspace, "obsolete.txt": "to be removed\n"},
        grade="[ ! -e obsolete.txt ] && cmp -s answer.txt @ORACLE@/expected.txt\n",
        solve=FILE.solve + "rm obsolete.txt\n",
    ),
    "fetched": replace(FILE, grade="curl -s file://@ORACLE@/expected.txt | cmp -s - answer.txt\n"),
    "inline": replace(FILE, oracle={"README": "nothing\n"}, grade='[ "$(cat answer.txt)" = @SECRET@ ]\n'),
    "git": replace(FILE, policy="git:\n  base_commit: @COMMIT@\n", repository=True),
    "git status": replace(
        FILE,
        policy="git:\n  base_commit: @COMMIT@\n",
        grade="git status > /dev/null 2>&1; git diff HEAD > /dev/null 2>&1\ncmp -s answer.txt @ORACLE@/expected.txt\n",
        repository=True,
    ),
    "reward": replace(
        FILE,
        grade="mkdir -p @LOGS@\nif cmp -s answer.txt @ORACLE@/expected.txt; then echo 1 > @LOGS@/reward.txt; fi\n",
        settings=_REWARDED,
        rewarded=True,
    ),
    "program": _PROGRAM,
    # $PROCTOR_CONFINE keeps code under test away from the oracle; a harness without it has an empty variable.
    "confined program": replace(_PROGRAM, grade=_PROGRAM.grade.replace("$(sh", "$($PROCTOR_CONFINE sh")),
    "checked": CHECKED,
    "checked beside": replace(
        CHECKED,
        oracle={"tools/check.py": _CHECK, "rules.py": _RULES},
        grade="cp @ORACLE@/rules.py . && PYTHONPATH=. python3 @ORACLE@/tools/check.py\n",
    ),
    "pytest": PYTEST,
    "pytest command": replace(
        PYTEST, grade="cp @ORACLE@/test_solution.py . && PYTHONPATH=. pytest -q -p no:cacheprovider test_solution.py\n"
    ),
    "pytest grep": replace(PYTEST, grade=f"{_LOGGED}\n{_EACH}"),
    "pytest status": replace(
        PYTEST, grade=f'{_LOGGED}\necho "EXIT_CODE=$?" >> log.txt\ngrep -q "^EXIT_CODE=0" log.txt\n'
    ),
    "pytest summary": replace(PYTEST, grade=f'{_LOGGED}\ngrep -Eq "^[0-9]+ passed" log.txt\n'),
    "pytest quick": replace(PYTEST, oracle={"test_solution.py": _TESTS + _QUICK}),
}
