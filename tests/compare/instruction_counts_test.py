#!/usr/bin/env python3
"""What tools/instruction_counts.py decides: with a valgrind that prints what the test says."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "instruction_counts.py"
VALGRIND = """#!/bin/sh
for last; do :; done
[ -e "$COUNTS/$last" ] || exit 3
echo "==1== Collected : $(cat "$COUNTS/$last")" >&2
"""


class InstructionCountsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "counts").mkdir()
        self.baseline = self.folder / "baseline.json"
        self.script("valgrind", VALGRIND)
        self.binary = self.script("binary", "#!/bin/sh\nls \"$COUNTS\"\n")

    def script(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def run_tool(self, counts: dict, *words) -> tuple:
        for name, count in counts.items():
            (self.folder / "counts" / name).write_text(str(count))
        environment = dict(os.environ, COUNTS=str(self.folder / "counts"),
                           PATH=f"{self.folder}:{os.environ['PATH']}")
        done = subprocess.run([sys.executable, "-B", TOOL, self.binary, "--baseline", self.baseline,
                               *words], env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_more_than_the_tolerance_fails(self):
        self.baseline.write_text(json.dumps({"a": 1000, "b": 1000}))
        self.assertEqual(0, self.run_tool({"a": 1030, "b": 1000})[0])
        code, text = self.run_tool({"a": 1031, "b": 1000})
        self.assertEqual(1, code)
        self.assertIn("+3.10%  a  MORE THAN BEFORE", text)
        self.assertIn("+0.00%  b\n", text)

    def test_fewer_is_said_and_kept_by_an_update(self):
        self.baseline.write_text(json.dumps({"a": 1000, "gone": 5}))
        code, text = self.run_tool({"a": 900})
        self.assertEqual(0, code)
        self.assertIn("fewer", text)
        self.assertEqual(0, self.run_tool({"a": 900}, "--update")[0])
        self.assertEqual({"a": 900}, json.loads(self.baseline.read_text()))
        self.assertEqual(1, self.run_tool({"a": 1000})[0])

    def test_a_name_without_a_baseline_fails(self):
        code, text = self.run_tool({"a": 10})
        self.assertEqual(1, code)
        self.assertIn("no baseline", text)

    def test_nothing_counted_and_unknown_names_are_errors(self):
        self.assertEqual(2, self.run_tool({"a": 0})[0])
        code, text = self.run_tool({"a": 10}, "b")
        self.assertEqual(2, code)
        self.assertIn("unknown: b", text)

    def test_the_baseline_in_git_has_numbers(self):
        baseline = json.loads((ROOT / "bench" / "instruction_counts.json").read_text())
        self.assertGreater(len(baseline), 20)
        for name, count in baseline.items():
            self.assertIsInstance(count, int, name)
            self.assertGreater(count, 1000, name)


if __name__ == "__main__":
    unittest.main()
