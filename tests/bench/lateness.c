// Copyright The sweetpoint authors
// SPDX-License-Identifier: Apache-2.0
//
// The bare loop of test_lateness.py, and what a hostile tenant may run.
//
// usage: lateness KIND SECONDS ARGUMENTS
//   bare PERIOD_MS            prints by how many ns it slept too long each time, to fixed times
//   forks NUMBER              as many processes, which fork and wait for the child all the time
//   wakes NUMBER              as many pairs of processes, which wake each other all the time
//   threads NUMBER            as many threads, which work for 0.1 ms and sleep for 1 ms in turn
//   cgroups DIRECTORY NUMBER  as many cgroups in DIRECTORY, removed and made again all the time
//   pages FILE MIB            writes FILE of MIB MiB again and again
//
// A load prints a line when it is complete, and ends after SECONDS with all of its processes.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void ready(void)
{
	puts("ready");
	fflush(stdout);
}

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void bare(int seconds, long long period_ns)
{
	long long due = now_ns();

	for (long long i = 0; i < seconds * 1000000000LL / period_ns; i++) {
		due += period_ns;
		struct timespec until = {due / 1000000000, due % 1000000000};

		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		long long late = now_ns() - due;

		printf("%lld\n", late);
		if (late > period_ns)
			due += late;
	}
}

static void forks(int number)
{
	for (int i = 0; i < number; i++) {
		pid_t pid = fork();

		if (pid < 0)
			fail("fork");
		if (pid)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;) {
			pid_t child = fork();

			if (!child)
				_exit(0);
			if (child > 0)
				waitpid(child, NULL, 0);
		}
	}
	ready();
	pause();
}

// Pass a byte on for ever.
static void pass_on(int from, int to)
{
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(from, &byte, 1) == 1 && write(to, &byte, 1) == 1)
		;
	_exit(1);
}

static void wakes(int number)
{
	for (int i = 0; i < number; i++) {
		int there[2], back[2];

		if (pipe(there) || pipe(back) || write(there[1], "!", 1) != 1)
			fail("pipe");
		for (int side = 0; side < 2; side++) {
			pid_t pid = fork();

			if (pid < 0)
				fail("fork");
			if (!pid && side)
				pass_on(there[0], back[1]);
			if (!pid)
				pass_on(back[0], there[1]);
		}
	}
	ready();
	pause();
}

// Held until all threads exist, because those that work would keep the others from being made.
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void *work_and_sleep(void *unused)
{
	struct timespec rest = {.tv_nsec = 1000000};

	(void)unused;
	pthread_mutex_lock(&gate);
	pthread_mutex_unlock(&gate);
	for (;;) {
		long long end = now_ns() + 100000;

		while (now_ns() < end)
			;
		nanosleep(&rest, NULL);
	}
	return NULL;
}

static void threads(int number)
{
	pthread_attr_t small;
	pthread_t thread;

	pthread_mutex_lock(&gate);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 16 << 10);
	pthread_attr_setguardsize(&small, 0); // or the process needs two mappings for each thread
	for (int i = 0; i < number; i++) {
		errno = pthread_create(&thread, &small, work_and_sleep, NULL);
		if (errno)
			fail("pthread_create");
	}
	ready();
	pthread_mutex_unlock(&gate);
	pause();
}

static void cgroups(const char *directory, int number)
{
	char name[32];

	if (chdir(directory))
		fail(directory);
	for (int i = 0; i < number; i++) {
		snprintf(name, sizeof(name), "c%d", i);
		if (mkdir(name, 0755))
			fail(name);
	}
	ready();
	// 1,000 per second, because the kernel frees them later, with memory that counts for no tenant.
	for (int i = 0;; i = (i + 1) % number) {
		struct timespec rest = {.tv_nsec = 1000000};

		snprintf(name, sizeof(name), "c%d", i);
		if (rmdir(name) || mkdir(name, 0755))
			fail(name);
		nanosleep(&rest, NULL);
	}
}

static void pages(const char *file, int mib)
{
	static char block[1 << 20];
	int fd = open(file, O_RDWR | O_CREAT, 0600);

	if (fd < 0)
		fail(file);
	memset(block, 1, sizeof(block));
	ready();
	for (int i = 0;; i = (i + 1) % mib)
		if (pwrite(fd, block, sizeof(block), (off_t)i << 20) < 0)
			fail("pwrite");
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!strcmp(argv[1], "bare")) {
		bare(atoi(argv[2]), atoi(argv[3]) * 1000000LL);
		return 0;
	}
	alarm(atoi(argv[2]));
	if (!strcmp(argv[1], "forks"))
		forks(atoi(argv[3]));
	else if (!strcmp(argv[1], "wakes"))
		wakes(atoi(argv[3]));
	else if (!strcmp(argv[1], "threads"))
		threads(atoi(argv[3]));
	else if (!strcmp(argv[1], "cgroups") && argc == 5)
		cgroups(argv[3], atoi(argv[4]));
	else if (!strcmp(argv[1], "pages") && argc == 5)
		pages(argv[3], atoi(argv[4]));
	return 2;
}
