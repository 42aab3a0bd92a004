"""A container that stands by for one job of a pool: its files, its Python work, and what it can't do.

Python work is run by the image's own interpreter, which is shown our package, read-only. A function is passed as its
code, which only the same version of Python can read.
"""

from __future__ import annotations

import os
import sys

import ringfence
from ringfence.backends.in_container.place import Place
from ringfence.backends.in_container.place_visit import PlaceVisit
from ringfence.backends.leader_client import UNDELIVERED
from ringfence.container import visits
from ringfence.container.hardening import Bind
from ringfence.errors import SetupError, UnavailableError, UsageError
from ringfence.model.job import Job
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.facts import PythonJobs

PACKAGE = "/ringfence/package/ringfence"
_LEAST = (3, 11)
_ASK_S = 60.0
_WORK = 4
"""The descriptor on which Python work comes in; 3 is the channel, or nothing."""
_LOADER = f"""\
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location('ringfence', {PACKAGE + "/__init__.py"!r},
                                              submodule_search_locations=[{PACKAGE!r}])
sys.modules['ringfence'] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules['ringfence'])
from ringfence.python_jobs import interpreter
interpreter.prepare()
for name in sys.argv[2:]:
    __import__(name)
with open({_WORK}, 'rb') as work:
    job = [work.read()]
interpreter.run(job.pop(), environment=dict(os.environ), channel=int(sys.argv[1]))
"""


def package() -> Bind:
    """Our package, as Python work finds it."""
    return Bind(source=os.path.dirname(os.path.realpath(ringfence.__file__)), target=PACKAGE)


class Standby:
    """One that waits; used once."""

    def __init__(self, place: Place, python: PythonJobs, interpreter: str,
                 versions: dict[str, tuple[int, ...]]) -> None:  # fmt: skip
        """``interpreter``: its name inside. ``versions``: of each image, as far as they are known."""
        self.place = place
        self._python, self._interpreter, self._versions = python, interpreter, versions

    def start(self, job: Job, streams: tuple[int, ...]) -> PlaceVisit:
        if job.cwd:
            raise UsageError("a standby sandbox always uses its own directory", hint="pass files=, or use run()")
        if job.channel and not job.python:
            raise UsageError("a pool's command has no channel", hint="write pool.call(function, argument, …)")
        if self.place.ended():
            raise SetupError(UNDELIVERED[0], "the container has ended before the job came")
        if job.python:
            self._refuse_version(is_call=job.channel)
        for name, content in job.files.items():
            self.place.put(name, content)
        if not job.python:
            return self.place.start(job, streams)
        return self._start_python(job, streams)

    def _start_python(self, job: Job, streams: tuple[int, ...]) -> PlaceVisit:
        channel = "3" if job.channel else "-1"
        argv = (self._interpreter, "-I", "-X", "utf8", "-c", _LOADER, channel, *self._python.preload)
        nothing, work = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), os.memfd_create("work")
        try:
            with open(work, "wb", closefd=False) as file:
                file.write(job.python)
            os.lseek(work, 0, os.SEEK_SET)
            given = (*streams[:3], *(streams[3:4] or (nothing,)), work)
            return self.place.start(replace(job, argv=argv, python=b""), given)
        finally:
            os.close(nothing)
            os.close(work)

    def _refuse_version(self, *, is_call: bool) -> None:
        image = self.place.image
        if image not in self._versions:
            self._versions[image] = self._asked_version()
        found, ours = self._versions[image], sys.version_info[:2]
        text = ".".join(map(str, found)) or "none"
        if found < _LEAST:
            raise UnavailableError(f"Python work needs Python 3.11 or newer in the image; {image} has {text}",
                                   missing=("python",), hint="use another image, or run() with a command")  # fmt: skip
        if is_call and found != ours:
            raise UnavailableError(f"functions need the caller's Python, {ours[0]}.{ours[1]}; {image} has {text}",
                                   missing=("python",), hint="use another image, or run_source()")  # fmt: skip

    def _asked_version(self) -> tuple[int, ...]:
        """Asked by a visit before any job: nothing foreign has run in this container. Nothing: there is no Python."""
        said, nothing = os.memfd_create("said"), os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        code = "import sys; print(sys.version_info[0], sys.version_info[1])"
        order = visits.VisitOrder(argv=(self._interpreter, "-I", "-S", "-c", code), folder="/",
                                  environment=self.place.variables, descriptors=self.place.policy.nofile)  # fmt: skip
        visit = self.place.visit(order, (nothing, said, nothing), alone=False)
        try:
            visit.wait(_ASK_S)
        except SetupError:
            return ()
        finally:
            visit.close()
            words = os.pread(said, 100, 0).split()
            os.close(said)
            os.close(nothing)
        return tuple(int(word) for word in words) if all(word.isdigit() for word in words) else ()
