/* The safetensors reader on arbitrary bytes: it must refuse them with a message, or give tensors
 * that lie inside the input, tile its data and can be read to their last element; and likewise the
 * parts of tensors that their names make of them. */
#include "store/tensor_slices.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int cond)
{
    if (!cond)
        abort();
}

/* Reads the first and the last elements, in each type of memory. */
static void read_ends(const ek_safetensor *t)
{
    static const ek_dtype to[] = {EK_F64, EK_F32, EK_BF16};
    int64_t n = t->elements < 3 ? t->elements : 3;
    double room[3];

    for (int i = 0; i < 3; i++) {
        ek_status first = ek_safetensor_read(t, 0, n, room, to[i]);
        ek_status last = ek_safetensor_read(t, t->elements - n, n, room, to[i]);

        require((first == EK_OK) == t->readable && first == last);
    }
    require(ek_safetensor_read(t, t->elements, 1, room, EK_F32) != EK_OK);
}

/* The corners of every part, by the tensor that it belongs to. */
static void read_parts(const ek_safetensors *st)
{
    ek_slice_set *b = NULL;
    int64_t slices = 0;

    if (ek_slice_set_of(st, &b) != EK_OK) {
        require(b == NULL && ek_err_message()[0] != '\0');
        return;
    }
    for (int64_t i = 0; i < ek_slice_set_count(b); i++) {
        const ek_sliced_tensor *x = ek_slice_set_get(b, i);

        require(ek_slice_set_find(b, x->name) == x && x->n > 0);
        slices += x->n;
        for (int64_t k = 0; k < x->n; k++) {
            const ek_tensor_slice *p = &x->slices[k].slice;
            ek_tensor_slice corner = {p->row + p->rows - 1, 1, p->col + p->cols - 1, 1};
            double room;

            if (p->rows > 0 && p->cols > 0)
                require((ek_sliced_tensor_read(x, &corner, &room, 1, EK_F64) == EK_OK) ==
                        x->slices[k].t->readable);
        }
    }
    require(slices == ek_safetensors_count(st));
    ek_slice_set_close(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ek_safetensors *st = NULL;
    int64_t bytes = 0;

    if (ek_safetensors_parse(data, size, "input", &st) != EK_OK) {
        require(st == NULL && strncmp(ek_err_message(), "input: ", 7) == 0);
        return 0;
    }
    for (int64_t i = 0; i < ek_safetensors_count(st); i++) {
        const ek_safetensor *t = ek_safetensors_get(st, i);

        require(t->memory == data && t->at >= 8 && t->bytes >= 0 &&
                t->at <= (int64_t)size - t->bytes);
        require(ek_safetensors_find(st, t->name) == t);
        read_ends(t);
        bytes += t->bytes;
    }
    require(bytes <= (int64_t)size);
    read_parts(st);
    ek_safetensors_close(&st);
    return 0;
}
