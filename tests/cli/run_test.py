#!/usr/bin/env python3
"""`chorus run`: its JSON objects, prompt files, sampling, and prompts that fail alone."""

import json
import math
import os
import pty
import random
import re
import subprocess

import support
from support import FLOAT, MIXED, TIED, TINY_CONTEXT, VOCABULARY, CliTest, bits, random_ids

NUMBER = (int, float)
METRICS = {"queue_ms", "ttft_ms", "tpot_ms", "total_ms", "cached_tokens", "preemptions"}
GREEK = 'αβγ — "quoted" \\ and a tab\t.'


class SchemaTest(CliTest):
    def check_result(self, result: dict) -> None:
        self.assertIsInstance(result["index"], int)
        self.assertEqual(0, result["choice"])
        for field in ("prompt_tokens", "tokens"):
            self.assertTrue(all(type(t) is int for t in result[field]), result[field])
        self.assertIn(result["finish_reason"], {"stop", "length", "cancelled", "error"})
        self.assertIn("id", result)
        self.assertLessEqual(METRICS, set(result["metrics"]))
        metrics = result["metrics"]
        self.assertTrue(all(isinstance(metrics[m], NUMBER) or metrics[m] is None for m in METRICS))
        self.assertEqual((0, 0), (metrics["cached_tokens"], metrics["preemptions"]))

    def check_summary(self, summary: dict, results: list, block_size: int) -> None:
        self.assertIsInstance(summary["model"], dict)
        self.assertGreater(summary["wall_s"], 0)
        self.assertEqual(sum(len(r["prompt_tokens"]) for r in results), summary["prompt_tokens"])
        self.assertEqual(sum(len(r["tokens"]) for r in results), summary["generated_tokens"])
        self.assertEqual({"decode", "prefill", "forward"}, set(summary["forwards"]))
        self.assertEqual(0, summary["preemptions"])
        self.assertEqual(0, summary["failed"])
        kv = summary["kv"]
        self.assertEqual((block_size, "paged"), (kv["block_size"], kv["layout"]))
        self.assertEqual(0, kv["copied_blocks"])
        self.assertEqual(1, len(kv["groups"]))
        group = kv["groups"][0]
        self.assertEqual((2, None), (group["layers"], group["window"]))
        self.assertGreaterEqual(group["blocks"], group["peak_blocks"])
        self.assertGreaterEqual(kv["bytes"], group["blocks"] * group["bytes_per_block"])

    def test_result_and_summary(self):
        done = self.run_json(TIED, "Hello", GREEK, "--max-tokens", "9", "--block-size", "32")
        self.assertEqual(["result", "result", "summary"], [o["type"] for o in done.json_lines()])
        results = done.results()
        self.assertEqual([0, 1], [r["index"] for r in results])
        for result, prompt in zip(results, ["Hello", GREEK]):
            self.check_result(result)
            self.assertEqual(
                (prompt, None, None), (result["prompt"], result["id"], result["error"])
            )
            self.assertIsInstance(result["text"], str)
            self.assertNotIn("top_logprobs", {k for k, v in result.items() if v})
            self.assertNotIn("logprobs", {k for k, v in result.items() if v})
        self.check_summary(done.summary(), results, 32)

    def test_peak_blocks_are_those_of_the_tokens(self):
        # A sequence ends at prompt + max_tokens - 1 committed tokens: the last is never fed back.
        rows = [random_ids(random.Random(support.seed()), TIED, 40) for _ in range(3)]
        words = ["--max-tokens", "25", "--ignore-eos", "--block-size", "16", "--no-prefix-cache"]
        # On a busy machine a prompt may come when another is done: the fullest of a few runs counts.
        summaries = [self.run_ids(TIED, rows, *words).summary() for _ in range(5)]
        peak = max(s["kv"]["groups"][0]["peak_blocks"] for s in summaries)
        self.assertLessEqual(peak, 3 * 5)
        self.assertGreaterEqual(peak, 3 * 4)

    def test_bytes_per_block(self):
        # tied_q4_1: 2 layers, 2 KV heads of 16, keys and values. An element has 2 bytes in bf16, 4
        # in f32 and 1 in q8, where 32 columns of a head share a scale of 4.
        for name, head in [("bf16", 2 * 16), ("f32", 4 * 16), ("q8", 16 + 4)]:
            done = self.run_json(TIED, "a", "--max-tokens", "1", "--block-size", "16",
                                 "--kv-type", name)
            group = done.summary()["kv"]["groups"][0]
            self.assertEqual(2 * 2 * 2 * 16 * head, group["bytes_per_block"])

    def test_effective_flags_are_in_the_summary(self):
        given = {
            "max_sessions": 5,
            "max_batch_tokens": 96,
            "prefill_chunk": 24,
            "max_decode_sequences": 4,
            "target_step_ms": 70,
            "priority_age_ms": 900,
            "shortest_first_ms": 3,
            "context": 200,
            "kv_blocks": 40,
            "block_size": 16,
            "threads": 2,
        }
        words = [w for k, v in given.items() for w in ("--" + k.replace("_", "-"), str(v))]
        engine = self.run_json(TIED, "a", "--max-tokens", "1", *words).summary()["engine"]
        for name, value in given.items():
            with self.subTest(flag=name):
                expected = [value] if name == "kv_blocks" else value  # a number per layer group
                self.assertEqual(expected, engine.get(name), engine)
        engine = self.run_json(TIED, "a", "--max-tokens", "1", "--exact").summary()["engine"]
        self.assertEqual(("f32", "f32"), (engine["activations"], engine["kv_type"]))
        for name in set(given) - {"kv_blocks"}:
            self.assertIsInstance(engine[name], int)
        self.assertIs(True, engine["prefix_cache"])

    def test_equal_prefixes_are_computed_once(self):
        rng = random.Random(support.seed())
        stem = random_ids(rng, TIED, 160)
        rows = [stem + random_ids(rng, TIED, 8) for _ in range(4)]
        words = ["--max-tokens", "5", "--temperature", "1", "--seed", "3", "--logprobs", "2"]
        warm = self.run_ids(TIED, rows, *words)
        cold = self.run_ids(TIED, rows, *words, "--no-prefix-cache")
        self.assertIs(False, cold.summary()["engine"]["prefix_cache"])
        self.assertEqual(0, cold.summary()["cached_tokens"])
        self.assertEqual(4 * 168, cold.summary()["computed_prompt_tokens"])
        # Wherever the others arrive, they wait for the first or find what it has computed.
        self.assertEqual(3 * 160, warm.summary()["cached_tokens"])
        self.assertEqual(160 + 4 * 8, warm.summary()["computed_prompt_tokens"])
        self.assertEqual([bits(r) for r in cold.results()], [bits(r) for r in warm.results()])
        found = [r["metrics"]["cached_tokens"] for r in warm.results()]
        self.assertEqual([0, 160, 160, 160], found)

    def test_a_salt_keeps_prompts_apart(self):
        text = "The quick brown fox jumps over the lazy dog. " * 4
        lines = [{"prompt": text, "cache_salt": salt} for salt in ("a", "b", "a")]
        prompts = "\n".join(json.dumps(line) for line in lines).encode()
        words = ["--prompts", "-", "--max-tokens", "3", "--no-batch"]
        results = self.run_json(TIED, *words, stdin=prompts).results()
        cached = [r["metrics"]["cached_tokens"] for r in results]
        self.assertEqual([0, 0], cached[:2])
        self.assertGreater(cached[2], 0)
        self.assertEqual(*[bits(r)[0] for r in (results[0], results[2])])

    def test_latencies_are_those_of_the_tokens(self):
        done = self.run_json(TIED, "Hello", GREEK, "--max-tokens", "9", "--ignore-eos")
        for result in done.results():
            itl = result["metrics"]["itl_ms"]
            self.assertEqual(8, itl["count"])
            self.assertLessEqual(itl["p50"], itl["p90"])
            self.assertLessEqual(itl["p90"], itl["p99"])
            self.assertLessEqual(itl["p99"], itl["max"])
            self.assertAlmostEqual(itl["mean"], result["metrics"]["tpot_ms"], delta=1e-3)
        latency = done.summary()["latency_ms"]
        counts = {name: summary["count"] for name, summary in latency.items()}
        steps = done.summary()["steps"]
        expected = {"queue": 2, "ttft": 2, "itl": 16, "tpot": 2, "total": 2, "step": steps}
        self.assertEqual(expected, counts)
        self.assertLessEqual(latency["ttft"]["max"], latency["total"]["max"])

    def test_layout_sequence(self):
        rows = [random_ids(random.Random(support.seed()), TIED, n) for n in (40, 3, 70)]
        words = ["--max-tokens", "9", "--ignore-eos", "--logprobs", "2", "-n", "3"]
        words += ["--temperature", "1", "--seed", "4"]
        paged = self.run_ids(TIED, rows, *words)
        # A choice that comes when another has ended copies nothing; counted is a run in which all of a
        # prompt were together.
        for _ in range(50):
            done = self.run_ids(TIED, rows, *words, "--kv-layout", "sequence", "--context", "200")
            self.assertEqual(list(map(bits, paged.results())), list(map(bits, done.results())))
            kv = done.summary()["kv"]
            if kv["copied_blocks"] >= 3 * 2:
                break
        self.assertEqual((208, "sequence"), (kv["block_size"], kv["layout"]))
        # A fork and its source hold one block until they write; all but the last to do so copy it.
        self.assertGreaterEqual(kv["copied_blocks"], 3 * 2)
        self.assertLessEqual(kv["copied_blocks"], 3 * 2 * 2)
        group = kv["groups"][0]
        self.assertLessEqual(group["peak_blocks"], group["blocks"])
        done = self.run_ids(TIED, rows, *words, "--kv-layout", "sequence", "--block-size", "16", code=2)
        self.assert_error_line(done, "--block-size")

    def test_context_is_never_divided_by_the_sessions(self):
        few = self.run_json(TIED, "a", "--max-tokens", "1", "--max-sessions", "1")
        many = self.run_json(TIED, "a", "--max-tokens", "1", "--max-sessions", "64")
        self.assertEqual(few.summary()["engine"]["context"], many.summary()["engine"]["context"])
        self.assertEqual(TINY_CONTEXT, many.summary()["engine"]["context"])

    def test_report_holds_the_same_objects(self):
        path = self.folder / "report.json"
        done = self.run_json(
            TIED, "a", "bc", "--max-tokens", "4", "--logprobs", "2", "--report", path
        )
        lines = done.json_lines()
        report = json.loads(path.read_text())
        found = []

        def collect(value):
            if isinstance(value, dict) and value.get("type") in ("result", "summary"):
                found.append(value)
            elif isinstance(value, (dict, list)):
                for item in value.values() if isinstance(value, dict) else value:
                    collect(item)

        collect(report)
        key = lambda o: (o["type"], o.get("index", 0))
        self.assertEqual(sorted(lines, key=key), sorted(found, key=key))

    def test_report_without_json(self):
        path = self.folder / "report.json"
        done = self.expect(0, "run", TIED, "a", "--max-tokens", "4", "--report", path)
        self.assertNotIn(b'"type"', done.out)
        self.assertIn('"summary"', path.read_text())

    def test_report_that_cannot_be_written(self):
        done = support.chorus(
            "run",
            TIED,
            "a",
            "--max-tokens",
            "2",
            "--report",
            self.folder / "absent" / "report.json",
        )
        self.assertIn(done.code, (1, 2), str(done))
        self.assertIn("report", done.err)

    def test_text_for_people_goes_to_stdout_and_nothing_else(self):
        text = self.run_json(FLOAT, "ab", "--max-tokens", "12").results()[0]["text"]
        done = self.expect(0, "run", FLOAT, "ab", "--max-tokens", "12", "--quiet")
        self.assertIn(text.strip(), done.out.decode())
        self.assertNotIn("\x1b", done.err)  # no colours, no bars: stderr is no terminal
        self.assertNotIn("\r", done.err)


class LogprobsTest(CliTest):
    def test_lists_are_consistent(self):
        done = self.run_json(
            MIXED,
            "abc",
            "xyz",
            "--max-tokens",
            "20",
            "--ignore-eos",
            "--logprobs",
            "5",
            "--temperature",
            "1",
            "--seed",
            "3",
        )
        ranked = 0
        for result in done.results():
            self.assertEqual(20, len(result["tokens"]))
            self.assertEqual(20, len(result["logprobs"]))
            self.assertEqual(20, len(result["top_logprobs"]))
            for token, logprob, top in zip(
                *(result[f] for f in ("tokens", "logprobs", "top_logprobs"))
            ):
                self.assertEqual(5, len({i for i, _ in top}))
                self.assertTrue(all(type(i) is int and isinstance(v, float) for i, v in top))
                values = [v for _, v in top]
                self.assertEqual(sorted(values, reverse=True), values)
                self.assertLess(logprob, 0)
                if token in dict(top):
                    ranked += 1
                    self.assertEqual(dict(top)[token], logprob)
                else:
                    self.assertLessEqual(logprob, values[-1])
        self.assertGreater(ranked, 0)

    def test_greedy_takes_the_likeliest(self):
        for result in self.run_json(
            TIED, "abc", "q", "--max-tokens", "20", "--ignore-eos", "--logprobs", "2"
        ).results():
            self.assertEqual(result["tokens"], [top[0][0] for top in result["top_logprobs"]])
            self.assertEqual(result["logprobs"], [top[0][1] for top in result["top_logprobs"]])

    def test_distribution_is_that_of_temperature_one(self):
        words = ["abc", "--max-tokens", "1", "--logprobs", "20"]
        greedy = self.run_json(TIED, *words).results()[0]
        drawn = self.run_json(TIED, *words, "--temperature", "3", "--seed", "9").results()[0]
        self.assertEqual(greedy["top_logprobs"], drawn["top_logprobs"])

    def test_floats_read_back_to_the_same_bits(self):
        # The shortest decimal that reads back as a float32 has up to 9 digits; most have 8 or 9.
        done = self.run_json(TIED, "abc", "--max-tokens", "30", "--ignore-eos", "--logprobs", "20")
        numbers = re.findall(r"\[\d+,\s*(-[0-9.e+-]+)\]", done.out.decode())
        self.assertEqual(600, len(numbers))
        digits = sorted(len(re.sub(r"e.*|[-.]", "", n).lstrip("0")) for n in numbers)
        self.assertGreaterEqual(digits[len(digits) // 2], 7, "floats are cut short")
        self.assertLessEqual(digits[-1], 9, "no float32 needs more")


def plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


class ReadableTest(CliTest):
    """A random model writes mostly bytes that are no text."""

    def readable(self, max_tokens: int) -> tuple:
        """(prompt, its greedy text): of 48 prompts, the one with the most ASCII past its start."""
        prompts = [f"gamma {n}" for n in range(48)]
        results = self.run_json(TIED, *prompts, "--max-tokens", max_tokens).results()
        ascii_count = lambda r: sum(map(plain, r["text"][3:]))
        best = max(results, key=ascii_count)
        self.assertGreater(ascii_count(best), 4, best)
        return best["prompt"], best["text"]


class PromptFileTest(ReadableTest):
    def test_plain_lines(self):
        path = self.write("p.txt", 'first prompt\nsecond, with "quotes"\nдлинный\n')
        results = self.run_json(TIED, "--prompts", path, "--max-tokens", "5").results()
        self.assertEqual(
            ["first prompt", 'second, with "quotes"', "длинный"], [r["prompt"] for r in results]
        )
        direct = self.run_json(
            TIED, "first prompt", 'second, with "quotes"', "длинный", "--max-tokens", "5"
        ).results()
        self.assertEqual(list(map(bits, direct)), list(map(bits, results)))

    def test_no_newline_at_the_end(self):
        path = self.write("p.txt", "one\ntwo")
        self.assertEqual(
            2, len(self.run_json(TIED, "--prompts", path, "--max-tokens", "1").results())
        )

    def test_stdin(self):
        text = b"one\ntwo\n"
        piped = self.run_json(TIED, "--prompts", "-", "--max-tokens", "5", stdin=text).results()
        filed = self.run_json(TIED, "--prompts", self.write("p.txt", text), "--max-tokens", "5")
        self.assertEqual(list(map(bits, filed.results())), list(map(bits, piped)))

    def test_json_lines_settings_of_each_prompt(self):
        prompt, text = self.readable(16)
        stop = next(c for c in text[3:] if plain(c))
        lines = [
            {"prompt": "alpha", "id": "a-1", "max_tokens": 3},
            {"prompt": "beta", "id": "b/2", "temperature": 2.0, "seed": 11},
            {"prompt": "beta", "temperature": 2.0, "seed": 12},
            {"prompt": "beta", "temperature": 2.0, "seed": 12, "top_k": 20},
            {"prompt": "beta", "temperature": 2.0, "seed": 12, "top_p": 0.5, "min_p": 0.01},
            {"prompt": prompt, "stop": [stop]},
            {"prompt": prompt, "stop": stop},
            {"prompt": prompt},
        ]
        results = self.run_json(
            TIED, "--prompts", self.write("p.jsonl", lines), "--max-tokens", "16", "--logprobs", "1"
        ).results()
        self.assertEqual(["a-1", "b/2", *[None] * 6], [r["id"] for r in results])
        flags = [
            ["alpha", "--max-tokens", "3"],
            ["beta", "--max-tokens", "16", "--temperature", "2", "--seed", "11"],
            ["beta", "--max-tokens", "16", "--temperature", "2", "--seed", "12"],
            "beta --max-tokens 16 --temperature 2 --seed 12 --top-k 20".split(),
            "beta --max-tokens 16 --temperature 2 --seed 12 --top-p 0.5 --min-p 0.01".split(),
            [prompt, "--max-tokens", "16", "--stop", stop],
            [prompt, "--max-tokens", "16", "--stop", stop],
            [prompt, "--max-tokens", "16"],
        ]
        for n, words in enumerate(flags):
            alone = self.run_json(TIED, *words, "--logprobs", "1").results()[0]
            self.assertEqual(bits(alone), bits(results[n]), lines[n])
        self.assertEqual(4, len({tuple(results[n]["tokens"]) for n in (1, 2, 3, 4)}))
        self.assertEqual("stop", results[5]["finish_reason"])

    def test_messages_go_through_the_template(self):
        line = {
            "messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
        }
        done = self.run_json(TIED, "--prompts", self.write("p.jsonl", [line]), "--max-tokens", "4")
        ids = done.results()[0]["prompt_tokens"]
        rendered = (
            "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        tokens = self.expect(0, "tokenize", TIED, rendered, "--special", "--json").json_lines()[0]
        self.assertEqual(tokens["tokens"], ids)
        chat = self.run_json(TIED, "hi", "--chat", "--system", "be", "--max-tokens", "4").results()[
            0
        ]
        self.assertEqual(ids, chat["prompt_tokens"])
        self.assertEqual(done.results()[0]["tokens"], chat["tokens"])

    def test_tokens_file(self):
        rows = [[5, 6, 7], [40], random_ids(random.Random(1), TIED, 33)]
        done = self.run_ids(TIED, rows, "--max-tokens", "6")
        self.assertEqual(rows, [r["prompt_tokens"] for r in done.results()])
        stdin = "".join(json.dumps(r) + "\n" for r in rows).encode()
        piped = self.run_json(TIED, "--tokens", "-", "--max-tokens", "6", stdin=stdin)
        self.assertEqual(list(map(bits, done.results())), list(map(bits, piped.results())))

    def test_tokens_of_a_text_give_the_text_s_results(self):
        text = self.run_json(MIXED, "some text", "--max-tokens", "8", "--logprobs", "3").results()[
            0
        ]
        ids = self.run_ids(
            MIXED, [text["prompt_tokens"]], "--max-tokens", "8", "--logprobs", "3"
        ).results()[0]
        self.assertEqual(bits(text), bits(ids))


class EndTest(ReadableTest):
    def test_max_tokens(self):
        for count in (1, 2, 17):
            result = self.run_json(TIED, "a", "--max-tokens", count, "--ignore-eos").results()[0]
            self.assertEqual((count, "length"), (len(result["tokens"]), result["finish_reason"]))

    def test_stop_text_is_cut_off(self):
        prompt, text = self.readable(24)
        full = self.run_json(TIED, prompt, "--max-tokens", "24", "--logprobs", "1").results()[0]
        self.assertEqual(text, full["text"])
        tried = 0
        for size in (3, 2, 1):
            for at in range(3, len(text) - size + 1):
                stop = text[at : at + size]
                if not plain(stop) or tried == 12:
                    continue
                result = self.run_json(
                    TIED, prompt, "--max-tokens", "24", "--logprobs", "1", "--stop", stop
                ).results()[0]
                tried += 1
                self.assertEqual("stop", result["finish_reason"])
                self.assertEqual(full["text"][: full["text"].index(stop)], result["text"])
                count = len(result["tokens"])
                self.assertEqual(full["tokens"][:count], result["tokens"])
                self.assertEqual(full["logprobs"][:count], result["logprobs"])
        self.assertGreater(tried, 3)

    def test_several_stop_texts_the_first_match_wins(self):
        prompt, full = self.readable(24)
        letters = [c for c in dict.fromkeys(full[2:]) if plain(c)]
        stops = [letters[-1], letters[len(letters) // 2]]
        result = self.run_json(
            TIED, prompt, "--max-tokens", "24", "--stop", stops[0], "--stop", stops[1]
        ).results()[0]
        self.assertEqual(full[: min(full.index(s) for s in stops)], result["text"])

    def test_end_tokens(self):
        # A flat distribution meets an end token often enough in 64 continuations.
        lines = [{"prompt": "abc", "temperature": 8.0, "seed": s} for s in range(64)]
        path = self.write("p.jsonl", lines)
        ended = self.run_json(TIED, "--prompts", path, "--max-tokens", "40").results()
        ignored = self.run_json(
            TIED, "--prompts", path, "--max-tokens", "40", "--ignore-eos"
        ).results()
        stopped = [n for n, r in enumerate(ended) if r["finish_reason"] == "stop"]
        self.assertGreater(len(stopped), 0)
        for n, result in enumerate(ended):
            count = len(result["tokens"])
            self.assertEqual(
                ("length", 40), (ignored[n]["finish_reason"], len(ignored[n]["tokens"]))
            )
            self.assertEqual(ignored[n]["tokens"][:count], result["tokens"])
            if n in stopped:
                self.assertIn(result["tokens"][-1], range(support.NUM_SPECIAL))
            else:
                self.assertEqual(40, count)
            self.assertNotIn(2, result["tokens"][:-1])

    def test_a_terminal_shows_the_same_text_as_a_file(self):
        for words in [[], ["--echo"], ["--stop", "e"], ["--max-tokens", "300"]]:
            command = ["run", TIED, "the prompt", "--temperature", "1", "--seed", "5", *words]
            plain = self.expect(0, *command).out
            ours, theirs = pty.openpty()
            process = subprocess.Popen(
                support.command_of(command), stdout=theirs, stderr=subprocess.PIPE
            )
            os.close(theirs)
            shown = b""
            while True:
                try:
                    data = os.read(ours, 65536)
                except OSError:  # how Linux reports the end of a terminal
                    break
                if not data:
                    break
                shown += data
            os.close(ours)
            process.communicate(timeout=support.TIMEOUT_S)
            self.assertEqual(0, process.returncode)
            # The terminal puts a return before each line end.
            self.assertEqual(plain.replace(b"\n", b"\r\n"), shown)

    def test_echo_puts_the_prompt_before_the_text(self):
        plain = self.run_json(TIED, "the prompt", "--max-tokens", "6").results()[0]
        echoed = self.run_json(TIED, "the prompt", "--max-tokens", "6", "--echo").results()[0]
        self.assertEqual("the prompt" + plain["text"], echoed["text"])
        self.assertEqual(plain["tokens"], echoed["tokens"])


class FolderTest(CliTest):
    """A Hugging Face folder without tokenizer.json: ids work, texts name what is missing."""

    FOLDER = support.GOLDEN / "folders" / "llama_linear"

    def test_ids_without_a_tokenizer(self):
        done = self.expect(
            0, "run", self.FOLDER, "--tokens", "-", "--max-tokens", "3", "--json", stdin=b"[1,2,3]\n"
        )
        (result,) = done.results()
        self.assertEqual(3, len(result["tokens"]))
        self.assertIsNone(result["text"])

    def test_a_text_needs_a_tokenizer(self):
        done = self.expect(3, "run", self.FOLDER, "hello")
        self.assertIn("tokenizer.json", done.err)
        self.assert_error_line(self.expect(3, "run", self.FOLDER, "hello", "--json"), "tokenizer")


class SeedTest(CliTest):
    def drawn(self, lines: list, *words) -> list:
        return self.run_json(
            TIED,
            "--prompts",
            self.write("p.jsonl", lines),
            "--max-tokens",
            "12",
            "--ignore-eos",
            "--logprobs",
            "1",
            "--temperature",
            "1.5",
            *words,
        ).results()

    def test_repeatable(self):
        lines = [{"prompt": f"p{n}", "seed": n} for n in range(6)]
        self.assertEqual(list(map(bits, self.drawn(lines))), list(map(bits, self.drawn(lines))))

    def test_independent_of_place_and_company(self):
        rng = random.Random(support.seed())
        lines = [{"prompt": f"p{n % 4}", "seed": n, "id": str(n)} for n in range(10)]
        reference = {r["id"]: bits(r) for r in self.drawn(lines)}
        shuffled = rng.sample(lines, len(lines))
        self.assertEqual(
            reference, {r["id"]: bits(r) for r in self.drawn(shuffled)}, f"seed {support.seed()}"
        )
        for line in rng.sample(lines, 3):
            (alone,) = self.drawn([line])
            self.assertEqual(reference[line["id"]], bits(alone), f"seed {support.seed()}")
        few = self.drawn(lines[:5], "--no-batch")
        self.assertEqual([reference[str(n)] for n in range(5)], list(map(bits, few)))

    def test_the_flag_seeds_every_prompt_alike(self):
        first, second = self.drawn([{"prompt": "x"}, {"prompt": "x"}], "--seed", "7")
        self.assertEqual(bits(first), bits(second))
        (line,) = self.drawn([{"prompt": "x", "seed": 7}])
        self.assertEqual(bits(first), bits(line))

    def test_other_seeds_draw_otherwise(self):
        results = self.drawn([{"prompt": "x", "seed": s} for s in range(8)])
        self.assertGreater(len({tuple(r["tokens"]) for r in results}), 4)

    def test_temperature_zero_is_greedy(self):
        greedy = self.run_json(TIED, "x", "--max-tokens", "12").results()[0]
        zero = self.run_json(
            TIED, "x", "--max-tokens", "12", "--temperature", "0", "--seed", "5"
        ).results()[0]
        self.assertEqual(bits(greedy), bits(zero))

    def test_each_filter_keeps_its_share_of_the_likeliest(self):
        # At temperature 1 the logprobs are those that the filters see.
        lines = [{"prompt": "abc", "seed": s} for s in range(200)]
        path = self.write("p.jsonl", lines)
        words = [TIED, "--prompts", path, "--max-tokens", "1", "--temperature", "1"]

        def tokens(*filters):
            results = self.run_json(*words, "--logprobs", "20", *filters).results()
            return {r["tokens"][0] for r in results}, results[0]["top_logprobs"][0]

        everything, top = tokens()
        ids = [i for i, _ in top]
        share = [math.exp(v) for _, v in top]
        self.assertGreater(len(everything), 10)
        self.assertEqual(everything, tokens("--top-k", "0", "--top-p", "1", "--min-p", "0")[0])
        self.assertEqual(everything, tokens("--top-k=-1")[0])
        self.assertEqual(set(ids[:3]), tokens("--top-k", "3")[0])
        # The bound lies in the middle of the third token, clear of rounding.
        bound = sum(share[:2]) + share[2] / 2
        self.assertEqual(set(ids[:3]), tokens("--top-p", repr(bound))[0])
        self.assertEqual(set(ids[:2]), tokens("--top-k", "2", "--top-p", "0.99")[0])
        bound = share[0] / sum(share[:4]) * 0.9  # of what top_k leaves
        self.assertEqual(set(ids[:1]), tokens("--top-k", "4", "--top-p", repr(bound))[0])
        bound = (share[3] + share[4]) / 2 / share[0]
        kept = {i for i, p in zip(ids, share) if p > bound * share[0]}
        self.assertEqual(kept, tokens("--min-p", repr(bound))[0])

    def test_filters_do_not_change_a_greedy_choice(self):
        greedy = self.run_json(TIED, "x", "--max-tokens", "12").results()[0]
        filters = ["--top-k", "2", "--top-p", "0.1", "--min-p", "0.5"]
        filtered = self.run_json(TIED, "x", "--max-tokens", "12", *filters).results()[0]
        self.assertEqual(bits(greedy), bits(filtered))

    def test_draws_follow_the_distribution(self):
        # 400 first tokens against the whole distribution: a chi-square over the likeliest 5 and the
        # rest. With 5 degrees of freedom it exceeds 30 once in 60,000 sets of seeds; ours is fixed.
        lines = [{"prompt": "abc", "seed": s} for s in range(400)]
        results = self.run_json(
            TIED,
            "--prompts",
            self.write("p.jsonl", lines),
            "--max-tokens",
            "1",
            "--temperature",
            "1",
            "--logprobs",
            5,
        ).results()
        top = results[0]["top_logprobs"][0]
        share = {i: math.exp(v) for i, v in top}
        counts = {i: sum(r["tokens"][0] == i for r in results) for i in share}
        expected = [400 * p for p in share.values()] + [400 * (1 - sum(share.values()))]
        found = list(counts.values()) + [400 - sum(counts.values())]
        chi = sum((f - e) ** 2 / max(e, 1.0) for f, e in zip(found, expected))
        self.assertLess(chi, 30, (expected, found))


class FailsAloneTest(CliTest):
    def check_error(self, result: dict, code: str = "invalid_argument") -> None:
        self.assertEqual("error", result["finish_reason"], result)
        self.assertLessEqual({"code", "field", "message"}, set(result["error"]))
        self.assertEqual(code, result["error"]["code"], result["error"])
        self.assertTrue(result["error"]["field"] and result["error"]["message"], result["error"])
        self.assertEqual([], result["tokens"])

    def test_bad_rows_of_ids(self):
        rng = random.Random(support.seed())
        good = [random_ids(rng, TIED, n) for n in (4, 20, 50)]
        bad = [
            random_ids(rng, TIED, TINY_CONTEXT + 1),
            [],
            [5, VOCABULARY[TIED]],
            [5, -1],
            random_ids(rng, TIED, 4 * TINY_CONTEXT),
        ]
        rows = [bad[0], good[0], bad[1], bad[2], good[1], bad[3], good[2], bad[4]]
        words = ["--max-tokens", "8", "--logprobs", "3"]
        alone = self.run_ids(TIED, good, *words).results()
        for mode in ([], ["--no-batch"]):
            done = self.run_ids(TIED, rows, *words, *mode, code=1)
            results = done.results()
            self.assertEqual(list(range(len(rows))), [r["index"] for r in results])
            self.assertEqual(list(map(bits, alone)), [bits(results[n]) for n in (1, 4, 6)])
            for n in (0, 2, 3, 5, 7):
                self.check_error(results[n])
            self.assertEqual(5, done.summary()["failed"])

    def test_prompt_and_budget_beyond_the_context(self):
        rows = [random_ids(random.Random(3), TIED, 500), random_ids(random.Random(4), TIED, 5)]
        done = support.chorus(
            "run",
            TIED,
            "--tokens",
            self.write("ids.jsonl", rows),
            "--max-tokens",
            "40",
            "--ignore-eos",
            "--json",
        )
        long, short = done.results()
        self.assertEqual(("length", 40), (short["finish_reason"], len(short["tokens"])))
        if long["finish_reason"] == "error":
            self.assertEqual(1, done.code)
            self.check_error(long)
        else:  # cut at the context is what users of such tools know
            self.assertEqual((0, "length"), (done.code, long["finish_reason"]))
            self.assertLessEqual(500 + len(long["tokens"]), TINY_CONTEXT + 1)

    def test_bad_lines_of_json(self):
        good = [{"prompt": "one", "id": "1"}, {"prompt": "two", "id": "2"}]
        bad = [
            '{"prompt": ',
            '{"prompt": 5}',
            '{"id": "x"}',
            '{"prompt": ""}',
            '{"prompt": "a", "max_tokens": 0}',
            '{"prompt": "a", "temperature": -1}',
            '{"prompt": "a", "stop": 5}',
            '{"prompt": "a", "top_p": 0}',
            '{"prompt": "a", "messages": []}',
            '{"messages": 7}',
            '{"prompt": "a", "seed": "x"}',
        ]
        text = "\n".join([json.dumps(good[0]), *bad, json.dumps(good[1])]) + "\n"
        alone = self.run_json(
            TIED, "--prompts", self.write("good.jsonl", good), "--max-tokens", "8"
        )
        path = self.write("p.jsonl", text)
        done = self.run_json(TIED, "--prompts", path, "--max-tokens", "8", code=1)
        results = done.results()
        self.assertEqual(len(bad) + 2, len(results))
        self.assertEqual(list(map(bits, alone.results())), [bits(results[0]), bits(results[-1])])
        for n, line in enumerate(bad):
            with self.subTest(line=line):
                result = results[n + 1]
                self.assertEqual("error", result["finish_reason"])
                self.assertIn(result["error"]["code"], {"invalid_argument", "unimplemented"})
                self.assertTrue(result["error"]["message"])
        for n, field in [
            (4, "max_tokens"),
            (5, "temperature"),
            (6, "stop"),
            (7, "top_p"),
            (10, "seed"),
        ]:
            with self.subTest(line=bad[n]):
                self.assertEqual(
                    f"{path}: line {n + 2}.{field}", results[n + 1]["error"]["field"]
                )
                self.assertEqual("a", results[n + 1]["prompt"])

    def test_a_bad_line_is_named_by_its_number(self):
        path = self.write("p.jsonl", '{"prompt": "a"}\n\n{"prompt": "b", "seed": -1}\n[]\n')
        done = self.expect(1, "run", TIED, "--prompts", path, "--max-tokens", "1")
        self.assertIn(f"{path}: line 3.seed: ", done.err)
        self.assertIn(f"{path}: line 4: ", done.err)
        chat = self.run_json(TIED, "--prompts", path, "--max-tokens", "1", "--chat", code=1)
        self.assertEqual(["b", None], [r["prompt"] for r in chat.results()[1:]])

    def test_bad_lines_of_a_tokens_file(self):
        rows = '[5,6]\n[5,\n"abc"\n[1.5]\n[7]\n'
        done = self.run_json(
            TIED, "--tokens", self.write("ids.jsonl", rows), "--max-tokens", "4", code=1
        )
        reasons = [r["finish_reason"] == "error" for r in done.results()]
        self.assertEqual([False, True, True, True, False], reasons)

    def test_invalid_utf8_does_not_stop_the_others(self):
        path = self.write("p.txt", b"good\n\xff\xfe\x80\nalso good\n")
        done = support.chorus("run", TIED, "--prompts", path, "--max-tokens", "4", "--json")
        results = done.results()
        self.assertEqual(3, len(results))
        self.assertEqual("length", results[0]["finish_reason"])
        self.assertEqual("length", results[2]["finish_reason"])
        self.assertEqual(1 if results[1]["finish_reason"] == "error" else 0, done.code)

    def test_more_than_the_pool_can_ever_hold(self):
        rng = random.Random(support.seed())
        rows = [random_ids(rng, TIED, n) for n in (10, 200, 12)]
        words = ["--max-tokens", "8", "--logprobs", "1"]
        alone = self.run_ids(TIED, [rows[0], rows[2]], *words).results()
        done = self.run_ids(TIED, rows, *words, "--block-size", "16", "--kv-blocks", "6", code=1)
        results = done.results()
        self.check_error(results[1], results[1]["error"]["code"])
        self.assertEqual(list(map(bits, alone)), [bits(results[0]), bits(results[2])])

    def test_a_pool_of_a_fraction_of_the_need(self):
        rng = random.Random(support.seed())
        rows = [random_ids(rng, TIED, rng.randint(5, 100)) for _ in range(12)]
        words = ["--max-tokens", "40", "--ignore-eos", "--logprobs", "2"]
        roomy = self.run_ids(TIED, rows, *words)
        tight = self.run_ids(TIED, rows, *words, "--kv-blocks", "12")
        self.assertEqual(list(map(bits, roomy.results())), list(map(bits, tight.results())))
        self.assertEqual(0, roomy.summary()["preemptions"])
        preemptions = [result["metrics"]["preemptions"] for result in tight.results()]
        self.assertGreater(sum(preemptions), 0)
        self.assertEqual(sum(preemptions), tight.summary()["preemptions"])

    def test_all_prompts_bad(self):
        done = self.run_ids(TIED, [[], [9999]], code=1)
        self.assertEqual(2, len(done.results()))
        self.assertEqual(2, done.summary()["failed"])


if __name__ == "__main__":
    support.main()
