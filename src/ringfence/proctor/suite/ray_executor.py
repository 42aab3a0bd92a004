"""Runs entries on the nodes of a Ray cluster, behind the same protocol as local processes.

A node sends back the files of a complete directory. They become a directory here once its bundle verifies; the first
one stays, and later ones for the same entry are thrown away. No node's word is a verdict. """

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping

from ringfence import __version__
from ringfence.cluster.blobs import Received
from ringfence.cluster.dispatch import CANCELLED, Dispatch
from ringfence.cluster.node import check_node
from ringfence.cluster.ray_module import AUTO, addresses_of, connect, keep_stdout, ray_module, slots_of
from ringfence.cluster.routes import LOOPBACK, check_variables
from ringfence.errors import SandboxError, UnavailableError, UsageError
from ringfence.evidence.keys import SigningKey
from ringfence.model.record import record, replace
from ringfence.proctor.agent_run import files_of
from ringfence.proctor.agents.resolve import MARK, SCRIPT
from ringfence.proctor.agents.table import AGENTS
from ringfence.proctor.suite import completeness
from ringfence.proctor.suite.entry import Entry, Order, Result, State, folder_name
from ringfence.proctor.suite.executor import private_prefix, run_entry
from ringfence.proctor.suite.loading import load
from ringfence.proctor.suite.shipping import Shipped, Shipping, place
from ringfence.proctor.task_policy import TaskPolicy
from ringfence.roles.removal import remove_tree

_MOST_BYTES = 1 << 30
"""Of all files of a result together."""
_NAME_CHARS = 200


@record
class Sent:
    """What a node answers with."""

    result: Result
    files: Mapping[str, bytes]
    """Of the complete directory, by their names; empty where there is none."""


def run_on_node(entry: Entry, order: Order, inputs: tuple[Shipped, ...], version: str) -> Sent:
    """On a node, in a process of its own: put the inputs where they belong, run the task, and read what it left."""
    folder = tempfile.mkdtemp(prefix="ringfence-ray-")
    try:
        check_node(version)
        received = Received()
        for each in inputs:
            place(each, received, ray_module())
        result = run_entry(entry, order, os.path.join(folder, "out"))
        return Sent(result=replace(result, where=platform.node()), files=_files(result.out) if result.out else {})
    except Exception as error:  # also unforeseen errors: an agent may have caused them
        refused = isinstance(error, UsageError | UnavailableError)
        of_the_machine = isinstance(error, SandboxError | OSError | MemoryError) and not refused
        told = Result(id=entry.id, state=State.FAILED if of_the_machine else State.REFUSED,
                      error=str(error) or type(error).__name__, hint=getattr(error, "hint", ""))  # fmt: skip
        return Sent(result=replace(told, where=platform.node()), files={})
    finally:
        remove_tree(folder)


def _files(folder: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = file.read()
    return found


class RayExecutor:
    """Nodes of a cluster; ``folder`` gets a directory for each entry, ``on_wait`` is called while results are waited
    for.

    ``address``: of the cluster; empty: that of this machine.
    """

    def __init__(
        self, order: Order, folder: str, jobs: int, *, address: str = "", on_wait: Callable[[], None] = lambda: None
    ) -> None:
        self._ray = connect(address or AUTO)
        keep_stdout()
        self.slots = min(jobs, slots_of(self._ray))
        self._order, self._folder = replace(order, cluster=(*LOOPBACK, *sorted(addresses_of(self._ray)))), folder
        self._public_key = SigningKey.from_seed_hex(order.seed).public_hex
        self._shipping = Shipping(self._ray)
        self._dispatch = Dispatch(self._ray, run_on_node, most=jobs, fresh=True, on_wait=on_wait)
        self._entries: dict[str, Entry] = {}
        self._ended: list[Result] = []

    def submit(self, entry: Entry) -> None:
        """An entry that is complete here is not run again; one that can't be read here is refused here."""
        out = self._out(entry.id)
        try:
            if self._is_complete(entry, out):
                self._ended.append(Result(id=entry.id, state=State.VERDICT, out=out, reused=True))
                return
            remove_tree(out)
            inputs = self._shipping.of(_inputs(entry, self._order))
            order = replace(self._order, environment=_variables(entry, self._order, os.environ))
        except (SandboxError, OSError) as error:
            hint = getattr(error, "hint", "")
            self._ended.append(Result(id=entry.id, state=State.REFUSED, error=str(error), hint=hint))
            return
        self._entries[entry.id] = entry
        self._dispatch.submit(entry.id, entry, order, inputs, __version__)

    def results(self) -> Iterator[Result]:
        while self._ended or self._entries:
            while self._ended:
                yield self._ended.pop()
            for name, value in self._dispatch.results():
                del self._entries[name]
                yield self._result(name, value)
                if self._ended:
                    break

    def cancel(self, entry_id: str) -> None:
        self._dispatch.cancel(entry_id)

    def close(self) -> None:
        self._dispatch.close()
        self._entries.clear()
        self._ended.clear()

    def _out(self, entry_id: str) -> str:
        return os.path.join(self._folder, folder_name(entry_id))

    def _is_complete(self, entry: Entry, out: str) -> bool:
        """Check only where something is there: loading a task may mean building its image."""
        if not os.path.isdir(out):
            return False
        wanted = completeness.Wanted(
            task=load(entry), agent=self._order.agent, scaffold=self._order.scaffold,
            nonce=self._order.nonce(entry.id), public_key=self._public_key,
        )  # fmt: skip
        return completeness.is_complete(out, wanted)

    def _result(self, name: str, value: object) -> Result:
        """What a node said, if its directory verifies; a lost node is a failure of the machine."""
        if value is CANCELLED:
            return Result(id=name, state=State.CANCELLED)
        if not isinstance(value, Sent):
            return Result(id=name, state=State.FAILED, error=str(value))
        if value.result.id != name or value.result.state is not State.VERDICT:
            return replace(value.result, id=name, out="")
        try:
            return replace(value.result, out=self._kept(name, value.files))
        except (SandboxError, OSError) as error:
            told = f"what {value.result.where or 'a node'} sent is not valid: {error}"
            return Result(id=name, state=State.FAILED, error=told, where=value.result.where)

    def _kept(self, name: str, files: Mapping[str, bytes]) -> str:
        """Write the files beside their place, verify them, and rename them; the first one stays."""
        out = self._out(name)
        private = tempfile.mkdtemp(prefix=private_prefix(os.getpid()), dir=self._folder)
        try:
            _write(private, files)
            completeness.verified(private, self._public_key, self._order.nonce(name))
            try:
                os.rename(private, out)
            except OSError:
                completeness.verified(out, self._public_key, self._order.nonce(name))  # another one was first
            return out
        finally:
            remove_tree(private)


def _write(folder: str, files: Mapping[str, bytes]) -> None:
    """A node may send anything: accept only plain names and bytes, up to a limit."""
    if sum(len(data) for data in files.values()) > _MOST_BYTES:
        raise UsageError(f"more than {_MOST_BYTES >> 30} GiB")
    for name, data in files.items():
        if not name or "/" in name or "\0" in name or name in (".", "..") or len(name) > _NAME_CHARS:
            raise UsageError(f"{name[:_NAME_CHARS]!r} is not a file name")
        with open(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)


def _inputs(entry: Entry, order: Order) -> list[str]:
    """Everything of this machine that the task needs."""
    named = [entry.options.get(key, "") for key in ("policy", "repo")]
    script = order.agent.removeprefix(SCRIPT) if order.agent.startswith(SCRIPT) else ""
    return [path for path in (entry.path, *named, script, *files_of(order.agent), *order.scaffold) if path]


def _variables(entry: Entry, order: Order, have: Mapping[str, str]) -> dict[str, str]:
    """Those of the caller that the task's policy or ``--env`` names, or that a ready agent needs; no others leave this
    machine, and with ``--no-env`` no variable that an agent would see does. UsageError where one is the cluster's
    token."""
    file = entry.options.get("policy") or os.path.join(entry.path, "policy.yaml")
    policy = TaskPolicy.from_yaml(file) if os.path.isfile(file) else TaskPolicy()
    policy = replace(policy, env_allow=()) if entry.options.get("no-env") else policy
    names = [*policy.asks()[0], *entry.options.get("env", "").split()]
    ready = AGENTS.get(order.agent.removeprefix(MARK)) if order.agent.startswith(MARK) else None
    if ready is not None:
        names += [*ready.settings, *(each.variable for each in ready.credentials)]
    check_variables(names)
    return {name: have[name] for name in names if name in have}
