// A server of HTTP that only receives and sends: what the kernel takes for the same bytes, and the least any server can.
//
// It takes every request for one it likes: of a PUT it receives the body and forgets it, a GET it answers with as many bytes as the last
// PUT had. One thread, one epoll, a read and a write for a request.
//
// With a file it is the least that a server can be which answers with an MD5 and keeps what it got: of a PUT of up to 1 MiB it computes
// the MD5 (by the library of openssl) of each piece as it comes, writes the body to the file, and answers when that is stable.
// Usage: floor PORT [FILE]
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define CONNECTIONS 4096
#define PIECE (256 << 10)
#define BODIES (16 << 20)
#define BODY (1 << 20)

// A connection, by its number: bytes of a body that are still to come, and those that came.
static struct {
    long left, got;
    void *md5;
} connections[CONNECTIONS];
static char head[16 << 10];
static _Alignas(4096) char bodies[BODIES];
static long object_bytes;
static int file = -1;

// Of libcrypto.
static void *(*md5_new)(void);
static const void *(*md5_type)(void);
static int (*md5_begin)(void *, const void *, void *);
static int (*md5_more)(void *, const void *, size_t);
static int (*md5_end)(void *, unsigned char *, unsigned *);

static int open_file(const char *path)
{
    void *library = dlopen("libcrypto.so.3", RTLD_NOW);

    if (!library) {
        fprintf(stderr, "floor: %s\n", dlerror());
        return -1;
    }
    md5_new = (void *(*)(void))dlsym(library, "EVP_MD_CTX_new");
    md5_type = (const void *(*)(void))dlsym(library, "EVP_md5");
    md5_begin = (int (*)(void *, const void *, void *))dlsym(library, "EVP_DigestInit_ex");
    md5_more = (int (*)(void *, const void *, size_t))dlsym(library, "EVP_DigestUpdate");
    md5_end = (int (*)(void *, unsigned char *, unsigned *))dlsym(library, "EVP_DigestFinal_ex");
    file = open(path, O_RDWR | O_CREAT | O_DIRECT | O_DSYNC, 0600);
    // Later writes find blocks that were written before.
    if (!md5_new || !md5_type || !md5_begin || !md5_more || !md5_end || file < 0 || pwrite(file, bodies, BODIES, 0) != BODIES) {
        perror("floor: libcrypto, or the file");
        return -1;
    }
    return 0;
}

// Where the body of a connection is kept, in memory and in the file.
static long place_of(int fd)
{
    return fd % (BODIES / BODY) * (long)BODY;
}

static int hash(int fd, const char *bytes, long count)
{
    if (connections[fd].got == 0) {
        if (!connections[fd].md5)
            connections[fd].md5 = md5_new();
        md5_begin(connections[fd].md5, md5_type(), NULL);
    }
    connections[fd].got += count;
    return md5_more(connections[fd].md5, bytes, (size_t)count) == 1 ? 0 : -1;
}

// Ends the MD5 and writes the body; the digits of the one into `etag`.
static int keep(int fd, char *etag)
{
    unsigned char digest[64];
    unsigned length = 0;
    // A whole number of the largest blocks.
    long bytes = (connections[fd].got + 4095) / 4096 * 4096;

    if (md5_end(connections[fd].md5, digest, &length) != 1 || length != 16)
        return -1;
    for (unsigned i = 0; i < length; i++)
        sprintf(etag + 2 * i, "%02x", digest[i]);
    return pwrite(file, bodies + place_of(fd), (size_t)bytes, place_of(fd)) == bytes ? 0 : -1;
}

static int answer(int fd, int is_get)
{
    char text[512], etag[65] = "0123456789abcdef0123456789abcdef-1";

    if (file >= 0 && !is_get && connections[fd].got > 0 && keep(fd, etag))
        return -1;
    connections[fd].got = 0;
    // As long as an answer of S3.
    int length = snprintf(text, sizeof(text),
        "HTTP/1.1 200 OK\r\ncontent-type: binary/octet-stream\r\nlast-modified: Mon, 23 Nov 2026 12:00:00 GMT\r\n"
        "etag: \"%s\"\r\naccept-ranges: bytes\r\nx-amz-request-id: 0123456789ABCDEF\r\n"
        "date: Mon, 23 Nov 2026 12:00:00 GMT\r\nserver: floor\r\ncontent-length: %ld\r\n\r\n", etag, is_get ? object_bytes : 0L);
    struct iovec parts[2] = { { text, (size_t)length }, { bodies, is_get ? (size_t)object_bytes : 0 } };

    while (parts[0].iov_len + parts[1].iov_len > 0) {
        ssize_t written = writev(fd, parts, 2);
        if (written <= 0)
            return -1;
        for (int i = 0; i < 2; i++) {
            size_t taken = (size_t)written < parts[i].iov_len ? (size_t)written : parts[i].iov_len;
            parts[i].iov_base = (char *)parts[i].iov_base + taken;
            parts[i].iov_len -= taken;
            written -= (ssize_t)taken;
        }
    }
    return 0;
}

static int readable(int fd)
{
    static long at;

    if (connections[fd].left > 0) {
        at = at + PIECE > BODIES ? 0 : at;
        long most = connections[fd].left < PIECE ? connections[fd].left : PIECE;
        char *into = bodies + (file >= 0 ? place_of(fd) + connections[fd].got : at);
        ssize_t got = recv(fd, into, (size_t)most, 0);
        if (got <= 0 || (file >= 0 && hash(fd, into, got)))
            return -1;
        at += got;
        connections[fd].left -= got;
        return connections[fd].left == 0 ? answer(fd, 0) : 0;
    }
    ssize_t got = recv(fd, head, sizeof(head) - 1, 0);
    if (got <= 0)
        return -1;
    head[got] = 0;
    char *end = strstr(head, "\r\n\r\n"), *length = strcasestr(head, "\ncontent-length:");
    if (!end)
        return -1;
    long bytes = length && length < end ? atol(length + 16) : 0;
    if (strncmp(head, "PUT", 3) == 0 && bytes > 1024 && bytes <= BODIES)
        object_bytes = bytes;
    long early = head + got - end - 4;
    connections[fd].left = bytes - early;
    if (file >= 0 && bytes > 0) {
        if (bytes > BODY || early > bytes)
            return -1;
        memcpy(bodies + place_of(fd), end + 4, (size_t)early);
        if (early > 0 && hash(fd, end + 4, early))
            return -1;
    }
    return connections[fd].left > 0 ? 0 : answer(fd, strncmp(head, "GET", 3) == 0);
}

int main(int count, char **arguments)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct epoll_event events[64], one = { .events = EPOLLIN };
    int listener = socket(AF_INET, SOCK_STREAM, 0), waiting = epoll_create1(0), on = 1;

    memset(bodies, 'b', sizeof(bodies));
    if (count > 2 && open_file(arguments[2]))
        return 1;
    address.sin_port = htons((unsigned short)(count > 1 ? atoi(arguments[1]) : 0));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 128)) {
        perror("floor: listening");
        return 1;
    }
    one.data.fd = listener;
    epoll_ctl(waiting, EPOLL_CTL_ADD, listener, &one);
    for (;;) {
        int ready = epoll_wait(waiting, events, 64, -1);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (fd != listener) {
                if (readable(fd))
                    close(fd);
                continue;
            }
            one.data.fd = accept(listener, NULL, NULL);
            if (one.data.fd < 0 || one.data.fd >= CONNECTIONS)
                continue;
            setsockopt(one.data.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
            connections[one.data.fd].left = connections[one.data.fd].got = 0;
            epoll_ctl(waiting, EPOLL_CTL_ADD, one.data.fd, &one);
        }
    }
}
