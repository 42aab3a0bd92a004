"""One job under a policy as a container: what is mounted where, who it is, and how much it may use. Pure, except
that it looks at the policy's paths: where links lead, what is mounted below them, and which are directories.

Nothing of the host is writable unless the policy names it. The working directory of a job that has none is in memory; a
workspace is shown at its own path, read-only unless it lies in a writable path (ADR 0099).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from ringfence.container.hardening import NOBODY, TMPFS_OPTIONS, Bind, ContainerSpec
from ringfence.errors import UsageError
from ringfence.kernel import rlimits
from ringfence.kernel.mount import submounts
from ringfence.model import state_folder
from ringfence.model.job import Job
from ringfence.model.limits import MIB, SyscallProfile, disk_in_container
from ringfence.model.policy import SandboxPolicy
from ringfence.model.ways import led
from ringfence.model.ways.walk import Look, real
from ringfence.sandbox import hiding, host, workplaces
from ringfence.sandbox.hidden import HiddenPaths

HOME = "/tmp"
PODMAN = "podman"
_PODMAN_PROCESSES = 32768
"""What podman gives itself."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LEAST_MEMORY = 6 * MIB
INIT_TASKS = 1
"""The engine's own first process is one of the container's tasks."""
GVISOR_TASKS = 128
"""gVisor's kernel is a process whose threads are tasks of the container."""
_SHM_BYTES = 16 * MIB
_EMPTY = "ro,noexec,nosuid,nodev,size=4k,mode=555"


def user() -> str:
    """The job's user: the caller if that is an ordinary user, who can then share files with the job; else nobody."""
    return f"{os.geteuid()}:{os.getegid()}" if os.geteuid() else NOBODY


def spec_of(
    policy: SandboxPolicy, job: Job, *, image: str, seccomp: str, labels: Mapping[str, str], files: Mapping[str, str],
    socket: str = "", runtime: str = "", engine: str = "docker",
) -> ContainerSpec:  # fmt: skip
    """``files``: top-level names of the job's files → where they lie on the host. ``socket``: the engine's own, which
    is never shown. ``engine``: podman supports no owner of a tmpfs, so the image's /tmp has to be open to everybody,
    and it raises the limit of the user's processes unless it is given a number."""
    shown = _shown(policy, job)
    for bind in shown:
        _refuse_engine(bind.source, socket)
    hidden, masked = _hidden(_hiding(policy, job), shown)
    within = job.cwd or HOME
    own = [Bind(source=source, target=f"{within}/{name}") for name, source in sorted(files.items())]
    tmp_bytes, shm_bytes = rooms(policy)
    who = user()
    tasks = own_processes() if engine == PODMAN else {}
    uid, _, gid = who.partition(":")
    owner = f",uid={uid},gid={gid}" if engine != PODMAN else ""
    tmpfs = {HOME: f"{TMPFS_OPTIONS},size={tmp_bytes}{owner}"}
    kernel_tasks = GVISOR_TASKS if is_gvisor(runtime) else 0
    init = policy.syscall_profile is not SyscallProfile.TIGHT  # with which it could not fork
    return ContainerSpec(
        argv=job.argv, image=image, environment=environment(policy, job), workdir=job.cwd or HOME, user=who,
        memory_bytes=policy.mem_bytes, cpus=policy.cpu_share, pids=policy.pids_max + init * INIT_TASKS + kernel_tasks,
        tmpfs={**tmpfs, **dict.fromkeys(hidden, _EMPTY)}, shm_bytes=shm_bytes, seccomp=seccomp, runtime=runtime,
        ulimits=ulimits(policy) | tasks, binds=(*shown, *own, *masked), labels=labels, stdin=True, tty=job.terminal,
        init=init,
    )  # fmt: skip


def is_gvisor(runtime: str) -> bool:
    """Whether a runtime has a kernel of its own between the job and the host's."""
    return os.path.basename(runtime).startswith("runsc")


def environment(policy: SandboxPolicy, job: Job) -> dict[str, str]:
    """The job's variables: a small known set, then those passed on, those of the policy, those of the job."""
    clean = {"PATH": PATH, "HOME": HOME, "TMPDIR": HOME, "LANG": "C.UTF-8"}
    if job.terminal:
        clean["TERM"] = os.environ.get("TERM", "dumb")
    passed = {name: os.environ[name] for name in policy.pass_environment if name in os.environ}
    return clean | passed | dict(policy.environment) | dict(job.environment)


def ulimits(policy: SandboxPolicy) -> dict[str, tuple[int, int]]:
    """A process that ignores the first signal for its processor time is killed a second later."""
    seconds = max(1, math.ceil(policy.cpu_time_s))
    own = {"nofile": (policy.nofile, policy.nofile), "cpu": (seconds, seconds + 1)}
    found = {**no_core(), **own, **shares()}
    return found | ({"fsize": (policy.file_bytes, policy.file_bytes)} if policy.file_bytes is not None else {})


def shares() -> dict[str, tuple[int, int]]:
    """What a container may take of what the kernel counts for its user, who may have processes outside of it."""
    return _within({name: most for name, most in rlimits.SHARES if most})


def no_core() -> dict[str, tuple[int, int]]:
    """With 0 there are no core files either, but Linux still runs a host's core helper, as root (ADR 0044)."""
    return _within({"RLIMIT_CORE": 1})


def own_processes() -> dict[str, tuple[int, int]]:
    """At most the limit of podman."""
    return _within({"RLIMIT_NPROC": _PODMAN_PROCESSES})


def _within(asked: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """As an engine names them, and no more than this process has: raising takes a capability that may be missing."""
    import resource

    hard = {name: resource.getrlimit(getattr(resource, name))[1] for name in asked}
    most = {name: min(number, hard[name]) if hard[name] >= 0 else number for name, number in asked.items()}
    return {name.removeprefix("RLIMIT_").lower(): (number, number) for name, number in most.items()}


def rooms(policy: SandboxPolicy) -> tuple[int, int]:
    """The sizes of /tmp and /dev/shm: together what may be written; without such a limit, half of the memory."""
    whole = min(disk_in_container(policy.disk_bytes, policy.mem_bytes), policy.mem_bytes)
    shm = min(_SHM_BYTES, whole // 4)
    return max(whole - shm, 4096), max(shm, 4096)


def shows_host(policy: SandboxPolicy, workspace: str | None) -> bool:
    """Whether the job sees directories of the host itself, in which others make sockets."""
    return bool(policy.readable_paths or policy.writable_paths) or workspace is not None


def seccomp(policy: SandboxPolicy, job: Job, of_ours: SyscallProfile | None = None) -> str:
    """The filter, as an engine takes it. ``of_ours``: of a first process of ours, which gives each job another one."""
    from ringfence.container import seccomp_profile

    if of_ours:
        return seccomp_profile.text(of_ours)
    which = policy.syscall_profile or SyscallProfile.DEFAULT
    return seccomp_profile.text(which, unix_names=not shows_host(policy, job.cwd))


def is_writable(path: str, policy: SandboxPolicy) -> bool:
    """Whether the policy lets the job write there, on the host itself."""
    return any(_lies_in(path, above) for above in policy.writable_paths)


def _shown(policy: SandboxPolicy, job: Job) -> list[Bind]:
    places = dict.fromkeys(policy.readable_paths, True) | dict.fromkeys(policy.writable_paths, False)
    if job.cwd is not None:
        if not os.path.isdir(job.cwd):
            raise UsageError(f"{job.cwd}: no such directory", hint="the working directory must exist")
        if real(job.cwd) != "/":  # which can't be shown at all, see below
            workplaces.refuse_everywhere(real(job.cwd), policy)
        places.setdefault(job.cwd, not is_writable(job.cwd, policy))
    led.refuse(policy, () if job.cwd is None else (job.cwd,), Look())
    for path in places:
        if not os.path.lexists(path):
            raise UsageError(f"{path}: no such file or directory", hint="what the policy shows must exist")
        if real(path) == "/":
            raise UsageError(f"{path}: / can't be shown in a container, which has a root of its own",
                             hint="name what is needed")  # fmt: skip
    binds = [Bind(source=real(path), target=path, read_only=only) for path, only in sorted(places.items())]
    return [*binds, *_mounted_below(binds)]


def _mounted_below(binds: list[Bind]) -> list[Bind]:
    """What is mounted in a directory that is only read, by itself: engines make the directory read-only and not what is
    mounted in it, so that is left out there (``hardening``)."""
    written = [bind.source for bind in binds if not bind.read_only]
    points = submounts.read(host.mount_table())
    never = submounts.never_shown(points)
    return [Bind(source=point, target=bind.target + point[len(bind.source) :]) for bind in binds if bind.read_only
            for point in submounts.below(bind.source, points)
            if point not in never and not any(_lies_in(point, above) for above in written)]  # fmt: skip


def _hiding(policy: SandboxPolicy, job: Job) -> HiddenPaths:
    """The hidden paths, by every name that they have on the host; also our own directories, which no guest may see."""
    ours, workspace = state_folder.own_places(), [] if job.cwd is None else [job.cwd]
    written = [path for path in workspace if is_writable(path, policy)]
    state_folder.refuse_ours(ours, (*policy.readable_paths, *workspace), (*policy.writable_paths, *written))
    named = host.every_name(policy.hidden_paths)
    hiding.refuse_covered(HiddenPaths(named), readable_paths=policy.readable_paths,
                          writable_paths=policy.writable_paths, workspace=workspace)  # fmt: skip
    return HiddenPaths((*named, *ours))


def _hidden(hidden: HiddenPaths, shown: list[Bind]) -> tuple[list[str], list[Bind]]:
    """The hidden paths that would be visible: an empty directory covers a directory, the null device covers a file. A
    link's target is hidden by its own name."""
    seen = {bind.target + path[len(bind.source) :]: path for bind in shown for path in hidden.within(bind.source)}
    there = {target: path for target, path in seen.items() if os.path.lexists(path) and not os.path.islink(path)}
    folders = [target for target, path in there.items() if os.path.isdir(path)]
    return folders, [Bind(source=os.devnull, target=target) for target in there if target not in folders]


def hidden_in_shown(policy: SandboxPolicy, workspace: str | None) -> list[str]:
    """The hidden paths that lie in shown ones, whether they exist yet or not."""
    job = Job(argv=("true",), cwd=workspace)
    hidden = _hiding(policy, job)
    return list(dict.fromkeys(path for bind in _shown(policy, job) for path in hidden.within(bind.source)))


def _refuse_engine(source: str, socket: str) -> None:
    """Access to the engine's socket is control of the host."""
    if socket and (_lies_in(real(socket), source) or _lies_in(source, real(socket))):
        raise UsageError(f"{source} contains the engine's socket, which would give the job the engine",
                         hint="show a directory that does not contain it")  # fmt: skip


def _lies_in(path: str, above: str) -> bool:
    return path == above or path.startswith(above.rstrip("/") + "/")
