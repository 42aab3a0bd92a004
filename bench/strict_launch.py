"""What does ``/bin/true`` cost under STRICT, against bubblewrap with the same namespaces and mounts?

bubblewrap builds the same root (system folders, the same files of /etc, private /tmp, /dev, /proc, covered parts of
/proc) in C, with a mount for each small file of /etc that STRICT copies; it sets no limit, joins no control group,
has no filter and watches nothing. A plain child shows what remains.
"""

from __future__ import annotations

import shutil
import subprocess

from bench.harness import measure, report
from ringfence import SandboxPolicy, run
from ringfence.linux import host, rootfs

QUESTION = "/bin/true under STRICT against bubblewrap with the same namespaces and mounts"


def main() -> None:
    strict = SandboxPolicy(isolation="strict")
    process = SandboxPolicy(isolation="process")
    command = [_bubblewrap(), *_same_mounts(), "/bin/true"]

    def child(words: list[str]) -> None:
        subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=True)

    rows = measure(
        {
            "bubblewrap": lambda: child(command),
            "ringfence strict": lambda: _succeed(strict),
            "ringfence process": lambda: _succeed(process),
            "no sandbox": lambda: child(["/bin/true"]),
        },
        turns=60,
    )
    report("strict_launch", QUESTION, rows)


def _succeed(policy: SandboxPolicy) -> None:
    outcome = run(["/bin/true"], policy)
    assert outcome.rc == 0, outcome.reason


def _bubblewrap() -> str:
    if not shutil.which("bwrap"):
        for words in (["update"], ["install", "-y", "--no-install-recommends", "bubblewrap"]):
            subprocess.run(["apt-get", "-qq", *words], check=True, stdout=subprocess.DEVNULL)
    found = shutil.which("bwrap")
    if not found:
        raise SystemExit("bubblewrap is missing: apt-get install bubblewrap")
    return found


def _same_mounts() -> list[str]:
    words = ["--unshare-all", "--die-with-parent", "--new-session", "--hostname", "ringfence", "--clearenv"]
    for path, target in host.system_links():
        words += ["--symlink", target, path]
    shown, copies = host.configuration()
    for path in (*(entry.path for entry in (*host.system_folders(), *shown)), *(path for path, _, link in copies if not link)):
        words += ["--ro-bind", path, path]
    words += ["--dev", "/dev", "--proc", "/proc"]
    for path in ("/tmp", "/var/tmp", "/dev/shm", rootfs.HOME, rootfs.WORK):
        words += ["--tmpfs", path]
    for name in host.present("/proc", rootfs.PROC_FILES):
        words += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    for name in host.present("/proc", rootfs.PROC_FOLDERS):
        words += ["--tmpfs", f"/proc/{name}"]
    return [*words, "--ro-bind", "/proc/sys", "/proc/sys", "--cap-drop", "ALL", "--chdir", rootfs.WORK]


if __name__ == "__main__":
    main()
