"""The native parts, where the package has them: what executes tables, and the programs that run as pid 1, in a sandbox
of ours and in a container.

They lie in ``native/`` beside their source, and are compiled when the package is built. Set RINGFENCE_PURE to do
without them. Nothing here fails: a part that is missing, or of another version, counts as absent.
"""

from __future__ import annotations

import os

from ringfence.kernel.calls.table import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "native")

_library: list[Library | None] = []
_address: list[Callable[[bytearray], int]] = []
_hooks: list[Callable[[], None]] = []


def address_of(memory: bytearray) -> int:
    """Return the address of the bytes; it holds as long as their number does not change."""
    if not _address:
        import ctypes

        # Not ``from_buffer``: that makes a new type for each length.
        find = ctypes.pythonapi["PyByteArray_AsString"]
        find.argtypes, find.restype = (ctypes.py_object,), ctypes.c_void_p
        _address.append(find)
    return _address[0](memory)


class Library:
    """What executes tables. The interpreter's lock stays with the caller: after a split it is the job's."""

    def __init__(self, opened: ctypes.PyDLL) -> None:
        import ctypes

        self._run = opened["ringfence_calls_run"]
        self._run.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)
        self._run.restype = ctypes.c_long
        self._serve = opened["ringfence_orders_serve"]
        self._serve.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_uint64, *(ctypes.c_void_p,) * 2)
        self._serve.restype = None
        self._idle_clone = opened["ringfence_idle_clone"]
        self._idle_clone.argtypes, self._idle_clone.restype = (ctypes.c_uint64, ctypes.c_long), ctypes.c_long
        self._thread_pointer = opened["ringfence_thread_pointer"]
        self._thread_pointer.argtypes, self._thread_pointer.restype = (), ctypes.c_long

    def run(self, table: bytearray) -> tuple[int, int]:
        """Return the last call's number and the error, or 0."""
        at = bytearray(8)
        code: int = self._run(address_of(table), len(table), address_of(at))
        return int.from_bytes(at[:4], "little"), -code

    def serve(self, door: int, drafts: bytearray, count: int, places: bytearray, served: bytearray) -> None:
        """Carry out orders; ``orders.Orders`` knows what the bytes are."""
        self._serve(door, address_of(drafts), count, address_of(places), address_of(served))

    def idle_clone(self, flags: int) -> int:
        """Return a child that does nothing until it is killed; it never runs Python. OSError: there is none."""
        child: int = self._idle_clone(flags, os.getpid())
        if child < 0:
            raise OSError(-child, os.strerror(-child), "clone3")
        return child

    def thread_pointer(self) -> int:
        """Return where the C library keeps what belongs to this thread."""
        found: int = self._thread_pointer()
        return found


def is_wanted() -> bool:
    """Whether the caller wants the native parts; processes of ours have an empty environment."""
    return not os.environ.get("RINGFENCE_PURE")


def library() -> Library | None:
    """Return what executes tables, loaded once, or nothing."""
    if not _library:
        _library.append(_opened())
    return _library[0]


def do_without() -> None:
    """Execute tables through ctypes from here on."""
    _library[:] = [None]


def _opened() -> Library | None:
    import ctypes

    try:
        opened = ctypes.PyDLL(_path("calls", ".so"))
        version = opened["ringfence_calls_version"]
    except (OSError, AttributeError):
        return None
    version.argtypes, version.restype = (), ctypes.c_uint32
    return Library(opened) if version() == VERSION else None


def fork_hooks() -> tuple[Callable[[], None], Callable[[], None], Callable[[], None]]:
    """Return what the interpreter does before a fork, after it in the child, and after it in the parent."""
    if not _hooks:
        import ctypes

        found = [ctypes.pythonapi[f"PyOS_{name}"] for name in ("BeforeFork", "AfterFork_Child", "AfterFork_Parent")]
        for hook in found:
            hook.argtypes, hook.restype = (), None
        _hooks[:] = found
    before, child, parent = _hooks
    return before, child, parent


def init_path() -> str:
    """Return the path of the program that pid 1 becomes, if the package has it."""
    return _path("init")


def first_path() -> str:
    """Return the path of the first process of a container, if the package has it."""
    return _path("first")


def visits_path() -> str:
    """Return the path of the first process of a container that takes visits, if the package has it."""
    return _path("visits")


def _path(part: str, ending: str = "") -> str:
    return os.path.join(FOLDER, f"{part}-{os.uname().machine}{ending}")
