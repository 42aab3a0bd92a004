/* pid 1 of a container that takes visits: a job each, with the caller's descriptors, until the caller hangs up.
 *
 * Orders come over one socket (container/visits.py has the same layouts). Between pid 1 and a job stands a reaper, which
 * adopts what its visit leaves behind and tells how the job ended. pid 1 holds the time of each visit: nobody in the
 * container can stop or end it. It ends a visit with all its processes; whom it can't end it ends with the container.
 */
#include "program.h"
#include "strays.h"
#include "transfer.h"

enum { SIGCHLD = 17, SIGTTIN = 21, SIGTTOU = 22, SIG_SETMASK = 2, WNOHANG = 1, ECHILD = 10 };
enum { PR_SET_DUMPABLE = 4, PR_SET_NAME = 15, PR_SET_SECCOMP = 22, PR_SET_NO_NEW_PRIVS = 38, PR_SET_SUBREAPER = 36 };
enum { TIOCSCTTY = 0x540E, F_DUPFD_CLOEXEC = 1030, RLIMIT_NOFILE = 7, CLOCK_MONOTONIC = 1 };
enum { AF_UNIX = 1, SEQPACKET = 5, MSG_CMSG_CLOEXEC = 0x40000000, MSG_CTRUNC = 8 };
enum { MSG_DONTWAIT = 0x40, MSG_NOSIGNAL = 0x4000, POLLIN = 1, SHARED = 0x21, PRIVATE = 2, ANONYMOUS = 0x22 };
enum { FAILED = 126, MOST_VISITS = 64, MOST_RIGHTS = 8, ROUNDS = 5000, LOOKS = 200 };
enum { VISIT = 'v', SIGNAL = 's', READY = 'R', ENDED = 'E', KILLED = 'K', NOT_STARTED = 'X', NO_FOLDER = 'C',
       NO_ROOM = 'N' };
enum { ASKED = 1, TIME = 2, TERMINAL = 1, ALONE = 2, RUN = 0, PUT = 1, GET = 2 };

static const char DOOR[] = "/ringfence/door/socket";

struct order { uint32_t kind, number, value, flags; uint64_t wall_ms; };
struct told { int32_t kind, value; uint64_t user_us, system_us, largest; };
struct head { uint32_t what, count, variables, filter, descriptors, unused; uint64_t most; };
struct slot { volatile int32_t job, over; };
struct visit { uint32_t number; int32_t reaper, report, ends, why; uint64_t until; struct slot *slot; };

static struct visit visits[MOST_VISITS];
static struct slot *slots;
static int32_t door = -1;

static int is_reaper(int32_t pid)
{
    for (int i = 0; i < MOST_VISITS; i++)
        if (visits[i].reaper == pid)
            return 1;
    return 0;
}

static uint64_t now_ms(void)
{
    int64_t clock[2] = {0, 0};
    call(NR_clock_gettime, CLOCK_MONOTONIC, (long)clock, 0, 0);
    return (uint64_t)clock[0] * 1000 + (uint64_t)clock[1] / 1000000;
}

static void tell(int32_t report, struct told *what)
{
    enter(NR_sendto, report, (long)what, sizeof *what, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
}

static void tell_kind(int32_t report, int32_t kind, long value)
{
    struct told what = {kind, (int32_t)value, 0, 0, 0};
    tell(report, &what);
}

/* ---- the job, and who stands above it */

static void refuse(int32_t report, int32_t kind, long error)
{
    tell_kind(report, kind, -error);
    end(FAILED);
}

/* Descriptors are placed from 0 on; all others close when the program begins. */
static void place(int32_t *streams, int count)
{
    for (int i = 0; i < count; i++)
        streams[i] = (int32_t)call(NR_fcntl, streams[i], F_DUPFD_CLOEXEC, MOST_RIGHTS, 0);
    for (int i = 0; i < count; i++)
        call(NR_dup3, streams[i], i, 0, 0);
}

__attribute__((noreturn)) static void become(struct head *head, char **argv, char **environment, const char *folder,
                                             int32_t report, int32_t *streams, int count, uint32_t flags)
{
    const uint64_t none = 0;
    uint64_t most[2] = {head->descriptors, head->descriptors};
    struct { uint16_t count; const void *filter; } program = {(uint16_t)(head->filter / 8), 0};
    call(NR_close, door, 0, 0, 0);
    report = (int32_t)call(NR_fcntl, report, F_DUPFD_CLOEXEC, MOST_RIGHTS, 0);
    place(streams, count);
    call(NR_setsid, 0, 0, 0, 0);
    if (flags & TERMINAL)
        call(NR_ioctl, 0, TIOCSCTTY, 0, 0);
    long error = call(NR_chdir, (long)folder, 0, 0, 0);
    if (error)
        refuse(report, NO_FOLDER, error);
    call(NR_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, sizeof none);
    if (head->what == PUT)
        put(argv[0]);
    if (head->what == GET)
        get(argv[0], head->most);
    error = call(NR_prlimit64, 0, RLIMIT_NOFILE, (long)most, 0);
    if (!error && head->filter) {
        program.filter = head + 1;
        call(NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0);
        error = call(NR_prctl, PR_SET_SECCOMP, 2, (long)&program, 0);
    }
    if (!error)
        error = execute(argv, environment);
    refuse(report, NOT_STARTED, error);
    end(FAILED);
}

/* The texts of an order, as the kernel takes arguments and variables; nothing where they are not whole. */
static char **texts(char *at, char *beyond, uint32_t count, char **after)
{
    long made = enter(NR_mmap, 0, (count + 1) * sizeof(char *), 3, ANONYMOUS, -1, 0);
    if (failed(made))
        return 0;
    char **found = (char **)made;
    for (uint32_t i = 0; i < count; i++) {
        found[i] = at;
        while (at < beyond && *at)
            at++;
        if (at++ >= beyond)
            return 0;
    }
    *after = at;
    return found;
}

static uint64_t microseconds(const int64_t *time) { return (uint64_t)time[0] * 1000000 + (uint64_t)time[1]; }

/* Until the last process of the visit has ended; where it is ``alone``, all that is left ends with the job. */
__attribute__((noreturn)) static void reap(long job, int32_t report, struct slot *slot, uint32_t flags)
{
    const uint64_t all = ~0ull;
    struct told ended = {ENDED, 0, 0, 0, 0};
    int over = 0;
    for (;;) {
        int64_t usage[18];
        int how = 0;
        long pid = call(NR_wait4, -1, (long)&how, WNOHANG, (long)usage);
        if (pid == job && !over) {
            over = 1;
            ended.value = how;
            ended.user_us = microseconds(usage);
            ended.system_us = microseconds(usage + 2);
            ended.largest = (uint64_t)usage[4] * 1024;
            slot->job = 0;
            if (flags & ALONE) {
                call(NR_kill, -1, SIGKILL, 0, 0);
                continue;
            }
            slot->over = 1;
            tell(report, &ended);
            call(NR_close, report, 0, 0, 0);
        } else if (pid == -ECHILD) {
            if (over && flags & ALONE)
                tell(report, &ended);
            end(0);
        } else if (pid == 0) {
            if (over && flags & ALONE)
                call(NR_kill, -1, SIGKILL, 0, 0);
            call(NR_rt_sigtimedwait, (long)&all, 0, 0, sizeof all);
        }
    }
}

__attribute__((noreturn)) static void hold(struct order *order, int32_t *rights, int count, struct slot *slot)
{
    static const char name[] = "reaper";
    call(NR_prctl, PR_SET_SUBREAPER, 1, 0, 0);
    call(NR_prctl, PR_SET_NAME, (long)name, 0, 0);
    long mapped = enter(NR_mmap, 0, order->value, 3, PRIVATE, rights[1], 0);
    if (failed(mapped) || order->value < sizeof(struct head))
        end(FAILED);
    struct head *head = (struct head *)mapped;
    char *beyond = (char *)mapped + order->value, *at = (char *)(head + 1) + head->filter, *folder = at;
    char **argv, **environment;
    if (head->filter > order->value || at >= beyond || head->count > order->value || head->variables > order->value)
        end(FAILED);
    while (at < beyond && *at)
        at++;
    argv = texts(at + 1, beyond, head->count, &at);
    environment = argv ? texts(at, beyond, head->variables, &at) : 0;
    if (!environment || !head->count)
        end(FAILED);
    long job = call(NR_clone, SIGCHLD, 0, 0, 0);
    if (job == 0)
        become(head, argv, environment, folder, rights[0], rights + 2, count - 2, order->flags);
    for (int i = 1; i < count; i++)
        call(NR_close, rights[i], 0, 0, 0);
    call(NR_close, door, 0, 0, 0);
    if (job < 0)
        end(FAILED);
    slot->job = (int32_t)job;
    reap(job, rights[0], slot, order->flags);
}

/* ---- the end of a visit */

/* Whose reaper has ended has nobody left; unless somebody killed it, and then nobody knows whose they were. */
static int collect(void)
{
    int lost = 0;
    for (;;) {
        int how = 0;
        long pid = call(NR_wait4, -1, (long)&how, WNOHANG, 0);
        if (pid <= 0)
            return lost;
        for (int i = 0; i < MOST_VISITS; i++)
            if (visits[i].reaper == pid) {
                visits[i].reaper = 0;
                if (how)
                    lost = visits[i].ends = 1;
                else
                    call(NR_close, visits[i].report, 0, 0, 0);
            }
    }
}

/* Until nobody is left who has no reaper; then tell those whose visits have ended so. */
static void sweep(void)
{
    const int64_t pause[2] = {0, 1000000};
    int killed = 1, others;
    for (int round = 0; killed; round++) {
        if (round == ROUNDS)
            end(FAILED); /* and the kernel ends whoever is left */
        others = 0;
        for (int i = 0; i < MOST_VISITS; i++)
            others += visits[i].reaper > 0;
        if (!others)
            call(NR_kill, -1, SIGKILL, 0, 0);
        killed = kill_strays();
        if (killed)
            enter(NR_ppoll, 0, 0, (long)pause, 0, 8, 0);
        if (collect())
            killed = 1;
    }
    for (int i = 0; i < MOST_VISITS; i++)
        if (visits[i].ends) {
            if (visits[i].why)
                tell_kind(visits[i].report, KILLED, visits[i].why);
            call(NR_close, visits[i].report, 0, 0, 0);
            visits[i].ends = 0;
        }
}

static void finish(struct visit *visit, int why)
{
    call(NR_kill, visit->reaper, SIGKILL, 0, 0);
    visit->reaper = 0;
    visit->ends = 1;
    visit->why = why;
    sweep();
}

/* ---- orders */

static void begin(struct order *order, int32_t *rights, int count)
{
    int free = 0;
    while (free < MOST_VISITS && (visits[free].reaper || visits[free].ends))
        free++;
    if (free < MOST_VISITS && count >= 5) {
        slots[free].job = slots[free].over = 0;
        long reaper = call(NR_clone, SIGCHLD, 0, 0, 0);
        if (reaper == 0)
            hold(order, rights, count, &slots[free]);
        if (reaper > 0) {
            visits[free].number = order->number;
            visits[free].reaper = (int32_t)reaper;
            visits[free].why = 0;
            visits[free].report = rights[0];
            visits[free].slot = &slots[free];
            visits[free].until = order->wall_ms ? now_ms() + order->wall_ms : ~0ull;
            rights[0] = -1;
        }
    }
    if (free == MOST_VISITS && count > 0)
        tell_kind(rights[0], NO_ROOM, 0);
    for (int i = 0; i < count; i++)
        if (rights[i] >= 0)
            call(NR_close, rights[i], 0, 0, 0);
}

static void signal_visit(struct order *order)
{
    const int64_t pause[2] = {0, 1000000};
    for (int i = 0; i < MOST_VISITS; i++) {
        struct visit *visit = &visits[i];
        if (!visit->reaper || visit->number != order->number || visit->slot->over)
            continue;
        if (order->value == SIGKILL) {
            finish(visit, ASKED);
            continue;
        }
        for (int look = 0; look < LOOKS && !visit->slot->job && !visit->slot->over; look++)
            enter(NR_ppoll, 0, 0, (long)pause, 0, 8, 0); /* its reaper is about to tell */
        if (visit->slot->job > 1)
            call(NR_kill, visit->slot->job, order->value, 0, 0);
    }
}

static void take_order(void)
{
    struct order order = {0, 0, 0, 0, 0};
    struct { uint64_t length; int32_t level, type; int32_t rights[MOST_RIGHTS]; } control = {0, 0, 0, {0}};
    struct { void *at; uint64_t count; } part = {&order, sizeof order};
    struct { void *name; uint64_t name_length; void *parts; uint64_t part_count; void *control; uint64_t length;
             int32_t flags; } message = {0, 0, &part, 1, &control, sizeof control, 0};
    long count = call(NR_recvmsg, door, (long)&message, MSG_CMSG_CLOEXEC, 0);
    if (count == -EINTR)
        return;
    if (count <= 0)
        end(0); /* the caller is gone, or wants no more */
    int rights = message.length >= 16 && control.level == 1 && control.type == 1 ? (int)(control.length - 16) / 4 : 0;
    if (count != sizeof order || message.flags & MSG_CTRUNC)
        end(FAILED);
    if (order.kind == VISIT)
        begin(&order, control.rights, rights);
    else if (order.kind == SIGNAL)
        signal_visit(&order);
}

static uint64_t hold_times(void)
{
    uint64_t soonest = ~0ull;
    for (int i = 0; i < MOST_VISITS; i++) {
        if (!visits[i].reaper || visits[i].slot->over)
            continue;
        if (visits[i].until <= now_ms())
            finish(&visits[i], TIME);
        else if (visits[i].until < soonest)
            soonest = visits[i].until;
    }
    return soonest;
}

static long connected(void)
{
    struct { uint16_t family; char path[108]; } address = {AF_UNIX, {0}};
    for (unsigned long i = 0; i < sizeof DOOR; i++)
        address.path[i] = DOOR[i];
    door = (int32_t)call(NR_socket, AF_UNIX, SEQPACKET | CLOEXEC, 0, 0);
    return door < 0 ? door : call(NR_connect, door, (long)&address, sizeof address, 0);
}

__attribute__((noreturn, used)) static void serve(long *stack)
{
    static const char name[] = "init", ready = READY;
    const uint64_t all = ~0ull, dead = 1ull << (SIGCHLD - 1);
    const uint64_t defaults[4] = {0};
    (void)stack;
    /* Anywhere else there are others than the visits' processes to kill. */
    if (call(NR_getpid, 0, 0, 0, 0) != 1)
        end(FAILED);
    call(NR_prctl, PR_SET_DUMPABLE, 0, 0, 0);
    call(NR_prctl, PR_SET_NAME, (long)name, 0, 0);
    call(NR_rt_sigaction, SIGCHLD, (long)defaults, 0, sizeof all);
    call(NR_rt_sigprocmask, SIG_SETMASK, (long)&all, 0, sizeof all);
    long made = enter(NR_mmap, 0, sizeof(struct slot) * MOST_VISITS, 3, SHARED, -1, 0);
    long woken = call(NR_signalfd4, -1, (long)&dead, sizeof dead, CLOEXEC);
    if (failed(made) || failed(woken) || connected())
        end(FAILED);
    slots = (struct slot *)made;
    enter(NR_sendto, door, (long)&ready, 1, MSG_NOSIGNAL, 0, 0);
    for (;;) {
        struct { int32_t descriptor; int16_t events, found; } watched[2] = {{door, POLLIN, 0}, {(int32_t)woken, POLLIN, 0}};
        uint64_t soonest = hold_times(), now = now_ms(), left = soonest > now ? soonest - now : 0;
        int64_t wait[2] = {(int64_t)(left / 1000), (int64_t)(left % 1000) * 1000000};
        char siginfo[128];
        enter(NR_ppoll, (long)watched, 2, soonest == ~0ull ? 0 : (long)wait, 0, 8, 0);
        if (watched[1].found) {
            call(NR_read, woken, (long)siginfo, sizeof siginfo, 0);
            if (collect())
                sweep();
        }
        if (watched[0].found)
            take_order();
    }
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall serve\n");
#else
__asm__(".globl _start\n_start:\n\tmov x29, #0\n\tmov x30, #0\n\tmov x0, sp\n\tb serve\n");
#endif
