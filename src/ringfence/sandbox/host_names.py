"""Names of the host: which parts of its /etc a sandbox shows, and which parts of /proc it covers."""

from __future__ import annotations

# Configuration that ordinary programs read. The rest of /etc tells of the host and its users.
ETC_NAMES = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "chromium", "chromium.d",
    "crypto-policies", "debian_version", "dotnet", "drirc", "emacs", "fonts", "gai.conf", "gitconfig", "glvnd",
    "host.conf", "ImageMagick-6", "ImageMagick-7", "inputrc", "java-8-openjdk", "java-11-openjdk", "java-17-openjdk",
    "java-21-openjdk", "java-25-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf",
    "locale.gen", "localtime", "lsb-release", "magic", "magic.mime", "maven/logging", "maven/m2.conf", "mime.types",
    "mono", "nanorc", "nsswitch.conf", "OpenCL", "os-release", "perl", "php", "pip.conf", "pki", "profile", "protocols",
    "python3", "python3.11", "python3.12", "python3.13", "python3.14", "R", "rpc", "security/limits.conf", "services",
    "shells", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "vim", "vulkan", "wgetrc", "xml", "X11/rgb.txt",
)  # fmt: skip
# Facts about the host that a fresh /proc lets anybody read. What only root may read needs no cover, since the job is
# never the host's root.
PROC_FILES = (
    "cmdline", "diskstats", "kallsyms", "key-users", "keys", "locks", "modules", "partitions", "sched_debug", "swaps",
    "sys/kernel/random/boot_id", "timer_list",
    # Exact counts of what all sandboxes and the host hold: two sandboxes could use them to pass numbers to each other.
    # Each cover is a mount at every launch, so counts that no job can change, such as aio-nr, have none, nor has what
    # /proc/stat tells too.
    "sys/fs/dentry-state", "sys/fs/file-nr", "sys/fs/inode-nr", "sys/fs/inode-state", "sys/kernel/pty/nr",
)  # fmt: skip
# Anybody may write to pressure: each trigger is work of the kernel that counts for no job.
PROC_FOLDERS = ("acpi", "asound", "bus", "fs", "irq", "pressure", "scsi")
