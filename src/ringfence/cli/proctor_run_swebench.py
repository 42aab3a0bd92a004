"""Run an agent on an instance of SWE-bench, or grade a prediction for it, and sign what happened."""

from __future__ import annotations

import sys
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from ringfence.proctor.foreign.instance import Instance
    from ringfence.proctor.task import Task

EXAMPLES = """\
examples:
  %(prog)s --instance i.json --repo ./flask --agent "my-agent --solve" --out ./out --grade --rootfs host
  %(prog)s --instance data.jsonl --instance-id psf__requests-1142 --repo ./requests --agent oracle --out ./out \\
      --grade --rootfs host --python ./venv/bin/python
  %(prog)s --instance i.json --repo ./flask --predictions predictions.jsonl --out ./out --rootfs host

The agent has the repository at its base commit in /testbed and the problem statement as its instruction. Without
--grade nothing is graded: no pass, no reward. `--agent oracle` applies the instance's own patch, `--agent nop` does
nothing. Exit code 0 when a verdict was written, 1 when there is none, 2 for bad usage.
docs/reference/proctor/swebench.md describes the rest.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    from ringfence.cli.proctor_run import configure_run

    parser.add_argument("--instance", metavar="FILE", required=True, help="the data set's own JSON or JSONL")
    parser.add_argument("--instance-id", metavar="ID", default="", help="which row, where the file has several")
    parser.add_argument("--repo", metavar="CLONE", required=True, help="a clone that has the base commit")
    parser.add_argument("--predictions", metavar="FILE", help="grade the patch in here; no agent runs")
    parser.add_argument("--grade", action="store_true", help="run the tests of both sets on what the agent left")
    root = parser.add_mutually_exclusive_group()
    root.add_argument("--image", metavar="REF", nargs="?", const="", help="run in its image (default: the data set's)")
    root.add_argument("--rootfs", choices=("host",), default="", help="run on the host's root")
    parser.add_argument("--python", metavar="FILE", default="", help="the interpreter with what the repository needs")
    parser.add_argument("--policy", metavar="FILE", help="the policy of agent and grader")
    configure_run(parser, agent_needed=False)


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.cli.proctor_run import run_task
    from ringfence.errors import UsageError
    from ringfence.model.system_text import escape_controls
    from ringfence.proctor.foreign.instance import read_instance
    from ringfence.proctor.foreign.predictions import patching, prediction_for
    from ringfence.proctor.foreign.swebench import TESTBED

    if bool(arguments.agent) == bool(arguments.predictions):
        given = "both --agent and --predictions were" if arguments.agent else "neither --agent nor --predictions was"
        raise UsageError(f"{given} given", hint="give --agent CMD or --predictions FILE")
    instance = read_instance(arguments.instance, arguments.instance_id)
    with (
        tempfile.TemporaryDirectory(prefix="ringfence-swebench-") as place,
        # Kept apart: the agent of a prediction reads its patch, and nothing of the task.
        tempfile.TemporaryDirectory(prefix="ringfence-prediction-") as given,
    ):
        task = _task(arguments, instance, place)
        for note in task.notes:
            print(f"proctor: {escape_controls(note)}", file=sys.stderr)
        if arguments.predictions:
            made = prediction_for(arguments.predictions, instance)
            arguments.agent = patching(made.model_patch, given, TESTBED)
        return run_task(task, arguments)


def _task(arguments: argparse.Namespace, instance: Instance, place: str) -> Task:
    from ringfence.model.ways.walk import absolute
    from ringfence.proctor.foreign.swebench import HOST, IMAGE, load
    from ringfence.proctor.task_policy import TaskPolicy

    return load(
        instance, arguments.repo, place=place, image=arguments.image or "",
        rootfs=IMAGE if arguments.image is not None else HOST if arguments.rootfs else "",
        grade=arguments.grade or bool(arguments.predictions),
        python=absolute(arguments.python) if arguments.python else "",
        policy=TaskPolicy.from_yaml(arguments.policy) if arguments.policy else None,
    )  # fmt: skip
