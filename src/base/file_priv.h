/* base/file_priv.h - shared by file.c, file_new.c and file_write.c. */
#ifndef BASE_FILE_PRIV_H
#define BASE_FILE_PRIV_H

#include "evenkeel/err.h"

#include "base/file.h"

/* Opens f->fd for f->path in the given mode (file_new.c). */
ek_status ek_file_create(ek_file_out *f, ek_write_mode mode);

/* `io`, or for NULL the table of the real system calls. */
const ek_io *ek_io_table(const ek_io *io);

/* ek_folder_entries without an error message: 0, or -1 and errno. */
int ek_folder_names(const char *path, ek_names *out);

#endif
