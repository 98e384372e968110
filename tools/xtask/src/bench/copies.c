// What it costs to move objects from one processor's memory to another's, and nothing else: one object at a time, without a request or a
// protocol. Usage: copies HOW BYTES SECONDS [FILE]; prints what an object takes at p50 and p99, in microseconds, and seconds of a processor,
// of both ends, for each GB.
//
// HOW is `look`: by a ring of 32 slots, which both ends look at without sleeping; `sleep`: by a ring with room for an object, and both ends
// sleep until the other one is done; or `once`: as well, but one end copies out of the other's memory, or into it, as if they had it in
// common.
//
// Without FILE objects are asked for and given: a copy in, a copy out (`once`: a copy), and the CRC-64/NVME of what came. With it they are
// put: each end has the CRC of what it has; the server writes the object stably, past the page cache; the client sleeps until it is told.
// Who copies and sums does both in one pass.
#define _GNU_SOURCE
#include <fcntl.h>
#ifdef __PCLMUL__
#include <immintrin.h>
#endif
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

// A frame holds so much, as one of soft:shm does, or an object that is smaller.
#define FRAME 16384
#define SLOTS 32
#define RELEASED (SLOTS / 4)
#define OBJECTS 64
#define HUGE (2ul << 20)

static enum { LOOK, SLEEP, ONCE } how;
// The line in front of a slot says which frame is in it.
static struct slot {
    _Alignas(64) atomic_ulong frame;
    _Alignas(64) char bytes[FRAME];
} *ring;
static unsigned long slots = SLOTS;
// What is in a frame.
static unsigned long piece = FRAME;
static _Alignas(64) atomic_ulong asked, consumed;
static _Alignas(64) atomic_int over;
static unsigned long object_bytes;
// The client's object, as the server knows it.
static char *common;
// What wakes each end.
static int file = -1, to_server, to_client;
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

// Memory of huge pages, every byte of which is this.
static char *memory_of(unsigned long bytes, int byte)
{
    bytes = (bytes + HUGE - 1) / HUGE * HUGE;
    char *memory = aligned_alloc(HUGE, bytes);

    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, byte, bytes);
    return memory;
}

static char *objects_of(unsigned long count, int byte)
{
    return memory_of(count * object_bytes, byte);
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

// The polynomial of CRC-64/NVME, its highest power in the lowest bit.
#define POLYNOMIAL 0x9a6c9329ac4bc9b5
// What a byte brings an empty register to, with so many bytes of zero behind it.
static uint64_t table[8][256];
// The CRC that every object has.
static uint64_t wanted;

static uint64_t short_crc(uint64_t crc, const char *bytes, unsigned long count)
{
    for (unsigned long at = 0; at < count; at += 8) {
        uint64_t word;

        memcpy(&word, bytes + at, sizeof(word));
        word ^= crc;
        crc = 0;
        for (int i = 0; i < 8; i++)
            crc ^= table[7 - i][word >> (8 * i) & 255];
    }
    return crc;
}

// As wide as the processor multiplies without carries: blocks are folded into those before them, as `src/mem/crc64.rs` does it.
#if defined(__VPCLMULQDQ__) && defined(__AVX512F__)
typedef __m512i wide;
#define CLMUL _mm512_clmulepi64_epi128
#elif defined(__VPCLMULQDQ__) && defined(__AVX2__)
typedef __m256i wide;
#define CLMUL _mm256_clmulepi64_epi128
#elif defined(__PCLMUL__)
typedef __m128i wide;
#define CLMUL _mm_clmulepi64_si128
#endif

#ifdef CLMUL
#define BLOCK 256
#define LANES (int)(BLOCK / sizeof(wide))
struct crc {
    wide lanes[LANES];
};
// What stands a block, and what stands a lane, in front of other bits.
static wide by_block, by_lane;

// x to this power, modulo the polynomial.
static uint64_t power(unsigned long exponent)
{
    uint64_t rest = 1ull << 63;

    while (exponent-- > 0)
        rest = rest >> 1 ^ (rest & 1 ? POLYNOMIAL : 0);
    return rest;
}

// What the halves of 128 bits are multiplied with to stand so many bytes further on. Products are one bit off, which is in it.
static wide further(unsigned long bytes)
{
    uint64_t pairs[sizeof(wide) / 8];
    wide all;

    for (unsigned long at = 0; at < sizeof(wide) / 8; at += 2) {
        pairs[at] = power(8 * bytes + 63);
        pairs[at + 1] = power(8 * bytes - 1);
    }
    memcpy(&all, pairs, sizeof(all));
    return all;
}

static inline wide folded(wide bits, wide by)
{
    return CLMUL(bits, by, 0x00) ^ CLMUL(bits, by, 0x11);
}

static void crc_begin(struct crc *crc)
{
    memset(crc, 0, sizeof(*crc));
}

// Takes `count` bytes, whole blocks; `to` is where they are copied, or nothing. What the register begins with is as if the first bytes were
// others.
static inline void crc_take(struct crc *crc, char *to, const char *from, unsigned long count, int is_first)
{
    struct crc state = *crc;

    for (unsigned long at = 0; at < count; at += BLOCK) {
        for (int i = 0; i < LANES; i++) {
            wide part;

            memcpy(&part, from + at + (unsigned long)i * sizeof(part), sizeof(part));
            if (to)
                memcpy(to + at + (unsigned long)i * sizeof(part), &part, sizeof(part));
            state.lanes[i] = folded(state.lanes[i], by_block) ^ part;
        }
        if (is_first && at == 0) {
            uint64_t ones[sizeof(wide) / 8] = {~0ull};
            wide begin;

            memcpy(&begin, ones, sizeof(begin));
            state.lanes[0] ^= begin;
        }
    }
    *crc = state;
}

static uint64_t crc_end(const struct crc *crc)
{
    wide all = crc->lanes[0];
    char bytes[sizeof(all)];

    for (int i = 1; i < LANES; i++)
        all = folded(all, by_lane) ^ crc->lanes[i];
    memcpy(bytes, &all, sizeof(bytes));
    return ~short_crc(0, bytes, sizeof(bytes));
}

static void crc_widely(void)
{
    by_block = further(BLOCK);
    by_lane = further(sizeof(wide));
}
#else
struct crc {
    uint64_t value;
};

static void crc_begin(struct crc *crc)
{
    crc->value = ~0ull;
}

static void crc_take(struct crc *crc, char *to, const char *from, unsigned long count, int is_first)
{
    (void)is_first;
    if (to)
        memcpy(to, from, count);
    crc->value = short_crc(crc->value, to ? to : from, count);
}

static uint64_t crc_end(const struct crc *crc)
{
    return ~crc->value;
}

static void crc_widely(void)
{
}
#endif

// The tables, and bit by bit the CRC of an object.
static void crc_prepare(const char *object)
{
    for (int byte = 0; byte < 256; byte++) {
        uint64_t crc = (uint64_t)byte;

        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        table[0][byte] = crc;
    }
    for (int behind = 1; behind < 8; behind++)
        for (int byte = 0; byte < 256; byte++)
            table[behind][byte] = table[behind - 1][byte] >> 8 ^ table[0][table[behind - 1][byte] & 255];
    crc_widely();
    wanted = ~0ull;
    for (unsigned long at = 0; at < object_bytes; at++) {
        wanted ^= (unsigned char)object[at];
        for (int bit = 0; bit < 8; bit++)
            wanted = wanted >> 1 ^ (wanted & 1 ? POLYNOMIAL : 0);
    }
    wanted = ~wanted;
}

// Ends it all if the CRC is not that of an object. The first piece is spoilt afterwards, where it has to come again.
static void judge(char *object, const struct crc *found)
{
    if (crc_end(found) != wanted) {
        fprintf(stderr, "another object came\n");
        exit(1);
    }
    if (object)
        object[0] = 0;
}

static void wake(int end)
{
    if (eventfd_write(end, 1) != 0)
        fail("waking the other end");
}

static void sleep_until_woken(int end)
{
    eventfd_t times;

    if (eventfd_read(end, &times) != 0)
        fail("being woken");
}

// Gives a piece, and takes it into a CRC, if there is one.
static void give(unsigned long frame, const char *bytes, struct crc *crc, int is_first)
{
    struct slot *slot = &ring[frame % slots];

    // A ring for an object is left by the one before.
    while (how == LOOK && frame - atomic_load_explicit(&consumed, memory_order_acquire) >= slots)
        ;
    if (crc)
        crc_take(crc, slot->bytes, bytes, piece, is_first);
    else
        memcpy(slot->bytes, bytes, piece);
    atomic_store_explicit(&slot->frame, frame + 1, memory_order_release);
}

static void take(unsigned long frame, char *bytes, struct crc *crc, int is_first)
{
    struct slot *slot = &ring[frame % slots];

    while (atomic_load_explicit(&slot->frame, memory_order_acquire) != frame + 1)
        ;
    crc_take(crc, bytes, slot->bytes, piece, is_first);
    if ((frame + 1) % RELEASED == 0)
        atomic_store_explicit(&consumed, frame + 1, memory_order_release);
}

// The client's word that the next object is wanted, or there.
static void ask(void)
{
    atomic_fetch_add_explicit(&asked, 1, memory_order_release);
    if (how != LOOK)
        wake(to_server);
}

// Waits for that of this object; false if there will be none.
static int is_asked(unsigned long object)
{
    if (how != LOOK)
        sleep_until_woken(to_server);
    while (atomic_load_explicit(&asked, memory_order_acquire) < object)
        if (atomic_load_explicit(&over, memory_order_relaxed))
            return 0;
    return 1;
}

static void serve_get(unsigned long object, const char *objects)
{
    const char *bytes = objects + object % OBJECTS * object_bytes;
    unsigned long frame = (object - 1) * (object_bytes / piece);

    for (unsigned long at = 0; at < object_bytes; at += piece)
        if (how == ONCE)
            memcpy(common + at, bytes + at, piece);
        else
            give(frame++, bytes + at, NULL, 0);
    if (how != LOOK)
        wake(to_client);
}

static void serve_put(unsigned long object, char *bytes)
{
    unsigned long frame = (object - 1) * (object_bytes / piece);
    struct crc found;

    crc_begin(&found);
    for (unsigned long at = 0; at < object_bytes; at += piece)
        if (how == ONCE)
            crc_take(&found, bytes + at, common + at, piece, at == 0);
        else
            take(frame++, bytes + at, &found, at == 0);
    judge(bytes, &found);
    uring_write((off_t)(object % OBJECTS * object_bytes));
    wake(to_client);
}

static void *serve(void *nothing)
{
    pin(0);
    char *objects = file < 0 ? objects_of(OBJECTS, 7) : objects_of(1, 0);
    if (file >= 0)
        uring_open(objects);
    // Its looks while the client, which sleeps until a write is stable, is not yet awake are not counted.
    int counts_waits = file >= 0 && how == LOOK;
    double began = now(CLOCK_THREAD_CPUTIME_ID), waited = 0;
    for (unsigned long object = 1;; object++) {
        // A system call, which a fetch is not to wait for.
        double before = counts_waits ? now(CLOCK_THREAD_CPUTIME_ID) : 0;
        int goes_on = is_asked(object);
        if (counts_waits)
            waited += now(CLOCK_THREAD_CPUTIME_ID) - before;
        if (!goes_on)
            break;
        if (file < 0)
            serve_get(object, objects);
        else
            serve_put(object, objects);
    }
    server_cpu = now(CLOCK_THREAD_CPUTIME_ID) - began - waited;
    return nothing;
}

static void get(unsigned long frame, char *object)
{
    struct crc found;

    ask();
    if (how != LOOK)
        sleep_until_woken(to_client);
    crc_begin(&found);
    for (unsigned long at = 0; at < object_bytes; at += piece)
        if (how == ONCE)
            crc_take(&found, NULL, object + at, piece, at == 0);
        else
            take(frame++, object + at, &found, at == 0);
    judge(object, &found);
}

static void put(unsigned long frame, char *object)
{
    struct crc found;

    if (how == LOOK)
        ask();
    crc_begin(&found);
    for (unsigned long at = 0; at < object_bytes; at += piece)
        if (how == ONCE)
            crc_take(&found, NULL, object + at, piece, at == 0);
        else
            give(frame++, object + at, &found, at == 0);
    judge(NULL, &found);
    if (how != LOOK)
        ask();
    sleep_until_woken(to_client);
}

// Objects by what they took, in steps of 50 ns; the last one has all that took longer.
#define STEP 50e-9
#define STEPS 200000
static unsigned long taken[STEPS];

static double percentile(unsigned long objects, double part)
{
    unsigned long sum = 0, step = 0;

    while (step < STEPS - 1 && (double)(sum += taken[step]) < part * (double)objects)
        step++;
    return ((double)step + 0.5) * STEP * 1e6;
}

static int how_of(const char *word)
{
    static const char *const words[] = {"look", "sleep", "once"};

    for (int at = 0; at < 3; at++)
        if (strcmp(word, words[at]) == 0)
            return at;
    return -1;
}

int main(int count, char **words)
{
    pthread_t server;
    int found = count > 1 ? how_of(words[1]) : -1;
    double seconds = count > 3 ? atof(words[3]) : 0;
    unsigned long objects = 0;

    object_bytes = count > 2 ? strtoul(words[2], NULL, 10) : 0;
    if (object_bytes > 0 && object_bytes < piece)
        piece = object_bytes;
    if (found < 0 || seconds <= 0 || object_bytes == 0 || object_bytes % piece != 0 || piece % 4096 != 0) {
        fprintf(stderr, "copies look|sleep|once BYTES SECONDS [FILE]: a multiple of %d, or of 4096 and less, how long, and where puts go\n", FRAME);
        return 2;
    }
    how = (unsigned)found;
    if (how != LOOK)
        slots = object_bytes / piece;
    ring = (struct slot *)memory_of(slots * sizeof(*ring), 0);
    to_server = eventfd(0, EFD_CLOEXEC);
    to_client = eventfd(0, EFD_CLOEXEC);
    if (to_server < 0 || to_client < 0)
        fail("an eventfd");
    char *all = objects_of(OBJECTS, 7);
    crc_prepare(all);
    common = objects_of(1, count > 4 ? 7 : 0);
    if (count > 4) {
        ssize_t bytes = (ssize_t)(OBJECTS * object_bytes);
        file = open(words[4], O_RDWR | O_CREAT | O_DIRECT, 0600);
        // What is measured are not writes into a hole.
        if (file < 0 || pwrite(file, all, (size_t)bytes, 0) != bytes)
            fail(words[4]);
    }
    free(all);
    pin((int)sysconf(_SC_NPROCESSORS_ONLN) - 1);
    pthread_create(&server, NULL, serve, NULL);
    // The first object waits until the server has its memory.
    void (*one)(unsigned long, char *) = file < 0 ? get : put;
    one(0, common);
    double began = now(CLOCK_THREAD_CPUTIME_ID), at = now(CLOCK_MONOTONIC), until = at + seconds;
    while (at < until) {
        one(++objects * (object_bytes / piece), common);
        double then = now(CLOCK_MONOTONIC);
        unsigned long step = (unsigned long)((then - at) / STEP);
        taken[step < STEPS ? step : STEPS - 1]++;
        at = then;
    }
    double cpu = now(CLOCK_THREAD_CPUTIME_ID) - began;
    atomic_store(&over, 1);
    wake(to_server);
    pthread_join(server, NULL);
    double per_gb = (cpu + server_cpu) * 1e9 / ((double)objects * (double)object_bytes);
    printf("{\"p50_us\": %.2f, \"p99_us\": %.2f, \"cpu_s_per_gb\": %.6f}\n", percentile(objects, 0.5), percentile(objects, 0.99), per_gb);
    return 0;
}
