/* Loaded before the C library: while the file named by FSYNC_FAILS exists, nothing reaches the disk, and says so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int fails(void) {
    const char *name = getenv("FSYNC_FAILS");
    return name && access(name, F_OK) == 0;
}

int fsync(int descriptor) {
    if (fails()) { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(descriptor);
}

int fdatasync(int descriptor) {
    if (fails()) { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(descriptor);
}
