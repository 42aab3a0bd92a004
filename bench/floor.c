/*
 * The floor under every launch: what the kernel alone takes to build and leave a sandbox.
 *
 *     floor COUNT        prints the milliseconds of each of COUNT launches, one a line
 *
 * A launch is fork, six new namespaces, a second fork into the pid namespace, a tmpfs root with three system
 * directories bound into it, an overlay, a fresh /proc, pivot_root, and the wait for the end. Nothing is executed,
 * limited, filtered or watched: no sandbox that does these steps for each job can be faster.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NAMESPACES (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)

static const char *const FOLDERS[] = {
    "root", "root/usr", "root/etc", "root/var", "root/proc", "root/work", "root/old", "lower", "upper", "scratch",
};
static const char *const BOUND[][2] = {{"/usr", "root/usr"}, {"/etc", "root/etc"}, {"/var", "root/var"}};

static void need(int result, const char *step)
{
    if (result < 0) {
        perror(step);
        _exit(1);
    }
}

static void put(const char *path, const char *text)
{
    int file = open(path, O_WRONLY | O_CLOEXEC);
    need(file, path);
    need((int)write(file, text, strlen(text)), path);
    close(file);
}

static void put_map(const char *path, unsigned id)
{
    char line[32];
    snprintf(line, sizeof line, "0 %u 1", id);
    put(path, line);
}

static void build_root(void)
{
    need(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make / private");
    need(mount("tmpfs", "/mnt", "tmpfs", MS_NOSUID | MS_NODEV, NULL), "tmpfs");
    need(chdir("/mnt"), "chdir");
    for (size_t i = 0; i < sizeof FOLDERS / sizeof *FOLDERS; i++)
        need(mkdir(FOLDERS[i], 0755), FOLDERS[i]);
    need(mount("root", "root", NULL, MS_BIND, NULL), "bind the root");
    for (size_t i = 0; i < sizeof BOUND / sizeof *BOUND; i++)
        need(mount(BOUND[i][0], BOUND[i][1], NULL, MS_BIND | MS_REC, NULL), BOUND[i][0]);
    const char *layers = "lowerdir=lower,upperdir=upper,workdir=scratch,userxattr";
    need(mount("overlay", "root/work", "overlay", 0, layers), "overlay");
    need(mount("proc", "root/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "proc");
}

static void enter_root(void)
{
    need((int)syscall(SYS_pivot_root, "root", "root/old"), "pivot_root");
    need(chdir("/"), "chdir /");
    need(umount2("/old", MNT_DETACH), "leave the old root");
}

static int ended_well(pid_t child)
{
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void sandbox(void)
{
    unsigned uid = geteuid(), gid = getegid();
    need(unshare(NAMESPACES), "unshare");
    put("/proc/self/setgroups", "deny");
    put_map("/proc/self/uid_map", uid);
    put_map("/proc/self/gid_map", gid);
    pid_t first = fork();
    need(first, "fork");
    if (first > 0)
        _exit(!ended_well(first));
    build_root();
    enter_root();
    _exit(0);
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

int main(int count, char **words)
{
    for (int left = count > 1 ? atoi(words[1]) : 1; left > 0; left--) {
        double start = now_ms();
        pid_t child = fork();
        need(child, "fork");
        if (child == 0)
            sandbox();
        if (!ended_well(child))
            return 1;
        printf("%.4f\n", now_ms() - start);
        fflush(stdout);
    }
    return 0;
}
