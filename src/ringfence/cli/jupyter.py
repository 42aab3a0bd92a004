"""A kernel for Jupyter whose cells run in a strict box: install the kernel, or run it."""

from __future__ import annotations

import argparse

from ringfence.cli.policy_flags import add_policy_flags, policy_from, policy_of
from ringfence.errors import UnavailableError, UsageError, hint_for_extra
from ringfence.model.limits import IsolationLevel
from ringfence.model.policy import HOST_NETWORK, SandboxPolicy

EXAMPLES = """\
examples:
  ringfence jupyter install                          then choose «Python (ringfence)» in a notebook
  ringfence jupyter install --policy policy.yaml     limits, network and paths from a file
  ringfence jupyter install --prefix .venv --name sandboxed

«install» takes only --policy: put limits into that file; what it does not name has the policy's own default.
«kernel FILE» is what Jupyter itself starts. Needs the extra jupyter, in a clone: pip install '.[jupyter]' (README,
Install). docs/how-to/jupyter.md
"""
_SESSION = {"cpu_time_s": 24 * 3600, "mem_bytes": 4 * 2**30, "pids_max": 512}
"""Unless a policy file says otherwise: a notebook stays open for a long time."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("install", "kernel"), help="install the kernel spec, or run the kernel")
    parser.add_argument("connection_file", nargs="?", help="for kernel: Jupyter's connection file")
    parser.add_argument("--name", default="ringfence", help="name of the kernel spec (default: ringfence)")
    parser.add_argument("--prefix", default="", help="the environment to install into (default: for this user)")
    add_policy_flags(parser, "strict", _SESSION, {"wall_time_s": "has no effect: a kernel has no deadline"})
    parser.set_defaults(json=False)


def execute(arguments: argparse.Namespace) -> int:
    try:
        if arguments.action == "install":
            return _install(arguments)
        return _kernel(arguments)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ringfence"):
            raise
        raise UnavailableError(f"the module {error.name} is not installed", missing=("jupyter",),
                               hint=hint_for_extra("jupyter")) from error  # fmt: skip


def _install(arguments: argparse.Namespace) -> int:
    if policy_from(arguments, IsolationLevel.STRICT) != policy_of(arguments.policy, IsolationLevel.STRICT):
        raise UsageError("«install» takes only --policy: what other flags say would not reach the kernel",
                         hint="put it into a policy file, and name that with --policy")  # fmt: skip
    policy = _policy(arguments)
    from ringfence.engine.run import backend_for, refuse
    from ringfence.integrations.jupyter import spec

    refuse(backend_for(policy.isolation), policy)
    where = spec.install(arguments.name, user=not arguments.prefix, prefix=arguments.prefix,
                         policy=arguments.policy or "")  # fmt: skip
    print(f"kernel spec {arguments.name} installed in {where}")
    return 0


def _kernel(arguments: argparse.Namespace) -> int:
    import ipykernel  # noqa: F401  # told here, not by a kernel that never answers

    from ringfence.integrations.jupyter import kernel

    if not arguments.connection_file:
        raise UsageError("a kernel needs a connection file, which Jupyter passes",
                         hint="install the kernel: ringfence jupyter install")  # fmt: skip
    return kernel.run(arguments.connection_file, _policy(arguments))


def _policy(arguments: argparse.Namespace) -> SandboxPolicy:
    from ringfence.engine.run import traits_of

    policy = policy_from(arguments, IsolationLevel.STRICT)
    if not traits_of(policy.isolation).network_apart or policy.network_rule == HOST_NETWORK:
        raise UsageError("a kernel needs its own loopback, or others could reach Jupyter's ports",
                         hint="use isolation strict, and not the host's network")  # fmt: skip
    if arguments.policy:
        return policy
    return policy.with_changes(**{name: value for name, value in _SESSION.items() if getattr(arguments, name) is None})
