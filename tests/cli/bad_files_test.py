#!/usr/bin/env python3
"""Model files that are cut, flipped, or no model at all: an exit code, never a crash.

A file cut or changed outside the weights of a .chorus: exit 3 and the field. In its weights:
`inspect --verify` exits 3, `run` ends 0 or 1. In a GGUF, whose parts have no checksum: 3, 0 or 1.
"""

import os
import pathlib
import random
import stat
import struct

import support
from support import MIXED, TIED, CliTest, Gguf, in_parallel

RUN = ["--max-tokens", "2", "--quiet", "--json"]
BOUND_S = 30  # of one run, sanitized, on a busy machine


class BadFileTest(CliTest):
    def setUp(self):
        super().setUp()
        self.rng = random.Random(support.seed())

    def attempt(self, verb: str, data: bytes, name: str, *words) -> support.Done:
        path = self.folder / name
        path.write_bytes(data)
        try:
            return support.chorus(verb, path, *words, timeout=BOUND_S)
        finally:
            path.unlink()

    def run_file(self, data: bytes, name: str) -> support.Done:
        return self.attempt("run", data, name, "ab", *RUN)

    def check_refused(self, done: support.Done, what: str) -> None:
        self.assertEqual(3, done.code, f"{what}, seed {support.seed()}: {done}")
        error = self.assert_error_line(done)
        self.assertTrue(error["field"], f"{what}: no field: {done}")

    def export(self, model: str) -> bytes:
        path = self.folder / "good.chorus"
        self.expect(0, "export", model, "-o", path, "--quiet")
        return path.read_bytes()

    def lengths(self, size: int, interesting: list) -> list:
        chosen = {
            0,
            1,
            3,
            4,
            8,
            16,
            24,
            63,
            64,
            65,
            size - 1,
            size - 2,
            size - 31,
            size - 33,
            size // 2,
        }
        chosen |= {at + d for at in interesting for d in (-1, 0, 1)}
        chosen |= {self.rng.randrange(size) for _ in range(25)}
        return sorted(n for n in chosen if 0 <= n < size)


class TruncatedTest(BadFileTest):
    def check(self, data: bytes, suffix: str, interesting: list, end: int) -> None:
        """Cuts anywhere before `end`, past which a file has only padding."""
        lengths = [n for n in self.lengths(len(data), interesting) if n < end]
        done = in_parallel(lambda n: self.run_file(data[:n], f"cut{n}{suffix}"), lengths)
        for length, one in zip(lengths, done):
            with self.subTest(suffix=suffix, length=length, of=len(data)):
                self.check_refused(one, f"cut to {length} of {len(data)}")

    def test_gguf(self):
        for model in (TIED, MIXED):
            data = pathlib.Path(model).read_bytes()
            layout = Gguf(data)
            begins = sorted(layout.data_begin + t[2] for t in layout.tensors.values())
            places = [layout.metadata_end, layout.header_end, layout.data_begin, *begins[::5]]
            self.check(data, ".gguf", places, len(data) - 31)

    def test_chorus(self):
        data = self.export(MIXED)
        self.check(data, ".chorus", list(range(4096, len(data), 16384)), len(data))

    def test_longer_than_it_says(self):
        data = self.export(TIED)
        done = self.run_file(data + b"x" * 100, "long.chorus")
        self.assertIn(done.code, (0, 3), str(done))


class FlippedTest(BadFileTest):
    def flip(self, data: bytes, at: int) -> bytes:
        changed = bytearray(data)
        changed[at] ^= 1 << self.rng.randrange(8)
        return bytes(changed)

    def sample(self, ranges: list, count: int) -> list:
        sizes = [end - begin for begin, end in ranges]
        picked = self.rng.choices(ranges, weights=sizes, k=count)
        return [self.rng.randrange(begin, end) for begin, end in picked]

    def weight_ranges(self, path: pathlib.Path, size: int) -> list:
        """[begin, end) of the weight segments, from the file's own description."""
        described = self.expect(0, "inspect", path, "--json", "--tensors").json_lines()
        ranges = set()

        def collect(value):
            if isinstance(value, dict):
                if {"offset", "bytes"} <= set(value):
                    ranges.add((value["offset"], value["offset"] + value["bytes"]))
                value = list(value.values())
            if isinstance(value, list):
                for item in value:
                    collect(item)

        collect(described)
        ranges = sorted(ranges)
        self.assertTrue(ranges, "inspect --json --tensors gives no offset and bytes of the weights")
        self.assertLessEqual(ranges[-1][1], size)
        return ranges

    def test_chorus_outside_the_weights(self):
        data = self.export(TIED)
        weights = self.weight_ranges(self.folder / "good.chorus", len(data))
        gaps, at = [], 0
        for begin, end in weights + [(len(data), len(data))]:
            if begin > at:
                gaps.append((at, begin))
            at = max(at, end)
        places = sorted(set(range(0, 64)) | set(self.sample(gaps, 70)))
        places = [p for p in places if any(b <= p < e for b, e in gaps)]
        files = [self.flip(data, p) for p in places]
        done = in_parallel(lambda n: self.run_file(files[n], f"flip{n}.chorus"), range(len(files)))
        for place, one in zip(places, done):
            with self.subTest(place=place, seed=support.seed()):
                self.check_refused(one, f"bit flipped at {place}")

    def test_chorus_inside_the_weights(self):
        data = self.export(TIED)
        weights = self.weight_ranges(self.folder / "good.chorus", len(data))
        places = self.sample(weights, 40)
        files = [self.flip(data, p) for p in places]
        verified = in_parallel(
            lambda n: self.attempt("inspect", files[n], f"v{n}.chorus", "--verify", "--json"),
            range(len(files)),
        )
        done = in_parallel(lambda n: self.run_file(files[n], f"flip{n}.chorus"), range(len(files)))
        for place, verify, one in zip(places, verified, done):
            with self.subTest(place=place, seed=support.seed()):
                self.check_refused(verify, f"bit flipped at {place}")
                self.assertIn(one.code, (0, 1), str(one))
                if one.code == 1:
                    self.assertEqual("error", one.results()[0]["finish_reason"], str(one))

    def test_gguf(self):
        for model in (TIED, MIXED):
            data = pathlib.Path(model).read_bytes()
            layout = Gguf(data)
            places = self.sample([(0, layout.header_end)], 60) + list(range(0, 24))
            places += self.sample([(layout.data_begin, len(data))], 15)
            files = [self.flip(data, p) for p in places]
            done = in_parallel(
                lambda n: self.run_file(files[n], f"flip{n}.gguf"), range(len(files))
            )
            for place, one in zip(places, done):
                with self.subTest(place=place, seed=support.seed()):
                    self.assertIn(one.code, (0, 1, 3), str(one))
                    if one.code == 3:
                        self.check_refused(one, f"bit flipped at {place}")
                    else:
                        reason = one.results()[0]["finish_reason"]
                        self.assertEqual(one.code == 1, reason == "error", str(one))


class AbsurdGgufTest(BadFileTest):
    """Numbers of a GGUF that no model has."""

    def setUp(self):
        super().setUp()
        self.data = pathlib.Path(TIED).read_bytes()
        self.layout = Gguf(self.data)

    def patched(self, at: int, kind: str, value) -> bytes:
        packed = struct.pack("<" + kind, value)
        return self.data[:at] + packed + self.data[at + len(packed) :]

    def check_all(self, files: dict) -> None:
        names = list(files)
        done = in_parallel(
            lambda n: self.run_file(files[names[n]], f"absurd{n}.gguf"), range(len(names))
        )
        for name, one in zip(names, done):
            with self.subTest(name):
                self.check_refused(one, name)

    def test_counts(self):
        self.check_all(
            {
                "version 0": self.patched(4, "I", 0),
                "version 9": self.patched(4, "I", 9),
                "tensors 2^63": self.patched(8, "Q", 1 << 63),
                "tensors 2^32": self.patched(8, "Q", 1 << 32),
                "tensors one fewer": self.patched(8, "Q", self.layout.num_tensors - 1),
                "tensors one more": self.patched(8, "Q", self.layout.num_tensors + 1),
                "keys 2^64-1": self.patched(16, "Q", (1 << 64) - 1),
                "keys one more": self.patched(16, "Q", self.layout.num_keys + 1),
                "length of the first key": self.patched(24, "Q", (1 << 64) - 8),
            }
        )

    def test_metadata(self):
        # A value begins with its type; the number follows.
        files = {}
        for key, values in {
            "llama.block_count": [0, 1, 3, 1 << 31, (1 << 32) - 1],
            "llama.embedding_length": [0, 32, 65, 1 << 30],
            "llama.attention.head_count": [0, 3, 1 << 31],
            "llama.attention.head_count_kv": [0, 3, 8, 1 << 31],
            "llama.feed_forward_length": [0, 64, 1 << 31],
            "llama.context_length": [0],
            "llama.rope.dimension_count": [0, 7, 1 << 20],
        }.items():
            for value in values:
                files[f"{key} = {value}"] = self.patched(self.layout.value_at[key] + 4, "I", value)
        files["head_count is a string"] = self.patched(
            self.layout.value_at["llama.attention.head_count"], "I", 8
        )
        files["value of unknown type"] = self.patched(
            self.layout.value_at["llama.attention.head_count"], "I", 99
        )
        architecture = self.layout.value_at["general.architecture"] + 12
        files["unknown architecture"] = (
            self.data[:architecture] + b"lxama" + self.data[architecture + 5 :]
        )
        self.check_all(files)

    def test_tensors(self):
        files = {}
        for name, (shape, kind, _, begin) in self.layout.tensors.items():
            if name not in ("token_embd.weight", "blk.0.attn_q.weight", "blk.1.ffn_norm.weight"):
                continue
            dims, after = begin + 4, begin + 4 + 8 * len(shape)
            files |= {
                f"{name}: 5 dimensions": self.patched(begin, "I", 5),
                f"{name}: no columns": self.patched(dims, "Q", 0),
                f"{name}: columns 2^62": self.patched(dims, "Q", 1 << 62),
                f"{name}: half the columns": self.patched(dims, "Q", shape[0] // 2),
                f"{name}: columns 2^64-31": self.patched(dims, "Q", (1 << 64) - 31),
                f"{name}: unknown type": self.patched(after, "I", 77),
                f"{name}: offset past the end": self.patched(after + 4, "Q", len(self.data)),
                f"{name}: offset 2^64-32": self.patched(after + 4, "Q", (1 << 64) - 32),
                f"{name}: offset not aligned": self.patched(after + 4, "Q", 1),
            }
            name_at = begin - len(name)
            files[f"{name}: missing"] = self.data[:name_at] + b"X" + self.data[name_at + 1 :]
        self.check_all(files)


class NoModelTest(BadFileTest):
    def test_types_that_this_version_does_not_have(self):
        data = bytearray(pathlib.Path(TIED).read_bytes())
        shape, _, _, begin = Gguf(data).tensors["blk.0.attn_v.weight"]
        struct.pack_into("<I", data, begin + 4 + 8 * len(shape), 20)
        done = self.run_file(bytes(data), "iq4_nl.gguf")
        self.check_refused(done, "IQ4_NL")
        self.assertIn("IQ4_NL", self.assert_error_line(done, "blk.0.attn_v.weight")["message"])

    def test_other_files(self):
        contents = {
            "empty": b"",
            "text": b"this is a text\n" * 100,
            "json": b"{}",
            "zeros": bytes(4096),
            "magic only": b"GGUF",
            "other magic": b"GGML" + bytes(200),
            "big endian": b"FUGG" + bytes(200),
            "elf": b"\x7fELF" + bytes(200),
        }
        for suffix in (".gguf", ".chorus", ".bin", ""):
            for name, content in contents.items():
                for verb, words in [("run", ["a", "--json"]), ("inspect", ["--json"])]:
                    with self.subTest(name=name, suffix=suffix, verb=verb):
                        done = self.attempt(verb, content, "file" + suffix, *words)
                        self.assertEqual(3, done.code, str(done))
                        self.assert_error_line(done)

    def test_device_and_folder(self):
        for path in ["/dev/null", "/dev/zero", str(self.folder)]:
            for words in (["run", path, "a"], ["inspect", path], ["tokenize", path, "a"]):
                with self.subTest(path=path, verb=words[0]):
                    done = support.chorus(*words, "--json", timeout=BOUND_S)
                    self.assertEqual(3, done.code, str(done))
                    self.assert_error_line(done)

    def test_fifo(self):
        path = self.folder / "pipe.gguf"
        os.mkfifo(path)
        for words in (["run", path, "a"], ["inspect", path], ["export", path, "-o", "out.chorus"]):
            done = support.chorus(*words, "--json", timeout=BOUND_S, cwd=self.folder)
            self.assertEqual(3, done.code, str(done))

    def test_a_file_that_may_not_be_read(self):
        if os.geteuid() == 0:
            # Root may read everything; a link that leads to itself is as unreadable.
            path = self.folder / "loop.gguf"
            path.symlink_to(path)
        else:
            path = pathlib.Path(self.write("secret.gguf", pathlib.Path(TIED).read_bytes()))
            path.chmod(stat.S_IWUSR)
        done = support.chorus("run", path, "a", "--json", timeout=BOUND_S)
        self.assertEqual(3, done.code, str(done))
        self.assert_error_line(done)


if __name__ == "__main__":
    support.main()
