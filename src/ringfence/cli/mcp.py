"""Serve one sandbox to an MCP application (Model Context Protocol), over stdin and stdout."""

from __future__ import annotations

import argparse
import os
import sys
import time

from ringfence.checkpoint.transaction import Transaction
from ringfence.cli.policy_flags import add_policy_flags, policy_from
from ringfence.cli.stored_sandbox import StoredSandbox
from ringfence.engine.run import backend_for, refuse, transaction_kind
from ringfence.errors import UnavailableError, UsageError, hint_for_extra
from ringfence.manager.registry import Metadata, Registry
from ringfence.model.limits import IsolationLevel
from ringfence.model.policy import SandboxPolicy
from ringfence.model.state_folder import sandboxes_folder
from ringfence.model.ways.walk import real
from ringfence.sandbox.networks import rules_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

EXAMPLES = """\
examples:
  ringfence mcp --workspace .                     changes there are kept until the operator agrees
  ringfence mcp --policy policy.yaml              limits, network and paths by a policy file
  ringfence mcp --network pypi.org,files.pythonhosted.org
  ringfence mcp --workspace . --commit never      changes stay for: ringfence diff ID, ringfence commit ID

The model works under the policy and can't change it. --network replaces the whole network list of a policy file, with
its inject rules. Needs the extra mcp, in a clone: pip install '.[mcp]' (README, Install). docs/how-to/mcp.md
"""
_SESSION = {"cpu_time_s": 3600}
"""Unless a policy file or a flag says otherwise: a session is many commands, and its wall time is each command's."""
_ID_BYTES = 3


def configure(parser: argparse.ArgumentParser) -> None:
    add_policy_flags(parser, "strict", _SESSION, {"wall_time_s": "seconds for each call (default: 30)"})
    parser.add_argument("--workspace", metavar="DIR",
                        help="the directory to work on; changes are kept (default: a private directory)")  # fmt: skip
    parser.add_argument("--commit", choices=("ask", "always", "never"), default="ask",
                        help="when the model commits: ask the operator, always, or never (default: ask)")  # fmt: skip
    parser.set_defaults(json=False)


def execute(arguments: argparse.Namespace) -> int:
    policy = _policy(arguments)
    refuse(backend_for(policy.isolation), policy)  # before an application takes it for ready
    _refuse_unset_variables(policy)
    server, stdio = _modules()
    registry, sandbox_id = _new_sandbox(policy, arguments.workspace)
    from ringfence.integrations.living.session import Session

    with StoredSandbox(registry, sandbox_id) as kept:
        workspace = kept.transaction.bases[0] if arguments.workspace else ""

        def keep_question(text: str) -> str:
            registry.keep_question(sandbox_id, text)
            return f"all of it, now: ringfence diff {sandbox_id}"

        session = Session(policy, kept.transaction, workspace=workspace, keep_question=keep_question)
        try:
            by_hand = f"ringfence commit {sandbox_id}"
            stdio.serve(server.build(session, commit=arguments.commit, by_hand=by_hand))
        finally:
            session.close()
            _leave(kept, workspace)
    return 0


def _policy(arguments: argparse.Namespace) -> SandboxPolicy:
    policy = policy_from(arguments, IsolationLevel.STRICT)
    said = arguments.policy or arguments.cpu_time_s is not None
    return policy if said else policy.with_changes(**_SESSION)


def _refuse_unset_variables(policy: SandboxPolicy) -> None:
    """Else the first call would find out, and only the model would be told."""
    rules = rules_of(policy)
    if rules:
        from ringfence.backends.egress_link import secrets_of

        secrets_of(rules)


def _modules() -> tuple[ModuleType, ModuleType]:
    try:
        from ringfence.integrations.mcp import server, stdio
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ringfence"):
            raise
        raise UnavailableError(f"the module {error.name} is not installed", missing=("mcp",),
                               hint=hint_for_extra("mcp")) from error  # fmt: skip
    return server, stdio


def _new_sandbox(policy: SandboxPolicy, workspace: str | None) -> tuple[Registry, str]:
    """Kept from the beginning: changes survive even if the server is killed."""
    if workspace is not None and not os.path.isdir(workspace):
        raise UsageError(f"--workspace {workspace}: no such directory")
    bases = (real(workspace),) if workspace else ()
    registry = Registry(sandboxes_folder())
    metadata = Metadata(sandbox_id=os.urandom(_ID_BYTES).hex(), created_s=time.time(), isolation=str(policy.isolation),
                        bases=bases, command=("ringfence", "mcp"))  # fmt: skip
    folder = registry.add(metadata)
    try:
        Transaction.create(folder, bases, kind=transaction_kind(policy), hidden=policy.hidden_paths,
                           root=registry.root).close()  # fmt: skip
    except BaseException:
        registry.remove(metadata.sandbox_id)
        raise
    return registry, metadata.sandbox_id


def _leave(kept: StoredSandbox, workspace: str) -> None:
    if not workspace:
        kept.throw_away()
    elif not kept.remove_if_done():
        print(f"ringfence: changes are kept; look: ringfence diff {kept.sandbox_id}, "
              f"keep: ringfence commit {kept.sandbox_id}", file=sys.stderr)  # fmt: skip
