"""Run a strategy, a Python file with run(data) -> dict, in a container that is made for it and removed afterwards."""

from __future__ import annotations

import argparse
import sys
from _collections_abc import Iterator
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.docker_sandbox.config import DockerConfig
    from ringfence.docker_sandbox.result import DockerExecutionResult

MAX_CODE_BYTES = 16 << 20
_IN_THE_RESULT = ("docker_unavailable", "container_creation_failed", "execution_ended", "execution_timeout",
                  "resource_limit_exceeded", "strategy_rejected")  # fmt: skip
EXAMPLES = """\
examples:
  ringfence strategy run strategy.py --data prices.json
  ringfence strategy run strategy.py --data prices.csv        (the file is in /input, data is its path)
  ringfence strategy run strategy.py --file config/docker_config.yaml --image my-strategies:1 --json
  RINGFENCE_DOCKER__MEMORY_LIMIT=512m ringfence strategy run strategy.py

A .json file is parsed and passed to run(); any other file is put in /input, and run() gets its path. The result is
printed as JSON. The exit code is 0 with a result, 1 where the strategy failed, was rejected or was killed, or its
container could not be made, 2 where there is no container engine or it is switched off.
docs/how-to/containers/quick-start.md has the details.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["run"], help="run the strategy")
    parser.add_argument("strategy", metavar="FILE", help="the strategy (Python)")
    parser.add_argument("--data", metavar="FILE", help="the data that run() gets (default: None)")
    parser.add_argument("--file", metavar="FILE", help="a configuration (YAML; default: none)")
    parser.add_argument("--image", help="the image for the container (default: the configuration's)")
    parser.add_argument("--timeout", metavar="S", type=int,
                        help="seconds until it is killed (default: the configuration's)")  # fmt: skip
    parser.add_argument("--no-validate", action="store_true",
                        help="skip the check of the code; the container still confines it")  # fmt: skip
    parser.add_argument("--log-json", action="store_true", help="life-cycle events as lines of JSON on stderr")
    parser.add_argument("--json", action="store_true", help="print all fields of the result")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.docker_sandbox.executor import DockerExecutor
    from ringfence.errors import UsageError
    from ringfence.model.files import read_file

    try:
        code = read_file(arguments.strategy, MAX_CODE_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{arguments.strategy}: not UTF-8 at byte {error.start}") from error
    if arguments.log_json:
        from ringfence.metrics.life_log import write_json_lines

        write_json_lines()
    config = _config(arguments)
    data = _data(arguments.data, config.bytes_of("data_limit"))
    executor = DockerExecutor(config)
    with _warnings_told():
        try:
            result = executor.execute(code, data)
        finally:
            executor.close()
    return _told(result, as_json=arguments.json)


@contextmanager
def _warnings_told() -> Iterator[None]:
    """Print the log's warnings as lines of ours, except those that the result repeats."""
    import logging

    from ringfence.metrics.life_log import LOGGER

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("ringfence: %(message)s"))
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: getattr(record, "ringfence", {}).get("event") not in _IN_THE_RESULT)
    logger = logging.getLogger(LOGGER)
    if logger.handlers:  # as lines of JSON
        yield
        return
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _config(arguments: argparse.Namespace) -> DockerConfig:
    """A single strategy needs no containers that stand by."""
    from ringfence.docker_sandbox.config import DockerConfig

    given = {"image": arguments.image, "timeout_seconds": arguments.timeout}
    changes: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    changes |= {"validate": False} if arguments.no_validate else {}
    return DockerConfig.load(arguments.file, None, warm_containers=0, **changes)


def _data(path: str | None, most_bytes: int) -> object:
    from pathlib import Path

    from ringfence.errors import EvidenceError, UsageError
    from ringfence.evidence import strictjson
    from ringfence.model.files import read_file

    if path is None or not path.endswith(".json"):
        return None if path is None else Path(path)
    try:
        return strictjson.parse(read_file(path, most_bytes))
    except EvidenceError as error:
        raise UsageError(f"{path}: {error}") from None


def _told(result: DockerExecutionResult, *, as_json: bool) -> int:
    from ringfence.cli.json_text import print_json
    from ringfence.docker_sandbox.result import StrategyStatus, as_dict
    from ringfence.model.system_text import escape_controls

    if as_json:
        print_json(as_dict(result))
    elif result.success:
        print_json(result.metrics)
    else:
        for line in result.security_rejections or [result.error_message or ""]:
            print(escape_controls(f"ringfence: {result.status}: {line}"), file=sys.stderr)
    if result.success:
        return 0
    return 2 if result.status in (StrategyStatus.UNAVAILABLE, StrategyStatus.DISABLED) else 1
