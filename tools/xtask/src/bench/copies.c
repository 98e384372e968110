// What it costs to move objects through a ring in memory that two processors share, and nothing else: the least that two ends take which
// have no memory in common but a ring, and look for frames without sleeping. One object is under way at a time. Usage: copies BYTES SECONDS
// [FILE]; prints seconds of a processor, of both ends, for each GB.
//
// Without FILE objects are asked for and given: a copy in, a copy out, and a sum of what came, 64 bits at a time, which is less than any
// check of bytes. With it they are put: each end sums what it has; the server writes the object stably, past the page cache; the client
// sleeps until it is told.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 64
#define PIECE 4096
#define OBJECTS 64
#define HUGE (2ul << 20)

// The line in front of a slot says which frame is in it.
static struct slot {
    _Alignas(64) atomic_ulong frame;
    _Alignas(64) char bytes[PIECE];
} ring[SLOTS];
static _Alignas(64) atomic_ulong asked, consumed;
static _Alignas(64) atomic_int over;
static unsigned long object_bytes;
static int file = -1, told;
static double server_cpu;

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

// Memory for so many objects, every byte of which is this.
static char *objects_of(unsigned long count, int byte)
{
    unsigned long bytes = (count * object_bytes + HUGE - 1) / HUGE * HUGE;
    char *objects = aligned_alloc(HUGE, bytes);

    madvise(objects, bytes, MADV_HUGEPAGE);
    memset(objects, byte, bytes);
    return objects;
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

// An io_uring of one entry, and the memory that it writes from, registered: no write has to find its pages.
static struct uring {
    int fd;
    atomic_uint *sq_tail, *cq_head;
    struct io_uring_sqe *sqe;
    struct io_uring_cqe *cqe;
    struct iovec memory;
} uring;

static void uring_open(char *bytes)
{
    struct io_uring_params params = {0};

    uring.memory = (struct iovec){bytes, object_bytes};
    uring.fd = (int)syscall(__NR_io_uring_setup, 1, &params);
    if (uring.fd < 0 || syscall(__NR_io_uring_register, uring.fd, IORING_REGISTER_BUFFERS, &uring.memory, 1) != 0)
        fail("an io_uring with registered memory");
    int both = PROT_READ | PROT_WRITE, how = MAP_SHARED | MAP_POPULATE;
    char *sq = mmap(NULL, params.sq_off.array + 4 * params.sq_entries, both, how, uring.fd, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, params.cq_off.cqes + params.cq_entries * sizeof(*uring.cqe), both, how, uring.fd, IORING_OFF_CQ_RING);
    uring.sqe = mmap(NULL, sizeof(*uring.sqe), both, how, uring.fd, IORING_OFF_SQES);
    if (sq == MAP_FAILED || cq == MAP_FAILED || uring.sqe == MAP_FAILED)
        fail("an io_uring's rings");
    uring.sq_tail = (atomic_uint *)(sq + params.sq_off.tail);
    uring.cq_head = (atomic_uint *)(cq + params.cq_off.head);
    uring.cqe = (struct io_uring_cqe *)(cq + params.cq_off.cqes);
    *(unsigned *)(sq + params.sq_off.array) = 0;
}

// Writes the memory, and sleeps until that is stable.
static void uring_write(off_t place)
{
    *uring.sqe = (struct io_uring_sqe){.opcode = IORING_OP_WRITE_FIXED, .fd = file, .addr = (uintptr_t)uring.memory.iov_base};
    uring.sqe->len = (unsigned)uring.memory.iov_len;
    uring.sqe->off = (uint64_t)place;
    uring.sqe->rw_flags = RWF_DSYNC;
    atomic_fetch_add_explicit(uring.sq_tail, 1, memory_order_release);
    // There are two places for completions, which are taken by turns.
    unsigned head = atomic_load_explicit(uring.cq_head, memory_order_relaxed);
    if (syscall(__NR_io_uring_enter, uring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
        fail("io_uring_enter");
    if (uring.cqe[head % 2].res != (int)object_bytes)
        fail("a write");
    atomic_store_explicit(uring.cq_head, head + 1, memory_order_release);
}

static uint64_t sum(const char *bytes)
{
    uint64_t sums[8] = {0}, words[8], all = 0;

    for (unsigned long at = 0; at < PIECE; at += sizeof(words)) {
        memcpy(words, bytes + at, sizeof(words));
        for (int i = 0; i < 8; i++)
            sums[i] += words[i];
    }
    for (int i = 0; i < 8; i++)
        all += sums[i];
    return all;
}

// Ends it all if the sum is not that of an object. The first piece is spoilt afterwards: it has to come again.
static void judge(char *object, uint64_t found)
{
    if (found != object_bytes / 8 * 0x0707070707070707) {
        fprintf(stderr, "another object came\n");
        exit(1);
    }
    object[0] = 0;
}

static void give(unsigned long frame, const char *bytes)
{
    struct slot *slot = &ring[frame % SLOTS];

    while (frame - atomic_load_explicit(&consumed, memory_order_acquire) >= SLOTS)
        ;
    memcpy(slot->bytes, bytes, PIECE);
    atomic_store_explicit(&slot->frame, frame + 1, memory_order_release);
}

static int is_there(unsigned long frame)
{
    return atomic_load_explicit(&ring[frame % SLOTS].frame, memory_order_acquire) == frame + 1;
}

static void take(unsigned long frame, char *bytes)
{
    while (!is_there(frame))
        ;
    memcpy(bytes, ring[frame % SLOTS].bytes, PIECE);
    if ((frame + 1) % (SLOTS / 4) == 0)
        atomic_store_explicit(&consumed, frame + 1, memory_order_release);
}

static int is_over(void)
{
    return atomic_load_explicit(&over, memory_order_relaxed);
}

// Gives every object that is asked for.
static void serve_gets(void)
{
    char *objects = objects_of(OBJECTS, 7);
    double began = now(CLOCK_THREAD_CPUTIME_ID);
    unsigned long frame = 0;

    for (unsigned long object = 1;; object++) {
        while (atomic_load_explicit(&asked, memory_order_acquire) < object)
            if (is_over()) {
                server_cpu = now(CLOCK_THREAD_CPUTIME_ID) - began;
                return;
            }
        for (unsigned long at = 0; at < object_bytes; at += PIECE)
            give(frame++, objects + object % OBJECTS * object_bytes + at);
    }
}

// Takes every object that is put, and writes it. What it spends while the client is not yet awake is not counted.
static void serve_puts(void)
{
    char *object = objects_of(1, 0);
    unsigned long frame = 0;

    uring_open(object);
    for (unsigned long count = 0;; count++) {
        while (!is_there(frame))
            if (is_over())
                return;
        double began = now(CLOCK_THREAD_CPUTIME_ID);
        uint64_t found = 0;
        for (unsigned long at = 0; at < object_bytes; at += PIECE) {
            take(frame++, object + at);
            found += sum(object + at);
        }
        judge(object, found);
        uring_write((off_t)(count % OBJECTS * object_bytes));
        if (eventfd_write(told, 1) != 0)
            fail("telling the client");
        server_cpu += now(CLOCK_THREAD_CPUTIME_ID) - began;
    }
}

static void *serve(void *nothing)
{
    pin(0);
    (file < 0 ? serve_gets : serve_puts)();
    return nothing;
}

static void get(unsigned long frame, char *object)
{
    uint64_t found = 0;

    atomic_fetch_add_explicit(&asked, 1, memory_order_release);
    for (unsigned long at = 0; at < object_bytes; at += PIECE) {
        take(frame++, object + at);
        found += sum(object + at);
    }
    judge(object, found);
}

static void put(unsigned long frame, char *object)
{
    // Where the compiler has to leave it.
    static volatile uint64_t whole;
    eventfd_t one;

    whole = 0;
    for (unsigned long at = 0; at < object_bytes; at += PIECE) {
        whole += sum(object + at);
        give(frame++, object + at);
    }
    if (eventfd_read(told, &one) != 0)
        fail("being told");
}

int main(int count, char **words)
{
    pthread_t server;
    double seconds = count > 2 ? atof(words[2]) : 0;
    unsigned long objects = 0;

    object_bytes = count > 1 ? strtoul(words[1], NULL, 10) : 0;
    if (seconds <= 0 || object_bytes == 0 || object_bytes % PIECE != 0) {
        fprintf(stderr, "copies BYTES SECONDS [FILE]: a multiple of %d, how long, and where puts go\n", PIECE);
        return 2;
    }
    char *object = objects_of(1, count > 3 ? 7 : 0);
    if (count > 3) {
        char *all = objects_of(OBJECTS, 7);
        ssize_t bytes = (ssize_t)(OBJECTS * object_bytes);
        file = open(words[3], O_RDWR | O_CREAT | O_DIRECT, 0600);
        told = eventfd(0, EFD_CLOEXEC);
        // What is measured are not writes into a hole.
        if (file < 0 || told < 0 || pwrite(file, all, (size_t)bytes, 0) != bytes)
            fail(words[3]);
        free(all);
    }
    pin((int)sysconf(_SC_NPROCESSORS_ONLN) - 1);
    pthread_create(&server, NULL, serve, NULL);
    double began = now(CLOCK_THREAD_CPUTIME_ID), until = now(CLOCK_MONOTONIC) + seconds;
    for (; now(CLOCK_MONOTONIC) < until; objects++)
        (file < 0 ? get : put)(objects * (object_bytes / PIECE), object);
    double cpu = now(CLOCK_THREAD_CPUTIME_ID) - began;
    atomic_store(&over, 1);
    pthread_join(server, NULL);
    printf("{\"cpu_s_per_gb\": %.6f}\n", (cpu + server_cpu) * 1e9 / ((double)objects * (double)object_bytes));
    return 0;
}
