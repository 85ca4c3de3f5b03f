/* base/file_priv.h - what the two halves of base/file.h share. */
#ifndef BASE_FILE_PRIV_H
#define BASE_FILE_PRIV_H

#include "evenkeel/err.h"

#include "base/file.h"

/* "cannot <doing> <path>: <reason>", with the status that fits the errno value. */
ek_status ek_fail_errno(int error, const char *doing, const char *path);

/* ek_folder_entries without a text of failure: 0, or -1 and errno. */
int ek_folder_names(const char *path, ek_names *out);

#endif
