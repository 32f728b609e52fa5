/* Copyright The sweetpoint authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Three threads that wake up about every 0.7 ms and work for 0.12 ms each, as small requests do.
 * Prints for each wake-up how much later than that its work was done, in ns.
 *
 * usage: wakeups SECONDS
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define THREADS 3
#define PERIOD_NS 700000L
#define WORK_NS 120000L
#define NS_PER_S 1000000000L

static long seconds;
static long *late[THREADS];
static long count[THREADS];

static long now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static void *serve(void *argument)
{
	long id = (long)argument;
	unsigned int seed = id;
	long begin = now_ns(CLOCK_MONOTONIC);
	long next = begin;

	while (next < begin + seconds * NS_PER_S) {
		next += PERIOD_NS * 3 / 4 + rand_r(&seed) % (PERIOD_NS / 2);
		struct timespec at = {next / NS_PER_S, next % NS_PER_S};

		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL))
			;
		long began = now_ns(CLOCK_THREAD_CPUTIME_ID);

		while (now_ns(CLOCK_THREAD_CPUTIME_ID) - began < WORK_NS)
			;
		late[id][count[id]++] = now_ns(CLOCK_MONOTONIC) - next - WORK_NS;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];

	seconds = argc == 2 ? atol(argv[1]) : 0;
	for (long id = 0; id < THREADS; id++) {
		late[id] = malloc((seconds * NS_PER_S / (PERIOD_NS / 2) + 1) * sizeof(long));
		if (!late[id] || pthread_create(&threads[id], NULL, serve, (void *)id))
			return 1;
	}
	for (long id = 0; id < THREADS; id++) {
		pthread_join(threads[id], NULL);
		for (long each = 0; each < count[id]; each++)
			printf("%ld\n", late[id][each]);
	}
	return 0;
}
