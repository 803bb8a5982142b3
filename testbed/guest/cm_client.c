// A caller of rdma_cm without a queue pair: it only presents attach codes, and prints what comes of each.
//
//   cc -o cm_client cm_client.c -lrdmacm -libverbs          (Debian: librdmacm-dev)
//   ./cm_client IP PORT code HEX        one code: "rejected REASON", or another event of rdma_cm
//   ./cm_client IP PORT guess COUNT     so many random codes: "COUNT rejected", and the reason if it was always the same
//   ./cm_client IP PORT silent HEX...   all codes at once, and no answer to an accept: "NTH called" as soon as the request is
//                                       sent, "NTH rejected: REASON", or "NTH EVENT: " with another event of rdma_cm, until the
//                                       end of its input
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { CODE = 16, RESOLVE_MS = 5000, NO_SUCH_PAIR = 0x800000 };

static struct sockaddr_in address = {.sin_family = AF_INET};
static char reason[256];

static void must(int result, const char *step) {
    if (result) {
        perror(step);
        exit(1);
    }
}

// Waits for the next event. Returns its name; `reason` has the private data of a rejection, and `who` the connection.
static const char *next(struct rdma_event_channel *channel, struct rdma_cm_id **who) {
    struct rdma_cm_event *event;
    must(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
    const char *name = rdma_event_str(event->event);
    *who = event->id;
    memset(reason, 0, sizeof reason);
    if (event->event == RDMA_CM_EVENT_REJECTED) {
        name = "rejected";
        memcpy(reason, event->param.conn.private_data, event->param.conn.private_data_len);
    }
    must(rdma_ack_cm_event(event), "rdma_ack_cm_event");
    return name;
}

static size_t code_of(const char *hex, unsigned char *code) {
    size_t length = 0;
    for (unsigned byte; length < CODE && sscanf(hex + 2 * length, "%2x", &byte) == 1; length++)
        code[length] = (unsigned char)byte;
    return length;
}

static struct rdma_cm_id *begin(struct rdma_event_channel *channel, void *context) {
    struct rdma_cm_id *id;
    must(rdma_create_id(channel, &id, context, RDMA_PS_TCP), "rdma_create_id");
    must(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, RESOLVE_MS), "rdma_resolve_addr");
    return id;
}

// The kernel refuses two requests at once from one queue pair; so each caller names one of its own.
static void present(struct rdma_cm_id *id, const void *code, size_t length, unsigned nth) {
    uint32_t pair = NO_SUCH_PAIR | ((getpid() << 8 | nth) & (NO_SUCH_PAIR - 1));
    struct rdma_conn_param wanted = {.private_data = code, .private_data_len = length, .qp_num = pair, .retry_count = 3};
    must(rdma_connect(id, &wanted), "rdma_connect");
}

static const char *call(const void *code, size_t length) {
    struct rdma_event_channel *channel = rdma_create_event_channel();
    must(!channel, "rdma_create_event_channel");
    struct rdma_cm_id *id = begin(channel, NULL);
    next(channel, &id);
    must(rdma_resolve_route(id, RESOLVE_MS), "rdma_resolve_route");
    next(channel, &id);
    present(id, code, length, 0);
    const char *what = next(channel, &id);
    rdma_destroy_id(id);
    rdma_destroy_event_channel(channel);
    return what;
}

static int silent(int count, char **codes) {
    struct rdma_event_channel *channel = rdma_create_event_channel();
    must(!channel, "rdma_create_event_channel");
    for (char **hex = codes; hex < codes + count; hex++)
        begin(channel, hex);
    struct pollfd both[] = {{channel->fd, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    while (poll(both, 2, -1) > 0 && !both[1].revents) {
        struct rdma_cm_id *id;
        const char *what = next(channel, &id);
        char **hex = id->context;
        if (!strcmp(what, rdma_event_str(RDMA_CM_EVENT_ADDR_RESOLVED))) {
            must(rdma_resolve_route(id, RESOLVE_MS), "rdma_resolve_route");
        } else if (!strcmp(what, rdma_event_str(RDMA_CM_EVENT_ROUTE_RESOLVED))) {
            unsigned char code[CODE];
            present(id, code, code_of(*hex, code), hex - codes);
            printf("%td called\n", hex - codes);
        } else {
            printf("%td %s: %s\n", hex - codes, what, reason);
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    unsigned char code[CODE];
    if (argc < 4 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    address.sin_port = htons(atoi(argv[2]));
    if (!strcmp(argv[3], "guess")) {
        long count = atol(argv[4]), rejected = 0;
        char first[sizeof reason] = "";
        int same = 1;
        for (long nth = 0; nth < count; nth++) {
            must(getrandom(code, sizeof code, 0) != sizeof code, "getrandom");
            rejected += !strcmp(call(code, sizeof code), "rejected");
            if (!nth)
                strcpy(first, reason);
            same &= !strcmp(first, reason);
        }
        printf("%ld rejected: %s\n", rejected, same ? first : "for different reasons");
        return 0;
    }
    if (!strcmp(argv[3], "silent"))
        return silent(argc - 4, argv + 4);
    size_t length = argc > 4 ? code_of(argv[4], code) : 0;
    const char *what = call(length ? code : NULL, length);
    printf("%s: %s\n", what, reason);
    return 0;
}
