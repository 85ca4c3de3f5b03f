/* ek_train: checks arguments, sets the C locale for numbers, and calls hooks in the caller's
 * locale. */
#include "base/entry.h"

#include "evenkeel/train.h"

#include "base/log.h"
#include "base/threads.h"
#include "train/run/state.h"

/* --- hooks ------------------------------------------------------------------------------------ */

typedef struct {
    ek_train_hooks hooks; /* to be called; NULL where the caller has none */
    const ek_train_hooks *given;
    locale_t locale; /* the caller's */
} caller_hooks;

/* The call of one hook. */
#define IN_HOST_LOCALE(call)                                                                       \
    do {                                                                                           \
        locale_t own_ = uselocale(h->locale);                                                      \
        call;                                                                                      \
        uselocale(own_);                                                                           \
    } while (0)

static void call_started(void *context, const ek_train_info *info)
{
    const caller_hooks *h = context;

    IN_HOST_LOCALE(h->given->started(h->given->context, info));
}

static void call_step(void *context, const ek_train_progress *progress)
{
    const caller_hooks *h = context;

    IN_HOST_LOCALE(h->given->step(h->given->context, progress));
}

static void call_tokenising(void *context, int64_t bytes_done, int64_t bytes_total)
{
    const caller_hooks *h = context;

    IN_HOST_LOCALE(h->given->tokenising(h->given->context, bytes_done, bytes_total));
}

static int call_stop(void *context)
{
    const caller_hooks *h = context;
    int stop;

    IN_HOST_LOCALE(stop = h->given->stop(h->given->context));
    return stop;
}

static void call_layer(void *context, const ek_train_layer *layer)
{
    const caller_hooks *h = context;

    IN_HOST_LOCALE(h->given->layer(h->given->context, layer));
}

static void call_cost(void *context, const ek_train_cost *cost)
{
    const caller_hooks *h = context;

    IN_HOST_LOCALE(h->given->cost(h->given->context, cost));
}

static void call_phase(void *context, const char *name)
{
    const caller_hooks *h = context;

    IN_HOST_LOCALE(h->given->phase(h->given->context, name));
}

static void call_evaluating(void *context, int64_t windows_done, int64_t windows)
{
    const caller_hooks *h = context;

    IN_HOST_LOCALE(h->given->evaluating(h->given->context, windows_done, windows));
}

static void call_warning(void *context, ek_log_level level, const char *component,
                         const char *message)
{
    const caller_hooks *h = context;

    (void)level, (void)component;
    IN_HOST_LOCALE(h->given->warning(h->given->context, message));
}

_Static_assert(sizeof(ek_train_hooks) == offsetof(ek_train_hooks, warning) + sizeof(void (*)(void)),
               "every hook has its call_ above");

static void init_hooks(caller_hooks *h, const ek_train_hooks *given, locale_t locale)
{
    static const ek_train_hooks none = {0};

    if (given == NULL)
        given = &none;
    *h = (caller_hooks){
        .hooks = {.context = h,
                  .started = given->started != NULL ? call_started : NULL,
                  .step = given->step != NULL ? call_step : NULL,
                  .tokenising = given->tokenising != NULL ? call_tokenising : NULL,
                  .stop = given->stop != NULL ? call_stop : NULL,
                  .layer = given->layer != NULL ? call_layer : NULL,
                  .cost = given->cost != NULL ? call_cost : NULL,
                  .phase = given->phase != NULL ? call_phase : NULL,
                  .evaluating = given->evaluating != NULL ? call_evaluating : NULL},
        .given = given,
        .locale = locale,
    };
}

/* --- arguments -------------------------------------------------------------------------------- */

static ek_status check_list(const char *name, const char *const *list, int64_t n)
{
    EK_REQUIRE(n >= 0, EK_EINVAL, "ek_train_config: %lld entries in %s", (long long)n, name);
    EK_REQUIRE(n == 0 || list != NULL, EK_EINVAL, "ek_train_config: %s is NULL", name);
    for (int64_t i = 0; i < n; i++)
        EK_REQUIRE(list[i] != NULL, EK_EINVAL, "ek_train_config: entry %lld of %s is NULL",
                   (long long)i, name);
    return EK_OK;
}

static ek_status check_config(const ek_train_config *c)
{
    const struct {
        const char *name, *value;
    } texts[] = {{"model", c->model},
                 {"out", c->out},
                 {"data_order", c->data_order},
                 {"lr_schedule", c->lr_schedule},
                 {"recompute", c->recompute},
                 {"adaptive_r", c->adaptive_r},
                 {"a2a", c->a2a},
                 {"balance", c->balance},
                 {"reroute", c->reroute}};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        EK_REQUIRE(texts[i].value != NULL, EK_EINVAL,
                   "ek_train_config: %s is NULL; set it, or begin with EK_TRAIN_CONFIG_INIT",
                   texts[i].name);
    EK_TRY(check_list("data", c->data, c->n_data));
    EK_TRY(check_list("eval_data", c->eval_data, c->n_eval_data));
    return check_list("command", c->command, c->n_command);
}

ek_status ek_train(const ek_train_config *cfg, const ek_train_hooks *hooks, ek_train_summary *out)
{
    EK_C_LOCALE;
    caller_hooks caller;
    ek_status st;

    EK_NOT_NULL(cfg);
    EK_NOT_NULL(out);
    *out = (ek_train_summary){0};
    EK_REQUIRE(cfg->size == sizeof(*cfg), EK_EINVAL,
               "ek_train_config is %zu bytes, this library expects %zu", cfg->size, sizeof(*cfg));
    EK_TRY(check_config(cfg));
    EK_TRY(ek_stack_check());
    init_hooks(&caller, hooks, host_locale);
    if (hooks != NULL && hooks->warning != NULL) /* else the command's own sink stays */
        ek_log_set_sink(call_warning, &caller, EK_LOG_WARN);
    st = ek_run_execute(cfg, &caller.hooks, out);
    if (hooks != NULL && hooks->warning != NULL)
        ek_log_set_sink(NULL, NULL, EK_LOG_WARN);
    return st;
}
