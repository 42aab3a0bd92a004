"""Functions on their way into a sandbox: what goes by name, what by value, and what is refused by name."""

# ruff: noqa: E501  (a table of calls is easier to read on one line each)
from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.unit.python_jobs.forked_python import ENVIRONMENT, SOURCE_ROOT, run_forked

from ringfence.errors import UsageError
from ringfence.python_jobs import pack as callables
from ringfence.python_jobs.job import Surroundings, call_job
from ringfence.python_jobs.load import load
from ringfence.python_jobs.reply import Reply, ReplyKind, read_reply

pytestmark = pytest.mark.system

LOCK = threading.Lock()
FACTOR = 3


def scaled(number: int, *more: int, plus: int = 0) -> int:
    return number * FACTOR + sum(more) + plus


def uses_lock() -> None:
    LOCK.acquire()


def called(function: object, *args: object, **kwargs: object) -> Reply:
    """A call inside a forked interpreter, which can't import this file."""
    job = call_job(callables.pack(function), callables.pack_arguments(args, kwargs))
    ended = run_forked(job)
    assert ended.stderr == b""
    return read_reply(ended.message)


def test_a_function_of_the_standard_library_goes_by_name() -> None:
    packed = callables.pack(subprocess.list2cmdline)
    assert b"list2cmdline" in packed and len(packed) < 60
    assert called(subprocess.list2cmdline, ["a", "b c"]).value == 'a "b c"'
    assert called(len, [1, 2]).value == 2
    assert called("a,b".split, ",").value == ["a", "b"]


def test_a_function_of_the_callers_own_project_goes_by_value_with_the_globals_that_it_names() -> None:
    packed = callables.pack(scaled)
    assert b"FACTOR" in packed and b"LOCK" not in packed
    assert called(scaled, 2, 1, plus=10).value == 17


def test_arguments_of_every_kind_arrive() -> None:
    kinds = called(lambda *args, **kwargs: [type(each).__name__ for each in (*args, *kwargs.values())],
                   1, "x", {1, 2}, Path("/x"), k=ValueError("v")).value  # fmt: skip
    assert kinds == ["int", "str", "set", "PosixPath", "ValueError"]


def test_the_callers_own_rule_decides_what_the_sandbox_can_import() -> None:
    assert b"wrap" in callables.pack(__import__("textwrap").wrap)
    packed = callables.pack(__import__("textwrap").wrap, importable=lambda module: module != "textwrap")
    assert len(packed) > 500
    job = call_job(packed, callables.pack_arguments(("a b", 1), {}))
    assert read_reply(run_forked(job).message).value == ["a", "b"]


@pytest.mark.parametrize("thing", (LOCK, sys.stdout, (item for item in "x"), sys._getframe()), ids=lambda x: type(x).__name__)
def test_what_can_not_be_sent_is_named_with_its_place(thing: object) -> None:
    with pytest.raises(UsageError, match="argument 2 can't be sent into a sandbox") as refused:
        callables.pack_arguments((1, thing), {})
    assert "inside the function" in refused.value.hint
    with pytest.raises(UsageError, match="the argument 'k'"):
        callables.pack_arguments((), {"k": thing})
    with pytest.raises(UsageError, match=r"the variable 'thing' of .*<lambda>"):
        callables.pack(lambda: thing)


def test_a_global_that_can_not_be_sent_is_named() -> None:
    with pytest.raises(UsageError, match="the global 'LOCK' of uses_lock can't be sent"):
        callables.pack(uses_lock)


def test_an_exception_of_the_call_comes_back_as_texts_with_the_guests_frames_only() -> None:
    def fails(number: int) -> float:
        return 1 / number

    raised = called(fails, 0).raised
    assert raised is not None
    assert (raised.type_name, raised.message) == ("ZeroDivisionError", "division by zero")
    assert raised.traceback.count("  File ") == 1 and ", in fails\n" in raised.traceback


def test_a_module_that_the_sandbox_does_not_have_is_an_error_of_the_call(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("def f(): return 5\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import only_here
    finally:
        sys.path.remove(str(tmp_path))
    by_name = callables.pack(only_here.f, importable=lambda _: True)
    nothing = callables.pack_arguments((), {})
    raised = read_reply(run_forked(call_job(by_name, nothing)).message).raised
    assert raised is not None and raised.type_name == "ModuleNotFoundError"
    around = Surroundings(path=(str(tmp_path),))
    assert read_reply(run_forked(call_job(by_name, nothing, surroundings=around)).message).value == 5
    assert called(only_here.f).value == 5


def test_a_call_that_exits_returns_nothing() -> None:
    assert called(sys.exit, 0).kind is ReplyKind.NOTHING
    # Not the function itself, which is another while coverage is measured.
    assert called(lambda: __import__("os")._exit(0)).kind is ReplyKind.NOTHING


def test_what_can_not_come_back_is_told_with_its_place() -> None:
    odd = called(lambda: {"a": [object()]})
    assert odd.kind is ReplyKind.UNSENDABLE and "value['a'][0]: a object can't be sent" in odd.problem


# What people send from a script: everything below stands in __main__, of which a sandbox has another one.
SCRIPT = '''
import abc, collections, dataclasses, enum, functools, json, math, sys, typing
sys.path[:0] = [{root!r}, {tests!r}]
from ringfence.python_jobs import pack as callables
from ringfence.python_jobs.job import call_job
from ringfence.python_jobs.reply import read_reply
from tests.unit.python_jobs.forked_python import run_forked

@dataclasses.dataclass(order=True)
class Point:
    x: int
    y: int = 2
    tags: list = dataclasses.field(default_factory=list)
    def far(self): return math.hypot(self.x, self.y)

@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: int

class Colour(enum.Enum):
    RED = 1
    BLUE = "b"
    def twice(self): return self.value * 2
    def __str__(self): return "colour " + self.name
    @classmethod
    def first(cls): return cls.RED

class Access(enum.IntFlag):
    READ = 1
    WRITE = 2

Pair = collections.namedtuple("Pair", "a b")

class Typed(typing.NamedTuple):
    a: int
    b: str = "b"

class Shape(abc.ABC):
    count = 0
    @abc.abstractmethod
    def area(self): ...
    @staticmethod
    def unit(): return 1
    @property
    def name(self): return type(self).__name__

class Square(Shape):
    def __init__(self, side):
        super().__init__()
        self.side = side
        Square.count += 1
    def area(self): return self.side ** 2 * self.unit()

class Slots:
    __slots__ = ("a", "b")
    def __init__(self): self.a = 1

class Oops(Exception):
    pass

def factorial(n): return 1 if n < 2 else n * factorial(n - 1)
def even(n): return n == 0 or odd(n - 1)
def odd(n): return n != 0 and even(n - 1)

counter = 0
def count():
    global counter
    counter += 1
    return counter
def counted(): return count() + count(), counter

def make_adder():
    total = 0
    def add(n):
        nonlocal total
        total += n
        return total
    def show(): return total
    return add, show
add, show = make_adder()
def shared(): add(5); return show()

def recursive_closure():
    def walk(n): return [] if n == 0 else [n, *walk(n - 1)]
    return walk

def cached(f):
    @functools.wraps(f)
    def inner(*args): return ("cached", f(*args))
    return inner
@cached
def decorated(x):
    "doc"
    return x

def fails(): raise Oops("mine")
def abstract():
    try: Shape()
    except TypeError as error: return "abstract" in str(error)
def generator(n): yield from range(n)
async def later(): return 7
def run_later():
    import asyncio
    return asyncio.run(later())
def by_pickle(p):
    import pickle
    return pickle.loads(pickle.dumps(p)) == p and type(p).__module__
def square(n): return n * n
def square_all(numbers):
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(2) as pool: return pool.map(square, numbers)
def annotated(x: "Nothing" = 1, *, y: int = 2) -> Point: return x + y
def same_class(p): return type(p) is Point and isinstance(p, Point) and dataclasses.fields(p)[0].name

CALLS = {{
    "lambda": (lambda x, y=2: x + y, (1,), 3),
    "factorial": (factorial, (20,), math.factorial(20)),
    "mutual": (even, (10,), True),
    "globals": (counted, (), (3, 2)),
    "closures": (shared, (), 5),
    "recursive closure": (recursive_closure(), (3,), [3, 2, 1]),
    "decorated": (decorated, (4,), ("cached", 4)),
    "partial": (functools.partial(pow, 2), (5,), 32),
    "dataclass in": (lambda p: (p.far(), p < Point(9), repr(p)), (Point(3, 4),), (5.0, True, "Point(x=3, y=4, tags=[])")),
    "dataclass made": (lambda: dataclasses.asdict(dataclasses.replace(Point(1), tags=[1])), (), {{"x": 1, "y": 2, "tags": [1]}}),
    "dataclass identity": (same_class, (Point(1),), "x"),
    "dataclass slots": (lambda s: (s.a, hash(s) == hash(Slotted(1))), (Slotted(1),), (1, True)),
    "enum": (lambda c: (c is Colour.BLUE, c.twice(), str(Colour.first()), [m.name for m in Colour]), (Colour.BLUE,),
             (True, "bb", "colour RED", ["RED", "BLUE"])),
    "flag": (lambda a: (a & Access.READ == Access.READ, int(a)), (Access.READ | Access.WRITE,), (True, 3)),
    "namedtuple": (lambda p: (p.a, p._replace(b=5).b, tuple(Pair(7, 8))), (Pair(1, 2),), (1, 5, (7, 8))),
    "typed namedtuple": (lambda p: (p.a, p.b, Typed(2).b), (Typed(1),), (1, "b", "b")),
    "class hierarchy": (lambda: (Square(3).area(), Square(2).name, Square.count), (), (9, "Square", 2)),
    "abstract": (abstract, (), True),
    "slots": (lambda: (Slots().a, hasattr(Slots(), "b"), hasattr(Slots(), "__dict__")), (), (1, False, False)),
    "bound method": (Point(3, 4).far, (), 5.0),
    "class itself": (lambda c: c(1).y, (Point,), 2),
    "generator": (lambda: list(generator(3)), (), [0, 1, 2]),
    "async": (run_later, (), 7),
    "module": (lambda: json.dumps([math.pi]), (), "[3.141592653589793]"),
    "pickle inside": (by_pickle, (Point(1),), "__main__"),
    "processes inside": (square_all, ([1, 2, 3],), [1, 4, 9]),
    "annotations": (annotated, (), 3),
    "docs and names": (lambda f: (f.__doc__, f.__name__, f.__qualname__, f.__module__), (decorated,), ("doc", "decorated", "decorated", "__main__")),
}}

def made(function, args):
    job = call_job(callables.pack(function), callables.pack_arguments(args, {{}}))
    return read_reply(run_forked(job).message)

name = sys.argv[1]
if name == "fails":
    raised = made(fails, ()).raised
    assert raised.type_name == "__main__.Oops" and raised.message == "mine", raised
else:
    function, args, expected = CALLS[name]
    reply = made(function, args)
    assert (reply.value, reply.problem, reply.raised and reply.raised.traceback) == (expected, "", None), reply
print("held")
'''
NAMES = [line.split('"')[1] for line in SCRIPT.splitlines() if line.startswith('    "') and '": (' in line]


@pytest.mark.parametrize("name", [*NAMES, "fails"])
def test_what_stands_in_the_callers_main_goes_by_value(name: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(root=str(SOURCE_ROOT), tests=str(SOURCE_ROOT.parent)))
    done = subprocess.run([sys.executable, str(script), name], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert (done.stdout, done.stderr) == ("held\n", "")


def test_the_script_holds_many_calls() -> None:
    assert len(NAMES) > 20


def test_loading_finds_its_own_parts_without_importing_the_package(monkeypatch) -> None:
    packed = callables.pack(lambda: 5)
    for name in [name for name in sys.modules if name.startswith("ringfence")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    assert load(packed)() == 5
