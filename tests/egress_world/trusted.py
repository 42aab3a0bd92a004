"""A world whose system trusts one authority alone, in its own mount namespace: programs find it where they look.

No setting of this machine's own for pip is left there.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

STORE, PIP = "/etc/ssl/certs", "/etc/pip.conf"


def everywhere(authority: str) -> None:
    """Where OpenSSL, curl, git and Debian's node look, and where a pip looks that has a list of its own."""
    store = os.path.realpath(STORE)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "authorities", store], check=True)
    shutil.copy(authority, os.path.join(store, "ca-certificates.crt"))
    shutil.copy(authority, os.path.join(store, "world.pem"))
    subprocess.run(["openssl", "rehash", store], check=True, capture_output=True)
    for path in _lists_of_pip():
        subprocess.run(["mount", "--bind", authority, str(path)], check=True)
    if os.path.exists(PIP):
        with tempfile.NamedTemporaryFile() as empty:
            os.chmod(empty.name, 0o644)
            subprocess.run(["mount", "--bind", empty.name, os.path.realpath(PIP)], check=True)


def _lists_of_pip() -> list[Path]:
    """Before 24.2 pip asks only the list that it comes with."""
    spec = importlib.util.find_spec("pip")
    if spec is None or tuple(map(int, version("pip").split(".")[:2])) >= (24, 2):
        return []
    own = Path(str(spec.origin)).parent / "_vendor/certifi/cacert.pem"
    return [own] if own.is_file() else []
