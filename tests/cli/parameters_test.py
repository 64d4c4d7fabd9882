#!/usr/bin/env python3
"""Parameters of `chorus run` that change what is chosen, against their definitions."""

import json
import math

from support import TIED, TINY_CONTEXT, CliTest, bits, main

PROMPT = "the sea and the land"
GREEDY = ["--ignore-eos", "--max-tokens", "24", "--logprobs", "64"]


class ParametersTest(CliTest):
    def one(self, *words, prompt: str = PROMPT, **options) -> dict:
        (result,) = self.run_json(TIED, prompt, *words, **options).results()
        return result

    def test_presence_and_frequency_penalties(self):
        # Logprobs are logits less the same number for all, so penalties can be taken from them. What
        # is not among the 64 likeliest is not the greatest, since nothing is raised.
        plain = self.one(*GREEDY)
        for presence, frequency in [(2.0, 0.0), (0.0, 1.5), (0.5, 0.25), (1.0, 2.0)]:
            words = ["--presence-penalty", presence, "--frequency-penalty", frequency]
            result = self.one(*GREEDY, *words)
            self.assertNotEqual(plain["tokens"], result["tokens"])
            chosen = []
            for token, top in zip(result["tokens"], result["top_logprobs"]):
                adjusted = {
                    i: v - frequency * chosen.count(i) - (presence if i in chosen else 0)
                    for i, v in top
                }
                self.assertAlmostEqual(max(adjusted.values()), adjusted[token], places=4)
                chosen.append(token)

    def test_a_repetition_penalty_covers_the_prompt(self):
        prompt = self.one(*GREEDY)["prompt_tokens"]
        result = self.one(*GREEDY, "--repetition-penalty", "1000")
        self.assertEqual(24, len(set(result["tokens"])))
        self.assertEqual(set(), set(prompt) & set(result["tokens"]))

    def test_a_bias(self):
        plain = self.one(*GREEDY)
        first, second = plain["top_logprobs"][0][:2]
        gap = first[1] - second[1]
        for bias, token in [(gap * 0.99, first[0]), (gap * 1.01, second[0])]:
            result = self.one(*GREEDY, "--logit-bias", f"{second[0]}={bias}")
            self.assertEqual(token, result["tokens"][0])
            # What is reported knows nothing of it.
            self.assertEqual(plain["top_logprobs"][0], result["top_logprobs"][0])
        both = ["--logit-bias", f"{first[0]}=-100", "--logit-bias", f"{second[0]}=-100"]
        third = plain["top_logprobs"][0][2][0]
        self.assertEqual(third, self.one(*GREEDY, *both)["tokens"][0])

    def test_allowed_tokens(self):
        words = ["--allowed-token", "40", "--allowed-token", "77", "--temperature", "3"]
        drawn = set()
        for seed in range(8):
            result = self.one(*GREEDY, *words, "--seed", seed)
            self.assertLessEqual(set(result["tokens"]), {40, 77})
            drawn |= set(result["tokens"])
        self.assertEqual({40, 77}, drawn)

    def test_typical_tokens(self):
        words = ["--max-tokens", "1", "--temperature", "1", "--logprobs", "64"]
        for share in (0.2, 0.3):
            lines = [{"prompt": "abc", "seed": s, "typical_p": share} for s in range(60)]
            path = self.write("p.jsonl", lines)
            results = self.run_json(TIED, "--prompts", path, *words).results()
            top = dict(results[0]["top_logprobs"][0])
            self.assertGreater(sum(map(math.exp, top.values())), 0.99)
            # What is not reported is so little that it moves the entropy by less than 0.05.
            entropy = -sum(v * math.exp(v) for v in top.values())
            expected, reached = set(), 0.0
            for token in sorted(top, key=lambda i: abs(-top[i] - entropy)):
                if reached < share:
                    expected.add(token)
                    reached += math.exp(top[token])
            self.assertEqual(expected, {r["tokens"][0] for r in results})

    def test_min_tokens(self):
        plain = self.one(*GREEDY)
        stop = ["--stop-token", plain["tokens"][0]]
        self.assertEqual(plain["tokens"][:1], self.one(*GREEDY, *stop)["tokens"])
        late = self.one(*GREEDY, *stop, "--min-tokens", "6")["tokens"]
        self.assertGreaterEqual(len(late), 6)
        self.assertNotIn(plain["tokens"][0], late[:6])
        self.expect(1, "run", TIED, PROMPT, "--max-tokens", "4", "--min-tokens", "5")

    def test_what_ends_a_text(self):
        plain = self.one(*GREEDY)["text"]
        stop = plain[3:5]
        before = plain[: plain.index(stop)]
        self.assertEqual(before, self.one(*GREEDY, "--stop", stop)["text"])
        self.assertEqual(before + stop, self.one(*GREEDY, "--stop", stop, "--include-stop")["text"])

    def test_unknown_ids_fail_alone_and_are_named(self):
        good = {"prompt": "one"}
        bad = [
            ({"logit_bias": {"99999999": 1}}, 'logit_bias["99999999"]'),
            ({"allowed_token_ids": [1, 293]}, "allowed_token_ids[1]"),
            ({"stop_token_ids": [2147483647]}, "stop_token_ids[0]"),
            ({"min_tokens": 9}, "min_tokens"),
            ({"bad_words": [" "]}, "bad_words[0]"),
        ]
        lines = [good] + [{"prompt": "x", **fields} for fields, _ in bad] + [good]
        path = self.write("p.jsonl", lines)
        results = self.run_json(TIED, "--prompts", path, "--max-tokens", "8", code=1).results()
        self.assertEqual(bits(results[0])[2:], bits(results[-1])[2:])
        for result, (fields, field) in zip(results[1:-1], bad):
            with self.subTest(fields=fields):
                self.assertEqual(field, result["error"]["field"])
                self.assertEqual([], result["tokens"])

    def test_a_line_overrides_the_flags(self):
        words = ["--max-tokens", "12", "--temperature", "1", "--seed", "3", "--ignore-eos"]
        bias = {"20": 3, "30": -2}
        line = {"prompt": "abc", "logit_bias": bias, "presence_penalty": 1, "typical_p": 0.9}
        path = self.write("p.jsonl", [line])
        other = ["--logit-bias", "7=100", "--presence-penalty", "2", "--typical-p", "0.5"]
        (by_line,) = self.run_json(TIED, "--prompts", path, *words, *other).results()
        flags = ["--logit-bias", "20=3", "--logit-bias", "30=-2", "--presence-penalty", "1"]
        by_flags = self.one(*words, *flags, "--typical-p", "0.9", prompt="abc")
        self.assertEqual(by_flags["tokens"], by_line["tokens"])

    def test_best_of(self):
        words = ["--max-tokens", "10", "--temperature", "2", "--seed", "5", "--ignore-eos"]
        words += ["--logprobs", "0"]
        every = self.run_json(TIED, "abc", *words, "-n", "8").results()
        mean = {r["choice"]: sum(r["logprobs"]) / len(r["logprobs"]) for r in every}
        best = sorted(mean, key=lambda c: -mean[c])
        done = self.run_json(TIED, "abc", *words, "-n", "3", "--best-of", "8")
        found = done.of_type("result")  # as they come
        self.assertEqual(best[:3], [r["choice"] for r in found])
        for result in found:
            self.assertEqual(every[result["choice"]]["tokens"], result["tokens"])
            self.assertAlmostEqual(mean[result["choice"]], result["mean_logprob"], places=5)
        self.assert_refused(2, "--best-of", "run", TIED, "a", "-n", "3", "--best-of", "2")

    def test_a_prompt_is_cut_at_its_front(self):
        whole = self.one("--max-tokens", "2")["prompt_tokens"]
        cut = self.one("--max-tokens", "2", "--truncate-prompt", "3")
        self.assertEqual(whole[-3:], cut["prompt_tokens"])
        self.assertEqual(len(whole) - 3, cut["truncated_tokens"])
        rows = self.write("ids.jsonl", json.dumps([5] * (TINY_CONTEXT + 9)) + "\n")
        words = ["--tokens", rows, "--max-tokens", "4"]
        self.run_json(TIED, *words, code=1)
        (fits,) = self.run_json(TIED, *words, "--truncate-prompt=-1").results()
        self.assertEqual(TINY_CONTEXT - 4, len(fits["prompt_tokens"]))
        self.assertEqual(13, fits["truncated_tokens"])

    def test_a_saved_session_goes_on_with_its_parameters(self):
        words = ["--temperature", "1.5", "--seed", "4", "--ignore-eos"]
        adjusted = ["--repetition-penalty", "1.3", "--logit-bias", "20=2", "--typical-p", "0.9"]
        adjusted += ["--bad-word", "e"]
        whole = self.one(*words, *adjusted, "--max-tokens", "20")["tokens"]
        path = str(self.folder / "s.session")
        self.one(*words, *adjusted, "--max-tokens", "8", "--save-session", path)
        go_on = ["--load-session", path, "--ignore-eos", "--max-tokens", "12"]
        (rest,) = self.run_json(TIED, *go_on).results()
        self.assertEqual(whole[8:], rest["tokens"])
        (plain,) = self.run_json(TIED, *go_on, "--repetition-penalty", "1").results()
        self.assertNotEqual(rest["tokens"], plain["tokens"])


if __name__ == "__main__":
    main()
