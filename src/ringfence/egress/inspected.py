"""Connections under a rule that asks for inspection: what ``inspection`` needs of the gateway, put together.

With it come ``ssl`` and ``cryptography``, so it is loaded only where a rule asks for it.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from ringfence.egress import inspection
from ringfence.egress.authority import Authority
from ringfence.egress.http_head import BadRequest
from ringfence.egress.request_rules import InspectedRule
from ringfence.egress.sniffing import Spoken, Words
from ringfence.egress.upstream import Refused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringfence.egress.connection import Connection
    from ringfence.egress.host_port import HostPort
    from ringfence.model.network_rule import NetworkRule

_HTTP, _HTTPS = 80, 443


class Inspection:
    """What one sandbox has for inspection: an authority of its own, secrets, and what verifies servers."""

    def __init__(self, rules: tuple[NetworkRule, ...]) -> None:
        self.authority = Authority(rule.host for rule in rules if rule.needs_inspection)
        self.turn = asyncio.Lock()
        self.secrets: dict[str, str] = {}
        self.trusted = ""

    def change(self, rules: tuple[NetworkRule, ...], secrets: Mapping[str, str], trusted: str) -> None:
        """Replace the secrets; ValueError where one is missing, or can't be a header's value."""
        for rule in rules:
            if rule.inject is not None and not secrets.get(rule.inject.from_env):
                raise ValueError(f"{rule.inject.from_env} has no value, and {rule} injects it")
            InspectedRule.of(rule, rule.host, _HTTPS, secrets)
        inspection.verifying(trusted)
        self.secrets, self.trusted = dict(secrets), trusted

    async def carry(self, connection: Connection, rule: NetworkRule, target: HostPort, words: Words) -> None:
        """Serve a connection whose first bytes were read already."""
        asked = connection.port
        port = _HTTPS if words.kind is Spoken.HTTP and asked == _HTTP else asked
        if port != asked:
            rule = connection.decide(target, port)  # the rule for the port that is reached counts
            connection.port = port

        side = connection.side

        async def connect() -> socket.socket | str:
            if connection.server is not None and not side.rate.allows():  # the first was counted when it was accepted
                return f"more than {side.limits['connections_per_second']:g} connections in a second"
            try:
                return await connection.open(target, port)
            except Refused as refused:
                raise BadRequest(str(refused), refused.status) from None
            except Unreachable as unreachable:
                return str(unreachable)

        terms = inspection.Terms(
            rule=InspectedRule.of(rule, target.host, port, self.secrets),
            asked_port=asked,
            authority=self.authority,
            trust=inspection.verifying(self.trusted),
            connect=connect,
            out=connection.out,
            back=connection.into,
            touch=connection.touch,
            turn=self.turn,
            settle=connection.settle,
        )
        await inspection.inspect(connection.client, words.data, terms, tls=words.kind is Spoken.TLS)
