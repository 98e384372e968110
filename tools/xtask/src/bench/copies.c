// What it costs to move objects through a ring in memory that two processors share, with a copy in and a copy out and nothing else: the
// least that two ends take which have no memory in common but a ring. One object is under way at a time, and both ends look for it all
// the time. Usage: copies BYTES SECONDS; prints seconds of a processor, of both ends, for each GB.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 64
#define PIECE 4096
#define OBJECTS 64

// The line in front of a slot says which frame is in it.
static struct slot {
    _Alignas(64) atomic_ulong frame;
    _Alignas(64) char bytes[PIECE];
} ring[SLOTS];
static _Alignas(64) atomic_ulong asked, consumed;
static _Alignas(64) atomic_int over;
static unsigned long object_bytes;

static void pin(int processor)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    sched_setaffinity(0, sizeof(set), &set);
}

static double now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

// Gives every object that is asked for.
static void *serve(void *cpu)
{
    char *objects = malloc(OBJECTS * object_bytes);
    unsigned long frame = 0;

    pin(0);
    memset(objects, 7, OBJECTS * object_bytes);
    double began = now(CLOCK_THREAD_CPUTIME_ID);
    for (unsigned long object = 1;; object++) {
        while (atomic_load_explicit(&asked, memory_order_acquire) < object)
            if (atomic_load_explicit(&over, memory_order_relaxed)) {
                *(double *)cpu = now(CLOCK_THREAD_CPUTIME_ID) - began;
                return NULL;
            }
        char *from = objects + object % OBJECTS * object_bytes;
        for (unsigned long at = 0; at < object_bytes; at += PIECE) {
            struct slot *slot = &ring[frame % SLOTS];
            while (frame - atomic_load_explicit(&consumed, memory_order_acquire) >= SLOTS)
                ;
            memcpy(slot->bytes, from + at, PIECE);
            atomic_store_explicit(&slot->frame, ++frame, memory_order_release);
        }
    }
}

int main(int count, char **words)
{
    pthread_t server;
    double server_cpu = 0, seconds = count > 2 ? atof(words[2]) : 0;
    unsigned long frame = 0, objects = 0;

    object_bytes = count > 1 ? strtoul(words[1], NULL, 10) : 0;
    if (seconds <= 0 || object_bytes == 0 || object_bytes % PIECE != 0) {
        fprintf(stderr, "copies BYTES SECONDS: a multiple of %d, and how long\n", PIECE);
        return 2;
    }
    char *into = malloc(object_bytes);
    memset(into, 1, object_bytes);
    pin((int)sysconf(_SC_NPROCESSORS_ONLN) - 1);
    pthread_create(&server, NULL, serve, &server_cpu);
    double began = now(CLOCK_THREAD_CPUTIME_ID), until = now(CLOCK_MONOTONIC) + seconds;
    while (now(CLOCK_MONOTONIC) < until) {
        atomic_store_explicit(&asked, ++objects, memory_order_release);
        for (unsigned long at = 0; at < object_bytes; at += PIECE) {
            struct slot *slot = &ring[frame % SLOTS];
            while (atomic_load_explicit(&slot->frame, memory_order_acquire) != frame + 1)
                ;
            memcpy(into + at, slot->bytes, PIECE);
            if (++frame % (SLOTS / 4) == 0)
                atomic_store_explicit(&consumed, frame, memory_order_release);
        }
        if (into[object_bytes - 1] != 7)
            return 1;
        into[object_bytes - 1] = 0;
    }
    double cpu = now(CLOCK_THREAD_CPUTIME_ID) - began;
    atomic_store(&over, 1);
    pthread_join(server, NULL);
    printf("{\"cpu_s_per_gb\": %.6f}\n", (cpu + server_cpu) * 1e9 / ((double)objects * (double)object_bytes));
    return 0;
}
