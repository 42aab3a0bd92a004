"""What a maker does for each sandbox, as tables of calls: prepares it, begins its child, and lets that go.

They make the same calls as ``zygote_steps`` and ``roles.first_process`` in Python, which do what can't be a table.
"""

from __future__ import annotations

import marshal
import os
import stat
from _collections_abc import Callable, Mapping, Sequence
from struct import pack

from ringfence.kernel.calls.orders import BEGIN, CONFINE, FINISH, IDMAP, NETWORK, PLAN, PREPARE, WAIT, Tables
from ringfence.kernel.calls.table import Address, Table
from ringfence.kernel.mount import mounts, namespaces
from ringfence.kernel.proc import processes
from ringfence.model.record import record
from ringfence.steps.root_calls import TAKEN, Build, clone_source, refuse_other_kinds
from ringfence.steps.state import SETUP
from ringfence.steps.table_step import TREE, given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import Step, VisitRequest

_AT, _EMPTY_PATH, _ATTR_IDMAP, _DUMPABLE = -100, 0x1000, 0x00100000, 4
_DUPLICATE, _ALL = 1030, 0xFFFFFFFF
_FSOPEN_CLOEXEC, _FSCONFIG_CREATE, _FSMOUNT_CLOEXEC = 1, 6, 1
_STANDARD, _DIGITS = 3, 24
_ID_DIGITS = 10
"""Of the host's ids that sandboxes have (``namespaces.FIRST_HOST_ID``)."""
_IDMAP, _INIT = "idmap", "init"
UID_TEXT, GID_TEXT, FIRST_GROUP = 1, 2, 3
"""Among the texts of an order, after the v2 group; then the files by which the child enters its other groups."""
JOIN = "join groups"
_KEPT = 5
"""Descriptors that a waiting sandbox keeps: failed steps, status, door, tally, and where its job arrives."""


@record
class Told:
    """What is told of a failure in a child. Of few objects: each child drops them, and what it writes is copied."""

    labels: bytes
    """Packed, those of each table of a child by its number."""
    writer: int
    """The slot of BEGIN with a copy of the descriptor by which a failed step is told."""


@record
class MakerDraft:
    """How sandboxes of one draft are made."""

    tables: Tables
    told: Told


def draft_of(
    request: VisitRequest, steps: Sequence[Step], owner: Sequence[int], groups: int, ids: tuple[str, str],
    first_id: int, proc: int = -1,
) -> MakerDraft | None:  # fmt: skip
    """Nothing where a part of it can't be a table. ``owner``: whose files may be mapped to the ids of sandboxes;
    ``groups``: how many each enters by itself; ``ids``: what its maps look like, for their length; ``first_id``: on the
    host, of the first place; ``proc``: a file system of /proc that is the maker's alone, -1: there is none."""
    prepare = _prepare(request["prepare"], owner)
    if prepare is None or not _is_plain(steps):
        return None
    trees = sorted(prepare.open_trees)
    numbers = range(_STANDARD, _STANDARD + _KEPT + len(trees) + 1)
    settings = request.get("network")
    made = _Made(prepare=prepare.table, begin=beginning(groups, len(numbers)), finish=_finish(ids),
                 network=Table() if settings is None else _network(settings, proc), idmap=_idmap(owner))  # fmt: skip
    names = [name for name in request["namespaces"] if settings is None or name != "net"]
    places = dict(zip((*(f"{TREE}{name}" for name in trees), _INIT), numbers[_KEPT:], strict=True))
    sources = [int(made.begin.slots[f"source {number}"]) for number in numbers]
    tables = Tables(
        flags=namespaces.flags(names) | processes.AS_SIBLING,
        tables=made.compiled(steps, {**places, **dict(zip(("status", "door", "tally"), numbers[1:4], strict=True))},
                             {sources[-1]: SETUP.init}),
        descriptors=(*sources[:_KEPT], -1),
        links=[(int(prepare.tree(name)), source) for name, source in zip(trees, sources[_KEPT:-1], strict=True)],
        passing=made.passing(),
        texts=made.texts(groups),
        child=int(made.finish.slot("child")),
        idmap=int(prepare.table.slots.get(_IDMAP, -1)),
        mapping=(int(made.idmap.slot("carrier")), int(made.idmap.slot("id")), int(made.idmap.slot("mapped"))),
        first_id=first_id,
        network=int(made.network.slots.get("network", -1)),
    )  # fmt: skip
    told = Told(labels=made.labels(steps), writer=int(made.begin.slots[f"moved {_STANDARD}"]))
    return MakerDraft(tables=tables, told=told) if tables.fits() else None


@record(eq=False)
class _Made:
    """The tables that are made here; two more are steps of the sandbox's own."""

    prepare: Table
    begin: Table
    finish: Table
    network: Table
    idmap: Table

    def compiled(
        self, steps: Sequence[Step], own: Mapping[str, int], begun: Mapping[int, int]
    ) -> tuple[tuple[bytes, Mapping[int, int]], ...]:
        """In the order of their numbers. ``own``, ``begun``: what slots of a child and of its beginning hold."""
        plan, plan_slots, *_ = _parts(steps[0])
        confine, confine_slots, *_ = _parts(steps[-2])
        return ((self.prepare.compiled(), {}), (self.begin.compiled(), begun), (plan, given(plan_slots, own)),
                (confine, given(confine_slots, own)), (_wait().compiled(), {}), (self.finish.compiled(), {}),
                (self.network.compiled(), {}), (self.idmap.compiled(), {}))  # fmt: skip

    def passing(self) -> list[tuple[int, int]]:
        """Slots whose descriptors are open for a moment, and closed if a call in between fails."""
        return [*_slots(PREPARE, self.prepare, "place", "context"), *_slots(FINISH, self.finish, "folder", "file"),
                *_slots(NETWORK, self.network, "file"), *_slots(IDMAP, self.idmap, "folder", "file")]  # fmt: skip

    def texts(self, groups: int) -> list[tuple[int, int]]:
        """Where the texts of an order go, in its order."""
        return [(PREPARE, -1), *_slots(FINISH, self.finish, "uid map", "gid map"),
                *_slots(BEGIN, self.begin, *(f"group {number}" for number in range(groups)))]  # fmt: skip

    def labels(self, steps: Sequence[Step]) -> bytes:
        """Packed, those of each table of a child by its number."""
        own = {PLAN: _parts(steps[0])[2], CONFINE: _parts(steps[-2])[2]}
        return marshal.dumps({BEGIN: self.begin.labels(), **own, WAIT: _wait().labels()})


def _is_plain(steps: Sequence[Step]) -> bool:
    """Whether they are a table that splits, one that confines, and the wait for a job. The maker has its signals reset
    already."""
    first, *others = [step for step in steps if step[0] != "reset signals"]
    if SETUP.init < 0 or first[0] != "calls" or int(str(first[-1])) < 0:
        return False
    if len(others) != 2 or others[0][0] != "calls" or others[1] != ("await job", True):
        return False
    left_open, slots = _parts(first)[3], _parts(others[0])[1]
    return not left_open and "root" not in slots and not any(name.startswith(TREE) for name in slots)


def _parts(step: Step) -> tuple[bytes, dict[str, int], bytes, list[str]]:
    """The table of a step, its slots, its labels, and the sources that it leaves open."""
    table, slots, labels, left_open, _ = list(step)[1:]
    assert isinstance(table, bytes) and isinstance(slots, dict)
    assert isinstance(labels, bytes) and isinstance(left_open, list)
    return table, slots, labels, left_open


def _slots(table_number: int, table: Table, *names: str) -> list[tuple[int, int]]:
    return [(table_number, int(table.slots[name])) for name in names if name in table.slots]


PROBLEMS, POST = 3, 4
"""Where a waiting sandbox tells of failed steps, and where its job arrives."""


def _wait() -> Table:
    """Nothing but these two stays open."""
    table = Table()
    table.step = "descriptors"
    table.call("dup3", _STANDARD + _KEPT - 1, POST, os.O_CLOEXEC)
    table.call("close_range", POST + 1, _ALL, 0)
    return table


def beginning(groups: int, kept: int) -> Table:
    """A child's own session, its groups, its descriptors in place: ``kept`` from 3 on, and nothing at 0, 1 and 2."""
    table = Table()
    table.step = "setsid"
    table.call("setsid")  # else the scheduler gives all sandboxes that are made together the share of one
    table.step = JOIN
    for number in range(groups):
        file, flags = table.slot("file"), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC  # never made: a limit must fail
        table.call("openat", _AT, table.slot(f"group {number}"), flags, 0, store=file)
        table.call("write", file, b"0", 1)
        table.call("close", file)
    table.step = "descriptors"
    _place(table, _STANDARD + kept)
    return table


def group_of(call: int) -> int:
    """Which group this call of the beginning is about: the first call makes the session, and each group takes three."""
    return (call - 1) // 3


def _place(table: Table, end: int) -> None:
    """As ``executor.place_descriptors``: all are copied out of the way first, so that none takes the number of one that
    is still needed."""
    nothing = table.slot("nothing")
    table.call("openat", _AT, os.devnull, os.O_RDWR | os.O_CLOEXEC, 0, store=nothing)
    sources = [table.slot(f"source {number}") if number >= _STANDARD else nothing for number in range(end)]
    moved = [table.slot(f"moved {number}") for number in range(end)]
    for source, copy in zip(sources, moved, strict=True):
        table.call("fcntl", source, _DUPLICATE, end, store=copy)
    for number, copy in enumerate(moved):
        table.call("dup3", copy, number, 0 if number < _STANDARD else os.O_CLOEXEC)
    table.call("close_range", end, _ALL, 0)


def _finish(ids: tuple[str, str]) -> Table:
    """Map the child's ids, as ``namespaces.map_ids``; ``ids``: what the two texts are as long as."""
    table = Table()
    folder, file = table.slot("folder"), table.slot("file")
    table.call("prctl", _DUMPABLE, 0, 0, 0, 0)
    _open_process(table, "child")
    rows = (("setgroups", "deny", 4), ("uid_map", table.slot("uid map"), len(ids[0])),
            ("gid_map", table.slot("gid map"), len(ids[1])))  # fmt: skip
    for name, text, length in rows:
        table.call("openat", folder, name, os.O_WRONLY | os.O_CLOEXEC, 0, store=file)
        table.call("write", file, text, length)
        table.call("close", file, store=file)
    table.call("close", folder, store=folder)
    return table


def _open_process(table: Table, name: str) -> None:
    """Its directory in /proc, in the slot «folder»; ``name``: the slot with its number."""
    path = table.block(b"/proc/" + bytes(_DIGITS))
    table.call("decimal", Address(path + len(b"/proc/")), table.slot(name))
    table.call("openat", _AT, path, os.O_PATH | os.O_CLOEXEC, 0, store=table.slot("folder"))


def _idmap(owner: Sequence[int]) -> Table:
    """As ``namespaces.mapping_namespace``, by a child that is there already. Nothing if nobody's files are mapped."""
    table = Table()
    folder, file, mapped = table.slot("folder"), table.slot("file"), table.slot("mapped")
    _open_process(table, "carrier")
    for name, owned in zip(("uid_map", "gid_map"), owner, strict=False):
        head = b"%d " % owned
        text = table.block(head + bytes(_ID_DIGITS + 4))
        end = len(head) + _ID_DIGITS
        table.call("decimal", Address(text + len(head)), table.slot("id"))
        table.call("put", Address(text + end), int.from_bytes(b" 1", "little"), 4)
        table.call("openat", folder, name, os.O_WRONLY | os.O_CLOEXEC, 0, store=file)
        table.call("write", file, text, end + len(b" 1"))
        table.call("close", file, store=file)
    table.call("openat", folder, "ns/user", os.O_RDONLY | os.O_CLOEXEC, 0, store=mapped)
    table.call("close", folder, store=folder)
    return table


def _network(settings: Sequence[tuple[str, str]], proc: int) -> Table:
    """As ``namespaces.enter_new_network``. In the /proc of all, a name below sys/net is there once for each network,
    and a look-up goes through all of them."""
    table = Table()
    folder, top = (proc, "sys") if proc >= 0 else (_AT, "/proc/sys")
    file = table.slot("file")
    table.call("unshare", namespaces.flags(["net"]))
    table.call("socket", *namespaces.DATAGRAMS, store=file)
    table.call("ioctl", file, namespaces.SET_FLAGS, namespaces.LOOPBACK_UP)
    table.call("close", file, store=file)
    for name, value in settings:
        table.call("openat", folder, f"{top}/{name}", os.O_WRONLY | os.O_CLOEXEC, 0, store=file)
        table.call("write", file, value, len(value))
        table.call("close", file, store=file)
    table.call("openat", _AT, "/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC, 0, store=table.slot("network"))
    return table


class _Prepare(Build):
    """What is done before the clone; ``owner``: whose files may be mapped to the sandbox's id, or nothing."""

    def __init__(self, owner: Sequence[int]) -> None:
        super().__init__()
        self._owner = tuple(owner)

    def add(self, step: Step) -> bool:
        """Whether the step can be a part of it."""
        name, *arguments = step
        ways: dict[str, Callable[..., bool]] = {
            "give directories": self._give, "clone sources": self._clone_all, "make devices": self._make_devices,
        }  # fmt: skip
        return str(name) in ways and ways[str(name)](*arguments)

    def _give(self, owned: list[str]) -> bool:
        self.table.call("setgroups", 0, None)
        return not owned

    def _clone_all(self, sources: list[tuple[str, str, str, tuple[int, ...]]]) -> bool:
        return all(self._clone(*source) for source in sources)

    def _clone(self, name: str, path: str, mode: str, owner: tuple[int, ...]) -> bool:
        plain, tree = mode.removeprefix(mounts.REAL), self.tree(name)
        if plain not in TAKEN or plain == "base" or (owner and owner != self._owner):
            return False
        attributes, kinds = TAKEN[plain]
        clone_source(self, path, tree, mode)
        refuse_other_kinds(self, tree, kinds)
        if owner:
            mapped = self.table.block(pack("QQQQ", _ATTR_IDMAP, 0, 0, 0))
            self.table.point(mapped, 24, self.table.slot(_IDMAP))
            self.table.call("mount_setattr", tree, "", _EMPTY_PATH, mapped, 32)
        self.set_attributes(tree, attributes)
        self.open_trees.add(name)
        return True

    def _make_devices(self, names: list[str], links: list[tuple[str, str]], folders: list[str]) -> bool:
        call, tree, context = self.table.call, self.tree("devices"), self.table.slot("context")
        call("fsopen", "tmpfs", _FSOPEN_CLOEXEC, store=context)
        call("fsconfig", context, _FSCONFIG_CREATE, None, None, 0)
        call("fsmount", context, _FSMOUNT_CLOEXEC, 0, store=tree)
        call("close", context, store=context)
        call("fchmodat", tree, ".", 0o755)
        for name in names:
            call("mknodat", tree, name, stat.S_IFCHR | 0o666, device_number(os.stat(f"/dev/{name}").st_rdev))
            call("fchmodat", tree, name, 0o666)
        for name, to in links:
            call("symlinkat", to, tree, name)
        for name in folders:
            call("mkdirat", tree, name, 0o755)
        self.set_attributes(tree, mounts.DEVICE)
        self.open_trees.add("devices")
        return True

    def end(self) -> None:
        """The child inherits this, and may be looked into until its ids are mapped."""
        self.table.call("prctl", _DUMPABLE, 1, 0, 0, 0)


def _prepare(steps: Sequence[Step], owner: Sequence[int]) -> _Prepare | None:
    build = _Prepare(owner)
    if not all(build.add(step) for step in steps):
        return None
    build.end()
    return build


def device_number(device: int) -> int:
    """As the kernel takes it."""
    major, minor = os.major(device), os.minor(device)
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)
