/* elastic/segment_priv.h - finding, creating and removing the folder of a segment. */
#ifndef ELASTIC_SEGMENT_PRIV_H
#define ELASTIC_SEGMENT_PRIV_H

#include "elastic/segment.h"

/* Where Linux mounts POSIX shared memory. */
#define EK_SEGMENT_ROOT "/dev/shm"

enum { EK_SEGMENT_PATH = EK_SEGMENT_FOLDER + 32 };

/* Creates an empty folder under a new random name. */
EK_CHECKED ek_status ek_segment_folder_make(const ek_segment_id *id, char path[EK_SEGMENT_FOLDER]);
/* Finds the folder of this user.  EK_ENOENT. */
EK_CHECKED ek_status ek_segment_folder_find(const ek_segment_id *id, char path[EK_SEGMENT_FOLDER]);

/* Paths of the front and of block k. */
void ek_segment_front_path(const char *folder, char path[EK_SEGMENT_PATH]);
void ek_segment_block_path(const char *folder, int64_t k, char path[EK_SEGMENT_PATH]);

#endif
