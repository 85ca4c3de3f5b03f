/* base/file_priv.h - what the two halves of base/file.h share. */
#ifndef BASE_FILE_PRIV_H
#define BASE_FILE_PRIV_H

#include "evenkeel/err.h"

#include "base/file.h"

/* Opens f->fd for a file that f->path names, as ek_write_mode says (file_new.c). */
ek_status ek_file_create(ek_file_out *f, ek_write_mode mode);

/* NULL stands for the system. */
const ek_io *ek_io_table(const ek_io *io);

/* ek_folder_entries without a text of failure: 0, or -1 and errno. */
int ek_folder_names(const char *path, ek_names *out);

#endif
