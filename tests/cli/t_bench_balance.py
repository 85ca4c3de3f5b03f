"""bench/balance.py: what its table and its checks make of results, and the traces it cuts.  The
results are made up: nothing is measured here."""

import json
import os
import struct
import subprocess
import sys

import ek_cli

BENCH = os.path.join(os.path.dirname(ek_cli.TEST_DATA), "bench")
HEAD = {
    "settings": {"mpi": "mpich", "nodes": 4, "cpu": "0.5", "layers": 1, "experts": 32,
                 "batch": 320, "seq": 256, "steps": 4, "warm_up": 2, "spare_slots": 1,
                 "plan_every": 10, "seed": 0, "train_args": "", "trace": "t.npy"},
    "trace_first": 76, "mbit": 200.0,
    "best": {"mbit": 200.0, "net_ms": 2750.0, "experts_ms": 5500.0, "compute_ms": 5600.0}}


def step(n, ms, **more):
    return {"step": n, "tokens": 1000, "step_ms": ms, "loss": 5.0 + n, "comm_bytes": 4e6,
            "rank_max_over_mean_before": 2.0, "rank_max_over_mean": 1.25, "replica_mb": 3.5,
            "plan_ms": 0.125, "replica_wait_ms": 7.5, **more}


def start(policy, times, repeat=0, workload="trace", **more):
    """A start whose two counted steps take these times."""
    steps = [step(0, 9000.0), step(1, 500.0), *(step(2 + i, ms) for i, ms in enumerate(times))]
    return {"workload": workload, "bandwidth": 1, "policy": policy, "repeat": repeat,
            "program": "a", "others": 0.01, "steps": steps, **more}


class Table(ek_cli.Case):
    def table(self, rows, status, head=HEAD, tail=""):
        path = ek_cli.write(self.path("results.jsonl"),
                            "".join(json.dumps(r) + "\n" for r in [head, *rows]) + tail)
        r = subprocess.run([sys.executable, "-B", os.path.join(BENCH, "balance.py"), "--table",
                            "--results", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, check=False, timeout=ek_cli.TIMEOUT_S)
        self.assertEqual(r.returncode, status, r.stdout + r.stderr)
        return r.stdout

    def test_row(self):
        out = self.table([start("force-balance", [400, 500]), start("exact", [500, 500])], 0,
                         tail='{"torn')
        self.assertIn("| trace | x 1 | `exact` | 2000 | 0.900 (0.800 .. 1.000) | 2.000 | 1.250 | "
                      "3.5 | 4.0 | 0.125 | 7.5 | 0 | 0 |", out)
        self.assertIn("auto was not measured", out)
        self.assertIn("exact/force-balance on the recorded trace, bandwidth x 1: 0.900", out)

    def test_turns(self):
        out = self.table([start("force-balance", [400, 400]), start("off", [800, 800]),
                          start("force-balance", [500, 500], 1), start("off", [500, 500], 1),
                          start("off", [100, 100], 2)], 0)
        self.assertIn("`off` | 2000 | 0.750 (0.500 .. 1.000) |", out)
        self.assertIn("2 to 3 turns a row", out)

    def test_moves_are_charged(self):
        moved = start("place", [500, 500])
        moved["steps"][1] = step(1, 1500.0, experts_moved=6)
        out = self.table([start("force-balance", [500, 500]), moved], 0)
        self.assertIn("`place` | 1667 | 0.833 (0.833 .. 0.833) |", out)
        self.assertIn("| 6 | 100 |", out)

    def test_auto_behind(self):
        ceiling = start("force-balance", [400, 400], workload="W1")
        others = [ceiling, start("off", [900, 900], workload="W1"),
                  start("exact", [500, 500], workload="W1")]
        out = self.table([*others, start("auto", [505, 505], workload="W1")], 1)
        self.assertIn("W1, bandwidth x 1: auto 0.792 is behind exact 0.800", out)
        out = self.table([*others, start("auto", [400, 640], workload="W1")], 0)
        self.assertIn("behind by at most 0.031, nowhere by more than the spread", out)

    def test_auto_on_the_trace(self):
        ceiling = start("force-balance", [465, 465])
        self.assertIn("0.930, at least 0.92 is wanted\n",
                      self.table([ceiling, start("auto", [500, 500])], 0))
        self.assertIn("0.912, at least 0.92 is wanted: missed",
                      self.table([ceiling, start("auto", [510, 510])], 1))

    def test_failed_start(self):
        failed = start("exact", [])
        del failed["steps"], failed["others"]
        failed["failed"] = "ended with status 3: no | memory"
        rows = [start("force-balance", [400, 400]), failed]
        out = self.table(rows, 1)
        self.assertIn("| failed: ended with status 3: no / memory ||", out)
        self.assertIn("failed: trace, bandwidth x 1, exact, turn 1", out)
        self.assertIn("`exact` | 2500 |", self.table([*rows, start("exact", [400, 400])], 0))

    def test_other_work(self):
        other = start("exact", [400, 400])
        other["steps"][3]["loss"] += 0.1
        out = self.table([start("off", [400, 400]), other], 1)
        self.assertIn("step 3: loss 8.100000 with exact, 8.000000 with off: not the same work", out)

    def test_busy_machine(self):
        out = self.table([start("off", [400, 400], others=0.5)], 0)
        self.assertIn("2500 |  * |", out)
        self.assertIn("others kept more than 0.1 cores busy", out)
        out = self.table([start("force-balance", [400, 400], others=0.5),
                          start("off", [400, 400])], 0)
        self.assertIn("`off` | 2500 | 1.000 (1.000 .. 1.000) * |", out)


class Cut(ek_cli.Case):
    def test_layers_and_iterations(self):
        """Of 3 iterations and 4 layers, from the last iteration on round to the first."""
        whole, part = self.path("whole.npy"), self.path("part.npy")
        text = "{'descr': '<u2', 'fortran_order': False, 'shape': (3, 4, 2, 5), }"
        text += " " * (-(len(text) + 11) % 64) + "\n"
        numbers = range(3 * 4 * 2 * 5)
        ek_cli.write(whole, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() +
                     struct.pack("<120H", *numbers))
        code = ("import sys; sys.path.insert(0, sys.argv[1]); from balance import cut_trace;"
                "cut_trace(sys.argv[2], 2, 2, 2, sys.argv[3])")
        subprocess.run([sys.executable, "-B", "-c", code, BENCH, whole, part], check=True,
                       timeout=ek_cli.TIMEOUT_S)
        data = ek_cli.read(part)
        self.assertEqual(len(data) % 64, 2 * 40 % 64)
        self.assertIn(b"'shape': (2, 2, 2, 5)", data[:128])
        got = struct.unpack("<40H", data[-80:])
        at = [(2 * 4 + 1) * 10, (2 * 4 + 3) * 10, 1 * 10, 3 * 10]
        self.assertEqual(list(got), [n for a in at for n in range(a, a + 10)])


if __name__ == "__main__":
    ek_cli.main()
