/* Publisher, subscriber, ping, pong and driver loops over Aeron's C client and C media driver.
 *
 * The library that holds both is the extension module of the pyaeron wheel, which exports the whole C
 * API but ships no headers: the few declarations that the loops need are written out below. This file is
 * compiled to a shared object, which a worker loads (workers/aeron_c.py) once it has loaded the wheel's.
 *
 * In inline mode the media driver runs in the caller's loop ("invoker"), so that a process is one
 * spinning thread: on two cores nothing else reaches the figures of this mode.
 */
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Aeron's C API, as far as used ---- */
typedef struct aeron_context_stct aeron_context_t;
typedef struct aeron_stct aeron_t;
typedef struct aeron_driver_context_stct aeron_driver_context_t;
typedef struct aeron_driver_stct aeron_driver_t;
typedef struct aeron_exclusive_publication_stct aeron_pub_t;
typedef struct aeron_subscription_stct aeron_sub_t;
typedef struct aeron_image_stct aeron_image_t;
typedef struct aeron_header_stct aeron_header_t;
typedef struct aeron_client_registering_resource_stct aeron_async_t;
typedef void (*aeron_fragment_handler_t)(void *, const uint8_t *, size_t, aeron_header_t *);
typedef int64_t (*aeron_reserved_value_supplier_t)(void *, uint8_t *, size_t);
typedef void (*aeron_image_handler_t)(void *, aeron_sub_t *, aeron_image_t *);

extern int aeron_driver_context_init(aeron_driver_context_t **);
extern int aeron_driver_context_close(aeron_driver_context_t *);
extern int aeron_driver_context_set_dir(aeron_driver_context_t *, const char *);
extern int aeron_driver_context_set_dir_delete_on_start(aeron_driver_context_t *, bool);
extern int aeron_driver_context_set_dir_delete_on_shutdown(aeron_driver_context_t *, bool);
extern int aeron_driver_context_set_threading_mode(aeron_driver_context_t *, int);
extern int aeron_driver_init(aeron_driver_t **, aeron_driver_context_t *);
extern int aeron_driver_start(aeron_driver_t *, bool);
extern int aeron_driver_main_do_work(aeron_driver_t *);
extern int aeron_driver_close(aeron_driver_t *);
extern int aeron_context_init(aeron_context_t **);
extern int aeron_context_close(aeron_context_t *);
extern int aeron_context_set_dir(aeron_context_t *, const char *);
extern int aeron_context_set_use_conductor_agent_invoker(aeron_context_t *, bool);
extern int aeron_init(aeron_t **, aeron_context_t *);
extern int aeron_start(aeron_t *);
extern int aeron_main_do_work(aeron_t *);
extern int aeron_close(aeron_t *);
extern int aeron_async_add_exclusive_publication(aeron_async_t **, aeron_t *, const char *, int32_t);
extern int aeron_async_add_exclusive_publication_poll(aeron_pub_t **, aeron_async_t *);
extern int64_t aeron_exclusive_publication_offer(
    aeron_pub_t *, const uint8_t *, size_t, aeron_reserved_value_supplier_t, void *);
extern bool aeron_exclusive_publication_is_connected(aeron_pub_t *);
extern int aeron_async_add_subscription(aeron_async_t **, aeron_t *, const char *, int32_t,
    aeron_image_handler_t, void *, aeron_image_handler_t, void *);
extern int aeron_async_add_subscription_poll(aeron_sub_t **, aeron_async_t *);
extern int aeron_subscription_poll(aeron_sub_t *, aeron_fragment_handler_t, void *, size_t);
extern bool aeron_subscription_is_connected(aeron_sub_t *);
extern const char *aeron_errmsg(void);

enum { THREADING_INVOKER = 3 };
enum { ROLE_PUB = 0, ROLE_SUB = 1, ROLE_PING = 2, ROLE_PONG = 3, ROLE_DRIVER = 4 };
enum { STREAM_OUT = 1001, STREAM_BACK = 1002, WORK_EVERY = 256, MESSAGE_BYTES_MAX = 4096 };
enum { OFFER_CLOSED = -4 };

typedef struct bench_config {       /* the same fields, in the same order, in workers/aeron_c.py */
    const char *dir;                /* Aeron directory */
    const char *channel;            /* of the data, or of the ping */
    const char *back_channel;       /* of the pong */
    int32_t role;
    int32_t embedded;               /* 1: this process runs the media driver */
    int32_t threading;              /* 0 dedicated, 1 shared network, 2 shared, 3 invoker (inline) */
    int32_t message_bytes;
    int32_t batch;                  /* offers, or fragments, between two driver duty cycles */
    int32_t rounds;
    int32_t warmup_rounds;
    int32_t give_way;               /* 1: yield when idle, for more processes than cores */
    int32_t unused;
    int64_t warmup_ns;
    int64_t measure_ns;
    int64_t deadline_ns;            /* the whole run, from the call */
    volatile int32_t *stop;
    int64_t *rtt_ns;                /* ROLE_PING: `rounds` values */
} bench_config_t;

typedef struct bench_result {
    int64_t offered, back_pressured, rounds_done, elapsed_ns;
} bench_result_t;

typedef struct bench {
    const bench_config_t *config;
    bench_result_t *result;
    aeron_driver_context_t *driver_context;
    aeron_driver_t *driver;
    aeron_context_t *context;
    aeron_t *client;
    aeron_pub_t *pub;
    int64_t received, expected, lost, duplicated, end_ns;
    int64_t pong_seen;
    bool inline_driver;
} bench_t;

static int64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

static int fail(const char *what) {
    dprintf(STDERR_FILENO, "%s: %s\n", what, aeron_errmsg());
    return -1;
}

static void say_ready(void) {
    static const char line[] = "{\"event\": \"ready\"}\n";
    if (write(STDOUT_FILENO, line, sizeof line - 1) < 0) { /* the parent is gone: the deadline ends us */ }
}

static inline bool running(const bench_t *b) {
    return !*b->config->stop && now_ns() < b->end_ns;
}

static inline int work(bench_t *b) {
    return b->inline_driver ? aeron_driver_main_do_work(b->driver) : 0;
}

static inline void give_way(const bench_t *b) {
    if (b->config->give_way) { sched_yield(); }
}

static inline void housekeeping(bench_t *b) {
    work(b);
    aeron_main_do_work(b->client);
}

static int open_bench(bench_t *b) {
    const bench_config_t *c = b->config;
    b->inline_driver = c->embedded && c->threading == THREADING_INVOKER;
    b->end_ns = now_ns() + c->deadline_ns;
    if (c->embedded) {
        if (aeron_driver_context_init(&b->driver_context) < 0 ||
            aeron_driver_context_set_dir(b->driver_context, c->dir) < 0 ||
            aeron_driver_context_set_dir_delete_on_start(b->driver_context, true) < 0 ||
            aeron_driver_context_set_dir_delete_on_shutdown(b->driver_context, true) < 0 ||
            aeron_driver_context_set_threading_mode(b->driver_context, c->threading) < 0 ||
            aeron_driver_init(&b->driver, b->driver_context) < 0 ||
            aeron_driver_start(b->driver, b->inline_driver) < 0) {
            return fail("driver");
        }
    }
    if (c->role == ROLE_DRIVER) { return 0; }
    if (aeron_context_init(&b->context) < 0 || aeron_context_set_dir(b->context, c->dir) < 0 ||
        aeron_context_set_use_conductor_agent_invoker(b->context, true) < 0 ||
        aeron_init(&b->client, b->context) < 0 || aeron_start(b->client) < 0) {
        return fail("client");
    }
    return 0;
}

static void close_bench(bench_t *b) {
    if (b->client) { aeron_close(b->client); }
    if (b->context) { aeron_context_close(b->context); }
    if (b->driver) { aeron_driver_close(b->driver); }
    if (b->driver_context) { aeron_driver_context_close(b->driver_context); }
}

static aeron_pub_t *add_publication(bench_t *b, const char *channel, int32_t stream) {
    aeron_async_t *async = NULL;
    aeron_pub_t *pub = NULL;
    if (aeron_async_add_exclusive_publication(&async, b->client, channel, stream) < 0) { return NULL; }
    while (!pub && running(b)) {
        if (aeron_async_add_exclusive_publication_poll(&pub, async) < 0) { return NULL; }
        housekeeping(b);
    }
    return pub;
}

static aeron_sub_t *add_subscription(bench_t *b, const char *channel, int32_t stream) {
    aeron_async_t *async = NULL;
    aeron_sub_t *sub = NULL;
    if (aeron_async_add_subscription(&async, b->client, channel, stream, NULL, NULL, NULL, NULL) < 0) {
        return NULL;
    }
    while (!sub && running(b)) {
        if (aeron_async_add_subscription_poll(&sub, async) < 0) { return NULL; }
        housekeeping(b);
    }
    return sub;
}

static void on_message(void *clientd, const uint8_t *buffer, size_t length, aeron_header_t *header) {
    bench_t *b = clientd;
    int64_t sequence;
    (void)length;
    (void)header;
    memcpy(&sequence, buffer, sizeof sequence);
    if (sequence == b->expected) {
        b->expected++;
    } else if (sequence > b->expected) {
        if (b->received) { b->lost += sequence - b->expected; }
        b->expected = sequence + 1;
    } else {
        b->duplicated++;
    }
    b->received++;
}

static int publish(bench_t *b) {
    const bench_config_t *c = b->config;
    uint8_t message[MESSAGE_BYTES_MAX] = {0};
    int64_t sequence = 0, back_pressured = 0;
    uint32_t loops = 0;
    aeron_pub_t *pub = add_publication(b, c->channel, STREAM_OUT);
    if (!pub) { return fail("publication"); }
    say_ready();
    while (!aeron_exclusive_publication_is_connected(pub) && running(b)) { housekeeping(b); }
    while (running(b)) {
        bool refused = false;
        for (int32_t i = 0; i < c->batch; i++) {
            memcpy(message, &sequence, sizeof sequence);
            int64_t position =
                aeron_exclusive_publication_offer(pub, message, (size_t)c->message_bytes, NULL, NULL);
            if (position > 0) {
                sequence++;
            } else {
                back_pressured++;
                refused = true;
                if (position <= OFFER_CLOSED) { return fail("offer"); }
                break;
            }
        }
        if (work(b) == 0 && refused) { give_way(b); }
        if (++loops % WORK_EVERY == 0) { aeron_main_do_work(b->client); }
    }
    b->result->offered = sequence;
    b->result->back_pressured = back_pressured;
    return 0;
}

static void say_window(const bench_t *b, int64_t received, int64_t elapsed_ns) {
    dprintf(STDOUT_FILENO,
        "{\"event\": \"result\", \"received\": %lld, \"elapsed_ns\": %lld, \"lost\": %lld, "
        "\"duplicated\": %lld}\n",
        (long long)received, (long long)elapsed_ns, (long long)b->lost, (long long)b->duplicated);
}

static int subscribe(bench_t *b) {
    const bench_config_t *c = b->config;
    int64_t start_ns = 0, received_before = 0, now = 0;
    uint32_t loops = 0;
    bool measuring = false;
    aeron_sub_t *sub = add_subscription(b, c->channel, STREAM_OUT);
    if (!sub) { return fail("subscription"); }
    say_ready();
    while (!*c->stop) {
        int polled = aeron_subscription_poll(sub, on_message, b, (size_t)c->batch);
        if (work(b) + polled == 0) { give_way(b); }
        if (++loops % WORK_EVERY == 0) { aeron_main_do_work(b->client); }
        if (loops % 16) { continue; }
        now = now_ns();
        if (now > b->end_ns) { break; }
        if (!b->received) { continue; }
        if (!start_ns) { start_ns = now; }
        if (!measuring) {
            if (now - start_ns >= c->warmup_ns) {
                measuring = true;
                start_ns = now;
                received_before = b->received;
                b->lost = b->duplicated = 0;
            }
        } else if (now - start_ns >= c->measure_ns) {
            break;
        }
    }
    say_window(b, measuring ? b->received - received_before : 0, measuring ? now - start_ns : 0);
    while (running(b)) { /* whoever leaves early stalls the publisher for the others */
        aeron_subscription_poll(sub, on_message, b, (size_t)c->batch);
        housekeeping(b);
    }
    return 0;
}

static void on_pong(void *clientd, const uint8_t *buffer, size_t length, aeron_header_t *header) {
    (void)length;
    (void)header;
    memcpy(&((bench_t *)clientd)->pong_seen, buffer, sizeof(int64_t));
}

static void on_ping(void *clientd, const uint8_t *buffer, size_t length, aeron_header_t *header) {
    bench_t *b = clientd;
    (void)header;
    while (aeron_exclusive_publication_offer(b->pub, buffer, length, NULL, NULL) < 0 && running(b)) {
        housekeeping(b);
    }
    work(b);
}

static int ping(bench_t *b) {
    const bench_config_t *c = b->config;
    uint8_t message[MESSAGE_BYTES_MAX] = {0};
    uint32_t loops = 0;
    int64_t total = (int64_t)c->warmup_rounds + c->rounds, measured_from = 0;
    aeron_sub_t *sub = add_subscription(b, c->back_channel, STREAM_BACK);
    b->pub = add_publication(b, c->channel, STREAM_OUT);
    if (!b->pub || !sub) { return fail("ping"); }
    say_ready();
    while ((!aeron_exclusive_publication_is_connected(b->pub) || !aeron_subscription_is_connected(sub)) &&
           running(b)) {
        housekeeping(b);
    }
    for (int64_t round = 1; round <= total && running(b); round++) {
        int64_t sent_ns = now_ns();
        memcpy(message, &round, sizeof round);
        while (aeron_exclusive_publication_offer(
                   b->pub, message, (size_t)c->message_bytes, NULL, NULL) < 0 && running(b)) {
            housekeeping(b);
        }
        work(b);
        while (b->pong_seen != round) {
            if (aeron_subscription_poll(sub, on_pong, b, 10) == 0) { work(b); }
            if (++loops % 1024 == 0) {
                aeron_main_do_work(b->client);
                if (!running(b)) { return 0; }
            }
        }
        int64_t got_ns = now_ns();
        if (round > c->warmup_rounds) {
            if (!measured_from) { measured_from = sent_ns; }
            c->rtt_ns[b->result->rounds_done++] = got_ns - sent_ns;
            b->result->elapsed_ns = got_ns - measured_from;
            if (b->result->elapsed_ns > c->measure_ns) { break; }
        }
    }
    return 0;
}

static int pong(bench_t *b) {
    const bench_config_t *c = b->config;
    uint32_t loops = 0;
    aeron_sub_t *sub = add_subscription(b, c->channel, STREAM_OUT);
    b->pub = add_publication(b, c->back_channel, STREAM_BACK);
    if (!b->pub || !sub) { return fail("pong"); }
    say_ready();
    for (;;) {
        if (aeron_subscription_poll(sub, on_ping, b, 10) == 0) { work(b); }
        if (++loops % 1024 == 0) {
            aeron_main_do_work(b->client);
            if (!running(b)) { return 0; }
        }
    }
}

static int drive(bench_t *b) {
    say_ready();
    while (running(b)) {
        if (b->inline_driver) {
            aeron_driver_main_do_work(b->driver);
        } else {
            usleep(10000);
        }
    }
    return 0;
}

/* Runs one role to its end; 0, or -1 with the reason on standard error. */
int aeron_bench_run(const bench_config_t *config, bench_result_t *result) {
    static int (*const roles[])(bench_t *) = {publish, subscribe, ping, pong, drive};
    bench_t bench = {.config = config, .result = result};
    memset(result, 0, sizeof *result);
    if (config->role < 0 || config->role > ROLE_DRIVER || config->message_bytes < (int32_t)sizeof(int64_t) ||
        config->message_bytes > MESSAGE_BYTES_MAX) {
        return -1;
    }
    int status = open_bench(&bench);
    if (status == 0) { status = roles[config->role](&bench); }
    close_bench(&bench);
    return status;
}
