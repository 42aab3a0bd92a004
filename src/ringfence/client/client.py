"""``Client``: ``run``, ``open`` and ``Pool`` of the library, carried out by a service."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ringfence.client.box import RemoteBox
from ringfence.client.connection import Connection
from ringfence.client.followed import followed
from ringfence.client.wire import from_bytes, outcome_of
from ringfence.engine.call_result import CallResult, call_result
from ringfence.errors import UsageError
from ringfence.model.events import OnEvent, OnOutput
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import field_names

Command = Job | Sequence[str | os.PathLike[str]]
Policy = str | SandboxPolicy | Mapping[str, object] | None
ADDRESS = "http://127.0.0.1:8700"
VARIABLE = "RINGFENCE_TOKEN"


class Client:
    """A service, by the names of the library.

    ``address``: absent: ``http://127.0.0.1:8700``. ``token``: absent: that of ``RINGFENCE_TOKEN``. ``policy``: the
    operator's policy for calls that name none. A call may name another, or tighten it by a mapping or a
    ``SandboxPolicy``; asking for more is a PolicyError.
    ``patience_s``: how long a full service is asked again. ``timeout_s``: how long a connection may be silent, so a run
    that is waited for may take no longer. ``plain_http``: the connection to another machine is secured by other means,
    so a token may be sent unencrypted.
    """

    def __init__(
        self, address: str = ADDRESS, *, token: str | None = None, policy: str = "default", patience_s: float = 60.0,
        timeout_s: float = 600.0, plain_http: bool = False,
    ) -> None:  # fmt: skip
        given = os.environ.get(VARIABLE, "") if token is None else token
        self.connection = Connection(address, given, patience_s, timeout_s, plain_http=plain_http)
        self._policy = policy

    def run(
        self, job: Command, policy: Policy = None, *, input: bytes | None = None, timeout: float | None = None,
        env: Mapping[str, str] | None = None, on_event: OnEvent | None = None, on_output: OnOutput | None = None,
        bundle: bool = False,
    ) -> Outcome:  # fmt: skip
        """One job in a sandbox of its own, as ``ringfence.run``; ``bundle``: ``bundle_of`` has evidence of it after."""
        spec = {**spec_of(job, input, timeout, env), **self._chosen(policy)}
        spec |= {"bundle": True} if bundle else {}
        return self._carried_out("/v1/runs", spec, on_event, on_output)

    def run_source(self, source: str | bytes, policy: Policy = None, **given: Any) -> Outcome:
        """Python source, as ``Pool.run_source`` of the library."""
        return self._carried_out("/v1/runs", {**source_spec(source, **given), **self._chosen(policy)})

    def open(self, policy: Policy = None, workspace: str | None = None) -> RemoteBox:
        """A box, as ``ringfence.open``; ``workspace``: one that the operator has named."""
        spec = {**self._chosen(policy), **({"workspace": workspace} if workspace else {})}
        made = self.connection.json("POST", "/v1/boxes", spec)
        return RemoteBox(self.connection, made["id"])

    def attach(self, box_id: str) -> RemoteBox:
        """A box that is there, also after a restart of the service."""
        return RemoteBox(self.connection, self.connection.json("GET", f"/v1/boxes/{box_id}")["id"])

    def Pool(
        self, policy: Policy = None, *, warm: int = 2, preload: Sequence[str] = (), at_once: int = 8
    ) -> RemotePool:
        """A pool, as ``ringfence.Pool``; ``at_once``: how many jobs of ``map`` are under way."""
        spec = {**self._chosen(policy), "warm": warm, "preload": list(preload)}
        return RemotePool(self, self.connection.json("POST", "/v1/pools", spec)["id"], at_once)

    def bundle_of(self, run_id: str) -> dict[str, Any]:
        """The signed evidence of a run."""
        found: dict[str, Any] = self.connection.json("GET", f"/v1/runs/{run_id}/bundle")
        return found

    def status(self) -> dict[str, Any]:
        """How full the service is, and what this token may have."""
        found: dict[str, Any] = self.connection.json("GET", "/v1/status")
        return found

    def close(self) -> None:
        """Close this thread's connection. Runs, boxes and pools of the service stay."""
        self.connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- for pools too

    def _chosen(self, policy: Policy) -> dict[str, object]:
        """The name of a policy, and what to tighten in it."""
        if policy is None or isinstance(policy, str):
            return {"policy": policy or self._policy}
        if isinstance(policy, SandboxPolicy):
            usual, wanted = SandboxPolicy().to_dict(), policy.to_dict()
            policy = {name: wanted[name] for name in field_names(policy) if wanted[name] != usual[name]}
        return {"policy": self._policy, "tighten": dict(policy)}

    def _carried_out(
        self, path: str, spec: dict[str, object], on_event: OnEvent | None = None, on_output: OnOutput | None = None
    ) -> Outcome:
        key = secrets.token_hex(16)
        if on_event is None and on_output is None:
            return outcome_of(self.connection.json("POST", path, spec, key=key))
        begun = self.connection.json("POST", path, {**spec, "wait": False}, key=key)
        return outcome_of(followed(self.connection, begun["id"], on_event, on_output))


def spec_of(
    job: Command, input: bytes | None = None, timeout: float | None = None, env: Mapping[str, str] | None = None
) -> dict[str, object]:
    """What a request says of a job."""
    made = Job.of(job)
    if made.cwd is not None or made.python or made.terminal or isinstance(made.stdin, int):
        raise UsageError("a job of a service can't use a directory, terminal or descriptor of this machine",
                         hint="send its files along, or open a box")  # fmt: skip
    spec: dict[str, object] = {"argv": list(made.argv)}
    stdin = made.stdin if input is None else bytes(input)
    spec |= {} if stdin is None else {"input": from_bytes(stdin)}
    spec |= {"files": {name: from_bytes(data) for name, data in made.files.items()}} if made.files else {}
    spec |= {"env": {**made.environment, **env}} if env else {"env": dict(made.environment)} if made.environment else {}
    return spec if timeout is None else {**spec, "timeout": timeout}


def source_spec(
    source: str | bytes, *, arguments: Sequence[str] = (), stdin: bytes | None = None,
    files: Mapping[str, bytes] | None = None, environment: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> dict[str, object]:  # fmt: skip
    text: object = source if isinstance(source, str) else from_bytes(source)
    spec: dict[str, object] = {"source": text, "arguments": list(arguments)}
    sent = {name: from_bytes(data) for name, data in (files or {}).items()}
    more = {"input": None if stdin is None else from_bytes(stdin), "env": dict(environment or {}) or None,
            "files": sent or None, "timeout": timeout}  # fmt: skip
    return spec | {name: value for name, value in more.items() if value is not None}


class RemotePool:
    """A pool of a service, by the names of ``ringfence.Pool``."""

    def __init__(self, client: Client, pool_id: str, at_once: int) -> None:
        self.id = pool_id
        self._client, self._at_once = client, at_once
        self._path = f"/v1/pools/{pool_id}/runs"

    def run(
        self, job: Command, *, input: bytes | None = None, timeout: float | None = None,
        env: Mapping[str, str] | None = None, on_output: OnOutput | None = None,
    ) -> Outcome:  # fmt: skip
        """Any command, as ``Pool.run`` of the library."""
        return self._client._carried_out(self._path, spec_of(job, input, timeout, env), None, on_output)

    def run_source(self, source: str | bytes, *, on_output: OnOutput | None = None, **given: Any) -> Outcome:
        """Python source, as ``Pool.run_source`` of the library."""
        return self._client._carried_out(self._path, source_spec(source, **given), None, on_output)

    def call(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:
        """What the function returns; CallError with the guest's own traceback where it raises."""
        return self.try_call(function, *args, **kwargs).value

    def try_call(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> CallResult:
        """The same, with everything known of how it ended, and never an exception of the guest's choice."""
        from ringfence.python_jobs import pack

        call = {"function": from_bytes(pack.pack(function)), "name": pack.name_of(function),
                "arguments": from_bytes(pack.pack_arguments(args, kwargs))}  # fmt: skip
        return call_result(self._client._carried_out(self._path, {"call": call}))

    def map(self, function: Callable[..., Any], items: Iterable[object]) -> list[Any]:
        """The function's value for every item, in order."""
        return self._map(lambda item: self.call(function, item), items)

    def try_map(self, function: Callable[..., Any], items: Iterable[object]) -> list[CallResult]:
        """The same of ``try_call``."""
        return self._map(lambda item: self.try_call(function, item), items)

    def _map(self, one: Callable[[object], Any], items: Iterable[object]) -> list[Any]:
        from ringfence.engine.mapping import map_in_order

        return map_in_order(one, list(items), self._at_once, progress=False)

    def close(self) -> None:
        """End its sandboxes."""
        self._client.connection.json("DELETE", f"/v1/pools/{self.id}")

    def __enter__(self) -> RemotePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
