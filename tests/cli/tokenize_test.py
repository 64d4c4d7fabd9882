#!/usr/bin/env python3
"""`chorus tokenize`: text to ids and back."""

import os
import pathlib
import random
import subprocess

import support
from support import FLOAT, MIXED, TIED, VOCABULARY, CliTest, Gguf

TEXTS = [
    "a",
    "Hello, world!",
    "  two  spaces \n\n newline\t tab ",
    "naïve façade — “quotes”",
    "漢字とかな",
    "emoji 👩‍👩‍👧 family",
    "x" * 300,
    "0123456789" * 7,
    "\r\nwindows\r\n",
    "<|im_start|>user\nhi<|im_end|>",
]


class TokenizeTest(CliTest):
    def tokens(self, model: str, *words, stdin: bytes = b"") -> dict:
        lines = self.expect(0, "tokenize", model, *words, "--json", stdin=stdin).json_lines()
        self.assertEqual(1, len(lines))
        self.assertEqual("tokens", lines[0]["type"])
        self.assertEqual(len(lines[0]["tokens"]), len(lines[0]["pieces"]))
        self.assertTrue(all(isinstance(p, str) for p in lines[0]["pieces"]))
        return lines[0]

    def decoded(self, model: str, ids: list, *words) -> bytes:
        return self.expect(0, "tokenize", model, *words, "--decode", *ids).out

    def test_round_trip(self):
        for model in (TIED, MIXED, FLOAT):
            for text in TEXTS:
                ids = self.tokens(model, stdin=text.encode())["tokens"]
                self.assertTrue(ids)
                self.assertTrue(all(0 <= i < VOCABULARY[model] for i in ids))
                out = self.decoded(model, ids, "--special").decode()
                self.assertIn(out, (text, text + "\n"))

    def test_argument_and_stdin_agree(self):
        for text in TEXTS:
            self.assertEqual(self.tokens(MIXED, text), self.tokens(MIXED, stdin=text.encode()))

    def test_pieces_spell_the_text(self):
        for text in ["Hello, world!", "a b c", "x = 1;"]:
            self.assertEqual(text, "".join(self.tokens(TIED, text)["pieces"]))

    def test_ids_for_people(self):
        ids = self.tokens(TIED, "Hello")["tokens"]
        out = self.expect(0, "tokenize", TIED, "Hello", "--ids").out.decode()
        self.assertEqual(ids, [int(w) for w in out.replace(",", " ").strip("[]\n ").split()])

    def test_special_tokens(self):
        text = "<|im_start|>a<|im_end|>"
        special = self.tokens(TIED, text, "--special")["tokens"]
        self.assertEqual([1, 2], [special[0], special[-1]])
        self.assertEqual(3, len(special))
        plain = self.tokens(TIED, text)["tokens"]
        self.assertFalse({0, 1, 2} & set(plain))

    def test_decode_spells_the_vocabulary(self):
        # The vocabulary writes each byte as a character of its own: those printable in Latin-1 as
        # themselves, the others from U+0100 on. Any sequence of ids gives its bytes.
        plain = [b for b in range(256) if chr(b).isprintable() and b not in (0x20, 0xA0, 0xAD)]
        others = [b for b in range(256) if b not in plain]
        byte_of = {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(others)}
        rng = random.Random(support.seed())
        for model in (TIED, MIXED):
            vocabulary = Gguf(pathlib.Path(model).read_bytes()).metadata["tokenizer.ggml.tokens"]
            for _ in range(5):
                ids = [rng.randrange(3, VOCABULARY[model]) for _ in range(20)]
                spelled = bytes(byte_of[c] for i in ids for c in vocabulary[i])
                self.assertIn(self.decoded(model, ids), (spelled, spelled + b"\n"))

    def test_empty(self):
        self.assertEqual([], self.tokens(TIED, stdin=b"")["tokens"])

    def test_a_standard_input_that_cannot_be_read(self):
        folder = os.open("/", os.O_RDONLY)
        try:
            for words in (["tokenize", str(TIED)], ["run", str(TIED), "--prompts", "-"]):
                done = subprocess.run(
                    support.command_of(words), stdin=folder, capture_output=True, timeout=60
                )
                self.assertIn(done.returncode, (1, 2), str(done))
                self.assertIn("standard input", done.stderr.decode())
        finally:
            os.close(folder)

    def test_bad_ids(self):
        for word in [str(VOCABULARY[TIED]), "-1", "x", "1.5", "99999999999999999999"]:
            with self.subTest(id=word):
                done = support.chorus("tokenize", TIED, "--decode", word)
                self.assertIn(done.code, (1, 2), str(done))
                self.assertEqual(b"", done.out)

    def test_run_uses_the_same_ids(self):
        for text in ["Hello, world!", "漢字"]:
            ids = self.tokens(MIXED, text)["tokens"]
            result = self.run_json(MIXED, text, "--max-tokens", "1").results()[0]
            self.assertEqual(ids, result["prompt_tokens"])


if __name__ == "__main__":
    support.main()
