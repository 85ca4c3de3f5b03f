/* data/nfc.h - Unicode normalisation form C (Unicode Standard Annex 15).
 *
 * Tokenizers of the Qwen and GPT-NeoX families normalise before they split.  The tables hold
 * Unicode 9, as those of the tokenizers library do, so that ids agree; code points assigned later
 * are left unchanged. */
#ifndef DATA_NFC_H
#define DATA_NFC_H

#include "evenkeel/err.h"

#include <stddef.h>

/* Fast check for the common case: true only if well-formed UTF-8 is in form C already. */
int ek_nfc_certain(const unsigned char *text, size_t n);

/* Scratch of one thread, kept between texts; zero-initialised, released by ek_nfc_release. */
typedef struct {
    unsigned char *text; /* the result of the last call */
    size_t n, cap;
    struct ek_nfc_mark *marks; /* decomposed code points not yet written */
    size_t n_marks, marks_cap;
} ek_nfc;

/* Normalises well-formed UTF-8 into s->text, s->n. */
EK_CHECKED ek_status ek_nfc_run(ek_nfc *s, const unsigned char *text, size_t n);
/* Frees the scratch, which can be used again. */
void ek_nfc_release(ek_nfc *s);

#endif
