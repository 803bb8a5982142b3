// A caller of rdma_cm without a queue pair: it only presents attach codes, and prints what comes of each.
//
//   cc -o cm_client cm_client.c -lrdmacm -libverbs          (Debian: librdmacm-dev)
//   ./cm_client IP PORT code HEX        one code: "rejected REASON", or another event of rdma_cm
//   ./cm_client IP PORT guess COUNT     so many random codes: "COUNT rejected", and the reason if it was always the same
//   ./cm_client IP PORT silent HEX      one code, and no answer to the accept; then waits for the end of its input
#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { CODE = 16, RESOLVE_MS = 5000, NO_SUCH_PAIR = 0x123456 };

static struct sockaddr_in address = {.sin_family = AF_INET};
static char reason[256];

static void must(int result, const char *step) {
    if (result) {
        perror(step);
        exit(1);
    }
}

// Waits for the next event. Returns its name; `reason` has the private data of a rejection.
static const char *next(struct rdma_event_channel *channel) {
    struct rdma_cm_event *event;
    must(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
    const char *name = rdma_event_str(event->event);
    memset(reason, 0, sizeof reason);
    if (event->event == RDMA_CM_EVENT_REJECTED) {
        name = "rejected";
        memcpy(reason, event->param.conn.private_data, event->param.conn.private_data_len);
    }
    must(rdma_ack_cm_event(event), "rdma_ack_cm_event");
    return name;
}

static const char *call(const void *code, size_t length, int stays) {
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id;
    must(!channel, "rdma_create_event_channel");
    must(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
    must(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, RESOLVE_MS), "rdma_resolve_addr");
    next(channel);
    must(rdma_resolve_route(id, RESOLVE_MS), "rdma_resolve_route");
    next(channel);
    struct rdma_conn_param wanted = {.private_data = code, .private_data_len = length, .qp_num = NO_SUCH_PAIR, .retry_count = 3};
    must(rdma_connect(id, &wanted), "rdma_connect");
    const char *what = next(channel);
    if (stays) {
        puts(what);
        getchar();
    }
    rdma_destroy_id(id);
    rdma_destroy_event_channel(channel);
    return what;
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
            rejected += !strcmp(call(code, sizeof code, 0), "rejected");
            if (!nth)
                strcpy(first, reason);
            same &= !strcmp(first, reason);
        }
        printf("%ld rejected: %s\n", rejected, same ? first : "for different reasons");
        return 0;
    }
    size_t length = 0;
    for (unsigned byte; argc > 4 && length < sizeof code && sscanf(argv[4] + 2 * length, "%2x", &byte) == 1; length++)
        code[length] = (unsigned char)byte;
    int stays = !strcmp(argv[3], "silent");
    const char *what = call(length ? code : NULL, length, stays);
    if (!stays)
        printf("%s: %s\n", what, reason);
    return 0;
}
