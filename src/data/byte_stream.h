/* data/byte_stream.h - the bytes of a file, in order; those of .gz and .zst files decompressed.
 *
 * Memory is bounded whatever a compressed file expands to: a buffer of the file and the window of
 * the decoder (at most 128 MiB for zst).  Concatenated gzip members and zstd frames are one stream.
 * A stream that ends early, is damaged, or is followed by something else is refused with EK_EFORMAT
 * and the place in the file; checksums are verified. */
#ifndef DATA_BYTE_STREAM_H
#define DATA_BYTE_STREAM_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ek_byte_stream ek_byte_stream;

/* The part of a path without .gz or .zst: what the name says of the content.  Its length. */
size_t ek_byte_stream_stem(const char *path);

/* Only regular files are opened.  EK_ENOENT, EK_EIO, EK_EFORMAT. */
EK_CHECKED ek_status ek_byte_stream_open(const char *path, ek_byte_stream **out);
void ek_byte_stream_close(ek_byte_stream **s);

/* Reads up to `want` bytes; *got is less only at the end. */
EK_CHECKED ek_status ek_byte_stream_read(ek_byte_stream *s, void *buf, size_t want, size_t *got);

/* Bytes of the file that were consumed: compressed ones. */
int64_t ek_byte_stream_position(const ek_byte_stream *s);

#endif
