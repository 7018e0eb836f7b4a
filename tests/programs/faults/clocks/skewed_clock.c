/* Shifts the wall clock of the processes that load it (LD_PRELOAD) by the milliseconds in the file SKEWED_CLOCK.

   The file is a signed 64-bit integer of this machine's order; its writer may change it at any time, and the clock
   jumps. Monotonic clocks are left alone, as by a real change of the time. Deadlines of waits on the wall clock are
   shifted back before they reach the kernel, whose own clock is right; those on a monotonic clock count from the start
   of the machine, so they are far smaller than any date.

   Debian's libfaketime is not used: with its 0.9.10, Python's time.sleep fails with EINVAL. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define A_DATE_S 1000000000L
#define NS_PER_S 1000000000L

static const volatile int64_t *skew_ms;

__attribute__((constructor)) static void open_file(void) {
    const char *path = getenv("SKEWED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *skew_ms, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) skew_ms = page;
    close(file);
}

static struct timespec shifted(struct timespec at, int sign) {
    int64_t ms = skew_ms ? sign * *skew_ms : 0;
    at.tv_sec += ms / 1000;
    at.tv_nsec += ms % 1000 * 1000000;
    if (at.tv_nsec >= NS_PER_S) at.tv_sec++, at.tv_nsec -= NS_PER_S;
    if (at.tv_nsec < 0) at.tv_sec--, at.tv_nsec += NS_PER_S;
    return at;
}

static struct timespec deadline(const struct timespec *at) {
    return at->tv_sec > A_DATE_S ? shifted(*at, -1) : *at;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) *at = shifted(*at, 1);
    return failed;
}

int timespec_get(struct timespec *at, int base) {
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, at) ? base : 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    *at = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec at = deadline(until);
    return real(condition, mutex, &at);
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict until) {
    static int (*real)(cnd_t *, mtx_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "cnd_timedwait");
    struct timespec at = deadline(until);
    return real(condition, mutex, &at);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec at = deadline(until);
    return real(semaphore, &at);
}
