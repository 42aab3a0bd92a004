"""Make or check the manifest of a submission: the digests of what is submitted with an agent."""

from __future__ import annotations

import argparse
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.proctor.submission_manifest.binding import Found
    from ringfence.proctor.submission_manifest.document import Submitted
    from ringfence.proctor.submission_manifest.known_answers import Known

EXAMPLES = """\
examples:
  %(prog)s create --agent-binary ./my-agent --scaffold ./prompts --instructions AGENTS.md \\
      --environment MODEL_API_KEY --out submission.json
  %(prog)s verify --manifest submission.json --agent-binary ./my-agent --scaffold ./prompts --instructions AGENTS.md
  %(prog)s verify --manifest submission.json --agent-binary ./my-agent --task ./task      (is an answer in it?)
  proctor run --task ./task --agent "./my-agent --solve" --scaffold ./prompts --manifest submission.json --out ./out

With --task or --answers the submission is searched for known answers. Exit code of create: 0 when the file was
written; of verify: 0 when all is as the manifest says and no answer is in it, else 2.
docs/reference/proctor/manifest.md has the details.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["create", "verify"], help="write the manifest, or check the files by it")
    parser.add_argument("--agent-binary", metavar="PATH", required=True, help="the program of the agent")
    for name, what in (("scaffold", "a file or directory that the agent may read"),
                       ("instructions", "a file of instructions, such as AGENTS.md")):  # fmt: skip
        parser.add_argument(f"--{name}", metavar="PATH", action="append", default=[], help=f"{what} (repeatable)")
    parser.add_argument("--environment", metavar="NAME", action="append", default=[],
                        help="a variable that the agent needs, without its value (repeatable)")  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="the manifest to write")
    parser.add_argument("--manifest", metavar="FILE", help="the manifest to check")
    parser.add_argument("--task", metavar="DIR", help="search for the answers of this task")
    parser.add_argument("--answers", metavar="PATH", action="append", default=[],
                        help="search for these: a solution, a patch, a SWE-bench instance (repeatable)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.errors import UsageError

    needed, other = ("out", "manifest") if arguments.action == "create" else ("manifest", "out")
    if not getattr(arguments, needed) or getattr(arguments, other):
        raise UsageError(f"{arguments.action} needs --{needed} FILE, and does not take --{other}")
    return (_create if arguments.action == "create" else _verify)(arguments)


def _create(arguments: argparse.Namespace) -> int:
    from ringfence.evidence.bundle import write_beside
    from ringfence.evidence.digest import sha256_hex
    from ringfence.proctor.submission_manifest.binding import inspect
    from ringfence.proctor.submission_manifest.document import encode

    known = _known(arguments)
    document, found = inspect(_submitted(arguments), known)
    data = encode(document)
    write_beside(arguments.out, data)
    _tell(arguments, [], found, known, {"manifest": arguments.out, "sha256": sha256_hex(data)})
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from ringfence.proctor.submission_manifest.binding import inspect
    from ringfence.proctor.submission_manifest.document import differences, read_manifest

    declared, known = read_manifest(arguments.manifest), _known(arguments)
    here, found = inspect(_submitted(arguments), known)
    wrong = differences(declared, here)
    _tell(arguments, wrong, found, known, {"manifest": arguments.manifest})
    return 2 if wrong or found else 0


def _submitted(arguments: argparse.Namespace) -> Submitted:
    from ringfence.proctor.submission_manifest.document import Submitted, names_in

    return Submitted(
        agent_binary=arguments.agent_binary, scaffold=tuple(arguments.scaffold),
        instructions=tuple(arguments.instructions), environment=names_in(arguments.environment),
    )  # fmt: skip


def _known(arguments: argparse.Namespace) -> Known:
    from ringfence.proctor.submission_manifest.known_answers import known_answers
    from ringfence.proctor.task import Task

    return known_answers(Task.from_folder(arguments.task) if arguments.task else None, arguments.answers)


def _tell(
    arguments: argparse.Namespace, wrong: list[str], found: list[Found], known: Known, more: dict[str, str]
) -> None:
    if arguments.json:
        from ringfence.cli.json_text import print_json

        looked_for = len(known.answers) + len(known.copies)
        print_json({**more, "differences": wrong, "known_answers": [each.__dict__ for each in found],
                    "looked_for": looked_for, "complete": known.complete})  # fmt: skip
        return
    from ringfence.model.system_text import escape_controls

    for line in [*wrong, *(f"a known answer: {each}" for each in found)]:
        print(escape_controls(f"proctor: {line}"), file=sys.stderr)
    if "sha256" in more:
        print(escape_controls(f"wrote {more['manifest']}, sha256 {more['sha256']}"))
    elif not wrong and not found:
        print("all is as the manifest says")
