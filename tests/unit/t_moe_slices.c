/* Dispatch with gathered slices (Tutel's r): each row goes to one member of every group, evenly,
 * and source and server agree on its position; numbers of rows sent and of slices fetched. */
#include "base/random.h"
#include "ek_test.h"
#include "moe/dispatch_layout.h"
#include "moe/replica_weights.h"

enum { RANKS_MAX = 8, EXPERTS = 5, COLS = 2, TOKENS = 40, CHUNKS_MAX = 3, SLOTS_MAX = EXPERTS };

/* The dispatch layout of every rank of a stage, and their tokens' choices. */
typedef struct {
    ek_mesh mesh[RANKS_MAX];
    ek_dispatch_layout x[RANKS_MAX];
    ek_placement p;
    ek_arena arena;
    int64_t tokens[RANKS_MAX];
    int32_t ids[RANKS_MAX][TOKENS * COLS];
    ek_gate_stats *gate_stats;
    int32_t *row_counts;
    int32_t *row_of[RANKS_MAX], *token_of[RANKS_MAX];
    int64_t send_first[RANKS_MAX][CHUNKS_MAX + 1];
} world;

static void open_world(world *w, int ep, int etp, int spare, int degree, int group)
{
    int ranks = ep * etp;

    memset(w, 0, sizeof(*w));
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 0)
            ek_arena_measure(&w->arena);
        else
            CHECK(ek_arena_reserve(&w->arena, "a world") == EK_OK);
        ek_placement_reserve(&w->p, &w->arena, EXPERTS, ep, (EXPERTS + ep - 1) / ep + spare);
        if (w->p.primary != NULL)
            ek_placement_block(&w->p, 1);
        for (int r = 0; r < ranks; r++) {
            w->mesh[r] = (ek_mesh){.size = ranks,
                                   .edp = 1,
                                   .ep = ep,
                                   .etp = etp,
                                   .stage_size = ranks,
                                   .at = r,
                                   .ep_rank = r / etp,
                                   .etp_rank = r % etp};
            ek_dispatch_layout_reserve(&w->x[r], &w->arena, &w->mesh[r], &w->p, degree, group);
            w->row_of[r] = ek_arena_alloc(&w->arena, TOKENS * COLS * etp, sizeof(int32_t));
            w->token_of[r] = ek_arena_alloc(&w->arena, TOKENS * COLS * etp, sizeof(int32_t));
        }
        w->gate_stats = ek_arena_alloc(&w->arena, ranks * ek_gate_stats_words(EXPERTS, CHUNKS_MAX),
                                       sizeof(*w->gate_stats));
        w->row_counts = ek_arena_alloc(&w->arena, (int64_t)CHUNKS_MAX * ranks * w->x[0].all_slots,
                                       sizeof(*w->row_counts));
    }
    for (int r = 0; r < ranks; r++)
        ek_dispatch_layout_follow_placement(&w->x[r], &w->p);
}

/* Random choices, some dropped; sources of different sizes, one without tokens. */
static void choose(world *w, uint64_t seed)
{
    const ek_dispatch_layout *x = &w->x[0];

    memset(w->gate_stats, 0, (size_t)x->ranks * (size_t)x->words * sizeof(*w->gate_stats));
    for (int r = 0; r < x->ranks; r++) {
        w->tokens[r] = r == 1 ? 0 : TOKENS - 7 * (r % 4);
        for (int64_t i = 0; i < w->tokens[r] * COLS; i++) {
            int32_t e = (int32_t)(ek_random_bits(seed, (uint64_t)r, (uint64_t)i) % (EXPERTS + 1));
            int chunk = 0;

            w->ids[r][i] = e < EXPERTS ? e : -1;
            while (i / COLS >= ek_range_first(w->tokens[r], x->token_chunks, chunk + 1))
                chunk++;
            if (e < EXPERTS)
                w->gate_stats[r * x->words + ek_gate_stats_rows(EXPERTS, chunk) + e].count++;
        }
    }
}

/* Follows every row from send to recv; [from][to]: rows of a chunk. */
static void follow(world *w, int gather)
{
    int ranks = w->x[0].ranks, copies, chunks = w->x[0].chunks;
    int64_t matrix[RANKS_MAX * RANKS_MAX];

    for (int r = 0; r < ranks; r++) {
        ek_dispatch_layout_set_gather(&w->x[r], gather);
        ek_dispatch_layout_list_slots(&w->x[r], w->p.expert_of);
        ek_dispatch_sort(&w->x[r], w->row_counts, w->tokens[r], COLS, w->ids[r], w->row_of[r],
                         w->token_of[r], w->send_first[r]);
    }
    copies = w->x[0].copies;
    for (int to = 0; to < ranks; to++) {
        static int64_t offset[CHUNKS_MAX * (SLOTS_MAX + 4)];
        static int32_t from_recv[RANKS_MAX * TOKENS * COLS],
            from_experts[RANKS_MAX * TOKENS * COLS];
        ek_dispatch_layout *x = &w->x[to];
        int64_t base = 0;

        ek_dispatch_receive(x, w->row_counts, offset, from_recv, from_experts);
        for (int chunk = 0; chunk < chunks; chunk++) {
            int32_t at = 0; /* of recv */

            ek_dispatch_matrix(x, w->row_counts, chunk, 0, matrix);
            for (int from = 0; from < ranks; from++) {
                int64_t first = w->send_first[from][chunk];

                for (int server = 0; server < to; server++)
                    first += matrix[from * ranks + server];
                for (int64_t i = 0; i < matrix[from * ranks + to]; i++, at++) {
                    const int64_t *of = offset + chunk * (x->slots + 1);
                    int32_t row = from_experts[base + at], slot = 0, token, expert;
                    int found = 0;

                    CHECK_INT(from_recv[base + row], at);
                    while (slot < x->slots && base + row >= of[slot + 1])
                        slot++;
                    expert = w->p.expert_of[x->first_slot + slot];
                    token = w->token_of[from][first + i];
                    for (int c = 0; c < COLS * copies; c++)
                        if (w->row_of[from][token * COLS * copies + c] == first + i) {
                            CHECK_INT(w->ids[from][token * COLS + c / copies], expert);
                            CHECK_INT(to % x->shards / x->members, c % copies); /* its group */
                            found++;
                        }
                    CHECK_INT(found, 1);
                }
            }
            base += at;
        }
    }
}

/* A source's rows for a slot are spread evenly over the members of a group, within one row. */
static void check_spread(const world *w)
{
    const ek_dispatch_layout *x = &w->x[0];

    for (int source = 0; source < x->ranks; source++)
        for (int32_t slot = 0; slot < x->all_slots; slot++)
            for (int32_t rows = 0; rows < 9; rows++) {
                int32_t sum = 0;

                for (int m = 0; m < x->members; m++) {
                    int32_t part = ek_dispatch_member_rows(x, source, slot, m, rows);

                    CHECK(x->local || part <= rows / x->members + 1);
                    CHECK(x->local || part >= rows / x->members);
                    sum += part;
                }
                CHECK_INT(sum, rows);
            }
}

static void every_row_goes_to_one_member_of_each_group(void)
{
    static const int sizes[][2] = {{1, 2}, {2, 2}, {1, 4}, {2, 4}, {3, 2}, {1, 6}, {2, 3}};
    static world w;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int degree = 1; degree <= CHUNKS_MAX; degree += 2)
            for (int g = 1; g <= sizes[i][1]; g++) {
                if (sizes[i][1] % g != 0)
                    continue;
                open_world(&w, sizes[i][0], sizes[i][1], 0, degree, 0);
                choose(&w, i);
                ek_dispatch_default_rows(&w.x[0], w.gate_stats, w.row_counts);
                follow(&w, g);
                check_spread(&w);
                ek_arena_fini(&w.arena);
            }
}

/* r = 0: every rank has every expert, and no row leaves its rank. */
static void rows_are_local(void)
{
    static world w;
    int64_t matrix[RANKS_MAX * RANKS_MAX];

    open_world(&w, 2, 2, EXPERTS - 3, 1, 0);
    choose(&w, 3);
    for (int rank = 0; rank < 2; rank++) /* as ek_routing_plan_make does for r = 0 */
        for (int32_t s = 0, e = 0; s < w.p.slots; s++) {
            int32_t *slot = &w.p.expert_of[rank * w.p.slots + s];

            while (*slot < 0 && e < EXPERTS && w.p.primary[e] / w.p.slots == rank)
                e++;
            *slot = *slot < 0 ? e++ : *slot;
        }
    memset(w.row_counts, 0,
           (size_t)w.x[0].ranks * (size_t)w.x[0].all_slots * sizeof(*w.row_counts));
    for (int source = 0; source < 4; source++)
        for (int32_t s = source / 2 * w.p.slots; s < (source / 2 + 1) * w.p.slots; s++)
            w.row_counts[source * w.x[0].all_slots + s] =
                (int32_t)w
                    .gate_stats[source * w.x[0].words + ek_gate_stats_rows(EXPERTS, 0) +
                                w.p.expert_of[s]]
                    .count;
    follow(&w, EK_GATHER_ALL);
    check_spread(&w);
    ek_dispatch_matrix(&w.x[0], w.row_counts, 0, 0, matrix);
    for (int i = 0; i < 16; i++)
        CHECK(i % 5 == 0 ? (i == 5) == (matrix[i] == 0) : matrix[i] == 0);
    ek_arena_fini(&w.arena);
}

/* With 8 ranks, 4 shards an expert, and C rows of each rank for each of E = 2 experts, a rank sends
 * r E C rows, those to itself included (Tutel, table 4). */
static void rows_sent_are_those_of_tutel(void)
{
    enum { C = 4 };
    static world w;
    int64_t matrix[RANKS_MAX * RANKS_MAX];

    open_world(&w, 2, 4, 0, 1, 0);
    memset(w.gate_stats, 0, (size_t)w.x[0].ranks * (size_t)w.x[0].words * sizeof(*w.gate_stats));
    for (int r = 0; r < 8; r++)
        for (int e = 0; e < 4; e += 3) /* one expert of each rank */
            w.gate_stats[r * w.x[0].words + ek_gate_stats_rows(EXPERTS, 0) + e].count = C;
    ek_dispatch_default_rows(&w.x[0], w.gate_stats, w.row_counts);
    for (int r = 1; r <= 4; r *= 2) {
        ek_dispatch_layout_set_gather(&w.x[0], 4 / r);
        ek_dispatch_matrix(&w.x[0], w.row_counts, 0, 0, matrix);
        for (int from = 0; from < 8; from++) {
            int64_t sent = 0, got = 0;

            for (int to = 0; to < 8; to++) {
                sent += matrix[from * 8 + to];
                got += matrix[to * 8 + from];
                CHECK_INT(matrix[from * 8 + to], r * C / 4);
            }
            CHECK_INT(sent, r * 2 * C);
            CHECK_INT(got, r * 2 * C);
        }
    }
    ek_arena_fini(&w.arena);
}

/* The slices of a group tile its part of the inner width, also if sizes do not divide. */
static void slices_tile_the_width(void)
{
    ek_model_spec spec = {.ff = 11};
    ek_mesh mesh = {.etp = 4};
    ek_moe m = {.spec = &spec, .mesh = &mesh};

    for (m.x.members = 1; m.x.members <= 4; m.x.members *= 2)
        for (mesh.etp_rank = 0; mesh.etp_rank < 4; mesh.etp_rank++) {
            int first = mesh.etp_rank / m.x.members * m.x.members;
            int64_t at = 0;

            for (int i = 0; i < m.x.members; i++) {
                CHECK_INT(ek_slice_first(&m, i), at);
                CHECK_INT(ek_slice_width(&m, i), ek_range_length(11, 4, first + i));
                at += ek_slice_width(&m, i);
            }
            CHECK_INT(ek_slice_first(&m, m.x.members), at);
        }
}

static const ek_case cases[] = {
    EK_CASE(every_row_goes_to_one_member_of_each_group),
    EK_CASE(rows_are_local),
    EK_CASE(rows_sent_are_those_of_tutel),
    EK_CASE(slices_tile_the_width),
};
EK_TEST_MAIN(cases)
