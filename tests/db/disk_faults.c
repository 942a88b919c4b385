/* Makes calls that change files fail: preload it, then arm it from the process itself.

   disk_faults_arm(skip, count, error): of the calls on files whose path contains "tuning.db", let
   `skip` pass, let the next `count` fail with `error`, then let all pass again.
   disk_faults_seen(): such calls since then. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static long left_to_skip, left_to_fail, seen;
static int with_error;

void disk_faults_arm(long skip, long count, int error) {
  left_to_skip = skip;
  left_to_fail = count;
  with_error = error;
  seen = 0;
}

long disk_faults_seen(void) { return seen; }

static int fails(const char *path) {
  if (strstr(path, "tuning.db") == NULL) return 0;
  seen++;
  if (left_to_skip > 0) { left_to_skip--; return 0; }
  if (left_to_fail > 0) { left_to_fail--; errno = with_error; return 1; }
  return 0;
}

static int fails_on(int file) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return fails(path);
}

#define REAL(name, type) static type real; if (!real) real = (type)dlsym(RTLD_NEXT, #name)

typedef ssize_t (*write_t)(int, const void *, size_t);
typedef ssize_t (*pwrite_t)(int, const void *, size_t, off_t);
typedef int (*sync_t)(int);
typedef int (*truncate_t)(int, off_t);
typedef int (*unlink_t)(const char *);

ssize_t write(int f, const void *p, size_t n) {
  REAL(write, write_t);
  return fails_on(f) ? -1 : real(f, p, n);
}
ssize_t pwrite(int f, const void *p, size_t n, off_t o) {
  REAL(pwrite, pwrite_t);
  return fails_on(f) ? -1 : real(f, p, n, o);
}
ssize_t pwrite64(int f, const void *p, size_t n, off_t o) {
  REAL(pwrite64, pwrite_t);
  return fails_on(f) ? -1 : real(f, p, n, o);
}
int fsync(int f) { REAL(fsync, sync_t); return fails_on(f) ? -1 : real(f); }
int fdatasync(int f) { REAL(fdatasync, sync_t); return fails_on(f) ? -1 : real(f); }
int ftruncate(int f, off_t n) { REAL(ftruncate, truncate_t); return fails_on(f) ? -1 : real(f, n); }
int ftruncate64(int f, off_t n) {
  REAL(ftruncate64, truncate_t);
  return fails_on(f) ? -1 : real(f, n);
}
int unlink(const char *p) { REAL(unlink, unlink_t); return fails(p) ? -1 : real(p); }
