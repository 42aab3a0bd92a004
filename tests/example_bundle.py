"""The bundle in examples/bundle: ``python -m tests.example_bundle`` makes it anew, by a real run.

Its agent cheats. The key is made for this one run and thrown away: nobody can sign another bundle with it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "bundle"
AGENT = "cat /oracle/totals.csv > totals.csv"
_PROGRAM = """
import os, platform, sys
from types import SimpleNamespace
names = os.uname()
kernel = ".".join(names.release.split(".")[:2])
os.uname = lambda: SimpleNamespace(sysname=names.sysname, nodename="", release=kernel, machine=names.machine)
platform.release = lambda: kernel
from ringfence.cli import proctor_main
sys.exit(proctor_main())
"""
_README = """\
# A bundle to verify

The result of a real run, in one file, and what it binds beside it. The agent's command was

    {agent}

The answer was not in its sandbox, and the attempt is on record. Check it:

    ringfence verify-bundle --bundle bundle.json --artifacts . --pubkey "$(cat signer.pub)"

It says `bundle OK`, and `pass=false status=compromised`. Change a value in `bundle.json` (white space is not
signed), or a byte of a file that its `manifest` names, and it says which step fails. `ringfence verify-page` prints
a page that checks it in a browser.
Of the kernel's version only the first two numbers are kept.
`python -m tests.example_bundle` in the repository makes all of it anew, with a new key.
"""


def make(target: Path) -> None:
    """Run the agent, and leave its evidence in a new directory."""
    with tempfile.TemporaryDirectory() as place:
        _proctor(place, "init", "sum-it")
        told = _proctor(place, "keygen", "--out", "signer.key")
        _proctor(place, "run", "--task", "sum-it", "--agent", AGENT, "--key", "signer.key", "--out", "out")
        # Not the page for people, which is nearly all our own program.
        shutil.copytree(Path(place) / "out", target, ignore=shutil.ignore_patterns("report.html"))
    (target / "signer.pub").write_text(told.partition("pubkey=")[2].split()[0] + "\n", encoding="utf-8")
    target.chmod(0o755)
    for file in target.iterdir():
        file.chmod(0o644)
    (target / "README.md").write_text(_README.format(agent=AGENT), encoding="utf-8")


def _proctor(place: str, *words: str) -> str:
    command = [sys.executable, "-P", "-c", _PROGRAM, *words]
    done = subprocess.run(command, cwd=place, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    make(FOLDER)
