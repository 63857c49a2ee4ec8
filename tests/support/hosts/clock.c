/* Preloaded into engines under test: their wall clock runs ahead by the seconds in a file.
 *
 * A test cannot step CLOCK_REALTIME of one process otherwise; time namespaces hold offsets of
 * CLOCK_MONOTONIC and CLOCK_BOOTTIME alone, and these are fixed at the start. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *ahead_s;
static int (*system_clock)(clockid_t, struct timespec *);

__attribute__((visibility("default"))) int tidecast_test_clock(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    void *at = mmap(0, sizeof *ahead_s, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED)
        return -1;
    ahead_s = at;
    return 0;
}

static void find_system_clock(void)
{
    system_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    if (!system_clock)
        find_system_clock();
    int outcome = system_clock(id, now);
    if (!outcome && id == CLOCK_REALTIME && ahead_s)
        now->tv_sec += *ahead_s;
    return outcome;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (to)
        *to = exact.tv_sec;
    return exact.tv_sec;
}

__attribute__((constructor)) static void begin(void)
{
    find_system_clock();
    const char *path = getenv("TIDECAST_TEST_CLOCK");
    if (path)
        tidecast_test_clock(path);
}
