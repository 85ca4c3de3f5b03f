/* EK_TRAIN_CONFIG_INIT lists values in the order of the fields: none may be in another's place. */
#include "evenkeel/train.h"

#include "ek_test.h"

static int same_text(const char *a, const char *b)
{
    return (a == NULL) == (b == NULL) && (a == NULL || strcmp(a, b) == 0);
}

#define SAME_TEXT(field)    CHECK(same_text(got.field, want.field))
#define SAME_NUMBER(field)  CHECK(got.field >= want.field && got.field <= want.field)
#define SAME_POINTER(field) CHECK(got.field == want.field)

static void initialiser_gives_each_field_its_default(void)
{
    static const ek_train_config got = EK_TRAIN_CONFIG_INIT;
    static const ek_train_config want = {.size = sizeof(ek_train_config),
                                         .model = "tiny",
                                         .out = "run",
                                         .token_bytes = 2,
                                         .data_order = "shuffled",
                                         .lr = 1e-3,
                                         .min_lr = -1,
                                         .lr_schedule = "cosine",
                                         .warmup = -1,
                                         .wd = 0.1,
                                         .beta1 = 0.9,
                                         .beta2 = 0.95,
                                         .eps = 1e-8,
                                         .clip = 1.0,
                                         .aux_coef = 0.01,
                                         .recompute = "off",
                                         .save_every = -1,
                                         .keep = 2,
                                         .timeline_from = -1,
                                         .timeline_steps = 10,
                                         .pp = 1,
                                         .tp = 1,
                                         .ep = 1,
                                         .etp = 1,
                                         .adaptive_r = "etp",
                                         .chunks = 1,
                                         .a2a = "auto",
                                         .balance = "auto",
                                         .spare_slots = -1,
                                         .plan_every = 10,
                                         .host_mtbf = 24,
                                         .prefer = "speed",
                                         .reroute = "off",
                                         .reroute_limit = 0.14,
                                         .watchdog = 300,
                                         .device = "cpu",
                                         .text_field = "text",
                                         .eval_tokens = 131072};

    SAME_NUMBER(size);
    SAME_TEXT(model);
    SAME_TEXT(init);
    SAME_TEXT(tokenizer);
    SAME_TEXT(out);
    SAME_POINTER(data);
    SAME_NUMBER(n_data);
    SAME_NUMBER(token_bytes);
    SAME_NUMBER(batch);
    SAME_NUMBER(seq);
    SAME_NUMBER(micro_batch);
    SAME_NUMBER(steps);
    SAME_TEXT(data_order);
    SAME_NUMBER(seed);
    SAME_NUMBER(lr);
    SAME_NUMBER(min_lr);
    SAME_TEXT(lr_schedule);
    SAME_NUMBER(warmup);
    SAME_NUMBER(wd);
    SAME_NUMBER(beta1);
    SAME_NUMBER(beta2);
    SAME_NUMBER(eps);
    SAME_NUMBER(clip);
    SAME_NUMBER(aux_coef);
    SAME_NUMBER(z_coef);
    SAME_NUMBER(capacity_factor);
    SAME_NUMBER(top_k);
    SAME_TEXT(recompute);
    SAME_TEXT(dtype);
    SAME_TEXT(device);
    SAME_NUMBER(threads);
    SAME_NUMBER(save_every);
    SAME_NUMBER(keep);
    SAME_NUMBER(resume);
    SAME_NUMBER(timeline);
    SAME_NUMBER(timeline_from);
    SAME_NUMBER(timeline_steps);
    SAME_NUMBER(record_routing);
    SAME_NUMBER(record_plans);
    SAME_NUMBER(elastic);
    SAME_POINTER(supervised);
    SAME_POINTER(world);
    SAME_NUMBER(pp);
    SAME_NUMBER(tp);
    SAME_NUMBER(ep);
    SAME_NUMBER(etp);
    SAME_TEXT(adaptive_r);
    SAME_NUMBER(zero);
    SAME_NUMBER(embed_columns);
    SAME_NUMBER(chunks);
    SAME_NUMBER(pipeline_degree);
    SAME_NUMBER(smart_group);
    SAME_TEXT(a2a);
    SAME_NUMBER(force_balance);
    SAME_TEXT(balance);
    SAME_NUMBER(spare_slots);
    SAME_NUMBER(plan_every);
    SAME_TEXT(cache);
    SAME_NUMBER(recalibrate);
    SAME_NUMBER(replicas_min);
    SAME_NUMBER(host_mtbf);
    SAME_TEXT(prefer);
    SAME_POINTER(rack_of);
    SAME_TEXT(replay_routing);
    SAME_TEXT(reroute);
    SAME_NUMBER(reroute_limit);
    SAME_NUMBER(watchdog);
    SAME_TEXT(text_field);
    SAME_NUMBER(document_mask);
    SAME_NUMBER(override);
    SAME_NUMBER(overwrite);
    SAME_POINTER(command);
    SAME_NUMBER(n_command);
    SAME_TEXT(caller_settings);
    SAME_POINTER(eval_data);
    SAME_NUMBER(n_eval_data);
    SAME_NUMBER(eval_every);
    SAME_NUMBER(eval_tokens);
    SAME_NUMBER(patience);
    SAME_NUMBER(save_seconds);
    SAME_TEXT(top_k_schedule);
    SAME_TEXT(capacity_schedule);
    SAME_NUMBER(dry_run);
}

/* clang-format off */
static const ek_case cases[] = {
    EK_CASE(initialiser_gives_each_field_its_default),
};
/* clang-format on */
EK_TEST_MAIN(cases)
