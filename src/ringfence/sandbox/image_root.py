"""A directory of the host as the root of a sandbox, such as the files of an image: the plan of its file system (ADR
0085).

One overlay is ``/``: a cover of ours, in which every mount point is a directory or a file that we made, over the
directory. Whatever the directory has under those names, a link, a device or nothing at all, is not seen and never
followed. """

from __future__ import annotations

from ringfence.model.record import record
from ringfence.sandbox import limits_seen, networks
from ringfence.sandbox import root as rootfs
from ringfence.sandbox.root import IMAGE, IN_MEMORY, RootSpec, WorkspaceMount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import Step

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DEVICE_OPTIONS = "size=64k,nr_inodes=64,mode=755"
_MEMORY_OF_A_LAYER = {"/dev/shm": 0o1777}
"""With a layer the image's own /tmp and home are used, and what is written there is a change like any other."""
_NEVER = "etc/ld.so.preload"
"""Libraries that it names are loaded into every program, including ours that start in the root."""
_GIVEN = {"/tmp": 0o1777, "/var/tmp": 0o1777, "/run": 0o755}


@record
class Guest:
    """Who the job is in a root."""

    uid: int = 0
    gid: int = 0
    name: str = "root"
    home: str = "/root"


def is_layered(root_spec: RootSpec) -> bool:
    """Whether the job may write in its root."""
    return root_spec.image is not None and root_spec.image in root_spec.workspaces


def steps(root_spec: RootSpec) -> list[Step]:
    """From the template to a sealed root."""
    image = root_spec.image
    assert image is not None
    layered = is_layered(root_spec)
    plan: list[Step] = [("new root", rootfs.ROOT_BYTES, [])]
    plan += [("attach", name) for name, *_ in (*rootfs.own_sources(root_spec, ""), *rootfs.kept_layers(root_spec))]
    if root_spec.gateway is not None and root_spec.gateway.inspected:
        plan.append(("trust", networks.CERTIFICATES))  # into the cover: it ends up in no layer
    plan += _laid(image, root_spec)
    plan += _devices(root_spec)
    plan += rootfs.private_steps(root_spec, _MEMORY_OF_A_LAYER if layered else IN_MEMORY)
    plan += rootfs.shown_steps(root_spec)
    plan += rootfs.proc_steps(root_spec)
    plan.append(("cover mounts", "", _source(image, root_spec)))
    plan += rootfs.workspace_steps(root_spec)
    plan += [("loopback",)] if root_spec.own_network else []
    plan += [("listen", list(root_spec.gateway.rows))] if root_spec.gateway is not None else []
    return [*plan, ("host name", "ringfence"), ("seal root", not layered)]


def _source(image: WorkspaceMount, root_spec: RootSpec) -> str:
    """Its name in the building."""
    laid = root_spec.workspaces
    return rootfs.workspace_name(laid.index(image)) if image in laid else IMAGE


def _laid(image: WorkspaceMount, root_spec: RootSpec) -> list[Step]:
    base = f"base/{_source(image, root_spec)}"
    plan: list[Step] = []
    options = f"lowerdir=root:{base}"
    if is_layered(root_spec):
        layer = f"base/layer-{root_spec.workspaces.index(image)}" if image.layer else "base/scratch/layer"
        volatile = "" if root_spec.synced else ",volatile"
        options += f",upperdir={layer}/upper,workdir={layer}/work{volatile}"
        plan.append(("renew layer", f"{layer}/work"))
    flags = [] if is_layered(root_spec) else ["ro"]
    own, named = _places(root_spec)
    given = [(path, mode) for path, mode in {**_GIVEN, root_spec.home: 0o700}.items() if path not in (*own, "/")]
    files, absent = _files(root_spec, named), [*image.absent, _NEVER]
    return [*plan, ("image root", base, own, named, files, given, absent, flags, options)]


def _places(root_spec: RootSpec) -> tuple[list[str], list[tuple[str, bool]]]:
    """Directories that the sandbox has of its own, and (path, whether it is a directory) of what else is shown."""
    own = ["/proc", "/dev"]
    own += [] if is_layered(root_spec) else [path for path in IN_MEMORY if not rootfs.is_below(path, "/dev")]
    own += [limits_seen.CGROUP] if rootfs.shows_groups(root_spec) else []
    own += [rootfs.WORK] if not root_spec.workspaces else []
    named = [(rootfs.place(each), True) for each in root_spec.workspaces if each != root_spec.image]
    named += [(rootfs.place(entry), entry.folder) for entry in rootfs.entries(root_spec)]
    return own, [row for row in named if not any(rootfs.is_below(row[0], top) for top in own)]


def _files(root_spec: RootSpec, named: list[tuple[str, bool]]) -> list[tuple[str, str]]:
    """The files for name lookup: never the image's own, which know nothing of this sandbox."""
    texts = {
        "/etc/hosts": "127.0.0.1 localhost ringfence\n::1 localhost ringfence\n",
        "/etc/hostname": "ringfence\n",
        "/etc/resolv.conf": "",
        **dict(root_spec.resolver),
    }
    return [row for row in texts.items() if row[0] not in dict(named)]


def _devices(root_spec: RootSpec) -> list[Step]:
    """Devices in a file system of their own: the image's /dev is not seen, and they end up in no layer."""
    if root_spec.by_root:
        return rootfs.devices(root_spec)
    own: Step = ("file system", "/dev", "tmpfs", ["nosuid", "noexec", "nodev"], _DEVICE_OPTIONS)
    return [own, *rootfs.devices(root_spec)]
