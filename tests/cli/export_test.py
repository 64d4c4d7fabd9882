#!/usr/bin/env python3
"""`chorus export` and `chorus inspect`."""

import os
import json
import pathlib
import resource
import signal
import subprocess
import time

import support
from support import FLOAT, MIXED, TIED, TINY_CONTEXT, VOCABULARY, CliTest, Gguf, bits


class ExportTest(CliTest):
    def export(self, model: str, name: str = "out.chorus", *words) -> pathlib.Path:
        path = self.folder / name
        self.expect(0, "export", model, "-o", path, *words)
        return path

    def files(self) -> set:
        return set(os.listdir(self.folder))

    def test_the_same_input_gives_the_same_bytes(self):
        for model in (TIED, MIXED, FLOAT):
            first, second = self.export(model, "a.chorus"), self.export(model, "b.chorus")
            self.assertEqual(first.read_bytes(), second.read_bytes())
            self.assertGreater(first.stat().st_size, 10000)
        self.assertEqual({"a.chorus", "b.chorus"}, self.files())

    def test_the_place_of_the_input_does_not_matter(self):
        copy = self.write("copy.gguf", pathlib.Path(TIED).read_bytes())
        self.assertEqual(
            self.export(TIED, "a.chorus").read_bytes(), self.export(copy, "b.chorus").read_bytes()
        )

    def test_a_program_runs_as_its_source_does(self):
        words = ["abc", "a longer prompt, with words", "--max-tokens", "8", "--logprobs", "5"]
        for model in (TIED, MIXED, FLOAT):
            program = self.export(model)
            for mode in ([], ["--exact"], ["--temperature", "1", "--seed", "2"], ["--chat"]):
                source = self.run_json(model, *words, *mode).results()
                found = self.run_json(program, *words, *mode).results()
                self.assertEqual(list(map(bits, source)), list(map(bits, found)))

    def test_of_a_program(self):
        program = self.export(TIED)
        again = self.export(str(program), "again.chorus")
        self.assertEqual(program.read_bytes(), again.read_bytes())

    def test_context(self):
        program = self.export(TIED, "short.chorus", "--context", "100")
        engine = self.run_json(program, "a", "--max-tokens", "2").summary()["engine"]
        self.assertEqual(100, engine["context"])
        done = self.run_json(program, "a" * 150, "--max-tokens", "2", code=1)
        self.assertEqual("error", done.results()[0]["finish_reason"])

    def test_quantize(self):
        path = self.folder / "small.chorus"
        done = self.expect(0, "export", TIED, "-o", path, "--quantize", "q4_0", "--json")
        (line,) = done.json_lines()
        changed = {tensor["name"]: tensor for tensor in line["quantized"]}
        self.assertIn("token_embd.weight", changed)
        for tensor in changed.values():
            self.assertEqual("q4_0", tensor["to"])
            self.assertLess(0, tensor["relative_error"])
            self.assertLess(tensor["relative_error"], 0.2)
        self.assertLess(path.stat().st_size, self.export(TIED).stat().st_size)
        text = self.expect(0, "inspect", path, "--tensors").out.decode().lower()
        self.assertNotIn("q8_0", text)
        self.run_json(path, "abc", "--max-tokens", "4")
        done = self.expect(0, "export", TIED, "-o", path, "--quantize", "q4_0")
        self.assertIn("relative error", done.out.decode())
        # Rows of 40 or 56 values have no blocks of 32: they stay as they are.
        (line,) = self.expect(
            0, "export", FLOAT, "-o", path, "--quantize", "q8_0", "--json"
        ).json_lines()
        self.assertEqual(
            {"blk.0.attn_output.weight", "blk.1.attn_output.weight"},
            {tensor["name"] for tensor in line["quantized"]},
        )

    def test_a_program_is_not_quantized(self):
        program = self.export(TIED)
        done = self.expect(
            2, "export", program, "-o", self.folder / "b.chorus", "--quantize", "q4_0", "--json"
        )
        self.assert_error_line(done, "--quantize")

    def test_says_what_it_wrote(self):
        done = self.expect(0, "export", TIED, "-o", self.folder / "out.chorus")
        self.assertIn("forward", done.out.decode() + done.err)

    def test_replaces_the_target(self):
        target = self.folder / "out.chorus"
        target.write_bytes(b"old")
        self.export(TIED)
        self.assertGreater(target.stat().st_size, 10000)
        self.assertEqual({"out.chorus"}, self.files())

    def test_a_failure_leaves_the_target_alone(self):
        target = self.folder / "out.chorus"
        target.write_bytes(b"old")
        data = pathlib.Path(TIED).read_bytes()
        for name, content in [("cut.gguf", data[:-1000]), ("text.gguf", b"text")]:
            self.expect(3, "export", self.write(name, content), "-o", target)
            self.assertEqual(b"old", target.read_bytes())
            os.unlink(self.folder / name)
        self.assertEqual({"out.chorus"}, self.files())

    def test_a_target_that_cannot_be_written(self):
        for target in [self.folder / "absent" / "out.chorus", self.folder]:
            done = support.chorus("export", TIED, "-o", target)
            self.assertIn(done.code, (1, 2), str(done))
            self.assertIn(str(target), done.err)
        self.assertEqual(set(), self.files())


    def test_the_input_is_not_overwritten(self):
        data = pathlib.Path(TIED).read_bytes()
        model = self.write("model.gguf", data)
        os.symlink(model, self.folder / "link")
        for target in [model, self.folder / "link", self.folder / "." / "model.gguf"]:
            self.assert_refused(2, "-o", "export", model, "-o", target)
        prompts = self.write("p.txt", "a\n")
        for report in [model, prompts]:
            self.assert_refused(
                2, "--report", "run", model, "--prompts", prompts, "--report", report
            )
        self.assertEqual(data, pathlib.Path(model).read_bytes())
        self.assertEqual("a\n", pathlib.Path(prompts).read_text())

    def test_a_file_that_grows_too_big(self):
        most = 1000

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

        target = self.folder / "out.chorus"
        done = subprocess.run(
            support.command_of(["export", TIED, "-o", target]),
            capture_output=True,
            preexec_fn=limit,
            timeout=support.TIMEOUT_S,
        )
        self.assertEqual(1, done.returncode, done.stderr)
        self.assertIn(str(target), done.stderr.decode())
        self.assertEqual(set(), self.files())

    def test_a_signal_leaves_no_temporary_file(self):
        # The signal comes when the temporary file is seen, or after a while.
        codes = set()
        for attempt in range(40):
            number = (signal.SIGINT, signal.SIGTERM)[attempt % 2]
            process = subprocess.Popen(
                support.command_of(["export", TIED, "-o", self.folder / "out.chorus"]),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            until = time.monotonic() + 0.001 * attempt
            while not self.files() and time.monotonic() < until:
                pass
            for _ in range(1 + attempt % 3):
                process.send_signal(number)
            process.communicate(timeout=support.TIMEOUT_S)
            codes.add(process.returncode)
            self.assertLessEqual(self.files(), {"out.chorus"})
            if self.files():
                self.expect(0, "inspect", self.folder / "out.chorus", "--verify")
                os.unlink(self.folder / "out.chorus")
        # Before the program has taken the signals over, they end it as they end any.
        self.assertLessEqual(codes, {0, 130, -signal.SIGINT, -signal.SIGTERM})
        self.assertTrue(codes - {0})


class InspectTest(CliTest):
    def setUp(self):
        super().setUp()
        self.program = self.folder / "out.chorus"

    def inspect(self, *words) -> dict:
        lines = self.expect(0, "inspect", *words, "--json").json_lines()
        self.assertEqual(1, len(lines))
        return lines[0]

    def test_describes_the_model(self):
        for model in (TIED, MIXED, FLOAT):
            self.expect(0, "export", model, "-o", self.program, "--quiet")
            described = self.inspect(self.program)
            metadata = Gguf(pathlib.Path(model).read_bytes()).metadata
            self.assertEqual("llama", described["architecture"])
            flat = set()

            def collect(value):
                if isinstance(value, dict):
                    value = list(value.values())
                for item in value if isinstance(value, list) else []:
                    collect(item)
                if isinstance(value, int):
                    flat.add(value)

            collect(described)
            for key in ("llama.embedding_length", "llama.block_count"):
                self.assertIn(metadata[key], flat, described)
            self.assertIn(VOCABULARY[model], flat)
            self.assertIn(TINY_CONTEXT, flat)
            heads = metadata["llama.attention.head_count_kv"]
            width = metadata.get(
                "llama.attention.key_length",
                metadata["llama.embedding_length"] // metadata["llama.attention.head_count"],
            )
            # Keys and values of 2 layers; bf16 is the default.
            self.assertIn(2 * 2 * heads * width * 2, flat, described)

    def test_methods_groups_and_hashes(self):
        self.expect(0, "export", TIED, "-o", self.program, "--quiet")
        described = self.inspect(self.program)
        (method,) = described["methods"]
        self.assertEqual("forward", method["name"])
        (group,) = described["groups"]
        self.assertIsNone(group["window"])
        self.assertEqual(self.inspect(self.program), described)
        text = str(described)
        self.assertRegex(text, r"[0-9a-f]{16}")

    def test_hash_follows_the_content(self):
        hashes = set()
        for n, model in enumerate((TIED, MIXED, FLOAT)):
            path = self.folder / f"{n}.chorus"
            self.expect(0, "export", model, "-o", path, "--quiet")
            described = self.inspect(path)
            hashes.add(str(described.get("hash", described.get("hashes"))))
        self.assertEqual(3, len(hashes))

    def test_a_gguf(self):
        described = self.inspect(MIXED)
        self.assertEqual("llama", described["architecture"])
        self.expect(0, "inspect", MIXED, "--tensors")

    def test_a_folder(self):
        """Against the files' own JSON, read here."""
        folder = support.GOLDEN / "folders" / "gemma3_vision"
        content = (folder / "model.safetensors").read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        header.pop("__metadata__", None)
        config = json.loads((folder / "config.json").read_text())
        described = self.inspect(folder, "--tensors")
        self.assertEqual(config["model_type"], described["architecture"])
        self.assertEqual(config["text_config"]["hidden_size"], described["width"])
        self.assertEqual(config["text_config"]["vocab_size"], described["vocabulary"])
        self.assertEqual(["vision_config"], described["other_models"])
        self.assertIsNone(described["tokenizer"])
        self.assertEqual([config["text_config"]["eos_token_id"]], described["eos_ids"])
        tensors = {each["name"]: each for each in described["tensors"]}
        self.assertEqual(header.keys(), tensors.keys())
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            self.assertEqual(
                {
                    "name": name,
                    "type": entry["dtype"],
                    "shape": entry["shape"],
                    "bytes": end - begin,
                    "file": "model.safetensors",
                },
                tensors[name],
            )
        self.expect(2, "inspect", folder, "--verify")
        self.assertIn("BF16", self.expect(0, "inspect", folder).out.decode())

    def test_what_a_folder_has_beside_the_text_model(self):
        folder = support.GOLDEN / "folders" / "gemma3_vision"
        (line,) = self.expect(0, "inspect", folder, "--json").json_lines()
        self.assertEqual({"multi_modal_projector", "vision_tower"}, set(line["left_out"]))
        self.assertTrue(all(count > 0 for count in line["left_out"].values()))
        (line,) = self.expect(
            0, "inspect", support.GOLDEN / "folders" / "gemma3_text", "--json"
        ).json_lines()
        self.assertNotIn("left_out", line)

    def test_tensors(self):
        self.expect(0, "export", TIED, "-o", self.program, "--quiet")
        described = self.inspect(self.program, "--tensors")
        plain = self.inspect(self.program)
        self.assertGreater(len(str(described)), len(str(plain)))
        text = self.expect(0, "inspect", self.program, "--tensors").out.decode().lower()
        self.assertIn("q4_1", text)
        self.assertIn("q8_0", text)

    def test_types_are_spelled_alike(self):
        self.expect(0, "export", TIED, "-o", self.program, "--quiet")
        types = [
            {weight["type"] for weight in self.inspect(path, "--tensors")[part]}
            for path in (TIED, self.program)
            for part in ("weights", "tensors")
        ]
        self.assertIn("Q4_1", types[0])
        self.assertTrue(all(t == types[0] for t in types), types)
        self.assertIn(":Q4_1", self.expect(0, "inspect", self.program, "--graph").out.decode())

    def test_graph_has_an_operator_a_line(self):
        self.expect(0, "export", TIED, "-o", self.program, "--quiet")
        out = self.expect(0, "inspect", self.program, "--graph").out.decode()
        # Two layers with attention, two norms (and a last one), and the linears q+k+v, output,
        # gate+up and down each; then the head.
        for name, count in [
            ("update_and_attend", 2),
            ("rms_norm", 5),
            ("embed", 1),
            ("linear", 9),
            ("select_rows", 1),
        ]:
            lines = [line for line in out.splitlines() if name in line.split("(")[0]]
            self.assertGreaterEqual(len(lines), count, out)

    def test_verify(self):
        self.expect(0, "export", TIED, "-o", self.program, "--quiet")
        self.expect(0, "inspect", self.program, "--verify")
        data = bytearray(self.program.read_bytes())
        data[len(data) // 2] ^= 1
        self.program.write_bytes(data)
        self.expect(3, "inspect", self.program, "--verify")

    def test_text_for_people(self):
        self.expect(0, "export", TIED, "-o", self.program, "--quiet")
        out = self.expect(0, "inspect", self.program).out.decode()
        self.assertIn("llama", out)
        self.assertIn("forward", out)


if __name__ == "__main__":
    support.main()
