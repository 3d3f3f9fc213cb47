/* Preloaded into a server by clock.py: its wall clock shows what is in a file.
 *
 * Only the wall clock moves. The event loop and the timers run on the monotonic clock, and with
 * that one jumping back, the server would wait for it to come round again.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

typedef int clock_function(clockid_t, struct timespec *);
static clock_function *real;          /* the C library's; its vDSO is faster than a system call */
static const volatile int64_t *moved; /* the time, in nanoseconds */

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("MOVED_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(0, sizeof *moved, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) moved = page;
    if (file >= 0) close(file);
    real = (clock_function *)dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    /* An allocator asks for the time before start() has run: nothing here may allocate. */
    int failed = real ? real(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
    if (failed || !moved || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t moment = *moved;
    now->tv_sec = moment / SECOND;
    now->tv_nsec = moment % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
