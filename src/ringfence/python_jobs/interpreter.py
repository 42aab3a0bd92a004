"""Makes a forked interpreter look freshly started, runs one Python job in it, and ends the process.

To the job it is as if ``python FILE`` had been started: a new ``__main__``, its own arguments, environment,
streams, signals and random numbers. What only an interpreter's start can set (flags, hash seed, ``PYTHON…`` variables)
comes from the parent: ADR 0014. Runs inside the sandbox with everything applied; it protects nothing, and must hold
nothing that the job may not have. It does not import: ``prepare`` loads everything that it uses.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import builtins
import gc
import os
import sys
import time
from _collections_abc import Callable, Mapping, Sequence
from importlib.machinery import SourceFileLoader

from ringfence.python_jobs import environment as variables
from ringfence.python_jobs import interpreter_exit, own_modules, reply, standard_streams, uncaught
from ringfence.python_jobs import job as python_job
from ringfence.python_jobs import load as callable_loader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from ringfence.transport.request import PythonRequest

_RECURSION_LIMIT = 1000
# From where the frames are counted to the job's first one; from 3.12 on a frame of C code does not count.
_OWN_DEPTH = 3 if sys.version_info < (3, 12) else 2
_IGNORED_SIGNALS = tuple(getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name))
_LONGEST_FAREWELL_S = 0.25
_own_path: list[str] = []
_rehearsed: list[bool] = []
_known: list[frozenset[str]] = []
"""The modules that were there before any job."""
_NOTHING = python_job.source_job("0", name="<rehearsal>")
_write = os.write


def prepare() -> None:
    """Once, in the process that will be forked: what an interpreter with ``site`` has in its builtins."""
    import _sitebuiltins
    import traceback
    import warnings

    _own_path[:] = sys.path
    end_of_input = "Ctrl-D (i.e. EOF)"
    additions: dict[str, object] = {"help": _sitebuiltins._Helper()}
    additions |= {name: _sitebuiltins.Quitter(name, end_of_input) for name in ("quit", "exit")}
    for name, addition in additions.items():
        builtins.__dict__.setdefault(name, addition)
    # The first compilation of a process makes all the classes of syntax trees.
    _loaded_for_jobs = (traceback, warnings, compile("0", "<prepare>", "exec"))


def settle(environment: Mapping[str, str], modules: Sequence[str] = ()) -> None:
    """The last step in the process that will be forked: do what is the same for all jobs, or for most of them.

    A fork has to copy every page it touches. ``environment``: what most jobs have. ``modules``: of this package, those
    that forks still import by name before they become a job.
    """
    variables.put(environment)
    standard_streams.prepare()
    uncaught.show_threads_too()
    own_modules.take_out(modules)
    _warm_up()
    _forget_absent_folders()
    _known[:] = [frozenset(sys.modules) - {"__main__"}]
    gc.collect()
    gc.freeze()


def _warm_up() -> None:
    """What each fork does changes the interpreter the first time (caches of types and of calls): done here once for all
    of them, those pages stay shared."""
    nothing = python_job.unpacked(_NOTHING)
    uncaught.remember_source("<rehearsal>", nothing["source"])
    exec(compile(nothing["source"], "<rehearsal>", "exec", dont_inherit=True), {})
    uncaught.forget_source("<rehearsal>")
    interpreter_exit.rehearse()


def rehearse() -> None:
    """In a forked process that waits for its job: go through the motions once, with nothing to do.

    Pages that a fork touches for the first time have to be copied; here that delays nobody. Signals are then
    already as a job finds them, and nothing of this package can be imported any more.
    """
    nothing = python_job.unpacked(_NOTHING)
    _default_signals()
    _begin(nothing)
    _run_source(nothing, _Channel(-1))
    uncaught.forget_source("<rehearsal>")
    interpreter_exit.rehearse()
    _rehearsed.append(True)
    gc.freeze()  # objects that exist now are not the job's, and are skipped when the job's garbage is collected


def run(
    job: bytes, *, environment: Mapping[str, str], channel: int, farewell: int = -1, token: bytes = b""
) -> NoReturn:
    """Run a job of ``python_jobs/job.py``; streams are on 0, 1, 2, a reply goes to ``channel``, -1: nowhere.
    ``farewell``: there the leader waits for the token and the exit status, and then ends this process. Never
    returns."""
    status = 1
    try:
        request = python_job.unpacked(job)
        del job  # as large as its arguments, and nothing reads it again
        if channel >= 0:
            os.set_inheritable(channel, False)
        _start_fresh(request, environment)
        waiting = _Channel(farewell)
        status = _work(request, _Channel(channel))
        _say_farewell(waiting, token + bytes([status]))
    finally:
        os._exit(status)


def _say_farewell(channel: _Channel, words: bytes) -> None:
    """The end of a process takes as long as a small job. A leader that knows the status need not wait for it; and if
    the leader has not heard, the process still ends."""
    if len(sys._current_frames()) == 1 and channel.send(words):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        time.sleep(_LONGEST_FAREWELL_S)


def _work(request: PythonRequest, channel: _Channel) -> int:
    before = next(reversed(sys.modules)), len(sys.modules)
    # Outside a zygote nothing has looked before: in a box a call is a program of its own.
    known = _known[0] if _known else frozenset(sys.modules) - {"__main__"}
    status = _outcome(_KINDS[request["kind"]], request, channel)
    interrupted = status is None
    status = interpreter_exit.finish(status or 0, known, before)
    return interpreter_exit.die_interrupted() if interrupted else status


def _outcome(kind: Callable[..., None], request: PythonRequest, channel: _Channel) -> int | None:
    """Run it; return the exit status, or None for an interrupt."""
    try:
        try:
            kind(request, channel)
            return 0
        except SystemExit as ended:
            return interpreter_exit.status_of(ended)
        except BaseException as error:
            return _raised(error, request, channel)
    except SystemExit as ended:  # out of sys.excepthook
        return interpreter_exit.status_of(ended)


def _raised(error: BaseException, request: PythonRequest, channel: _Channel) -> int | None:
    ours = (globals(), callable_loader.__dict__)
    error.__traceback__ = uncaught.guests_part(error.__traceback__, ours)
    channel.send(reply.pack_raised(_type_name(type(error)), _message(error), uncaught.text_of(error)))
    if request["kind"] == "source":
        uncaught.show(error)
    return None if isinstance(error, KeyboardInterrupt) else 1


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"


class _Channel:
    """The channel for the one message; a forked copy of the job that also ends says nothing."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.owner = os.getpid()

    def send(self, message: bytes) -> bool:
        """Whether it was sent."""
        if os.getpid() != self.owner:
            return False
        left = memoryview(message)
        try:
            while left:
                left = left[_write(self.descriptor, left) :]
        except OSError:
            return False  # the job has closed it: the reader sees that there is nothing
        return True


# -- the two kinds of work ------------------------------------------------------------------------------------------


def _run_source(request: PythonRequest, channel: _Channel) -> None:
    space = sys.modules["__main__"].__dict__
    name, source = request["name"], request["source"]
    uncaught.remember_source(name, source)
    if not request["value"]:
        exec(compile(source, name, "exec", dont_inherit=True), space)
        return
    statements, last = _split(source, name)
    exec(compile(statements, name, "exec", dont_inherit=True), space)
    value = eval(compile(last, name, "eval", dont_inherit=True), space) if last is not None else None
    channel.send(reply.pack_value(value, request["max_value_bytes"]))


def _split(source: str | bytes, name: str) -> tuple[Any, Any]:
    """The statements before the last expression, and that expression; None if the source ends with something else."""
    import ast

    tree = ast.parse(source, name)
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        return tree, None
    return tree, ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]


def _call(request: PythonRequest, channel: _Channel) -> None:
    function = callable_loader.load(request["function"])
    args, kwargs = callable_loader.load(request.pop("packed"))
    value = function(*args, **kwargs)
    channel.send(reply.pack_value(value, request["max_value_bytes"]))


_KINDS: dict[str, Callable[[PythonRequest, _Channel], None]] = {"source": _run_source, "call": _call}

# -- as if freshly started ------------------------------------------------------------------------------------------


def _start_fresh(request: PythonRequest, environment: Mapping[str, str]) -> None:
    if not _rehearsed:
        _default_signals()
    variables.put(environment)
    standard_streams.renew()
    _new_random_numbers()
    _begin(request)
    # The frames below the job are not the job's: it gets the full depth that it would have by itself.
    sys.setrecursionlimit(_RECURSION_LIMIT + _frames_below() + _OWN_DEPTH)


def _begin(request: PythonRequest) -> None:
    _new_main(request)
    _set_imports(request)
    gc.enable()


def _default_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        if signal.getsignal(number):  # what is ignored or has a handler
            signal.signal(number, signal.SIG_DFL)
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _new_random_numbers() -> None:
    """Two forks of one process must not draw the same numbers; ``os.urandom`` and what builds on it never do."""
    for name in ("random", "numpy.random"):
        module = sys.modules.get(name)
        if module is not None:
            module.seed()


def _new_main(request: PythonRequest) -> None:
    name = request.get("name", "<call>")
    sys.argv[:] = request.get("arguments", [""])
    sys.orig_argv[:] = [sys.executable, *sys.argv]
    main = type(sys)("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    if name[:1] != "<":
        main.__dict__.update(__file__=name, __cached__=None, __loader__=SourceFileLoader("__main__", name))
    sys.modules["__main__"] = main


def _set_imports(request: PythonRequest) -> None:
    own_modules.forget()
    sys.path[:] = [*request["path"], *_own_path, *request["packages"]]
    if not _known:
        _forget_absent_folders()
    if request["modules"] is not None:
        builtins.__import__ = _limited(builtins.__import__, frozenset(request["modules"]))


def _forget_absent_folders() -> None:
    """A directory that was not there for the parent may be there for the job."""
    for folder in [folder for folder, finder in sys.path_importer_cache.items() if finder is None]:
        del sys.path_importer_cache[folder]


def _limited(real: Callable[..., Any], allowed: frozenset[str]) -> Callable[..., Any]:
    """Checks imports by the job's own code, which has no ``__spec__``: advice only, since code can get round it."""

    def limited(name: str, space: Any = None, local: Any = None, wanted: Any = (), level: int = 0) -> Any:
        own = space is None or space.get("__spec__") is None
        if own and level == 0 and name.partition(".")[0] not in allowed:
            raise ImportError(f"import of {name!r} is not allowed here", name=name)
        return real(name, space, local, wanted, level)

    limited.__code__ = limited.__code__.replace(co_filename="<import>")
    return limited


def _frames_below() -> int:
    frame, count = sys._getframe(), 0
    while frame.f_back is not None:
        frame, count = frame.f_back, count + 1
    return count
