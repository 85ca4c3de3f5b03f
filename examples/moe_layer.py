#!/usr/bin/python3
"""A Mixture-of-Experts layer as a library, from Python by ctypes: one layer learns to imitate another.

usage: examples/moe_layer.py [build/libevenkeel.so]
       mpiexec -n 4 examples/moe_layer.py [build/libevenkeel.so]    with the experts on four ranks
"""

import array
import ctypes
import os
import random
import sys

HIDDEN, FF, EXPERTS, TOKENS, STEPS, RATE = 8, 12, 4, 64, 200, 0.2
EK_ENOENT = -53  # of evenkeel/err.h


class Config(ctypes.Structure):
    """ek_moe_layer_config of evenkeel/moe_layer.h, with its defaults."""

    _fields_ = (
        [("size", ctypes.c_size_t)]
        + [(name, ctypes.c_int64) for name in ("hidden", "ff", "experts", "top_k", "shared_ff")]
        + [("shared_gated", ctypes.c_int), ("tokens", ctypes.c_int64), ("act_slots", ctypes.c_int)]
        + [("gate", ctypes.c_char_p), ("normalise", ctypes.c_int)]
        + [("dtype", ctypes.c_char_p), ("threads", ctypes.c_int)]
        + [("world", ctypes.c_void_p), ("balance", ctypes.c_char_p), ("spare_slots", ctypes.c_int)]
        + [(name, ctypes.c_double) for name in ("compute_s_per_row", "comm_s_per_row", "replica_s")]
        + [(name, ctypes.c_double) for name in ("aux_coef", "z_coef", "capacity_factor")]
        + [("seed", ctypes.c_uint64), ("init_std", ctypes.c_double), ("watchdog", ctypes.c_double)]
    )

    def __init__(self, **settings):
        super().__init__(size=ctypes.sizeof(Config), gate=b"softmax", normalise=1, dtype=b"fp32",
                         **{"act_slots": 1, "balance": b"off", "watchdog": 300, **settings})


class Weight(ctypes.Structure):
    """ek_moe_layer_weight."""

    _fields_ = [("value", ctypes.POINTER(ctypes.c_float)), ("gradient", ctypes.POINTER(ctypes.c_float)),
                ("rows", ctypes.c_int64), ("cols", ctypes.c_int64)]


def address(numbers):
    return ctypes.c_void_p(numbers.buffer_info()[0])


class Layer:
    def __init__(self, lib, config):
        self.lib, self.layer = lib, ctypes.c_void_p()
        self.call("create", ctypes.byref(config), ctypes.byref(self.layer))

    def call(self, name, *arguments):
        """Returns EK_OK or EK_ENOENT."""
        status = getattr(self.lib, "ek_moe_layer_" + name)(*arguments)
        if status < 0 and status != EK_ENOENT:
            raise ValueError(self.lib.ek_err_message().decode())
        return status

    def forward(self, x, training):
        y = array.array("f", bytes(4 * len(x)))
        tokens = ctypes.c_int64(len(x) // HIDDEN)
        self.call("forward", self.layer, 0, address(x), tokens, training, address(y))
        return y

    def weights(self):
        """The weights that this rank has."""
        names = [("router", 0)] + [(name, e) for e in range(EXPERTS) for name in ("up", "down")]
        for name, expert in names:
            weight = Weight()
            which = ctypes.c_int64(expert)
            if self.call("param", self.layer, name.encode(), which, ctypes.byref(weight)) != EK_ENOENT:
                yield weight  # the others are on other ranks

    def learn(self, dy, rate):
        """Backward, and a step of gradient descent."""
        self.call("backward", self.layer, 0, address(dy), None)
        self.call("sum_gradients", self.layer)
        for weight in self.weights():
            for i in range(weight.rows * weight.cols):
                weight.value[i] -= rate * weight.gradient[i]
        self.call("pack", self.layer)
        self.call("zero_gradients", self.layer)

    def destroy(self):
        self.lib.ek_moe_layer_destroy(ctypes.byref(self.layer))


def join(lib):
    """The job that mpiexec has started, this process's rank in it, and the number of ranks."""
    world, started = ctypes.c_void_p(), os.environ.get("PMI_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE"))
    if started and lib.ek_job_join(ctypes.byref(world)) < 0:
        sys.exit(lib.ek_err_message().decode())
    ranks = max(lib.ek_job_size(world), 1)
    if started and int(started) != ranks:
        lib.ek_job_launcher.restype = ctypes.c_char_p
        sys.exit("%s processes were started, and MPI sees %d: start them with %s, the mpiexec of evenkeel's MPI"
                 % (started, ranks, lib.ek_job_launcher().decode()))
    return world, max(lib.ek_job_rank(world), 0), ranks


def main():
    lib = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else "build/libevenkeel.so")
    lib.ek_err_message.restype = ctypes.c_char_p
    world, rank, ranks = join(lib)
    sizes = {"hidden": HIDDEN, "ff": FF, "experts": EXPERTS, "top_k": 2, "tokens": TOKENS, "threads": 1}
    teacher = Layer(lib, Config(world=world, seed=1, init_std=0.4, **sizes))
    student = Layer(lib, Config(world=world, seed=2, init_std=0.3, balance=b"exact", spare_slots=1, **sizes))
    numbers = random.Random(rank)
    x = array.array("f", (numbers.gauss(0, 1) for _ in range(TOKENS * HIDDEN)))
    wanted = teacher.forward(x, 0)
    for step in range(STEPS + 1):
        wrong = [a - b for a, b in zip(student.forward(x, 1), wanted)]
        loss = sum(v * v for v in wrong) / len(wrong)
        first = loss if step == 0 else first
        if rank == 0 and step % 50 == 0:
            print("step %d: loss %.4f" % (step, loss))
        student.learn(array.array("f", (2 * v / len(wrong) / ranks for v in wrong)), RATE)
    student.destroy()
    teacher.destroy()
    if rank == 0:
        print("the layer %s" % ("imitates the other" if loss < 0.2 * first else "has learned too little"))
    lib.ek_job_leave(ctypes.byref(world))


if __name__ == "__main__":
    main()
