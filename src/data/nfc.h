/* data/nfc.h - Unicode normalisation form C (Unicode Standard Annex 15).
 *
 * Tokenizers of the Qwen and GPT-NeoX families normalise before they split.  The tables hold
 * Unicode 9, as those of the tokenizers library do, so that ids agree; code points assigned later
 * keep their place and are left as they are. */
#ifndef DATA_NFC_H
#define DATA_NFC_H

#include "evenkeel/err.h"

#include <stddef.h>

/* Whether well-formed UTF-8 is certainly in form C already: the common case, fast. */
int ek_nfc_certain(const unsigned char *text, size_t n);

/* Scratch that one thread keeps between texts; zeroed at first, released by ek_nfc_release. */
typedef struct {
    unsigned char *text; /* the result of the last call */
    size_t n, room;
    struct ek_nfc_mark *marks; /* decomposed code points not yet written */
    size_t n_marks, marks_room;
} ek_nfc;

/* Normalises well-formed UTF-8 into s->text, s->n. */
EK_CHECKED ek_status ek_nfc_run(ek_nfc *s, const unsigned char *text, size_t n);
void ek_nfc_release(ek_nfc *s);

#endif
