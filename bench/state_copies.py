"""Which tensors of an elastic run the memory of nodes holds, read from the shard tables of its
segments (src/elastic/segment.h, shard_table.h): independent of what the run says of itself."""

import os
import struct

HEAD = struct.Struct("<8sIIQQqQiiiiQQ64s256si")  # ek_segment_head
VERSION_AT, GENERATION_AT, RANK_AT, PHASE_AT = 1, 7, 8, 15
FILLED, READY = 1, 2           # ek_segment_phase
PREALLOC_RANK = 1 << 24        # EK_PREALLOC_RANK
TABLE, TABLE_HEAD = b"EKPARTS\0", 64
SHARD = struct.Struct("<ii4qq3q")  # ek_state_shard: the tensor, its slice; the rest is where


def read_segment(folder):
    """(generation, phase, set of (tensor, slice)) of a segment; None if it has no state, or has
    gone."""
    try:
        with open(os.path.join(folder, "front"), "rb") as f:
            data = f.read()
    except OSError:
        return None
    if len(data) < HEAD.size:
        return None
    head = HEAD.unpack_from(data)
    at = data.find(TABLE)
    if head[RANK_AT] >= PREALLOC_RANK or at < 0:
        return None
    n, = struct.unpack_from("<q", data, at + len(TABLE))
    shards = (SHARD.unpack_from(data, at + TABLE_HEAD + i * SHARD.size) for i in range(n))
    return head[GENERATION_AT], head[PHASE_AT], {(s[0], s[2:6]) for s in shards if s[0] >= 0}


def read_folders(folders):
    """What read_segment says of all segments in these /dev/shm."""
    found = []
    for folder in folders:
        try:
            names = [n for n in os.listdir(folder) if n.startswith("evenkeel-")]
        except OSError:  # the node is dead
            continue
        found += filter(None, (read_segment(os.path.join(folder, n)) for n in names))
    return found


def newest(folders):
    """The newest valid generation in these /dev/shm; -1: none."""
    return max((g for g, phase, _ in read_folders(folders) if phase == READY), default=-1)


def held(folders, at_least=-1):
    """What the newest valid generation in these /dev/shm holds, over all of its ranks: a set of
    (tensor, slice); nothing, if that generation is older than at_least."""
    found = read_folders(folders)
    valid = max((g for g, phase, _ in found if phase == READY), default=-1)
    return set().union(*(held_by for g, phase, held_by in found
                         if g == valid and g >= at_least and phase >= FILLED))
