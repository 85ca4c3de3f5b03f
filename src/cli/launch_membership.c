/* The hosts of a job with --elastic: who is on the list, who answers, who takes part.
 *
 * A host answers when mpiexec can start evenkeel on it and hears of its end.  All are asked at
 * once, each through an mpiexec of its own, so that one that is silent holds nobody up for long:
 * when others have answered, the rest has ten times as long as they took. */
#include "base/clock.h"
#include "base/file.h"
#include "cli/launch_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double answer_s = 15, answer_least_s = 1.5, answer_factor = 10;
/* Before the first start of a command, which most often has no work that waits for it. */
static const double first_answer_least_s = 5;
/* To get memory ready, which may be all that a host has; and to give that back. */
static const double prepare_s = 600, give_back_s = 5;
/* So long those that are ready wait for others that are not. */
static const double together_s = 20;
/* How often a list is read, a command asked for it, and a host that takes no part asked again. */
static const double read_every_s = 1, discover_every_s = 5, ask_every_s = 2, discover_s = 30;
/* A host that was lost waits so long, and each time twice as long when it was lost soon after it
 * had come; one that is about to go is given that time. */
static const double back_s = 2, soon_s = 60, going_s = 60;
/* One that could not take part: somebody has to mend that. */
static const double refused_s = 60;
enum { BACK_DOUBLES_MAX = 5, GIVE_TRIES_MAX = 2 };

static int64_t after(int64_t now, double s)
{
    return now + (int64_t)(s * 1e9);
}

/* --- the list --------------------------------------------------------------------------------- */

static launch_member *find(launch_membership *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->member[i].host.name, name) == 0)
            return &m->member[i];
    return NULL;
}

/* Runs evenkeel on a host, with these arguments. */
static ek_status run_on(const launch_membership *m, launch_member *x, char **argv, int argc,
                        double s)
{
    char host[LAUNCH_HOST_CAP + 2];

    snprintf(host, sizeof(host), "%s:1", x->host.name);
    return launch_subprocess_run(&x->subprocess, m->l, m->mpiexec, 1, host, argv, argc, s);
}

/* Ends what is asked of a host, and has it give back memory that it may have made ready and that
 * was not used. */
static void take_back(const launch_membership *m, launch_member *x)
{
    char command[] = "reserve";
    char *argv[] = {command, (char *)(uintptr_t)m->run, (char *)(uintptr_t)m->supervisor_id};

    launch_subprocess_end(&x->subprocess);
    if (x->owes)
        (void)!run_on(m, x, argv, 3, give_back_s);
    x->owes = x->preparing = x->prepared = 0;
}

/* Hosts that are not named any more, and take no part, are forgotten, once they owe nothing. */
static void forget(launch_membership *m)
{
    int n = 0;

    for (int i = 0; i < m->n; i++) {
        launch_member *x = &m->member[i];
        int gone = !x->listed && x->used == 0;

        if (gone && x->owes)
            take_back(m, x);
        else if (gone && !x->gives_back)
            launch_subprocess_end(&x->subprocess);
        x->gives_back = gone && x->subprocess.pid > 0;
        if (!gone || x->gives_back)
            m->member[n++] = *x;
    }
    m->n = n;
}

/* Takes a list.  Of a host that is named twice the slots add up. */
static ek_status take_list(launch_membership *m, const launch_hosts *h)
{
    launch_member *grown = realloc(m->member, (size_t)(m->n + h->n) * sizeof(*grown));

    EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for %d hosts", m->n + h->n);
    m->member = grown;
    for (int i = 0; i < m->n; i++)
        grown[i].listed = 0;
    for (int i = 0; i < h->n; i++) {
        launch_member *x = find(m, h->host[i].name);

        if (x != NULL && x->listed) {
            x->host.slots += h->host[i].slots;
            continue;
        }
        if (x == NULL) {
            x = &m->member[m->n++];
            *x = (launch_member){.subprocess = {.out = -1}, .number = m->numbers++};
        }
        x->host = h->host[i];
        x->listed = 1;
    }
    forget(m);
    return EK_OK;
}

static ek_status begin_discover(launch_membership *m)
{
    char shell[] = "/bin/sh", c[] = "-c";
    char *argv[] = {shell, c, (char *)(uintptr_t)m->l->discover, NULL};

    return launch_subprocess_begin(&m->discover, argv, 1, discover_s);
}

static ek_status end_discover(launch_membership *m, int status)
{
    char *text = status == 0 ? launch_subprocess_said(&m->discover) : NULL;
    launch_hosts h = {0};
    ek_status st = EK_OK;

    launch_subprocess_end(&m->discover);
    EK_REQUIRE(status == 0, EK_EFORMAT,
               "--discover: \"%s\" %s%d; it must print hosts, one per line, and exit with status 0",
               m->l->discover,
               status >= LAUNCH_SUBPROCESS_KILLED ? "was killed, or took more seconds than "
                                                  : "exited with status ",
               status >= LAUNCH_SUBPROCESS_KILLED ? (int)discover_s : status);
    EK_REQUIRE(text != NULL, EK_ENOMEM, "no memory for what --discover says");
    st = launch_hosts_parse("--discover", text, &h);
    free(text);
    EK_TRY(st);
    st = take_list(m, &h);
    launch_hosts_free(&h);
    return st;
}

/* A file is read at once; a command is asked and answers later. */
static ek_status read_list(launch_membership *m)
{
    launch_hosts h;
    ek_status st;

    if (m->l->discover != NULL)
        return m->discover.pid > 0 ? EK_OK : begin_discover(m);
    EK_TRY(launch_hosts_read(m->l->hosts, &h));
    st = take_list(m, &h);
    launch_hosts_free(&h);
    return st;
}

/* A list that cannot be read does not end a run that goes well: said once. */
static void excuse(launch_membership *m, ek_status st)
{
    if (st < 0 && !m->excused)
        fprintf(stderr, "evenkeel %s: %s; keeping the current hosts\n", m->l->command,
                ek_err_message());
    m->excused = st < 0;
}

/* --- asking ----------------------------------------------------------------------------------- */

/* Whether it reaches all that take part. */
static ek_status ask_links(const launch_membership *m, launch_member *x)
{
    const char **host = calloc((size_t)m->n, sizeof(*host));
    int n = 0;
    ek_status st;

    EK_REQUIRE(host != NULL, EK_ENOMEM, "no memory for %d hosts", m->n);
    host[n++] = x->host.name;
    for (int i = 0; i < m->n; i++)
        if (m->member[i].used > 0)
            host[n++] = m->member[i].host.name;
    st = launch_connectivity_try(&x->subprocess, m->l, m->mpiexec, m->start_s, host, n);
    free(host);
    return st;
}

/* linking: if a job is under way, whose hosts one that is suspect has to reach. */
static ek_status ask(launch_membership *m, launch_member *x, int linking)
{
    char version[] = "--version";
    char *argv[] = {version};

    x->answer = LAUNCH_SUBPROCESS_OUT;
    x->asked = m->round;
    x->preparing = 0;
    x->linking = linking && x->suspect;
    return x->linking ? ask_links(m, x) : run_on(m, x, argv, 1, answer_s);
}

/* Each such question costs those at work some time. */
static void note_links(launch_member *x, int64_t now, int status)
{
    x->linking = 0;
    x->suspect = status != 0;
    x->refusals = status != 0 ? x->refusals + 1 : 0;
    x->ask_at = after(now, ask_every_s * (double)(1 << (x->refusals < 5 ? x->refusals : 5)));
}

/* Whether it is known, by now, whether the host answers.  One that could not get ready is asked
 * again at once: it may be gone, or have no room, which is no reason to do without it. */
static int heard(launch_member *x, int64_t now)
{
    int status;

    if (x->subprocess.pid == 0)
        return 1;
    status = launch_subprocess_look(&x->subprocess);
    if (status == LAUNCH_SUBPROCESS_OUT)
        return 0;
    x->answer = status;
    x->ask_at = x->preparing && status != 0 ? now : after(now, ask_every_s);
    if (x->linking)
        note_links(x, now, status);
    x->prepared = x->preparing || (x->prepared && status == 0);
    x->preparing = 0;
    return 1;
}

ek_status launch_membership_ask(launch_membership *m)
{
    excuse(m, read_list(m));
    m->slowest_s = 0;
    m->round++;
    for (int i = 0; i < m->n; i++) {
        launch_member *x = &m->member[i];

        launch_subprocess_end(&x->subprocess);
        if (x->listed || x->used > 0) /* what it has is asked for, too */
            EK_TRY(ask(m, x, 0));
    }
    return EK_OK;
}

/* A command may name new ones meanwhile. */
static ek_status ask_new(launch_membership *m)
{
    int status = m->discover.pid > 0 ? launch_subprocess_look(&m->discover) : LAUNCH_SUBPROCESS_OUT;

    if (status == LAUNCH_SUBPROCESS_OUT)
        return EK_OK;
    excuse(m, end_discover(m, status));
    for (int i = 0; i < m->n; i++)
        if (m->member[i].listed && m->member[i].asked != m->round)
            EK_TRY(ask(m, &m->member[i], 0));
    return EK_OK;
}

/* Before the first start nothing else waits, and an mpiexec that fails once may not the next time.
 */
static int is_asked_again(const launch_membership *m, launch_member *x)
{
    int is = !m->begun && !x->again && x->answer != LAUNCH_SUBPROCESS_LATE;

    x->again |= is;
    return is;
}

ek_status launch_membership_asked(launch_membership *m, int *asked)
{
    int64_t now = ek_clock_ns();
    int waiting = 0, there = 0;
    double patience, least = m->used_at == 0 ? first_answer_least_s : answer_least_s;

    EK_TRY(ask_new(m));
    for (int i = 0; i < m->n; i++) {
        launch_member *x = &m->member[i];

        if (!heard(x, now)) {
            waiting++;
        } else if (x->answer == 0) {
            there++;
            m->slowest_s = x->subprocess.took > m->slowest_s ? x->subprocess.took : m->slowest_s;
        } else if (is_asked_again(m, x)) {
            EK_TRY(ask(m, x, 0));
            waiting++;
        }
    }
    patience = answer_factor * m->slowest_s;
    patience = patience > least ? patience : least;
    for (int i = 0; i < m->n && waiting > 0 && there > 0; i++)
        if (m->member[i].subprocess.pid > 0)
            m->member[i].subprocess.limit =
                m->member[i].subprocess.begin + (int64_t)(patience * 1e9);
    *asked = waiting == 0 && (there > 0 || m->discover.pid == 0);
    return EK_OK;
}

static int is_to_go(const launch_member *x)
{
    return !x->listed || x->leaving;
}

/* Whether it could take part. */
static int usable(const launch_member *x, int64_t now)
{
    return !is_to_go(x) && !x->suspect && x->answer == 0 && x->subprocess.pid == 0 &&
           (x->used > 0 || now >= x->back_at);
}

/* --- who reaches whom ---------------------------------------------------------------------------
 */

ek_status launch_membership_link(launch_membership *m)
{
    launch_connectivity *k = &m->links;
    int silent = 0;

    *k = (launch_connectivity){.l = m->l, .mpiexec = m->mpiexec, .start_s = m->start_s};
    k->host = calloc((size_t)m->n, sizeof(*k->host));
    m->linked = calloc((size_t)m->n, sizeof(*m->linked));
    EK_REQUIRE(k->host != NULL && m->linked != NULL, EK_ENOMEM, "no memory for %d hosts", m->n);
    for (int go = 0; go < 2; go++) /* of equals the last one is left out */
        for (int i = 0; i < m->n; i++)
            if (m->member[i].used > 0 && is_to_go(&m->member[i]) == go) {
                k->host[k->n] = m->member[i].host.name;
                m->linked[k->n++] = i;
                silent += m->member[i].answer != 0;
            }
    k->n = silent > 0 ? 0 : k->n; /* which is reason enough */
    return k->n > 1 ? launch_connectivity_begin(k) : EK_OK;
}

static void end_links(launch_membership *m)
{
    launch_connectivity_end(&m->links);
    free(m->links.host);
    free(m->linked);
    m->links = (launch_connectivity){0};
    m->linked = NULL;
}

static void say_cuts(const launch_membership *m, int which, const unsigned char *out)
{
    int n = 0;

    fprintf(stderr, "evenkeel %s: %s and ", m->l->command, m->links.host[which]);
    for (int i = 0; i < m->links.n; i++)
        if (!out[i] && launch_connectivity_cut(&m->links, which, i))
            fprintf(stderr, "%s%s", n++ > 0 ? ", " : "", m->links.host[i]);
    fprintf(stderr, "%s cannot reach each other\n", n > 0 ? "" : "others");
}

ek_status launch_membership_linked(launch_membership *m, int *known)
{
    unsigned char *out;
    int n;

    *known = 1;
    if (m->links.n > 1)
        EK_TRY(launch_connectivity_look(&m->links, known));
    if (!*known)
        return EK_OK;
    out = calloc((size_t)m->n, 1);
    EK_REQUIRE(out != NULL, EK_ENOMEM, "no memory for %d hosts", m->n);
    n = m->links.n > 1 ? launch_connectivity_choose(&m->links, out) : 0;
    for (int i = 0; n > 0 && i < m->links.n; i++)
        if (out[i]) {
            say_cuts(m, i, out);
            m->member[m->linked[i]].suspect = 1;
        }
    free(out);
    end_links(m);
    return EK_OK;
}

void launch_membership_trust(launch_membership *m)
{
    for (int i = 0; i < m->n; i++)
        m->member[i].suspect = m->member[i].leaving = 0;
}

/* --- memory for what is to come: see elastic/prealloc.h
 * ---------------------------------------------
 */

void launch_membership_know_memory(launch_membership *m, const char *text)
{
    if (sscanf(text, "%31s %543s", m->run, m->pieces) != 2)
        m->pieces[0] = '\0';
}

/* The more of a host's slots, the more ranks it has to have memory for. */
static ek_status prepare(launch_membership *m, launch_member *x)
{
    char command[] = "reserve", number[16], ranks[24];
    ek_path out;
    char *argv[] = {command, m->run, m->supervisor_id, number, ranks, m->pieces, out.s};

    EK_TRY(ek_path_absolute(m->l->out, &out));
    snprintf(number, sizeof(number), "%d", x->number);
    snprintf(ranks, sizeof(ranks), "%lld", (long long)x->host.slots);
    EK_TRY(run_on(m, x, argv, 7, prepare_s));
    x->preparing = x->owes = 1;
    return EK_OK;
}

/* Slots of hosts that take part, or have got ready to. */
static int64_t slots_to_be(const launch_membership *m)
{
    int64_t n = 0;

    for (int i = 0; i < m->n; i++) {
        const launch_member *x = &m->member[i];

        n += x->used > 0 || x->prepared || x->preparing ? x->host.slots : 0;
    }
    return n;
}

int launch_membership_prepare(launch_membership *m)
{
    int64_t now = ek_clock_ns(), wanted = m->l->ranks > 0 ? m->l->ranks : INT64_MAX;
    int begun = 0;

    for (int i = 0; i < m->n && m->pieces[0] != '\0' && slots_to_be(m) < wanted; i++) {
        launch_member *x = &m->member[i];

        if (x->used > 0 || x->prepared || !usable(x, now))
            continue;
        x->prepared = prepare(m, x) < 0; /* then without */
        begun += !x->prepared;
    }
    return begun > 0;
}

void launch_membership_clear_flags(launch_membership *m)
{
    for (int i = 0; i < m->n; i++) {
        launch_member *x = &m->member[i];

        x->owes = x->owes && x->used == 0;
        x->stepped |= x->used > 0;
    }
}

/* At the end. */
static void give_back(launch_membership *m, double seconds)
{
    int64_t end = after(ek_clock_ns(), seconds);
    int waiting = 1;

    for (int i = 0; i < m->n; i++)
        if (!m->member[i].gives_back)
            take_back(m, &m->member[i]);
    while (waiting > 0 && ek_clock_ns() < end) {
        struct timespec nap = {0, 2000000};

        waiting = 0;
        for (int i = 0; i < m->n; i++)
            waiting += !heard(&m->member[i], end);
        if (waiting > 0)
            nanosleep(&nap, NULL);
    }
}

ek_status launch_membership_open(launch_membership *m, const launch *l, const char *mpiexec,
                                 uint64_t supervisor_id)
{
    *m = (launch_membership){.l = l, .mpiexec = mpiexec, .discover = {.out = -1}};
    snprintf(m->supervisor_id, sizeof(m->supervisor_id), "%016" PRIx64, supervisor_id);
    return read_list(m);
}

ek_status launch_membership_known(launch_membership *m, int *known)
{
    int status = m->n == 0 ? launch_subprocess_look(&m->discover) : 0;

    *known = status != LAUNCH_SUBPROCESS_OUT;
    return *known && m->n == 0 ? end_discover(m, status) : EK_OK;
}

void launch_membership_close(launch_membership *m, double seconds)
{
    give_back(m, seconds);
    for (int i = 0; i < m->n; i++)
        launch_subprocess_end(&m->member[i].subprocess);
    launch_subprocess_end(&m->discover);
    end_links(m);
    free(m->member);
    *m = (launch_membership){.discover = {.out = -1}};
}

/* --- while a job runs ------------------------------------------------------------------------- */

static void tend_list(launch_membership *m, int64_t now)
{
    if (m->discover.pid > 0) {
        int status = launch_subprocess_look(&m->discover);

        if (status != LAUNCH_SUBPROCESS_OUT)
            excuse(m, end_discover(m, status));
    } else if (now >= m->read_at) {
        m->read_at = after(now, m->l->discover != NULL ? discover_every_s : read_every_s);
        excuse(m, read_list(m));
    }
}

void launch_membership_poll(launch_membership *m)
{
    int64_t now = ek_clock_ns();

    tend_list(m, now);
    for (int i = 0; i < m->n; i++) {
        launch_member *x = &m->member[i];

        if (x->used == 0 && heard(x, now) && x->listed && now >= x->ask_at && ask(m, x, 1) < 0)
            x->ask_at = after(now, ask_every_s);
    }
}

int64_t launch_membership_slots(const launch_membership *m)
{
    int64_t n = 0, now = ek_clock_ns();

    for (int i = 0; i < m->n; i++)
        n += usable(&m->member[i], now) ? m->member[i].host.slots : 0;
    return n;
}

int launch_membership_asking(const launch_membership *m)
{
    int64_t now = ek_clock_ns();

    for (int i = 0; i < m->n; i++) {
        const launch_member *x = &m->member[i];

        if (x->used == 0 && x->listed && x->subprocess.pid > 0 &&
            now < after(x->subprocess.begin, x->preparing ? together_s : answer_least_s))
            return 1;
    }
    return 0;
}

int64_t launch_membership_listed_slots(const launch_membership *m)
{
    int64_t n = 0;

    for (int i = 0; i < m->n; i++)
        n += m->member[i].listed ? m->member[i].host.slots : 0;
    return n;
}

int launch_membership_leave(const launch_membership *m)
{
    for (int i = 0; i < m->n; i++)
        if (m->member[i].used > 0 && is_to_go(&m->member[i]))
            return 1;
    return 0;
}

void launch_membership_notice(launch_membership *m, int rank)
{
    for (int i = 0; i < m->n && !m->decided; i++) {
        launch_member *x = &m->member[i];

        if (rank >= x->first && rank < x->first + (x->giving ? 1 : x->used))
            x->leaving = 1;
    }
}

void launch_membership_forget_notices(launch_membership *m)
{
    for (int i = 0; i < m->n; i++)
        m->member[i].leaving = m->member[i].left_before;
}

void launch_membership_decide(launch_membership *m)
{
    m->decided = 1;
}

void launch_membership_given(launch_membership *m)
{
    for (int i = 0; i < m->n; i++) {
        m->member[i].given |= m->member[i].giving;
        m->member[i].giving = 0;
    }
}

/* --- who takes part --------------------------------------------------------------------------- */

/* A host was lost, or as good as that; for how many seconds it is left alone. */
static double put_off(launch_member *x, int64_t now)
{
    int doubles = x->losses < BACK_DOUBLES_MAX ? x->losses : BACK_DOUBLES_MAX;
    double s = back_s * (double)(1 << doubles);

    x->back_at = after(now, s);
    x->losses = now - x->since < after(0, soon_s) ? x->losses + 1 : 0;
    return s;
}

/* A host that took part does not any more. */
static void let_go(launch_member *x, int64_t now)
{
    if (x->answer != 0 || x->suspect)
        put_off(x, now);
    else
        x->back_at = x->leaving ? after(now, going_s) : now;
}

const char *launch_membership_refuse(launch_membership *m, int rank, double *s)
{
    launch_member *refused = NULL;
    int stepped = 0;

    for (int i = 0; i < m->n; i++) {
        launch_member *x = &m->member[i];

        stepped += x->used > 0 && x->stepped;
        if (rank >= x->first && rank < x->first + x->used && !x->stepped)
            refused = x;
    }
    if (refused == NULL || stepped == 0)
        return NULL;
    *s = refused_s;
    refused->back_at = after(ek_clock_ns(), refused_s);
    refused->used = 0;
    return refused->host.name;
}

void launch_membership_doubt(launch_membership *m)
{
    int64_t now = ek_clock_ns();
    int older = 0;

    for (int i = 0; i < m->n; i++)
        older += m->member[i].used > 0 && m->member[i].since < m->used_at;
    for (int i = 0; i < m->n && older > 0; i++) {
        launch_member *x = &m->member[i];

        if (x->used == 0 || x->since < m->used_at)
            continue;
        fprintf(stderr,
                "evenkeel %s: no step was completed with %s, which is excluded for %.0f s\n",
                m->l->command, x->host.name, put_off(x, now));
        x->used = 0;
        x->suspect = 1;
    }
}

/* Whether a host that gets no rank has something to hand over, and may be able to. */
static int has_to_give(const launch_member *x)
{
    return x->used > 0 && !x->given && x->tries < GIVE_TRIES_MAX && !x->suspect && x->answer == 0 &&
           x->subprocess.pid == 0;
}

/* What there is to say of a host that is to have n ranks. */
static launch_change change_of(const launch_membership *m, const launch_member *x, int64_t n)
{
    if (n == 0 && has_to_give(x))
        return LAUNCH_GIVING;
    if (n == 0 && x->suspect && x->used > 0)
        return LAUNCH_LEFT_OUT;
    if (n == 0 && x->answer != 0 && (x->used > 0 || (x->listed && !m->begun)))
        return LAUNCH_LOST;
    if (n == 0 && x->used > 0)
        return LAUNCH_GIVEN_BACK;
    return n > 0 && x->used == 0 && m->begun ? LAUNCH_JOINED : LAUNCH_UNCHANGED;
}

/* The next ranks of the job are those of a host, n of them. */
static void add_host(launch_hosts *out, launch_member *x, int64_t n)
{
    x->first = (int)launch_hosts_slots(out);
    out->host[out->n] = x->host;
    out->host[out->n++].slots = n;
}

/* Those that give stand behind the others; their number. */
static int add_draining(launch_membership *m, launch_hosts *out)
{
    int n = 0;

    for (int i = 0; i < m->n; i++)
        if (m->member[i].giving) {
            add_host(out, &m->member[i], 1);
            m->member[i].tries++;
            n++;
        }
    return n;
}

ek_status launch_membership_use(launch_membership *m, int64_t ranks, launch_hosts *out,
                                int *n_draining)
{
    int64_t now = ek_clock_ns();

    *out = (launch_hosts){.host = calloc((size_t)m->n + 1, sizeof(*out->host))};
    EK_REQUIRE(out->host != NULL, EK_ENOMEM, "no memory for %d hosts", m->n);
    for (int i = 0; i < m->n; i++) {
        launch_member *x = &m->member[i];
        int64_t n = usable(x, now) ? x->host.slots : 0;

        n = n < ranks ? n : ranks;
        ranks -= n;
        x->change = change_of(m, x, n);
        x->giving = x->change == LAUNCH_GIVING;
        x->left_before = x->giving && x->leaving;
        if (x->giving)
            continue;
        if (x->used > 0 && n == 0)
            let_go(x, now);
        else if (x->used == 0 && n > 0)
            x->since = now;
        x->stepped = x->stepped && x->used > 0 && n > 0;
        x->leaving = x->given = x->tries = 0;
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

/* Why it is taken for lost. */
static void say_why(const launch_member *x, FILE *f)
{
    if (x->answer == LAUNCH_SUBPROCESS_LATE)
        fprintf(f, " (timed out after %.1f s)", x->subprocess.took);
    else if (x->answer == LAUNCH_SUBPROCESS_STUCK)
        fprintf(f, " (mpiexec cannot reach it)");
    else if (x->answer == LAUNCH_SUBPROCESS_KILLED)
        fprintf(f, " (mpiexec was killed)");
    else
        fprintf(f, " (mpiexec: status %d)", x->answer);
}

static int name_those(const launch_membership *m, launch_change change, FILE *f)
{
    int n = 0;

    for (int i = 0; i < m->n; i++) {
        const launch_member *x = &m->member[i];

        if (x->change != change)
            continue;
        fprintf(f, "%s%s", n++ > 0 ? ", " : "", x->host.name);
        if (change == LAUNCH_LOST)
            say_why(x, f);
    }
    return n;
}

void launch_membership_report(const launch_membership *m, FILE *f)
{
    static const struct {
        launch_change change;
        const char *one, *many;
    } what[] = {{LAUNCH_LOST, "does not respond", "do not respond"},
                {LAUNCH_LEFT_OUT, "is excluded", "are excluded"},
                {LAUNCH_GIVING, "hands over its state", "hand over their state"},
                {LAUNCH_GIVEN_BACK, "is released", "are released"},
                {LAUNCH_JOINED, "joins", "join"}};

    for (size_t k = 0; k < sizeof(what) / sizeof(what[0]); k++) {
        int n = name_those(m, what[k].change, f);

        if (n > 0)
            fprintf(f, " %s; ", n > 1 ? what[k].many : what[k].one);
    }
}

int launch_membership_changed(const launch_membership *m)
{
    for (int i = 0; i < m->n; i++)
        if (m->member[i].change != LAUNCH_UNCHANGED)
            return 1;
    return 0;
}
