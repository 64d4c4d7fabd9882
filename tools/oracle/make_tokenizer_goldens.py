#!/usr/bin/env python3
"""Makes tests/golden/tokenizers: small vocabularies, hostile strings, and their ids by other programs.

How to run it (by hand; never part of setup, tests or CI):

    VENV/bin/python tools/oracle/make_tokenizer_goldens.py --llama-ids LLAMA_IDS --llama-commit COMMIT \
        [--model NAME=FILE.gguf]... --out tests/golden/tokenizers

VENV holds tools/oracle/requirements.txt. LLAMA_IDS is tools/oracle/llama_ids.cpp, compiled as its first
lines say. Without --model the goldens of the large vocabularies stay as they are.

strings.jsonl has one JSON string a line. An .ids file has one line for each: the 32-bit FNV-1a hash
of the ids in decimal with a space between; or ! where Hugging Face's library builds a special token out
of text; then, where the text of the ids is not the string, a space and the hash of that text. Its first
line is an object: where the ids come from, the vocabulary, the hash of strings.jsonl, and of llama.cpp
the hash of all pieces. Strings with an odd number (from 0) are encoded with special tokens recognised;
BOS and EOS are never added.
"""

import argparse
import collections
import hashlib
import importlib.metadata
import json
import pathlib
import subprocess
import tempfile

import gguf
import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from hostile_strings import hostile_strings

SEED = 20261130
MARK = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
PRE_TOKENIZERS = ["default", "gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "llama4", "tekken"]
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_symbols() -> list[str]:
    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    table, extra = [""] * 256, 0x100
    for byte in range(256):
        if byte in printable:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(extra)
            extra += 1
    return table


def trained(trainer, model, corpus) -> dict:
    tokenizer = Tokenizer(model)
    tokenizer.train_from_iterator(corpus, trainer)
    return json.loads(tokenizer.to_str())["model"]


# ---- GGUF vocabularies -----------------------------------------------------------------------------


def corpus_of(strings: list[str]) -> list[str]:
    """What vocabularies are trained on: no string so long that it outweighs the others."""
    return [text[:60] for text in strings]


def write_vocabulary(path: pathlib.Path, model: str, pre: str, tokens, types, scores=None, merges=None,
                     **flags) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    if pre:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if scores is not None:
        writer.add_token_scores(scores)
    if merges is not None:
        writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for name, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_byte_level(path: pathlib.Path, pre: str, strings: list[str]) -> None:
    """Merges were learnt without cutting words, so that every cut shows in the ids."""
    symbols = byte_symbols()
    corpus = ["".join(symbols[b] for b in text.encode()) for text in corpus_of(strings)]
    trainer = trainers.BpeTrainer(vocab_size=256 + 700, initial_alphabet=symbols, show_progress=False)
    model = trained(trainer, models.BPE(), corpus)
    tokens = ["<unk>", "<s>", "</s>", "<|im_end|>", "<tool>", "<|tool|>"]
    types = [UNKNOWN, CONTROL, CONTROL, CONTROL, USER_DEFINED, USER_DEFINED]
    learnt = sorted(model["vocab"], key=model["vocab"].get)
    learnt = [token for token in learnt if token not in tokens]
    merges = [merge for merge in model["merges"] if "".join(merge) in learnt]
    write_vocabulary(path, "gpt2", pre, tokens + learnt, types + [NORMAL] * len(learnt),
                     merges=[" ".join(merge) for merge in merges])


def write_scored(path: pathlib.Path, strings: list[str]) -> None:
    corpus = [MARK + text.replace(" ", MARK) for text in corpus_of(strings)]
    trainer = trainers.BpeTrainer(vocab_size=900, limit_alphabet=150, show_progress=False)
    model = trained(trainer, models.BPE(), corpus)
    tokens = ["<unk>", "<s>", "</s>", "<tool>", "<table>", "\n\n", "\n\n\n", "\t\t"]
    types = [UNKNOWN, CONTROL, CONTROL] + [USER_DEFINED] * 5
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    types += [BYTE] * 256
    scores = [0.0] * 3 + [-1000.0] * 5 + [0.0] * 256
    for rank, token in enumerate(sorted(model["vocab"], key=model["vocab"].get)):
        # With these llama.cpp makes control and byte tokens of their names in a text.
        if token not in tokens and (len(token) == 1 or not set("<>[]") & set(token)):
            tokens.append(token)
            types.append(NORMAL)
            scores.append(float(-(rank // 3)))  # some are equal
    write_vocabulary(path, "llama", "default", tokens, types, scores=scores, add_bos_token=True,
                     add_space_prefix=True)


class Llama:
    """llama.cpp's tokenizer."""

    def __init__(self, program: pathlib.Path, commit: str):
        self.program, self.commit = program, commit

    def run(self, vocabulary: pathlib.Path, lines: list[str]) -> list[str]:
        done = subprocess.run([self.program, vocabulary], input="\n".join(lines) + "\n", text=True, errors="replace",
                              capture_output=True, check=True)
        answers = done.stdout.split("\n")[:-1]
        assert len(answers) == len(lines), done.stderr
        return answers

    def ids(self, vocabulary: pathlib.Path, strings: list[str]) -> list[str]:
        lines = [f"{'special' if i % 2 else 'plain'} {text.encode().hex()}"
                 for i, text in enumerate(strings)]
        return self.run(vocabulary, lines)

    def pieces_sha256(self, vocabulary: pathlib.Path) -> str:
        """Of every token's bytes in hexadecimal and a line feed, unused tokens left out."""
        return self.run(vocabulary, ["pieces"])[0]


def fnv1a(text: str) -> str:
    value = 0x811c9dc5
    for byte in text.encode():
        value = ((value ^ byte) * 0x01000193) & 0xffffffff
    return f"{value:08x}"


def llama_golden(llama: Llama, vocabulary: pathlib.Path, strings: list[str],
                 header: dict) -> list[str]:
    ids = llama.ids(vocabulary, strings)
    header |= {"by": f"llama.cpp {llama.commit}", "pieces_sha256": llama.pieces_sha256(vocabulary)}
    return [json.dumps(header)] + [fnv1a(line) for line in ids]


# ---- tokenizer.json --------------------------------------------------------------------------------


def added(tokens: list[str], special: bool) -> list[tokenizers.AddedToken]:
    return [tokenizers.AddedToken(token, special=special, normalized=False) for token in tokens]


def byte_level_definition(corpus: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(LLAMA3_WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=256 + 300, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens(added(["<|begin_of_text|>", "<|end_of_text|>", "<|im_end|>"], True))
    tokenizer.add_tokens(added(["<tool>", "<table>"], False))
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)])
    return tokenizer


def scored_definition(corpus: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)])
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 420, limit_alphabet=90, show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>"] + byte_tokens)
    tokenizer.train_from_iterator(corpus, trainer)
    # The trainer makes the byte tokens special, too, which in such files they are not.
    definition = json.loads(tokenizer.to_str())
    definition["added_tokens"] = [t for t in definition["added_tokens"] if t["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(definition))
    tokenizer.add_tokens(added(["<tool>"], False))
    return tokenizer


def with_frequent_characters(corpus: list[str], count: int) -> list[str]:
    counts = collections.Counter("".join(corpus))
    kept = {character for character, _ in counts.most_common(count)}
    return ["".join(character for character in text if character in kept) for text in corpus]


def unigram_definition(corpus: list[str]) -> Tokenizer:
    corpus = with_frequent_characters(corpus, 120)
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\t", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme="first")
    trainer = trainers.UnigramTrainer(vocab_size=500, unk_token="<unk>", show_progress=False,
                                      special_tokens=["<unk>", "<s>", "</s>"])
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def definition_golden(tokenizer: Tokenizer, strings: list[str], header: dict) -> list[str]:
    header |= {"by": f"tokenizers {importlib.metadata.version('tokenizers')}"}
    special = {id for id, token in tokenizer.get_added_tokens_decoder().items()
               if token.special and token.content != "<unk>"}
    lines = [json.dumps(header)]
    for number, text in enumerate(strings):
        tokenizer.encode_special_tokens = number % 2 == 0
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if number % 2 == 0 and special & set(ids):
            lines.append("!")
            continue
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        line = fnv1a(" ".join(map(str, ids)))
        lines.append(line if decoded == text else line + " " + fnv1a(decoded))
    return lines


def small_json(tokenizer: Tokenizer) -> str:
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n"


# ---- All -------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--llama-ids", type=pathlib.Path, required=True)
    parser.add_argument("--llama-commit", required=True)
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FILE.gguf")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    llama = Llama(options.llama_ids, options.llama_commit)
    strings = hostile_strings(seed=SEED)
    text = "".join(json.dumps(string, ensure_ascii=False) + "\n" for string in strings)
    (options.out / "strings.jsonl").write_text(text, encoding="utf-8")
    strings_sha256 = hashlib.sha256(text.encode()).hexdigest()

    def write(name: str, lines: list[str]) -> None:
        (options.out / f"{name}.ids").write_text("\n".join(lines) + "\n", encoding="ascii")

    for pre in PRE_TOKENIZERS:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "vocabulary.gguf"
            write_byte_level(path, pre, strings)
            header = {"vocabulary": "byte_level.gguf", "pre": pre, "strings_sha256": strings_sha256}
            lines = llama_golden(llama, path, strings, header)
        write(pre, lines)
    write_byte_level(options.out / "byte_level.gguf", "default", strings)
    write_scored(options.out / "scored.gguf", strings)
    header = {"vocabulary": "scored.gguf", "strings_sha256": strings_sha256}
    write("scored", llama_golden(llama, options.out / "scored.gguf", strings, header))
    for model in options.model:
        name, path = model.split("=", 1)
        sha256 = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
        header = {"vocabulary": name, "sha256": sha256, "strings_sha256": strings_sha256}
        write(name, llama_golden(llama, pathlib.Path(path), strings, header))
    for name, make in (("hf_byte_level", byte_level_definition), ("hf_scored", scored_definition),
                       ("hf_unigram", unigram_definition)):
        tokenizer = make(corpus_of(strings))
        definition = small_json(tokenizer)
        (options.out / f"{name}.json").write_text(definition, encoding="utf-8")
        header = {"vocabulary": f"{name}.json", "strings_sha256": strings_sha256}
        write(name, definition_golden(Tokenizer.from_str(definition), strings, header))


if __name__ == "__main__":
    main()
