#!/usr/bin/env python3
"""The command line itself: help, version, exit codes, error objects, refusals by name."""

import re
import resource
import subprocess

import support
from support import TIED, CliTest

COMMON = ["--threads", "--json", "--quiet", "--log-level", "--help"]
NUMERICS = ["--activations", "--kv-type", "--exact"]
ENGINE = [
    "--max-sessions",
    "--max-batch-tokens",
    "--prefill-chunk",
    "--max-decode-sequences",
    "--context",
    "--kv-memory",
    "--kv-blocks",
    "--block-size",
    "--kv-layout",
    "--no-prefix-cache",
]
SAMPLING = [
    "--temperature",
    "--top-k",
    "--top-p",
    "--min-p",
    "--seed",
    "--max-tokens",
    "--stop",
    "--ignore-eos",
    "--min-tokens",
    "--typical-p",
    "--presence-penalty",
    "--frequency-penalty",
    "--repetition-penalty",
    "--logit-bias",
    "--allowed-token",
    "--bad-word",
    "--stop-token",
    "--include-stop",
    "--show-special",
]
FLAGS = {
    "export": [
        "-o",
        "--context",
        "--methods",
        "--decode-widths",
        "--prefill",
        "--max-step",
        "--quantize",
    ],
    "inspect": ["--json", "--tensors", "--graph", "--verify"],
    "tokenize": ["--ids", "--decode", "--special", "--json"],
    "run": COMMON
    + NUMERICS
    + ENGINE
    + SAMPLING
    + [
        "--prompts",
        "--tokens",
        "-n",
        "--best-of",
        "--truncate-prompt",
        "--chat",
        "--system",
        "--logprobs",
        "--echo",
        "--no-batch",
        "--report",
        "--save-session",
        "--load-session",
        "--recompute",
    ],
    "chat": [flag for flag in COMMON if flag != "--json"]
    + NUMERICS
    + ENGINE
    + SAMPLING
    + ["--system"],
    "serve": [flag for flag in COMMON if flag != "--json"]
    + NUMERICS
    + ENGINE
    + [
        "--host",
        "--port",
        "--unix-socket",
        "--no-tcp",
        "--served-model-name",
        "--access-log",
        "--vllm-metric-names",
        "--drain-timeout",
        "--stuck-after",
        "--ping-interval",
        "--api-key",
        "--api-key-file",
        "--open-metrics",
        "--cors",
        "--allow-host",
        "--share-prefixes",
        "--queue",
        "--max-running",
        "--max-requests-per-key",
        "--max-body",
        "--max-bodies",
        "--max-connections",
        "--max-held-sessions",
        "--session-idle",
        "--session-dir",
    ],
    "perplexity": COMMON + NUMERICS + ENGINE + ["--window", "--windows", "--tokens", "--per-token"],
    "bench": COMMON
    + NUMERICS
    + ENGINE
    + [
        "--prompt",
        "--generate",
        "--batch",
        "--shared-prefix",
        "--tests",
        "--reps",
        "--machine",
        "--profile",
    ],
}
COUNT_VALUES = ["0", "-1", "x", "1.5", "", "99999999999999999999", "5 "]
BAD_NUMERICS = {"--activations": ["int4", "", "F32"], "--kv-type": ["q4", "f64", "", "f16"]}
BAD_ENGINE = {
    flag: COUNT_VALUES
    for flag in [
        "--threads",
        "--max-sessions",
        "--max-batch-tokens",
        "--prefill-chunk",
        "--max-decode-sequences",
        "--context",
        "--kv-blocks",
    ]
} | {
    "--block-size": ["0", "2", "15", "128", "-16", "x", ""],
    "--kv-layout": ["flat", "Paged", ""],
    "--kv-memory": ["0", "-1", "x", "12XiB", "", "MiB", "99999999999GiB"],
    "--log-level": ["loud", ""],
}
BAD_VALUES = {
    "run": BAD_NUMERICS
    | BAD_ENGINE
    | {
        "--temperature": ["-0.5", "x", "nan", "inf", ""],
        "--top-k": ["-2", "x", "1.5", "", "99999999999"],
        "--top-p": ["0", "-0.1", "1.01", "x", "nan", "inf", ""],
        "--min-p": ["-0.1", "1.01", "x", "nan", ""],
        "--typical-p": ["0", "-0.1", "1.01", "x", ""],
        "--presence-penalty": ["-2.1", "2.1", "x", ""],
        "--frequency-penalty": ["-2.1", "2.1", "nan", ""],
        "--repetition-penalty": ["0", "-1", "inf", "x", ""],
        "--logit-bias": ["5", "x=1", "-1=1", "5=x", "5=", "=1", "5=nan", "5=1 5", ""],
        "--allowed-token": ["-1", "x", "1.5", "", "99999999999"],
        "--stop-token": ["-1", "x", "1.5", ""],
        "--bad-word": [""],
        "--min-tokens": ["-1", "x", "1.5", ""],
        "--best-of": COUNT_VALUES + ["1025"],
        "--truncate-prompt": ["0", "-2", "x", "1.5", ""],
        "--seed": ["x", "1.5", ""],
        "--max-tokens": COUNT_VALUES,
        "--logprobs": ["-1", "x", "1.5", "", "99999999999999999999"],
        "-n": COUNT_VALUES + ["1025"],
    },
    "perplexity": BAD_NUMERICS | BAD_ENGINE | {"--window": COUNT_VALUES, "--windows": COUNT_VALUES},
    "export": {
        "--context": COUNT_VALUES,
        "--methods": ["", "decode", "prefill,decode", "forward,decode", "backward"],
        "--decode-widths": COUNT_VALUES + ["1,", "2,1", "1,1", "1;2"],
        "--prefill": COUNT_VALUES + ["5", "5:", ":5", "5:4", "1:2:3"],
        "--max-step": COUNT_VALUES,
        "--quantize": ["", "q6_k", "f16", "Q8_0", "5"],
    },
}


def named(flag: str, text: str) -> bool:
    """Whether the text names the flag as a word of its own."""
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text) is not None


class HelpTest(CliTest):
    def test_program_help_lists_the_verbs_that_exist(self):
        out = self.expect(0, "--help").out.decode()
        for verb in FLAGS:
            self.assertRegex(out, rf"(?m)^\s+{verb}\b")

    def test_verb_help_names_every_flag(self):
        for verb, flags in FLAGS.items():
            out = self.expect(0, verb, "--help").out.decode()
            for flag in flags:
                with self.subTest(verb=verb, flag=flag):
                    self.assertTrue(named(flag, out), out)
            self.assertNotRegex(out, r"(?<![\w-])f16(?![\w-])")

    def test_version(self):
        out = self.expect(0, "--version").out.decode()
        self.assertRegex(out, r"\d+\.\d+\.\d+")
        self.assertIn("generic", out)
        forced = self.expect(0, "--version", env={"CHORUS_FORCE_ISA": "generic"}).out.decode()
        self.assertIn("generic", forced)


class UnknownTest(CliTest):
    def test_verb(self):
        for typed, meant in [("rum", "run"), ("exprot", "export"), ("perplexty", "perplexity")]:
            done = self.expect(2, typed, TIED)
            self.assertIn(typed, done.err)
            self.assertTrue(named(meant, done.err), str(done))
            self.assertEqual(b"", done.out)

    def test_flag(self):
        for typed, meant in [
            ("--max-token", "--max-tokens"),
            ("--temprature", "--temperature"),
            ("--prefil-chunk", "--prefill-chunk"),
        ]:
            done = self.expect(2, "run", TIED, "a", typed, "1")
            self.assertTrue(named(typed, done.err), str(done))
            self.assertTrue(named(meant, done.err), str(done))
        self.assert_error_line(
            self.expect(2, "run", TIED, "a", "--max-token", "1", "--json"), "--max-token"
        )

    def test_flag_of_another_verb(self):
        for verb, words in [
            ("tokenize", ["--temperature", "1"]),
            ("inspect", ["--prompts", "x"]),
            ("export", ["--logprobs", "1"]),
        ]:
            done = self.expect(2, verb, TIED, *words)
            self.assertTrue(named(words[0], done.err), str(done))

    def test_model_lists_near_matches(self):
        done = self.expect(3, "run", TIED.replace("tied_q4_1.gguf", "tied_q4_l.gguf"), "a")
        self.assertIn("tied_q4_1.gguf", done.err, str(done))
        self.assert_error_line(self.expect(3, "run", TIED + "x", "a", "--json"))


class WordsTest(CliTest):
    """Texts reach the model as they were typed."""

    def prompts(self, *words) -> list:
        done = self.expect(0, "run", TIED, "--json", "--max-tokens", "1", *words)
        return [r["prompt"] for r in done.results()]

    def test_after_the_separator_everything_is_a_prompt(self):
        self.assertEqual(["-5 is a number"], self.prompts("--", "-5 is a number"))
        texts = ["--seed", "-n", "--", "--json", "--help", "-x"]
        self.assertEqual(["a", *texts], self.prompts("a", "--", *texts))
        done = self.expect(0, "tokenize", "--json", "--", TIED, "--ids")
        self.assertEqual("--ids", "".join(done.json_lines()[0]["pieces"]))

    def test_prompts_that_look_like_something_else(self):
        texts = ["run", "inspect", "++", "{}", "[a,b]", "[INST] hi [/INST]", "-5", "- item", "%%"]
        self.assertEqual(texts, self.prompts(*texts))

    def test_flags_before_the_model(self):
        self.assertEqual(["a"], self.prompts("--seed", "3", "a", "--temperature=0"))


class RefusalTest(CliTest):
    def words(self, verb: str) -> list:
        if verb == "run":
            return ["run", TIED, "a"]
        if verb == "chat":
            return ["chat", TIED]
        if verb == "perplexity":
            return ["perplexity", TIED, self.write("text.txt", "abc" * 100)]
        return ["export", TIED, "-o", str(self.folder / "out.chorus")]

    def test_bad_values_name_the_flag(self):
        cases = [
            (verb, flag, value)
            for verb, flags in BAD_VALUES.items()
            for flag, values in flags.items()
            for value in (values if verb == "run" else values[:3])
        ]
        words = {verb: self.words(verb) for verb in BAD_VALUES}
        runs = support.in_parallel(
            lambda c: support.chorus(*words[c[0]], c[1], c[2], "--json"), cases
        )
        for (verb, flag, value), done in zip(cases, runs):
            with self.subTest(verb=verb, flag=flag, value=value):
                self.assertEqual(2, done.code, str(done))
                self.assertTrue(named(flag, done.err), str(done))
                self.assert_error_line(done, flag)

    def test_values_after_an_equals_sign(self):
        for flag, value in [("--max-tokens", "0"), ("--seed", "x"), ("--kv-memory", "12XiB")]:
            self.assert_refused(2, flag, *self.words("run"), f"{flag}={value}")

    def test_a_bad_value_says_what_was_found(self):
        done = self.expect(2, "run", TIED, "a", "--max-tokens", "-17")
        self.assertIn("-17", done.err)
        done = self.expect(2, "run", TIED, "a", "--block-size", "48")
        self.assertIn("48", done.err)

    def test_a_flag_without_its_value(self):
        for verb, flag in [
            ("run", "--max-tokens"),
            ("run", "--prompts"),
            ("run", "--stop"),
            ("perplexity", "--window"),
            ("export", "-o"),
        ]:
            words = [
                w for w in self.words(verb) if w not in ("-o", str(self.folder / "out.chorus"))
            ]
            done = self.expect(2, *words, flag)
            self.assertTrue(named(flag, done.err), str(done))
            # The next flag is not its value.
            self.assert_refused(2, flag, *words, flag, "--quiet")

    def test_an_empty_value_does_not_take_the_next_word(self):
        flags = [("run", f) for f in BAD_VALUES["run"]] + [("run", "--prompts"), ("run", "--stop")]
        flags += [("perplexity", "--window"), ("export", "--context"), ("run", "--report")]
        for verb, flag in flags:
            with self.subTest(verb=verb, flag=flag):
                self.assert_refused(2, flag, *self.words(verb), f"{flag}=", "1")

    def test_a_flag_given_twice(self):
        for words in [["--seed", "1", "--seed", "1"], ["--max-tokens=1", "--max-tokens=2"]]:
            self.assert_refused(2, words[0].split("=")[0], *self.words("run"), *words)
        self.expect(0, *self.words("run"), "--max-tokens", "1", "--quiet", "--quiet")

    def test_a_value_where_none_belongs(self):
        for flag in ["--echo", "--no-batch", "--exact"]:
            for value in ["", "true", "0"]:
                self.assert_refused(2, flag, *self.words("run"), f"{flag}={value}")

    def test_absent_features(self):
        for verb in ["run", "perplexity"]:
            with self.subTest(verb=verb, flag="--kv-type f16"):
                self.assert_refused(2, "--kv-type", *self.words(verb), "--kv-type", "f16")
                self.assert_refused(2, "--kv-type", *self.words(verb), "--kv-type=f16")

    def test_an_unknown_kind_of_kv_is_refused_with_the_known_ones(self):
        done = self.expect(2, *self.words("run"), "--kv-layout", "ring")
        for kind in ("--kv-layout", "paged", "sequence", "ring"):
            self.assertIn(kind, done.err)

    def test_forced_instruction_set(self):
        for value in ["avx2", "neon", "nonsense", "", "GENERIC"]:
            if value:
                with self.subTest(value=value):
                    self.assert_refused(
                        2, "CHORUS_FORCE_ISA", *self.words("run"), env={"CHORUS_FORCE_ISA": value}
                    )
        self.expect(0, *self.words("run"), "--max-tokens", "1", env={"CHORUS_FORCE_ISA": "generic"})

    def test_a_damaged_hugging_face_folder(self):
        for name in ["config.json", "model.safetensors", "tokenizer.json"]:
            self.write(name, "{}")
        for words in [
            ["run", self.folder, "a"],
            ["inspect", self.folder],
            ["export", self.folder, "-o", self.folder / "out.chorus"],
        ]:
            done = self.expect(3, *words)
            self.assertRegex(done.err, "model.safetensors|folder")
            self.assert_error_line(self.expect(3, *words, "--json"))


class MissingTest(CliTest):
    def test_verb(self):
        self.assert_error_line(self.expect(2, "--json"), "--json")
        self.assertIn("verb", self.expect(2, "--json").err)
        self.assertIn("verb", self.expect(2).err)
        self.assert_refused(2, "--threads", "--threads", "1", "run", TIED, "a")
        self.assert_refused(2, "--quantize", "--quantize=q8_0")
        self.assert_refused(2, "VERB", "")

    def test_model(self):
        for verb in FLAGS:
            done = self.expect(2, verb)
            self.assertRegex(done.err, "MODEL|FILE")
            self.assert_error_line(self.expect(2, verb, "--json"))

    def test_prompt(self):
        done = self.expect(2, "run", TIED)
        self.assertRegex(done.err, "(?i)prompt")
        self.assert_error_line(self.expect(2, "run", TIED, "--json"))

    def test_output_of_export(self):
        done = self.expect(2, "export", TIED)
        self.assertIn("-o", done.err)

    def test_file_of_perplexity(self):
        done = self.expect(2, "perplexity", TIED)
        self.assertIn("FILE", done.err)

    def test_input_files(self):
        for flag in ["--prompts", "--tokens"]:
            for name in ["absent.txt", "."]:
                done = self.expect(2, "run", TIED, flag, self.folder / name)
                self.assertIn(str(self.folder / name), done.err)
                self.assertTrue(named(flag, done.err), str(done))
        self.assert_refused(2, "--tokens", "run", TIED, "--prompts", "-", "--tokens", "-")

    def test_a_file_that_is_no_model(self):
        for name, content in [("empty", b""), ("text", b"hello" * 100)]:
            path = self.write(name, content)
            done = self.expect(3, "run", path, "a")
            self.assertIn(path, done.err)
            self.assertIn(".gguf", done.err)


class MemoryTest(CliTest):
    def test_more_than_there_is(self):
        # 4 GiB of address space: what does not fit is refused by its flag, before it is taken.
        limit = 4 << 30
        for words in [
            ["--max-batch-tokens", "1048576", "--prefill-chunk", "1048000"],
            ["--kv-memory", "64GiB"],
        ]:
            with self.subTest(words=words):
                done = subprocess.run(
                    support.command_of(["run", str(TIED), "a", "--max-tokens", "1", *words]),
                    capture_output=True,
                    timeout=support.TIMEOUT_S,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
                )
                err = done.stderr.decode()
                if done.returncode == 0:
                    continue  # the tiny model's steps may fit
                self.assertIn(done.returncode, (1, 2), err)
                self.assertTrue(any(named(word, err) for word in words if word.startswith("--")), err)

    def test_a_pool_that_fits_the_address_space(self):
        limit = 1 << 30
        done = subprocess.run(
            support.command_of(["run", str(TIED), "a", "--max-tokens", "1"]),
            capture_output=True,
            timeout=support.TIMEOUT_S,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        )
        self.assertEqual(0, done.returncode, done.stderr.decode())


class ConflictTest(CliTest):
    def refused(self, *words):
        """Exit 2, naming one of the flags."""
        done = self.expect(2, *words)
        self.assertTrue(
            any(named(w, done.err) for w in words if str(w).startswith("--")), str(done)
        )
        self.assert_error_line(self.expect(2, *words, "--json"))

    def test_two_sizes_of_the_pool(self):
        self.refused("run", TIED, "a", "--kv-memory", "1MiB", "--kv-blocks", "64")

    def test_exact_against_its_parts(self):
        self.refused("run", TIED, "a", "--exact", "--activations", "int8")
        self.refused("run", TIED, "a", "--exact", "--kv-type", "bf16")

    def test_budgets_that_starve_prefill(self):
        self.refused("run", TIED, "a", "--max-batch-tokens", "16", "--prefill-chunk", "512")
        self.refused("run", TIED, "a", "--max-batch-tokens", "8", "--max-decode-sequences", "8")

    def test_budgets_are_told_in_the_words_of_the_flags(self):
        for words, wanted in [
            (["--max-batch-tokens", "1"], "from 2 to"),
            (["--max-batch-tokens", "8", "--max-decode-sequences", "8"], "--max-decode-sequences"),
            (["--max-batch-tokens", "16", "--prefill-chunk", "512"], "--max-batch-tokens"),
            (["--prefill-chunk", "1048576"], "--prefill-chunk"),
            (["--max-decode-sequences", "1048576"], "--max-decode-sequences"),
        ]:
            done = self.expect(2, "run", TIED, "a", *words)
            self.assertIn(wanted, done.err)
            self.assertNotRegex(done.err, "[a-z]_[a-z]")
        self.expect(0, "run", TIED, "a", "--max-batch-tokens", "2", "--max-tokens", "2")

    def test_more_threads_than_cores(self):
        done = self.run_json(TIED, "a", "--max-tokens", "2", "--threads", "64")
        self.assertEqual(64, done.summary()["engine"]["threads"])
        self.assert_refused(2, "--threads", "run", TIED, "a", "--threads", "513")

    def test_context_beyond_the_model(self):
        self.refused("run", TIED, "a", "--context", "1000000")


if __name__ == "__main__":
    support.main()
