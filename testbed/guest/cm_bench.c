// Both sides of a connection by rdma_cm, for bench_rdma_cm.py.
//
//   cc -o cm_bench cm_bench.c -lrdmacm -libverbs            (Debian: librdmacm-dev)
//   ./cm_bench serve IP PORT            prints "listening"; accepts each caller with a queue pair made for it
//   ./cm_bench connect IP PORT [HEX]    prints the µs from rdma_connect to ESTABLISHED; HEX: its private data
#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CODE = 16, RESOLVE_MS = 5000, WAITING = 16, WORK = 16, COMPLETIONS = 256 };

static struct rdma_event_channel *channel;

static void must(int failed, const char *step) {
    if (failed) {
        perror(step);
        exit(1);
    }
}

static struct rdma_cm_event *next(void) {
    struct rdma_cm_event *event;
    must(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
    return event;
}

static void await(enum rdma_cm_event_type wanted) {
    struct rdma_cm_event *event = next();
    if (event->event != wanted) {
        fprintf(stderr, "%s instead of %s\n", rdma_event_str(event->event), rdma_event_str(wanted));
        exit(1);
    }
    rdma_ack_cm_event(event);
}

// Makes a queue pair in the device's one protection domain, on one completion queue.
static void make_pair(struct rdma_cm_id *id) {
    static struct ibv_cq *completions;
    if (!completions)
        must(!(completions = ibv_create_cq(id->verbs, COMPLETIONS, NULL, NULL, 0)), "ibv_create_cq");
    struct ibv_qp_init_attr wanted = {
        .send_cq = completions, .recv_cq = completions, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = WORK, .max_recv_wr = WORK, .max_send_sge = 1, .max_recv_sge = 1}};
    must(rdma_create_qp(id, NULL, &wanted), "rdma_create_qp");
}

static void serve(struct sockaddr *address) {
    struct rdma_cm_id *listener;
    must(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
    must(rdma_bind_addr(listener, address), "rdma_bind_addr");
    must(rdma_listen(listener, WAITING), "rdma_listen");
    puts("listening");
    for (;;) {
        struct rdma_cm_event *event = next();
        struct rdma_cm_id *id = event->id;
        enum rdma_cm_event_type type = event->event;
        rdma_ack_cm_event(event);
        if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
            struct rdma_conn_param told = {.responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7};
            make_pair(id);
            must(rdma_accept(id, &told), "rdma_accept");
        } else if (type == RDMA_CM_EVENT_DISCONNECTED) {
            rdma_disconnect(id);
            rdma_destroy_qp(id);
            rdma_destroy_id(id);
        }
    }
}

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void connect_once(struct sockaddr *address, const void *data, size_t bytes) {
    struct rdma_cm_id *id;
    must(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
    must(rdma_resolve_addr(id, NULL, address, RESOLVE_MS), "rdma_resolve_addr");
    await(RDMA_CM_EVENT_ADDR_RESOLVED);
    must(rdma_resolve_route(id, RESOLVE_MS), "rdma_resolve_route");
    await(RDMA_CM_EVENT_ROUTE_RESOLVED);
    make_pair(id);
    struct rdma_conn_param wanted = {.private_data = data, .private_data_len = bytes, .responder_resources = 1,
                                     .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
    double begun = now_us();
    must(rdma_connect(id, &wanted), "rdma_connect");
    await(RDMA_CM_EVENT_ESTABLISHED);
    printf("%.1f\n", now_us() - begun);
    must(rdma_disconnect(id), "rdma_disconnect");
    await(RDMA_CM_EVENT_DISCONNECTED);
    rdma_destroy_qp(id);
    rdma_destroy_id(id);
}

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    if (argc < 4 || inet_pton(AF_INET, argv[2], &address.sin_addr) != 1)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    address.sin_port = htons(atoi(argv[3]));
    must(!(channel = rdma_create_event_channel()), "rdma_create_event_channel");
    if (!strcmp(argv[1], "serve"))
        serve((struct sockaddr *)&address);
    unsigned char code[CODE];
    size_t length = 0;
    for (unsigned byte; argc > 4 && length < sizeof code && sscanf(argv[4] + 2 * length, "%2x", &byte) == 1; length++)
        code[length] = (unsigned char)byte;
    connect_once((struct sockaddr *)&address, length ? code : NULL, length);
    return 0;
}
