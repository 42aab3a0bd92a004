/* pid 1 of a sandbox: collects the dead, tells how the job ended, and ends; with it, whatever is left inside.
 *
 * Descriptor 0 is the pipe on which it tells the end, 1 the count of what the dead wrote. It reads nothing but the
 * kernel's answers to wait4. No signal reaches it from inside: pid 1 gets only those that it has handlers for.
 */
#include "kernel.h"

enum { STATUS, TALLY, FIRST_UNWANTED };
enum { JOB = 2, SIGCHLD = 17, BLOCK_BYTES = 512 };
enum { PR_SET_PDEATHSIG = 1, PR_SET_DUMPABLE = 4, PR_SET_NAME = 15 };
enum { SIG_BLOCK = 0, WNOHANG = 1, SFD_CLOEXEC = 02000000, EINTR = 4 };

struct usage {
    int64_t user_s, user_us, system_s, system_us;
    int64_t largest_kib, shared, data, stack, minor, major, swaps, read_blocks, written_blocks;
    int64_t sent, received, signals, voluntary, involuntary;
};

struct watched {
    int32_t descriptor;
    int16_t events, found;
};

/* As ENDED of steps/pid1.py reads it: big-endian, without gaps. */
struct ended {
    uint32_t status;
    uint64_t user_us, system_us, largest_bytes, voluntary, involuntary;
} __attribute__((packed));

_Static_assert(sizeof(struct ended) == 44 && sizeof(struct usage) == 144, "as the kernel and ENDED have them");

static long call(long number, long a, long b, long c, long d) { return enter(number, a, b, c, d, 0, 0); }

static void tell(int status, const struct usage *used)
{
    struct ended told = {
        .status = __builtin_bswap32((uint32_t)status),
        .user_us = __builtin_bswap64((uint64_t)(used->user_s * 1000000 + used->user_us)),
        .system_us = __builtin_bswap64((uint64_t)(used->system_s * 1000000 + used->system_us)),
        .largest_bytes = __builtin_bswap64((uint64_t)used->largest_kib * 1024),
        .voluntary = __builtin_bswap64((uint64_t)used->voluntary),
        .involuntary = __builtin_bswap64((uint64_t)used->involuntary),
    };
    call(NR_write, STATUS, (long)&told, sizeof told, 0);
}

static void count_written(const struct usage *used)
{
    uint64_t bytes = (uint64_t)used->written_blocks * BLOCK_BYTES;
    if (bytes)
        call(NR_write, TALLY, (long)&bytes, sizeof bytes, 0);
}

/* Whether there is a reason to go on after all who are dead by now were collected. */
static int collect(void)
{
    for (;;) {
        int status = 0;
        struct usage used = {0};
        long pid = call(NR_wait4, -1, (long)&status, WNOHANG, (long)&used);
        if (pid == -EINTR)
            continue;
        if (pid == 0)
            return 1;
        if (pid < 0)
            return 0;
        count_written(&used);
        if (pid == JOB) {
            tell(status, &used);
            return 0;
        }
    }
}

__attribute__((noreturn, used)) static void serve(void)
{
    static const char name[] = "init";
    const uint64_t child = 1ull << (SIGCHLD - 1);
    const uint64_t defaults[4] = {0};
    /* It is not dumpable by its mode already, which nobody but root may read. */
    call(NR_prctl, PR_SET_DUMPABLE, 0, 0, 0);
    call(NR_prctl, PR_SET_NAME, (long)name, 0, 0);
    call(NR_close_range, FIRST_UNWANTED, ~0u, 0, 0);
    /* Ignored, it would have the kernel collect the dead, and nobody would know how they ended. */
    call(NR_rt_sigaction, SIGCHLD, (long)defaults, 0, sizeof child);
    call(NR_rt_sigprocmask, SIG_BLOCK, (long)&child, 0, sizeof child);
    long wakeup = call(NR_signalfd4, -1, (long)&child, sizeof child, SFD_CLOEXEC);
    /* An error on the pipe says that the leader is gone; nothing must outlive that. */
    while (wakeup >= 0 && collect()) {
        struct watched watched[2] = {{STATUS, 0, 0}, {(int32_t)wakeup, 1, 0}};
        char told[128];
        enter(NR_ppoll, (long)watched, 2, 0, 0, sizeof child, 0);
        if (watched[0].found)
            break;
        if (watched[1].found)
            call(NR_read, wakeup, (long)told, sizeof told, 0);
    }
    for (;;)
        call(NR_exit_group, 0, 0, 0, 0);
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tand $-16, %rsp\n\tcall serve\n");
#else
__asm__(".globl _start\n_start:\n\tmov x29, #0\n\tmov x30, #0\n\tb serve\n");
#endif
