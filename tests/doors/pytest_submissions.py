"""A task that pytest grades, and what is handed in for it: honest programs, wrong ones, and forgeries."""

from __future__ import annotations

TESTS = '''
import unittest
import pytest
from helper import text_of
from solution import slug, fib, parse

def test_slug_lower(): assert slug("Hello World") == "hello-world", "hello-world is right"
def test_slug_strip(): assert slug(text_of("ab")) == "a-b"
def test_fib_small(): assert [fib(i) for i in range(6)] == [0, 1, 1, 2, 3, 5]
def test_fib_large(): assert fib(50) == 12586269025
def test_parse_empty(): assert parse("") == {}
def test_parse_raises():
    with pytest.raises(ValueError):
        parse("nonsense")
@pytest.mark.parametrize("n, expected", [(7, 13), (8, 21)])
def test_fib_cases(n, expected): assert fib(n) == expected
def test_of_the_oracle(answer): assert answer == 42 and fib(9) == 34
class TestParse(unittest.TestCase):
    def test_pairs(self):
        got = parse("a=1;b=2")
        self.assertEqual(got["a"], 1)
        self.assertEqual(len(got), 2, "two of them")
'''
CONFTEST = "import pytest\n@pytest.fixture\ndef answer(): return 42\n"
HELPER = "def text_of(letters): return '  ' + '  '.join(letters) + ' '\n"
REFERENCE = '''
import re
def slug(t): return re.sub(r"[^a-z0-9]+", "-", t.lower()).strip("-")
def fib(n):
    a, b = 0, 1
    for _ in range(n): a, b = b, a + b
    return a
def parse(t):
    if not t: return {}
    out = {}
    for part in t.split(";"):
        k, eq, v = part.partition("=")
        if not eq: raise ValueError(part)
        out[k] = int(v)
    return out
'''
HARD_CODED = '''
def slug(t): return {"Hello World": "hello-world", "  a  b ": "a-b"}[t]
def fib(n): return {0: 0, 1: 1, 2: 1, 3: 2, 4: 3, 5: 5, 7: 13, 8: 21, 9: 34, 50: 12586269025}[n]
def parse(t):
    if t == "nonsense": raise ValueError
    return {"": {}, "a=1;b=2": {"a": 1, "b": 2}}[t]
'''
WRONG = "def slug(t): return t\ndef fib(n): return n\ndef parse(t): return {}\n"
EVERYTHING = '''
class E(dict):
    def __eq__(s, o): return True
    def __ne__(s, o): return False
    def __getitem__(s, k): return E()
    def __len__(s): return 2
    def __hash__(s): return 0
    def __bool__(s): return True
def parse(t):
    if t == "nonsense": raise ValueError
    return E()
'''
ALL_PASSED = '''
import ast, json, os
def lines():
    for place, _, files in os.walk("/oracle"):
        for file in files:
            if file.startswith("test_"):
                path = os.path.join(place, file)
                for node in ast.parse(open(path).read()).body:
                    is_class = isinstance(node, ast.ClassDef)
                    for each in node.body if is_class else [node]:
                        prefix = node.name + "::" if is_class else ""
                        if isinstance(each, ast.FunctionDef) and each.name.startswith("test"):
                            name = os.path.relpath(path, "/oracle") + "::" + prefix + each.name
                            yield json.dumps({"test": name, "outcome": "passed", "duration_s": 0.001, "message": ""})
text = "".join(line + "\\n" for line in lines()).encode()
'''
HONEST = {
    "the reference": REFERENCE,
    "another right one": REFERENCE.replace("a, b = 0, 1", "b, a = 1, 0"),
    "hard-coded answers": HARD_CODED,
}
PLAIN_FAILS = {
    "wrong": WRONG,
    "half right": WRONG + "def slug(t): return '-'.join(t.lower().split())\n",
    "a syntax error": "def slug(:\n",
    "an exit while it is imported": "import sys; sys.exit(0)\n",
    "a crash": WRONG + "import os\ndef fib(n): os.abort()\n",
    "skips": WRONG + "import pytest\ndef fib(n): pytest.skip('slow')\nslug = parse = fib\n",
    "expected failures": WRONG + "import pytest\ndef fib(n): pytest.xfail('known')\nslug = parse = fib\n",
    # No effect: asserts are plain, and the worker ends the process itself.
    "a patched rewriting of asserts": WRONG + """
import _pytest.assertion.rewrite as r
r.AssertionRewriter.run = lambda *a: None
""",
    "an exit status at the end": WRONG + "import atexit, os\natexit.register(os._exit, 0)\n",
}
FORGERIES = {
    "equal to everything": EVERYTHING + "def slug(t): return E()\nfib = slug\n",
    "patched reports": WRONG + '''
import _pytest.reports as r
o = r.TestReport.from_item_and_call.__func__
def f(cls, item, call):
    call.excinfo = None
    return o(cls, item, call)
r.TestReport.from_item_and_call = classmethod(f)
''',
    "tests that do nothing": WRONG + '''
import _pytest.python as p, _pytest.unittest as u
p.Function.runtest = u.TestCaseFunction.runtest = lambda self: None
''',
    "a patched call": WRONG + '''
import _pytest.runner as r
r.CallInfo.from_call = classmethod(lambda cls, func, when, reraise=None: cls(
    result=None, excinfo=None, start=0, stop=0, duration=0, when=when, _ispytest=True))
''',
    "a patched reporter": WRONG + "import sys\nsys.modules['__main__'].outcome_of = lambda reports: 'passed'\n",
    "answers out of the caller's frame": EVERYTHING + '''
import ast, inspect, textwrap
def peek():
    source = inspect.getsource(inspect.currentframe().f_back.f_back.f_code)
    for n in ast.walk(ast.parse(textwrap.dedent(source))):
        if isinstance(n, ast.Compare):
            try: return eval(compile(ast.Expression(n.comparators[0]), "", "eval"))
            except Exception: pass
    return E()
def slug(t): return peek()
def fib(n):
    v = peek()
    return v[n] if isinstance(v, list) and n < len(v) else v
''',
    "tests emptied out of the caller's frame": WRONG + '''
import sys, types
def nothing(*a, **k): pass
def slug(t):
    for name, value in list(sys._getframe(1).f_globals.items()):
        if isinstance(value, types.FunctionType) and name.startswith("test"): value.__code__ = nothing.__code__
        if isinstance(value, type):
            for each in vars(value).values():
                if isinstance(each, types.FunctionType): each.__code__ = nothing.__code__
    return t
fib = parse = slug
''',
    "patched builtins": EVERYTHING + '''
import builtins, sys
plain = builtins.len
def counted(value): return E() if "slug" in sys._getframe(1).f_globals and plain(value) == 2 else plain(value)
builtins.len = counted
def fib(n): return E()
slug = fib
''',
    "an exit with a summary": WRONG + "import os\nprint('9 passed in 0.01s', flush=True)\nos._exit(0)\n",
    "results of its own, and an exit": ALL_PASSED + '''
os.write(3, text + b'{"finished": 0}\\n')
os._exit(0)
''',
    "a replaced channel": WRONG + ALL_PASSED + '''
os.write(3, text + b'{"finished": 1}\\n')
os.dup2(os.open(os.devnull, os.O_WRONLY), 3)
''',
    "a thread that writes results": WRONG + ALL_PASSED + '''
import threading
threading.Thread(target=lambda: os.write(3, text), daemon=True).start()
''',
    "tests left out": WRONG + '''
import _pytest.main as m
o = m.Session.genitems
def some(self, node):
    yield from list(o(self, node))[:0]
m.Session.genitems = some
class Codes:
    OK = NO_TESTS_COLLECTED = 0
    TESTS_FAILED, INTERRUPTED, INTERNAL_ERROR, USAGE_ERROR = 1, 2, 3, 4
m.ExitCode = Codes
''',
    "a fork that goes on": WRONG + "import os\nif os.fork(): os._exit(0)\n",
    "a pytest.raises that takes all": HARD_CODED.replace("raise ValueError", "return {}") + '''
import contextlib, pytest, sys
@contextlib.contextmanager
def raises(*a, **k): yield
pytest.raises = raises
''',
}
PLANTED = {
    "conftest.py": """
import pytest
def pytest_collection_modifyitems(items):
    for item in items: item.add_marker(pytest.mark.xfail)
""",
    "pytest.ini": "[pytest]\naddopts = --collect-only\n",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--collect-only'\n",
    "sitecustomize.py": "import os; os._exit(0)\n",
    "usercustomize.py": "import os; os._exit(0)\n",
    "evil.pth": "import os; os._exit(0)\n",
    "json.py": "import os; os._exit(0)\n",
    "winreg.py": "import os; os._exit(0)\n",
    "difflib.py": "import os; os._exit(0)\n",
    "helper.py": "import os; os._exit(0)\n",
    "pytest.py": "import os; os._exit(0)\n",
    "_pytest/__init__.py": "import os; os._exit(0)\n",
    "evil-1.dist-info/entry_points.txt": "[pytest11]\nevil = evil_plugin\n",
    "evil-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: evil\nVersion: 1\n",
    "evil_plugin.py": "import os; os._exit(0)\n",
}
