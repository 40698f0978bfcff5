/* Preloaded into a server, it makes every `fsync` and `fdatasync` as slow as the file that SLOW_FSYNC names says, in microseconds: a disk that
   answers late. The file is read each time, so that the disk can become slow while the server runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void wait_for_disk(void) {
    const char *path = getenv("SLOW_FSYNC");
    FILE *file = path ? fopen(path, "r") : NULL;
    unsigned int micros = 0;
    if (file) {
        if (fscanf(file, "%u", &micros) != 1) micros = 0;
        fclose(file);
    }
    struct timespec left = {micros / 1000000, micros % 1000000 * 1000L};
    /* A signal to the server's process ends a sleep early. */
    while (nanosleep(&left, &left) != 0) {}
}

int fsync(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_for_disk();
    return real(fd);
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_for_disk();
    return real(fd);
}
