"""A cluster of nodes on this machine for the benchmarks (tools/cluster; needs root)."""

import json
import os
import re
import subprocess
import sys

TOOL = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools", "cluster")


# A Mixtral of one layer of 8 experts, as wide as the preset `small`, with the byte vocabulary.
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_act": "silu",
    "vocab_size": 320, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 1,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "num_local_experts": 8,
    "num_experts_per_tok": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "rope_theta": 1e6, "tie_word_embeddings": False, "torch_dtype": "float32",
    "initializer_range": 0.02,
}


def add_options(p, cpu):
    """Options that a Cluster takes; cpu: the default."""
    p.add_argument("--command", default="build/evenkeel", help="path of evenkeel")
    p.add_argument("--mpi", choices=("mpich", "openmpi"), default="mpich",
                   help="MPI that it is linked with")
    p.add_argument("--nodes", type=int, default=4)
    p.add_argument("--cpu", default=cpu, help="cores of a node; in total fewer than the machine "
                   "has (default: %(default)s)")


class Cluster:
    """A cluster that exists inside a `with` block.  o has nodes, cpu (cores of a node),
    mpi and command (path of evenkeel), and may have period (tools/cluster up --period) and
    ranks_a_node: then ranks are bound to different cores of their node.  (A node with one core is on
    it already; mpiexec would bind the first rank of each node to the first core of the machine.)"""

    def __init__(self, o):
        self.o = o
        self.name = "bench%d" % os.getpid()

    def words(self, *args):
        return [TOOL, "--name", self.name, *map(str, args)]

    def call(self, *args, what=None):
        r = subprocess.run(self.words(*args), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           stdin=subprocess.DEVNULL, text=True, check=False)
        if r.returncode == 77:
            print(r.stderr.strip() or r.stdout.strip(), file=sys.stderr)
            sys.exit(77)
        if r.returncode != 0:
            sys.exit("%s ended with status %d: %s" % (what or "cluster " + str(args[0]),
                                                      r.returncode, r.stderr.strip()))
        return r.stdout

    def __enter__(self):
        if os.geteuid() != 0:
            print("a cluster needs root", file=sys.stderr)
            sys.exit(77)
        try:
            self.call("up", "--nodes", self.o.nodes, "--cpu", self.o.cpu, "--bandwidth", "100mbit",
                      *(["--period", self.o.period] if hasattr(self.o, "period") else []),
                      *(["--cores", self.o.ranks_a_node] if hasattr(self.o, "ranks_a_node") else []))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        subprocess.run(self.words("down"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       check=False)

    def set_bandwidth(self, mbit):
        self.call("bandwidth", "all", "%dkbit" % round(1000 * mbit))

    def mpiexec(self, *args, ppn=1):
        """The command line of evenkeel with so many ranks on every node."""
        o = self.o
        bind = ["--bind-to" if o.mpi == "openmpi" else "-bind-to", "core"] if getattr(o, "ranks_a_node", 1) > 1 else []
        return ["mpiexec", "--mpi", o.mpi, "--ppn", ppn, "-n", ppn * o.nodes, *bind,
                os.path.abspath(o.command), *args]

    def bench(self, ppn, name, *args):
        """Results of `evenkeel bench` with so many ranks a node."""
        return json.loads(self.call(*self.mpiexec("bench", name, "--json", *args, ppn=ppn),
                                    what="bench " + name))

    def user_seconds(self):
        """What the processes of the nodes have computed."""
        total = 0.0
        for line in self.call("show").splitlines()[1:]:
            for pid in re.findall(r"\((\d+)\)", line):
                try:
                    with open("/proc/%s/stat" % pid) as f:
                        total += int(f.read().rsplit(")", 1)[1].split()[11])
                except (OSError, IndexError):
                    pass
        return total / os.sysconf("SC_CLK_TCK")

    def end_all(self):
        """Ends every process in the nodes at once; the nodes come back empty."""
        self.call("kill", "all")
        self.call("revive", "all")
