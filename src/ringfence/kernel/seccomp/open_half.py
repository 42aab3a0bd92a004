"""The open half of the filter profiles: the calls that a general program may make, by purpose.

Each works on what the process already has, or is decided by something stronger than a filter: ownership,
mounts, namespaces, limits, Landlock. It deliberately has no condition: conditions close, and stand in
seccomp_profiles.
"""

from __future__ import annotations

from ringfence.kernel.seccomp.rules import Action, Kind, Rule

_ALLOW = Action(kind=Kind.ALLOW)

_PURPOSES = {
    "read and write open files": """
        read write pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2 lseek sendfile splice tee
        vmsplice copy_file_range readahead fadvise64 sync_file_range fsync fdatasync syncfs fallocate
        ftruncate cachestat
    """,
    "open files and directories; the mounts say which": """
        open openat creat close close_range getdents getdents64 getcwd chdir fchdir truncate
        memfd_create mknod mknodat pipe pipe2 dup dup2 dup3 fcntl flock ioctl umask
    """,
    "look at files": """
        stat fstat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat statfs fstatfs
        getxattr lgetxattr fgetxattr getxattrat listxattr llistxattr flistxattr listxattrat file_getattr
    """,
    "change files; mounts and ownership say which": """
        rename renameat renameat2 mkdir mkdirat rmdir link linkat unlink unlinkat symlink symlinkat
        chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat
        setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat
    """,
    "wait for events": """
        poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
        eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime
        inotify_init inotify_init1 inotify_add_watch inotify_rm_watch
    """,
    "own memory": """
        mmap mprotect munmap brk mremap msync mincore madvise mlock mlock2 munlock mlockall munlockall mseal
        remap_file_pages pkey_mprotect pkey_alloc pkey_free membarrier get_mempolicy map_shadow_stack
    """,
    "processes and threads; the pid namespace and limits hold them": """
        clone fork vfork execve execveat exit exit_group wait4 waitid kill tkill tgkill rt_sigqueueinfo
        rt_tgsigqueueinfo pidfd_open pidfd_send_signal ptrace unshare futex futex_waitv futex_wake futex_wait
        futex_requeue set_robust_list get_robust_list set_tid_address gettid getpid getppid arch_prctl prctl
        personality rseq rseq_slice_yield restart_syscall
    """,
    "signals": """
        rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack pause
    """,
    "the kernel's own return probes come in here": "uretprobe uprobe",
    "sessions, groups and identity; without capabilities there is little to change": """
        getuid getgid geteuid getegid getgroups getresuid getresgid getpgid getpgrp getsid setpgid setsid
        setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capget capset
    """,
    "scheduling and limits, downwards": """
        sched_yield getpriority setpriority sched_setparam sched_getparam sched_setscheduler
        sched_getscheduler sched_get_priority_max sched_get_priority_min sched_rr_get_interval
        sched_setaffinity sched_getaffinity sched_setattr sched_getattr
        ioprio_set ioprio_get getrlimit setrlimit prlimit64 getrusage getcpu
    """,
    "time": """
        time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep alarm times
        getitimer setitimer timer_create timer_settime timer_gettime timer_getoverrun timer_delete
    """,
    "the machine's name and state": "uname sysinfo getrandom",
    "sockets; families, the network namespace and Landlock say where to": """
        socket socketpair connect bind listen accept accept4 shutdown getsockname getpeername
        setsockopt getsockopt sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg
    """,
    "System V and POSIX IPC; the ipc namespace holds them": """
        shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
        mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
    """,
    "further restriction of oneself": """
        seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self
        lsm_get_self_attr lsm_list_modules
    """,
}

OPEN = tuple(
    Rule(calls=tuple(calls.split()), action=_ALLOW, reason=reason) for reason, calls in _PURPOSES.items()
)
