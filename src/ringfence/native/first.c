/* pid 1 of a container: starts the job, passes signals on to it, collects the dead, and exits as the job did.
 *
 * An engine tells one byte, in which a signal and an exit status of 128 and more look the same. So of a job that has
 * exited with such a status it says so, as the last that the container prints: nobody else is left then.
 */
#include "program.h"

enum { SIGKILL = 9, SIGCHLD = 17, SIGTTIN = 21, SIGTTOU = 22 };
enum { PR_SET_DUMPABLE = 4, PR_SET_NAME = 15, TIOCSPGRP = 0x5410 };
enum { SIG_SETMASK = 2, WNOHANG = 1, POLLOUT = 4, ERRORS = 2 };
enum { NOT_EXECUTABLE = 126, NOT_FOUND = 127, FIRST_SIGNAL = 129, LAST_SIGNAL = 192 };

static const char WORD[] = "\0ringfence: the job has exited with this status";

static void say(const char *text, unsigned long count)
{
    while (call(NR_write, ERRORS, (long)text, (long)count, 0) == -EAGAIN) { /* the job has made it so */
        struct { int32_t descriptor; int16_t events, found; } watched = {ERRORS, POLLOUT, 0};
        enter(NR_ppoll, (long)&watched, 1, 0, 0, 8, 0);
    }
}

__attribute__((noreturn)) static void end(long code)
{
    for (;;)
        call(NR_exit_group, code, 0, 0, 0);
}

__attribute__((noreturn)) static void become(char **argv, char **environment, const uint64_t *mask)
{
    int32_t own = (int32_t)call(NR_getpid, 0, 0, 0, 0);
    call(NR_setpgid, 0, 0, 0, 0);
    call(NR_ioctl, 0, TIOCSPGRP, (long)&own, 0); /* of a terminal it is in front; SIGTTOU is blocked still */
    call(NR_rt_sigprocmask, SIG_SETMASK, (long)mask, 0, sizeof *mask);
    long error = execute(argv, environment);
    static const char missing[] = ": no such program in the container\n", refused[] = ": can't be executed\n";
    say(argv[0], length(argv[0]));
    if (error == -ENOENT) {
        say(missing, sizeof missing - 1);
        end(NOT_FOUND);
    }
    say(refused, sizeof refused - 1);
    end(NOT_EXECUTABLE);
}

/* Collect whoever is dead; whether the job is among them. */
static int collect(long job, int *status)
{
    for (;;) {
        int how = 0;
        long pid = call(NR_wait4, -1, (long)&how, WNOHANG, 0);
        if (pid == job) {
            *status = how;
            return 1;
        }
        if (pid == 0 || (pid < 0 && pid != -EINTR))
            return 0;
    }
}

__attribute__((noreturn)) static void exit_as(int status)
{
    int code = status >> 8 & 0xff, signal = status & 0x7f;
    if (signal)
        end(128 + signal);
    if (code >= FIRST_SIGNAL && code <= LAST_SIGNAL) {
        long left;
        call(NR_kill, -1, SIGKILL, 0, 0);
        do
            left = call(NR_wait4, -1, 0, 0, 0);
        while (left > 0 || left == -EINTR);
        say(WORD, sizeof WORD - 1);
    }
    end(code);
}

__attribute__((noreturn, used)) static void serve(long *stack)
{
    static const char name[] = "init";
    const uint64_t all = ~0ull;
    const uint64_t defaults[4] = {0};
    uint64_t before = 0;
    char **argv = (char **)(stack + 1), **environment = argv + stack[0] + 1;
    int status = 0;
    /* Anywhere else there are others than the job's processes to kill. */
    if (stack[0] < 2 || call(NR_getpid, 0, 0, 0, 0) != 1)
        end(NOT_FOUND);
    call(NR_prctl, PR_SET_DUMPABLE, 0, 0, 0);
    /* Ignored, it would have the kernel collect the dead, and nobody would know how they ended. */
    call(NR_rt_sigaction, SIGCHLD, (long)defaults, 0, sizeof all);
    call(NR_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&before, sizeof all);
    long job = call(NR_clone, SIGCHLD, 0, 0, 0);
    if (job == 0)
        become(argv + 1, environment, &before);
    if (job < 0)
        end(NOT_EXECUTABLE);
    call(NR_prctl, PR_SET_NAME, (long)name, 0, 0);
    while (!collect(job, &status)) {
        long number = call(NR_rt_sigtimedwait, (long)&all, 0, 0, sizeof all);
        if (number > 0 && number != SIGCHLD && number != SIGTTIN && number != SIGTTOU)
            call(NR_kill, job, number, 0, 0);
    }
    exit_as(status);
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall serve\n");
#else
__asm__(".globl _start\n_start:\n\tmov x29, #0\n\tmov x30, #0\n\tmov x0, sp\n\tb serve\n");
#endif
