"""Which requests an inspected rule allows, and what of them goes upstream: methods, paths and an injected header. Pure.

A path is compared after it was brought to one spelling (``url_path``), and upstream gets that spelling.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ringfence.egress.host_port import HostPort
from ringfence.egress.http_head import BadRequest, Headers, RequestHead, end_to_end
from ringfence.model.network_rule import NetworkRule
from ringfence.model.record import record, replace
from ringfence.model.ways.url_path import BadPath, normal_path, pattern

_OTHER_METHOD = frozenset({"x-http-method", "x-http-method-override", "x-method-override"})
_OTHER_PATH = frozenset({"x-original-url", "x-rewrite-url", "x-forwarded-prefix", "x-forwarded-path"})


@record
class Secret:
    """A header that the gateway adds. It is in no text, event or error, and is not shown by ``repr``."""

    header: str
    value: bytes

    def __post_init__(self) -> None:
        """h11 would quote a value that it refuses."""
        if not re.fullmatch(rb"[\x21-\x7e\x80-\xff]+([ \t]+[\x21-\x7e\x80-\xff]+)*", self.value):
            raise ValueError(f"the value for the header {self.header} is empty or has control characters")

    def __repr__(self) -> str:
        return f"Secret(header={self.header!r})"


@record
class InspectedRule:
    """What one entry of a policy's network list says of requests."""

    name: str
    """The host's name, or its address; a connection is for one of them."""
    port: int = 443
    """Of the server."""
    methods: tuple[str, ...] = ()
    """Empty: all but CONNECT and TRACE."""
    paths: tuple[str, ...] = ()
    """Empty: all. A final ``*`` stands for any rest."""
    inject: Secret | None = None

    def __post_init__(self) -> None:
        """Bring the paths to the spelling that requests are brought to."""
        self.__dict__["paths"] = tuple(pattern(path) for path in self.paths)

    @classmethod
    def of(cls, rule: NetworkRule, name: str, port: int, secrets: Mapping[str, str]) -> InspectedRule:
        """Return what a rule says for a name that it lists. ``secrets`` has the values of variables by their names."""
        inject = None
        if rule.inject is not None:
            value = f"{rule.inject.scheme} {secrets.get(rule.inject.from_env, '').strip()}".strip()
            inject = Secret(header=rule.inject.header, value=value.encode("utf-8", "surrogateescape"))
        return cls(name=name, port=port, methods=rule.methods, paths=rule.paths, inject=inject)

    @property
    def authority(self) -> str:
        """What the Host header upstream says."""
        return str(HostPort(host=self.name, port=None if self.port == 443 else self.port))


def spelling(header: str) -> str:
    """Return one spelling of a header's name: some servers take ``x_api_key`` for ``X-Api-Key``."""
    return header.strip().lower().replace("_", "-")


def admit(head: RequestHead, rule: InspectedRule) -> tuple[RequestHead, Headers]:
    """Return the part of an allowed request that goes upstream; for any other, raise BadRequest with what to do."""
    if head.method in ("CONNECT", "TRACE"):
        raise BadRequest(f"{head.method} is never passed on to {rule.name}", 403)
    if head.upgrade:
        raise BadRequest(
            f"{rule.name} is inspected, so a connection to it can't become another protocol (Upgrade);"
            " use plain requests of HTTP/1.1",
            403,
        )
    _check_method(head, rule)
    return _with_checked_path(head, rule), _headers(head, rule)


def _check_method(head: RequestHead, rule: InspectedRule) -> None:
    if not rule.methods:
        return
    if head.method not in rule.methods:
        raise BadRequest(
            f"{head.method} is not allowed for {rule.name}; allowed: {', '.join(rule.methods)}. To allow it, add"
            f' "{head.method[:40]}" to methods of {rule.name} in network',
            403,
        )
    _check_no_other(head, _OTHER_METHOD, "method")


def _with_checked_path(head: RequestHead, rule: InspectedRule) -> RequestHead:
    if not rule.paths:
        return head
    try:
        path = head.path.partition("?")[0]
        plain = normal_path(path)
    except BadPath as error:
        raise BadRequest(f"the path is not passed on, as paths of {rule.name} are restricted: {error}", 403) from None
    if not any(_matches(plain, pattern) for pattern in rule.paths):
        raise BadRequest(
            f"the path {plain[:200]} is not allowed for {rule.name}; allowed: {', '.join(rule.paths)}."
            f" To allow it, add it to paths of {rule.name} in network",
            403,
        )
    _check_no_other(head, _OTHER_PATH, "path")
    return replace(head, path=plain + head.path[len(path) :])


def _check_no_other(head: RequestHead, names: frozenset[str], what: str) -> None:
    """Refuse headers that tell some servers another method or path than the request's."""
    for name, _ in head.headers:
        text = name.decode("ascii")
        if spelling(text) in names:
            raise BadRequest(f"the header {text} may name another {what}; send the request without it", 403)


def _headers(head: RequestHead, rule: InspectedRule) -> Headers:
    headers = end_to_end(head.headers)
    if rule.inject is None:
        return headers
    ours = spelling(rule.inject.header)
    kept = [(name, value) for name, value in headers if spelling(name.decode("ascii")) != ours]
    return [*kept, (rule.inject.header.encode("ascii"), rule.inject.value)]


def _matches(path: str, pattern: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern
