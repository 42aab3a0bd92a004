/* Files into and out of a container, as the guest that the visit is: a link leads no further than the guest could go.
 * What roles/file_transfer.py does elsewhere. Nothing that may block is opened; the status is the error, its words are
 * on standard error. */
#ifndef RINGFENCE_TRANSFER_H
#define RINGFENCE_TRANSFER_H

#include "program.h"

enum { AT_FDCWD = -100, AT_EMPTY_PATH = 0x1000, STATX_TYPE = 1, REGULAR = 0100000, KIND = 0170000 };
#if defined(__x86_64__)
enum { O_NOFOLLOW = 0400000 };
#else
enum { O_NOFOLLOW = 0100000 };
#endif
enum { O_WRONLY = 1, O_CREAT = 0100, O_EXCL = 0200, O_NOCTTY = 0400, O_NONBLOCK = 04000, O_CLOEXEC = 02000000 };
enum { NAME_TOO_LONG = 36, NO_REGULAR_FILE = 95, LARGEST_STATUS = 120, TRANSFER_POLLOUT = 4, PIECE = 65536 };

static char piece[PIECE];

__attribute__((noreturn)) static void end(long code)
{
    for (;;)
        call(NR_exit_group, code, 0, 0, 0);
}

static long write_all(long descriptor, const char *at, unsigned long count)
{
    while (count) {
        long done = call(NR_write, descriptor, (long)at, (long)count, 0);
        if (done == -EAGAIN) {
            struct { int32_t descriptor; int16_t events, found; } watched = {(int32_t)descriptor, TRANSFER_POLLOUT, 0};
            enter(NR_ppoll, (long)&watched, 1, 0, 0, 8, 0);
        } else if (failed(done) && done != -EINTR) {
            return done;
        } else if (!failed(done)) {
            at += done;
            count -= (unsigned long)done;
        }
    }
    return 0;
}

static const char *words(long error)
{
    switch (error) {
    case 1: return "Operation not permitted";
    case 2: return "No such file or directory";
    case 13: return "Permission denied";
    case 16: return "Device or resource busy";
    case 17: return "File exists";
    case 20: return "Not a directory";
    case 21: return "Is a directory";
    case 22: return "Invalid argument";
    case 24: return "Too many open files";
    case 26: return "Text file busy";
    case 27: return "File too large";
    case 28: return "No space left on device";
    case 30: return "Read-only file system";
    case NAME_TOO_LONG: return "File name too long";
    case 39: return "Directory not empty";
    case 40: return "Too many levels of symbolic links";
    case NO_REGULAR_FILE: return "it is not a regular file";
    case 122: return "Disk quota exceeded";
    default: return "it can't be opened, read or written";
    }
}

__attribute__((noreturn)) static void tell_error(long error)
{
    const char *said = words(error);
    write_all(2, said, length(said));
    end(error > LARGEST_STATUS ? LARGEST_STATUS : error);
}

static void make_folders(char *path)
{
    for (char *at = path + 1; *path && *at; at++)
        if (*at == '/') {
            *at = 0;
            call(NR_mkdirat, AT_FDCWD, (long)path, 0777, 0);
            *at = '/';
        }
}

/* What comes from standard input, as a new file in place of whatever has that name. */
__attribute__((noreturn)) static void put(const char *name)
{
    static char path[PATH_BYTES], beside[PATH_BYTES + 16];
    uint8_t random[4] = {0, 0, 0, 0};
    unsigned long count = length(name);
    long done = 0;
    if (count >= sizeof path)
        tell_error(NAME_TOO_LONG);
    for (unsigned long i = 0; i <= count; i++)
        path[i] = beside[i] = name[i];
    make_folders(path);
    call(NR_getrandom, (long)random, sizeof random, 0, 0);
    beside[count] = '.';
    for (int i = 0; i < 8; i++)
        beside[count + 1 + (unsigned long)i] = "0123456789abcdef"[random[i / 2] >> (i % 2 * 4) & 15];
    beside[count + 9] = 0;
    long file = call(NR_openat, AT_FDCWD, (long)beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (failed(file))
        tell_error(-file);
    for (;;) {
        long taken = call(NR_read, 0, (long)piece, sizeof piece, 0);
        if (taken == -EINTR)
            continue;
        done = taken > 0 ? write_all(file, piece, (unsigned long)taken) : taken;
        if (taken <= 0 || done)
            break;
    }
    if (!done)
        done = call(NR_renameat, AT_FDCWD, (long)beside, AT_FDCWD, (long)path);
    if (done) {
        call(NR_unlinkat, AT_FDCWD, (long)beside, 0, 0);
        tell_error(-done);
    }
    end(0);
}

/* A regular file's content to standard output, so much of it and no more: a guest can make one that has no end. */
__attribute__((noreturn)) static void get(const char *name, uint64_t most)
{
    static struct { uint8_t before[28]; uint16_t mode; uint8_t after[226]; } status;
    long file = call(NR_openat, AT_FDCWD, (long)name, O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0);
    if (failed(file))
        tell_error(-file);
    long error = enter(NR_statx, file, (long)"", AT_EMPTY_PATH, STATX_TYPE, (long)&status, 0);
    if (error)
        tell_error(-error);
    if ((status.mode & KIND) != REGULAR)
        tell_error(NO_REGULAR_FILE);
    while (most) {
        long taken = call(NR_read, file, (long)piece, most < sizeof piece ? (long)most : (long)sizeof piece, 0);
        if (taken == -EINTR)
            continue;
        if (taken < 0)
            tell_error(-taken);
        if (taken == 0)
            break;
        error = write_all(1, piece, (unsigned long)taken);
        if (error)
            tell_error(-error);
        most -= (uint64_t)taken;
    }
    end(0);
}

#endif
