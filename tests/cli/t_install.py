"""`cmake --install`: what lies below the prefix is enough for a program that knows nothing but
pkg-config or find_package, for the command, for `man` and for shells."""

import glob
import json
import os
import re
import shutil
import signal
import subprocess

import ek_cli
from ek_cli import COMMAND, read, write

BUILD = os.path.dirname(os.path.abspath(COMMAND))
SOURCE = os.path.dirname(ek_cli.TEST_DATA)


def call(*args, **kw):
    return subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, text=True, check=False,
                          timeout=ek_cli.TIMEOUT_S, **kw)


def is_worker(pid, program):
    """Whether this process is a worker of the program: its parent is not the test."""
    try:
        with open("/proc/%s/cmdline" % pid, "rb") as f:
            words = f.read().split(b"\0")
        with open("/proc/%s/environ" % pid, "rb") as f:
            return words[0] == program.encode() and b"\0EK_LAUNCHED=" in f.read()
    except OSError:
        return False


class Install(ek_cli.Case):
    def setUp(self):
        super().setUp()
        if not os.path.exists(os.path.join(BUILD, "cmake_install.cmake")):
            self.skipTest("no build folder beside the command")
        if "asan" in os.path.basename(BUILD) or "tsan" in os.path.basename(BUILD):
            self.skipTest("nobody installs a build with sanitizers")
        self.prefix = self.path("prefix")
        r = call("cmake", "--install", BUILD, "--prefix", self.prefix)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.env = {**os.environ, "LD_LIBRARY_PATH": os.path.join(self.prefix, "lib"),
                    "PKG_CONFIG_PATH": os.path.join(self.prefix, "lib", "pkgconfig")}

    def compile(self, source, *more):
        flags = call("pkg-config", "--cflags", "--libs", *more, "evenkeel", env=self.env)
        self.assertEqual(flags.returncode, 0, flags.stderr)
        program = self.path(os.path.basename(source)[:-2])
        r = call("cc", "-Wall", "-Werror", source, "-o", program, *flags.stdout.split())
        self.assertEqual(r.returncode, 0, r.stderr)
        return program

    def test_make_build_makes_all_that_is_installed(self):
        """`make install` and cpack follow a build of the release preset's targets alone."""
        presets = json.loads(read(os.path.join(SOURCE, "CMakePresets.json")))["buildPresets"]
        targets = next(p["targets"] for p in presets if p["name"] == "release")
        r = call("ninja", "-C", BUILD, "-t", "commands", *targets)
        self.assertEqual(r.returncode, 0, r.stderr)
        installed = re.findall(r'"%s/((?:lib|man/|evenkeel)[^"]*)"' % re.escape(BUILD),
                               read(os.path.join(BUILD, "cmake_install.cmake")).decode())
        made = {f for f in installed if not f.endswith((".pc", ".cmake"))}
        self.assertGreater(len(made), 10)
        for file in made:
            self.assertIn(file, r.stdout)

    def test_programs_are_built_with_pkg_config_alone(self):
        texts = self.path("texts.txt")
        write(texts, "all work and no play makes jack a dull boy\n" * 200)
        r = call(self.compile(os.path.join(SOURCE, "examples", "train.c")), self.path("run"), texts,
                 env=self.env)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("step 30 of 30: loss ", r.stdout)
        first, last = (float(x) for x in re.findall(r"loss (\S+),", r.stdout)[::2][:2])
        self.assertLess(last, first)
        r = call(self.compile(os.path.join(SOURCE, "examples", "generate.c")), self.path("run"),
                 "all work ", env=self.env)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertGreater(len(r.stdout), 20)
        text = read(os.path.join(SOURCE, "README.md")).decode()
        write(self.path("write.c"), re.search(r"```c\n(.*?)```", text, re.S)[1])
        os.symlink("run", self.path("mine"))  # the run that README's program reads
        r = call(self.compile(self.path("write.c")), env=self.env, cwd=self.path())
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertGreater(len(r.stdout), 20)
        r = call(self.compile(os.path.join(SOURCE, "examples", "balance.c")), env=self.env)
        self.assertEqual(r.returncode, 0, r.stderr)

    def test_the_example_of_a_planner(self):
        program = self.compile(os.path.join(SOURCE, "examples", "planner.c"))
        r = call(program, env=self.env)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(r.stdout.splitlines()[0], "greedy: assignments moved 1 times")
        self.assertIn("rank 1 slot 2: expert 0 serves 60\n", r.stdout)
        if not ek_cli.mpiexec():
            self.skipTest("no mpiexec: one rank has nothing to balance")
        texts = write(self.path("texts.txt"), "all work and no play makes jack a dull boy\n" * 200)
        r = call(ek_cli.mpiexec(), "-n", 2, program, self.path("run"), texts, env=self.env)
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        m = re.fullmatch(r"greedy: (\d+) plans, (\S+) replicas a step, busiest rank (\S+) x the mean, "
                         r"(\S+) without\n", r.stdout)
        self.assertTrue(m, r.stdout)
        plans = [json.loads(line) for line in open(self.path("run", "plans.jsonl"))]
        self.assertEqual(int(m[1]), len(plans))
        self.assertEqual({re.sub(r"\d+", "N", p["reason"]) for p in plans},
                         {"greedy: assignments moved N times"})
        self.assertGreater(float(m[2]), 0)  # its placement was used
        self.assertLess(float(m[3]), float(m[4]))

    def test_the_api_reference_is_installed_if_it_was_made(self):
        if shutil.which("doxygen") is None:
            self.skipTest("no doxygen")
        pages = os.path.join("share", "doc", "evenkeel", "html", "planner_8h.html")
        api = os.path.join(BUILD, "api")
        if not os.path.exists(os.path.join(api, "html")):
            self.assertFalse(os.path.exists(os.path.join(self.prefix, pages)))
            self.addCleanup(shutil.rmtree, api, ignore_errors=True)
        os.makedirs(api, exist_ok=True)
        r = call("doxygen", os.path.join(BUILD, "Doxyfile"))
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        r = call("cmake", "--install", BUILD, "--prefix", self.prefix)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn(b"ek_planner_register", read(os.path.join(self.prefix, pages)))

    def test_the_example_of_an_elastic_program(self):
        """A worker is killed: the others of its generation end, and the next one goes on."""
        program = self.compile(os.path.join(SOURCE, "examples", "elastic.c"))
        if not ek_cli.mpiexec():
            self.skipTest("no mpiexec: no workers")
        r = call(program, self.path("run"), 1, 1, self.path("nothing"), env=self.env)
        self.assertNotEqual(r.returncode, 0)
        self.assertIn("nothing", r.stderr)
        self.assertFalse(os.path.exists(self.path("run")))
        texts = write(self.path("texts.txt"), "all work and no play makes jack a dull boy\n" * 200)
        steps = 200  # many are left when the worker is killed, also if that takes a moment
        p = subprocess.Popen([program, self.path("run"), "2", str(steps), texts], env=self.env,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(p.kill)
        said = []
        while not said or said[-1].split()[:2] != ["step", "5"]:
            said.append(p.stdout.readline())
            self.assertNotEqual(said[-1], "", said)
        workers = [pid for pid in os.listdir("/proc") if pid.isdigit() and is_worker(pid, program)]
        self.assertEqual(len(workers), 2)
        os.kill(int(max(workers, key=int)), signal.SIGKILL)
        out, err = p.communicate(timeout=ek_cli.TIMEOUT_S)
        self.assertEqual(p.returncode, 0, err)
        self.assertIn("was killed by signal 9", err)
        self.assertEqual(out.splitlines()[-1].split()[:2], ["step", str(steps)])
        # a step that rank 0 was killed in, and that the others completed, was never printed
        done = [json.loads(line)["step"] for line in open(self.path("run", "metrics.jsonl"))]
        self.assertEqual(done, list(range(steps)))
        generations = [json.loads(line) for line in open(self.path("run", "generations.jsonl"))]
        self.assertEqual([(g["from"], g["steps_again"]) for g in generations],
                         [("start", 0), ("memory", 0)])

    def test_find_package(self):
        write(self.path("p", "CMakeLists.txt"),
              "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES C)\n"
              "find_package(evenkeel %s REQUIRED)\nadd_executable(p p.c)\n"
              "target_link_libraries(p PRIVATE evenkeel::evenkeel)\n" %
              call(COMMAND, "--version").stdout.split()[1])
        write(self.path("p", "p.c"),
              "#include <evenkeel/version.h>\n#include <stdio.h>\n#include <string.h>\n"
              "int main(void) { puts(ek_version()); return strcmp(ek_version(), EK_VERSION); }\n")
        r = call("cmake", "-S", self.path("p"), "-B", self.path("p", "b"),
                 "-DCMAKE_PREFIX_PATH=" + self.prefix)
        self.assertEqual(r.returncode, 0, r.stderr)
        r = call("cmake", "--build", self.path("p", "b"))
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        r = call(self.path("p", "b", "p"), env=self.env)
        self.assertEqual(r.returncode, 0, r.stderr)

    def test_the_command_runs_from_there_also_when_it_was_moved(self):
        moved = self.path("moved")
        shutil.move(self.prefix, moved)
        env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
        data = ek_cli.write_tokens(self.path("data.bin"), ek_cli.token_ids(400))
        config = ek_cli.write_config(self.path("config.json"))
        ranks = ["--ranks", 2, "--ep", 2] if ek_cli.mpiexec() else []
        r = call(os.path.join(moved, "bin", "evenkeel"), "train", "--model", config, "--data", data,
                 "--batch", 2, "--seq", 8, "--steps", 2, "--threads", 1, "--out", self.path("run"),
                 *ranks, env=env)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(len(ek_cli.metrics(self.path("run"))), 2)

    def test_manual_pages_have_every_option(self):
        man = os.path.join(self.prefix, "share", "man", "man1")
        commands = call(COMMAND, "--help=commands").stdout.split()
        self.assertIn("train", commands)
        self.assertEqual(sorted(os.listdir(man)),
                         sorted(["evenkeel.1"] + ["evenkeel-%s.1" % c for c in commands]))
        for c in commands:
            page = read(os.path.join(man, "evenkeel-%s.1" % c)).decode().replace("\\-", "-")
            options = re.findall(r"^  (--[a-z0-9-]+)", call(COMMAND, c, "--help").stdout, re.M)
            self.assertGreater(len(options), 1)
            self.assertEqual(re.findall(r"^\.TP\n\\fB(--[a-z0-9-]+)", page, re.M), options)

    def test_bash_completes_commands_options_and_values(self):
        script = os.path.join(self.prefix, "share", "bash-completion", "completions", "evenkeel")
        bash = ('source "%s"; COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); '
                '_evenkeel; printf "%%s\\n" "${COMPREPLY[@]}"')

        def complete(*words):
            line = " ".join("'%s'" % w for w in (COMMAND, *words))
            r = call("bash", "-c", "compopt() { :; }; " + bash % (script, line))
            self.assertEqual(r.returncode, 0, r.stderr)
            return r.stdout.split()

        self.assertEqual(complete("tr"), ["train"])
        self.assertIn("--capacity-schedule", complete("train", "--cap"))
        self.assertEqual(complete("train", "--dtype", "b"), ["bf16"])
        self.assertEqual(complete("bench", "disk", "--file"), ["--file", "--file-size"])
        self.assertEqual(complete("bench", "gemm", "--file"), [])
        write(self.path("somewhere", "texts.txt"), "x")
        self.assertEqual(complete("train", "--data", self.path("somewhere", "te")),
                         [self.path("somewhere", "texts.txt")])

    def test_zsh_completes_what_the_command_names(self):
        """The options that zsh reads are those of --help; with zsh, they are completed."""
        script = os.path.join(self.prefix, "share", "zsh", "site-functions", "_evenkeel")
        self.assertTrue(read(script).startswith(b"#compdef evenkeel\n"))
        for asked in (b"$words[1] --help=commands ", b"$words[1] $words[2] --help=options "):
            self.assertIn(asked, read(script))
        for c in call(COMMAND, "--help=commands").stdout.split():
            options = re.findall(r"^  (--[a-z0-9-]+)", call(COMMAND, c, "--help").stdout, re.M)
            lines = call(COMMAND, c, "--help=options").stdout.splitlines()
            kinds = [re.fullmatch(r"(--[a-z0-9-]+)\t(flag|value|file|\S+\|\S+)", s) for s in lines]
            self.assertEqual([k and k[1] for k in kinds], options, lines)
        if shutil.which("zsh") is None:
            self.skipTest("no zsh: its completion was only read")
        r = call("zsh", "-n", script)
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        zsh = ('compadd() { if [[ $1 == -a ]]; then print -l -- ${(P)2}; else print -l -- $@; fi; }; '
               '_files() { print files }; _message() { print -r -- "<$1>" }; words=(%s); '
               'CURRENT=$#words; PREFIX=$words[-1]; source "%s"')

        def complete(*words):
            line = " ".join("'%s'" % w for w in (COMMAND, *words))
            r = call("zsh", "-f", "-c", zsh % (line, script))
            self.assertEqual((r.returncode, r.stderr), (0, ""))
            return r.stdout.split()

        self.assertIn("train", complete("tr"))
        self.assertIn("--capacity-schedule", complete("train", "--cap"))
        self.assertEqual(complete("train", "--dtype", "b"), ["bf16", "fp32", "fp64"])
        self.assertEqual(complete("train", "--data", "te"), ["files"])
        self.assertEqual(complete("train", "--steps", "1"), ["<value>"])
        self.assertIn("--file-size", complete("bench", "disk", "--file"))
        self.assertNotIn("--file-size", complete("bench", "gemm", "--file"))

    def test_the_debian_package(self):
        """It has what is installed, and depends on the libraries that README names."""
        for tool in ("cpack", "dpkg-deb", "dpkg-shlibdeps", "file"):
            if shutil.which(tool) is None:
                self.skipTest("no " + tool)
        log = os.path.join(BUILD, ".ninja_log")
        built = os.path.exists(log) and read(log)
        r = call("cpack", "--config", os.path.join(BUILD, "CPackConfig.cmake"), "-B", self.path())
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        self.assertEqual(os.path.exists(log) and read(log), built, "it was built again")
        package, = glob.glob(self.path("evenkeel_*.deb"))
        r = call("dpkg-deb", "-x", package, self.path("root"))
        self.assertEqual(r.returncode, 0, r.stderr)
        packed, installed = (set(ek_cli.tree(at)) for at in (self.path("root", "usr"), self.prefix))
        self.assertEqual(packed, installed)
        for name in ("bin/evenkeel", "lib/libevenkeel.so", "lib/libevenkeel.a",
                     "lib/pkgconfig/evenkeel.pc", "include/evenkeel/train.h",
                     "share/man/man1/evenkeel-train.1", "share/zsh/site-functions/_evenkeel",
                     "share/bash-completion/completions/evenkeel"):
            self.assertIn(name, packed)
        depends = call("dpkg-deb", "-f", package, "Depends").stdout.split(", ")
        depends = [d.split()[0] for d in depends]
        text = read(os.path.join(SOURCE, "README.md")).decode()
        needed = re.search(r"\| the build \| `(.*?)` \|", text)
        needed = needed[1].split()
        self.assertIn("libjansson-dev", needed)
        libraries = [n[:-4] for n in needed if n.endswith("-dev")]
        mpi = call(COMMAND, "info").stdout
        if "MPI: MPICH" in mpi:
            self.assertIn("mpich", depends)
        else:
            libraries.remove("libmpich")
            if "MPI: Open MPI" in mpi:
                self.assertIn("openmpi-bin", depends)
        for library in libraries:
            self.assertTrue(any(d.startswith(library) for d in depends),
                            "%s is not among %s" % (library, depends))


if __name__ == "__main__":
    ek_cli.main()
