"""Serve runs, boxes, pools and bundles over HTTP, with a page that shows what happens."""

from __future__ import annotations

import argparse
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfence.service.settings import Settings

EXAMPLES = """\
examples:
  ringfence serve                                   on http://127.0.0.1:8700/, for this machine alone
  ringfence serve --config service.yaml
  ringfence serve --new-token ci --tokens tokens.yaml --scope run --scope read
  ringfence serve --host 0.0.0.0 --tokens tokens.yaml

Without tokens it listens on loopback only, and anybody who can connect may use it.
docs/reference/service.md has the details.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="settings, policies and workspaces (YAML)")
    parser.add_argument("--host", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="the port (default: 8700)")
    parser.add_argument("--tokens", metavar="FILE", help="who may use it, and how much")
    parser.add_argument("--state", metavar="DIR", help="where boxes and results are kept")
    parser.add_argument("--log", choices=["info", "warning"], default="info", help="how much is logged (default: info)")
    parser.add_argument("--new-token", metavar="NAME", help="add a token to the file, print it once, and exit")
    parser.add_argument("--scope", action="append", metavar="SCOPE",
                        help="what the new token may do: read, run, box, commit, bundle or operator (repeatable; "
                             "default: read, run and box)")  # fmt: skip


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.errors import UnavailableError, UsageError
    from ringfence.service.settings import Settings, changed, read_settings

    if os.name == "nt":
        raise UnavailableError("the service needs Linux or macOS", missing=("Linux",), hint="run it on Linux")
    if arguments.new_token:
        return _new_token(arguments)
    if arguments.tokens == "":
        raise UsageError("--tokens: the name of the file is empty", hint="for a service without tokens, omit it")
    settings = read_settings(arguments.config) if arguments.config else Settings()
    if arguments.port is not None and not 0 <= arguments.port <= 65535:
        raise UsageError(f"--port {arguments.port}: must be from 0 to 65535")
    settings = changed(settings, host=arguments.host, port=arguments.port, tokens=arguments.tokens,
                       state=arguments.state).checked()  # fmt: skip
    _log_to_stderr(arguments.log.upper())
    serve = _loaded()
    serve(settings)
    return 0


def _new_token(arguments: argparse.Namespace) -> int:
    from ringfence.errors import UsageError
    from ringfence.service.tokens import add_token

    if not arguments.tokens:
        raise UsageError("--new-token needs a file for the token", hint="add --tokens FILE")
    print(add_token(arguments.tokens, arguments.new_token, tuple(arguments.scope or ("read", "run", "box"))))
    return 0


def _log_to_stderr(level: str) -> None:
    import logging

    from ringfence.metrics.life_log import JsonFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    # That of all, since a framework may quote a client's text: outside of JSON it could look like lines of ours.
    logging.getLogger().addHandler(handler)
    logging.getLogger("ringfence.service").setLevel(level)


def _loaded() -> Callable[[Settings], None]:
    from ringfence.errors import UnavailableError, hint_for_extra

    try:
        from ringfence.service.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ringfence"):
            raise
        raise UnavailableError(f"the service needs the package {error.name}", missing=(error.name or "starlette",),
                               fixes=(hint_for_extra("service"),)) from error  # fmt: skip
    return serve
