"""A network of its own in which the hosts of real models are a scripted one: no packet leaves it.

An example with ``openai:gpt-5`` runs as it is written, by the vendor's own client, with a key that is nobody's.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.examples.own_network import OwnNetwork, own_network
from tests.examples.scripted_model import ASKED, KEY, PEM, SCRIPT, Turn, answers
from tests.framework_environment import SILENT, SOURCE, packages_of

HOSTS = ("api.openai.com", "router.huggingface.co")

ELSEWHERE = ["env", "-u", "OPENAI_BASE_URL", "-u", "OPENAI_API_BASE"]
"""Without what would lead the clients of whoever runs the tests to other hosts."""


class ModelNetwork:
    """Programs of one example, in ``folder/work``, and the model that they ask."""

    def __init__(self, network: OwnNetwork) -> None:
        self._network, self.folder, self.work = network, network.folder, network.folder / "work"

    def run(self, code: str, installed: Sequence[str | Path], script: list[Turn]) -> str:
        """What a Python program prints to which the model says these turns; ``installed``: as for ``with_packages``."""
        (self.folder / SCRIPT).write_text(json.dumps(script))
        (self.folder / "example.py").write_text(code)
        python = with_packages(self.folder / "venv", installed)
        command = shlex.join([*ELSEWHERE, python, str(self.folder / "example.py")])
        return self._network.shell(command, SILENT | self._variables())

    def _variables(self) -> dict[str, str]:
        """Keys of nobody, and no proxy, which would look for the hosts elsewhere."""
        # huggingface_hub looks at how a key begins before it asks anybody.
        keys = {"OPENAI_API_KEY": "key_of_nobody", "HF_TOKEN": "hf_key_of_nobody"}
        return keys | {"SSL_CERT_FILE": str(self.folder / PEM), "no_proxy": "*", "HOME": str(self.folder)}

    def asked(self) -> dict[str, Any]:
        """The last request, with the whole conversation."""
        last: dict[str, Any] = json.loads((self.folder / ASKED).read_text().splitlines()[-1])
        return last

    def answers(self) -> list[str]:
        """What the tools told the model."""
        return answers(self.asked())


def with_packages(venv: Path, installed: Sequence[str | Path]) -> str:
    """The interpreter of a new virtual environment that has frameworks, by their name in ``WANTED``, and directories
    with modules, and what the tests run with. A sandbox shows what a virtual environment has, and no PYTHONPATH."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    folders = [packages_of(each) if isinstance(each, str) else each for each in installed]
    own = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages,) = venv.glob("lib/python3.*/site-packages")
    (packages / "installed.pth").write_text("".join(f"{path}\n" for path in (*folders, SOURCE, *own)))
    return str(venv / "bin" / "python")


@contextmanager
def model_network(folder: Path, places: Mapping[str, Path] | None = None) -> Iterator[ModelNetwork]:
    (folder / "hosts").write_text(f"127.0.0.1 localhost {' '.join(HOSTS)}\n")
    _certify(folder)
    start = shlex.join([sys.executable, "-m", "tests.examples.scripted_model", str(folder)])
    own = {"/etc/hosts": folder / "hosts", **(places or {})}
    path = {"PYTHONPATH": str(SOURCE.parent)}
    with own_network(folder, own) as network, network.serving(start, f"https://{HOSTS[0]}", path):
        yield ModelNetwork(network)


def _certify(folder: Path) -> None:
    names = ",".join(f"DNS:{host}" for host in HOSTS)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-keyout", KEY, "-out", PEM, "-days", "2", "-subj", f"/CN={HOSTS[0]}",
               "-addext", f"subjectAltName={names}"]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
