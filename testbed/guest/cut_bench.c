// A client that writes without pause, and memory that is served without a node, for bench_rdma_cut.py.
//
//   cc -o cut_bench cut_bench.c -libverbs -pthread   (Debian: libibverbs-dev)
//   ./cut_bench write DEVICE GID_INDEX
//       each round: prints "QPN PSN" of its queue pair; takes "QPN PSN RKEY ADDRESS" of the other side; prints "writing" after
//       the first write, and the number of writes when one fails
//   ./cut_bench serve DEVICE GID_INDEX window|region BYTES bare|steps
//       each round: takes "QPN PSN" of the client; prints "QPN PSN RKEY ADDRESS"; takes the milliseconds until access ends;
//       prints the µs from that deadline until the last object is destroyed. bare: the thread that waits for the deadline destroys
//       them. steps: another thread does, in the steps of a node: LOCAL_INV, a linger, ERR (docs/architecture.md)
#include <infiniband/verbs.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

// Of the server as those of a lease (premium/rdma/src/connect.rs).
enum { PORT = 1, COMPLETIONS = 160, SEND = 4, READS = 16, TIMEOUT = 14, RETRIES = 6, PSN = 4711, WRITES = 32, WORD = 8 };
enum { REMOTE = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC };

static struct ibv_context *device;
static struct ibv_pd *domain;
static struct ibv_mr *region;
static struct ibv_cq *completions;
static struct ibv_qp *pair;
static struct ibv_mw *window;
static int gid_index, in_steps;
static unsigned key;
static sem_t due, over;

static void must(int failed, const char *step) {
    if (failed) {
        perror(step);
        exit(1);
    }
}

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void make_pair(unsigned send, int rights) {
    struct ibv_qp_init_attr wanted = {.send_cq = completions, .recv_cq = completions, .qp_type = IBV_QPT_RC,
                                      .cap = {.max_send_wr = send, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    must(!(pair = ibv_create_qp(domain, &wanted)), "ibv_create_qp");
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = rights};
    must(ibv_modify_qp(pair, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "modify_qp INIT");
}

// Both sides are on the same device.
static void connect_to(unsigned peer, unsigned psn) {
    struct ibv_port_attr port;
    union ibv_gid gid;
    must(ibv_query_port(device, PORT, &port), "ibv_query_port");
    must(ibv_query_gid(device, PORT, gid_index, &gid), "ibv_query_gid");
    struct ibv_qp_attr to = {
        .qp_state = IBV_QPS_RTR, .path_mtu = port.active_mtu, .dest_qp_num = peer, .rq_psn = psn, .max_dest_rd_atomic = READS,
        .min_rnr_timer = 12, .ah_attr = {.is_global = 1, .port_num = PORT, .grh = {.dgid = gid, .sgid_index = gid_index, .hop_limit = 64}}};
    must(ibv_modify_qp(pair, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "modify_qp RTR");
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = PSN, .timeout = TIMEOUT, .retry_cnt = RETRIES, .rnr_retry = RETRIES,
                              .max_rd_atomic = 1};
    must(ibv_modify_qp(pair, &to, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                       IBV_QP_MAX_QP_RD_ATOMIC), "modify_qp RTS");
}

static void do_local(struct ibv_send_wr work) {
    struct ibv_send_wr *refused;
    struct ibv_wc done;
    work.send_flags = IBV_SEND_SIGNALED;
    must(ibv_post_send(pair, &work, &refused), "post");
    while (!ibv_poll_cq(completions, 1, &done))
        usleep(50);
    must(done.status != IBV_WC_SUCCESS, "local work");
}

// Binds a window of type 2 to the whole region.
static void bind_window(void) {
    must(!(window = ibv_alloc_mw(domain, IBV_MW_TYPE_2)), "ibv_alloc_mw");
    key = ibv_inc_rkey(window->rkey);
    do_local((struct ibv_send_wr){.opcode = IBV_WR_BIND_MW,
                                  .bind_mw = {window, key, {region, (uintptr_t)region->addr, region->length, REMOTE}}});
}

// Until the client's next access, which fails, at most 20 ms.
static void linger(void) {
    struct ibv_qp_attr is;
    struct ibv_qp_init_attr made;
    for (double until = now_us() + 20e3; now_us() < until; usleep(250)) {
        must(ibv_query_qp(pair, &is, IBV_QP_STATE, &made), "ibv_query_qp");
        if (is.qp_state != IBV_QPS_RTS)
            return;
    }
}

// The window goes before its queue pair: the other order stalls.
static void destroy(void) {
    if (window && in_steps)
        do_local((struct ibv_send_wr){.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = key});
    if (window)
        must(ibv_dealloc_mw(window), "ibv_dealloc_mw");
    if (in_steps) {
        if (!window)
            must(ibv_dereg_mr(region), "ibv_dereg_mr");
        linger();
        struct ibv_qp_attr to = {.qp_state = IBV_QPS_ERR};
        must(ibv_modify_qp(pair, &to, IBV_QP_STATE), "modify_qp ERR");
    }
    must(ibv_destroy_qp(pair), "ibv_destroy_qp");
    if (window || !in_steps)
        must(ibv_dereg_mr(region), "ibv_dereg_mr");
    must(ibv_destroy_cq(completions), "ibv_destroy_cq");
    if (!window)
        must(ibv_dealloc_pd(domain), "ibv_dealloc_pd");
}

static void *destroy_when_due(void *unused) {
    for (;;) {
        must(sem_wait(&due), "sem_wait");
        destroy();
        must(sem_post(&over), "sem_post");
    }
    return unused;
}

// Makes the objects of a lease in the order of the node. Windows share a domain; each region has its own.
static void serve(int with_windows, size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(memory == MAP_FAILED, "mmap");
    unsigned peer, psn, wait_ms;
    while (scanf("%u %u", &peer, &psn) == 2) {
        if (!window)
            must(!(domain = ibv_alloc_pd(device)), "ibv_alloc_pd");
        int access = IBV_ACCESS_LOCAL_WRITE | (with_windows ? IBV_ACCESS_MW_BIND : REMOTE);
        must(!(region = ibv_reg_mr(domain, memory, bytes, access)), "ibv_reg_mr");
        must(!(completions = ibv_create_cq(device, COMPLETIONS, NULL, NULL, 0)), "ibv_create_cq");
        make_pair(SEND, REMOTE);
        connect_to(peer, psn);
        key = region->rkey;
        if (with_windows)
            bind_window();
        printf("%u %d %u %zu\n", pair->qp_num, PSN, key, (size_t)memory);
        if (scanf("%u", &wait_ms) != 1)
            return;
        double deadline = now_us() + wait_ms * 1e3;
        struct timespec at = {.tv_sec = deadline / 1e6, .tv_nsec = (long)(deadline * 1e3) % 1000000000};
        clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &at, NULL);
        if (in_steps) {
            must(sem_post(&due), "sem_post");
            must(sem_wait(&over), "sem_wait");
        } else {
            destroy();
        }
        printf("%.1f\n", now_us() - deadline);
    }
}

// Keeps WRITES of a word each with the device until one fails; returns how many succeeded.
static unsigned long write_on(size_t address, struct ibv_comp_channel *channel) {
    struct ibv_sge word = {(uintptr_t)region->addr, WORD, region->lkey};
    struct ibv_send_wr *refused, write = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .num_sge = 1, .sg_list = &word,
                                          .wr.rdma = {address, key}};
    struct ibv_wc done[WRITES];
    unsigned long written = 0;
    for (int free = WRITES;;) {
        for (; free; free--)
            must(ibv_post_send(pair, &write, &refused), "post write");
        must(ibv_req_notify_cq(completions, 0), "ibv_req_notify_cq");
        while (!(free = ibv_poll_cq(completions, WRITES, done))) {
            struct ibv_cq *of;
            void *context;
            must(ibv_get_cq_event(channel, &of, &context), "ibv_get_cq_event");
            ibv_ack_cq_events(of, 1);
            must(ibv_req_notify_cq(completions, 0), "ibv_req_notify_cq");
        }
        for (int at = 0; at < free; at++) {
            if (done[at].status != IBV_WC_SUCCESS)
                return written;
            if (!written++)
                puts("writing");
        }
    }
}

static void write_to_peers(void) {
    static char word[WORD];
    struct ibv_comp_channel *channel = ibv_create_comp_channel(device);
    must(!channel, "ibv_create_comp_channel");
    must(!(domain = ibv_alloc_pd(device)), "ibv_alloc_pd");
    must(!(region = ibv_reg_mr(domain, word, WORD, IBV_ACCESS_LOCAL_WRITE)), "ibv_reg_mr");
    for (;;) {
        unsigned peer, psn;
        size_t address;
        must(!(completions = ibv_create_cq(device, COMPLETIONS, NULL, channel, 0)), "ibv_create_cq");
        make_pair(WRITES, 0);
        printf("%u %d\n", pair->qp_num, PSN);
        if (scanf("%u %u %u %zu", &peer, &psn, &key, &address) != 4)
            return;
        connect_to(peer, psn);
        printf("%lu\n", write_on(address, channel));
        must(ibv_destroy_qp(pair), "ibv_destroy_qp");
        must(ibv_destroy_cq(completions), "ibv_destroy_cq");
    }
}

static struct ibv_context *opened(const char *name) {
    struct ibv_device **all = ibv_get_device_list(NULL);
    for (; all && *all; all++)
        if (!strcmp(ibv_get_device_name(*all), name))
            return ibv_open_device(*all);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    must(!(device = opened(argv[2])), argv[2]);
    gid_index = atoi(argv[3]);
    pthread_t destroyer;
    in_steps = argc == 7 && !strcmp(argv[6], "steps");
    must(sem_init(&due, 0, 0) || sem_init(&over, 0, 0) || pthread_create(&destroyer, NULL, destroy_when_due, NULL), "pthread_create");
    if (argc == 7)
        serve(!strcmp(argv[4], "window"), strtoul(argv[5], NULL, 10));
    else
        write_to_peers();
    return 0;
}
