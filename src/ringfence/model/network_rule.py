"""``NetworkRule``: one entry of a policy's network list, checked and in its one spelling when it is made.

It says who may be reached and what has to hold there; it does not know what enforces it.
"""

from __future__ import annotations

from _collections_abc import Callable, Mapping

from ringfence.errors import PolicyError
from ringfence.model import host_text
from ringfence.model.host_text import Ranges
from ringfence.model.limits import READ_UNIT, Unit
from ringfence.model.policy_keys import Problem, unknown
from ringfence.model.record import field_names, record
from ringfence.model.system_text import cut, quoted

_HTTP, _HTTPS = 80, 443
DEFAULT_PORTS: Ranges = ((_HTTP, _HTTP), (_HTTPS, _HTTPS))
LARGEST_BYTES = 2**62
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TOKEN = frozenset(_LETTERS + _LETTERS.upper() + "0123456789!#$%&'*+-.^_`|~")
_NOT_IN_PATHS = frozenset(" ?#\\\"<>^`{|}")
# They say where a message ends, where it goes or what becomes of the connection: only the gateway decides that.
CONNECTION_HEADERS = frozenset({
    "connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "proxy-authenticate",
    "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip


@record
class Injection:
    """A header that the gateway sets, from a variable of the caller's: its value never enters the sandbox."""

    header: str
    from_env: str
    scheme: str = ""
    """A word before the value, such as Bearer."""

    def plain(self) -> dict[str, str]:
        """Plain data, without what is absent."""
        said = {"header": self.header, "from_env": self.from_env}
        return said | ({"scheme": self.scheme} if self.scheme else {})


@record
class NetworkRule:
    """Who may be reached; ``NetworkRule.of`` reads it from a text or a mapping.

    >>> str(NetworkRule.of("API.Example.com.:443"))
    'api.example.com:443'
    """

    host: str
    """A name, ``*.name`` for all its sub-domains, an address or a network."""
    ports: Ranges = DEFAULT_PORTS
    """May be given as ``443``, ``"8000-8010"`` or a list of such."""
    methods: tuple[str, ...] = ()
    """Methods of HTTP; empty: all. These, ``paths`` and ``inject`` require inspection."""
    paths: tuple[str, ...] = ()
    inject: Injection | None = None
    max_bytes_out: int | None = None
    """Bytes sent there, over all connections of the sandbox; may be a text such as ``10M``."""
    max_bytes_in: int | None = None
    sni: str = "required"
    """Whether a TLS client that connects to a name must say in the clear which server it wants: ``required``, or
    ``optional``, which lets a missing SNI and ECH pass. For addresses it is never required."""

    @staticmethod
    def __unknown__(names: Mapping[str, object]) -> PolicyError:
        return _error([_unknown(name) for name in names])

    def __post_init__(self) -> None:
        problems: list[Problem] = []
        for name, read in _READERS.items():
            try:
                object.__setattr__(self, name, read(getattr(self, name)))
            except ValueError as wrong:
                problems.append((name, str(wrong)))
        if problems:
            raise _error(problems)

    @classmethod
    def of(cls, value: object) -> NetworkRule:
        """Return the rule of a text, a mapping or a rule; PolicyError names the key."""
        if isinstance(value, NetworkRule):
            return value
        if isinstance(value, str):
            return cls._of_text(value)
        if not isinstance(value, Mapping):
            problem = f"{quoted(value)} is not a host; write a name, an address, or a mapping with host"
            raise PolicyError("host", problem)
        wrong = [_unknown(key) for key in value if key not in _KEYS]
        if "host" not in value:
            wrong.append(("host", "is missing; write host: api.example.com"))
        if wrong:
            raise _error(wrong)
        return cls(**value)

    @classmethod
    def _of_text(cls, text: str) -> NetworkRule:
        try:
            host, ports = host_text.split_port(text)
        except ValueError as wrong:
            raise PolicyError("host", str(wrong)) from None
        return cls(host=host) if ports is None else cls(host=host, ports=ports)  # type: ignore[arg-type]

    def __str__(self) -> str:
        """Host and ports, as ``of`` reads them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.ports == DEFAULT_PORTS else f"{host}:{host_text.ports_text(self.ports)}"

    @property
    def is_address(self) -> bool:
        """Whether it lists addresses, one or a network of them."""
        return host_text.is_address(self.host)

    @property
    def is_network(self) -> bool:
        return "/" in self.host

    @property
    def is_wildcard(self) -> bool:
        return host_text.is_wildcard(self.host)

    @property
    def needs_inspection(self) -> bool:
        return bool(self.methods or self.paths or self.inject)

    @property
    def upgrades(self) -> bool:
        """Whether plain HTTP to port 80 of its name goes on as TLS to 443, though 80 is not listed."""
        inspected = self.needs_inspection and not self.is_address
        return inspected and self.has_port(_HTTPS) and not self.has_port(_HTTP)

    @property
    def listens(self) -> Ranges:
        """The ports at which clients in a sandbox find it."""
        return host_text.merged((*self.ports, (_HTTP, _HTTP))) if self.upgrades else self.ports

    @property
    def demands(self) -> tuple[object, ...]:
        """What has to hold beside host and port."""
        visible = self.sni if self.sni != "required" else ""
        return self.methods, self.paths, self.inject, self.max_bytes_out, self.max_bytes_in, visible

    def has_port(self, port: int) -> bool:
        return any(first <= port <= last for first, last in self.ports)

    def plain(self) -> str | dict[str, object]:
        """Plain data: ``of`` makes an equal rule of it. A text, if host and ports say everything."""
        if not any(self.demands):
            return str(self)
        values: dict[str, object] = {"host": self.host}
        if self.ports != DEFAULT_PORTS:
            values["ports"] = [first if first == last else f"{first}-{last}" for first, last in self.ports]
        values |= {name: list(getattr(self, name)) for name in ("methods", "paths") if getattr(self, name)}
        if self.inject is not None:
            values["inject"] = self.inject.plain()
        if self.sni != "required":
            values["sni"] = self.sni
        sizes = {name: getattr(self, name) for name in ("max_bytes_out", "max_bytes_in")}
        return values | {name: size for name, size in sizes.items() if size is not None}


_KEYS = frozenset(field_names(NetworkRule))


def _error(problems: list[Problem]) -> PolicyError:
    first, *others = problems
    return PolicyError(*first, more=tuple(PolicyError(*other) for other in others))


def _unknown(key: object) -> Problem:
    return unknown(key, _KEYS, f"there are {', '.join(field_names(NetworkRule))}")


# ---- readers: each returns a field's one spelling, or ValueError says what is wrong with it


def _read_host(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{quoted(value)} is not a host name")
    if ":" in value and "://" not in value and value[0] != "[" and value.count(":") == 1:
        host, _, port = value.partition(":")
        raise ValueError(f"{quoted(value)} has a port in it; write host: {cut(host)} and ports: {cut(port) or 443}")
    return host_text.canonical_host(str.__str__(value))


def _read_ports(value: object) -> Ranges:
    items = value if isinstance(value, list | tuple) else [value]
    if not items:
        raise ValueError("an empty list of ports; leave the key out for 80 and 443")
    return host_text.merged(pair for item in items for pair in _ranges(item))


def _ranges(item: object) -> Ranges:
    if isinstance(item, str):
        return host_text.read_ports(item)
    if isinstance(item, int) and not isinstance(item, bool):
        return (host_text.port_range(int(item), int(item)),)
    if isinstance(item, tuple) and len(item) == 2 and all(type(port) is int for port in item):
        return (host_text.port_range(*item),)
    raise ValueError(f"{quoted(item)} is not a port or a range of ports; write 443 or 8000-8010")


def _texts(value: object, what: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{quoted(value)} is not a list of {what}")
    return tuple(dict.fromkeys(map(str.__str__, value)))


def _read_methods(value: object) -> tuple[str, ...]:
    methods = tuple(dict.fromkeys(method.upper() for method in _texts(value, "methods, such as [GET, POST]")))
    for method in methods:
        if not _is_token(method):
            raise ValueError(f"{quoted(method)} is not a method of HTTP; write one such as GET")
        if method == "CONNECT":
            raise ValueError("CONNECT opens a tunnel that nothing looks into; list the host that you mean")
    return methods


def _read_paths(value: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(_read_path, _texts(value, "paths, such as [/v1/messages]"))))


def _read_path(path: str) -> str:
    from ringfence.model.ways.url_path import BadPath, pattern  # with ``re``, only where there is a path

    if not path.startswith("/"):
        raise ValueError(f"{quoted(path)} does not begin with a slash; write /{cut(path)}")
    if not path.isascii() or not path.isprintable() or set(path) & _NOT_IN_PATHS:
        raise ValueError(f"{quoted(path)} is not the path of a URL; write it percent-encoded and without a query")
    try:
        return pattern(path)
    except BadPath as bad:
        raise ValueError(
            f"{quoted(path)} is not in its plain form: {bad}; write it without //, . and .., with nothing encoded"
            " that servers read differently, and with a * at its end alone for any rest"
        ) from None


def _read_inject(value: object) -> Injection | None:
    if value is None or isinstance(value, Injection):
        return value and _sound(value)
    if not isinstance(value, Mapping) or set(value) - {"scheme"} != {"header", "from_env"}:
        raise ValueError("write both, as in {header: x-api-key, from_env: MODEL_API_KEY}")
    words = [value["header"], value["from_env"], value.get("scheme", "")]
    if not all(isinstance(word, str) for word in words):
        raise ValueError("header and from_env must be names, as in {header: x-api-key, from_env: MODEL_API_KEY}")
    header, variable, scheme = map(str.__str__, words)
    return _sound(Injection(header=header, from_env=variable, scheme=scheme))


def _sound(injection: Injection) -> Injection:
    header = injection.header.lower()
    if not _is_token(header):
        raise ValueError(f"header {quoted(injection.header)} is not the name of a header")
    if header in CONNECTION_HEADERS:
        raise ValueError(f"header {header} belongs to the connection; the gateway alone sets it")
    variable = injection.from_env
    if not (variable and variable.isascii() and variable.isprintable() and not set(variable) & set("= ")):
        raise ValueError(f"from_env {quoted(variable)} is not the name of a variable")
    if injection.scheme and not _is_token(injection.scheme):
        raise ValueError(f"scheme {quoted(injection.scheme)} is not one word, such as Bearer")
    return Injection(header=header, from_env=variable, scheme=injection.scheme)


def _read_bytes(value: object) -> int | None:
    size = READ_UNIT[Unit.BYTES](value)
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int):
        raise ValueError(f"{quoted(size)} is not a whole number of bytes")
    if not 0 < size <= LARGEST_BYTES:
        raise ValueError(f"a size must be greater than 0 and at most {LARGEST_BYTES}")
    return int(size)


def _is_token(text: str) -> bool:
    return bool(text) and set(text) <= _TOKEN


def _read_sni(value: object) -> str:
    if value not in ("required", "optional"):
        raise ValueError(f"{quoted(value)} must be required or optional")
    return str(value)


_READERS: dict[str, Callable[[object], object]] = {
    "host": _read_host,
    "ports": _read_ports,
    "methods": _read_methods,
    "paths": _read_paths,
    "inject": _read_inject,
    "max_bytes_out": _read_bytes,
    "max_bytes_in": _read_bytes,
    "sni": _read_sni,
}
