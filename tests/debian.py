"""Debian's packages from where this host's own come from: for another release or machine than the host's, unpacked, not
installed. apt checks what it fetches, and knows the host's mirrors and proxies."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

_PUBLIC = "https://deb.debian.org/debian"
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def mirror() -> list[str]:
    """Where this host's own packages come from; none where that can't be told."""
    places = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    told = "\n".join(path.read_text() for path in places if path.is_file())
    return re.findall(r"^(?:URIs:|deb)\s+(\S+/debian)/?\s", told, re.MULTILINE)[:1]


def unpack(suite: str, architecture: str, names: tuple[str, ...], folder: Path) -> None:
    """The files of these packages, into a directory."""
    if not Path(_KEYS).exists():
        raise SystemExit(f"{_KEYS} is missing; install debian-archive-keyring")
    with tempfile.TemporaryDirectory(prefix="apt-") as place:
        own = Path(place)
        (own / "lists" / "partial").mkdir(parents=True)
        address = (mirror() or [_PUBLIC])[0]
        (own / "sources").write_text(f"deb [arch={architecture} signed-by={_KEYS}] {address} {suite} main\n")
        own.chmod(0o755)  # apt fetches as a user of its own
        apt = _apt(own, architecture)
        subprocess.run([*apt, "update"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*apt, "download", *names], check=True, stdout=subprocess.DEVNULL, cwd=own)
        for package in sorted(own.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)


def _apt(own: Path, architecture: str) -> list[str]:
    """apt with lists of its own: nothing of the host's is changed."""
    settings = {
        "Dir::State::lists": own / "lists", "Dir::State::status": "/dev/null", "Dir::Cache": own / "cache",
        "Dir::Etc::sourcelist": own / "sources", "Dir::Etc::sourceparts": "/dev/null",
        "APT::Architecture": architecture, "APT::Architectures": architecture, "APT::Sandbox::User": "root",
    }  # fmt: skip
    return ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
