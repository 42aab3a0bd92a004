/* Executes a table of system calls (ringfence/kernel/calls/table.py), and nothing else.
 *
 * Runs in a process that becomes a sandbox, partly as root, before it is confined. It reads the table, which the caller
 * made out of a policy, and no byte that a guest wrote. It has no C library, no state and no loop that goes backwards:
 * every table ends. Offsets are held against the size of the table, so that a wrong one is an error and no crash.
 */
#include "kernel.h"

#define MAGIC 0x63616c6cu
#define VERSION 6u
#define EINVAL 22

enum kind { IMMEDIATE, ADDRESS, SLOT };
enum operation { SPLIT = -1, PUT = -2, DECIMAL = -3, GET = -4, EXPECT = -5 };
enum { DIGITS = 20, FUTEX_WAIT = 0, ANY_ERROR = 255, LARGEST_ERROR = 4095 };

struct call {
    int64_t argument[6];
    int32_t number, store, skip;
    uint8_t kind[6], allowed[6];
};

struct head {
    uint32_t magic, version, calls, slots;
    uint64_t memory;
};

_Static_assert(sizeof(struct call) == 72 && sizeof(struct head) == 24, "as table.py packs them");

uint32_t ringfence_calls_version(void) { return VERSION; }

long ringfence_thread_pointer(void) { return (long)__builtin_thread_pointer(); }

/* pid 1 becomes the program of the descriptor; the job is its child and goes on here, in the same memory, on the same
 * stack. From the clone to the exec the parent touches no memory: that is the job's already. The program finds
 * ``status`` at 0 and ``tally`` at 1. Where the job is not process 2, or the exec fails, the parent ends, and with it,
 * as it is pid 1, the job. Signals must be blocked: a handler of the parent would run on the job's stack. */
static long part(long program, long status, long tally, long argv, long envp, long tid)
{
    static const char nothing[1] = "";
    /* CLONE_VM | CLONE_CHILD_SETTID | SIGCHLD */
    const long flags = 0x100 | 0x1000000 | 17;
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = tid;
    register long r8 __asm__("r8") = 0;
    register long r12 __asm__("r12") = program;
    register long r13 __asm__("r13") = status;
    register long r14 __asm__("r14") = tally;
    register long r15 __asm__("r15") = argv;
    register long r9 __asm__("r9") = envp;
    __asm__ volatile(
        "mov %[none], %%rbx\n\t"
        "syscall\n\t"
        "test %%rax, %%rax\n\t"
        "jle 2f\n\t"
        "cmp $2, %%rax\n\t"
        "jne 1f\n\t"
        "mov %[dup3], %%eax\n\t mov %%r13, %%rdi\n\t xor %%esi, %%esi\n\t xor %%edx, %%edx\n\t syscall\n\t"
        "test %%rax, %%rax\n\t js 1f\n\t"
        "mov %[dup3], %%eax\n\t mov %%r14, %%rdi\n\t mov $1, %%esi\n\t xor %%edx, %%edx\n\t syscall\n\t"
        "test %%rax, %%rax\n\t js 1f\n\t"
        "mov %[exec], %%eax\n\t mov %%r12, %%rdi\n\t mov %%rbx, %%rsi\n\t mov %%r15, %%rdx\n\t mov %%r9, %%r10\n\t"
        "mov $0x1000, %%r8d\n\t syscall\n"
        "1:\t mov %[exit], %%eax\n\t mov $99, %%edi\n\t syscall\n\t"
        "jmp 1b\n"
        "2:\n\t"
        : "=a"(result), "+r"(r10), "+r"(r8)
        : "a"(NR_clone), "D"(flags), "S"(0L), "d"(0L), "r"(r12), "r"(r13), "r"(r14), "r"(r15), "r"(r9),
          [none] "m"(*(const char *const[]){nothing}), [dup3] "i"(NR_dup3), [exec] "i"(NR_execveat),
          [exit] "i"(NR_exit_group)
        : "rbx", "rcx", "r11", "memory", "cc");
    return result;
#else
    register long x8 __asm__("x8") = NR_clone;
    register long x0 __asm__("x0") = flags;
    register long x1 __asm__("x1") = 0;
    register long x2 __asm__("x2") = 0;
    register long x3 __asm__("x3") = 0;
    register long x4 __asm__("x4") = tid;
    register long x9 __asm__("x9") = program;
    register long x10 __asm__("x10") = status;
    register long x11 __asm__("x11") = tally;
    register long x12 __asm__("x12") = argv;
    register long x13 __asm__("x13") = envp;
    register long x14 __asm__("x14") = (long)nothing;
    __asm__ volatile(
        "svc #0\n\t"
        "cmp x0, #0\n\t"
        "b.le 2f\n\t"
        "cmp x0, #2\n\t"
        "b.ne 1f\n\t"
        "mov x8, %[dup3]\n\t mov x0, x10\n\t mov x1, #0\n\t mov x2, #0\n\t svc #0\n\t"
        "tbnz x0, #63, 1f\n\t"
        "mov x8, %[dup3]\n\t mov x0, x11\n\t mov x1, #1\n\t mov x2, #0\n\t svc #0\n\t"
        "tbnz x0, #63, 1f\n\t"
        "mov x8, %[exec]\n\t mov x0, x9\n\t mov x1, x14\n\t mov x2, x12\n\t mov x3, x13\n\t mov x4, #0x1000\n\t svc #0\n"
        "1:\t mov x8, %[exit]\n\t mov x0, #99\n\t svc #0\n\t"
        "b 1b\n"
        "2:\n\t"
        : "+r"(x0), "+r"(x1), "+r"(x2), "+r"(x3), "+r"(x4), "+r"(x8)
        : "r"(x9), "r"(x10), "r"(x11), "r"(x12), "r"(x13), "r"(x14), [dup3] "i"(NR_dup3),
          [exec] "i"(NR_execveat), [exit] "i"(NR_exit_group)
        : "memory", "cc");
    return x0;
#endif
}

/* The job goes on when the parent has left this memory: the parent is under no filter, and what the job's program could
 * write here until then the parent would execute. The kernel clears the word and wakes us when the exec is past. */
static long split(long program, long status, long tally, long argv, long envp, long tid)
{
    volatile uint32_t shared = 1;
    enter(NR_set_tid_address, (long)&shared, 0, 0, 0, 0, 0);
    long result = part(program, status, tally, argv, envp, tid);
    if (result < 0) {
        enter(NR_set_tid_address, 0, 0, 0, 0, 0, 0);
        return result;
    }
    while (__atomic_load_n(&shared, __ATOMIC_ACQUIRE))
        enter(NR_futex, (long)&shared, FUTEX_WAIT, 1, 0, 0, 0);
    if (tid)
        enter(NR_set_tid_address, tid, 0, 0, 0, 0, 0);
    return 0;
}

static long put(char *memory, uint64_t size, int64_t place, long value, long width)
{
    if ((width != 4 && width != 8) || size < (uint64_t)width || (uint64_t)place > size - (uint64_t)width)
        return -EINVAL;
    for (long byte = 0; byte < width; byte++)
        memory[place + byte] = (char)((uint64_t)value >> (8 * byte));
    return 0;
}

/* A number that the kernel wrote into a block. */
static long get(const char *memory, uint64_t size, int64_t place, long width)
{
    uint64_t value = 0;
    if ((width != 2 && width != 4 && width != 8) || size < (uint64_t)width || (uint64_t)place > size - (uint64_t)width)
        return -EINVAL;
    for (long byte = 0; byte < width; byte++)
        value |= (uint64_t)(unsigned char)memory[place + byte] << (8 * byte);
    return (long)value;
}

static long expect(long value, long mask, long wanted, long error)
{
    if (error < 1 || error > LARGEST_ERROR)
        return -EINVAL;
    return (value & mask) == wanted ? 0 : -error;
}

/* A number as text, for paths such as /proc/self/fd/7. */
static long decimal(char *memory, uint64_t size, int64_t place, long value)
{
    char digits[DIGITS];
    int count = 0;
    if (value < 0)
        return -EINVAL;
    do {
        digits[count++] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    if (size <= (uint64_t)count || (uint64_t)place > size - (uint64_t)count - 1)
        return -EINVAL;
    for (int digit = 0; digit < count; digit++)
        memory[place + digit] = digits[count - 1 - digit];
    memory[place + count] = 0;
    return 0;
}

static int is_allowed(const struct call *call, long error)
{
    for (int place = 0; place < 6; place++)
        if (call->allowed[place] && (call->allowed[place] == error || call->allowed[place] == ANY_ERROR))
            return 1;
    return 0;
}

static long make(const struct call *call, char *memory, uint64_t size, const long *v)
{
    switch (call->number) {
    case SPLIT:
        return v[1] < 0 || v[2] < 0 ? -EINVAL : split(v[0], v[1], v[2], v[3], v[4], v[5]);
    case PUT:
        return call->kind[0] != ADDRESS ? -EINVAL : put(memory, size, call->argument[0], v[1], v[2]);
    case DECIMAL:
        return call->kind[0] != ADDRESS ? -EINVAL : decimal(memory, size, call->argument[0], v[1]);
    case GET:
        return call->kind[0] != ADDRESS ? -EINVAL : get(memory, size, call->argument[0], v[1]);
    case EXPECT:
        return expect(v[0], v[1], v[2], v[3]);
    default:
        return call->number < 0 ? -EINVAL : enter(call->number, v[0], v[1], v[2], v[3], v[4], v[5]);
    }
}

static int look_up(const struct call *call, char *memory, const struct head *head, const int64_t *slots, long *v)
{
    for (int place = 0; place < 6; place++) {
        int64_t argument = call->argument[place];
        if (call->kind[place] == IMMEDIATE)
            v[place] = argument;
        else if (call->kind[place] == ADDRESS && (uint64_t)argument <= head->memory)
            v[place] = (long)(memory + argument);
        else if (call->kind[place] == SLOT && (uint64_t)argument < head->slots)
            v[place] = (long)slots[argument];
        else
            return 0;
    }
    return call->store < (int64_t)head->slots;
}

/* Where to go on: a call skips some of those after it where it succeeds or, if the number is below zero, where it fails
 * with an allowed error. */
static uint64_t after(uint64_t number, int32_t skip, int is_failed)
{
    int64_t count = is_failed ? -(int64_t)skip : skip;
    return number + 1 + (count > 0 ? (uint64_t)count : 0);
}

/* 0, or the error with its sign; ``at`` is the call that is made, or was the last. The memory follows the calls, and the
 * slots lie at its end. */
long ringfence_calls_run(char *table, uint64_t size, uint32_t *at)
{
    const struct head *head = (const struct head *)table;
    *at = 0;
    if (size < sizeof *head || head->magic != MAGIC || head->version != VERSION)
        return -EINVAL;
    uint64_t calls_bytes = (uint64_t)head->calls * sizeof(struct call);
    if (calls_bytes > size - sizeof *head || head->memory != size - sizeof *head - calls_bytes ||
        (uint64_t)head->slots * 8 > head->memory)
        return -EINVAL;
    const struct call *calls = (const struct call *)(table + sizeof *head);
    char *memory = table + sizeof *head + calls_bytes;
    int64_t *slots = (int64_t *)(table + size - (uint64_t)head->slots * 8);
    for (uint64_t next = 0; next < head->calls;) {
        const struct call *call = &calls[next];
        long v[6];
        *at = (uint32_t)next;
        if (!look_up(call, memory, head, slots, v))
            return -EINVAL;
        long result = make(call, memory, head->memory, v);
        if (failed(result) && !is_allowed(call, -result))
            return result;
        if (!failed(result) && call->store >= 0)
            slots[call->store] = result;
        next = after(next, call->skip, failed(result));
    }
    return 0;
}

/* Clone with these flags; the child, in the memory of its parent and on its stack, touches neither: it sleeps until it is
 * killed, or its parent is gone. Signals must be blocked, as in ``part``. */
static long clone_sleeper(long flags, long parent)
{
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = 0;
    register long r8 __asm__("r8") = 0;
    register long r12 __asm__("r12") = parent;
    __asm__ volatile(
        "syscall\n\t"
        "test %%rax, %%rax\n\t"
        "jnz 2f\n\t"
        "mov %[prctl], %%eax\n\t mov $1, %%edi\n\t mov $9, %%esi\n\t syscall\n"
        "1:\t mov %[getppid], %%eax\n\t syscall\n\t"
        "cmp %%r12, %%rax\n\t"
        "jne 3f\n\t"
        "mov %[ppoll], %%eax\n\t xor %%edi, %%edi\n\t xor %%esi, %%esi\n\t xor %%edx, %%edx\n\t xor %%r10d, %%r10d\n\t"
        "xor %%r8d, %%r8d\n\t syscall\n\t"
        "jmp 1b\n"
        "3:\t mov %[exit], %%eax\n\t xor %%edi, %%edi\n\t syscall\n\t"
        "jmp 3b\n"
        "2:\n\t"
        : "=a"(result), "+r"(r10), "+r"(r8)
        : "a"(NR_clone), "D"(flags), "S"(0L), "d"(0L), "r"(r12), [prctl] "i"(NR_prctl), [getppid] "i"(NR_getppid),
          [ppoll] "i"(NR_ppoll), [exit] "i"(NR_exit_group)
        : "rcx", "r11", "memory", "cc");
    return result;
#else
    register long x8 __asm__("x8") = NR_clone;
    register long x0 __asm__("x0") = flags;
    register long x1 __asm__("x1") = 0;
    register long x2 __asm__("x2") = 0;
    register long x3 __asm__("x3") = 0;
    register long x4 __asm__("x4") = 0;
    register long x9 __asm__("x9") = parent;
    __asm__ volatile(
        "svc #0\n\t"
        "cbnz x0, 2f\n\t"
        "mov x8, %[prctl]\n\t mov x0, #1\n\t mov x1, #9\n\t svc #0\n"
        "1:\t mov x8, %[getppid]\n\t svc #0\n\t"
        "cmp x0, x9\n\t"
        "b.ne 3f\n\t"
        "mov x8, %[ppoll]\n\t mov x0, #0\n\t mov x1, #0\n\t mov x2, #0\n\t mov x3, #0\n\t mov x4, #0\n\t svc #0\n\t"
        "b 1b\n"
        "3:\t mov x8, %[exit]\n\t mov x0, #0\n\t svc #0\n\t"
        "b 3b\n"
        "2:\n\t"
        : "+r"(x0), "+r"(x1), "+r"(x2), "+r"(x3), "+r"(x4), "+r"(x8)
        : "r"(x9), [prctl] "i"(NR_prctl), [getppid] "i"(NR_getppid), [ppoll] "i"(NR_ppoll), [exit] "i"(NR_exit_group)
        : "memory", "cc");
    return x0;
#endif
}

/* A child that does nothing until it is killed: it carries a user namespace until somebody has a descriptor of that. It
 * ends with its parent. It shares our memory, since to copy that takes as long as all the rest of a sandbox's clone. */
long ringfence_idle_clone(uint64_t flags, long parent)
{
    const uint64_t all = ~(uint64_t)0;
    uint64_t before = 0;
    enter(NR_rt_sigprocmask, 0 /* SIG_BLOCK */, (long)&all, (long)&before, sizeof before, 0, 0);
    /* CLONE_VM | SIGCHLD */
    const long child = clone_sleeper((long)flags | 0x100 | 17, parent);
    enter(NR_rt_sigprocmask, 2 /* SIG_SETMASK */, (long)&before, 0, sizeof before, 0, 0);
    return child;
}

#include "orders.h"
