#!/usr/bin/env python3
"""The installed library: its headers alone, and the examples built against it as users would.

Environment besides that of tests/cli/support.py: CHORUS_BUILD is the build folder, which is built;
CHORUS_CC and CHORUS_CXX its compilers. The examples run on the demo model where CHORUS_DEMO_MODEL
names it, else on a tiny one.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cli"))
import support  # noqa: E402

CC, CXX = os.environ["CHORUS_CC"], os.environ["CHORUS_CXX"]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
MODEL = os.environ.get("CHORUS_DEMO_MODEL") or support.TIED
PROMPT = "The sea is"
MAX_TOKENS = 24  # of the examples
C_HEADERS = ["chorus/chorus.h"]


def run(*words, env: dict | None = None, cwd=None) -> str:
    done = subprocess.run(
        list(map(str, words)),
        capture_output=True,
        timeout=support.TIMEOUT_S,
        cwd=cwd,
        env=support.environment(env),
    )
    if done.returncode != 0:
        raise AssertionError(
            f"{' '.join(map(str, words))}\nexit {done.returncode}\n"
            f"{done.stdout.decode(errors='replace')[-3000:]}\n"
            f"{done.stderr.decode(errors='replace')[-6000:]}"
        )
    return done.stdout.decode("utf-8")


def continuation() -> str:
    """What the command line tool says to the examples' prompt."""
    return run(support.binary(), "run", MODEL, PROMPT, "--max-tokens", MAX_TOKENS, "--quiet")


class InstallTest(unittest.TestCase):
    maxDiff = 4000

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="chorus_install_")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        installed = cls.folder / "first"
        run("cmake", "--install", os.environ["CHORUS_BUILD"], "--prefix", installed)
        # What was installed may be moved.
        cls.prefix = cls.folder / "prefix"
        installed.rename(cls.prefix)
        (cls.lib,) = {path.parent for path in cls.prefix.rglob("libchorus.so")}
        cls.environment = {
            "PKG_CONFIG_PATH": str(cls.lib / "pkgconfig"),
            "LD_LIBRARY_PATH": str(cls.lib),
        }

    def example(self, name: str) -> pathlib.Path:
        """An example built with find_package."""
        build = self.folder / name
        run(
            "cmake",
            "-S",
            ROOT / "examples" / name,
            "-B",
            build,
            f"-DCMAKE_PREFIX_PATH={self.prefix}",
            "-DCMAKE_BUILD_TYPE=Release",
            env={"CC": CC, "CXX": CXX, "CFLAGS": " ".join(WARNINGS), "CXXFLAGS": " ".join(WARNINGS)},
        )
        run("cmake", "--build", build)
        return build / name

    def pkg_config(self, *words) -> list:
        return run("pkg-config", *words, "chorus", env=self.environment).split()

    def compiled(self, source: pathlib.Path, *libraries) -> pathlib.Path:
        """A program built with the flags of pkg-config."""
        is_c = source.suffix == ".c"
        out = self.folder / (source.stem + "_program")
        run(
            CC if is_c else CXX,
            "-std=c11" if is_c else "-std=c++20",
            *WARNINGS,
            *self.pkg_config("--cflags"),
            source,
            *libraries,
            "-o",
            out,
        )
        return out

    def test_headers_compile_alone(self):
        include = self.prefix / "include"
        headers = [path.relative_to(include) for path in sorted(include.rglob("*.h"))]
        self.assertIn(pathlib.Path("chorus/engine.h"), headers)
        self.assertIn(pathlib.Path("chorus/exec/executor.h"), headers)

        def check(job):
            header, words = job
            source = self.folder / f"{str(header).replace('/', '_')}.{words[0]}"
            # Twice: a header guards itself.
            source.write_text(f"#include <{header}>\n" * 2 + "int main(void) { return 0; }\n")
            run(*words[1:], *WARNINGS, "-fsyntax-only", f"-I{include}", source)

        jobs = [(header, ("cpp", CXX, "-std=c++20")) for header in headers]
        jobs += [(header, ("c", CC, "-std=c11")) for header in C_HEADERS]
        support.in_parallel(check, jobs)

    def test_no_symbols_of_others_are_exported(self):
        lines = run("nm", "-D", "-C", "--defined-only", self.lib / "libchorus.so").splitlines()
        names = [line.split(maxsplit=2)[2] for line in lines]
        self.assertIn("chorus_engine_open", names)
        ours = re.compile(r"(typeinfo (name )?for |vtable for )?(chorus::|chorus_[a-z_]+$)")
        self.assertEqual([], [name for name in names if not ours.match(name)])
        self.assertEqual([], [name for name in names if name.startswith("chorus_text_")])

    def test_embed(self):
        self.assertEqual(continuation(), run(self.example("embed"), MODEL, PROMPT))

    def test_embed_c(self):
        self.assertEqual(continuation(), run(self.example("embed_c"), MODEL, PROMPT))

    def test_tree_search(self):
        program = self.example("tree_search")
        out = run(program, MODEL, PROMPT)
        self.assertEqual(out, run(program, MODEL, PROMPT))
        # The prompt was computed once, and a token for each continuation.
        done = support.chorus("tokenize", MODEL, PROMPT, "--json")
        size = len(done.of_type("tokens")[0]["tokens"])
        found = re.search(r"computed (\d+) given tokens for (\d+) continuations of (\d+)\n$", out)
        computed, continuations, given = map(int, found.groups())
        self.assertEqual((size, size + continuations), (given, computed))
        self.assertEqual(continuation(), re.search(r"greedy: (.*)computed ", out, re.S).group(1))

    def test_custom_executor(self):
        out = run(self.example("custom_executor"))
        self.assertEqual("3 5 7 3 5 7 \n41 42 43 44 45 46 \n", out)

    def test_pkg_config(self):
        source = ROOT / "examples" / "embed_c" / "main.c"
        program = self.compiled(source, *self.pkg_config("--libs"))
        self.assertEqual(continuation(), run(program, MODEL, PROMPT, env=self.environment))

    def test_static_library(self):
        shared = self.pkg_config("--libs")
        private = [word for word in self.pkg_config("--libs", "--static") if word not in shared]
        private.remove("-lchorus_text")
        archives = [self.lib / "libchorus.a", self.lib / "libchorus_text.a"]
        source = ROOT / "examples" / "embed" / "main.cpp"
        program = self.compiled(source, *archives, *private)
        self.assertEqual(continuation(), run(program, MODEL, PROMPT))

    def test_readme(self):
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        for suffix in ("cpp", "c"):
            (block,) = re.findall(rf"^```{suffix}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
            source = self.folder / f"readme.{suffix}"
            source.write_text(block.replace("model.gguf", MODEL), encoding="utf-8")
            program = self.compiled(source, *self.pkg_config("--libs"))
            expected = run(
                support.binary(), "run", MODEL, "Once upon a time", "--max-tokens", 40, "--quiet"
            )
            self.assertEqual(expected.rstrip("\n"), run(program, env=self.environment).rstrip("\n"))

    def test_error_is_reported(self):
        program = self.folder / "embed" / "embed"
        if not program.exists():
            program = self.example("embed")
        done = subprocess.run([program, "/nonexistent", "a"], capture_output=True, timeout=60)
        self.assertEqual(1, done.returncode)
        self.assertIn(b"nonexistent", done.stderr)


if __name__ == "__main__":
    support.main()
