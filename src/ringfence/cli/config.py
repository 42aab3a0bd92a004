"""Show the configuration of containers: every value, and the file, variable or default that it comes from."""

from __future__ import annotations

import argparse

from ringfence.cli.json_text import print_json

EXAMPLES = """\
examples:
  ringfence config show
  ringfence config show --file config/docker_config.yaml
  RINGFENCE_DOCKER__MEMORY_LIMIT=1g ringfence config show --json | jq '.["docker.memory_limit"]'

A wrong value is reported by its key, and in a file by line and column; the exit code is 2.
docs/how-to/containers/configuration.md explains every key.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["show"], help="print the configuration")
    parser.add_argument("--file", metavar="FILE", help="a configuration (YAML; default: none)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.docker_sandbox.config import DockerConfig
    from ringfence.docker_sandbox.config_keys import KEYS

    config = DockerConfig.load(arguments.file)
    told = {key.path: {"value": getattr(config, key.field), "origin": config.origin(key.field)} for key in KEYS}
    if arguments.json:
        print_json(told)
        return 0
    shown = {path: _shown(row["value"]) for path, row in told.items()}
    width, wide = max(map(len, shown)), max(map(len, shown.values()))
    for path, text in shown.items():
        print(f"{path:<{width}}  {text:<{wide}}  {told[path]['origin']}")
    return 0


def _shown(value: object) -> str:
    """A value as a file would show it."""
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'
