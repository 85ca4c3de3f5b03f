/* elastic/segment_priv.h - the folder that a segment lies in: what finds, makes and removes it. */
#ifndef ELASTIC_SEGMENT_PRIV_H
#define ELASTIC_SEGMENT_PRIV_H

#include "elastic/segment.h"

/* Where Linux has POSIX shared memory. */
#define EK_SEGMENT_ROOT "/dev/shm"

enum { EK_SEGMENT_PATH = EK_SEGMENT_FOLDER + 32 };

/* Makes an empty one, under a name that nobody can have taken before. */
EK_CHECKED ek_status ek_segment_folder_make(const ek_segment_id *id, char path[EK_SEGMENT_FOLDER]);
/* Finds this user's; EK_ENOENT: there is none. */
EK_CHECKED ek_status ek_segment_folder_find(const ek_segment_id *id, char path[EK_SEGMENT_FOLDER]);

/* Its files: the front of the segment, and its pieces. */
void ek_segment_front_path(const char *folder, char path[EK_SEGMENT_PATH]);
void ek_segment_block_path(const char *folder, int64_t k, char path[EK_SEGMENT_PATH]);

#endif
