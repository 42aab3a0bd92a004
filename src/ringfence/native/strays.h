/* Processes of a container whose visit has ended: all that have no living reaper above them, by /proc. */
#ifndef RINGFENCE_STRAYS_H
#define RINGFENCE_STRAYS_H

#include "program.h"

enum { SIGKILL = 9, CLOEXEC = 02000000, MOST_PROCESSES = 8192 };

static int is_reaper(int32_t pid);

static struct { int32_t pid, parent; uint8_t state, kept; } processes[MOST_PROCESSES];
static int process_count;

static int32_t number(const char *text)
{
    int32_t found = 0;
    while (*text >= '0' && *text <= '9')
        found = found * 10 + (*text++ - '0');
    return *text ? -1 : found;
}

/* The state and the parent of a process, by /proc/PID/stat, in which its name may hold anything. */
static int look_at(long folder, const char *name, uint8_t *state, int32_t *parent)
{
    static char text[512];
    char path[24];
    int i = 0;
    for (; name[i] && i < 12; i++)
        path[i] = name[i];
    for (const char *end = "/stat"; (path[i++] = *end++);)
        ;
    long file = call(NR_openat, folder, (long)path, CLOEXEC, 0);
    if (failed(file))
        return 0;
    long count = call(NR_read, file, (long)text, sizeof text - 1, 0);
    call(NR_close, file, 0, 0, 0);
    while (count > 0 && text[count - 1] != ')')
        count--;
    if (count <= 0)
        return 0;
    *state = (uint8_t)text[count + 1];
    *parent = 0;
    for (const char *at = text + count + 3; *at >= '0' && *at <= '9'; at++)
        *parent = *parent * 10 + (*at - '0');
    return 1;
}

static int list_processes(void)
{
    static char entries[32768] __attribute__((aligned(8)));
    long folder = call(NR_openat, -100, (long)"/proc", CLOEXEC, 0), count;
    process_count = 0;
    if (failed(folder))
        return 0;
    while ((count = call(NR_getdents64, folder, (long)entries, sizeof entries, 0)) > 0)
        for (char *at = entries; at < entries + count; at += *(uint16_t *)(at + 16)) {
            const char *name = at + 19;
            int32_t pid = number(name);
            if (pid <= 1)
                continue;
            if (process_count == MOST_PROCESSES) {
                call(NR_close, folder, 0, 0, 0);
                return 0;
            }
            processes[process_count].pid = pid;
            processes[process_count].kept = 0;
            if (look_at(folder, name, &processes[process_count].state, &processes[process_count].parent))
                process_count++;
        }
    call(NR_close, folder, 0, 0, 0);
    return count == 0;
}

static int is_kept(int32_t pid)
{
    if (is_reaper(pid))
        return 1;
    for (int low = 0, high = process_count; low < high;) {
        int middle = (low + high) / 2;
        if (processes[middle].pid == pid)
            return processes[middle].kept;
        if (processes[middle].pid < pid)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

/* Kill all who have no living reaper above them; how many that were, or less than 0. */
static int kill_strays(void)
{
    int killed = 0, changed = 1;
    if (!list_processes())
        return -1;
    while (changed) {
        changed = 0;
        for (int i = 0; i < process_count; i++)
            if (!processes[i].kept && (processes[i].parent == 0 || is_kept(processes[i].pid) ||
                                       is_kept(processes[i].parent)))
                changed = processes[i].kept = 1;
    }
    for (int i = 0; i < process_count; i++)
        if (!processes[i].kept && processes[i].state != 'Z' && processes[i].state != 'X') {
            call(NR_kill, processes[i].pid, SIGKILL, 0, 0);
            killed++;
        }
    return killed;
}

#endif
