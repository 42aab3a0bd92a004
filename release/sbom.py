"""What is in a release and what it needs, as CycloneDX: read out of the metadata of a wheel, the same each time."""

from __future__ import annotations

import email
import hashlib
import json
import re
import uuid
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "ringfence.release")
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*([^;]*)(?:;(.*))?$")


def sbom(files: Sequence[Path], epoch: int, tools: Sequence[str]) -> bytes:
    """Return the document for these files, of which the wheels name what they need."""
    wheel = next(path for path in files if path.name.endswith("-any.whl"))
    version = wheel.name.split("-")[1]
    own = f"pkg:pypi/ringfence@{version}"
    needed = _needed(wheel)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, ''.join(map(_sha256, files)))}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "tools": {"components": [_tool(each) for each in tools]},
            "component": {"type": "application", "bom-ref": own, "name": "ringfence", "version": version, "purl": own,
                          "licenses": [{"license": {"id": "Apache-2.0"}}]},
        },
        "components": [*needed, *map(_file, files)],
        "dependencies": [{"ref": own, "dependsOn": [each["bom-ref"] for each in needed
                                                    if each["scope"] == "required"]}],
    }  # fmt: skip
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def _needed(wheel: Path) -> list[dict[str, Any]]:
    """What the base needs is required, what an extra needs is optional; the version is a range, and stands as such."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        told = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    found: dict[str, dict[str, Any]] = {}
    for line in told:
        match = _REQUIREMENT.match(line)
        if match is None or match[1] == "ringfence" or "extra == 'dev'" in (match[3] or "").replace('"', "'"):
            continue
        name, purl = match[1].lower().replace("_", "-"), f"pkg:pypi/{match[1].lower().replace('_', '-')}"
        asked = [{"name": "ringfence:range", "value": match[2].strip() or "any"}]
        scope = "optional" if "extra" in (match[3] or "") else "required"
        found.setdefault(name, {"type": "library", "bom-ref": purl, "name": name, "purl": purl, "scope": scope,
                                "properties": asked})  # fmt: skip
    return [found[name] for name in sorted(found)]


def _file(path: Path) -> dict[str, Any]:
    return {"type": "file", "bom-ref": f"file:{path.name}", "name": path.name, "scope": "required",
            "hashes": [{"alg": "SHA-256", "content": _sha256(path)}]}  # fmt: skip


def _tool(pinned: str) -> dict[str, str]:
    name, _, version = pinned.partition("==")
    return {"type": "application", "name": name, "version": version}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
