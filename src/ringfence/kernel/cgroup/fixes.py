"""Why a control group can't be used here, in words, and the command that changes it.

Only texts, made from what cgroup_host.py found. It decides nothing and looks only at who the caller is and
whether systemd runs, since the command depends on that.
"""

from __future__ import annotations

import os

Lack = tuple[str, str]
"""(what is missing, the command that fixes it)"""

NOT_MOUNTED: Lack = (
    "no cgroup file system is mounted",
    "sudo mkdir -p /sys/fs/cgroup && sudo mount -t cgroup2 cgroup2 /sys/fs/cgroup",
)
SUPERVISOR = "ringfence.supervisor"
"""The leaf into which callers move: on v2 a group whose children have limits may hold no process."""

IN_A_CONTAINER = "in a container limit that instead, where it is started (docker run --memory --pids-limit)"
"""There nobody can mount it anew, and no group is needed."""

USER_SERVICE = "/etc/systemd/system/user@.service.d"


def outside(group: str, mountpoint: str) -> Lack:
    problem = f"this process is in the group {group}, which is outside of what {mountpoint} shows"
    mount = f"mount -t cgroup2 cgroup2 {mountpoint}"
    return problem, f"sudo unshare --cgroup --mount sh -c '{mount} && exec sh'"


def not_a_group(directory: str) -> Lack:
    if os.path.isdir(directory):
        return f"{directory} is a plain directory, not a control group", NOT_MOUNTED[1]
    return f"there is no control group {directory}", f"sudo mkdir -p {directory}"


def not_delegated(directory: str, version: int, mountpoint: str) -> Lack:
    if _read_only(directory):
        return f"{directory} is mounted read-only", f"sudo mount -o remount,rw {directory}; {IN_A_CONTAINER}"
    return f"no delegated cgroup: {directory} is not this user's", delegate(version, mountpoint)


def closed(directory: str) -> Lack:
    problem = f"{directory} can't be opened, although it is this user's: a sandbox around this process closes it"
    return problem, "start this outside of that sandbox, or let it read and write there"


def cannot_migrate(parent: str, common: str, mountpoint: str) -> Lack:
    where = common or "what lies above"
    return f"processes can't be moved to {parent}: {where} is not this user's", delegate(2, mountpoint)


def shared(parent: str, foreign: list[int]) -> Lack:
    problem = f"{parent} holds {len(foreign)} processes (such as {foreign[0]}) that ringfence must not move"
    if _systemd():
        return problem, delegate(2, parent)
    leaf = f"{parent}/{SUPERVISOR}"
    return problem, f"mkdir {leaf} && xargs -rn1 < {parent}/cgroup.procs > {leaf}/cgroup.procs"


def delegate(version: int, mountpoint: str) -> str:
    """The command that gives this user a group of their own."""
    if version == 2 and _systemd():
        return f"systemd-run {'--user ' if os.geteuid() else ''}--scope -p Delegate=yes ringfence …"
    group, user = f"{mountpoint}/ringfence", os.geteuid()
    if version == 1:
        hand_over = f"sudo mkdir -p {group} && sudo chown {user} {group} {group}/cgroup.procs"
        return f"{hand_over} && export RINGFENCE_CGROUP=/ringfence  (the first two in every hierarchy)"
    return " && ".join((
        f"echo '+cpu +io +memory +pids' | sudo tee {mountpoint}/cgroup.subtree_control",
        f"sudo mkdir -p {group}/shell",
        f"sudo chown {user} {group} {group}/cgroup.{{procs,subtree_control,threads}}",
        f"echo $$ | sudo tee {group}/shell/cgroup.procs",
        "export RINGFENCE_CGROUP=/ringfence",
    ))  # fmt: skip


def no_controller(kind: str, controller: str, parent: str) -> Lack:
    if kind != "v2":
        place = f"/sys/fs/cgroup/{controller}"
        mount = f"sudo mount -t cgroup -o {controller} {controller} {place}"
        return f"the cgroup v1 {controller} controller is not mounted", f"sudo mkdir -p {place} && {mount}"
    problem = f"the {controller} controller is not enabled in {parent}"
    if _systemd() and os.geteuid():
        text = r"'[Service]\nDelegate=cpu io memory pids\n'"
        write = f"printf {text} | sudo tee {USER_SERVICE}/ringfence.conf"
        return problem, f"sudo mkdir -p {USER_SERVICE} && {write} && sudo systemctl daemon-reload"
    return problem, f"echo +{controller} | sudo tee {os.path.dirname(parent)}/cgroup.subtree_control"


def _systemd() -> bool:
    return os.path.isdir("/run/systemd/system")


def _read_only(directory: str) -> bool:
    return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
