/* data/byte_stream.h - reads the bytes of a file in order; .gz and .zst files decompressed.
 *
 * Memory is bounded whatever a file expands to: an input buffer and the decoder's window (at most
 * 128 MiB for zst).  Concatenated gzip members and zstd frames are one stream.  Checksums are
 * verified.  EK_EFORMAT with the position: the stream is truncated, damaged, or followed by other
 * data. */
#ifndef DATA_BYTE_STREAM_H
#define DATA_BYTE_STREAM_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ek_byte_stream ek_byte_stream;

/* Length of a path without its suffix .gz or .zst. */
size_t ek_byte_stream_stem(const char *path);

/* Only regular files are opened.  EK_ENOENT, EK_EIO, EK_EFORMAT. */
EK_CHECKED ek_status ek_byte_stream_open(const char *path, ek_byte_stream **out);
void ek_byte_stream_close(ek_byte_stream **s);

/* Reads up to `want` bytes; *got is less only at the end. */
EK_CHECKED ek_status ek_byte_stream_read(ek_byte_stream *s, void *buf, size_t want, size_t *got);

/* Bytes of the file consumed so far, before decompression. */
int64_t ek_byte_stream_position(const ek_byte_stream *s);

#endif
