"""What an engine really applied to a container, by capability: read back, not taken on trust."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ringfence.container import applied, group_files
from ringfence.container.hardening import ContainerSpec
from ringfence.docker_sandbox.client import EngineClient
from ringfence.metrics.life_log import tell


def enforced(
    client: EngineClient, container: str, spec: ContainerSpec, info: Mapping[str, object]
) -> dict[str, dict[str, object]]:
    """Return the table as plain data, and log what does not hold."""
    files = group_files.limits(group_files.locate(container))
    table = applied.read_back(spec, client.inspect(container), dict(info), files)
    missing = {name: entry.details for name, entry in table.items() if not entry.applied}
    if missing:
        tell("not_enforced", f"the engine does not hold {', '.join(missing)}", level=logging.WARNING,
             container_id=container, missing=missing)  # fmt: skip
    return {
        name: {"requested": entry.requested, "applied": entry.applied, "mechanism": entry.mechanism,
               "details": entry.details}
        for name, entry in table.items()
    }  # fmt: skip
