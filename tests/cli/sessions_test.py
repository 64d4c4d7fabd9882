#!/usr/bin/env python3
"""Sessions on disk: `chorus run --save-session, --load-session, --recompute`, and /save, /load of
`chorus chat`."""

import itertools
import json
import os
import random
import re
import resource
import signal
import subprocess
import time

import support
from support import FLOAT, MIXED, TIED, TINY_CONTEXT, CliTest, in_parallel, random_ids

DRAWN = ["--temperature", "1.3", "--top-p", "0.95", "--seed", "7", "--ignore-eos"]
GREEDY = ["--ignore-eos"]
# The engine of the process that loads may be another.
ENGINES = [
    [],
    ["--block-size", "1"],
    ["--block-size", "64", "--threads", "1"],
    ["--context", "300", "--block-size", "32"],
    ["--prefill-chunk", "3", "--threads", "2"],
    ["--kv-blocks", "19"],
    ["--no-batch"],
]


def scores(result: dict) -> tuple:
    """What must be identical, but for what was given."""
    return result["tokens"], result["logprobs"], result["top_logprobs"]


class SessionTest(CliTest):
    def setUp(self):
        super().setUp()
        self.rng = random.Random(support.seed())
        self.file = str(self.folder / "session")

    def run_rows(self, model: str, rows: list, tokens: int, *words, code: int = 0) -> list:
        words = [*words, "--max-tokens", tokens, "--logprobs", "2"]
        return self.run_ids(model, rows, *words, code=code).results()

    def go_on(self, model: str, tokens: int, *words, code: int = 0) -> dict:
        """The continuation of the saved session, without a prompt."""
        words = ["--load-session", self.file, "--max-tokens", tokens, "--logprobs", "2", *words]
        return self.run_json(model, *words, code=code).results()[0]

    def save(self, model: str, row: list, tokens: int, *words) -> dict:
        return self.run_rows(model, [row], tokens, "--save-session", self.file, *words)[0]

    def files(self) -> list:
        return sorted(path.name for path in self.folder.iterdir())


class ContinueTest(SessionTest):
    def test_it_goes_on_where_it_stopped(self):
        # 250 + 30 crosses a chunk of 256 positions of attention; 16 and 64 fill blocks exactly.
        for model, length, before in [(TIED, 250, 14), (MIXED, 15, 1), (FLOAT, 50, 14)]:
            row = random_ids(self.rng, model, length)
            for sampling in (GREEDY, DRAWN):
                whole = self.run_rows(model, [row], 30, *sampling)[0]
                first = self.save(model, row, before, *sampling)
                self.assertEqual(scores(whole)[0][:before], first["tokens"])
                for engine in ENGINES:
                    with self.subTest(model=model, engine=engine, sampling=sampling):
                        rest = self.go_on(model, 30 - before, *engine, *GREEDY)
                        self.assertEqual(length + before, rest["context_tokens"])
                        self.assertEqual([], rest["prompt_tokens"])
                        both = [a + b for a, b in zip(scores(first), scores(rest))]
                        self.assertEqual(list(scores(whole)), both)

    def test_in_many_parts_under_changing_engines(self):
        row = random_ids(self.rng, MIXED, 33)
        whole = scores(self.run_rows(MIXED, [row], 48, *DRAWN)[0])
        found = [list(part) for part in scores(self.save(MIXED, row, 3, *DRAWN))]
        engines = itertools.cycle(ENGINES)
        while len(found[0]) < 48:
            count = min(self.rng.randrange(1, 9), 48 - len(found[0]))
            # Saved over the file that was loaded.
            words = [*next(engines), *GREEDY, "--save-session", self.file]
            for part, more in zip(found, scores(self.go_on(MIXED, count, *words))):
                part += more
        self.assertEqual([list(part) for part in whole], found)
        self.assertEqual(["ids.jsonl", "session"], self.files())

    def test_sampling_is_as_saved_unless_given(self):
        row = random_ids(self.rng, TIED, 9)
        self.save(TIED, row, 4, *DRAWN)
        as_saved = self.go_on(TIED, 12, *GREEDY)["tokens"]
        self.assertEqual(as_saved, self.go_on(TIED, 12, *DRAWN)["tokens"])
        other = self.go_on(TIED, 12, *GREEDY, "--seed", "8")["tokens"]
        self.assertNotEqual(as_saved, other)
        greedy = self.go_on(TIED, 12, *GREEDY, "--temperature", "0")["tokens"]
        self.assertNotEqual(as_saved, greedy)
        # A line of a file, too, may say otherwise.
        lines = [{"prompt": ""}, {"prompt": "", "seed": 8}, {"prompt": "", "temperature": 0}]
        path = self.write("p.jsonl", lines)
        words = ["--load-session", self.file, "--max-tokens", "12", *GREEDY]
        results = self.run_json(TIED, "--prompts", path, *words).results()
        self.assertEqual([as_saved, other, greedy], [r["tokens"] for r in results])

    def test_an_end_token_ends_the_session(self):
        end = 2
        row = random_ids(self.rng, TIED, 5)
        for seed in range(200):
            words = ["--temperature", "20", "--seed", seed]
            if self.save(TIED, row, 40, *words)["tokens"][-1] == end:
                break
        result = self.go_on(TIED, 3, code=1)
        self.assertEqual("error", result["finish_reason"])
        self.assertEqual("prompt", result["error"]["field"])
        self.assertIn("end token", result["error"]["message"])
        self.assertEqual(3, len(self.go_on(TIED, 3, "--ignore-eos")["tokens"]))
        words = ["--load-session", self.file, "--max-tokens", "3", "a"]
        self.assertIsNone(self.run_json(TIED, *words).results()[0]["error"])


class ForkTest(SessionTest):
    def setUp(self):
        super().setUp()
        self.base = random_ids(self.rng, TIED, 70)
        self.base += self.save(TIED, self.base, 6, *DRAWN)["tokens"]
        self.rows = [random_ids(self.rng, TIED, n) for n in (1, 2, 15, 16, 17, 40, 3, 90)]

    def test_prompts_are_as_if_run_whole(self):
        whole = self.run_rows(TIED, [self.base + row for row in self.rows], 12, *DRAWN)
        load = ["--load-session", self.file, *GREEDY]
        engines = [*ENGINES, ["--max-sessions", "2"], ["--kv-blocks", "12"]]
        for engine in engines:
            found = self.run_rows(TIED, self.rows, 12, *load, *engine)
            for row, expected, result in zip(self.rows, whole, found):
                with self.subTest(engine=engine, length=len(row)):
                    self.assertEqual(scores(expected), scores(result))
                    self.assertEqual(row, result["prompt_tokens"])
                    self.assertEqual(len(self.base), result["context_tokens"])

    def test_the_session_is_not_computed_again(self):
        words = ["--load-session", self.file, *GREEDY]
        done = self.run_ids(TIED, self.rows, *words, "--max-tokens", "2")
        # Its last token was delivered and never run: each prompt runs it.
        given = sum(map(len, self.rows))
        self.assertEqual(given, done.summary()["prompt_tokens"])
        self.assertLessEqual(done.summary()["computed_prompt_tokens"], given + len(self.rows))

    def test_choices(self):
        whole = self.run_rows(TIED, [self.base + row for row in self.rows], 8, "-n", 3, *DRAWN)
        for engine in ([], ["--no-batch"], ["--max-sessions", "2"], ["--max-sessions", "4"]):
            words = ["--load-session", self.file, "-n", 3, *GREEDY, *engine]
            found = self.run_rows(TIED, self.rows, 8, *words)
            self.assertEqual(list(map(scores, whole)), list(map(scores, found)), engine)
        # Without a prompt: the first choice goes on with the session's own draws.
        whole = scores(self.run_rows(TIED, [self.base[:70]], 6 + 9, *DRAWN)[0])
        words = ["--load-session", self.file, *GREEDY, "-n", "3", "--logprobs", "2"]
        found = self.run_json(TIED, *words, "--max-tokens", "9").results()
        self.assertEqual([part[6:] for part in whole], list(scores(found[0])))
        self.assertEqual(3, len({str(r["tokens"]) for r in found}))

    def test_a_choice_is_saved_with_its_number(self):
        # The second choice of a prompt goes on as the second.
        row = self.base[:20]
        second = self.run_rows(TIED, [row], 16, "-n", 2, *DRAWN)[1]
        self.save(TIED, row, 1, *DRAWN)
        rest = self.go_on(TIED, 15, "-n", 2, *GREEDY)
        self.assertNotEqual(second["tokens"][1:], rest["tokens"])
        path = self.write("one.jsonl", [row + second["tokens"][:1]])
        words = ["--tokens", path, "-n", 2, "--max-tokens", "15", "--logprobs", "2", *DRAWN]
        other = self.run_json(TIED, *words).results()[1]
        self.assertEqual([part[1:] for part in scores(second)], list(scores(other)))

    def test_text_follows_without_bos(self):
        expected = self.run_rows(TIED, [self.base + self.tokens_of("and then")], 5, *DRAWN)[0]
        words = ["--load-session", self.file, "--max-tokens", "5", "--logprobs", "2", *GREEDY]
        result = self.run_json(TIED, "and then", *words).results()[0]
        self.assertEqual(scores(expected), scores(result))
        self.assertEqual("and then", result["prompt"])

    def tokens_of(self, text: str) -> list:
        done = self.expect(0, "tokenize", TIED, text, "--json")
        return done.of_type("tokens")[0]["tokens"]

    def test_echo_and_logprobs_of_the_prompt(self):
        row = self.rows[4]
        words = ["--echo", "--logprobs", "2", "--max-tokens", "2", *DRAWN]
        whole = self.run_ids(TIED, [self.base + row], *words).results()[0]
        found = self.run_ids(TIED, [row], *words, "--load-session", self.file).results()[0]
        for field in ("prompt_logprobs", "prompt_top_logprobs"):
            self.assertEqual(whole[field][len(self.base) :], found[field])
        words = ["--load-session", self.file, "--echo", "--logprobs", "1", "--max-tokens", "1"]
        self.assertEqual([], self.run_json(TIED, *words).results()[0]["prompt_logprobs"])

    def test_bad_prompts_fail_alone(self):
        lines = [
            {"prompt": "a"},
            {"messages": [{"role": "user", "content": "b"}]},
            {"prompt": "x" * 1000},
            {"prompt": "a", "cache_salt": "mine"},
            {"prompt": ""},
        ]
        words = ["--load-session", self.file, "--max-tokens", "3", *GREEDY]
        done = self.run_json(TIED, "--prompts", self.write("p.jsonl", lines), *words, code=1)
        errors = [r["error"] and r["error"]["field"] for r in done.results()]
        self.assertEqual([None, "messages", "prompt", "cache_salt", None], errors)

    def test_text_for_people(self):
        words = ["--load-session", self.file, "--max-tokens", "3", "--quiet", *GREEDY]
        one = self.expect(0, "run", TIED, *words).out
        self.assertTrue(one.endswith(b"\n"))
        many = self.expect(0, "run", TIED, "a", "b", *words).out.decode("utf-8")
        self.assertIn("--- 2\n", many)


class FormatTest(SessionTest):
    MODES = {"int8": [], "exact": ["--exact"], "kv": ["--kv-type", "f32"], "q8": ["--kv-type", "q8"]}

    def test_other_numerics_are_refused_and_recomputed(self):
        row = random_ids(self.rng, TIED, 40)
        for saved, loaded in itertools.permutations(self.MODES, 2):
            with self.subTest(saved=saved, loaded=loaded):
                first = self.save(TIED, row, 5, *GREEDY, *self.MODES[saved])
                kv_is_the_same = {saved, loaded} == {"exact", "kv"}
                field = "--load-session." + ("activations" if kv_is_the_same else "kv_type")
                words = ["run", TIED, "--load-session", self.file, *self.MODES[loaded]]
                self.assert_refused(3, field, *words)
                self.assertIn("--recompute", self.expect(3, *words).err)
                whole = self.run_rows(
                    TIED, [row + first["tokens"]], 9, *GREEDY, *self.MODES[loaded]
                )[0]
                found = self.go_on(TIED, 9, "--recompute", *GREEDY, *self.MODES[loaded])
                self.assertEqual(scores(whole), scores(found))

    def test_another_model_is_refused(self):
        row = random_ids(self.rng, FLOAT, 40)
        self.save(FLOAT, row, 5)
        words = ["run", TIED, "--load-session", self.file]
        self.assert_refused(3, "--load-session.identity", *words)

    def test_another_instruction_set(self):
        row = random_ids(self.rng, TIED, 40)
        sets = re.findall(r"\b(generic|avx2|avx512)\b", self.expect(0, "--version").out.decode())
        env = {"CHORUS_FORCE_ISA": "generic"}
        path = self.write("ids.jsonl", [row])
        words = ["--max-tokens", "5", "--save-session", self.file, *GREEDY]
        self.run_json(TIED, "--tokens", path, *words, env=env)
        self.assertTrue(sets)
        chosen = self.run_json(TIED, "--tokens", path, "--max-tokens", "1").summary()
        if chosen["engine"]["isa"] != "generic":
            load = ["run", TIED, "--load-session", self.file]
            self.assert_refused(3, "--load-session.isa", *load)
        self.assertEqual(4, len(self.go_on(TIED, 4, "--recompute", *GREEDY)["tokens"]))

    def test_a_context_that_is_too_short(self):
        self.save(TIED, random_ids(self.rng, TIED, 100), 5)
        words = ["run", TIED, "--load-session", self.file, "--context", "80"]
        self.assert_refused(3, "--load-session.tokens", *words)
        self.assert_refused(3, "--load-session.tokens", *words, "--recompute")

    def test_tokens_alone_in_a_pool_without_room(self):
        row = random_ids(self.rng, TIED, 100)
        first = self.save(TIED, row, 5, *GREEDY)
        whole = self.run_rows(TIED, [row], 25, *GREEDY)[0]
        rest = self.go_on(TIED, 20, *GREEDY, "--kv-blocks", "8", "--context", "128")
        self.assertEqual(whole["tokens"], first["tokens"] + rest["tokens"])


class BadFileTest(SessionTest):
    def attempt(self, data: bytes, name: str) -> support.Done:
        path = self.folder / name
        path.write_bytes(data)
        words = ["--load-session", path, "--max-tokens", "2", "--json", "--quiet"]
        return support.chorus("run", TIED, *words)

    def test_damaged_files(self):
        self.save(TIED, random_ids(self.rng, TIED, 40), 5)
        with open(self.file, "rb") as file:
            data = file.read()
        cases = {f"cut to {n}": data[:n] for n in (0, 1, 8, 100, 247, 248, len(data) - 1)}
        cases |= {"longer": data + b"x", "zeros": bytes(len(data)), "text": b"hello\n" * 100}
        places = [8, *range(0, 250, 7)] + [self.rng.randrange(250, len(data)) for _ in range(40)]
        for place in places:
            changed = bytearray(data)
            changed[place] ^= 1 << self.rng.randrange(8)
            cases[f"bit at {place}"] = bytes(changed)
        names = list(cases)
        done = in_parallel(lambda n: self.attempt(cases[names[n]], f"bad{n}"), range(len(names)))
        fields = set()
        for name, one in zip(names, done):
            with self.subTest(name, seed=support.seed()):
                self.assertEqual(3, one.code, str(one))
                error = self.assert_error_line(one)
                self.assertTrue(error["field"].startswith("--load-session."), str(one))
                fields.add(error["field"].split(".")[1])
        self.assertLessEqual({"magic", "version", "checksum", "kv", "file"}, fields)

    def test_what_is_no_file(self):
        for path in ("/dev/null", "/dev/zero", str(self.folder), str(self.folder / "none")):
            words = ["run", TIED, "--load-session", path]
            self.assert_refused(3, "--load-session", *words)


class FlagTest(SessionTest):
    def test_refusals_name_the_flag(self):
        self.save(TIED, [5, 6, 7], 2)
        load = ["--load-session", self.file]
        two = self.write("two.txt", "a\nb\n")
        report = str(self.folder / "report")
        for field, words in (
            ("--save-session", ["a", "b", "--save-session", "f"]),
            ("--save-session", ["a", "-n", "2", "--save-session", "f"]),
            ("--save-session", ["--prompts", two, "--save-session", "f"]),
            ("--save-session", ["a", "--save-session", report, "--report", report]),
            ("--save-session", ["--prompts", two, "--save-session", two]),
            ("--save-session", ["a", "--save-session="]),
            ("--save-session", ["a", "--save-session", TIED]),
            ("--load-session", ["a", "--load-session="]),
            ("--recompute", ["a", "--recompute"]),
            ("--chat", [*load, "--chat", "a"]),
            ("--system", [*load, "--system", "s", "a"]),
            ("--max-sessions", [*load, "--max-sessions", "1"]),
            ("--report", [*load, "--report", self.file]),
        ):
            with self.subTest(words=words):
                self.assert_refused(2, field, "run", TIED, *words)
        self.assertEqual(["ids.jsonl", "session", "two.txt"], self.files())
        # A line that is wrong is told before a file that is.
        broken = self.write("broken", "x")
        self.assert_refused(2, "--seed", "run", TIED, "--load-session", broken, "--seed", "x")
        self.assert_refused(3, "--load-session.magic", "run", TIED, "--load-session", broken)

    def test_what_cannot_be_written_is_told_before_the_work(self):
        for flag in ("--save-session", "--report"):
            for path in ("/dev/full", "/nowhere/f", str(self.folder)):
                words = ["a", "--max-tokens", "2", flag, path]
                lines = self.run_json(TIED, *words, code=1).json_lines()
                self.assertEqual([("error", flag)], [(line["type"], line["field"]) for line in lines])
                text = self.expect(1, "run", TIED, *words)
                self.assertEqual(b"", text.out)
                self.assertIn(flag, text.err)
        self.assertEqual([], self.files())

    def test_one_file_is_one_file_by_whatever_name(self):
        link = str(self.folder / "link")
        os.symlink(self.folder, link)
        for other in (f"{self.folder}/./new", f"{link}/new", f"{link}/../{self.folder.name}/new"):
            words = ["a", "--save-session", other, "--report", str(self.folder / "new")]
            self.assert_refused(2, "--save-session", "run", TIED, *words)
        # A link is followed, and stays.
        os.symlink("target", f"{self.folder}/to_file")
        self.run_json(TIED, "a", "--max-tokens", "2", "--save-session", f"{self.folder}/to_file")
        self.assertTrue(os.path.islink(f"{self.folder}/to_file"))
        self.run_json(TIED, "", "--load-session", f"{self.folder}/target", "--max-tokens", "1")

    def test_a_file_limit_leaves_nothing(self):
        words = ["run", TIED, "a" * 200, "--max-tokens", "2", "--save-session", self.file]
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        done = subprocess.run(support.command_of(words), capture_output=True, preexec_fn=limit)
        self.assertEqual(1, done.returncode, done.stderr)
        self.assertEqual([], self.files())

    def test_nothing_generated_is_nothing_saved(self):
        done = self.run_json(TIED, "x" * 1000, "--save-session", self.file, code=1)
        self.assertEqual("error", done.results()[0]["finish_reason"])
        self.assertEqual([], self.files())

    def test_an_older_file_stays_until_the_new_one_is_whole(self):
        self.save(TIED, [5, 6, 7], 2)
        with open(self.file, "rb") as file:
            before = file.read()
        self.run_json(TIED, "", "--save-session", self.file, code=1)
        with open(self.file, "rb") as file:
            self.assertEqual(before, file.read())


class InterruptTest(SessionTest):
    RUNS = 40

    def start(self) -> subprocess.Popen:
        words = ["--ignore-eos", "--temperature", "1", "--max-tokens", "100", "--prefill-chunk", "1"]
        process = subprocess.Popen(
            support.command_of(
                ["run", TIED, "a" * 400, *words, "--save-session", self.file, "--json"]
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.addCleanup(process.kill)
        return process

    def end(self, process: subprocess.Popen) -> int:
        process.communicate(timeout=support.TIMEOUT_S)
        return process.returncode

    def test_no_file_is_left_half_written(self):
        # The signals are spread over what a run takes on this machine.
        begin = time.monotonic()
        self.assertEqual(0, self.end(self.start()))
        whole_s = time.monotonic() - begin
        os.unlink(self.file)
        codes = set()
        for n in range(self.RUNS):
            process = self.start()
            time.sleep(1.1 * whole_s * n / self.RUNS)
            process.send_signal(signal.SIGINT)
            code = self.end(process)
            codes.add(code)
            self.assertIn(code, (0, 130, -signal.SIGINT))
            self.assertLessEqual(set(self.files()), {"session"})
            if self.files():
                self.assertTrue(self.go_on(TIED, 1, "--ignore-eos")["tokens"])
                os.unlink(self.file)
        self.assertIn(130, codes)


class ChatTest(SessionTest):
    WORDS = ["--temperature", "1.5", "--seed", "5", "--ignore-eos", "--max-tokens", "12"]

    def chat(self, *lines, words=(), model: str = TIED, code: int = 0) -> support.Done:
        text = "".join(line + "\n" for line in lines)
        return self.expect(code, "chat", model, *self.WORDS, *words, stdin=text.encode())

    def counts(self, done: support.Done) -> list:
        """(reused, computed, generated) of each turn, of the last /stats."""
        table = done.out.decode("utf-8").rsplit("turn  reused", 1)[1]
        rows = re.findall(r"(?m)^ *\d+ +(\d+) +(\d+) +(\d+) +[\d.]+$", table)
        return [tuple(map(int, row)) for row in rows]

    def test_it_goes_on_in_another_process(self):
        lines = ["/system be brief", "hello", "more", "/retry"]
        whole = self.chat(*lines, "third", "/retry", "/rewind 2", "other", "/stats")
        first = self.chat(*lines, f"/save {self.file}")
        for words in ([], ["--block-size", "1"], ["--context", "400", "--threads", "1"]):
            rest = self.chat(
                f"/load {self.file}", "third", "/retry", "/rewind 2", "other", "/stats", words=words
            )
            answers = lambda done: done.out.split(b"turn  reused")[0]
            self.assertEqual(answers(whole), first.out + answers(rest), words)
            self.assertEqual(self.counts(whole), self.counts(rest))
        # What was loaded is not computed again.
        saved = self.chat(*lines, "/stats")
        rest = self.chat(f"/load {self.file}", "third", "/stats")
        self.assertEqual(sum(self.counts(saved)[1]), self.counts(rest)[2][0])

    def test_it_is_a_branch_of_its_own(self):
        self.chat("hello", f"/save {self.folder}/a trip.chat")
        load = f"/load {self.folder}/a trip.chat"
        done = self.chat("other", load, "/branches", load, "/branches", "/switch main", "/undo")
        text = done.out.decode("utf-8")
        self.assertRegex(text, r"(?m)^  main  1 turns.*\n\* a_trip  1 turns")
        self.assertRegex(text, r"(?m)^  a_trip  1 turns.*\n\* a_trip2  1 turns")
        hello, more = (self.chat(*lines).out for lines in (["hello"], ["hello", "more"]))
        self.assertEqual(more[len(hello) :], self.chat(load, "more").out)

    def test_what_was_taken_back_is_not_in_the_file(self):
        self.chat("hello", "a secret", "/undo", f"/save {self.file}")
        with open(self.file, "rb") as file:
            self.assertNotIn(b"secret", file.read())
        expected = self.chat("hello", "more").out[len(self.chat("hello").out) :]
        self.assertEqual(expected, self.chat(f"/load {self.file}", "more").out)

    def test_run_goes_on_with_a_chat_and_chat_with_an_answer_of_run(self):
        self.chat("hello", f"/save {self.file}")
        self.assertEqual(5, len(self.go_on(TIED, 5, "--ignore-eos")["tokens"]))
        words = ["--chat", "hello", "--system", "be brief", "--save-session", self.file]
        answer = self.run_json(TIED, *words, *self.WORDS).results()[0]["text"]
        whole = self.chat("/system be brief", "hello", "more", "/undo", "other").out
        self.assertTrue(whole.startswith(answer.encode() + b"\n"))
        rest = self.chat(f"/load {self.file}", "more", "/undo", "other").out
        self.assertEqual(whole[len(answer.encode()) + 1 :], rest)

    def test_errors_are_told_and_the_chat_goes_on(self):
        good, plain = str(self.folder / "good"), str(self.folder / "plain")
        self.chat("x", f"/save {good}")
        self.run_json(TIED, "a", "--max-tokens", "2", "--save-session", plain)
        with open(good, "rb") as file:
            data = bytearray(file.read())
        data[-1] ^= 1
        bad = self.write("bad", bytes(data))
        lines = {
            f"/save {self.folder}/early": "/save: expected a message before it",
            "/load": "/load: expected a file",
            "/load --recompute": "/load: expected a file",
            "/save": "/save: expected a file",
            "/load /nowhere": "/load: /nowhere: cannot open",
            f"/load {bad}": "/load.kv: the section is damaged",
            f"/load {plain}": "/load.notes: expected a session that /save wrote",
        }
        late = ["/save /nowhere/f", "/save /dev/full", f"/save {os.path.relpath(TIED)}"]
        done = self.chat(*lines, "hello", *late, "more", code=1)
        for wanted in [
            *lines.values(),
            "/save: /nowhere/f: cannot create",
            "/save: /dev/full",
            "/save: expected another file than the input",
        ]:
            self.assertIn(wanted, done.err)
        self.assertEqual(self.chat("hello", "more").out, done.out)
        self.assertEqual(["bad", "good", "plain"], self.files())
        # Other numerics.
        exact = ["--exact"]
        done = self.chat(f"/load {good}", "more", words=exact, code=1)
        self.assertIn("/load.kv_type", done.err)
        done = self.chat(f"/load --recompute {good}", "more", "/stats", words=exact)
        self.assertEqual(2, len(self.counts(done)))

    def test_notes_that_are_no_chat(self):
        """A file whose checksums are right and whose messages are not."""
        self.chat("hello", f"/save {self.file}")
        with open(self.file, "rb") as file:
            session = support.SessionFile(file.read())
        notes = json.loads(session.sections["notes"])
        for field, change in (
            ("notes.turns", lambda n: n.pop("turns")),
            ("notes.turns[0].message", lambda n: n["turns"][0].pop("message")),
            ("notes.turns[0].tokens", lambda n: n["turns"][0]["tokens"].append(-1)),
            ("notes.system", lambda n: n.update(system=[])),
        ):
            changed = json.loads(json.dumps(notes))
            change(changed)
            session.sections["notes"] = json.dumps(changed).encode()
            path = self.write("changed", session.encode())
            done = self.chat(f"/load {path}", "hello", code=1)
            self.assertIn(f"/load.{field}: ", done.err)
            self.assertEqual(self.chat("hello").out, done.out)
        # Tokens that the model does not have are found when they are used.
        notes["turns"][0]["tokens"] = [10**6]
        session.sections["notes"] = json.dumps(notes).encode()
        path = self.write("changed", session.encode())
        done = self.chat(f"/load {path}", "more", "/undo", "hello", code=1)
        self.assertIn("prompt: expected ids", done.err)
        self.assertEqual(self.chat("hello").out, done.out)

    def test_a_pool_that_is_too_small_for_both(self):
        self.chat("hello", "and " * 60, f"/save {self.file}")
        words = ["--kv-blocks", "24"]
        lines = ["or " * 90, f"/load {self.file}", "more", "/switch main", "more"]
        self.assertEqual(self.chat(*lines).out, self.chat(*lines, words=words).out)
        self.assertLess(24 * 16, TINY_CONTEXT)


if __name__ == "__main__":
    support.main()
