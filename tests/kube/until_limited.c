// Copyright The sweetpoint authors
// SPDX-License-Identifier: Apache-2.0
//
// The program of a container: until_limited FILE CHARACTER. It prints how many us of CPU time and of
// real time it had, from its first instruction on, until FILE of its cgroup did not begin with
// CHARACTER any more. The host's cgroups are in /host.

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now_us(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int open_file(const char *name)
{
    char line[4096], path[4200];
    FILE *groups = fopen("/proc/self/cgroup", "r");
    while (groups && fgets(line, sizeof line, groups)) {
        char *found = strstr(line, ":cpu:");
        if (!found)
            continue;
        found += strlen(":cpu:");
        found[strcspn(found, "\n")] = 0;
        snprintf(path, sizeof path, "/host/cpu%s/%s", found, name);
        return open(path, O_RDONLY);
    }
    return -1;
}

int main(int count, char **words)
{
    double cpu = now_us(CLOCK_PROCESS_CPUTIME_ID), real = now_us(CLOCK_MONOTONIC);
    int file = count == 3 ? open_file(words[1]) : -1;
    long reads = 0;
    for (char first;; reads++) {
        if (pread(file, &first, 1, 0) != 1)
            return 1;
        if (first != *words[2])
            break;
    }
    cpu = now_us(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    real = now_us(CLOCK_MONOTONIC) - real;
    // None if it was so at the first look.
    printf("%.0f %.0f\n", reads ? cpu : 0, reads ? real : 0);
    fflush(stdout);
    pause();
}
