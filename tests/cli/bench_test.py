#!/usr/bin/env python3
"""`chorus bench`: the records of --json, what is refused, and that counts follow from the flags."""

import signal
import subprocess
import time

import support
from support import MIXED, TIED, TINY_CONTEXT, CliTest

SMALL = ["--prompt", "40", "--generate", "12", "--reps", "2"]
OPERATORS = {"embed", "rms_norm", "linear", "update_and_attend", "head", "reduce_rows"}


class BenchTest(CliTest):
    def bench(self, *words, model: str = TIED, **options) -> list:
        return self.expect(0, "bench", model, *words, "--json", **options).json_lines()

    def assert_spread(self, spread: dict) -> None:
        self.assertEqual({"min", "median", "max"}, set(spread))
        self.assertTrue(0 < spread["min"] <= spread["median"] <= spread["max"], spread)

    def assert_record(self, record: dict) -> None:
        self.assertEqual("bench", record["type"])
        self.assert_spread(record["tokens_per_s"])
        self.assert_spread(record["wall_s"])
        self.assertTrue(0 < record["step_ms"]["p50"] <= record["step_ms"]["p99"], record)
        for field in ("batch", "prompt", "generate", "reps", "kv_bytes", "resident_bytes"):
            self.assertIs(int, type(record[field]), field)
            self.assertGreater(record[field], 0, field)
        self.assertIs(float, type(record["overhead_share"]))
        self.assertTrue(0 < record["overhead_share"] < 1, record)
        if record["foreign_load"] is not None:
            self.assertTrue(0 <= record["foreign_load"] <= 1, record)

    def test_records(self):
        lines = self.bench(*SMALL, "--batch", "1,3,2", "--shared-prefix", "50")
        first, last, records = lines[0], lines[-1], lines[1:-1]
        self.assertEqual(["conditions"] + ["bench"] * 7 + ["summary"], [o["type"] for o in lines])
        tests = [(o["test"], o["batch"], o["prompt"], o["generate"]) for o in records]
        decode = [("decode", batch, 40, 12) for batch in (1, 3, 2)]
        shared = [("shared", batch, 50, 12) for batch in (1, 3, 2)]
        self.assertEqual([("prefill", 1, 40, 1)] + decode + shared, tests)
        for record in records:
            with self.subTest(test=record["test"], batch=record["batch"]):
                self.assert_record(record)
                self.assertEqual(2, record["reps"])
        self.assertEqual("tiny", first["model"]["name"])
        self.assertEqual(64, len(first["model"]["hash"]))
        self.assertGreaterEqual(first["threads"], 1)
        self.assertTrue(first["cpu"] and first["isa"] and first["version"]["commit"])
        self.assertGreaterEqual(last["peak_resident_bytes"], records[0]["resident_bytes"] // 2)
        self.assertGreater(last["kv_pool_bytes"], 0)
        self.assertGreater(last["wall_s"], sum(o["wall_s"]["min"] for o in records))

    def test_default_tests(self):
        kinds = lambda lines: [o["test"] for o in lines if o["type"] == "bench"]
        few = [*SMALL, "--batch", "2"]
        self.assertEqual(["prefill", "decode"], kinds(self.bench(*few)))
        self.assertEqual(["prefill"], kinds(self.bench(*few, "--tests", "prefill")))
        self.assertEqual(
            ["shared", "decode"],
            kinds(self.bench(*few, "--tests", "shared,decode", "--shared-prefix", "9")),
        )

    def test_kv_bytes_are_those_of_the_blocks(self):
        def held(*words) -> dict:
            lines = self.bench("--generate", "16", "--reps", "1", *words)
            return {(o["test"], o["batch"]): o["kv_bytes"] for o in lines if o["type"] == "bench"}

        tests = ["--tests", "decode", "--prompt", "64", "--batch", "1,4"]
        small = held(*tests, "--block-size", "16")
        # 64 + 1 tokens and 15 of 16 generated ones: 5 blocks of 16.
        self.assertEqual(0, small["decode", 1] % 5)
        self.assertEqual(4 * small["decode", 1], small["decode", 4])
        self.assertEqual(2 * small["decode", 1], held(*tests, "--kv-type", "f32")["decode", 1])
        shared = ["--tests", "shared", "--shared-prefix", "256", "--batch", "1,4"]
        for mode in ([], ["--no-prefix-cache"]):
            together = held(*shared, *mode)
            self.assertLess(together["shared", 4], 2 * together["shared", 1])

    def test_a_shared_prompt_is_computed_once(self):
        words = ["--tests", "shared", "--shared-prefix", "96", "--batch", "5", *SMALL[2:]]
        (record,) = [o for o in self.bench(*words) if o["type"] == "bench"]
        self.assertEqual(0, record["cached_tokens"] % 4)
        self.assertGreaterEqual(record["cached_tokens"], 4 * 80)
        (record,) = [o for o in self.bench(*words, "--no-prefix-cache") if o["type"] == "bench"]
        self.assertEqual(0, record["cached_tokens"])

    def test_profile(self):
        for model in (TIED, MIXED):
            words = ["--tests", "decode", "--batch", "1,4", "--profile", "--reps", "1"]
            lines = self.bench(*words, "--prompt", "40", "--generate", "20", model=model)
            profiles = [o for o in lines if o["type"] == "profile"]
            self.assertEqual([1, 4], [o["batch"] for o in profiles])
            macs = []
            for profile in profiles:
                operators = {o["name"]: o for o in profile["operators"]}
                self.assertLessEqual(OPERATORS, set(operators))
                parts = sum(o["ns"] for o in operators.values() if o["name"] != "reduce_rows")
                self.assertLessEqual(parts, profile["graph_ns"])
                self.assertGreater(operators["linear"]["bytes"], 0)
                macs.append(sum(operators["linear"][k] for k in ("int8_macs", "float_macs")))
            self.assertGreater(macs[1], macs[0])
        self.assertNotIn("profile", [o["type"] for o in self.bench(*SMALL, "--batch", "1")])

    def test_machine(self):
        (machine,) = self.expect(0, "bench", "--machine", "--threads", "2", "--json").json_lines()
        self.assert_machine(machine)
        words = [*SMALL, "--batch", "2", "--machine", "--profile", "--threads", "1"]
        lines = self.bench(*words)
        kinds = ["machine", "conditions", *["bench", "profile"] * 2, "summary"]
        self.assertEqual(kinds, [o["type"] for o in lines])
        self.assertEqual([1], [o["threads"] for o in lines[0]["rates"]])
        for record in lines[2:-1:2]:
            limit = record["limit"]
            self.assertIn(limit["bound"], ("memory", "compute"))
            self.assertGreater(limit["share"], 0)
            self.assertGreater(limit["bytes_per_step"], 0)
            self.assertGreater(limit["int8_macs_per_step"], 0)
        for profile in lines[3:-1:2]:
            shares = {o["name"]: o["limit_share"] for o in profile["operators"]}
            self.assertGreater(shares["linear"], 0)
            self.assertIsNone(shares["rms_norm"])

    def assert_machine(self, machine: dict) -> None:
        self.assertEqual("machine", machine["type"])
        self.assertEqual([1, 2], [o["threads"] for o in machine["rates"]])
        for rates in machine["rates"]:
            for name in ("read_bytes_per_s", "int8_macs_per_s", "float_macs_per_s"):
                self.assert_spread(rates[name])
        if machine["round_trip_ns"] is not None:
            self.assert_spread(machine["round_trip_ns"])
        self.assertTrue(machine["cpu"] and machine["isa"])
        self.assertIn("foreign_load", machine)

    def test_engine_flags(self):
        for words in (
            ["--exact"],
            ["--threads", "1"],
            ["--kv-layout", "sequence"],
            ["--block-size", "1"],
            ["--prefill-chunk", "7"],
        ):
            lines = self.bench(*SMALL, "--batch", "3", "--shared-prefix", "20", *words)
            self.assertEqual(3, [o["type"] for o in lines].count("bench"), words)

    def test_refusals(self):
        for flag, values in {
            "--prompt": ["0", "-1", "x", str(TINY_CONTEXT)],
            "--generate": ["0", "x"],
            "--reps": ["0", "1001"],
            "--shared-prefix": ["0", "x", str(TINY_CONTEXT)],
            "--batch": ["0", "x", "1,", ",", "1,1", "2000", "1;2"],
            "--tests": ["decoding", "prefill,", "decode,decode", "shared"],
        }.items():
            for value in values:
                with self.subTest(flag=flag, value=value):
                    few = ["--prompt", "40"] if flag == "--shared-prefix" else []
                    self.assert_refused(2, flag, "bench", TIED, *few, flag, value)
        self.assert_refused(2, "--max-sessions", "bench", TIED, *SMALL, "--max-sessions", "2")
        words = ["--max-decode-sequences", "4", "--batch", "8"]
        self.assert_refused(2, "--max-decode-sequences", "bench", TIED, *SMALL, *words)
        words = ["--kv-blocks", "10", "--batch", "8", "--context", "60"]
        self.assert_refused(2, "--kv-blocks", "bench", TIED, *SMALL, *words)
        words = ["--kv-memory", "40KiB", "--batch", "8", "--context", "60"]
        self.assert_refused(2, "--kv-memory", "bench", TIED, *SMALL, *words)
        self.assert_refused(2, "MODEL", "bench")
        self.assert_refused(2, "more", "bench", TIED, "more")
        self.expect(3, "bench", TIED + "x")

    def test_text_for_people(self):
        out = self.expect(0, "bench", TIED, *SMALL, "--batch", "2", "--profile").out.decode()
        for word in ("prefill", "decode", "tokens/s", "hash", "commit", "threads", "linear"):
            self.assertIn(word, out)

    def test_interrupt(self):
        command = support.command_of(
            ["bench", TIED, "--json", "--reps", "1000", "--batch", "1,32", "--prompt", "100"]
        )
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=support.environment()
        )
        first = process.stdout.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        self.assertEqual(130, process.returncode, err)
        self.assertIn(b'"conditions"', first)
        self.assertIn(b'"summary"', out)


if __name__ == "__main__":
    support.main()
