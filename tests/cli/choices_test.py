#!/usr/bin/env python3
"""`chorus run -n K`, and the priorities and deadlines of JSON Lines."""

import random
import signal
import subprocess

import support
from support import MIXED, TIED, TINY_CONTEXT, CliTest, bits, random_ids

SAMPLED = ["--temperature", "1.5", "--seed", "11", "--max-tokens", "12", "--ignore-eos"]


class ChoicesTest(CliTest):
    def choices(self, rows: list, count: int, *words, code: int = 0, model: str = TIED):
        return self.run_ids(
            model, rows, "-n", count, "--logprobs", "2", *SAMPLED, *words, code=code
        )

    def rows(self, *lengths: int) -> list:
        rng = random.Random(support.seed())
        return [random_ids(rng, TIED, n) for n in lengths]

    def test_results_are_in_order_of_prompt_and_choice(self):
        lines = self.choices(self.rows(30, 1, 9), 4).json_lines()
        self.assertEqual("summary", lines[-1]["type"])
        places = [(r["index"], r["choice"]) for r in lines[:-1]]
        self.assertEqual([(i, c) for i in range(3) for c in range(4)], places)

    def test_the_prompt_is_computed_once(self):
        # All but the last token, which each further choice runs again for its logits.
        for model in (TIED, MIXED):
            for words in ([], ["--no-batch"], ["--max-sessions", "2"], ["--prefill-chunk", "16"]):
                done = self.choices(self.rows(200, 1), 5, *words, model=model)
                summary = done.summary()
                self.assertEqual(201, summary["prompt_tokens"])
                self.assertEqual(200 + 1 + 2 * 4, summary["computed_prompt_tokens"], words)
                cached = [r["metrics"]["cached_tokens"] for r in done.results()]
                self.assertEqual([0, 199, 199, 199, 199, 0, 0, 0, 0, 0], cached)
                self.assertEqual(2 * 5 * 12, summary["generated_tokens"])

    def test_a_choice_depends_on_nothing_but_its_prompt_and_number(self):
        rows = self.rows(40, 70, 3)
        reference = [bits(r) for r in self.choices(rows, 6).results()]
        self.assertEqual(18, len(set(reference)))
        few = [bits(r) for r in self.choices(rows[1:2], 3).results()]
        self.assertEqual(reference[6:9], few)
        (one,) = self.choices(rows[2:], 1).results()
        self.assertEqual(reference[12], bits(one))
        for words in (
            ["--no-batch"],
            ["--max-sessions", "4"],
            ["--max-decode-sequences", "2"],
            ["--block-size", "1"],
            ["--kv-blocks", "12"],
        ):
            found = [bits(r) for r in self.choices(rows, 6, *words).results()]
            self.assertEqual(reference, found, words)

    def test_greedy_choices_are_equal(self):
        done = self.run_json(TIED, "abc", "-n", "3", "--max-tokens", "8", "--logprobs", "1")
        first, second, third = map(bits, done.results())
        self.assertEqual((first, first), (second, third))

    def test_choices_without_a_seed_differ(self):
        done = self.run_json(TIED, "abc", "-n", "4", "--max-tokens", "16", "--temperature", "2")
        self.assertGreater(len({tuple(r["tokens"]) for r in done.results()}), 1)

    def test_every_choice_carries_the_scores_of_the_prompt(self):
        for words in ([], ["--no-batch"]):
            first, *rest = self.choices(self.rows(50), 3, "--echo", *words).results()
            alone = self.choices(self.rows(50), 1, "--echo").results()[0]
            self.assertEqual(alone["prompt_logprobs"], first["prompt_logprobs"])
            self.assertEqual(49, sum(isinstance(v, float) for v in first["prompt_logprobs"]))
            for result in rest:
                self.assertEqual(first["prompt_logprobs"], result["prompt_logprobs"])
                self.assertEqual(first["prompt_top_logprobs"], result["prompt_top_logprobs"])

    def test_a_bad_prompt_fails_with_a_result_for_each_choice(self):
        rows = self.rows(5, TINY_CONTEXT + 1, 7) + [[], [9999]]
        for words in ([], ["--no-batch"], ["--max-sessions", "1"]):
            done = self.choices(rows, 3, *words, code=1)
            results = done.results()
            self.assertEqual(15, len(results))
            for result in results:
                failed = result["index"] in (1, 3, 4)
                self.assertEqual("error" if failed else "length", result["finish_reason"])
            self.assertEqual(results[3]["error"], results[5]["error"])
            self.assertEqual(9, done.summary()["failed"])

    def test_text_for_people_names_the_choices(self):
        done = self.expect(1, "run", TIED, "a", "", "-n", "2", "--max-tokens", "2", "--quiet")
        heads = [line for line in done.out.decode().split("\n") if line.startswith("---")]
        self.assertEqual(["--- 1 choice 0", "--- 1 choice 1"], heads)
        self.assertEqual(1, done.err.count("prompt 2.prompt"))

    def test_interrupted(self):
        lines = [{"prompt": "ab", "max_tokens": 2 if n < 2 else 400} for n in range(800)]
        command = ["run", TIED, "--prompts", self.write("p.jsonl", lines), "-n", "3", "--json"]
        process = subprocess.Popen(
            support.command_of([*command, "--ignore-eos", "--max-sessions", "5"]),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=support.TIMEOUT_S)
        self.assertEqual(130, process.returncode, err)
        done = support.Done(command, 130, first + out, err.decode())
        results = done.of_type("result")
        places = [(r["index"], r["choice"]) for r in results]
        self.assertEqual(sorted(set(places)), places)
        self.assertLess(len(places), 2400)
        self.assertLessEqual({r["finish_reason"] for r in results}, {"length", "cancelled"})
        self.assertEqual(0, done.summary()["failed"])


class PriorityTest(CliTest):
    def test_the_higher_goes_first(self):
        # All are submitted together and there is one session: while the others run, the deadline
        # of the lowest passes, and it is the first of the file.
        lines = [
            {"prompt": "low", "priority": -1, "deadline_ms": 50, "id": "low"},
            {"prompt": "middle", "deadline_ms": 10**9, "max_tokens": 1, "id": "middle"},
            {"prompt": "high", "priority": 7, "id": "high"},
        ]
        done = self.run_json(
            TIED,
            "--prompts",
            self.write("p.jsonl", [*lines, *({**lines[2], "id": n} for n in range(20))]),
            "--max-tokens",
            "500",
            "--max-sessions",
            "1",
            "--ignore-eos",
            code=1,
        )
        results = done.results()
        self.assertEqual(["low", "middle", "high"], [r["id"] for r in results[:3]])
        self.assertEqual("deadline_exceeded", results[0]["error"]["code"])
        self.assertEqual([], results[0]["tokens"])
        self.assertEqual({"length"}, {r["finish_reason"] for r in results[1:]})

    def test_it_changes_no_result(self):
        rng = random.Random(support.seed())
        lines = [{"prompt": f"p{n}", "seed": n} for n in range(12)]
        words = ["--max-tokens", "40", "--temperature", "1", "--ignore-eos", "--logprobs", "1"]
        plain = self.run_json(TIED, "--prompts", self.write("p.jsonl", lines), *words).results()
        for line in lines:
            line["priority"] = rng.randrange(-5, 5)
        path = self.write("p.jsonl", lines)
        for limits in ([], ["--kv-blocks", "8"], ["--max-sessions", "3"]):
            done = self.run_json(TIED, "--prompts", path, *words, *limits)
            self.assertEqual(list(map(bits, plain)), list(map(bits, done.results())), limits)


class DeadlineTest(CliTest):
    def test_it_ends_with_the_text_so_far(self):
        lines = [
            {"prompt": "a", "deadline_ms": 0},
            {"prompt": "b", "deadline_ms": 15, "max_tokens": 500},
            {"prompt": "c", "deadline_ms": 10**12, "max_tokens": 3},
            {"prompt": "d", "max_tokens": 3},
        ]
        path = self.write("p.jsonl", lines)
        # All of these in one batch take longer than the second may.
        words = ["--ignore-eos", "--temperature", "1", "--seed", "4", "--logprobs", "1"]
        others = [{"prompt": "x" * 100, "max_tokens": 300}] * 20
        busy = self.write("busy.jsonl", lines + others)
        full = self.run_json(TIED, "b", "--max-tokens", "500", *words).results()[0]
        for source, choices in ((path, 1), (busy, 1), (busy, 2)):
            done = self.run_json(TIED, "--prompts", source, "-n", choices, *words, code=1)
            results = done.results()
            ended = [r for r in results if r["index"] < 2]
            for result in ended[:choices]:
                self.assertEqual(("cancelled", []), (result["finish_reason"], result["tokens"]))
            for result in results:
                if result["index"] > 1:
                    self.assertEqual(("length", None), (result["finish_reason"], result["error"]))
            cut = ended[choices]
            if source == busy:
                self.assertEqual("cancelled", cut["finish_reason"])
                self.assertEqual("deadline_exceeded", cut["error"]["code"])
                self.assertEqual("deadline_ms", cut["error"]["field"])
                self.assertIn("15 ms", cut["error"]["message"])
                self.assertLess(cut["metrics"]["total_ms"], 15 + 5000)
            count = len(cut["tokens"])
            self.assertEqual(full["tokens"][:count], cut["tokens"])
            self.assertEqual(full["logprobs"][:count], cut["logprobs"])
            failed = sum(r["error"] is not None for r in results)
            self.assertEqual(failed, done.summary()["failed"])

    def test_text_for_people_shows_what_there_is(self):
        path = self.write("p.jsonl", [{"prompt": "a", "deadline_ms": 0}, {"prompt": "b"}])
        done = self.expect(1, "run", TIED, "--prompts", path, "--max-tokens", "4")
        self.assertIn("prompt 1.deadline_ms: expected to end within 0 ms", done.err)
        self.assertIn(b"--- 2\n", done.out)

    def test_bad_values_fail_alone(self):
        bad = ['"deadline_ms": -1', '"deadline_ms": 1.5', '"deadline_ms": "1"']
        bad += ['"priority": 0.5', '"priority": "high"', '"priority": 99999999999']
        text = "".join('{"prompt": "a", %s}\n' % member for member in bad)
        path = self.write("p.jsonl", text + '{"prompt": "a"}\n')
        results = self.run_json(TIED, "--prompts", path, "--max-tokens", "1", code=1).results()
        for n, member in enumerate(bad):
            field = member.split('"')[1]
            self.assertEqual(f"{path}: line {n + 1}.{field}", results[n]["error"]["field"])
        self.assertIsNone(results[-1]["error"])


if __name__ == "__main__":
    support.main()
