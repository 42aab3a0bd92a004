"""From the spec of a strict sandbox to the steps of each of its processes. Pure: nothing is carried out here.

``template`` is for the zygote, ``prepare`` for the leader, ``plan`` for pid 1 and, from «run as init» on, for the job.
"""

from __future__ import annotations

import os
from _collections_abc import Mapping

from ringfence.kernel import landlock, rlimits
from ringfence.sandbox import filters, image_root, wires
from ringfence.sandbox import root as rootfs
from ringfence.sandbox import wall as landlock_wall
from ringfence.sandbox.root import RootSpec
from ringfence.sandbox.spec import Spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import HeardRequest, Preload, Step, VisitRequest, WallStep, ZygoteRequest

IN_SCRATCH = ("layer", "layer/upper", "layer/work")
"""The directories of a layer in the box's private directory."""
_UMASK = 0o022
# The filter's listener is handed to the leader. The kernel refuses that while the user has more descriptors in flight
# than this limit, and another sandbox of the same user can keep as many in flight as its own limit allows.
_AFTER_THE_FILTER = "RLIMIT_NOFILE"


def plan_of(spec: Spec, last: list[Step], *, confined: bool = True) -> VisitRequest:
    """The request to the leader of a sandbox, without its control group; ``last``: how the job begins.

    ``confined``: pid 1 forks a confined job; else it stays alone, and confines the visits that it takes in."""
    root = spec.root
    inside: list[Step] = [("drop capabilities",), ("run as init",), *confine(spec)] if confined else []
    request: VisitRequest = {
        "prepare": _prepare(spec),
        "plan": [*_enter(spec), *_building(root), *inside, *last],
        "namespaces": list(spec.namespaces),
        "limits": dict(spec.watched_limits),
        "scratch": spec.scratch,
        "written": [*spec.own, *spec.writable],
        "layers": list(spec.own),
        "contained": True,
        "heard": heard(spec),
    }
    if spec.reuses_network:
        request["network"] = [*rootfs.NETWORK_SETTINGS.items()]
    return request


def _building(root: RootSpec) -> list[Step]:
    return rootfs.steps(root) if root.image is None else image_root.steps(root)


def visit_of(spec: Spec, steps: list[Step], more: Mapping[str, float]) -> VisitRequest:
    """The request to the leader of a visit to the living box; ``more``: extra limits of this one visit."""
    plan = [*confine(spec, spec.box_scopes, counted="operations" in more), *steps]
    return {"plan": plan, "limits": {**spec.visit_limits, **more}, "scratch": "", "heard": heard(spec)}


def template_of(spec: Spec, python: Preload | None, *, native: bool) -> ZygoteRequest:
    """The request to the zygote, which builds once what sandboxes of this kind have in common."""
    template, owner = rootfs.template(spec.root), list(spec.root.owner)
    request: ZygoteRequest = {"template": template, "owner": owner, "python": python, "native": native}
    if spec.reuses_network:
        request["reuses_networks"] = True
    return request


def heard(spec: Spec) -> HeardRequest:
    """What the leader needs to know of the filter, to answer the calls that it reports."""
    return {
        "ids": (spec.root.uid, spec.root.gid),
        "profile": spec.profile,
        "watched": list(spec.watched),
        "private": wires.in_private(spec.root, spec.watched),
        "wired": spec.root.tripwires,
        "share": spec.share,
        "witness": dict(spec.witness),
    }


def _prepare(spec: Spec) -> list[Step]:
    """What only root can do, done by the leader, which is still root: ids mapped, devices made."""
    if not spec.root.by_root:
        return []
    scratch = ("", "work", *IN_SCRATCH) if rootfs.uses_scratch(spec.root) else ()
    owned = [os.path.join(spec.scratch, name) for name in scratch]
    return [("give directories", owned), *_clone(spec.root, spec.scratch), rootfs.device_folder()]


def _clone(root: RootSpec, scratch: str) -> list[Step]:
    steps: list[Step] = [("clone sources", rootfs.own_sources(root, scratch))]
    kept = rootfs.kept_layers(root)
    return [*steps, ("clone layers", kept, root.by_root)] if kept else steps


def _enter(spec: Spec) -> list[Step]:
    """How the leader's child becomes pid 1 of the sandbox."""
    root = spec.root
    steps: list[Step] = [("await leader",)]
    if root.tripwires:
        steps.append(("open fuse",))
    steps.append(("take identity", root.uid, root.gid))
    if not root.by_root:
        steps += _clone(root, spec.scratch)
    return [*steps, ("own group namespace",)]


def confine(
    spec: Spec, scopes: tuple[str, ...] = tuple(landlock.SCOPES), *, counted: bool = False
) -> list[Step]:
    """What confines the job; the filter late, since it closes what came before. ``counted``: count operations."""
    root = spec.root
    steps: list[Step] = [("setsid",), ("chdir", root.folder), ("umask", _UMASK), ("reset signals",)]
    steps.append(("no new privileges",))
    slack = rlimits.namespace_slack(os.uname().release)
    limits: list[Step] = [("rlimit", *row) for row in (*rlimits.shares(), *rlimits.rows(spec.process_limits, slack))]
    steps += [step for step in limits if _AFTER_THE_FILTER not in step]
    steps += wall(spec, scopes)
    watched = bool(root.hidden)
    steps.append(filters.step(spec.profile, (root.uid, root.gid), watched, root.tripwires, spec.witness,
                              below_another=spec.below_another))  # fmt: skip
    # From here on others in the box may reach its memory, where the kernel has no Landlock: what they make it do is
    # filtered by now.
    if watched:  # the leader reads paths from it, also before an exec, and as an ordinary user
        steps.append(("show memory",))
    if counted:
        steps.append(("count operations", watched))
    return [*steps, *(step for step in limits if _AFTER_THE_FILTER in step)]


def wall(spec: Spec, scopes: tuple[str, ...]) -> list[WallStep]:
    """Landlock behind the mounts, where the kernel has it."""
    if not spec.landlock_abi:
        return []
    return [landlock_wall.wall(spec.root, list(spec.shared), spec.landlock_abi, scopes)]
