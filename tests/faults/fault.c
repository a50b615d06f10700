/* Preloaded into a process and its children: the named calls fail with FAULT_ERRNO on files whose path contains
   FAULT_PATH, while the file FAULT_SWITCH exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int fails(const char *call, int fd) {
    const char *file = getenv("FAULT_SWITCH"), *calls = getenv("FAULT_CALLS"), *want = getenv("FAULT_PATH");
    char link[64], path[4096], list[256];
    if (!file || !calls || !want || access(file, F_OK)) return 0;
    snprintf(list, sizeof list, ",%s,", calls);
    snprintf(link, sizeof link, ",%s,", call);
    if (!strstr(list, link)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, want) != NULL;
}

#define WRAP(type, name, parameters, arguments)                  \
    type name parameters {                                       \
        static type(*real) parameters;                           \
        if (!real) real = dlsym(RTLD_NEXT, #name);               \
        if (fails(#name, fd)) { errno = atoi(getenv("FAULT_ERRNO")); return -1; } \
        return real arguments;                                   \
    }

WRAP(int, fsync, (int fd), (fd))
WRAP(int, fdatasync, (int fd), (fd))
WRAP(ssize_t, write, (int fd, const void *b, size_t n), (fd, b, n))
WRAP(ssize_t, pwrite, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o))
WRAP(ssize_t, pwrite64, (int fd, const void *b, size_t n, off64_t o), (fd, b, n, o))
WRAP(ssize_t, pread64, (int fd, void *b, size_t n, off64_t o), (fd, b, n, o))
WRAP(ssize_t, pwritev, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o))
WRAP(ssize_t, preadv, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o))
WRAP(ssize_t, pwritev64, (int fd, const struct iovec *v, int n, off64_t o), (fd, v, n, o))
WRAP(ssize_t, preadv64, (int fd, const struct iovec *v, int n, off64_t o), (fd, v, n, o))
WRAP(ssize_t, pwritev2, (int fd, const struct iovec *v, int n, off_t o, int f), (fd, v, n, o, f))
WRAP(ssize_t, preadv2, (int fd, const struct iovec *v, int n, off_t o, int f), (fd, v, n, o, f))
WRAP(ssize_t, pwritev64v2, (int fd, const struct iovec *v, int n, off64_t o, int f), (fd, v, n, o, f))
WRAP(ssize_t, preadv64v2, (int fd, const struct iovec *v, int n, off64_t o, int f), (fd, v, n, o, f))
