"""Proctored runs: an agent that can't reach the answer, a grader that can't be fooled, and a signed verdict."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.proctor.run import Verdict as Verdict
    from ringfence.proctor.run import proctor as proctor
    from ringfence.proctor.task import Task as Task

_WHERE = {"Task": "ringfence.proctor.task", "Verdict": "ringfence.proctor.run", "proctor": "ringfence.proctor.run"}


def __getattr__(name: str) -> object:
    """Load names on first use: most of these modules need only a few of the others."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import sys

    __import__(_WHERE[name])  # importlib would load much more than this one
    return getattr(sys.modules[_WHERE[name]], name)
