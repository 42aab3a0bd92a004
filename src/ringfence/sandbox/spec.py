"""From a policy to what a strict sandbox is made from, as plain data. Pure: it reads no host and starts nothing."""

from __future__ import annotations

from _collections_abc import Mapping

from ringfence.kernel.mount import namespaces
from ringfence.model.outcome import Enforcement, Mechanism
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import record, replace
from ringfence.sandbox import filters, hiding, host, image_root, networks, wires
from ringfence.sandbox import root as rootfs
from ringfence.sandbox.hidden import HiddenPaths
from ringfence.sandbox.image_root import Guest
from ringfence.sandbox.limits_seen import Limits
from ringfence.sandbox.root import RootSpec
from ringfence.sandbox.view import USER, Laying, View

_UNWATCHED = dict.fromkeys(("cpu_time", "memory", "pids"), float("inf"))


@record
class Spec:
    """One sandbox: what it shows, and what binds the jobs in it."""

    root: RootSpec
    scratch: str
    own: tuple[str, ...]
    """Directories of ours that only its jobs write while they run. Never a base: others write that, and no job does."""
    writable: tuple[str, ...]
    """Host directories that its jobs write."""
    namespaces: tuple[str, ...]
    reuses_network: bool
    """A network namespace in which no other job has made a socket will do in place of a new one."""
    watched_limits: Mapping[str, float]
    """The limits that the watchdog holds, because the kernel does not hold them here for the whole tree."""
    visit_limits: Mapping[str, float]
    """The same for a visit to a living box. The time of its processes is limited for the whole box; here only the work
    that it causes its leader."""
    process_limits: Mapping[str, float]
    """The limits of each process."""
    profile: str
    below_another: bool
    """The filter comes below one that the caller is under."""
    witness: Mapping[str, int]
    watched: tuple[str, ...]
    """Hidden paths, as the policy writes them and as the kernel meets them."""
    share: float
    """Share of the processors' time; 0: all."""
    search_path: str
    program: str
    landlock_abi: int
    shared: tuple[str, ...]
    """Writable directories of the host, where a job can reach only its own sockets."""
    box_scopes: tuple[str, ...]
    """What Landlock keeps apart within a living box."""

    def shown_paths(self) -> tuple[str, ...]:
        """What it shows of the host, by its paths there."""
        return (*(entry.path for entry in rootfs.entries(self.root)), *(each.path for each in self.root.workspaces))


def spec_of(
    policy: SandboxPolicy, enforced: Mapping[str, Enforcement], laying: Laying, view: View, hidden: HiddenPaths,
    *, on_disk: bool = True, led_together: bool = False,
) -> Spec:  # fmt: skip
    """``on_disk``: the job's own directory lies on the disk; else in memory. ``led_together``: by a warden, which hears
    of the sockets that its jobs make."""
    root = _root_of(policy, enforced, laying, view, hidden)
    wired = wires.are_possible(root) and view.has_fuse and view.beside_hidden <= hiding.MOST_MOUNTS
    empty = networks.is_empty(policy)
    heard_of = empty and led_together and not networks.stays_unused(policy) and not view.is_filtered
    reuses_network = heard_of or (empty and networks.stays_unused(policy))
    root = replace(root, tripwires=bool(hidden) and wired, on_disk=on_disk,
                   own_network=not networks.is_hosts(policy) and not reuses_network)  # fmt: skip
    numbers = policy.numbers()
    return Spec(
        root=root,
        scratch=laying.scratch,
        own=_written_in(laying),
        writable=policy.writable_paths,
        namespaces=networks.namespaces(policy, with_time=view.has_time_namespaces),
        reuses_network=reuses_network,
        watched_limits=_UNWATCHED | _by_us(numbers, enforced),
        visit_limits=_UNWATCHED | {"wall_time": policy.wall_time_s, "cpu_time": policy.cpu_time_s},
        process_limits=_by_rlimit(numbers, enforced),
        profile=filters.profile_name(policy, view.landlock_abi),
        below_another=view.is_filtered,
        witness=filters.witnessed(policy, enforced) | {"sockets": int(heard_of)},
        watched=tuple(dict.fromkeys((*policy.hidden_paths, *root.hidden))) if hidden else (),
        share=policy.cpu_share or 0.0,
        search_path=_search_path(view.search_path, root),
        program=view.program,
        landlock_abi=view.landlock_abi,
        shared=view.shared,
        box_scopes=networks.scopes_in_box(policy),
    )


def _by_us(numbers: Mapping[str, float], enforced: Mapping[str, Enforcement]) -> dict[str, float]:
    """The limits that no control group enforces."""
    return {name: value for name, value in numbers.items()
            if enforced[name].applied and Mechanism.CGROUP not in enforced[name].by}  # fmt: skip


_IN_SCRATCH = ("work", "layer/upper")


def _written_in(laying: Laying) -> tuple[str, ...]:
    kept = (f"{each.layer}/upper" for each in laying.workspaces if each.layer)
    private = (f"{laying.scratch}/{name}" for name in _IN_SCRATCH if laying.scratch)
    return (*private, *kept)


def _search_path(folders: tuple[str, ...], root_spec: RootSpec) -> str:
    """The directories of a host PATH of which the sandbox shows something, followed by the system's own; in a root of
    its own, those that every image has."""
    if root_spec.image is not None:
        return image_root.PATH
    shown = rootfs.entries(root_spec)
    tops = {*rootfs.workspace_paths(root_spec), *map(rootfs.place, shown), *(path for path, _ in root_spec.links)}
    alone = {rootfs.place(entry).rpartition("/")[0] for entry in shown if not entry.folder}
    kept = [path for path in folders if not root_spec.hidden.cover(path)
            and (path in alone or any(path[:end] in tops for end in rootfs.ends(path)))]  # fmt: skip
    return ":".join(dict.fromkeys([*kept, *rootfs.SYSTEM_PATH]))


def _by_rlimit(numbers: dict[str, float], enforced: Mapping[str, Enforcement]) -> dict[str, float]:
    """A memory limit per process refuses what a group for all of them would allow; with a group there is none."""
    by_group = Mechanism.RLIMIT not in enforced["memory"].by
    held = {name: value for name, value in numbers.items() if enforced[name].applied or name == "pids"}
    return {name: value for name, value in held.items() if name != "memory" or not by_group}


def _root_of(
    policy: SandboxPolicy, enforced: Mapping[str, Enforcement], laying: Laying, view: View, hidden: HiddenPaths
) -> RootSpec:
    by_root, laid = view.caller[0] == 0, laying.workspaces
    gateway = networks.gateway(policy) if networks.by_gateway(enforced) else None
    guest = _guest(laying, view)
    places = [(entry.path, entry.at) for entry in view.shown if entry.at]
    return RootSpec(
        shown=view.shown,
        etc=view.etc, copies=view.copies,
        workspaces=laid,
        folder=laying.folder,
        build_dir=view.build_dir,
        caller=view.caller,
        by_root=by_root,
        owner=(laid[0].owner if laid else view.caller) if by_root else (),
        hidden=hidden.also_at(places),
        ours=HiddenPaths(laying.ours).also_at(places),
        links=view.links,
        image=laying.image,
        user=guest.name,
        home=guest.home,
        uid=guest.uid,
        gid=guest.gid,
        tmp_bytes=min(policy.disk_bytes or policy.mem_bytes, policy.mem_bytes),
        limits=_limits_seen(policy, enforced, view),
        resolver=networks.resolver_files(gateway) if gateway else view.resolver,
        gateway=gateway,
        synced=policy.io_bytes_per_s is not None,
        proc_files=view.proc_files, proc_folders=view.proc_folders,
    )  # fmt: skip


def _guest(laying: Laying, view: View) -> Guest:
    """Who the job is inside. If it can't write its root, it has no home there."""
    if view.guest is not None:
        return view.guest if laying.image in laying.workspaces else replace(view.guest, home=rootfs.HOME)
    uid, gid = (namespaces.GUEST_ID, namespaces.GUEST_ID) if view.caller[0] == 0 else view.ids
    return Guest(uid=uid, gid=gid, name=USER, home=rootfs.HOME)


def _limits_seen(policy: SandboxPolicy, enforced: Mapping[str, Enforcement], view: View) -> Limits:
    by_kernel = view.groups == host.UNIFIED and Mechanism.CGROUP in enforced["memory"].by
    return Limits(
        memory=policy.mem_bytes, tasks=policy.pids_max, cores=policy.cpu_share, groups=view.groups, by_kernel=by_kernel
    )
