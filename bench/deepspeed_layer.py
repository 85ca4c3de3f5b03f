#!/usr/bin/python3
"""Times steps of DeepSpeed's MoE layer on CPUs, for bench/compare_layer.py, on the ranks of torch.distributed.run.

    python -m torch.distributed.run --standalone --nproc-per-node RANKS deepspeed_layer.py WORK.json

WORK.json has the sizes, `dtype`, `threads` of a rank, `steps`, `warm_up` and `cases`: each with `loads` [ranks][experts], assignments of the
ranks' tokens, and a `capacity` factor (0: no token is dropped).  The gate computes its logits, and a constant is added to those of the experts
that a token is to choose.  A step is forward, and backward with a given gradient of the output and 0.01 of the balance loss; cases alternate
step by step.  Rank 0 prints one JSON line: by case the milliseconds of the slowest rank, rows of an expert's product and dropped assignments.
"""
import json
import os
import sys
import time

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
import torch
import torch.distributed
import torch.nn.functional as F
from deepspeed.moe import layer, sharded_moe

TOP_K = 2
AUX = 0.01
CHOSEN = 20.0  # added to a logit; those of random weights are near 1


class Expert(torch.nn.Module):
    """SwiGLU, as evenkeel's."""

    def __init__(self, hidden, inner):
        super().__init__()
        self.gate = torch.nn.Linear(hidden, inner, bias=False)
        self.up = torch.nn.Linear(hidden, inner, bias=False)
        self.down = torch.nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Case:
    """The layer of a case, what steers its gate, and what its steps took."""

    def __init__(self, work, case, dtype):
        self.capacity = case["capacity"]
        self.layer = layer.MoE(work["hidden"], Expert(work["hidden"], work["inner"]), num_experts=work["experts"],
                               ep_size=torch.distributed.get_world_size(), k=TOP_K, capacity_factor=self.capacity or 1.0,
                               drop_tokens=self.capacity > 0, top2_2nd_expert_sampling=False)
        self.layer.set_deepspeed_parallelism()
        self.layer.to(dtype)
        self.loads = torch.tensor(case["loads"][torch.distributed.get_rank()])
        self.added = torch.zeros(work["tokens"], work["experts"])
        choices = torch.repeat_interleave(torch.arange(work["experts"]), self.loads)
        order = torch.randperm(work["tokens"], generator=torch.Generator().manual_seed(1))
        for j in range(TOP_K):  # different ones, as no expert has more than `tokens`
            self.added[order, choices[j * work["tokens"]:(j + 1) * work["tokens"]]] = CHOSEN
        self.ms = []

    def step(self, x, dy):
        """Seconds of the slowest rank."""
        global steering
        steering = self
        x.grad = None
        self.layer.zero_grad(set_to_none=True)
        torch.distributed.barrier()
        start = time.perf_counter()
        y, aux, counts = self.layer(x)
        torch.autograd.backward([y, aux * AUX], [dy, None])
        took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
        torch.distributed.all_reduce(took, op=torch.distributed.ReduceOp.MAX)
        if not torch.equal(counts, self.loads):
            sys.exit("the gate did not choose as it was told")
        return took.item()

    def result(self):
        dropped = (self.loads - self.rows).clamp(min=0).sum()
        torch.distributed.all_reduce(dropped)
        return {"ms": self.ms, "rows": self.rows, "dropped": dropped.item()}


def steer_gate():
    """Adds the case's constants to the logits of every gate, and notes its capacity."""
    plain = sharded_moe.top2gating

    def steered(logits, *rest):
        out = plain(logits + steering.added, *rest)
        steering.rows = int(out[1])
        return out

    sharded_moe.top2gating = steered


def main():
    with open(sys.argv[1]) as f:
        work = json.load(f)
    torch.set_num_threads(work["threads"])
    deepspeed.init_distributed("gloo", verbose=False)
    torch.manual_seed(1 + torch.distributed.get_rank())
    steer_gate()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[work["dtype"]]
    cases = [Case(work, c, dtype) for c in work["cases"]]
    x = torch.randn(work["tokens"], work["hidden"]).to(dtype).requires_grad_()
    dy = torch.randn(work["tokens"], work["hidden"]).to(dtype)
    for i in range(work["warm_up"] + work["steps"]):
        for c in cases:
            took = c.step(x, dy)
            if i >= work["warm_up"]:
                c.ms.append(took * 1e3)
    results = [c.result() for c in cases]
    if torch.distributed.get_rank() == 0:
        print(json.dumps({"deepspeed": deepspeed.__version__, "torch": torch.__version__, "cases": results}))
    torch.distributed.destroy_process_group()


main()
