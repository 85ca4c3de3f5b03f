/* Membership of an --elastic job: which hosts are listed, respond, and are in use.
 *
 * A host responds if mpiexec can run evenkeel on it to its end.  All hosts are probed at once, each
 * by an mpiexec of its own, so that a silent host does not delay the others for long: once some
 * have responded, the rest has ten times as long as they took. */
#include "supervisor/membership.h"

#include "base/clock.h"
#include "base/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Time limit of a probe; after the first responses: a multiple of the slowest, with a minimum. */
static const double answer_s = 15, answer_least_s = 1.5, answer_factor = 10;
/* That minimum before the first start, when no work is waiting. */
static const double first_answer_least_s = 5;
/* Time limits to preallocate memory (possibly most of the host's), and to free it. */
static const double prepare_s = 600, give_back_s = 5;
/* How long prepared hosts wait for others that are still preallocating. */
static const double together_s = 20;
/* Intervals: reading the host file, running --discover, probing a host that is not in use; time
 * limit of --discover. */
static const double read_every_s = 1, discover_every_s = 5, ask_every_s = 2, discover_s = 30;
/* Backoff of a lost host, doubled each time it was lost within soon_s of joining; time until a
 * reclaimed host is used again. */
static const double back_s = 2, soon_s = 60, going_s = 60;
/* Backoff of a host whose rank failed on its own, as that needs a repair. */
static const double refused_s = 60;
enum { BACK_DOUBLES_MAX = 5, GIVE_TRIES_MAX = 2 };

static int64_t after_s(int64_t now, double s)
{
    return now + (int64_t)(s * 1e9);
}

/* --- host list -------------------------------------------------------------------------------- */

static ek_member *find_member(ek_membership *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->member[i].host.name, name) == 0)
            return &m->member[i];
    return NULL;
}

/* Runs evenkeel with these arguments on a host. */
static ek_status run_on_host(const ek_membership *m, ek_member *x, char **argv, int argc, double s)
{
    char host[EK_HOST_NAME_CAP + 2];

    snprintf(host, sizeof(host), "%s:1", x->host.name);
    return ek_subprocess_run(&x->subprocess, m->config, m->mpiexec, 1, host, argv, argc, s);
}

/* Ends the current probe of a host, and starts to free its preallocated memory, if unused. */
static void free_prealloc(const ek_membership *m, ek_member *x)
{
    char command[] = "reserve";
    char *argv[] = {command, (char *)(uintptr_t)m->run, (char *)(uintptr_t)m->supervisor_id};

    ek_subprocess_end(&x->subprocess);
    if (x->holds_prealloc)
        (void)!run_on_host(m, x, argv, 3, give_back_s);
    x->holds_prealloc = x->preparing = x->prepared = 0;
}

/* Removes hosts that are neither listed nor in use, once their preallocated memory is freed. */
static void drop_unlisted(ek_membership *m)
{
    int n = 0;

    for (int i = 0; i < m->n; i++) {
        ek_member *x = &m->member[i];
        int gone = !x->listed && x->used == 0;

        if (gone && x->holds_prealloc)
            free_prealloc(m, x);
        else if (gone && !x->freeing)
            ek_subprocess_end(&x->subprocess);
        x->freeing = gone && x->subprocess.pid > 0;
        if (!gone || x->freeing)
            m->member[n++] = *x;
    }
    m->n = n;
}

/* Replaces the list.  Slots of a host that is listed twice are added. */
static ek_status update_list(ek_membership *m, const ek_host_list *h)
{
    ek_member *grown = realloc(m->member, (size_t)(m->n + h->n) * sizeof(*grown));

    EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for %d hosts", m->n + h->n);
    m->member = grown;
    for (int i = 0; i < m->n; i++)
        grown[i].listed = 0;
    for (int i = 0; i < h->n; i++) {
        ek_member *x = find_member(m, h->host[i].name);

        if (x != NULL && x->listed) {
            x->host.slots += h->host[i].slots;
            continue;
        }
        if (x == NULL) {
            x = &m->member[m->n++];
            *x = (ek_member){.subprocess = {.out = -1}, .number = m->numbers++};
        }
        x->host = h->host[i];
        x->listed = 1;
    }
    drop_unlisted(m);
    return EK_OK;
}

static ek_status begin_discover(ek_membership *m)
{
    char shell[] = "/bin/sh", c[] = "-c";
    char *argv[] = {shell, c, (char *)(uintptr_t)m->config->discover, NULL};

    return ek_subprocess_begin(&m->discover, argv, 1, discover_s);
}

static ek_status end_discover(ek_membership *m, int status)
{
    char *text = status == 0 ? ek_subprocess_output(&m->discover) : NULL;
    ek_host_list h = {0};
    ek_status st = EK_OK;

    ek_subprocess_end(&m->discover);
    EK_REQUIRE(status == 0, EK_EFORMAT,
               "--discover: \"%s\" %s%d; it must print hosts, one per line, and exit with status 0",
               m->config->discover,
               status >= EK_SUBPROCESS_KILLED ? "was killed, or took more seconds than "
                                              : "exited with status ",
               status >= EK_SUBPROCESS_KILLED ? (int)discover_s : status);
    EK_REQUIRE(text != NULL, EK_ENOMEM, "no memory for the output of --discover");
    st = ek_host_list_parse("--discover", text, &h);
    free(text);
    EK_TRY(st);
    st = update_list(m, &h);
    ek_host_list_free(&h);
    return st;
}

/* Reads the host file, or starts --discover. */
static ek_status read_list(ek_membership *m)
{
    ek_host_list h;
    ek_status st;

    if (m->config->discover != NULL)
        return m->discover.pid > 0 ? EK_OK : begin_discover(m);
    EK_TRY(ek_host_list_read(m->config->hosts, &h));
    st = update_list(m, &h);
    ek_host_list_free(&h);
    return st;
}

/* An unreadable list does not end the run: prints one warning. */
static void report_list_error(ek_membership *m, ek_status st)
{
    if (st < 0 && !m->list_error_shown)
        fprintf(stderr, "evenkeel %s: %s; keeping the current hosts\n", m->config->command,
                ek_err_message());
    m->list_error_shown = st < 0;
}

/* --- probes ----------------------------------------------------------------------------------- */

/* Starts a connectivity test between a host and all hosts in use. */
static ek_status start_link_probe(const ek_membership *m, ek_member *x)
{
    const char **host = calloc((size_t)m->n, sizeof(*host));
    int n = 0;
    ek_status st;

    EK_REQUIRE(host != NULL, EK_ENOMEM, "no memory for %d hosts", m->n);
    host[n++] = x->host.name;
    for (int i = 0; i < m->n; i++)
        if (m->member[i].used > 0)
            host[n++] = m->member[i].host.name;
    st = ek_connectivity_try(&x->subprocess, m->config, m->mpiexec, m->start_s, host, n);
    free(host);
    return st;
}

/* linking: a job is running; a suspect host must then reach its hosts. */
static ek_status start_probe(ek_membership *m, ek_member *x, int linking)
{
    char version[] = "--version";
    char *argv[] = {version};

    x->answer = EK_SUBPROCESS_RUNNING;
    x->asked = m->round;
    x->preparing = 0;
    x->testing_links = linking && x->suspect;
    return x->testing_links ? start_link_probe(m, x) : run_on_host(m, x, argv, 1, answer_s);
}

/* Result of a connectivity test.  Backs off after failures, as each test slows the hosts in use. */
static void record_link_probe(ek_member *x, int64_t now, int status)
{
    x->testing_links = 0;
    x->suspect = status != 0;
    x->refusals = status != 0 ? x->refusals + 1 : 0;
    x->ask_at = after_s(now, ask_every_s * (double)(1 << (x->refusals < 5 ? x->refusals : 5)));
}

/* Polls the probe of a host; returns 0 while it runs.  After a failed preallocation the host is
 * probed at once: it may be gone, or lack memory, in which case it is used without
 * preallocation. */
static int poll_probe(ek_member *x, int64_t now)
{
    int status;

    if (x->subprocess.pid == 0)
        return 1;
    status = ek_subprocess_poll(&x->subprocess);
    if (status == EK_SUBPROCESS_RUNNING)
        return 0;
    x->answer = status;
    x->ask_at = x->preparing && status != 0 ? now : after_s(now, ask_every_s);
    if (x->testing_links)
        record_link_probe(x, now, status);
    x->prepared = x->preparing || (x->prepared && status == 0);
    x->preparing = 0;
    return 1;
}

ek_status ek_membership_probe(ek_membership *m)
{
    report_list_error(m, read_list(m));
    m->slowest_s = 0;
    m->round++;
    for (int i = 0; i < m->n; i++) {
        ek_member *x = &m->member[i];

        ek_subprocess_end(&x->subprocess);
        if (x->listed || x->used > 0) /* unlisted hosts in use hold state */
            EK_TRY(start_probe(m, x, 0));
    }
    return EK_OK;
}

/* Takes the result of --discover and probes new hosts. */
static ek_status probe_new_members(ek_membership *m)
{
    int status = m->discover.pid > 0 ? ek_subprocess_poll(&m->discover) : EK_SUBPROCESS_RUNNING;

    if (status == EK_SUBPROCESS_RUNNING)
        return EK_OK;
    report_list_error(m, end_discover(m, status));
    for (int i = 0; i < m->n; i++)
        if (m->member[i].listed && m->member[i].asked != m->round)
            EK_TRY(start_probe(m, &m->member[i], 0));
    return EK_OK;
}

/* Before the first start, hosts that failed a probe are probed once more: mpiexec may fail once. */
static int is_probed_again(const ek_membership *m, ek_member *x)
{
    int is = !m->begun && !x->probed_twice && x->answer != EK_SUBPROCESS_LATE;

    x->probed_twice |= is;
    return is;
}

ek_status ek_membership_probed(ek_membership *m, int *asked)
{
    int64_t now = ek_clock_ns();
    int waiting = 0, there = 0;
    double limit_s, least = m->used_at == 0 ? first_answer_least_s : answer_least_s;

    EK_TRY(probe_new_members(m));
    for (int i = 0; i < m->n; i++) {
        ek_member *x = &m->member[i];

        if (!poll_probe(x, now)) {
            waiting++;
        } else if (x->answer == 0) {
            there++;
            m->slowest_s = x->subprocess.took > m->slowest_s ? x->subprocess.took : m->slowest_s;
        } else if (is_probed_again(m, x)) {
            EK_TRY(start_probe(m, x, 0));
            waiting++;
        }
    }
    limit_s = answer_factor * m->slowest_s;
    limit_s = limit_s > least ? limit_s : least;
    for (int i = 0; i < m->n && waiting > 0 && there > 0; i++)
        if (m->member[i].subprocess.pid > 0)
            m->member[i].subprocess.limit =
                m->member[i].subprocess.begin + (int64_t)(limit_s * 1e9);
    *asked = waiting == 0 && (there > 0 || m->discover.pid == 0);
    return EK_OK;
}

static int is_leaving(const ek_member *x)
{
    return !x->listed || x->leaving;
}

/* Whether ranks can be assigned to the host. */
static int is_usable(const ek_member *x, int64_t now)
{
    return !is_leaving(x) && !x->suspect && x->answer == 0 && x->subprocess.pid == 0 &&
           (x->used > 0 || now >= x->back_at);
}

/* --- connectivity ----------------------------------------------------------------------------- */

ek_status ek_membership_test_links(ek_membership *m)
{
    ek_connectivity *k = &m->links;
    int silent = 0;

    *k = (ek_connectivity){.config = m->config, .mpiexec = m->mpiexec, .start_s = m->start_s};
    k->host = calloc((size_t)m->n, sizeof(*k->host));
    m->link_member = calloc((size_t)m->n, sizeof(*m->link_member));
    EK_REQUIRE(k->host != NULL && m->link_member != NULL, EK_ENOMEM, "no memory for %d hosts",
               m->n);
    for (int go = 0; go < 2; go++) /* of equals the last one is excluded */
        for (int i = 0; i < m->n; i++)
            if (m->member[i].used > 0 && is_leaving(&m->member[i]) == go) {
                k->host[k->n] = m->member[i].host.name;
                m->link_member[k->n++] = i;
                silent += m->member[i].answer != 0;
            }
    k->n = silent > 0 ? 0 : k->n; /* that explains the failure */
    return k->n > 1 ? ek_connectivity_begin(k) : EK_OK;
}

static void end_connectivity_test(ek_membership *m)
{
    ek_connectivity_end(&m->links);
    free(m->links.host);
    free(m->link_member);
    m->links = (ek_connectivity){0};
    m->link_member = NULL;
}

static void report_cut(const ek_membership *m, int which, const unsigned char *out)
{
    int n = 0;

    fprintf(stderr, "evenkeel %s: %s and ", m->config->command, m->links.host[which]);
    for (int i = 0; i < m->links.n; i++)
        if (!out[i] && ek_connectivity_cut(&m->links, which, i))
            fprintf(stderr, "%s%s", n++ > 0 ? ", " : "", m->links.host[i]);
    fprintf(stderr, "%s cannot reach each other\n", n > 0 ? "" : "others");
}

ek_status ek_membership_links_tested(ek_membership *m, int *known)
{
    unsigned char *out;
    int n;

    *known = 1;
    if (m->links.n > 1)
        EK_TRY(ek_connectivity_poll(&m->links, known));
    if (!*known)
        return EK_OK;
    out = calloc((size_t)m->n, 1);
    EK_REQUIRE(out != NULL, EK_ENOMEM, "no memory for %d hosts", m->n);
    n = m->links.n > 1 ? ek_connectivity_choose(&m->links, out) : 0;
    for (int i = 0; n > 0 && i < m->links.n; i++)
        if (out[i]) {
            report_cut(m, i, out);
            m->member[m->link_member[i]].suspect = 1;
        }
    free(out);
    end_connectivity_test(m);
    return EK_OK;
}

void ek_membership_clear_suspicion(ek_membership *m)
{
    for (int i = 0; i < m->n; i++)
        m->member[i].suspect = m->member[i].leaving = 0;
}

/* --- preallocation, see elastic/prealloc.h ---------------------------------------------------- */

void ek_membership_set_blocks(ek_membership *m, const char *run, const char *blocks)
{
    snprintf(m->run, sizeof(m->run), "%s", run);
    snprintf(m->blocks, sizeof(m->blocks), "%s", blocks);
}

/* Preallocates on a host for one rank per slot. */
static ek_status start_prealloc(ek_membership *m, ek_member *x)
{
    char command[] = "reserve", number[16], ranks[24];
    ek_path out;
    char *argv[] = {command, m->run, m->supervisor_id, number, ranks, m->blocks, out.s};

    EK_TRY(ek_path_absolute(m->config->out, &out));
    snprintf(number, sizeof(number), "%d", x->number);
    snprintf(ranks, sizeof(ranks), "%lld", (long long)x->host.slots);
    EK_TRY(run_on_host(m, x, argv, 7, prepare_s));
    x->preparing = x->holds_prealloc = 1;
    return EK_OK;
}

/* Slots of hosts that are in use or prepared. */
static int64_t expected_slots(const ek_membership *m)
{
    int64_t n = 0;

    for (int i = 0; i < m->n; i++) {
        const ek_member *x = &m->member[i];

        n += x->used > 0 || x->prepared || x->preparing ? x->host.slots : 0;
    }
    return n;
}

int ek_membership_prealloc(ek_membership *m)
{
    int64_t now = ek_clock_ns(), wanted = m->config->ranks > 0 ? m->config->ranks : INT64_MAX;
    int begun = 0;

    for (int i = 0; i < m->n && m->blocks[0] != '\0' && expected_slots(m) < wanted; i++) {
        ek_member *x = &m->member[i];

        if (x->used > 0 || x->prepared || !is_usable(x, now))
            continue;
        x->prepared = start_prealloc(m, x) < 0; /* then it is used without */
        begun += !x->prepared;
    }
    return begun > 0;
}

void ek_membership_step_done(ek_membership *m)
{
    for (int i = 0; i < m->n; i++) {
        ek_member *x = &m->member[i];

        x->holds_prealloc = x->holds_prealloc && x->used == 0;
        x->stepped |= x->used > 0;
    }
}

/* Frees preallocated memory on all hosts, within `seconds`. */
static void free_all_prealloc(ek_membership *m, double seconds)
{
    int64_t end = after_s(ek_clock_ns(), seconds);
    int waiting = 1;

    for (int i = 0; i < m->n; i++)
        if (!m->member[i].freeing)
            free_prealloc(m, &m->member[i]);
    while (waiting > 0 && ek_clock_ns() < end) {
        struct timespec nap = {0, 2000000};

        waiting = 0;
        for (int i = 0; i < m->n; i++)
            waiting += !poll_probe(&m->member[i], end);
        if (waiting > 0)
            nanosleep(&nap, NULL);
    }
}

ek_status ek_membership_open(ek_membership *m, const ek_supervisor_config *config,
                             const char *mpiexec, uint64_t supervisor_id)
{
    *m = (ek_membership){.config = config, .mpiexec = mpiexec, .discover = {.out = -1}};
    snprintf(m->supervisor_id, sizeof(m->supervisor_id), "%016" PRIx64, supervisor_id);
    return read_list(m);
}

ek_status ek_membership_list_known(ek_membership *m, int *known)
{
    int status = m->n == 0 ? ek_subprocess_poll(&m->discover) : 0;

    *known = status != EK_SUBPROCESS_RUNNING;
    return *known && m->n == 0 ? end_discover(m, status) : EK_OK;
}

void ek_membership_close(ek_membership *m, double seconds)
{
    free_all_prealloc(m, seconds);
    for (int i = 0; i < m->n; i++)
        ek_subprocess_end(&m->member[i].subprocess);
    ek_subprocess_end(&m->discover);
    end_connectivity_test(m);
    free(m->member);
    *m = (ek_membership){.discover = {.out = -1}};
}

/* --- during a job ----------------------------------------------------------------------------- */

static void poll_list(ek_membership *m, int64_t now)
{
    if (m->discover.pid > 0) {
        int status = ek_subprocess_poll(&m->discover);

        if (status != EK_SUBPROCESS_RUNNING)
            report_list_error(m, end_discover(m, status));
    } else if (now >= m->read_at) {
        m->read_at = after_s(now, m->config->discover != NULL ? discover_every_s : read_every_s);
        report_list_error(m, read_list(m));
    }
}

void ek_membership_poll(ek_membership *m)
{
    int64_t now = ek_clock_ns();

    poll_list(m, now);
    for (int i = 0; i < m->n; i++) {
        ek_member *x = &m->member[i];

        if (x->used == 0 && poll_probe(x, now) && x->listed && now >= x->ask_at &&
            start_probe(m, x, 1) < 0)
            x->ask_at = after_s(now, ask_every_s);
    }
}

int64_t ek_membership_slots(const ek_membership *m)
{
    int64_t n = 0, now = ek_clock_ns();

    for (int i = 0; i < m->n; i++)
        n += is_usable(&m->member[i], now) ? m->member[i].host.slots : 0;
    return n;
}

int ek_membership_probe_pending(const ek_membership *m)
{
    int64_t now = ek_clock_ns();

    for (int i = 0; i < m->n; i++) {
        const ek_member *x = &m->member[i];

        if (x->used == 0 && x->listed && x->subprocess.pid > 0 &&
            now < after_s(x->subprocess.begin, x->preparing ? together_s : answer_least_s))
            return 1;
    }
    return 0;
}

int64_t ek_membership_listed_slots(const ek_membership *m)
{
    int64_t n = 0;

    for (int i = 0; i < m->n; i++)
        n += m->member[i].listed ? m->member[i].host.slots : 0;
    return n;
}

int ek_membership_has_leaving(const ek_membership *m)
{
    for (int i = 0; i < m->n; i++)
        if (m->member[i].used > 0 && is_leaving(&m->member[i]))
            return 1;
    return 0;
}

void ek_membership_notice(ek_membership *m, int rank)
{
    for (int i = 0; i < m->n && !m->decided; i++) {
        ek_member *x = &m->member[i];

        if (rank >= x->first && rank < x->first + (x->draining ? 1 : x->used))
            x->leaving = 1;
    }
}

void ek_membership_forget_notices(ek_membership *m)
{
    for (int i = 0; i < m->n; i++)
        m->member[i].leaving = m->member[i].was_leaving;
}

void ek_membership_ignore_notices(ek_membership *m)
{
    m->decided = 1;
}

void ek_membership_drained(ek_membership *m)
{
    for (int i = 0; i < m->n; i++) {
        m->member[i].drained |= m->member[i].draining;
        m->member[i].draining = 0;
    }
}

/* --- assignment of ranks ---------------------------------------------------------------------- */

/* Starts the backoff of a lost host; returns its length in seconds. */
static double start_backoff(ek_member *x, int64_t now)
{
    int doubles = x->losses < BACK_DOUBLES_MAX ? x->losses : BACK_DOUBLES_MAX;
    double s = back_s * (double)(1 << doubles);

    x->back_at = after_s(now, s);
    x->losses = now - x->since < after_s(0, soon_s) ? x->losses + 1 : 0;
    return s;
}

/* A host in use gets no ranks any more. */
static void release_member(ek_member *x, int64_t now)
{
    if (x->answer != 0 || x->suspect)
        start_backoff(x, now);
    else
        x->back_at = x->leaving ? after_s(now, going_s) : now;
}

const char *ek_membership_exclude(ek_membership *m, int rank, double *s)
{
    ek_member *refused = NULL;
    int stepped = 0;

    for (int i = 0; i < m->n; i++) {
        ek_member *x = &m->member[i];

        stepped += x->used > 0 && x->stepped;
        if (rank >= x->first && rank < x->first + x->used && !x->stepped)
            refused = x;
    }
    if (refused == NULL || stepped == 0)
        return NULL;
    *s = refused_s;
    refused->back_at = after_s(ek_clock_ns(), refused_s);
    refused->used = 0;
    return refused->host.name;
}

void ek_membership_suspect_new(ek_membership *m)
{
    int64_t now = ek_clock_ns();
    int older = 0;

    for (int i = 0; i < m->n; i++)
        older += m->member[i].used > 0 && m->member[i].since < m->used_at;
    for (int i = 0; i < m->n && older > 0; i++) {
        ek_member *x = &m->member[i];

        if (x->used == 0 || x->since < m->used_at)
            continue;
        fprintf(stderr,
                "evenkeel %s: no step was completed with %s, which is excluded for %.0f s\n",
                m->config->command, x->host.name, start_backoff(x, now));
        x->used = 0;
        x->suspect = 1;
    }
}

/* Whether a host that gets no rank holds state, responds, and can still be drained. */
static int has_state_to_drain(const ek_member *x)
{
    return x->used > 0 && !x->drained && x->drain_tries < GIVE_TRIES_MAX && !x->suspect &&
           x->answer == 0 && x->subprocess.pid == 0;
}

/* The change for a host that will have n ranks. */
static ek_member_change change_of(const ek_membership *m, const ek_member *x, int64_t n)
{
    if (n == 0 && has_state_to_drain(x))
        return EK_MEMBER_DRAINING;
    if (n == 0 && x->suspect && x->used > 0)
        return EK_MEMBER_EXCLUDED;
    if (n == 0 && x->answer != 0 && (x->used > 0 || (x->listed && !m->begun)))
        return EK_MEMBER_LOST;
    if (n == 0 && x->used > 0)
        return EK_MEMBER_RELEASED;
    return n > 0 && x->used == 0 && m->begun ? EK_MEMBER_JOINED : EK_MEMBER_UNCHANGED;
}

/* Assigns the next n ranks of the job to a host. */
static void add_host(ek_host_list *out, ek_member *x, int64_t n)
{
    x->first = (int)ek_host_list_slots(out);
    out->host[out->n] = x->host;
    out->host[out->n++].slots = n;
}

/* Appends one rank for each draining host; returns their number. */
static int add_draining(ek_membership *m, ek_host_list *out)
{
    int n = 0;

    for (int i = 0; i < m->n; i++)
        if (m->member[i].draining) {
            add_host(out, &m->member[i], 1);
            m->member[i].drain_tries++;
            n++;
        }
    return n;
}

ek_status ek_membership_assign(ek_membership *m, int64_t ranks, ek_host_list *out, int *n_draining)
{
    int64_t now = ek_clock_ns();

    *out = (ek_host_list){.host = calloc((size_t)m->n + 1, sizeof(*out->host))};
    EK_REQUIRE(out->host != NULL, EK_ENOMEM, "no memory for %d hosts", m->n);
    for (int i = 0; i < m->n; i++) {
        ek_member *x = &m->member[i];
        int64_t n = is_usable(x, now) ? x->host.slots : 0;

        n = n < ranks ? n : ranks;
        ranks -= n;
        x->change = change_of(m, x, n);
        x->draining = x->change == EK_MEMBER_DRAINING;
        x->was_leaving = x->draining && x->leaving;
        if (x->draining)
            continue;
        if (x->used > 0 && n == 0)
            release_member(x, now);
        else if (x->used == 0 && n > 0)
            x->since = now;
        x->stepped = x->stepped && x->used > 0 && n > 0;
        x->leaving = x->drained = x->drain_tries = 0;
        x->used = (int)n;
        x->prepared = x->prepared && n == 0;
        if (n > 0)
            add_host(out, x, n);
    }
    *n_draining = add_draining(m, out);
    m->decided = 0;
    m->begun = 1;
    m->used_at = now;
    return EK_OK;
}

/* Why the host counts as lost. */
static void print_reason(const ek_member *x, FILE *f)
{
    if (x->answer == EK_SUBPROCESS_LATE)
        fprintf(f, " (timed out after %.1f s)", x->subprocess.took);
    else if (x->answer == EK_SUBPROCESS_STUCK)
        fprintf(f, " (mpiexec cannot reach it)");
    else if (x->answer == EK_SUBPROCESS_KILLED)
        fprintf(f, " (mpiexec was killed)");
    else
        fprintf(f, " (mpiexec: status %d)", x->answer);
}

static int print_members(const ek_membership *m, ek_member_change change, FILE *f)
{
    int n = 0;

    for (int i = 0; i < m->n; i++) {
        const ek_member *x = &m->member[i];

        if (x->change != change)
            continue;
        fprintf(f, "%s%s", n++ > 0 ? ", " : "", x->host.name);
        if (change == EK_MEMBER_LOST)
            print_reason(x, f);
    }
    return n;
}

void ek_membership_report(const ek_membership *m, FILE *f)
{
    static const struct {
        ek_member_change change;
        const char *one, *many;
    } what[] = {{EK_MEMBER_LOST, "does not respond", "do not respond"},
                {EK_MEMBER_EXCLUDED, "is excluded", "are excluded"},
                {EK_MEMBER_DRAINING, "hands over its state", "hand over their state"},
                {EK_MEMBER_RELEASED, "is released", "are released"},
                {EK_MEMBER_JOINED, "joins", "join"}};

    for (size_t k = 0; k < sizeof(what) / sizeof(what[0]); k++) {
        int n = print_members(m, what[k].change, f);

        if (n > 0)
            fprintf(f, " %s; ", n > 1 ? what[k].many : what[k].one);
    }
}

int ek_membership_changed(const ek_membership *m)
{
    for (int i = 0; i < m->n; i++)
        if (m->member[i].change != EK_MEMBER_UNCHANGED)
            return 1;
    return 0;
}
