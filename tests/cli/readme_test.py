#!/usr/bin/env python3
"""The commands in README.md: those of build/chorus run, those of ./dev exist.

Rule: in a block fenced as sh, a line that begins with `build/chorus` must run as it stands, where
build/chorus is the binary and a word that ends in .gguf the demo model; a line that begins with
`./dev` names a verb of it.
Lines run in order in one folder, so that one may use what another wrote.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

import support

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# What the commands read besides the model.
FILES = {
    "prompts.jsonl": '{"prompt": "The sea is", "max_tokens": 8}\n{"prompt": "Snow", "seed": 1}\n',
    "book.txt": (ROOT / "LICENSE").read_text(encoding="utf-8"),
}


def commands(text: str) -> list:
    """Lines of the sh blocks, a line continued with a backslash joined."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").split("\n")
    return [line.strip() for line in lines if line.strip()]


class ReadmeTest(unittest.TestCase):
    def setUp(self):
        self.lines = commands((ROOT / "README.md").read_text(encoding="utf-8"))

    def test_the_two_commands(self):
        for verb in ("run", "test"):
            self.assertTrue(any(re.match(rf"\./dev {verb}\b", line) for line in self.lines))

    def test_verbs_of_dev_exist(self):
        listed = subprocess.run(
            [ROOT / "dev", "help"], capture_output=True, check=True, text=True
        ).stdout
        for line in self.lines:
            if line.startswith("./dev"):
                verb = shlex.split(line, comments=True)[1]
                self.assertRegex(listed, rf"(?m)^\s+{verb}\s")

    def test_lines_of_the_binary_run(self):
        lines = [line for line in self.lines if line.startswith("build/chorus")]
        self.assertTrue(lines, "no line of a sh block begins with build/chorus")
        model = shlex.quote(support.demo_model())
        with tempfile.TemporaryDirectory(prefix="chorus_readme_") as folder:
            os.mkdir(os.path.join(folder, "build"))
            os.symlink(support.binary(), os.path.join(folder, "build", "chorus"))
            for name, content in FILES.items():
                (pathlib.Path(folder) / name).write_text(content, encoding="utf-8")
            for line in lines:
                command = re.sub(r"[^\s\"']+\.gguf\b", lambda _: model, line)
                done = subprocess.run(
                    ["bash", "-o", "pipefail", "-c", command],
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=300,
                    env=support.environment({"MODEL": support.demo_model()}),
                )
                print(f"exit {done.returncode}: {line}", file=sys.stderr)
                self.assertEqual(0, done.returncode, done.stderr.decode(errors="replace")[-1500:])
                self.assertTrue(done.stdout or " -o " in line or ">" in line, line)


if __name__ == "__main__":
    support.main()
