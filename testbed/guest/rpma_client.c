// A client that knows librpma alone and a lease's attach code: it connects with the code as its private data, takes the
// region from the private data of the answer, and obeys the lines on its standard input, with one line of output each.
//
//   cc -o rpma_client rpma_client.c -lrpma -libverbs        (Debian: librpma-dev)
//   ./rpma_client IP PORT
//
//   code HEX      connect: "established BYTES", or another event of librpma, such as "rejected"
//   write TEXT    write at the start of the region: the status of the work
//   read BYTES    read the start of the region: the status, and the bytes as text
//   loop TEXT     read 4096 bytes until that fails: "READS FOREIGN untouched|touched STATUS", where FOREIGN counts the
//                 reads that did not begin with TEXT; touched: the read that failed left bytes that are not the lease's
//   writes TEXT   write TEXT at the start of the region until that fails: "WRITES LAST STATUS", where LAST is the time of the
//                 last success, in milliseconds since 1970
//   event         wait for an event of the connection
//   end           disconnect, and end
#include <librpma.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BUFFER = 65536, ONE_READ = 4096, UNTOUCHED = 0xee, QUIET_MS = 1000, DESCRIPTOR = 21 };

static struct rpma_conn *conn;
static struct rpma_mr_local *local;
static struct rpma_mr_remote *remote;
static char *buffer;

static void must(int result, const char *step) {
    if (result) {
        printf("failed %s: %s\n", step, rpma_err_2str(result));
        exit(1);
    }
}

static const char *event_of(struct rpma_conn *of) {
    enum rpma_conn_event event;
    must(rpma_conn_next_event(of, &event), "rpma_conn_next_event");
    switch (event) {
    case RPMA_CONN_ESTABLISHED: return "established";
    case RPMA_CONN_CLOSED: return "closed";
    case RPMA_CONN_LOST: return "lost";
    case RPMA_CONN_REJECTED: return "rejected";
    case RPMA_CONN_UNREACHABLE: return "unreachable";
    default: return "undefined";
    }
}

static void start(struct rpma_peer *peer, const char *ip, const char *port, const char *hex) {
    uint8_t code[64];
    struct rpma_conn_private_data sent = {code, 0}, told;
    for (unsigned byte; sent.len < sizeof code && sscanf(hex + 2 * sent.len, "%2x", &byte) == 1; sent.len++)
        code[sent.len] = (uint8_t)byte;
    struct rpma_conn_req *request;
    must(rpma_conn_req_new(peer, ip, port, NULL, &request), "rpma_conn_req_new");
    must(rpma_conn_req_connect(&request, sent.len ? &sent : NULL, &conn), "rpma_conn_req_connect");
    const char *event = event_of(conn);
    if (strcmp(event, "established")) {
        puts(event);
        rpma_conn_delete(&conn);
        return;
    }
    must(rpma_conn_get_private_data(conn, &told), "rpma_conn_get_private_data");
    must(told.len < DESCRIPTOR, "private data without a descriptor");
    must(rpma_mr_remote_from_descriptor(told.ptr, DESCRIPTOR, &remote), "rpma_mr_remote_from_descriptor");
    size_t bytes;
    must(rpma_mr_remote_get_size(remote, &bytes), "rpma_mr_remote_get_size");
    printf("established %zu\n", bytes);
}

// The status of the one piece of work that is posted. If it does not complete and the connection has ended, the work is
// flushed, as librpma wants it.
static const char *status(void) {
    struct rpma_cq *queue;
    struct ibv_wc done;
    int fd, events, result;
    must(rpma_conn_get_cq(conn, &queue), "rpma_conn_get_cq");
    must(rpma_cq_get_fd(queue, &fd), "rpma_cq_get_fd");
    must(rpma_conn_get_event_fd(conn, &events), "rpma_conn_get_event_fd");
    while ((result = rpma_cq_get_wc(queue, 1, &done, NULL)) == RPMA_E_NO_COMPLETION) {
        struct pollfd ready = {events, POLLIN, 0};
        struct pollfd both[] = {{fd, POLLIN, 0}, ready};
        poll(both, 2, QUIET_MS);
        if (both[0].revents)
            must(rpma_cq_wait(queue), "rpma_cq_wait");
        else if (both[1].revents)
            rpma_conn_disconnect(conn);
    }
    must(result, "rpma_cq_get_wc");
    return ibv_wc_status_str(done.status);
}

static const char *read_some(size_t bytes) {
    int posted = rpma_read(conn, local, 0, remote, 0, bytes, RPMA_F_COMPLETION_ALWAYS, NULL);
    return posted ? rpma_err_2str(posted) : status();
}

static const char *write_text(const char *text) {
    strncpy(buffer, text, BUFFER - 1);
    size_t bytes = strlen(buffer);
    int posted = rpma_write(conn, remote, 0, local, 0, bytes, RPMA_F_COMPLETION_ALWAYS, NULL);
    return posted ? rpma_err_2str(posted) : status();
}

static void loop(const char *text) {
    long reads = 0, foreign = 0;
    const char *ended = "";
    while (!*ended) {
        memset(buffer, UNTOUCHED, ONE_READ);
        const char *now = read_some(ONE_READ);
        if (strcmp(now, "success"))
            ended = now;
        else {
            reads++;
            foreign += strncmp(buffer, text, strlen(text)) != 0;
        }
    }
    // The read that fails may have packets of before the cut: the lease's own bytes, the text and zeros.
    int touched = 0;
    int length = strlen(text);
    for (int at = 0; at < ONE_READ; at++) {
        int own = at < length ? text[at] : 0;
        touched |= (unsigned char)buffer[at] != UNTOUCHED && buffer[at] != own;
    }
    printf("%ld %ld %s %s\n", reads, foreign, touched ? "touched" : "untouched", ended);
}

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void writes(const char *text) {
    long count = 0;
    long long last = 0;
    const char *ended;
    for (; !strcmp(ended = write_text(text), "success"); count++)
        last = now_ms();
    printf("%ld %lld %s\n", count, last, ended);
}

int main(int argc, char **argv) {
    struct ibv_context *context;
    struct rpma_peer *peer;
    char line[4096];
    if (argc != 3)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_FATAL);
    buffer = aligned_alloc(4096, BUFFER);
    must(!buffer, "aligned_alloc");
    must(rpma_utils_get_ibv_context(argv[1], RPMA_UTIL_IBV_CONTEXT_REMOTE, &context), "rpma_utils_get_ibv_context");
    must(rpma_peer_new(context, &peer), "rpma_peer_new");
    must(rpma_mr_reg(peer, buffer, BUFFER, RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC, &local), "rpma_mr_reg");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        char *argument = strchr(line, ' ');
        argument = argument ? argument + 1 : line + strlen(line);
        if (!strncmp(line, "code", 4))
            start(peer, argv[1], argv[2], argument);
        else if (!strncmp(line, "writes", 6))
            writes(argument);
        else if (!strncmp(line, "write", 5))
            puts(write_text(argument));
        else if (!strncmp(line, "read", 4)) {
            size_t bytes = strtoul(argument, NULL, 10);
            const char *got = read_some(bytes);
            printf("%s: %.*s\n", got, (int)bytes, buffer);
        } else if (!strncmp(line, "loop", 4))
            loop(argument);
        else if (!strcmp(line, "event"))
            puts(event_of(conn));
        else if (!strcmp(line, "end")) {
            must(rpma_conn_disconnect(conn), "rpma_conn_disconnect");
            puts(event_of(conn));
            return 0;
        }
    }
    return 0;
}
