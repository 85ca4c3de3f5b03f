/* Opens the tokenizer and the training data of a run. */
#include "base/file.h"
#include "data/documents.h"
#include "train/run/state.h"

#include <string.h>

/* Finds the files beside the tokenizer and the model; others are generated. */
static ek_status read_tokenizer_files(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    const ek_model_spec *m = &r->source.spec;
    ek_path folder = r->source.folder;

    if (c->tokenizer != NULL && strcmp(c->tokenizer, "bytes") == 0)
        folder.s[0] = '\0';
    else if (c->tokenizer != NULL)
        EK_TRY(ek_path_parent(c->tokenizer, &folder));
    if (folder.s[0] != '\0')
        EK_TRY(ek_tokenizer_files_read(folder.s, c->tokenizer == NULL, &r->data.tokenizer_files));
    return ek_tokenizer_files_complete(&r->data.tokenizer_files, r->data.tokenizer, m->bos_id,
                                       m->eos_id, m->max_positions);
}

/* The end-of-document token, with --document-mask. */
static ek_status find_documents(ek_run *r)
{
    ek_trainer_config *t = &r->training;

    t->document_mask = r->cfg->document_mask;
    if (!t->document_mask)
        return EK_OK;
    EK_TRY(ek_documents_end(r->data.tokenizer, r->source.spec.eos_id, &t->document_end));
    return r->rank == 0
               ? ek_documents_check(r->data.sources.tokens, r->data.sources.n, t->document_end)
               : EK_OK;
}

/* The nearest existing folder above a path. */
static ek_status find_folder(const char *path, ek_path *folder)
{
    ek_path above;

    EK_TRY(ek_path_parent(path, folder));
    while (ek_file_kind_of(folder->s) == EK_FILE_NONE) {
        EK_TRY(ek_path_parent(folder->s, &above));
        *folder = above;
    }
    return EK_OK;
}

ek_status ek_run_open_data(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    const char *tokenizer;
    ek_path folder;
    int texts, eval_texts;
    ek_tokens_config tc = {.paths = c->data,
                           .n_paths = c->n_data,
                           .token_bytes = c->token_bytes,
                           .vocab = r->source.spec.vocab,
                           .progress = r->hooks->tokenising,
                           .stop = r->hooks->stop,
                           .context = r->hooks->context,
                           .text_field = c->text_field};

    EK_REQUIRE(c->n_data > 0, EK_EINVAL, "no data to train on");
    /* token files need none, but checkpoints store one if there is one */
    EK_TRY(ek_sources_have_texts(c->data, c->n_data, &texts));
    EK_TRY(ek_sources_have_texts(c->eval_data, c->n_eval_data, &eval_texts));
    if (c->tokenizer != NULL || r->source.tokenizer.s[0] != '\0' || texts || eval_texts) {
        EK_TRY(ek_model_source_tokenizer(&r->source, c->tokenizer, &tokenizer));
        EK_TRY(ek_tokenizer_open(tokenizer, &r->data.tokenizer));
        EK_REQUIRE(ek_tokenizer_vocab(r->data.tokenizer) <= r->source.spec.vocab, EK_EFORMAT,
                   "the tokenizer has %lld tokens, the model's vocabulary %lld: choose a model "
                   "with a larger one, or another --tokenizer",
                   (long long)ek_tokenizer_vocab(r->data.tokenizer),
                   (long long)r->source.spec.vocab);
        if (ek_tokenizer_end(r->data.tokenizer) < 0 && r->source.spec.eos_id >= 0 &&
            r->source.spec.eos_id < ek_tokenizer_vocab(r->data.tokenizer))
            EK_TRY(ek_tokenizer_set_end(r->data.tokenizer, r->source.spec.eos_id));
    }
    EK_TRY(read_tokenizer_files(r));
    if (c->cache != NULL) {
        EK_TRY(ek_path_set(&folder, "%s/tokens", c->cache));
        tc.cache_dir = folder.s;
    } else {
        EK_TRY(find_folder(c->out, &folder));
        tc.scratch_dir = folder.s;
    }
    tc.tokenizer = r->data.tokenizer;
    EK_TRY(ek_sources_open(&tc, &r->data.sources));
    EK_TRY(find_documents(r));
    EK_TRY(ek_run_open_held_out(r, &tc));
    return ek_windows_init_sources(
        &r->data.windows, &r->data.sources, r->training.batch, r->training.seq,
        r->options.shuffled ? EK_ORDER_SHUFFLED : EK_ORDER_SEQUENTIAL, c->seed);
}
