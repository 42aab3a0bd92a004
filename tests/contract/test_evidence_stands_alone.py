"""The verifier is audited by itself: what it loads, and that it needs no POSIX and no heavy import."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
PACKAGE = os.path.join(ROOT, "src", "ringfence", "evidence")
MODULES = sorted(name.removesuffix(".py") for name in os.listdir(PACKAGE) if name.endswith(".py"))
VECTOR = os.path.join(ROOT, "tests", "vectors", "evidence", "good-ringfence-3.json")
VERIFY = (
    "from ringfence.evidence.verify import verify_bundle; from ringfence.evidence.trust import Trust\n"
    f"verify_bundle(open({VECTOR!r}, 'rb').read(), trust=Trust.unsafe_any_signer())\n"
)
LOADED = "print(*sorted(name for name in sys.modules))"


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\n{LOADED}"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_a_verification_loads_no_sandbox_code() -> None:
    ours = {name for name in loaded_by(VERIFY) if name.split(".")[0] == "ringfence"}
    small = {"ringfence", "ringfence.errors", "ringfence.model", "ringfence.model.record"}  # standard library only
    strange = {name for name in ours - small if ".evidence" not in name}
    assert "ringfence.evidence.verify" in ours
    assert strange == set()


@pytest.mark.parametrize("module", MODULES)
def test_importing_a_module_loads_nothing_heavy(module: str) -> None:
    loaded = loaded_by(f"import ringfence.evidence.{module}")
    heavy = {
        "cryptography",
        "rfc8785",
        "rfc3161_client",
        "ctypes",
        "asyncio",
        "subprocess",
        "fcntl",
        "logging",
    }
    # tempfile draws on fcntl-free standard modules only where the platform has them
    assert loaded & heavy == set()


def test_it_all_works_without_the_posix_modules() -> None:
    """As on Windows: no fcntl, resource, pwd, grp, and an os without the POSIX open flags."""
    code = (
        "import os\n"
        "for name in ('fcntl', 'resource', 'pwd', 'grp', 'termios'): sys.modules[name] = None\n"
        "for name in ('O_NOFOLLOW', 'O_NONBLOCK', 'O_CLOEXEC', 'O_DIRECTORY'): delattr(os, name)\n"
        + "".join(f"import ringfence.evidence.{name}\n" for name in MODULES)
        + VERIFY
    )
    assert "ringfence.evidence.verify" in loaded_by(code)
