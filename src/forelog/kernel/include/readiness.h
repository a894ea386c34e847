/* Which of many sockets have something to be read: epoll, on Linux. Elsewhere there is none of these, and whoever
 * asks for one is told so. */
#ifndef FORELOG_READINESS_H
#define FORELOG_READINESS_H

#include <errno.h>

#define READINESS_MAX 64 /* that one look tells of: those behind them come first in the next one */

#ifdef __linux__

#include <sys/epoll.h>

static int readiness_open(void) { return epoll_create1(EPOLL_CLOEXEC); }

static int readiness_add(int set, int descriptor) {
    struct epoll_event event;
    event.events = EPOLLIN;
    event.data.fd = descriptor;
    return epoll_ctl(set, EPOLL_CTL_ADD, descriptor, &event);
}

static int readiness_remove(int set, int descriptor) {
    struct epoll_event event; /* before Linux 2.6.9 it had to be there */
    return epoll_ctl(set, EPOLL_CTL_DEL, descriptor, &event);
}

static int readiness_look(int set, int *descriptors) {
    struct epoll_event events[READINESS_MAX];
    int found = epoll_wait(set, events, READINESS_MAX, 0);
    for (int i = 0; i < found; i++) descriptors[i] = events[i].data.fd;
    return found;
}

#else

static int readiness_open(void) { errno = ENOSYS; return -1; }
static int readiness_add(int set, int descriptor) { errno = ENOSYS; return -1; }
static int readiness_remove(int set, int descriptor) { errno = ENOSYS; return -1; }
static int readiness_look(int set, int *descriptors) { errno = ENOSYS; return -1; }

#endif
#endif
