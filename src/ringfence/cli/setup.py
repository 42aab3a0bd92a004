"""Prepare this host for sandboxes of ordinary users, if something on it prevents them.

apparmor: on some hosts, such as Ubuntu 23.10 and later, AppArmor takes all privileges in a user namespace away from
programs that have no profile. This writes one for ringfence and proctor, which allows them user namespaces and nothing
else that they could not do before.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys

EXAMPLES = """\
examples:
  ringfence setup apparmor --dry-run                  print the profile, change nothing
  sudo /opt/ringfence/bin/ringfence setup apparmor    write it to /etc/apparmor.d/ringfence and load it

The installation must be one that only root can change: one in a home directory is refused. sudo does not search the
PATH of a virtual environment: give the full path. docs/deploy/apparmor.md has the commands that install it for root.
The profile is for the two commands of this installation, by their paths. A Python program that uses ringfence as a
library needs one for its own path: change the line in the printed profile. To undo it:
sudo apparmor_parser -R /etc/apparmor.d/ringfence && sudo rm /etc/apparmor.d/ringfence
"""
SWITCH = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
PLACE = "/etc/apparmor.d/ringfence"
_PROFILE = """\
# Written by `ringfence setup apparmor`: these programs may make user namespaces, which their sandboxes are.
abi <abi/4.0>,
include <tunables/global>

profile ringfence "{folder}/{{ringfence,proctor}}" flags=(unconfined) {{
  userns,
}}
"""
_SPECIAL = set('"\\*?[]{}^@,\n')


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("apparmor",), help="what to prepare")
    parser.add_argument("--dry-run", action="store_true", help="print what would be written, and change nothing")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.model.ways.walk import real

    folder = os.path.dirname(real(sys.argv[0]))
    text = profile(folder)
    if arguments.dry_run:
        print(text, end="")
        return 0
    refuse(folder)
    _load(text)
    print(f"wrote and loaded {PLACE}: ringfence and proctor in {folder} may make user namespaces")
    return 0


def profile(folder: str) -> str:
    """Return the profile for the commands in a directory."""
    from ringfence.errors import UsageError

    if _SPECIAL & set(folder) or not os.path.isabs(folder):
        raise UsageError(f"the path {folder!a} has characters that AppArmor profiles can't contain",
                         hint="install ringfence at a plain path")  # fmt: skip
    return _PROFILE.format(folder=folder)


def refuse(folder: str, switch: str = SWITCH) -> None:
    """Raise an error where a profile is not needed, not possible, or would give more than it says."""
    from ringfence.errors import UnavailableError, UsageError

    try:
        with open(switch) as file:
            blocks = file.read().strip() == "1"
    except OSError:
        blocks = False
    if not blocks:
        raise UsageError("AppArmor does not restrict user namespaces here; there is nothing to set up",
                         hint="ringfence probe shows what this host can enforce")  # fmt: skip
    if os.geteuid() != 0:
        raise UsageError("only root can load a profile", hint='sudo "$(command -v ringfence)" setup apparmor')
    from shutil import which

    if which("apparmor_parser") is None:
        raise UnavailableError("apparmor_parser was not found", hint="install the package apparmor")
    if os.path.lexists(PLACE):
        raise UsageError(f"{PLACE} already exists", hint="ringfence setup apparmor --help says how to undo it")
    program = os.path.join(folder, "ringfence")
    if not os.path.isfile(program):
        raise UsageError(f"{program} was not found", hint="run the installed command by its full path")
    from ringfence.model.ways.walk import real

    package = os.path.dirname(os.path.dirname(real(__file__)))
    parts = (program, real(sys.executable), package, os.path.dirname(os.__file__))
    for path in dict.fromkeys(each for part in parts for each in _way_to(part)):
        found = os.stat(path)
        # In a sticky directory such as /tmp, others can't replace what belongs to root.
        if found.st_uid != 0 or (found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX):
            raise UsageError(f"{path} can be changed by users other than root, who would get user namespaces that way",
                             hint="install ringfence where only root writes, such as /opt/ringfence")  # fmt: skip


def _way_to(path: str) -> list[str]:
    """Return the path and every directory above it."""
    way = [path]
    while way[-1] != os.path.dirname(way[-1]):
        way.append(os.path.dirname(way[-1]))
    return way


def _load(text: str) -> None:
    import subprocess

    from ringfence.errors import UsageError
    from ringfence.model.own_files import write_whole

    write_whole(PLACE, text.encode(), mode=0o644)
    done = subprocess.run(["apparmor_parser", "-r", PLACE], capture_output=True, text=True, check=False)
    if done.returncode:
        os.unlink(PLACE)
        problem = done.stderr.strip()[-300:]
        raise UsageError(f"AppArmor does not accept the profile: {problem}", hint="nothing was changed")
