"""Random command lines, shared by t_fuzz_command.py and t_fuzz_command_long.py.

A line is derived from a valid, quick one by omitting, repeating and adding options with values
of all kinds; options are read from --help.  For every line the command must terminate with
status 0, 2 or 3 (1 for a runtime failure), print exactly one message on stderr when it fails,
print no control sequences, and leave no process, no file outside its output, and its inputs
unchanged.

Valid values that would make a line slow are not generated: sizes are small or invalid."""

import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import stat
import struct
import subprocess
import time

import ek_cli
from ek_cli import COMMAND, run, write

HANG_S = 600  # of one line; for hangs alone
MARK = "EK_FUZZ_MARK"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
COMMANDS = ("train", "train", "train", "train", "eval", "generate", "export", "check", "clean", "plan",
            "plan", "workload", "simulate", "simulate", "search", "fit", "bench", "info")
BENCHES = ("gemm", "kernels", "step", "generate", "moe", "balance", "a2a", "collectives", "costs", "disk")

CLUSTER = """{"evenkeel_cluster": 1, "name": "toy",
  "rank": {"machine": {"peak": 1e12, "memory_bytes_s": 1e11, "efficiency": 0.5}},
  "levels": [{"name": "node", "ranks": 4, "gbytes_s": 10, "us": 2}, {"name": "net", "ranks": 64, "gbytes_s": 1, "us": 9}]}"""

# Failures that are of the machine and may be status 1; all else is wrong usage or bad input.
FAILURES = ("no memory", "No space", "disk is full", "cannot write", "Permission denied", "CUDA",
            "mpiexec", "not finite", "memory of the host", "memory limit", "B of memory, and",
            "B of memory a rank: the smallest needs")

NUMBERS = ["0", "1", "2", "3", "-1", "-0", "+1", "01", " 1", "1 ", "", "x", "1x", "1.5", "1e3",
           "0x10", "nan", "inf", "-inf", "1e308", "1e-320", "1e999", "9" * 400, str(2**31),
           str(2**63), str(2**64), str(-2**63), str(2**64 - 1), "\u0661", "1,5", "null", "true",
           "\x1b[2J", "--1"]
# The only valid ones of which any size is quick.
ANY_SIZE = {"lr", "min-lr", "wd", "beta1", "beta2", "eps", "clip", "aux-coef", "z-coef",
            "capacity-factor", "seed", "keep", "save-every", "plan-every", "warmup", "pp", "tp", "ep",
            "etp", "replicas-min", "temperature", "top-p", "top-k", "min-p", "repetition-penalty",
            "timeline-from", "reroute-limit", "watchdog", "horizon"}
TEXTS = ["", "x", "-", "--", "auto", "bytes", "a b", "a\nb", "\x1b]0;t\x07", "nö-漢", "%s%n", "a" * 5000,
         "\udcff\udcfe", "'\"`$(x)", "{}", "../..", "1", "null"]
# These would act beyond the scratch folder, or start programs.
NEVER = {"all", "help"}
SAFE = {"discover": ["true", "false", "exit 3", "echo", "printf '\\001\\n'"],
        "mpiexec-args": ["", "-bogus", "\x1b"]}
OUTPUTS = {"out", "to", "emit", "timeline-file", "pool", "report"}
FLAG, NUMBER, CHOICE, TEXT, LIST = range(5)


def options_of(*words):
    """name -> (kind, word) from --help."""
    found = {}
    for line in run(*words, "--help").stdout.splitlines():
        m = re.match(r"  --([a-z0-9-]+)(?: (\S.*?))?(?:  |$)", line)
        if not m or m[1] in NEVER:
            continue
        word = m[2]
        if word is None:
            found[m[1]] = (FLAG, "")
        elif word in ("N", "X"):
            found[m[1]] = (NUMBER, word)
        elif "|" in word:
            found[m[1]] = (CHOICE, word)
        else:
            found[m[1]] = (LIST if word.endswith("...") else TEXT, word.rstrip("."))
    return found


class Scratch:
    """Inputs of all kinds, and folders for outputs."""

    def __init__(self, folder, case):
        self.folder = folder
        self.inputs = os.path.join(folder, "in")
        os.mkdir(self.inputs)
        self.model = ek_cli.write_config(self.at("config.json"))
        self.tokens = ek_cli.write_tokens(self.at("data.bin"), ek_cli.token_ids(600))
        self.text = write(self.at("a.txt"), "some words of a text\n" * 60)
        r = run("train", "--model", self.model, "--data", self.text, "--tokenizer", "bytes", "--out",
                self.at("run"), "--steps", 2, "--batch", 2, "--seq", 8, "--threads", 1, "--quiet",
                "--record-routing")
        case.assertEqual(r.returncode, 0, r.stderr)
        self.trace = self.at("run", "routing.npy")
        self.cluster = write(self.at("cluster.json"), CLUSTER)
        self.paths = [self.model, self.tokens, self.text, self.at("run"), self.trace, self.cluster,
                      ek_cli.newest(self.at("run")), *self.odd_paths()]
        self.hosts = [write(self.at("hosts"), "localhost\n"), write(self.at("no-hosts"), "# none\n"),
                      write(self.at("bad-hosts"), "local\x1bhost\nlocalhost slots=x\n"),
                      self.at("missing"), self.inputs]

    def at(self, *parts):
        return os.path.join(self.inputs, *parts)

    def odd_paths(self):
        os.mkfifo(self.at("fifo"))
        os.symlink("nowhere", self.at("dangling"))
        os.symlink("loop", self.at("loop"))
        os.mkdir(self.at("empty"))
        with socket.socket(socket.AF_UNIX) as s:
            os.chdir(self.inputs)  # such names are short
            s.bind("socket")
            os.chdir("/")
        header = b'{"x":{"dtype":"F32","shape":[4],"data_offsets":[0,99]}}'
        odd = [self.at(n) for n in ("fifo", "dangling", "loop", "empty", "socket", "missing")]
        for name, content in (("zero.bin", b""), ("deep.json", b"[" * 5000), ("text.npy", b"text\n"),
                              ("bad.safetensors", struct.pack("<Q", len(header)) + header),
                              ("huge.safetensors", b"\xff" * 64), ("list.json", b"[1, 2]"),
                              ("tokenizer.json", b'{"model": {"type": "\\u001b[2J"}}'),
                              ("bad.json", b'{"batch": }'), ("nul.json", b"\0" * 100),
                              ("bad.jsonl", b'{"text": 1}\n{'), ("bad.gz", b"\x1f\x8b123"),
                              ("bad.zst", b"\x28\xb5\x2f\xfd12"),
                              ("c\x1b[2J\n.txt", b"text"), ("\udcff.txt", b"text" * 40)):
            odd.append(write(self.at(name), content))
        for name, minor in (("null", 3), ("zero", 5), ("full", 7)):
            try:
                os.mknod(self.at(name), 0o666 | stat.S_IFCHR, os.makedev(1, minor))
                open(self.at(name), "rb").close()
                odd.append(self.at(name))
            except OSError:  # not root, or no devices here
                pass
        return odd + [self.at("a.txt", ""), "/" + "x" * 300, "/" + "x/" * 3000, "", ".", "-", "~"]

    def inputs_now(self):
        """State of all inputs: kind, size and modification time."""
        found = {}
        for at, folders, files in os.walk(self.inputs):
            for name in folders + files:
                path = os.path.join(at, name)
                s = os.lstat(path)
                found[path] = (s.st_mode, s.st_size if stat.S_ISREG(s.st_mode) else 0,
                               s.st_mtime_ns if stat.S_ISREG(s.st_mode) else 0, s.st_rdev)
        return found


class Fuzzer:
    def __init__(self, case, seed):
        self.case, self.seed = case, seed
        self.rng = random.Random(seed)
        self.scratch = Scratch(case.folder, case)
        self.options = {c: options_of(c) for c in set(COMMANDS)}
        self.bench_options = {name: options_of("bench", name) for name in BENCHES}
        self.mpi = ek_cli.mpiexec() is not None
        self.env = {**os.environ, "HOME": case.path("home"), "TMPDIR": case.path("tmp"),
                    "XDG_CACHE_HOME": case.path("cache"), "OMP_WAIT_POLICY": "passive",
                    MARK: case.folder}
        for name in ("home", "tmp", "cache", "cwd", "out"):
            os.mkdir(case.path(name))
        self.statuses = {}

    # --- lines ---------------------------------------------------------------------------------

    def base(self, command):
        """Options of a valid, quick line."""
        s, rng = self.scratch, self.rng
        small = {"threads": "1", "seq": "8"}
        lines = {
            "train": {"model": s.model, "data": rng.choice([s.tokens, s.tokens, s.text]), "out": self.out(),
                      "steps": "2", "batch": "2", "tokenizer": "bytes", "ranks": "1", **small},
            "eval": {"model": s.at("run"), "data": s.text, **small},
            "generate": {"model": s.at("run"), "prompt": "some", "tokens": "2", "threads": "1"},
            "export": {"from": s.at("run"), "to": self.out()},
            "check": {"checkpoint": s.at("run")},
            "clean": {"out": s.at("run")},
            "plan": {"trace": s.trace, "policy": "exact", "ranks": "2"},
            "workload": {"name": "W1", "ranks": "2", "experts": "4", "layers": "1", "iterations": "2",
                         "tokens": "8", "out": self.out()},
            "bench": {"model": s.model, "repeats": "1", "seconds": "0.001", "steps": "1", "batch": "2",
                      "prompt": "2", "tokens": "2", "longest": "1", "budget": "0.01", "file-size": "1",
                      **small},
            "simulate": {"cluster": s.cluster, "model": s.model, "ranks": rng.choice("1248"), "seq": "8", "batch": "8"},
            "search": {"cluster": s.cluster, "model": s.model, "ranks": rng.choice("124"), "seq": "8", "batch": "8",
                       "fix": rng.choice(["zero=1,recompute=off", "pp=1,zero=3", "tp=1,micro-batch=8"])},
            "fit": {"model": rng.choice([s.model, s.at("run")]), **small},
            "info": {},
        }
        line = lines[command]
        if command == "train" and self.mpi and rng.random() < 0.15:
            line["ranks"] = rng.choice("223")
            line.update({rng.choice(["pp", "tp", "ep", "etp", "zero", "pp-chunks"]): rng.choice("123")
                         for _ in range(2)})
            line.update(rng.choice([{}, {}, {"elastic": ""}, {"balance": "exact"}]))
        if command == "train" and rng.random() < 0.1:
            line.update({"out": shutil.copytree(s.at("run"), self.case.path(
                "out", "run%d" % rng.randrange(10**9))), rng.choice(["resume", "overwrite"]): ""})
        return line

    def out(self):
        """A path for output: usually free, sometimes taken or impossible."""
        rng, at = self.rng, self.case.path("out", "%d" % self.rng.randrange(10**9))
        kind = rng.randrange(12)
        if kind == 0:
            write(os.path.join(at, "mine"), "mine")
        elif kind == 1:
            write(at, "mine")
        elif kind == 2:
            at = os.path.join(at, "deeper", "still")
        elif kind == 3:
            at += "\x1b[2J\n"
        elif kind == 4:
            at += os.fsdecode(b"\xff")
        elif kind == 5:
            at += "x" * 300
        elif kind == 6:
            at = os.path.join(write(at, "a file"), "under")
        return at

    def value(self, command, name, kind, word):
        rng, s = self.rng, self.scratch
        if name in SAFE:
            return rng.choice(SAFE[name])
        if name in OUTPUTS or (command in ("bench", "simulate") and name == "timeline"):
            return self.out()
        if name == "hosts":
            return rng.choice(s.hosts)
        if name == "config":
            return self.config(command)
        if kind == NUMBER:
            return self.number(command, name)
        if kind == CHOICE and rng.random() < 0.8:
            return rng.choice(word.split("|"))
        if kind != CHOICE and ("FILE" in word or word in ("DIR", "PATH", "MODEL", "CHECKPOINT")):
            return rng.choice(s.paths)
        return rng.choice(TEXTS)

    def number(self, command, name):
        rng = self.rng
        if name == "ranks" and command in ("train", "bench"):
            return rng.choice(["1", "1", "2" if self.mpi else "1", "0", "-1", "1000001", "1000000"]
                              + NUMBERS[7:])
        if rng.random() < 0.3:
            return rng.choice("123")
        if name in ANY_SIZE:
            return rng.choice(NUMBERS + ["5", "1000", "0.5", "1e-30", "1e30", "1000000"])
        return rng.choice([n for n in NUMBERS if n != str(2**31)])

    def config(self, command):
        """A file of options, or of something else."""
        rng = self.rng
        if rng.random() < 0.3:
            return rng.choice(self.scratch.paths)
        names = rng.sample(sorted(self.options[command]), min(3, len(self.options[command])))
        content = {}
        for name in names:
            kind, word = self.options[command][name]
            if name != "config" and name not in NEVER:
                text = self.value(command, name, kind, word)
                content[name] = rng.choice([text.encode(errors="replace").decode(), [text[:9]], None, True,
                                            {}, -1]) if kind != NUMBER else rng.choice([1, -1, 2.5, "1"])
        path = self.case.path("tmp", "config-%d.json" % rng.randrange(10**9))
        return write(path, json.dumps(content))

    def line(self):
        rng = self.rng
        command = rng.choice(COMMANDS)
        if rng.random() < 0.02:
            return [rng.choice(["", "-h", "--version", "help", "tarin", "\x1b[2J", "--", "-", "x" * 999])]
        known, given = self.options[command], self.base(command)
        words = [command]
        if command == "bench":
            name = rng.choice(BENCHES)
            words += rng.choices([[name], [], ["x"], ["gemm", "step"]], [30, 1, 1, 1])[0]
            if rng.random() < 0.9:  # others are refused
                known = self.bench_options[name]
            given = {k: v for k, v in given.items() if k in known}
            if rng.random() < 0.7:  # measuring takes seconds
                given[rng.choice(sorted(given))] = rng.choice(["x", "nan", "-1", "", "1e99"])
        elif given and rng.random() < 0.15:
            del given[rng.choice([k for k in given])]
            if command == "train":  # whose sizes are large by default
                given.update({"steps": "2", "batch": "2", "seq": "8", "out": self.out(),
                              "model": self.scratch.model})
        for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3, 4])):
            name = rng.choice(sorted(known))
            given[name] = self.value(command, name, *known[name])
        for name, value in given.items():
            kind = known[name][0] if name in known else TEXT
            if kind == FLAG:
                words += ["--" + name] if rng.random() < 0.9 else ["--%s=%s" % (name, rng.choice(TEXTS))]
            elif rng.random() < 0.1:
                words.append("--%s=%s" % (name, value))
            else:
                words += ["--" + name, value]
        if rng.random() < 0.06:
            words.insert(rng.randrange(1, len(words) + 1),
                         rng.choice(TEXTS + ["--bogus", "--see", "--s", "---", "-x"]))
        return words

    # --- running -------------------------------------------------------------------------------

    def left_processes(self):
        """Processes of this test, without this one."""
        mark = ("%s=%s" % (MARK, self.case.folder)).encode()
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/environ" % pid, "rb") as f:
                    if mark in f.read().split(b"\0"):
                        found.append(int(pid))
            except OSError:
                pass
        return found

    def gone(self):
        """Waits briefly for exiting processes; kills and returns those that are left."""
        end = time.monotonic() + 60
        while self.left_processes() and time.monotonic() < end:
            time.sleep(0.05)
        left = self.left_processes()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return left

    def shared_memory(self):
        """Files in shared memory that name this test's folder."""
        found = []
        for name in os.listdir("/dev/shm"):
            try:
                with open(os.path.join("/dev/shm", name), "rb") as f:
                    if os.fsencode(self.case.folder) in f.read(8192):
                        found.append(name)
            except OSError:
                pass
        return found

    def try_line(self, words):
        """Runs one line; returns what is wrong with its outcome, or None."""
        before = self.scratch.inputs_now()
        argv = [COMMAND, *words]
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=self.env, cwd=self.case.path("cwd"),
                              start_new_session=True) as p:
            try:
                out, err = p.communicate(timeout=HANG_S)
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL)
                p.communicate()
                self.gone()
                return "it did not end"
        self.statuses[p.returncode] = self.statuses.get(p.returncode, 0) + 1
        wrong = self.check_end(words, p.returncode, out, err.decode(errors="surrogateescape"))
        left = self.gone() if p.returncode != 0 or "--ranks" in words else []
        if left:
            wrong = wrong or "it left processes: %s" % left
        wrong = wrong or self.check_files(words, before)
        return wrong

    def check_end(self, words, status, out, err):
        said = [line for line in err.split("\n") if line.startswith("evenkeel")
                and not re.match(r"evenkeel bench: (warning|info)|evenkeel \d", line)]
        if "Sanitizer" in err or "runtime error" in err:
            return "a sanitizer: " + err[-2000:]
        if status not in (0, 1, 2, 3):
            return "status %d: %s" % (status, err[-500:])
        if status == 1 and not any(f in err for f in FAILURES):
            return "status 1: " + err[-500:]
        if "bug of evenkeel" in err:
            return "a bug: " + err[-500:]
        if CONTROLS.search(err) or re.search("[\udc80-\udcff]", err):
            return "control characters or no UTF-8 on stderr: %r" % err[-500:]
        if words[0] != "generate" and CONTROLS.search(out.decode(errors="replace")):
            return "control characters on stdout: %r" % out[-500:]
        if status == 0 and [line for line in said if "usage" not in line
                            and "all steps are already completed" not in line]:
            return "it has failed with status 0: " + err[-500:]
        if status != 0 and len(said) != 1 and not err.startswith("evenkeel 0"):
            return "%d messages: %s" % (len(said), err[-800:])
        return None

    def check_files(self, words, before):
        after = self.scratch.inputs_now()
        changed = [p for p in {**before, **after} if before.get(p) != after.get(p)]
        if changed and "--resume" not in words and "--elastic" not in words:
            return "inputs changed: %s" % changed
        for name in ("home", "tmp", "cwd"):
            left = [n for n in os.listdir(self.case.path(name)) if not n.startswith("config-")]
            for n in left:
                path = self.case.path(name, n)
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
            if name == "cwd" and all(re.match(r"run(-\d+)?$", n) for n in left):
                left = []  # where train writes without --out
            if left:
                return "left in %s: %s" % (name, left)
        halves = [n for n in os.listdir(self.case.path("out")) if n.endswith((".tmp", ".part"))]
        if halves:
            return "left in out: %s" % halves
        if "--elastic" in words:
            run("clean", "--out", words[words.index("--out") + 1]) if "--out" in words else None
        shared = self.shared_memory()
        for name in shared:
            os.unlink(os.path.join("/dev/shm", name))
        return "left in shared memory: %s" % shared if shared else None

    def search(self, lines, seconds):
        """Runs a number of lines, or for a time; returns the findings."""
        found, end = [], time.monotonic() + seconds
        for i in range(lines):
            if time.monotonic() > end:
                break
            words = self.line()
            try:
                wrong = self.try_line(words)
            except ValueError as e:  # what cannot stand in a command line
                if "null byte" not in str(e):
                    raise
                continue
            if wrong:
                found.append("seed %d, line %d: %s\n    %s" % (
                    self.seed, i, " ".join(map(shlex.quote, map(repr_of, words))), wrong))
        return found


def repr_of(word):
    return word.encode("utf-8", "backslashreplace").decode()[:300]
