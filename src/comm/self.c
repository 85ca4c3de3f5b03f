/* The back end of a world of one rank: collectives finish without messages. */
#include "comm/self.h"

#include "comm/backend.h"

#include <stdlib.h>
#include <unistd.h>

static ek_status no_send(void *self, const void *buf, int64_t bytes, int to, int tag, ek_message *m)
{
    (void)self, (void)buf, (void)bytes, (void)tag, (void)m;
    return EK_FAIL(EK_EINTERNAL, "a message to rank %d in a world of one rank", to);
}

static ek_status no_recv(void *self, void *buf, int64_t bytes, int from, int tag, ek_message *m)
{
    (void)self, (void)buf, (void)bytes, (void)tag, (void)m;
    return EK_FAIL(EK_EINTERNAL, "a message from rank %d in a world of one rank", from);
}

static ek_status no_test(void *self, ek_message *m, int *done)
{
    (void)self, (void)m;
    *done = 1;
    return EK_OK;
}

/* The state of a group is just a unique address. */
static ek_status self_group(void *self, const int *ranks, int n, void **out)
{
    (void)self, (void)ranks, (void)n;
    *out = malloc(1);
    EK_REQUIRE(*out != NULL, EK_ENOMEM, "no memory for a group");
    return EK_OK;
}

static void self_close(void *self, int failed)
{
    (void)failed;
    free(self);
}

static const ek_backend self_backend = {
    .name = "self",
    .message_max = INT64_MAX,
    .send = no_send,
    .recv = no_recv,
    .test = no_test,
    .group = self_group,
    .close = self_close,
};

ek_status ek_self_open(ek_comm **world)
{
    char host[1][EK_HOST_CAP] = {""};
    void *state;

    gethostname(host[0], EK_HOST_CAP - 1);
    EK_TRY(self_group(NULL, NULL, 1, &state));
    EK_TRY(ek_comm_create(&self_backend, state, 0, 1, (const char(*)[EK_HOST_CAP])host, world));
    return EK_OK;
}
