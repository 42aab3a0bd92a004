/* How a name becomes a running program, as a shell finds it. */
#ifndef RINGFENCE_PROGRAM_H
#define RINGFENCE_PROGRAM_H

#include "kernel.h"

enum { ENOENT = 2, EINTR = 4, EAGAIN = 11, EACCES = 13, ENOTDIR = 20, PATH_BYTES = 4096 };

static long call(long number, long a, long b, long c, long d) { return enter(number, a, b, c, d, 0, 0); }

static unsigned long length(const char *text)
{
    unsigned long count = 0;
    while (text[count])
        count++;
    return count;
}

static const char *search_path(char **environment)
{
    for (; *environment; environment++) {
        const char *text = *environment;
        if (text[0] == 'P' && text[1] == 'A' && text[2] == 'T' && text[3] == 'H' && text[4] == '=')
            return text + 5;
    }
    return "/usr/local/bin:/usr/bin:/bin";
}

static int has_slash(const char *text)
{
    while (*text && *text != '/')
        text++;
    return *text == '/';
}

/* Become the program; returns the error. An empty part of the search path is the working directory. */
static long execute(char **argv, char **environment)
{
    static char path[PATH_BYTES];
    const char *part = search_path(environment);
    unsigned long name = length(argv[0]) + 1;
    long found = -ENOENT;
    if (has_slash(argv[0]) || name == 1)
        return call(NR_execve, (long)argv[0], (long)argv, (long)environment, 0);
    for (;;) {
        unsigned long count = 0;
        while (part[count] && part[count] != ':')
            count++;
        if (count + 1 + name <= sizeof path) {
            char *at = path;
            for (unsigned long i = 0; i < count; i++)
                *at++ = part[i];
            if (count)
                *at++ = '/';
            for (unsigned long i = 0; i < name; i++)
                *at++ = argv[0][i];
            long error = call(NR_execve, (long)path, (long)argv, (long)environment, 0);
            if (error == -EACCES)
                found = error;
            else if (error != -ENOENT && error != -ENOTDIR)
                return error;
        }
        if (!part[count])
            return found;
        part += count + 1;
    }
}

#endif
