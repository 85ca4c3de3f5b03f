/* A folder of files to train on, and the job: one process, or the ranks that mpiexec started.
 *
 * The folder is of all ranks, which have the same parent process; rank 0 creates and removes it. */
#ifndef JOB_FOLDER_H
#define JOB_FOLDER_H

#include "ek_test.h"

#include <evenkeel/job.h>
#include <ftw.h>
#include <sys/stat.h>

/* A model of 2 layers with 4 experts; its numbers have digits behind the point. */
static const char job_config_text[] =
    "{\"architectures\": [\"MixtralForCausalLM\"], \"model_type\": \"mixtral\", \"hidden_act\": "
    "\"silu\", \"vocab_size\": 300, \"hidden_size\": 16, \"intermediate_size\": 24, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
    "\"head_dim\": 8, \"num_local_experts\": 4, \"num_experts_per_tok\": 2, "
    "\"max_position_embeddings\": 64, \"rms_norm_eps\": 1.5e-5, \"rope_theta\": 10000.5, "
    "\"tie_word_embeddings\": false, \"eos_token_id\": 256, \"torch_dtype\": \"float32\", "
    "\"initializer_range\": 0.125}";

static char folder[64];
static ek_comm *world; /* NULL: one process, rank 0 of 1 */
static int rank, ranks = 1;

/* A path in the folder; valid until the eighth call after this one. */
static inline const char *in_folder(const char *name)
{
    static char path[8][4096];
    static int next;
    char *p = path[next++ % 8];

    snprintf(p, sizeof(path[0]), "%s/%s", folder, name);
    return p;
}

static inline void write_file(const char *name, const char *text, int times)
{
    FILE *f = fopen(in_folder(name), "w");

    CHECK(f != NULL);
    for (int i = 0; f != NULL && i < times; i++)
        fputs(text, f);
    if (f != NULL)
        fclose(f);
}

static inline int remove_one(const char *path, const struct stat *s, int flag, struct FTW *at)
{
    (void)s, (void)flag, (void)at;
    return remove(path);
}

/* A barrier, by a collective call. */
static inline void wait_for_all(void)
{
    int cores;

    if (world != NULL)
        CHECK_INT(ek_job_cores(world, &cores), EK_OK);
}

/* Joins the job and, on rank 0, creates /tmp/ek-NAME-PARENT with config.json and a.txt in it.
 * Returns 0 if the job cannot be joined.  Other ranks may use the folder after wait_for_all. */
static inline int open_job_folder(const char *name)
{
    snprintf(folder, sizeof(folder), "/tmp/ek-%s-%ld", name, (long)getppid());
    if (getenv("PMI_RANK") != NULL || getenv("OMPI_COMM_WORLD_RANK") != NULL) {
        if (ek_job_join(&world) < 0) {
            fprintf(stderr, "%s\n", ek_err_text());
            return 0;
        }
        rank = ek_job_rank(world);
        ranks = ek_job_size(world);
    }
    if (rank == 0) {
        nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
        CHECK(mkdir(folder, 0700) == 0);
        write_file("config.json", job_config_text, 1);
        write_file("a.txt", "some text that comes again and again\n", 60);
    }
    return 1;
}

/* Waits for all ranks, removes the folder, and leaves the job. */
static inline void close_job_folder(void)
{
    wait_for_all();
    if (rank == 0)
        nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    ek_job_leave(&world);
}

#endif
