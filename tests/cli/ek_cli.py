"""Shared by the command-line tests: running the command, small models and data, reading its
files.

The path of the command is in EK_COMMAND, the folder tests/ in EK_TEST_DATA.  Every test works
in a new folder and passes all paths to the command."""

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # tests share the cores
# ... and what machines were measured to take, but not with their user
MEASURED = os.path.join(tempfile.gettempdir(), "evenkeel-tests-%d" % os.getuid())
os.environ["XDG_CACHE_HOME"] = MEASURED
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # under nohup; tests send this signal
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
COMMAND = os.environ.get("EK_COMMAND", "evenkeel")
TEST_DATA = os.environ.get(
    "EK_TEST_DATA", os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TIMEOUT_S = 300

DONE, FAILED, USAGE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 3, 130

# 300 ids: enough for the byte tokenizer and its end token.
CONFIG = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_act": "silu",
    "vocab_size": 300, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_local_experts": 4,
    "num_experts_per_tok": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": None,
    "eos_token_id": 256, "torch_dtype": "float32", "initializer_range": 0.1,
}


def run(*args, **kw):
    """The command with these arguments; never raises for its exit status."""
    kw.setdefault("timeout", TIMEOUT_S)
    return subprocess.run([COMMAND, *map(str, args)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                          errors="replace", check=False, **kw)


def some(things, every, first=0):
    """One of so many, from the first on; with EK_TEST_ALL, as in the long tests, all of them."""
    return things if os.environ.get("EK_TEST_ALL") else things[first::every]


def mpiexec():
    """Its path, or None."""
    for line in run("info").stdout.splitlines():
        path = line.split("started by ")[-1]
        if line.startswith("MPI: ") and os.access(path, os.X_OK):
            return path
    return None


class Process(subprocess.Popen):
    """Killed where its block ends with a failure, which would wait for it otherwise."""

    def __exit__(self, kind, value, traceback):
        if kind is not None:
            self.kill()
        super().__exit__(kind, value, traceback)


def start(*args, **kw):
    return Process([COMMAND, *map(str, args)], stdout=subprocess.PIPE,
                   stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, **kw)


def without_waits(err):
    """What a command prints, without "waiting for ..." lines, which a busy machine may cause."""
    return "".join(s for s in err.splitlines(True) if ": waiting for " not in s)


def write(path, content):
    mode = "wb" if isinstance(content, bytes) else "w"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, mode) as f:
        f.write(content)
    return path


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write_config(path, **changes):
    return write(path, json.dumps({**CONFIG, **changes}))


def machine(dtype="bf16", flops=1e12, link=1e9, latency=1e-5, links=("node", "net")):
    """A machine file: one rate for all products, 1 TB/s of copies, links of one bandwidth."""
    sizes = [1024, 1 << 20]
    rate = {"rows_an_expert": [1], "flops_per_s": [flops]}
    times = [max(latency, n / link) for n in sizes]
    traffic = {"ranks_a_node": 1,
               "all_to_all": {"message_bytes": sizes, "seconds_a_message": times},
               "multicast": {"message_bytes": sizes, "seconds_a_hop": times}}
    return {"evenkeel_machine": 1, "name": "made by hand", "key": "", "dtype": dtype, "ranks": 2,
            "nodes": 2, "threads": 1, "measured_in_s": 1, "copy_bytes_per_s": 1e12,
            "expert": {"hidden": 512, "ff": 1024, "experts": 4, "forward": rate,
                       "backward_input": rate, "backward_weight": rate},
            **{name: traffic for name in links}}


def token_ids(n, seed=1, vocab=300):
    """Token ids with learnable structure: short repeated patterns."""
    rng = random.Random(seed)
    words = [[rng.randrange(vocab) for _ in range(rng.randrange(2, 6))] for _ in range(20)]
    ids = []
    while len(ids) < n:
        ids += rng.choice(words)
    return ids[:n]


def write_tokens(path, ids, token_bytes=2):
    return write(path, struct.pack("<%d%s" % (len(ids), "HI"[token_bytes == 4]), *ids))


def metrics(out):
    with open(os.path.join(out, "metrics.jsonl")) as f:
        return [json.loads(line) for line in f]


def losses(out):
    return [m["loss"] for m in metrics(out)]


def newest(out):
    """The folder of the newest checkpoint of a run."""
    folder = os.path.join(out, "checkpoint")
    return os.path.join(folder, max(os.listdir(folder)))


def weights(out):
    return read(os.path.join(newest(out), "model.safetensors"))


def safetensors(path):
    """name -> (dtype, shape, bytes), parsed by hand."""
    data = read(path)
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    body = data[8 + n:]
    return {k: (v["dtype"], tuple(v["shape"]), body[v["data_offsets"][0]:v["data_offsets"][1]])
            for k, v in header.items()}


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)."""
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return write(path, struct.pack("<Q", len(text)) + text + body)


def tree(folder):
    """Every file below a folder, with its content."""
    found = {}
    for at, _, files in os.walk(folder):
        for name in files:
            path = os.path.join(at, name)
            found[os.path.relpath(path, folder)] = read(path)
    return found


def lines_of(path):
    try:
        with open(path, "rb") as f:
            return f.read().count(b"\n")
    except FileNotFoundError:
        return 0


def wait_for_steps(process, out, n):
    """Waits until a run has written n lines of metrics, or has ended."""
    path = os.path.join(out, "metrics.jsonl")
    end = time.monotonic() + TIMEOUT_S
    while lines_of(path) < n and process.poll() is None and time.monotonic() < end:
        time.sleep(0.001)


def share_costs(source, target):
    """Copies measured machine costs from one cache to another."""
    source, target = os.path.join(source, "evenkeel"), os.path.join(target, "evenkeel")
    os.makedirs(target, exist_ok=True)
    for name in os.listdir(source) if os.path.isdir(source) else ():
        if name.startswith("machine-") and name.endswith(".json") \
                and not os.path.exists(os.path.join(target, name)):
            own = os.path.join(target, "%s.%d" % (name, os.getpid()))
            shutil.copyfile(os.path.join(source, name), own)
            os.replace(own, os.path.join(target, name))


def terminal_output(main):
    """What is written to a pseudoterminal, piece by piece, until its other side is closed."""
    while True:
        try:
            piece = os.read(main, 4096)
        except OSError:  # what Linux says when the other side has closed
            return
        if not piece:
            return
        yield piece


class Case(unittest.TestCase):
    """A test with a folder, a small model, a token file and a cache of its own."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ek-test-")
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.addCleanup(os.environ.update, XDG_CACHE_HOME=MEASURED)
        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="ek-test-cache-")
        self.tokens = os.path.join(os.environ["XDG_CACHE_HOME"], "evenkeel", "tokens")
        self.addCleanup(shutil.rmtree, os.environ["XDG_CACHE_HOME"], True)
        self.addCleanup(share_costs, os.environ["XDG_CACHE_HOME"], MEASURED)
        share_costs(MEASURED, os.environ["XDG_CACHE_HOME"])
        self.config = write_config(self.path("config.json"))
        self.data = write_tokens(self.path("data.bin"), token_ids(1500))

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def train_args(self, out, *more, dtype="fp32", data=None, steps=6):
        """Arguments of a short run; options in `more` take precedence.  It replaces an earlier run
        in its folder.  Texts are read as bytes."""
        if os.path.isdir(self.path(out)) and "--resume" not in more and "--elastic" not in more:
            more = ("--overwrite", *more)
        if data and (not data.endswith(".bin") or os.path.isdir(data)):
            more = ("--tokenizer", "bytes", *more)
        return ["train", "--model", self.config, "--data", data or self.data, "--out",
                self.path(out), "--steps", steps, "--batch", 4, "--seq", 16, "--threads", 2,
                "--dtype", dtype, *more]

    def train(self, out, *more, status=DONE, **kw):
        r = run(*self.train_args(out, "--quiet", *more, **kw))
        self.assertEqual(r.returncode, status, r.stderr)
        return r

    def evaluate(self, model, data, *more, dtype="fp64"):
        r = run("eval", "--model", model, "--data", data, "--seq", 16, "--dtype", dtype,
                "--threads", 2, "--json", *more, env={**os.environ, "TMPDIR": self.folder})
        self.assertEqual(r.returncode, DONE, r.stderr)
        return json.loads(r.stdout)

    def peak_bytes(self, *args):
        """Peak resident bytes of a command, from a process that has no other child."""
        script = ("import resource, subprocess, sys\n"
                  "r = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)\n"
                  "print(r.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        r = subprocess.run([sys.executable, "-c", script, COMMAND, *map(str, args)], check=True,
                           capture_output=True, text=True)
        status, kib = map(int, r.stdout.split())
        self.assertEqual(status, DONE, r.stderr)
        return kib * 1024

    def assert_close(self, a, b, relative):
        self.assertEqual(len(a), len(b))
        for i, (x, y) in enumerate(zip(a, b)):
            self.assertLessEqual(abs(x - y), relative * abs(y), "entry %d: %r, %r" % (i, x, y))


def main():
    """unittest.main, with status 77 when every test was skipped."""
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    if not result.wasSuccessful() or result.testsRun == 0:
        sys.exit(1)
    sys.exit(77 if len(result.skipped) == result.testsRun else 0)
