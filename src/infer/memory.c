/* What inference needs, from the arenas of a model, a session and a pass that are only measured. */
#include "infer/memory.h"

#include "base/count_text.h"
#include "base/memory_limit.h"
#include "infer/evaluate.h"
#include "infer/session.h"
#include "model/hf/expert_files.h"
#include "model/hf/fill.h"
#include "model/step/pass.h"
#include "tensor/select/select.h"

#include <stdio.h>

enum {
    READ_AHEAD_BYTES = 48 << 20, /* pages of files that cannot be read past the page cache */
    HINT_CAP = 256
};

ek_status ek_infer_measure(const ek_model_spec *spec, const ek_kernels *k, int64_t positions,
                           ek_expert_room room, ek_infer_bytes *out)
{
    ek_model_config cfg = {.trained = 0, .experts_elsewhere = room.slots > 0, .never_touched = 1};
    ek_session_config sc = {.capacity = positions};
    int64_t most = spec->layers * spec->experts;
    int64_t later, filling = (int64_t)ek_model_fill_bytes(k);
    ek_model *m = NULL;
    size_t session = 0;
    ek_status st = EK_OK;

    EK_TRY(ek_model_create(spec, k, &cfg, &m));
    if (positions > 0)
        EK_TRY_OUT(ek_session_measure(m, &sc, &session));
    *out = (ek_infer_bytes){.weights = (int64_t)(m->arena.used + m->tables.used),
                            .session = (int64_t)session};
    if (ek_model_next_moe(m, -1) < spec->layers) {
        out->slot = (int64_t)ek_expert_files_slot_bytes(m);
        out->other = room.slots > 0 ? (int64_t)ek_expert_files_buffer_bytes(m, room.buffers) : 0;
    }
    later = out->slot * (room.slots < most ? room.slots : most);
    out->weights += later;
    later += out->session + out->other; /* after the buffers that weights are read with are free */
    out->other += filling > later ? filling - later : 0;
out:
    ek_model_destroy(&m);
    return st;
}

static int64_t sum_bytes(const ek_infer_bytes *b)
{
    return b->weights + b->session + b->other;
}

static int fits(const ek_memory_limit *limit, int64_t more)
{
    return limit->kind == EK_LIMIT_UNKNOWN || more <= limit->left;
}

/* The most expert slots beside so many buffers with which the model and `more` bytes fit; 0: fewer
 * than a token needs. */
static int64_t most_slots(const ek_memory_limit *limit, const ek_model_spec *spec,
                          const ek_kernels *k, int64_t positions, int64_t buffers, int64_t more)
{
    int64_t n, most = spec->layers * spec->experts;
    ek_infer_bytes b = {0};

    if (ek_infer_measure(spec, k, positions, (ek_expert_room){1, buffers}, &b) < 0 || b.slot == 0)
        return 0;
    if (limit->kind == EK_LIMIT_UNKNOWN)
        return most;
    n = (limit->left - sum_bytes(&b) - READ_AHEAD_BYTES - more) / b.slot + 1;
    n = n < most ? n : most;
    return n >= spec->top_k ? n : 0;
}

/* The most slots, and the buffers that go with them, unless they are given. */
static void find_room(const ek_memory_limit *limit, const ek_model_spec *spec, const ek_kernels *k,
                      int64_t positions, int64_t more, ek_expert_room *room)
{
    int64_t given = room->buffers;

    room->slots = most_slots(limit, spec, k, positions, given, more);
    if (given == 0) {
        room->buffers = ek_expert_files_buffers(room->slots);
        room->slots = most_slots(limit, spec, k, positions, room->buffers, more);
    }
}

/* Bytes of an evaluation of short windows. */
static ek_status measure_evaluation(const ek_model_spec *spec, const ek_kernels *k, int64_t *bytes)
{
    int64_t seq = ek_model_longest(spec) < EK_EVAL_SEQ ? ek_model_longest(spec) : EK_EVAL_SEQ;
    ek_pass_config pc = {.max_seqs = EK_EVAL_TOKENS / seq, .max_seq = seq};
    ek_model_config cfg = {.experts_elsewhere = 1, .never_touched = 1};
    ek_model *m = NULL;
    size_t pass = 0;
    ek_status st;

    EK_TRY(ek_model_create(spec, k, &cfg, &m));
    st = ek_pass_measure(m, &pc, &pass);
    ek_model_destroy(&m);
    *bytes = (int64_t)pass;
    return st;
}

ek_status ek_infer_fits(const ek_model_spec *spec, const ek_kernels *k, int64_t given,
                        int64_t positions, int *yes)
{
    ek_memory_limit limit = ek_memory_limit_find(given);
    int64_t evaluation = 0;
    ek_infer_bytes b;

    *yes = 1;
    if (k->memory != NULL)
        return EK_OK;
    EK_TRY(ek_infer_measure(spec, k, positions, (ek_expert_room){0}, &b));
    if (positions == 0)
        EK_TRY(measure_evaluation(spec, k, &evaluation));
    *yes = fits(&limit, sum_bytes(&b) + evaluation);
    return EK_OK;
}

ek_status ek_infer_most_slots(const ek_model_spec *spec, const ek_kernels *k, int64_t given,
                              int64_t positions, ek_expert_room *room)
{
    ek_memory_limit limit = ek_memory_limit_find(given);
    int64_t evaluation = 0;

    if (positions == 0)
        EK_TRY(measure_evaluation(spec, k, &evaluation));
    find_room(&limit, spec, k, positions, evaluation, room);
    return EK_OK;
}

/* Whether the model fits in bf16, and its bytes. */
static int fits_in_bf16(const ek_memory_limit *limit, const ek_model_spec *spec, int threads,
                        int64_t positions, ek_expert_room room, ek_infer_bytes *b)
{
    ek_kernels *k = NULL;
    int yes = ek_kernels_open("cpu", 0, EK_MODE_BF16, ek_cpu_isa(), threads, &k) == EK_OK &&
              ek_infer_measure(spec, k, positions, room, b) == EK_OK && fits(limit, sum_bytes(b));

    ek_kernels_destroy(&k);
    return yes;
}

/* The most positions, up to `most`, of a session that fits beside `held` bytes; 0: none. */
static int64_t most_positions(ek_model *m, const ek_memory_limit *limit, int64_t most)
{
    int64_t least = 0;

    while (least < most) {
        ek_session_config sc = {.capacity = least + (most - least + 1) / 2};
        size_t bytes;

        if (ek_session_measure(m, &sc, &bytes) == EK_OK && fits(limit, (int64_t)bytes))
            least = sc.capacity;
        else
            most = sc.capacity - 1;
    }
    return least;
}

/* What would fit, for a message: bf16, a shorter text, fewer experts in memory. */
static void find_fitting(const ek_memory_limit *limit, const ek_model_spec *spec,
                         const ek_kernels *k, ek_mode mode, int64_t positions, ek_expert_room room,
                         const ek_infer_bytes *b, char hint[HINT_CAP])
{
    ek_expert_room fitting = {0};
    char bytes[32], weights[32];
    ek_infer_bytes small;

    ek_bytes_text(weights, sizeof(weights), (double)b->weights);
    find_room(limit, spec, k, positions, 0, &fitting);

    if (mode != EK_MODE_BF16 && fits_in_bf16(limit, spec, k->threads, positions, room, &small))
        snprintf(hint, HINT_CAP, "--dtype bf16 would fit, with %s",
                 ek_bytes_text(bytes, sizeof(bytes), (double)sum_bytes(&small)));
    else if (fits(limit, b->weights + b->other))
        snprintf(hint, HINT_CAP, "fewer --tokens would fit: weights take %s of it", weights);
    else if (fitting.slots > 0)
        snprintf(hint, HINT_CAP, "--expert-slots %lld would fit, with the other experts on disk",
                 (long long)fitting.slots);
    else
        snprintf(hint, HINT_CAP, "weights take %s of it: use a smaller model%s", weights,
                 mode == EK_MODE_BF16 ? "" : ", or try --dtype bf16");
}

ek_status ek_infer_check_model(const ek_model_spec *spec, const ek_kernels *k, ek_mode mode,
                               int64_t given, int64_t positions, ek_expert_room room,
                               int64_t *file_cache)
{
    char hint[HINT_CAP], text[EK_LIMIT_TEXT], want[32];
    ek_memory_limit limit;
    ek_infer_bytes b;
    int64_t left;

    *file_cache = 0;
    positions = positions < ek_model_longest(spec) ? positions : ek_model_longest(spec);
    if (k->memory != NULL)
        return EK_OK;
    EK_TRY(ek_infer_measure(spec, k, positions, room, &b));
    limit = ek_memory_limit_find(given);
    left = limit.left - sum_bytes(&b) - READ_AHEAD_BYTES;
    if (fits(&limit, sum_bytes(&b))) {
        if (limit.kind != EK_LIMIT_UNKNOWN)
            *file_cache = left > 0 ? left : 1;
        return EK_OK;
    }
    find_fitting(&limit, spec, k, mode, positions, room, &b, hint);
    return EK_FAIL(
        EK_ENOMEM, "the model needs about %s of memory, and %s; %s",
        ek_bytes_text(want, sizeof(want), (double)ek_memory_limit_count(&limit, sum_bytes(&b))),
        ek_memory_limit_describe(&limit, text), hint);
}

ek_status ek_infer_check_session(ek_model *m, int64_t given, int64_t promised, int64_t prompt,
                                 int64_t tokens)
{
    ek_session_config sc = {.capacity = prompt + tokens};
    char hint[HINT_CAP] = "give a shorter prompt", text[EK_LIMIT_TEXT], need[32];
    ek_memory_limit limit;
    int64_t most;
    size_t bytes;

    if (m->k->memory != NULL)
        return EK_OK;
    EK_TRY(ek_session_measure(m, &sc, &bytes));
    limit = ek_memory_limit_find(given);
    limit.left -= promised;
    if (fits(&limit, (int64_t)bytes))
        return EK_OK;
    most = most_positions(m, &limit, sc.capacity - 1);
    if (most > prompt)
        snprintf(hint, sizeof(hint), "--tokens %lld would fit", (long long)(most - prompt));
    return EK_FAIL(
        EK_ENOMEM, "the model and a text of %lld tokens need about %s of memory, and %s; %s",
        (long long)sc.capacity,
        ek_bytes_text(need, sizeof(need), (double)ek_memory_limit_count(&limit, (int64_t)bytes)),
        ek_memory_limit_describe(&limit, text), hint);
}

ek_status ek_infer_check_evaluation(ek_model *m, int64_t given, int64_t promised, int64_t batch,
                                    int64_t seq)
{
    ek_pass_config pc = {.max_seqs = batch, .max_seq = seq}, shorter = {.max_seqs = 1};
    char hint[HINT_CAP] = "use a smaller model", text[EK_LIMIT_TEXT], need[32];
    ek_memory_limit limit;
    size_t bytes, less;

    if (m->k->memory != NULL)
        return EK_OK;
    EK_TRY(ek_pass_measure(m, &pc, &bytes));
    limit = ek_memory_limit_find(given);
    limit.left -= promised;
    if (fits(&limit, (int64_t)bytes))
        return EK_OK;
    for (shorter.max_seq = seq / 2; shorter.max_seq > 0 && batch == 1; shorter.max_seq /= 2)
        if (ek_pass_measure(m, &shorter, &less) == EK_OK && fits(&limit, (int64_t)less)) {
            snprintf(hint, sizeof(hint), "--seq %lld would fit", (long long)shorter.max_seq);
            break;
        }
    return EK_FAIL(
        EK_ENOMEM,
        "the model and an evaluation of %lld tokens at a time need about %s of memory, "
        "and %s; %s",
        (long long)(batch * seq),
        ek_bytes_text(need, sizeof(need), (double)ek_memory_limit_count(&limit, (int64_t)bytes)),
        ek_memory_limit_describe(&limit, text), hint);
}
