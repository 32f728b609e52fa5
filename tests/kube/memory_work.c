// Copyright The sweetpoint authors
// SPDX-License-Identifier: Apache-2.0
//
// Programs of containers that need memory.
//
//   memory_work hold LOW HIGH LOW_S HIGH_S      holds LOW MiB, and HIGH from time to time
//   memory_work units MIB RATE HOLD_S FOLDER    takes MIB with RATE MiB/s and holds it, again and
//                                               again; FOLDER/HOST-TIME counts what is done
//
// A unit is done by a child, and takes MIB on average: half of it to one and a half of it. One that
// the kernel kills is lost work, and the next one begins. The work is the MiB of what was done.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

static void wait_s(double seconds)
{
    struct timespec time = { (time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9) };
    nanosleep(&time, NULL);
}

static void fill(char *memory, int from, int to, double rate)
{
    for (int mib = from; mib < to; mib++) {
        memset(memory + (size_t)mib * MIB, 1 + mib % 100, MIB);
        wait_s(1 / rate);
    }
}

static char *reserve(int mib)
{
    char *memory = mmap(NULL, (size_t)mib * MIB, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static int hold(int low, int high, double low_s, double high_s)
{
    char *memory = reserve(high);
    if (!memory)
        return 1;
    for (fill(memory, 0, low, 500);;) {
        wait_s(low_s);
        fill(memory, low, high, 100);
        wait_s(high_s);
        madvise(memory + (size_t)low * MIB, (size_t)(high - low) * MIB, MADV_DONTNEED);
    }
}

static int unit(int mib, double rate, double hold_s)
{
    char *memory = reserve(mib);
    if (!memory)
        return 1;
    fill(memory, 0, mib, rate);
    wait_s(hold_s);
    return 0;
}

static int units(int mib, double rate, double hold_s, const char *folder)
{
    char name[256], path[600], made[604];
    gethostname(name, sizeof name);
    snprintf(path, sizeof path, "%s/%s-%ld", folder, name, (long)time(NULL));
    snprintf(made, sizeof made, "%s.new", path);
    srandom(strlen(name) * 31 + name[strlen(name) - 1] + time(NULL));
    for (int done = 0, killed = 0;;) {
        int wanted = mib / 2 + random() % (mib + 1);
        pid_t child = fork();
        if (!child)
            _exit(unit(wanted, rate, hold_s));
        int status;
        if (child < 0 || waitpid(child, &status, 0) < 0)
            return 1;
        if (WIFSIGNALED(status))
            killed++;
        else if (!status)
            done += wanted;
        FILE *file = fopen(made, "w");
        if (!file)
            return 1;
        fprintf(file, "%d %d\n", done, killed);
        if (fclose(file) || rename(made, path))  // a reader sees all of it
            return 1;
    }
}

int main(int count, char **words)
{
    if (count == 6 && !strcmp(words[1], "hold"))
        return hold(atoi(words[2]), atoi(words[3]), atof(words[4]), atof(words[5]));
    if (count == 6 && !strcmp(words[1], "units"))
        return units(atoi(words[2]), atof(words[3]), atof(words[4]), words[5]);
    return 2;
}
