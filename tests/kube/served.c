// Copyright The sweetpoint authors
// SPDX-License-Identifier: Apache-2.0
//
// A CPU-bound HTTP service with a histogram of its own latencies, and the client that sends its
// requests.
//
//   served serve PORT WORK_US    GET /work computes for WORK_US us; GET /metrics is the histogram
//   served load PORT RATE ADDRESS...    RATE requests/s to each address, at random times
//
// Each request says when it was due. So its latency is from then until the answer, as the client
// of a busy service has it, and the clock of all pods of a node is the same.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, BUCKETS = 40, REQUEST = 8192 };

static const double FIRST_S = 0.0002, RATIO = 1.2;
static uint64_t counts[BUCKETS + 1];
static double sum_s;

static int64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void compute(int64_t ns)
{
    int64_t until = clock_ns(CLOCK_THREAD_CPUTIME_ID) + ns;
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < until)
        ;
}

static void note(double latency_s)
{
    int bucket = 0;
    for (double bound = FIRST_S; bucket < BUCKETS && latency_s > bound; bound *= RATIO)
        bucket++;
    counts[bucket]++;
    sum_s += latency_s;
}

static int page(char *text)
{
    char *at = text;
    uint64_t count = 0;
    double bound = FIRST_S;
    at += sprintf(at, "# TYPE request_seconds histogram\n");
    for (int bucket = 0; bucket < BUCKETS; bucket++, bound *= RATIO) {
        count += counts[bucket];
        at += sprintf(at, "request_seconds_bucket{le=\"%.6f\"} %lu\n", bound, count);
    }
    count += counts[BUCKETS];
    at += sprintf(at, "request_seconds_bucket{le=\"+Inf\"} %lu\n", count);
    at += sprintf(at, "request_seconds_sum %.6f\nrequest_seconds_count %lu\n", sum_s, count);
    return at - text;
}

static void answer(int fd, const char *request, int64_t work_ns)
{
    static char body[REQUEST], text[REQUEST + 200];
    int length = 0;
    int is_page = !strncmp(request, "GET /metrics ", 13);
    const char *due = strstr(request, "X-Due: ");
    if (is_page)
        length = page(body);
    else
        compute(work_ns);
    int size = sprintf(text, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%.*s", length, length, body);
    if (write(fd, text, size) != size)
        return;
    if (!is_page && due)
        note((clock_ns(CLOCK_MONOTONIC) - atoll(due + 7)) / 1e9);
}

// Answers the first request of a connection, so that all connections take turns; returns what is
// left of the buffer.
static int take(int fd, char *buffer, int filled, int64_t work_ns)
{
    buffer[filled] = 0;
    char *end = strstr(buffer, "\r\n\r\n");
    if (!end)
        return filled;
    answer(fd, buffer, work_ns);
    int used = end + 4 - buffer;
    memmove(buffer, buffer + used, filled - used);
    return filled - used;
}

static void serve(int port, int64_t work_ns)
{
    static char buffers[MOST][REQUEST + 1];
    int filled[MOST] = {0}, count = 1, one = 1;
    struct pollfd polled[MOST];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, MOST))
        fail("listen");
    polled[0] = (struct pollfd){listener, POLLIN, 0};
    for (;;) {
        int waiting = 0;
        for (int i = 1; i < count; i++) {
            buffers[i][filled[i]] = 0;
            waiting |= strstr(buffers[i], "\r\n\r\n") != NULL;
        }
        if (poll(polled, count, waiting ? 0 : -1) < 0)
            fail("poll");
        for (int i = count - 1; i > 0; i--) {
            if (polled[i].revents && filled[i] < REQUEST) {
                int got = read(polled[i].fd, buffers[i] + filled[i], REQUEST - filled[i]);
                if (got <= 0) {
                    close(polled[i].fd);
                    count--;
                    polled[i] = polled[count];
                    filled[i] = filled[count];
                    memcpy(buffers[i], buffers[count], REQUEST + 1);
                    continue;
                }
                filled[i] += got;
            }
            filled[i] = take(polled[i].fd, buffers[i], filled[i], work_ns);
        }
        if (polled[0].revents && count < MOST) {
            int fd = accept(listener, NULL, NULL);
            if (fd >= 0) {
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                filled[count] = 0;
                polled[count++] = (struct pollfd){fd, POLLIN, 0};
            }
        }
    }
}

static int64_t pause_ns(double rate)
{
    return (int64_t)(-log(1 - drand48()) / rate * 1e9);
}

static void load(int port, double rate, int count, char **addresses)
{
    struct pollfd polled[MOST];
    int64_t due[MOST];
    int one = 1;
    for (int i = 0; i < count; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
        inet_pton(AF_INET, addresses[i], &address.sin_addr);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof address))
            fail(addresses[i]);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        polled[i] = (struct pollfd){fd, POLLIN, 0};
        due[i] = clock_ns(CLOCK_MONOTONIC) + pause_ns(rate);
    }
    for (;;) {
        static char text[1 << 16];
        int64_t now = clock_ns(CLOCK_MONOTONIC), next = now + 1000000000;
        for (int i = 0; i < count; i++) {
            for (; due[i] <= now; due[i] += pause_ns(rate)) {
                int size = sprintf(text, "GET /work HTTP/1.1\r\nX-Due: %ld\r\n\r\n", due[i]);
                if (send(polled[i].fd, text, size, MSG_NOSIGNAL) != size)
                    fail("send");
            }
            if (due[i] < next)
                next = due[i];
        }
        struct timespec wait = {(next - now) / 1000000000, (next - now) % 1000000000};
        if (ppoll(polled, count, &wait, NULL) > 0)
            for (int i = 0; i < count; i++)
                if (polled[i].revents && read(polled[i].fd, text, sizeof text) <= 0)
                    fail("read");
    }
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "serve"))
        serve(atoi(argv[2]), atoll(argv[3]) * 1000);
    if (argc > 4 && argc - 4 <= MOST && !strcmp(argv[1], "load"))
        load(atoi(argv[2]), atof(argv[3]), argc - 4, argv + 4);
    fprintf(stderr, "usage: served serve PORT WORK_US | load PORT RATE ADDRESS...\n");
    return 2;
}
