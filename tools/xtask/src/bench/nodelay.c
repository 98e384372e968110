// Loaded in front of s3s-fs: gives every connection TCP_NODELAY.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    int (*next)(int, struct sockaddr *, socklen_t *, int) = dlsym(RTLD_NEXT, "accept4");
    int one = 1, accepted = next(fd, address, length, flags);

    if (accepted >= 0)
        setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return accepted;
}
