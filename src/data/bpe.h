/* data/bpe.h - byte pair encoding: words to ids and back.
 *
 * The vocabulary holds byte strings, every single byte among them, so any word can be encoded.
 * Words of other symbols than bytes: data/chars.h.
 * Merges join the adjacent pair of lowest rank first, the leftmost of equals.
 *
 * Threads      an ek_bpe is read-only once built; each thread has its own ek_bpe_work. */
#ifndef DATA_BPE_H
#define DATA_BPE_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>

enum { EK_IDS_MAX = 1 << 24 }; /* ids are below this, which bounds a sparse table */

/* A growing list of ids.  Zero-initialised is empty; the owner frees ids. */
typedef struct {
    int32_t *ids;
    int64_t n, cap;
} ek_ids;

/* Reserves capacity for `more` ids; appends an id.  EK_ENOMEM. */
EK_CHECKED ek_status ek_ids_reserve(ek_ids *l, int64_t more);
EK_CHECKED ek_status ek_ids_push(ek_ids *l, uint32_t id);

/* The byte string of an id. */
typedef struct {
    size_t at; /* in blob */
    uint32_t n;
    uint8_t used;  /* 0: no token has this id */
    uint8_t added; /* an added token, outside the byte-level alphabet */
} ek_token;

typedef struct {
    uint64_t pair; /* left << 32 | right, + 1; 0: empty slot */
    uint32_t rank, id;
} ek_merge;

typedef struct {
    ek_token *tokens;
    int64_t n_ids; /* one more than the largest id */
    unsigned char *blob;
    size_t blob_n, blob_cap;
    uint32_t *slots; /* bytes -> id + 1, by hash; 0: empty */
    size_t n_slots;  /* a power of two */
    ek_merge *merges;
    size_t merge_slots; /* a power of two */
    int64_t n_merges;
    uint32_t byte_id[256];
    int whole_words; /* a word that is a token is that token, whatever the merges (ignore_merges) */
} ek_bpe;

/* Building: begin, add all tokens, merges, finish.  After a failure call ek_bpe_release. */
EK_CHECKED ek_status ek_bpe_begin(ek_bpe *b, int64_t n_ids, int64_t n_tokens, int64_t n_merges);
/* Adds the token of an id below n_ids; copies its bytes.  added: see ek_token. */
EK_CHECKED ek_status ek_bpe_add(ek_bpe *b, int64_t id, const unsigned char *bytes, size_t n,
                                int added);
/* The id of a byte string in the vocabulary (added tokens excluded), -1 if it has none. */
int64_t ek_bpe_find(const ek_bpe *b, const unsigned char *bytes, size_t n);
/* A pair added twice keeps its last rank. */
void ek_bpe_merge(ek_bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
/* Fills byte_id; EK_EFORMAT when a byte has no token. */
EK_CHECKED ek_status ek_bpe_finish(ek_bpe *b, const char *name);
/* Frees all parts; *b is then zero. */
void ek_bpe_release(ek_bpe *b);

/* Scratch of one thread; zero-initialised is ready. */
typedef struct {
    struct ek_bpe_word *cache; /* ids of recent words, by hash */
    struct ek_bpe_symbol *symbols;
    struct ek_bpe_entry *heap;
    size_t symbols_cap, heap_n, heap_cap;
    uint32_t *ids; /* the symbols of a word before its merges */
    size_t ids_cap;
} ek_bpe_work;

/* Frees the scratch, which can be used again. */
void ek_bpe_work_release(ek_bpe_work *w);

/* Appends the ids of one word. */
EK_CHECKED ek_status ek_bpe_encode(const ek_bpe *b, ek_bpe_work *w, const unsigned char *word,
                                   size_t n, ek_ids *out);

/* For words of other symbols than bytes: reserve n symbols in w->ids, then merge w->ids [n_ids],
 * which is overwritten. word [n] are the bytes that they represent; the same bytes must always have
 * the same symbols.  The caller handles whole_words. */
EK_CHECKED ek_status ek_bpe_reserve_symbols(ek_bpe_work *w, size_t n);
EK_CHECKED ek_status ek_bpe_encode_symbols(const ek_bpe *b, ek_bpe_work *w,
                                           const unsigned char *word, size_t n, size_t n_ids,
                                           ek_ids *out);

#endif
