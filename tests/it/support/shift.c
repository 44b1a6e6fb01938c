/* A program's time of day, ONCEHOOK_CLOCK_AHEAD seconds ahead of the machine's, for good.
 *
 * For PostgreSQL: under libfaketime a backend that waits in epoll_wait sees the machine's own time in
 * its signal handlers. Its time-outs then lie hours ahead, and a deadlock is never looked for. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead;

__attribute__((constructor)) static void begin(void) {
  const char *text = getenv("ONCEHOOK_CLOCK_AHEAD");
  ahead = text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  int result = (int)syscall(SYS_clock_gettime, clock, at);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    at->tv_sec += ahead;
  return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  (void)zone;
  int result = clock_gettime(CLOCK_REALTIME, &now);
  if (result == 0) {
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
  }
  return result;
}

time_t time(time_t *at) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0)
    return (time_t)-1;
  if (at)
    *at = now.tv_sec;
  return now.tv_sec;
}
