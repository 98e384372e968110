// A server of HTTP that only receives and sends: what the kernel takes for the same bytes, and the least any server can.
//
// It takes every request for one it likes: of a PUT it receives the body and forgets it, a GET it answers with as many bytes as the last
// PUT had. One thread, one epoll, a read and a write for a request.
#define _GNU_SOURCE
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

// A connection, by its number: bytes of a body that are still to come.
static struct {
    long left;
} connections[CONNECTIONS];
static char head[16 << 10], bodies[BODIES];
static long object_bytes;

static int answer(int fd, int is_get)
{
    char text[512];
    // As long as an answer of S3.
    int length = snprintf(text, sizeof(text),
        "HTTP/1.1 200 OK\r\ncontent-type: binary/octet-stream\r\nlast-modified: Mon, 23 Nov 2026 12:00:00 GMT\r\n"
        "etag: \"0123456789abcdef0123456789abcdef-1\"\r\naccept-ranges: bytes\r\nx-amz-request-id: 0123456789ABCDEF\r\n"
        "date: Mon, 23 Nov 2026 12:00:00 GMT\r\nserver: floor\r\ncontent-length: %ld\r\n\r\n", is_get ? object_bytes : 0L);
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
        ssize_t got = recv(fd, bodies + at, (size_t)most, 0);
        if (got <= 0)
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
    connections[fd].left = bytes - (head + got - end - 4);
    return connections[fd].left > 0 ? 0 : answer(fd, strncmp(head, "GET", 3) == 0);
}

int main(int count, char **arguments)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct epoll_event events[64], one = { .events = EPOLLIN };
    int listener = socket(AF_INET, SOCK_STREAM, 0), waiting = epoll_create1(0), on = 1;

    memset(bodies, 'b', sizeof(bodies));
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
            connections[one.data.fd].left = 0;
            epoll_ctl(waiting, EPOLL_CTL_ADD, one.data.fd, &one);
        }
    }
}
