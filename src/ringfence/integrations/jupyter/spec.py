"""The kernel spec: a directory with ``kernel.json``, installed where Jupyter looks."""

from __future__ import annotations

import json
import os
import sys
import tempfile

from jupyter_client.kernelspec import KernelSpecManager

from ringfence.model.ways.walk import absolute


def install(name: str, *, user: bool, prefix: str = "", policy: str = "") -> str:
    """Install it; where it went. ``policy``: a file, read each time a kernel starts."""
    chosen = ["--policy", absolute(policy)] if policy else []
    spec = {
        # -P: Jupyter starts it in the notebook's directory, whose modules are as untrusted as the notebook.
        "argv": [sys.executable, "-P", "-m", "ringfence", "jupyter", "kernel", "{connection_file}", *chosen],
        "display_name": "Python (ringfence)",
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {"debugger": False},
    }
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        with open(os.path.join(folder, "kernel.json"), "w", encoding="utf-8") as file:
            json.dump(spec, file, indent=1)
        where: str = KernelSpecManager().install_kernel_spec(folder, name, user=user, prefix=prefix or None)
    return where
