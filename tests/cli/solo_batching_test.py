#!/usr/bin/env python3
"""The table of docs/run_solo_batching.md: its flags are in --help, its figures in the report."""

import json
import pathlib
import re

import support
from support import TIED, CliTest

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "run_solo_batching.md"
SETTINGS = """model data tokenizer prompt_file prompts_file prompt_tokens_file max_new_tokens temperature
top_p top_k seed max_sessions max_session_tokens kv_initial_capacity max_decode_sequences cuda_graph
weight_sharing bos eos report_json""".split()


def rows(page: str) -> list:
    """The cells of every row of its tables."""
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


class SoloBatchingTest(CliTest):
    def setUp(self):
        super().setUp()
        self.rows = rows(PAGE.read_text(encoding="utf-8"))

    def test_every_setting_has_a_row(self):
        named = re.findall(r"`(\w+)`", " ".join(row[0] for row in self.rows))
        self.assertEqual(set(SETTINGS), set(SETTINGS) & set(named))

    def test_every_flag_is_in_the_help_of_its_verb(self):
        flags = re.findall(r"`(run|export) (--[\w-]+)`", PAGE.read_text(encoding="utf-8"))
        self.assertGreater(len(set(flags)), 15)
        for verb in ("run", "export"):
            out = self.expect(0, verb, "--help").out.decode()
            for flag in {flag for other, flag in flags if other == verb}:
                self.assertRegex(out, rf"(?<![\w-]){flag}(?![\w-])")

    def test_the_report_has_every_figure(self):
        report = self.folder / "report.json"
        ids = self.write("ids.jsonl", [list(range(3, 3 + n)) for n in (5, 30)])
        self.expect(0, "run", TIED, "--tokens", ids, "--max-tokens", "3", "--report", report)
        document = json.loads(report.read_text())
        self.assertEqual(2, len(document["results"]))
        summary = document["summary"]
        figures = rows(PAGE.read_text(encoding="utf-8").split("| figure")[1])
        paths = re.findall(r"`([\w.]+)`", " ".join(row[1] for row in figures))
        self.assertGreater(len(paths), 12)
        group = summary["kv"]["groups"][0]
        for path in paths:
            with self.subTest(path=path):
                value = document if path == "results" else summary
                if path in ("blocks", "peak_blocks", "cells", "bytes_per_block"):
                    value = group
                for name in path.split("."):
                    value = value[name]
                self.assertIsNotNone(value)
        self.assertEqual(group["cells"], group["blocks"] * summary["kv"]["block_size"])
        self.assertEqual(group["blocks"] * group["bytes_per_block"], summary["kv"]["bytes"])
        self.assertGreater(summary["model"]["weight_bytes"], 10000)


if __name__ == "__main__":
    support.main()
