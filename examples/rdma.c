// An RDMA client of leased memory: libibverbs moves the bytes, `fabricctl` asks for the lease. It makes a queue pair, names
// it in the request for the lease, connects it, writes, reads back, and writes until the lease ends. docs/rdma-client.md
// explains each step.
//
//   cc -o rdma rdma.c -libverbs                  (Debian: libibverbs-dev)
//   export FABRICBIOS_NODE=NODE:5701 FABRICBIOS_IDENTITY=FILE
//   ./rdma [DEVICE [SECS]]
//
// DEVICE is the first one of this machine and SECS is 10 if they are left out. Exit status 0: access ended with the lease.
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { PORT = 1, LEASE_BYTES = 65536, GIDS_MAX = 256 };

// The coordinates of the lease.
struct remote {
    uint32_t rkey, qp_num, psn;
    uint64_t address;
    union ibv_gid gid;
    enum ibv_mtu path_mtu;
    uint8_t reads; // the most reads that the node answers at once
};

static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char buffer[4096];

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("rdma: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static struct ibv_context *open_device(const char *name) {
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    for (int i = 0; devices && i < count; i++) {
        if (!name || !strcmp(name, ibv_get_device_name(devices[i]))) {
            struct ibv_context *context = ibv_open_device(devices[i]);
            if (!context)
                fail("%s cannot be opened", ibv_get_device_name(devices[i]));
            ibv_free_device_list(devices);
            return context;
        }
    }
    fail("no RDMA device %s: `ibv_devices` lists those of this machine", name ? name : "at all");
    return NULL;
}

// The first RoCE v2 GID that is an IPv4 address. Its index differs between machines.
static struct ibv_gid_entry own_gid(struct ibv_context *context) {
    static struct ibv_gid_entry table[GIDS_MAX];
    ssize_t count = ibv_query_gid_table(context, table, GIDS_MAX, 0);
    for (ssize_t i = 0; i < count; i++) {
        const struct in6_addr *address = (const struct in6_addr *)table[i].gid.raw;
        if (table[i].port_num == PORT && table[i].gid_type == IBV_GID_TYPE_ROCE_V2 && IN6_IS_ADDR_V4MAPPED(address))
            return table[i];
    }
    fail("port %d has no RoCE v2 GID with an IPv4 address; give its interface one", PORT);
    return table[0];
}

static void make_queue_pair(struct ibv_context *context) {
    struct ibv_pd *pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    mr = pd ? ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE) : NULL;
    if (!pd || !cq || !mr)
        fail("no protection domain, completion queue or memory region");
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    qp = ibv_create_qp(pd, &init);
    // Access flags 0: nobody reads or writes the memory of this side.
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
    if (!qp || ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        fail("no queue pair in INIT");
}

// The text behind `"key":`. That is enough for one line of `fabricctl --json`; a program of yours has a JSON parser.
static const char *value(const char *json, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *found = strstr(json, quoted);
    if (!found)
        fail("the answer of fabricctl has no %s: %s", key, json);
    return found + strlen(quoted);
}

static uint64_t number(const char *json, const char *key) {
    return strtoull(value(json, key), NULL, 10);
}

// Leases memory for this queue pair, for `secs` seconds.
static struct remote lease(const char *gid, uint32_t psn, unsigned secs) {
    char command[256], json[4096] = "";
    snprintf(command, sizeof command,
             "fabricctl --json lease alloc mem --bytes %d --secs %u --transport rdma --rdma-peer qpn=%u,gid=%s,psn=%u", LEASE_BYTES,
             secs, qp->qp_num, gid, psn);
    puts(command);
    fflush(stdout);
    FILE *answer = popen(command, "r");
    if (!answer || !fgets(json, sizeof json, answer) || pclose(answer))
        fail("no lease; the line of fabricctl above says why");
    struct remote remote = {
        .rkey = number(json, "rkey"),
        .address = number(json, "remote_addr"),
        .qp_num = number(json, "qp_num"),
        .psn = number(json, "psn"),
        .reads = number(json, "max_rd_atomic"),
    };
    char text[64] = "";
    if (sscanf(value(json, "gid"), "\"%63[^\"]", text) != 1 || inet_pton(AF_INET6, text, remote.gid.raw) != 1)
        fail("not a GID: %s", text);
    // 256, 512, 1024, 2048 or 4096 bytes are 1 to 5.
    remote.path_mtu = IBV_MTU_256;
    for (uint64_t bytes = number(json, "path_mtu"); bytes > 256 && remote.path_mtu < IBV_MTU_4096; bytes /= 2)
        remote.path_mtu++;
    return remote;
}

static void connect_to(const struct remote *remote, unsigned gid_index, uint32_t psn, int own_reads) {
    struct ibv_qp_attr receive = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = remote->path_mtu,
        .dest_qp_num = remote->qp_num,
        .rq_psn = remote->psn, // the node's first number
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = PORT, .grh = {.dgid = remote->gid, .sgid_index = gid_index, .hop_limit = 64}},
    };
    if (ibv_modify_qp(qp, &receive, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
                      | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
        fail("the queue pair does not go to RTR");
    // 67 ms without an answer, and six times more. Not 7: soft-RoCE takes that for "for ever".
    struct ibv_qp_attr send = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = psn, // our first number, as the node knows it
        .timeout = 14,
        .retry_cnt = 6,
        .rnr_retry = 7,
        .max_rd_atomic = remote->reads < own_reads ? remote->reads : own_reads,
    };
    if (ibv_modify_qp(qp, &send, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY
                      | IBV_QP_MAX_QP_RD_ATOMIC))
        fail("the queue pair does not go to RTS");
}

// Writes or reads `length` bytes at `offset` of the lease, and waits for the completion.
static enum ibv_wc_status transfer(enum ibv_wr_opcode opcode, const struct remote *remote, uint64_t offset, uint32_t length) {
    struct ibv_sge piece = {.addr = (uintptr_t)buffer, .length = length, .lkey = mr->lkey};
    struct ibv_send_wr request = {
        .sg_list = &piece,
        .num_sge = 1,
        .opcode = opcode,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {.remote_addr = remote->address + offset, .rkey = remote->rkey},
    };
    struct ibv_send_wr *bad;
    if (ibv_post_send(qp, &request, &bad))
        fail("the request cannot be posted");
    struct ibv_wc completion;
    int count;
    while (!(count = ibv_poll_cq(cq, 1, &completion)))
        ;
    if (count < 0)
        fail("the completion queue cannot be polled");
    return completion.status;
}

static void must(const char *what, enum ibv_wc_status status) {
    printf("%s: %s\n", what, ibv_wc_status_str(status));
    if (status != IBV_WC_SUCCESS)
        exit(1);
}

int main(int argc, char **argv) {
    struct ibv_context *context = open_device(argc > 1 ? argv[1] : NULL);
    struct ibv_gid_entry own = own_gid(context);
    struct ibv_device_attr device;
    if (ibv_query_device(context, &device))
        fail("the device does not tell its limits");
    make_queue_pair(context);

    // A new random first number for each queue pair: packets of an old one must not be taken for the new one's.
    uint32_t psn;
    if (getrandom(&psn, sizeof psn, 0) != sizeof psn)
        fail("no random number");
    psn &= 0xffffff;
    char gid[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, own.gid.raw, gid, sizeof gid);
    struct remote remote = lease(gid, psn, argc > 2 ? strtoul(argv[2], NULL, 10) : 10);
    connect_to(&remote, own.gid_index, psn, device.max_qp_init_rd_atom);

    const char text[] = "written by libibverbs";
    memcpy(buffer, text, sizeof text);
    must("write", transfer(IBV_WR_RDMA_WRITE, &remote, 4096, sizeof text));
    memset(buffer, 0, sizeof buffer);
    must("read", transfer(IBV_WR_RDMA_READ, &remote, 4096, sizeof text));
    printf("read back: %s\n", buffer);
    fflush(stdout);

    // A request that completes with success was carried out. The lease is over at the first one that does not.
    uint64_t writes = 0;
    enum ibv_wc_status status;
    while ((status = transfer(IBV_WR_RDMA_WRITE, &remote, 0, sizeof buffer)) == IBV_WC_SUCCESS)
        writes++;
    printf("%" PRIu64 " writes, then: %s\n", writes, ibv_wc_status_str(status));
    // Two statuses for the same end: the key was refused, or the node's queue pair was already gone.
    return status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_RETRY_EXC_ERR ? 0 : 1;
}
