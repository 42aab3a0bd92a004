"""Programs that must do the same in a forked interpreter as under ``python FILE``: streams and status."""

# ruff: noqa: E501  (a program is easier to read on one line than cut to a width)
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Program:
    """A source with what it is given."""

    name: str
    source: str | bytes
    stdin: bytes = b""
    arguments: tuple[str, ...] = ()


def _program(name: str, source: str | bytes, stdin: bytes = b"", *arguments: str) -> Program:
    return Program(name=name, source=source, stdin=stdin, arguments=arguments)


PROGRAMS = (
    _program("prints", "print('hello')"),
    _program("nothing at all", ""),
    _program("arguments", "import sys; print(sys.argv[1:], len(sys.orig_argv))", b"", "a", "b c", "ä", "-x"),
    _program("its own names", "print(sorted(globals()), __name__, __file__, __doc__, __spec__, __package__)"),
    _program("docstring of main", '"""About."""\nprint(__doc__)'),
    _program("annotations of main", "x: int = 3\nprint(__annotations__)"),
    _program("builtins", "import builtins\nprint(sorted(vars(builtins).keys() - {'copyright', 'credits', 'license'}), __builtins__ is builtins)"),
    _program("the main guard", "def f():\n  print('f')\nif __name__ == '__main__':\n  f()"),
    _program("imports main", "import __main__\nx = 5\nprint(__main__.x, __main__.__file__ == __file__)"),
    _program("no module of ours", "import sys\nprint([m for m in sys.modules if 'ringfence' in m])"),
    _program("a module beside it", "import neighbour\nprint(neighbour.VALUE, neighbour.__name__)"),
    _program("a module that is not there", "import not_there_at_all"),
    _program("an exception", "def f(x):\n    return 1 / x\n\nf(0)"),
    _program("an exception with a cause", "try:\n  {}['a']\nexcept KeyError as e:\n  raise ValueError('second') from e"),
    _program("an exception in an exception", "try:\n  {}['a']\nexcept KeyError:\n  [][3]"),
    _program("an exception without context", "try:\n  {}['a']\nexcept KeyError:\n  raise ValueError('x') from None"),
    _program("an exception group", "raise ExceptionGroup('many', [ValueError(1), TypeError('two')])"),
    _program("an exception with notes", "e = ValueError('x')\ne.add_note('look here')\nraise e"),
    _program("an exception of its own class", "class Mine(Exception):\n  pass\nraise Mine('hello', 2)"),
    _program("an exception whose text fails", "class Bad(Exception):\n  def __str__(self): raise ValueError\nraise Bad"),
    _program("a name that was mistyped", "value = 3\nprint(valeu)"),
    _program("an attribute that was mistyped", "import math\nmath.sqtr(2)"),
    _program("nested calls", "class A:\n  def f(self, n):\n    return self.f(n - 1) if n else self.missing\nA().f(3)"),
    _program("endless recursion", "def f(n):\n  return f(n + 1)\nf(0)"),
    _program("the depth that there is", "def f(n):\n  try: return f(n + 1)\n  except RecursionError: return n\nprint(f(0))"),
    _program("a syntax error", "x = 1\nif x\n  print(x)\n"),
    _program("bad indentation", "def f():\nprint(1)\n"),
    _program("half a string", "x = 'abc\n"),
    _program("a syntax error in exec", "exec('a b', {})"),
    _program("an assertion", "assert 1 == 2, 'not so'"),
    _program("keyboard interrupt", "print('before')\nraise KeyboardInterrupt"),
    _program("interrupted by a signal", "import os, signal, time\ntry:\n  os.kill(os.getpid(), signal.SIGINT)\n  time.sleep(5)\nexcept KeyboardInterrupt: print('caught')"),
    _program("terminated", "import os, signal\nprint('lost, for it was not flushed')\nos.kill(os.getpid(), signal.SIGTERM)"),
    _program("killed", "import os\nos.kill(os.getpid(), 9)"),
    _program("aborted", "import os\nos.abort()"),
    _program("signals as at the start", "import signal\nfor n in sorted(signal.valid_signals()): print(n, signal.getsignal(n))\nprint(signal.pthread_sigmask(0, []))"),
    _program("a handler of its own", "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: print('term'))\nos.kill(os.getpid(), 15)"),
    _program("an alarm", "import signal, time\nsignal.signal(signal.SIGALRM, lambda *_: print('rang'))\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\ntime.sleep(0.3)"),
    _program("exit", "import sys; sys.exit()"),
    _program("exit 0", "import sys; sys.exit(0)"),
    _program("exit 3", "import sys; print('x'); sys.exit(3)"),
    _program("exit true", "import sys; sys.exit(True)"),
    _program("exit -1", "import sys; sys.exit(-1)"),
    _program("exit 256", "import sys; sys.exit(256)"),
    _program("exit huge", "import sys; sys.exit(10**30)"),
    _program("exit text", "import sys; sys.exit('no luck: ä')"),
    _program("exit object", "import sys; sys.exit([1, 2])"),
    _program("exit by the builtin", "exit(4)"),
    _program("quit by the builtin", "quit()"),
    _program("raise SystemExit", "raise SystemExit(1, 2)"),
    _program("exit in a function with finally", "import sys\ntry:\n  sys.exit(5)\nfinally:\n  print('finally')"),
    _program("os._exit", "import os\nprint('lost')\nos._exit(7)"),
    _program("atexit", "import atexit\natexit.register(print, 'first in, last out')\natexit.register(print, 'last in', flush=True)\nprint('body')"),
    _program("atexit after an exception", "import atexit\natexit.register(print, 'still')\n1/0"),
    _program("atexit that fails", "import atexit\natexit.register(lambda: 1/0)\natexit.register(print, 'other')"),
    _program("a thread outlives main", "import threading, time\ndef f():\n  time.sleep(0.1); print('thread')\nthreading.Thread(target=f).start()\nprint('main')"),
    _program("a thread that fails", "import threading\ndef f(): raise ValueError('in thread')\nt = threading.Thread(target=f, name='T'); t.start(); t.join(); print('on')"),
    _program("a daemon thread", "import threading, time\nf = open('out.txt', 'w'); f.write('kept')\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nprint('main')"),
    _program("the main thread", "import threading\nprint(threading.current_thread() is threading.main_thread(), threading.active_count(), threading.main_thread().name)"),
    _program("thread pool", "from concurrent.futures import ThreadPoolExecutor as P\nwith P(3) as p: print(list(p.map(abs, [-1, -2])))\nq = P(1); q.submit(print, 'late')"),
    _program("a finalizer at exit", "class A:\n  def __del__(self): print('gone')\na = A()\nb = [A()]; b.append(b)\nprint('end')"),
    _program("weak finalizers at exit", "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, 'final')\nprint('end')"),
    _program("a file that was never closed", "f = open('out.txt', 'w')\nf.write('x' * 10)\nkeep = [f]"),
    _program("a file that a module never closed", "import neighbour\nneighbour.file = open('out.txt', 'w')\nneighbour.file.write('y')"),
    _program("input", "print(input('name? '), input(), sep='|')", b"Ann\nBob\r\n"),
    _program("input at the end", "input()", b""),
    _program("all of stdin", "import sys\nprint(sys.stdin.read().splitlines())", b"a\nb\r\nc"),
    _program("stdin that is no UTF-8", "import sys\nt = sys.stdin.read()\nprint(ascii(t)); sys.stdout.write(t)", b"\xff\xfe ok \x80"),
    _program("the streams", "import sys\nfor s in (sys.stdin, sys.stdout, sys.stderr):\n  print(s, s.encoding, s.errors, s.line_buffering, s.write_through, s.newlines, s.fileno(), s.isatty(), s.buffer, s.mode, s is getattr(sys, '__' + s.name[1:-1] + '__'))"),
    _program("both streams", "import sys\nprint('out'); print('err', file=sys.stderr); sys.stderr.write('no newline')"),
    _program("characters beyond ASCII", "print('ä€𐍈'); import sys; print('\\udcff', file=sys.stderr)"),
    _program("half a character", "print('\\ud800')"),
    _program("much output", "import sys\nfor i in range(40000): sys.stdout.write('%d ' % i)"),
    _program("much binary output", "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 2000)"),
    _program("closed stdout", "import sys\nsys.stdout.close()"),
    _program("print to closed stdout", "import sys\nsys.stdout.close()\nprint('x')"),
    _program("a broken pipe", "import os, sys\nr, w = os.pipe(); os.close(r); os.dup2(w, 1)\nprint('x' * 10)"),
    _program("a broken pipe while printing", "import os, sys\nr, w = os.pipe(); os.close(r); os.dup2(w, 1)\nprint('x' * 100000)"),
    _program("stdout replaced", "import io, sys\nprint('before')\nsys.stdout = io.StringIO()\nprint('into the void')"),
    _program("stderr replaced", "import io, sys\nsys.stderr = io.StringIO()\n1/0"),
    _program("a hook of its own", "import sys\nsys.excepthook = lambda t, v, tb: print('hook', t.__name__, v, tb.tb_lineno)\n1/0"),
    _program("a hook that fails", "import sys\ndef h(*a): raise ValueError('hook')\nsys.excepthook = h\n1/0"),
    _program("a latin-1 source", "# -*- coding: latin-1 -*-\nprint('\xe4')\nraise ValueError('\xfc')".encode("latin-1")),
    _program("a byte order mark", b"\xef\xbb\xbfprint('bom')"),
    _program("windows line ends", b"if True:\r\n    print('a')\r\nprint('''x\r\ny''')\r\n"),
    _program("future annotations are its own", "def f(x: undefined): pass"),
    _program("a warning", "import warnings\nwarnings.warn('careful')\nwarnings.warn('old', DeprecationWarning)"),
    _program("a warning of the compiler", "x = 1\nprint(x is 1)"),
    _program("warning filters", "import warnings\nprint(warnings.filters)"),
    _program("a warning as an error", "import warnings\nwarnings.simplefilter('error')\nwarnings.warn('now')"),
    _program("logging", "import logging\nlogging.warning('w')\nlogging.basicConfig(level='INFO')\nlogging.info('i')\nlogging.exception('e')"),
    _program("logging to a file", "import logging\nlogging.basicConfig(filename='out.txt', level='INFO')\nlogging.info('kept')"),
    _program("asyncio", "import asyncio\nasync def f(n):\n  await asyncio.sleep(0.01); return n\nasync def main(): print(await asyncio.gather(f(1), f(2)))\nasyncio.run(main())"),
    _program("asyncio subprocess", "import asyncio\nasync def main():\n  p = await asyncio.create_subprocess_exec('echo', 'hi')\n  print(await p.wait())\nasyncio.run(main())"),
    _program("asyncio that fails", "import asyncio\nasync def main(): raise ValueError('x')\nasyncio.run(main())"),
    _program("subprocess", "import subprocess, sys\nprint(subprocess.run(['sh', '-c', 'cat; exit 3'], input=b'in', capture_output=True))\nsubprocess.run([sys.executable, '-c', 'print(6*7)'])"),
    _program("no descriptor for a child", "import subprocess, sys\nprint(subprocess.run(['sh', '-c', 'ls /proc/self/fd | wc -l'], capture_output=True).stdout)"),
    _program("fork", "import os, sys\np = os.fork()\nif p == 0:\n  print('child'); sys.exit(4)\nprint(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))"),
    _program("multiprocessing fork", "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n  with m.get_context('fork').Pool(2) as p: print(p.map(f, range(5)))"),
    _program("multiprocessing spawn", "import multiprocessing as m\ndef f(q): q.put('from child')\nif __name__ == '__main__':\n  c = m.get_context('spawn'); q = c.Queue(); p = c.Process(target=f, args=(q,)); p.start(); print(q.get()); p.join(); print(p.exitcode)"),
    _program("pickle of what stands in main", "import pickle\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n  x: int\nprint(pickle.loads(pickle.dumps(P(3))), P.__module__)"),
    _program("source by inspect", "import inspect\ndef f():\n  return 1\nprint(inspect.getsource(f), inspect.getfile(f) == __file__)"),
    _program("decimal context", "import decimal\nprint(decimal.getcontext(), decimal.Decimal(1) / 3)"),
    _program("locale", "import locale, sys\nprint(locale.setlocale(locale.LC_ALL), locale.getpreferredencoding().lower(), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())"),
    _program("environment", "import os\nprint(dict(os.environ)); os.environ['X'] = '1'; os.system('echo $X; env | sort')"),
    _program("garbage collection", "import gc\nprint(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.garbage)"),
    _program("nothing traced", "import sys, tracemalloc, faulthandler\nprint(tracemalloc.is_tracing(), sys.gettrace(), sys.getprofile(), faulthandler.is_enabled(), sys.getswitchinterval())"),
    _program("current directory and mask of new files", "import os\nprint(os.getcwd()); os.umask(os.umask(0)); print(os.path.exists(__file__))"),
    _program("time zone", "import os, time\nprint(time.tzname); os.environ['TZ'] = 'JST-9'; time.tzset(); print(time.tzname)"),
    _program("runpy", "import runpy\nprint(runpy.run_module('neighbour')['VALUE'])"),
    _program("unraisable", "class A:\n  def __del__(self): 1/0\nA()\nprint('on')"),
)  # fmt: skip

# Python reads a file in pieces, and then words these otherwise.
TOLD_OTHERWISE = (
    _program("an unknown encoding", b"# coding: no-such\nprint(1)"),
    _program("bytes that are no UTF-8", b"x = '\xff'"),
)  # fmt: skip

# Of these, what is printed has lines of the source in it.
WITH_SOURCE_LINES = frozenset({
    "an exception", "an exception with a cause", "an exception in an exception", "an exception group",
    "an exception with notes", "an exception of its own class", "a name that was mistyped",
    "an attribute that was mistyped", "nested calls", "endless recursion", "a syntax error", "bad indentation",
    "half a string", "an assertion", "keyboard interrupt", "a thread that fails", "a warning", "a hook that fails",
    "source by inspect", "a latin-1 source", "an exception whose text fails",
})  # fmt: skip
