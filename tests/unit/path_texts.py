"""Every place where the package reads a path as text, or follows links beside ``model/ways``, with the reason.

``file:function`` or ``file:function:count``; a file with two reasons stands at both. Where a path leads is asked of the
resolver (ADR 0130): ``abspath`` and the kernel read ``link/..`` differently, and a guest may have made the link.
"""

from __future__ import annotations

FUNCTIONS = frozenset({"abspath", "normpath", "realpath", "relpath", "readlink", "resolve", "absolute"})

# (why it may, where)
ALLOWED: tuple[tuple[str, str], ...] = (
    ("it is the resolver, of the host or of a sandbox's own root",
     """
     kernel/proc/guest_paths.py:readlink:4 model/ways/walk.py:abspath:2 model/ways/walk.py:readlink:3
     model/ways/walk.py:realpath:2
     """),
    ("the text is asked beside the resolver, and what either says counts",
     """
     integrations/deep_agent/call.py:normpath integrations/deep_agent/paths.py:normpath:2
     proctor/foreign/laying.py:normpath:2 proctor/staging.py:normpath proctor/staging.py:relpath
     """),
    ("the text of a link, of which the resolver is asked where it leads",
     """
     integrations/deep_agent/paths.py:readlink integrations/deep_agent/session.py:readlink:2
     proctor/staging.py:readlink proctor/submission_manifest/reading.py:readlink sandbox/programs.py:readlink
     """),
    ("the text of a link is kept, copied or shown; nobody goes there",
     """
     checkpoint/scan.py:readlink evidence/digest.py:readlink integrations/harbor.py:readlink
     kernel/tripwire/layout.py:readlink proctor/place/holding.py:readlink sandbox/host.py:readlink:2
     steps/root_layout.py:readlink
     """),
    ("a link of /proc or /sys: what the kernel says of a descriptor, a process, a namespace or a device",
     """
     container/mounted.py:readlink kernel/cgroup/limits.py:realpath kernel/criu/processes.py:readlink:3
     kernel/criu/restore.py:readlink:2 kernel/mount/submounts.py:readlink kernel/proc/first_files.py:readlink
     kernel/seccomp/watching.py:readlink
     sandbox/image.py:readlink:2
     """),
    ("our own package, this interpreter and its libraries: who writes there is us already",
     """
     backends/in_container/standby.py:realpath backends/on_macos/walls.py:abspath
     backends/on_windows/process.py:abspath backends/process_images.py:abspath backends/walls.py:abspath
     cli/demo.py:abspath container/first_process.py:realpath container/network_holder.py:abspath
     container/visits.py:realpath corpus/naive.py:realpath docker_sandbox/fallback.py:realpath
     engine/boxed_call.py:abspath integrations/jupyter/kernel.py:abspath
     integrations/living/python.py:abspath kernel/calls/native.py:abspath kernel/seccomp/programs.py:abspath
     proctor/agents/resolve.py:abspath proctor/foreign/predictions.py:realpath
     proctor/foreign/swebench_grader.py:abspath proctor/pytest_sandbox.py:abspath
     proctor/rooted/private_python.py:realpath:5 proctor/script_grader.py:abspath pytest_runner/runner.py:abspath
     roles/spawner.py:abspath transport/interpreter.py:abspath:2
     """),
    ("a path in a sandbox, an image, a layer or a program's text, as data: no file of the host is opened by it",
     """
     backends/layers.py:abspath checkpoint/layout.py:normpath container/engine.py:normpath
     integrations/harbor.py:normpath integrations/living/session.py:normpath kernel/seccomp/watching.py:normpath
     manager/sandbox.py:normpath proctor/agent_run.py:normpath proctor/findings.py:normpath
     proctor/foreign/environment.py:normpath proctor/foreign/rootfs.py:normpath proctor/pytest_sandbox.py:normpath
     proctor/rooted/layer.py:normpath:2 validation/paths.py:normpath
     """),
    ("asks whether a path is written plainly, and refuses it where it is not",
     """
     model/policy_paths.py:normpath proctor/foreign/harbor.py:normpath proctor/task.py:normpath:2
     proctor/task_policy.py:normpath sandbox/image.py:normpath validation/rules_file.py:normpath
     """),
    ("names below a directory that was walked without following links",
     """
     manager/live_state.py:relpath:2 proctor/foreign/graded_tree.py:normpath proctor/foreign/graded_tree.py:relpath
     proctor/foreign/image_build.py:normpath proctor/foreign/image_build.py:relpath proctor/foreign/laying.py:normpath
     proctor/foreign/laying.py:relpath
     """),
    ("a changed path, written shorter for people",
     """
     cli/stored_sandbox.py:relpath integrations/living/session.py:relpath
     """),
    ("pytest and coverage read the names of their reports as text themselves",
     """
     integrations/pytest_plugin/inside.py:normpath
     """),
    ("Windows reads ``..`` as text itself",
     """
     backends/on_windows/process.py:normpath:2 windows/command_line.py:normpath
     """),
    ("runs in a sandbox, with nothing of ringfence",
     """
     proctor/foreign/swebench_worker.py:abspath proctor/foreign/swebench_worker.py:normpath
     proctor/foreign/swebench_worker.py:relpath:2 proctor/guest/grader_process.py:realpath
     proctor/guest/site/sitecustomize.py:abspath
     proctor/guest/site/sitecustomize.py:realpath:3 pytest_runner/guest/ringfence_reporter.py:abspath
     pytest_runner/guest/start.py:abspath
     """),
    ("a method of ours with that name: names in a layer",
     """
     checkpoint/transaction.py:absolute:4 cli/commit.py:resolve cli/diff.py:resolve cli/rollback.py:resolve
     service/box_requests.py:absolute:2
     """),
)  # fmt: skip
