"""The commands of docs/deploy, in clean roots of Debian: a clone, installed by root for everybody on the machine."""

from __future__ import annotations

import re
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from tests.clean_root import enter, python_of, root_of
from tests.examples import ROOT, program, written
from tests.release_files import release_folder
from tests.wheels import download

pytestmark = [pytest.mark.long, pytest.mark.unmeasured,
              pytest.mark.skipif(sys.platform != "linux", reason="Linux only")]  # fmt: skip
SUITE = "trixie"
BEGIN = """
set -eu
umask 022
export PATH=/given/bin:$PATH PIP_NO_INDEX=1 PIP_FIND_LINKS=/given/wheels
useradd --create-home somebody
as_somebody() { setpriv --reuid somebody --regid somebody --init-groups env HOME=/home/somebody "$@"; }
mkdir -p /etc/apparmor.d /etc/systemd/system
cd /srv/clone
"""


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A clone, and what pip installs of other people's to build and to run it."""
    with tarfile.open(next(release_folder().glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    next(tmp_path.glob("ringfence-*")).rename(tmp_path / "clone")
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = told["project"]
    wanted = [*told["build-system"]["requires"], *project["dependencies"], *project["optional-dependencies"]["service"]]
    download(tmp_path / "wheels", *wanted, python=python_of(root_of(SUITE)))
    tmp_path.chmod(0o755)
    return tmp_path


def _in_a_clean_root(given: Path, script: str) -> str:
    """What a script prints that begins in the clone; in a network of its own, for ports are fixed."""
    (given / "script.sh").write_text(f"cp -r /given/clone /srv/clone\n{BEGIN}{script}")
    done = enter(root_of(SUITE), given, ["bash", "/given/script.sh"], alone=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


# There is no systemd: what it does with the unit is done by hand, as far as it concerns the service. A user that exists
# only while it runs has the home /, and no variable that names it.
SYSTEMCTL = """
echo "$*" >> /given/systemctl.txt
test "$1" = enable || exit 0
unit=/etc/systemd/system/ringfence.service
useradd --system --uid 999 --home-dir / --no-create-home dynamic
install -d -m 700 -o dynamic -g dynamic /var/lib/ringfence
cd /
umask 077
exec setpriv --reuid dynamic --regid dynamic --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \\
    env -i PATH=/usr/bin $(sed -n s/^Environment=//p $unit) $(sed -n s/^ExecStart=//p $unit) > /given/log.txt 2>&1 &
echo $! > /given/pid
"""
ASK = """
import sys
import time
from ringfence.client import Client
from ringfence.errors import UnavailableError

token = next(word for word in open("/given/said.txt").read().split() if word.startswith("rf_"))
give_up = time.monotonic() + 60
while True:
    try:
        print("ran as", Client(token=token).run(["id", "-u"]).stdout.decode())
        break
    except UnavailableError:
        if time.monotonic() > give_up:
            raise
        time.sleep(0.1)
"""


def test_the_service_is_installed_as_a_unit_and_answers(given: Path) -> None:
    program(given, "systemctl", SYSTEMCTL)
    (given / "ask.py").write_text(ASK)
    lines = written("docs/deploy/systemd.md", "python3 -m venv").splitlines()
    tell = "code=$?; test $code = 0 || echo ended {} with $code"
    tried = "\n".join(f"{line}\n{tell.format(number)}" for number, line in enumerate(lines))
    said = _in_a_clean_root(given, f"""
trap 'kill $(cat /given/pid) || cat /given/log.txt' EXIT
set +e
({tried}
) > /given/said.txt 2>&1
cat /given/said.txt
set -e
/opt/ringfence/bin/python /given/ask.py
""")
    (refused,) = (number for number, line in enumerate(lines) if "setup apparmor" in line)
    assert re.findall(r"^ended (.*)$", said, re.MULTILINE) == [f"{refused} with 2"], said
    assert "\nran as 999\n" in said
    assert (given / "systemctl.txt").read_text() == "daemon-reload\nenable --now ringfence\n"


# There is no AppArmor: the switch of its kernel is a file, which is gone as soon as a profile is loaded.
TAKES_NAMESPACES_AWAY = """
mount -t tmpfs none /proc/sys/kernel
echo 1 > /proc/sys/kernel/apparmor_restrict_unprivileged_userns
"""
PARSER = """
echo "$*" > /given/parser.txt
cp "$2" /given/profile
umount /proc/sys/kernel
"""


def test_a_profile_for_an_installation_that_only_root_can_change(given: Path) -> None:
    program(given, "sudo", 'exec "$@"')  # whoever runs this is root
    program(given, "apparmor_parser", PARSER)
    *install, setup, probe = written("docs/deploy/apparmor.md", "sudo python3").splitlines()
    (given / "probe.sh").write_text(f"{probe}\n")
    said = _in_a_clean_root(given, "\n".join([
        *install, TAKES_NAMESPACES_AWAY, "as_somebody sh /given/probe.sh && exit 9", "echo and then", setup,
        "as_somebody sh /given/probe.sh"]))  # fmt: skip
    before, after = said.split("and then\n")
    assert "AppArmor" in before and "wrote and loaded /etc/apparmor.d/ringfence" in after
    assert (given / "parser.txt").read_text() == "-r /etc/apparmor.d/ringfence\n"
    assert '"/opt/ringfence/bin/{ringfence,proctor}"' in (given / "profile").read_text()
