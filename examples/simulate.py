#!/usr/bin/python3
"""The simulator as a library, from Python by ctypes: expert parallelism on eight H100, then a search.

usage: examples/simulate.py [build/libevenkeel.so]
"""

import ctypes
import json
import os
import sys

CLUSTER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "clusters", "h100-64.json")


def library(path):
    """A function call(name, settings): the answer of ek_simulate_json or ek_search_json."""
    lib, free = ctypes.CDLL(path), ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    lib.ek_err_message.restype = ctypes.c_char_p

    def call(name, **settings):
        answer = ctypes.c_void_p()
        if getattr(lib, name)(json.dumps(settings).encode(), ctypes.byref(answer)) < 0:
            raise ValueError(lib.ek_err_message().decode())
        try:
            return json.loads(ctypes.string_at(answer))
        finally:
            free(answer)

    return call


def main():
    call = library(sys.argv[1] if len(sys.argv) > 1 else "build/libevenkeel.so")
    run = {"cluster": CLUSTER, "model": "small", "batch": 64, "seq": 256}
    for ep in 1, 2, 4, 8:
        report = call("ek_simulate_json", ranks=8, ep=ep, engine="flow", **run)
        print("ep %d: a step of %.2f ms" % (ep, report["step_ms"]))
    answer = call("ek_search_json", ranks=8, fix="etp=1", top=3, **run)
    for layout in answer["best"]:
        options = " ".join("--%s %s" % option for option in layout["options"].items())
        print("%.2f ms with %s" % (layout["step_ms"], options))
    with open(CLUSTER) as f:
        cluster = json.load(f)
    cluster["levels"][0]["gbytes_s"] /= 4  # a description of one's own, as text
    run["cluster"] = json.dumps(cluster)
    report = call("ek_simulate_json", ranks=8, ep=8, engine="flow", **run)
    print("with a quarter of NVLink's bandwidth ep 8: %.2f ms" % report["step_ms"])
    try:
        call("ek_simulate_json", ranks=128, **run)
    except ValueError as refusal:
        print(refusal)


if __name__ == "__main__":
    main()
