"""Run an agent on a task of Terminal-Bench or Harbor, and sign what happened."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  %(prog)s --task ./hello-world --agent oracle --out ./out --image
  %(prog)s --task ./hello-world --agent "my-agent --solve" --out ./out --rootfs host
  %(prog)s --task ./hello-world --agent my-agent --allow api.example.com --out ./out --image

A task's Dockerfile says what its agent has. --image builds that with docker or podman and runs agent and grader on its
root; --rootfs host runs them on this host's root, if that has everything the task asks for. Choose one. stderr
lists where the run differs from the task's format; docs/reference/proctor/terminal-bench.md lists the keys. Exit code 0
when a verdict was written, even if the run failed or was compromised, 1 when there is none, 2 for bad usage.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    from ringfence.cli.proctor_run import configure_run

    parser.add_argument("--task", metavar="DIR", required=True, help="the directory of the task")
    configure_run(parser)
    root = parser.add_mutually_exclusive_group()
    root.add_argument("--image", action="store_true", help="build the task's image, and run on its root")
    root.add_argument("--rootfs", choices=("host",), help="run on this host's own root")
    parser.add_argument(
        "--allow", metavar="HOST", action="append", default=[],
        help="a host that agent and grader may reach, if the task asks for the whole network (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--env", metavar="NAME", action="append", default=[],
        help="a variable of yours that the task may ask for by its name (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--build-network", choices=("none", "default", "host"), default="",
        help="the network of the build steps (default: as the task says)",
    )  # fmt: skip


def execute(arguments: argparse.Namespace) -> int:
    import os
    import sys

    from ringfence.cli.proctor_run import run_task
    from ringfence.errors import UsageError
    from ringfence.evidence.keys import SEED_VARIABLE
    from ringfence.model.system_text import escape_controls
    from ringfence.proctor.foreign import terminal_tasks

    absent = [name for name in arguments.env if name not in os.environ]
    if SEED_VARIABLE in arguments.env:
        raise UsageError(f"--env {SEED_VARIABLE}: it signs verdicts and can't be passed on", hint="name another")
    if absent:
        raise UsageError(f"--env {absent[0]}: the variable is not set", hint="export it first")
    task = terminal_tasks.load(
        arguments.task, rootfs="image" if arguments.image else arguments.rootfs or "", allow=arguments.allow,
        environment={name: os.environ[name] for name in arguments.env}, build_network=arguments.build_network,
    )  # fmt: skip
    for note in task.notes:
        print(f"proctor: {escape_controls(note)}", file=sys.stderr)
    return run_task(task, arguments)
