"""Rewards for programs: what they are worth, and that no program can forge what it is worth."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from ringfence.engine.pool import Pool
from ringfence.errors import SandboxError, UsageError
from ringfence.integrations.rewards import Reward, Rewards, code_of
from ringfence.integrations.rewards.asked import free_names, parsed, plain_checks
from ringfence.integrations.rewards.guests import answers, verdicts
from ringfence.model.policy import SandboxPolicy

PLAIN = "assert solve(12345) == 67890\nassert solve(2) == 51"
"""No honest program of those below comes to this, and none can guess it."""
OTHER = "assert abs(solve(12345) - 67890) < 1\ndef test_two():\n    assert solve(2) in (51, 52)\n"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="pools need Linux")


# ---- reading tests


def test_plain_asserts_are_read_without_running_them() -> None:
    checks = plain_checks(parsed("assert f(1, [2], k=-3) == {'a': (4,)}\nassert None == g()"))
    assert checks is not None
    assert [(c.call.name, c.call.args, c.call.kwargs, c.right) for c in checks] == [
        ("f", (1, [2]), (("k", -3),), {"a": (4,)}), ("g", (), (), None)]  # fmt: skip


@pytest.mark.parametrize("tests", [
    "assert f(1)", "assert len(f(1)) == 2", "assert f(x) == 1", "x = 1", "assert f(1) < 2", "assert 1 < f(1) == 2",
    "assert m.f(1) == 2", "assert len([1]) == 1", "",
])  # fmt: skip
def test_what_is_more_than_that_is_left_to_run(tests: str) -> None:
    assert plain_checks(parsed(tests)) is None


def test_functions_of_the_program_are_the_names_that_nobody_defined() -> None:
    tests = "import math as m\nx = 3\ndef check(c):\n    assert c(x) == m.pi\ncheck(solve)\nassert max(other(x), 1)"
    assert free_names(parsed(tests)) == ("other", "solve")


def test_code_is_found_in_what_a_model_wrote() -> None:
    said = "First\n```python\na = 1\n```\nthen\n```\nb = 2\n```\n"
    assert code_of(said) == "b = 2\n" == code_of([{"role": "assistant", "content": said}])
    assert code_of("c = 3") == "c = 3"
    with pytest.raises(SandboxError, match="not a completion"):
        code_of(3)


def test_tests_that_cannot_be_read_are_no_mistake_of_the_program() -> None:
    with pytest.raises(UsageError, match="can't be read"):
        parsed("assert f(")


def _end(program: str, tests: str) -> str:
    """How the one statement of tests ends with what a program answers to a call with 3."""
    (answer,) = answers(program, [("square", (3,), {})])
    return str(verdicts(tests, ["square"], [(("square", (3,), {}), answer)])["ends"][-1][1])


@pytest.mark.parametrize("tests", [
    "assert all(map(lambda n: square(n) == 9, [3]))", "assert list(map(square, [3])) in ([], [9])",
    "assert not list(filter(lambda n: square(n) != 9, [3]))", "assert all(each == 9 for each in map(square, [3]))",
    "for each in map(square, [3]):\n    assert each == 9",
])  # fmt: skip
@pytest.mark.parametrize("kind", ["StopIteration", "StopAsyncIteration"])
def test_a_program_cannot_end_the_loops_of_its_tests(tests: str, kind: str) -> None:
    raises = f"def square(n):\n    raise {kind}"
    assert _end(raises, tests) == f"RuntimeError: the program raised {kind}"
    assert _end("def square(n):\n    raise ValueError('no')", tests) == "ValueError: no"
    assert _end("def square(n):\n    return n * n", tests) == ""
    if kind == "StopIteration":  # in one process with its tests it ends them
        exec(f"{raises}\n{tests}", {})


# ---- grading


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    # Long enough for a busy machine: nothing here asserts a time.
    with Pool(SandboxPolicy(isolation="strict", wall_time_s=60, cpu_time_s=10, mem_bytes="256M"), warm=2) as made:
        yield made


@pytest.fixture(scope="module")
def rewards(pool: Pool) -> Rewards:
    return Rewards(pool=pool)


SQUARE = "def solve(n):\n    return n * n\n"


@on_linux
@pytest.mark.system
@pytest.mark.privileges
def test_a_score_is_the_share_of_tests_that_pass_with_reasons_for_the_rest(rewards: Rewards) -> None:
    tests = "assert solve(2) == 4\nassert solve(3) == 8\nassert solve('x') == 1\nassert other(1) == 1"
    reward = rewards.score(SQUARE, tests)
    assert (reward.passed, reward.total, reward.score) == (1, 4, 0.25)
    assert reward.reasons[0] == "assert solve(3) == 8: the result was 9"
    assert "TypeError" in reward.reasons[1] and "NameError" in reward.reasons[2]


@on_linux
@pytest.mark.system
def test_tests_of_any_form_run_apart_from_the_program(rewards: Rewards) -> None:
    tests = """\
import math
cases = [(n, n * n) for n in range(4)]
def check(candidate):
    for n, right in cases:
        assert candidate(n) == right
check(solve)
def test_root():
    assert math.sqrt(solve(solve(2))) == 4
def test_raises():
    try:
        solve("x")
    except TypeError:
        return
    assert False
"""
    assert rewards.score(SQUARE, tests) == Reward(score=1.0, passed=3, total=3)
    wrong = rewards.score("def solve(n):\n    return n + n\n", tests)
    assert wrong.passed == 0 and wrong.reasons[0].startswith("check(solve): AssertionError")


@on_linux
@pytest.mark.system
def test_a_trainers_function_gives_a_number_for_each_completion(rewards: Rewards) -> None:
    good, half = f"```python\n{SQUARE}```", "def solve(n): return 4"
    tests = ["assert solve(2) == 4\nassert solve(3) == 9"] * 2
    assert rewards.reward_function()(completions=[good, half], tests=tests, other=[1, 2]) == [1.0, 0.5]
    whole = rewards.reward_function("checks", whole=True)
    assert whole(completions=[[{"role": "assistant", "content": good}], half], checks=tests) == [1.0, 0.0]
    with pytest.raises(UsageError, match="no column"):
        whole(completions=[good])


@on_linux
@pytest.mark.system
@pytest.mark.parametrize(
    ("tests", "count"),
    [
        ("assert f(1) == 1\nassert f(2) == 4", 1),
        ("def test_one(): assert f(1) == 1\ndef test_two(): assert f(2) == 4", 3),
        ("def test_all():\n    assert f(1) == 1\n    assert f(2) == 4\n    assert f(3) == 9", 7),
        ("assert f(1) == 1\ndef test_two(): assert f(2) == 4", 3),
    ],
    ids=["plain", "one call each", "three in a row", "mixed"],
)
def test_how_many_sandboxes_a_program_takes(
    pool: Pool, rewards: Rewards, monkeypatch: pytest.MonkeyPatch, tests: str, count: int
) -> None:
    jobs: list[object] = []
    real = pool.try_map
    monkeypatch.setattr(pool, "try_map", lambda work, items, **rest: real(work, jobs.extend(items) or items, **rest))
    assert rewards.score("def f(n): return n * n", tests).all_passed
    assert len(jobs) == count


@on_linux
@pytest.mark.system
def test_a_loop_may_make_many_calls(rewards: Rewards) -> None:
    tests = "def test_all():\n    for x in range(60):\n        assert square(x) == x * x\n"
    assert rewards.score("def square(x): return x * x", tests).score == 1.0
    assert rewards.score("def square(x): return x * x if x < 58 else 0", tests).score == 0.0


@on_linux
@pytest.mark.system
def test_a_program_that_never_comes_back_is_worth_nothing_and_the_others_are_graded(rewards: Rewards) -> None:
    programs = (SQUARE, "while True: pass", "def solve(n) return", SQUARE)
    ends = rewards.score_many([(program, "assert solve(3) == 9") for program in programs])
    assert [each.score for each in ends] == [1.0, 0.0, 0.0, 1.0]
    assert ends[1].status in ("CPU_LIMIT", "TIMEOUT") and "SyntaxError" in ends[2].reasons[0]


# ---- attacks: each wins against a grader that runs the tests behind the program, and nothing here

ALWAYS_EQUAL = """\
class Equal:
    def __eq__(self, other): return True
    def __sub__(self, other): return Equal()
    def __abs__(self): return Equal()
    def __lt__(self, other): return True
    def __hash__(self): return 0
def solve(n): return Equal()
"""
FRAMES = """\
import gc, sys
def numbers():
    frame = sys._getframe()
    while frame:
        yield from frame.f_code.co_consts
        for value in frame.f_locals.values():
            yield value
        frame = frame.f_back
    for each in gc.get_objects():
        if type(each) in (list, tuple):
            yield from each
        if type(each) is dict:
            yield from each.values()
def solve(n):
    found = {each for each in numbers() if type(each) is int}
    return max((each for each in found if 20_000 < each < 100_000), default=0) if n > 2 else 51
"""
MEMORY = """\
import re
def solve(n):
    if n == 2: return 51
    seen = set()
    for line in open('/proc/self/maps'):
        where, mode = line.split()[:2]
        if not mode.startswith('rw'): continue
        start, end = (int(part, 16) for part in where.split('-'))
        with open('/proc/self/mem', 'rb', 0) as memory:
            memory.seek(start)
            try: data = memory.read(min(end - start, 1 << 24))
            except OSError: continue
        seen |= {int(each) for each in re.findall(rb'(?:==|-) (\\d{5})', data)}
    return next(iter(seen), 0)
"""
ATTACKS = {
    "exit": "import sys\nsys.exit(0)",
    "exit in a call": "import sys\ndef solve(n): sys.exit(0)",
    "hard exit": "import os\nos._exit(0)",
    "hard exit in a call": "import os\ndef solve(n): os._exit(0)",
    "at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef solve(n): return 0",
    "hook": "import os, sys\nsys.excepthook = lambda *_: os._exit(0)\ndef solve(n): return 0",
    "always equal": ALWAYS_EQUAL,
    "frames": FRAMES,
    "memory": MEMORY,
    "protocol": "import os\nprint('PASSED 2 of 2', flush=True)\nos._exit(0)",
    "trace": "import os, sys\nsys.settrace(lambda *_: os._exit(0))\ndef solve(n): return 0",
}


def _naive(pool: Pool, program: str, tests: str) -> bool:
    """The careless grader: the program, then the tests, and an exit code or a line that says how it went."""
    tail = "exec(source)\nif 'test_two' in globals(): test_two()\n"
    outcome = pool.run_source(f"source = '''\n{tests}'''\n{program}\n{tail}")
    return outcome.ok or b"PASSED 2 of 2" in outcome.stdout


@on_linux
@pytest.mark.system
@pytest.mark.parametrize("tests", [PLAIN, OTHER], ids=["plain", "other"])
@pytest.mark.parametrize("name", ATTACKS)
def test_a_program_cannot_forge_its_score(rewards: Rewards, pool: Pool, name: str, tests: str) -> None:
    reward = rewards.score(ATTACKS[name], tests)
    most = 0.5 if name in ("frames", "memory") else 0.0  # they are told the second answer, and must find the first
    assert reward.score <= most, reward
    assert _naive(pool, ATTACKS[name], tests), "the control"


@on_linux
@pytest.mark.system
@pytest.mark.parametrize("value", [
    [], [("value", True)] * 2, [("value", 67890), ("value", 52, 1)], [("raised", 1, 2)] * 2,
    {"ends": [["x", ""]], "missing": []}, "OK",
])  # fmt: skip
def test_a_reply_that_a_program_writes_itself_is_read_as_answers(rewards: Rewards, value: object) -> None:
    from ringfence.python_jobs.reply import pack_value

    program = f"import os\nos.write(3, {pack_value(value, 1000)!r})\nos._exit(0)"
    assert rewards.score(program, PLAIN).score == 0.0
    right = pack_value([("value", 67890), ("value", 51)], 1000)
    known = rewards.score(f"import os\nos.write(3, {right!r})\nos._exit(0)", PLAIN)
    assert known.score == 1.0, "the control: who knows the answers has them"


# ---- a program chooses its values, and never that an exception is raised out here


@on_linux
@pytest.mark.parametrize(("tests", "program"), [
    ("assert f(1) == 2", "def f(n): return 10 ** 6000"),
    ("def test():\n    assert g(f(1)) == 2", "def f(n): return 10 ** 6000\ndef g(n): return 2"),
    ("def test():\n    n = 9\n    while n:\n        n = f(n)", "def f(n): return n + 1"),
    ("def test():\n    for _ in range(f(1)):\n        pass", "def f(n): return 10 ** 12"),
    ("def test():\n    bytes(f(1))", "def f(n): return 2 ** 40"),
], ids=["a number without end", "as an argument", "more calls", "no end", "much memory"])  # fmt: skip
@pytest.mark.system
def test_a_program_that_breaks_the_grading_fails_its_tests(tests: str, program: str) -> None:
    limits = SandboxPolicy(isolation="strict", wall_time_s=60, cpu_time_s=2, mem_bytes=128 << 20)
    with Rewards(limits, warm=1) as rewards:
        broken, control = rewards.score_many([(program, tests), ("def f(n): return 2", "assert f(1) == 2")])
    assert (broken.score, broken.total, control.score) == (0.0, 1, 1.0)
    assert broken.reasons


@on_linux
@pytest.mark.system
def test_the_status_says_that_the_sandbox_of_the_tests_was_ended() -> None:
    """A trainer can tell a grading that did not end from a wrong program."""
    limits = SandboxPolicy(isolation="strict", wall_time_s=60, cpu_time_s=1, mem_bytes=128 << 20)
    killed = "import os, signal\ndef test():\n    if f(1):\n        os.kill(os.getpid(), signal.SIGKILL)"
    endless = "def test():\n    for _ in range(f(1)):\n        pass"
    with Rewards(limits, warm=1) as rewards:
        ends = rewards.score_many([("def f(n): return 10 ** 12", tests) for tests in (killed, endless)])
    assert [(each.score, each.status) for each in ends] == [(0.0, "KILLED_KILL"), (0.0, "CPU_LIMIT")]


@on_linux
@pytest.mark.system
def test_tests_that_break_by_themselves_are_told_to_who_wrote_them() -> None:
    with Rewards(warm=1) as rewards, pytest.raises(UsageError):
        rewards.score("def f(n): return 2", "import os\nos._exit(3)\nassert f(1) < 3")
