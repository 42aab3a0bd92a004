"""From a policy to a plan: pure functions of what was found on a host, whichever host that is."""

from __future__ import annotations

import os

import pytest

from ringfence import SandboxPolicy
from ringfence.backends import tables
from ringfence.model.record import replace
from ringfence.sandbox.hidden import HiddenPaths
from ringfence.sandbox.root import HostMount, WorkspaceMount, entries
from ringfence.sandbox.spec import Spec, spec_of
from ringfence.sandbox.strict_plan import heard, plan_of, template_of, visit_of
from ringfence.sandbox.view import Laying, View

VIEW = View(
    shown=(HostMount(path="/usr", mode="ro", folder=True),), etc=(), copies=(), links=(("/bin", "usr/bin"),),
    resolver=(), proc_files=(), proc_folders=(), build_dir="/mnt", search_path=("/usr/bin",),
    program="/usr/bin/true", caller=(7, 7),
    ids=(7, 7), groups=(("cgroup2", ""),), has_fuse=True, beside_hidden=0, landlock_abi=7, is_filtered=False,
    has_time_namespaces=True, shared=(),
)  # fmt: skip
PROJECT = "/home/me/project"
LAYING = Laying(workspaces=(WorkspaceMount(path=PROJECT),), folder=PROJECT, ours=(), scratch="/tmp/box")
ROOT = replace(VIEW, caller=(0, 0))


def spec(view: View = VIEW, laying: Laying = LAYING, hidden: tuple[str, ...] = (), **policy: object) -> Spec:
    made = SandboxPolicy.from_dict({"isolation": "strict", "hidden_paths": list(hidden), **policy})
    return spec_of(made, tables.entries(made.requested(), tables.STRICT, ()), laying, view, HiddenPaths(hidden))


def names(plan: object) -> list[str]:
    return [step[0] for step in plan]  # type: ignore[attr-defined]


def test_the_filter_is_last_but_for_the_limit_that_would_keep_its_listener() -> None:
    plan = plan_of(spec(), [("exec", ["true"], {})])["plan"]
    inside = names(plan)[names(plan).index("run as init") + 1 :]
    assert inside[-3:] == ["seccomp", "rlimit", "exec"] and plan[-2][1] == "RLIMIT_NOFILE"  # type: ignore[index]
    assert inside.index("no new privileges") < inside.index("landlock") < inside.index("seccomp")
    assert names(plan).index("seal root") < names(plan).index("drop capabilities") < names(plan).index("run as init")


def test_root_has_its_leader_make_what_an_ordinary_user_does_without() -> None:
    assert plan_of(spec(), [])["prepare"] == []
    prepared = plan_of(spec(ROOT), [])["prepare"]
    assert names(prepared) == ["give directories", "clone sources", "make devices"]
    assert "clone sources" in names(plan_of(spec(), [])["plan"])
    assert "clone sources" not in names(plan_of(spec(ROOT), [])["plan"])


@pytest.mark.parametrize(("view", "wired"), [
    (VIEW, True), (replace(VIEW, has_fuse=False), False), (replace(VIEW, beside_hidden=10_000), False),
])  # fmt: skip
def test_tripwires_are_laid_where_fuse_is_and_not_too_many_names_lie_beside(view: View, wired: bool) -> None:
    made = spec(view, hidden=("/usr/share/secret",))
    assert made.root.tripwires is wired and made.watched == ("/usr/share/secret",)
    assert ("tripwires" in names(plan_of(made, [])["plan"])) is wired
    assert not spec(view).root.tripwires


def test_what_is_ours_is_left_out_of_all_that_is_shown() -> None:
    own = "/home/me/.local/state/ringfence"
    listed = [HostMount(path=path, mode="ro", folder=True, own=True, explicit=explicit)
              for path in (own, f"{own}/sandboxes", f"{own}-of-others") for explicit in (False, True)]  # fmt: skip
    placed = HostMount(path=f"{own}/workspaces/task", mode="ro", folder=True, explicit=True, at="/oracle")
    view = replace(VIEW, shown=(*VIEW.shown, *listed, placed), etc=(replace(listed[0], path=f"{own}/etc"),))
    made = spec(view, replace(LAYING, ours=(own,)))
    assert {entry.path for entry in entries(made.root)} == {"/usr", f"{own}-of-others", placed.path}
    assert own in {entry.path for entry in entries(spec(view).root)}


def test_a_kernel_without_landlock_gets_no_wall_and_the_hosts_network_no_namespace() -> None:
    made = spec(replace(VIEW, landlock_abi=0), network="host")
    assert "landlock" not in names(plan_of(made, [])["plan"]) and "net" not in made.namespaces
    assert made.profile == "unix_pairs"  # nothing else closes abstract sockets there
    assert {"net", "time"} <= set(spec().namespaces)


@pytest.mark.parametrize(("policy", "reused"), [
    ({"syscall_profile": "tight"}, True), ({}, False),
    ({"syscall_profile": "tight", "network": "host"}, False),
    ({"syscall_profile": "tight", "network": ["example.org"]}, False),
])  # fmt: skip
def test_only_a_job_that_can_reach_nothing_has_a_network_that_another_had(
    policy: dict[str, object], reused: bool
) -> None:
    made = spec(**policy)
    plan, template = plan_of(made, []), template_of(made, None, native=False)
    assert ("network" in plan) is template.get("reuses_networks", False) is reused
    assert ("loopback" in names(plan["plan"])) is (not reused and policy.get("network") != "host")


@pytest.mark.parametrize(("policy", "view", "reused", "heard_of"), [
    ({}, VIEW, True, True), ({"syscall_profile": "tight"}, VIEW, True, False),
    ({"network": "host"}, VIEW, False, False), ({"network": ["example.org"]}, VIEW, False, False),
    ({}, replace(VIEW, is_filtered=True), False, False),
], ids=["default", "tight", "host", "list", "below another filter"])  # fmt: skip
def test_a_warden_reuses_networks_where_it_hears_of_sockets_or_there_are_none(
    policy: dict[str, object], view: View, reused: bool, heard_of: bool
) -> None:
    policy_made = SandboxPolicy.from_dict({"isolation": "strict", **policy})
    entries = tables.entries(policy_made.requested(), tables.STRICT, ())
    made = spec_of(policy_made, entries, LAYING, view, HiddenPaths(()), led_together=True)
    assert (made.reuses_network, bool(heard(made)["witness"]["sockets"])) == (reused, heard_of)
    plan = plan_of(made, [])
    own = not reused and policy.get("network") != "host"
    assert ("loopback" in names(plan["plan"])) is own, "in one of others it is up, and no job may change that"
    (settings,) = [step[1] for step in plan["plan"] if step[0] == "kernel settings"]
    assert any(name.startswith("net/") for name, _ in settings) is own  # type: ignore[union-attr]
    assert ("network" in plan) is reused and all(name.startswith("net/") for name, _ in plan.get("network", []))


def test_a_visit_is_bound_as_a_job_is_and_enters_no_new_root() -> None:
    visit = names(visit_of(spec(), [("exec", ["true"], {})], {})["plan"])
    assert "seccomp" in visit and "landlock" in visit and "seal root" not in visit and "run as init" not in visit


def test_a_visit_whose_operations_are_counted_hands_its_count_over_behind_the_wall_and_the_filter() -> None:
    request = visit_of(spec(), [("exec", ["true"], {})], {"operations": 7})
    steps = names(request["plan"])
    assert steps.index("landlock") < steps.index("seccomp") < steps.index("count operations") < steps.index("exec")
    assert request["limits"]["operations"] == 7 and "operations" not in visit_of(spec(), [], {})["limits"]
    assert ("count operations", False) in request["plan"]  # it is hidden again at once
    hidden = visit_of(spec(hidden=("/usr/x",)), [], {"operations": 7})["plan"]
    assert ("count operations", True) in hidden and ("show memory",) in hidden


@pytest.mark.parametrize("limits", [None, {}, {"operations": 7}])
def test_nothing_shows_its_memory_before_it_is_filtered(limits: dict[str, float] | None) -> None:
    """Without Landlock others in the box could write code into it, which would run outside of every filter."""
    made, last = spec(hidden=("/usr/x",)), [("exec", ["true"], {})]
    steps = names((plan_of(made, last) if limits is None else visit_of(made, last, limits))["plan"])
    shown = [steps.index(name) for name in ("show memory", "count operations") if name in steps]
    assert shown and steps.index("seccomp") < min(shown)


LOOKS = ("stat", "lstat", "open", "listdir", "scandir", "readlink", "access", "getcwd", "geteuid", "getuid", "getegid")


def test_what_makes_a_plan_reads_nothing_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan() -> None:
        made = spec(ROOT, hidden=("/srv/x",), network="host", writable_paths=["/srv/w"])
        plan_of(made, [])
        visit_of(made, [], {})
        template_of(made, None, native=False)

    def refuse(*arguments: object, **_: object) -> None:
        raise AssertionError(f"looks at the host: {arguments}")

    plan()  # modules are loaded, and filters compiled, once
    with monkeypatch.context() as patch:
        for name in LOOKS:
            patch.setattr(os, name, refuse)
        patch.setattr("builtins.open", refuse)
        plan()
        with pytest.raises(AssertionError, match="looks at the host"):
            os.path.exists("/proc")


def test_a_base_is_no_folder_that_the_job_writes_and_the_layers_over_it_are() -> None:
    kept = replace(LAYING, workspaces=(WorkspaceMount(path=PROJECT, layer="/state/1/layers/0"),))
    for laying, own in ((LAYING, []), (kept, ["/state/1/layers/0/upper"])):
        request = plan_of(spec(laying=laying, writable_paths=["/srv"]), [])
        assert request["layers"] == ["/tmp/box/work", "/tmp/box/layer/upper", *own]
        assert request["written"] == [*request["layers"], "/srv"]
