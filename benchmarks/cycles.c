/* A client that takes jobs through their lives, over many connections at once, as fast as a server answers.
 *
 *     cycles workq|beanstalk PORT CONNECTIONS SECONDS PREFIX PAYLOAD_BYTES
 *
 * Each connection adds a job, leases one and completes it, one request at a time, until the time is over and its
 * last job has ended. One thread serves all of them with an epoll and nothing else: what is to be seen is how
 * fast the server is, so that the client must not be what both wait for. PREFIX makes ids of jobs unique.
 *
 * It writes the number of full cycles within the time, how many seconds these took, and then the seconds that each
 * answer took, all of them doubles. Whatever goes wrong is said on stderr, with exit status 1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define REQUEST_MAX 2048
#define ANSWER_MAX 65536
#define EVENTS_MAX 256
#define STUCK_SECONDS 20.0
#define UUID_BYTES 36

struct connection {
    int descriptor, step;
    double began;
};

struct protocol {
    const char *name;
    /* What is said at each of the three steps of a life, and what the answer to it begins with. */
    size_t (*request)(int step, char *text, const char *answer);
    const char *answers[3];
};

static unsigned prefix;
static uint64_t number;
static int payload_bytes;
static double *latencies;
static size_t latency_count, latency_room;

static void fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    fputs("cycles: ", stderr);
    vfprintf(stderr, format, values);
    fputs("\n", stderr);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static size_t put_payload(char *text, size_t size) {
    memset(text + size, 'x', (size_t)payload_bytes);
    memcpy(text + size + payload_bytes, "\r\n", 2);
    return size + (size_t)payload_bytes + 2;
}

static size_t workq_request(int step, char *text, const char *answer) {
    switch (step) {
    case 0:
        return put_payload(text, (size_t)sprintf(text, "add %08x-0000-4000-8000-%012llx q 60000 3600000 %d\r\n",
                                                 prefix, (unsigned long long)number++, payload_bytes));
    case 1:
        return (size_t)sprintf(text, "lease q 1000\r\n");
    default: /* behind "+OK 1\r\n" stands the job's id */
        return (size_t)sprintf(text, "complete %.*s 0\r\n\r\n", UUID_BYTES, answer + 7);
    }
}

static size_t beanstalk_request(int step, char *text, const char *answer) {
    switch (step) {
    case 0:
        return put_payload(text, (size_t)sprintf(text, "put 0 0 60 %d\r\n", payload_bytes));
    case 1:
        return (size_t)sprintf(text, "reserve-with-timeout 1\r\n");
    default: /* behind "RESERVED " stands the job's number */
        return (size_t)sprintf(text, "delete %d\r\n", atoi(answer + 9));
    }
}

static const struct protocol protocols[] = {
    {"workq", workq_request, {"+OK\r\n", "+OK 1\r\n", "+OK\r\n"}},
    {"beanstalk", beanstalk_request, {"INSERTED ", "RESERVED ", "DELETED\r\n"}},
};

static int connect_to(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (descriptor < 0 || connect(descriptor, (struct sockaddr *)&address, sizeof address) < 0)
        fail("can't connect to port %d: %s", port, strerror(errno));
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return descriptor;
}

static void say(const struct protocol *protocol, struct connection *one, const char *answer) {
    char text[REQUEST_MAX];
    size_t size = protocol->request(one->step, text, answer);
    one->began = now();
    if (send(one->descriptor, text, size, MSG_NOSIGNAL) != (ssize_t)size) fail("a request couldn't be sent");
}

/* Take an answer, and go on to the next step. Whether that was a life's last one. */
static int hear(const struct protocol *protocol, struct connection *one, char *answer) {
    ssize_t size = recv(one->descriptor, answer, ANSWER_MAX - 1, 0);
    const char *expected = protocol->answers[one->step];
    if (size <= 0) fail("the server has closed a connection");
    answer[size] = 0;
    if (strncmp(answer, expected, strlen(expected)) != 0)
        fail("expected %.*s, got %.60s", (int)strcspn(expected, "\r"), expected, answer);
    if (latency_count == latency_room) {
        latency_room = latency_room ? 2 * latency_room : 1 << 16;
        latencies = realloc(latencies, latency_room * sizeof *latencies);
        if (latencies == NULL) fail("no memory");
    }
    latencies[latency_count++] = now() - one->began;
    one->step = (one->step + 1) % 3;
    return one->step == 0;
}

int main(int count, char **words) {
    struct epoll_event events[EVENTS_MAX];
    static char answer[ANSWER_MAX];
    const struct protocol *protocol = NULL;
    double told[2] = {0.0, 0.0};
    if (count != 7) fail("expected workq|beanstalk PORT CONNECTIONS SECONDS PREFIX PAYLOAD_BYTES");
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++)
        if (strcmp(protocols[i].name, words[1]) == 0) protocol = &protocols[i];
    if (protocol == NULL) fail("no protocol is called %s", words[1]);
    int left = atoi(words[3]), ready = epoll_create1(EPOLL_CLOEXEC);
    prefix = (unsigned)strtoul(words[5], NULL, 10);
    payload_bytes = atoi(words[6]);
    if (left < 1 || payload_bytes < 0 || payload_bytes > REQUEST_MAX - 200) fail("a number is out of range");
    struct connection *all = calloc((size_t)left, sizeof *all);
    for (int i = 0; i < left; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        all[i].descriptor = connect_to(atoi(words[2]));
        if (epoll_ctl(ready, EPOLL_CTL_ADD, all[i].descriptor, &event) < 0) fail("epoll: %s", strerror(errno));
    }
    double start = now(), end = start + atof(words[4]);
    for (int i = 0; i < left; i++) say(protocol, &all[i], "");
    while (left > 0) {
        int found = epoll_wait(ready, events, EVENTS_MAX, 1000);
        for (int i = 0; i < found; i++) {
            struct connection *one = events[i].data.ptr;
            int ended = hear(protocol, one, answer);
            if (ended && now() >= end && told[0] > 0)
                left--;
            else {
                told[0] += ended;
                say(protocol, one, answer);
            }
        }
        if (told[1] == 0 && told[0] > 0 && now() >= end) told[1] = now() - start;
        if (now() > end + STUCK_SECONDS) fail("%d clients are left without an answer", left);
    }
    fwrite(told, sizeof *told, 2, stdout);
    fwrite(latencies, sizeof *latencies, latency_count, stdout);
    return 0;
}
