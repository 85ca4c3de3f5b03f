#!/usr/bin/python3
"""The planners as a library, from Python by ctypes: one layer of 8 experts on 4 ranks.

usage: examples/balance.py [build/libevenkeel.so]
"""

import ctypes
import sys

RANKS, EXPERTS, SPARE = 4, 8, 1
SLOTS = -(-EXPERTS // RANKS) + SPARE


class Config(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("policy", ctypes.c_char_p),
                ("experts", ctypes.c_int32), ("ranks", ctypes.c_int32),
                ("spare_slots", ctypes.c_int32), ("node_of", ctypes.POINTER(ctypes.c_int32)),
                ("replicas_min", ctypes.c_int32), ("compute_s_per_row", ctypes.c_double),
                ("comm_s_per_row", ctypes.c_double), ("replica_s", ctypes.c_double),
                ("migrate_s_per_expert", ctypes.c_double), ("horizon", ctypes.c_int64),
                ("prefer_survival", ctypes.c_int32), ("rank_speeds", ctypes.POINTER(ctypes.c_double))]


class Plan(ctypes.Structure):
    _fields_ = [("slots", ctypes.c_int32), ("expert_of", ctypes.POINTER(ctypes.c_int32)),
                ("primary", ctypes.POINTER(ctypes.c_int32)), ("quota", ctypes.POINTER(ctypes.c_int64)),
                ("before_s", ctypes.c_double), ("after_s", ctypes.c_double),
                ("reason", ctypes.c_char_p), ("primary_reason", ctypes.c_char_p)]


def main():
    lib = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else "build/libevenkeel.so")
    lib.ek_err_text.restype = ctypes.c_char_p

    def call(function, *args):
        if function(*args) < 0:
            sys.exit(lib.ek_err_text().decode())

    config = Config(size=ctypes.sizeof(Config), policy=b"exact", experts=EXPERTS, ranks=RANKS,
                    spare_slots=SPARE)
    balance, plan = ctypes.c_void_p(), Plan()
    call(lib.ek_balance_create, ctypes.byref(config), ctypes.byref(balance))
    counts = (ctypes.c_int64 * (RANKS * EXPERTS))(*([700] + [100] * (EXPERTS - 1)) * RANKS)
    call(lib.ek_balance_plan, balance, counts, ctypes.byref(plan))
    print(plan.reason.decode())
    for r in range(RANKS):
        slots = range(r * plan.slots, (r + 1) * plan.slots)
        print("rank %d:" % r, {plan.expert_of[s]: plan.quota[s] for s in slots
                               if plan.expert_of[s] >= 0})
    rows = (ctypes.c_int64 * (RANKS * RANKS * SLOTS))()
    call(lib.ek_balance_split, balance, counts, rows)
    away = sum(n for i, n in enumerate(rows) if i % (RANKS * SLOTS) // SLOTS != i // (RANKS * SLOTS))
    print("%d of %d assignments leave their rank" % (away, sum(counts)))
    speeds = (ctypes.c_double * RANKS)(1, 1, 1, 0.5)
    call(lib.ek_balance_set_rank_speeds, balance, speeds)
    call(lib.ek_balance_plan, balance, counts, ctypes.byref(plan))
    loads = [sum(plan.quota[r * plan.slots:(r + 1) * plan.slots]) for r in range(RANKS)]
    print("with rank 3 at half speed, ranks serve", loads)
    lib.ek_balance_destroy(ctypes.byref(balance))


if __name__ == "__main__":
    main()
