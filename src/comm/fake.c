/* The back end of worlds of which only one rank exists: there are no messages. */
#include "comm/fake.h"

#include "comm/backend.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ek_status no_send(void *self, const void *buf, int64_t bytes, int to, int tag, ek_message *m)
{
    (void)self, (void)buf, (void)bytes, (void)tag, (void)m;
    return EK_FAIL(EK_EINTERNAL, "a message to rank %d of a world in which only this rank exists",
                   to);
}

static ek_status no_recv(void *self, void *buf, int64_t bytes, int from, int tag, ek_message *m)
{
    (void)self, (void)buf, (void)bytes, (void)tag, (void)m;
    return EK_FAIL(EK_EINTERNAL, "a message from rank %d of a world in which only this rank exists",
                   from);
}

static ek_status no_test(void *self, ek_message *m, int *done)
{
    (void)self, (void)m;
    *done = 1;
    return EK_OK;
}

/* The state of a group is just a unique address. */
static ek_status fake_group(void *self, const int *ranks, int n, void **out)
{
    (void)self, (void)ranks, (void)n;
    *out = malloc(1);
    EK_REQUIRE(*out != NULL, EK_ENOMEM, "no memory for a group");
    return EK_OK;
}

static void fake_close(void *self, int failed)
{
    (void)failed;
    free(self);
}

static const ek_backend fake_backend = {
    .name = "fake",
    .message_max = INT64_MAX,
    .no_others = true,
    .send = no_send,
    .recv = no_recv,
    .test = no_test,
    .group = fake_group,
    .close = fake_close,
};

ek_status ek_fake_open(int rank, int ranks, ek_comm **world)
{
    char(*hosts)[EK_HOST_CAP] = NULL;
    void *state = NULL;
    ek_status st;

    EK_REQUIRE(rank >= 0 && rank < ranks, EK_EINVAL, "there is no rank %d of %d", rank, ranks);
    hosts = calloc((size_t)ranks, sizeof(*hosts));
    EK_REQUIRE(hosts != NULL, EK_ENOMEM, "no memory for %d ranks", ranks);
    gethostname(hosts[0], EK_HOST_CAP - 1);
    for (int r = 1; r < ranks; r++)
        memcpy(hosts[r], hosts[0], sizeof(hosts[r]));
    EK_TRY_OUT(fake_group(NULL, NULL, ranks, &state));
    EK_TRY_OUT(ek_comm_create(&fake_backend, state, rank, ranks, (const char(*)[EK_HOST_CAP])hosts,
                              world));
out:
    free(hosts);
    return st;
}
