"""Serve metrics to Prometheus: those of all processes that run with RINGFENCE_METRICS=DIR."""

from __future__ import annotations

import argparse
import os

EXAMPLES = """\
examples:
  RINGFENCE_METRICS=/run/ringfence ringfence run -- make test
  ringfence metrics serve --folder /run/ringfence
  ringfence metrics serve --port 9000 --file config/docker_config.yaml

It listens on loopback unless --host says otherwise: there is no password. The port is that of the configuration
(monitoring.prometheus_port, 8000). docs/how-to/containers/monitoring.md lists the metrics.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["serve"], help="answer Prometheus over HTTP")
    parser.add_argument("--folder", metavar="DIR",
                        help="where the processes write their counts (default: RINGFENCE_METRICS)")  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="the port (default: the configuration's, 8000)")
    parser.add_argument("--file", metavar="FILE", help="a configuration that names the port")


def execute(arguments: argparse.Namespace) -> int:
    import threading

    from ringfence.docker_sandbox.config import DockerConfig
    from ringfence.errors import UsageError
    from ringfence.metrics.recorder import VARIABLE
    from ringfence.metrics.serving import serve

    folder = arguments.folder or os.environ.get(VARIABLE, "")
    if not os.path.isabs(folder):
        raise UsageError(f"{folder}: not an absolute path" if folder else "no directory was given",
                         hint=f"give --folder an absolute path, or set {VARIABLE} to one")  # fmt: skip
    changes = {} if arguments.port is None else {"prometheus_port": arguments.port}
    port = DockerConfig.load(arguments.file, None, **changes).prometheus_port
    served = serve(port, arguments.host, folder)
    print(f"http://{arguments.host}:{served.port}/metrics", flush=True)
    try:
        threading.Event().wait()
    finally:
        served.close()
    return 0
