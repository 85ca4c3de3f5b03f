"""evenkeel check, and checkpoints in several files: intact ones pass, defects are named, and
every command reads a checkpoint that other tools have split into files in any way."""

import json
import os
import random
import shutil

import ek_cli
from ek_cli import BAD_INPUT, DONE, USAGE, losses, read, run, safetensors, write

M = 2**64 - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def rotl(x, r):
    return (x << r | x >> (64 - r)) & M


def xxh64(data):
    """XXH64 with seed 0, by its specification."""
    def mixed(acc, lane):
        return rotl((acc + lane * P2) & M, 31) * P1 & M

    n, at = len(data), 0
    h = P5
    if n >= 32:
        v = [(P1 + P2) & M, P2, 0, (-P1) & M]
        while at + 32 <= n:
            for i in range(4):
                lane = int.from_bytes(data[at + 8 * i:at + 8 * i + 8], "little")
                v[i] = mixed(v[i], lane)
            at += 32
        h = (rotl(v[0], 1) + rotl(v[1], 7) + rotl(v[2], 12) + rotl(v[3], 18)) & M
        for x in v:
            h = ((h ^ mixed(0, x)) * P1 + P4) & M
    h = (h + n) & M
    while at + 8 <= n:
        h = (rotl(h ^ mixed(0, int.from_bytes(data[at:at + 8], "little")), 27) * P1 + P4) & M
        at += 8
    if at + 4 <= n:
        h = (rotl(h ^ int.from_bytes(data[at:at + 4], "little") * P1 & M, 23) * P2 + P3) & M
        at += 4
    for byte in data[at:]:
        h = rotl(h ^ byte * P5 & M, 11) * P1 & M
    for shift, prime in ((33, P2), (29, P3)):
        h = (h ^ h >> shift) * prime & M
    return h ^ h >> 32


def box_of(tensor, box):
    """The bytes of rows r0..r1, columns c0..c1 of a (dtype, shape, bytes)."""
    dtype, shape, data = tensor
    size = {"F32": 4, "F64": 8}[dtype]
    width = shape[1] if len(shape) > 1 else 1
    r0, r1, c0, c1 = box
    rows = (data[(r * width + c0) * size:(r * width + c1) * size] for r in range(r0, r1))
    return b"".join(rows)


def cut(tensor, rng):
    """Splits a tensor into up to five slices."""
    shape = tensor[1]
    boxes = [(0, shape[0], 0, shape[1] if len(shape) > 1 else 1)]
    for _ in range(rng.randrange(5)):
        r0, r1, c0, c1 = boxes.pop(rng.randrange(len(boxes)))
        if r1 - r0 > 1 and (len(shape) == 1 or rng.random() < 0.5):
            r = rng.randrange(r0 + 1, r1)
            boxes += [(r0, r, c0, c1), (r, r1, c0, c1)]
        elif c1 - c0 > 1:
            c = rng.randrange(c0 + 1, c1)
            boxes += [(r0, r1, c0, c), (r0, r1, c, c1)]
        else:
            boxes.append((r0, r1, c0, c1))
    return boxes


def part(name, tensor, box):
    """The name and the (dtype, shape, bytes) of one slice."""
    dtype, shape, _ = tensor
    r0, r1, c0, c1 = box
    data = box_of(tensor, box)
    if (r0, r1, c0, c1) == (0, shape[0], 0, shape[1] if len(shape) > 1 else 1):
        return name, (dtype, shape, data)
    if len(shape) == 1:
        return "%s[%d:%d]" % (name, r0, r1), (dtype, (r1 - r0,), data)
    return "%s[%d:%d,%d:%d]" % (name, r0, r1, c0, c1), (dtype, (r1 - r0, c1 - c0), data)


def seal(folder, layout=None):
    """Writes a manifest of the folder's files."""
    path = os.path.join(folder, "manifest.json")
    manifest = json.loads(read(path))
    names = sorted(n for n in os.listdir(folder) if n != "manifest.json")
    manifest["files"] = {}
    for name in names:
        data = read(os.path.join(folder, name))
        manifest["files"][name] = {"bytes": len(data), "xxh64": "%016x" % xxh64(data)}
    if layout:
        manifest["layout"] = layout
    write(path, json.dumps(manifest))


def into_parts(folder, ranks, seed, twist=None):
    """Cuts a whole checkpoint in place into parts, in files of `ranks` ranks.  twist(parts) may
    change the list of (name, tensor)."""
    rng = random.Random(seed)
    for kind in ("model", "optimizer"):
        whole = os.path.join(folder, kind + ".safetensors")
        parts = [part(name, tensor, box) for name, tensor in safetensors(whole).items()
                 for box in cut(tensor, rng)]
        rng.shuffle(parts)
        if twist:
            twist(kind, parts)
        index = {}
        for r in range(ranks):
            mine = dict(parts[r::ranks])
            name = "%s-%05d-of-%05d.safetensors" % (kind, r + 1, ranks)
            ek_cli.write_safetensors(os.path.join(folder, name), mine)
            index.update({key: name for key in mine})
        write(whole + ".index.json", json.dumps({"metadata": {}, "weight_map": index}))
        os.remove(whole)
    seal(folder, {"ranks": ranks, "dp": ranks, "zero": 1})


class Base(ek_cli.Case):
    def setUp(self):
        super().setUp()
        self.train("run", "--save-every", 2, "--keep", 3, steps=4)
        self.newest = ek_cli.newest(self.path("run"))

    def check(self, folder, *more, status=DONE):
        r = run("check", "--checkpoint", folder, *more)
        self.assertEqual(r.returncode, status, r.stderr)
        if status == DONE:
            self.assertEqual(r.stderr, "")
            return json.loads(r.stdout) if "--json" in more else r.stdout
        self.assertEqual(r.stdout, "")
        self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
        return r.stderr


class Whole(Base):
    def test_what_is_in_it(self):
        for folder in (self.path("run"), self.path("run", "checkpoint"), self.newest):
            c = self.check(folder, "--json")
            self.assertEqual((c["checkpoint"], c["step"], c["model"], c["dtype"], c["layout"]),
                             (self.newest, 4, "mixtral", "fp32", {"ranks": 1}))
            tensors = safetensors(os.path.join(self.newest, "model.safetensors"))
            self.assertEqual(c["weights"], len(tensors))
            self.assertEqual(c["moments"], 2 * len(tensors))
            self.assertEqual(c["params"], sum(len(t[2]) // 4 for t in tensors.values()))
            files = [n for n in os.listdir(self.newest) if n != "manifest.json"]
            self.assertEqual(sorted(c["files"]), sorted(files))
            for name in files:
                data = read(os.path.join(self.newest, name))
                self.assertEqual(c["files"][name],
                                 {"bytes": len(data), "xxh64": "%016x" % xxh64(data)})
            self.assertEqual(c["bytes"], sum(f["bytes"] for f in c["files"].values()))
        text = self.check(self.path("run"))
        for word in (self.newest, "mixtral", "1 rank", "fp32", "checksums verified"):
            self.assertIn(word, text)

    def test_damage_is_named(self):
        """Checks the newest, even if the previous one is intact."""
        for name in sorted(os.listdir(self.newest)):
            file = os.path.join(self.newest, name)
            good = read(file)
            bad = bytearray(good)
            bad[len(bad) // 2] ^= 1
            for data in (bytes(bad), good[:-1], good + b"\n" if name != "manifest.json" else b"{"):
                write(file, data)
                # a manifest may be damaged in the checksum of another file, which is named then
                self.assertIn("manifest" if name == "manifest.json" else name,
                              self.check(self.path("run"), status=BAD_INPUT))
            os.remove(file)
            self.assertIn(name, self.check(self.path("run"), status=BAD_INPUT))
            write(file, good)
        self.check(self.path("run"))

    def test_sealed_but_wrong(self):
        """Files with correct checksums that do not hold the model."""
        moments = os.path.join(self.newest, "optimizer.safetensors")
        good = safetensors(moments)
        name = "model.norm.weight.exp_avg_sq"
        ek_cli.write_safetensors(moments, {k: v for k, v in good.items() if k != name})
        seal(self.newest)
        self.assertIn(name + " is missing", self.check(self.newest, status=BAD_INPUT))
        ek_cli.write_safetensors(moments, {**good, "more": ("F32", (1,), bytes(4))})
        seal(self.newest)
        self.assertIn("more is not part", self.check(self.newest, status=BAD_INPUT))
        ek_cli.write_safetensors(moments, {**good, name: ("I32", (16,), bytes(64))})
        seal(self.newest)
        self.assertIn(name, self.check(self.newest, status=BAD_INPUT))
        os.remove(moments)
        seal(self.newest)
        self.assertIn("optimizer.safetensors", self.check(self.newest, status=BAD_INPUT))

    def manifest(self, **changes):
        path = os.path.join(self.newest, "manifest.json")
        write(path, json.dumps({**json.loads(read(path)), **changes}))

    def test_a_manifest_that_leaves_out(self):
        path = os.path.join(self.newest, "manifest.json")
        good = read(path)
        files = json.loads(good)["files"]
        self.manifest(files={})
        self.assertIn("lists no files", self.check(self.newest, status=BAD_INPUT))
        for name in ("config.json", "state.json", "run.json", "model.safetensors",
                     "optimizer.safetensors"):
            self.manifest(files={k: v for k, v in files.items() if k != name})
            said = self.check(self.newest, status=BAD_INPUT)
            self.assertIn(name + " is not listed in the manifest", said)
            os.rename(os.path.join(self.newest, name), self.path("away"))
            if name != "run.json":  # which older versions did not write
                said = self.check(self.newest, status=BAD_INPUT)
                self.assertIn("lists no " + name, said)
            os.rename(self.path("away"), os.path.join(self.newest, name))
        write(path, good)
        write(os.path.join(self.newest, "model-00001-of-00002.safetensors"), "x")
        self.assertIn("model-00001-of-00002.safetensors is not listed",
                      self.check(self.newest, status=BAD_INPUT))
        os.remove(os.path.join(self.newest, "model-00001-of-00002.safetensors"))
        write(os.path.join(self.newest, "README.md"), "my notes")
        self.check(self.newest)

    def test_another_step(self):
        self.manifest(step=3)
        said = self.check(self.path("run"), status=BAD_INPUT)
        self.assertIn("the manifest is of step 3, the folder of another", said)
        copy = shutil.copytree(self.newest, self.path("copy"))
        self.assertIn("it has taken 4 steps, and the manifest is of step 3",
                      self.check(copy, status=BAD_INPUT))
        r = self.train("run", "--resume", steps=6)
        self.assertRegex(r.stderr, "warning: .*step-00000004.*of step 3")

    def test_an_empty_manifest_is_passed_over(self):
        self.manifest(files={})
        r = self.train("run", "--resume", steps=6)
        self.assertRegex(r.stderr, "warning: .*step-00000004.*lists no files")
        self.assertEqual(self.check(self.path("run"), "--json")["step"], 6)

    def test_content_with_right_checksums(self):
        for name, content in (("state.json", b"{}"), ("state.json", b"{\"steps_done\": 4}"),
                              ("state.json", b"\0\1"), ("run.json", b"[]"),
                              ("tokenizer.json", b"{}"), ("config.json", b"{}")):
            file = os.path.join(self.newest, name)
            good = read(file) if os.path.exists(file) else None
            write(file, content)
            seal(self.newest)
            self.assertIn(file, self.check(self.newest, status=BAD_INPUT))
            if good is None:
                os.remove(file)
            else:
                write(file, good)
            seal(self.newest)
        self.check(self.newest)

    def test_none_there(self):
        os.mkdir(self.path("empty"))
        for folder in (self.path("nowhere"), self.path("empty"), self.config):
            self.assertIn(folder, self.check(folder, status=BAD_INPUT))
        self.assertEqual(run("check").returncode, USAGE)


class Parts(Base):
    def parts(self, name, *args):
        shutil.copytree(self.path("run"), self.path(name))
        into_parts(ek_cli.newest(self.path(name)), *args)
        return self.path(name)

    def test_all_commands(self):
        for ranks, seed in ((2, 1), (5, 2)):
            name = "cut%d" % ranks
            folder = self.parts(name, ranks, seed)
            c = self.check(folder, "--json")
            self.assertEqual((c["step"], c["layout"]["ranks"], c["dtype"]), (4, ranks, "fp32"))
            self.assertIn("%d ranks: dp %d zero 1" % (ranks, ranks), self.check(folder))
            self.assertEqual(self.evaluate(folder, self.data),
                             self.evaluate(self.path("run"), self.data))
            for source in ("run", name):
                r = run("export", "--from", self.path(source), "--to",
                        self.path("hf-" + source + name))
                self.assertEqual(r.returncode, DONE, r.stderr)
            self.assertEqual(ek_cli.tree(self.path("hf-" + name + name)),
                             ek_cli.tree(self.path("hf-run" + name)))
            said = [run("generate", "--model", m, "--prompt", "keel", "--tokens", 8, "--dtype",
                        "fp32", "--temperature", 0, "--tokenizer", "bytes") for m in (folder, self.path("run"))]
            self.assertEqual([r.returncode for r in said], [DONE, DONE])
            self.assertEqual(*(r.stdout for r in said))
            self.train("from-parts", "--init", ek_cli.newest(folder), steps=2)
            self.train("from-whole", "--init", self.newest, steps=2)
            self.assertEqual(losses(self.path("from-parts")), losses(self.path("from-whole")))

    def test_resume(self):
        more = ["--lr-schedule", "constant", "--resume", "--override"]
        folder = self.parts("cut", 3, 3)
        shutil.copytree(self.path("run"), self.path("same"))
        self.train("cut", *more, steps=8)
        self.train("same", *more, steps=8)
        self.assertEqual(losses(folder), losses(self.path("same")))
        trees = [ek_cli.tree(ek_cli.newest(f)) for f in (folder, self.path("same"))]
        for tree in trees:  # which have the command line, and its checksum
            del tree["run.json"], tree["manifest.json"]
        self.assertEqual(*trees)

    def test_holes_and_doubles(self):
        name = "model.embed_tokens.weight"

        def lose(kind, parts):
            if kind == "model":
                parts[:] = [p for p in parts if not p[0].startswith(name)] + [
                    (name + "[0:299,0:16]", ("F32", (299, 16), bytes(299 * 64)))]

        def double(kind, parts):
            if kind == "optimizer":
                parts.append((name + ".exp_avg[7:8,3:5]", ("F32", (1, 2), bytes(8))))

        def beyond(kind, parts):
            if kind == "model":
                parts.append((name + "[300:301,0:16]", ("F32", (1, 16), bytes(64))))

        for i, (twist, words) in enumerate([
                (lose, ["of tensor %s, row 299 from column 0 on" % name]),
                (double, [name + ".exp_avg[7:8,3:5]", "overlaps"]),
                (beyond, [name, "the config says [300, 16]"])]):
            folder = self.parts("bad%d" % i, 2, i, twist)
            said = self.check(folder, status=BAD_INPUT)
            for word in words:
                self.assertIn(word, said)
            r = run(*self.train_args("bad%d" % i, "--resume", "--quiet", steps=8))
            self.assertEqual(r.returncode, BAD_INPUT, r.stderr)
            self.assertIn(words[0], r.stderr)


if __name__ == "__main__":
    assert xxh64(b"") == 0xef46db3751d8e999 and xxh64(b"abc") == 0x44bc2cf5ad770999
    ek_cli.main()
