"""What the black-box tests of the chorus binary share: running it, reading its JSON, small inputs.

Environment: CHORUS_BIN is the binary; CHORUS_DEMO_MODEL the demo model (where a test needs it);
CHORUS_TEST_SEED replaces the seed of everything random. Python's standard library only.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import unittest

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
TINY = GOLDEN / "tiny"
TIED, MIXED = (str(TINY / name) for name in ("tied_q4_1.gguf", "untied_mixed.gguf"))
FLOAT = str(TINY / "untied_float.gguf")  # F16 and F32 weights
TINY_CONTEXT = 512
VOCABULARY = {TIED: 293, MIXED: 300, FLOAT: 263}
NUM_SPECIAL = 3  # ids 0, 1, 2 of a tiny model are control tokens; 2 ends a text

CODES = {
    "invalid_argument",
    "not_found",
    "resource_exhausted",
    "cancelled",
    "deadline_exceeded",
    "unavailable",
    "unimplemented",
    "data_loss",
    "internal",
}
# What a sanitizer or an assertion leaves on stderr: never acceptable, whatever the exit code.
CRASHES = re.compile(
    r"AddressSanitizer|LeakSanitizer|ThreadSanitizer|UndefinedBehaviorSanitizer"
    r"|runtime error:|terminate called|Assertion|check failed",
    re.IGNORECASE,
)
TIMEOUT_S = 240


def binary() -> str:
    path = os.environ.get("CHORUS_BIN")
    if not path:
        sys.exit("set CHORUS_BIN to the chorus binary")
    return path


def demo_model() -> str:
    path = os.environ.get("CHORUS_DEMO_MODEL")
    if not path:
        sys.exit("set CHORUS_DEMO_MODEL to the demo model's GGUF file")
    return path


def seed() -> int:
    return int(os.environ.get("CHORUS_TEST_SEED", "20240229"))


def members(pairs: list) -> dict:
    """An object of JSON, of which no member may occur twice."""
    found = dict(pairs)
    assert len(found) == len(pairs), [name for name, _ in pairs]
    return found


@dataclasses.dataclass
class Done:
    """A finished run of the binary."""

    command: list
    code: int
    out: bytes
    err: str

    def json_lines(self) -> list:
        lines = self.out.decode("utf-8").split("\n")
        return [json.loads(line, object_pairs_hook=members) for line in lines if line]

    def of_type(self, kind: str) -> list:
        return [o for o in self.json_lines() if o.get("type") == kind]

    def results(self) -> list:
        """The result objects by index and choice."""
        return sorted(self.of_type("result"), key=lambda r: (r["index"], r["choice"]))

    def summary(self) -> dict:
        (summary,) = self.of_type("summary")
        return summary

    def __str__(self) -> str:
        return (
            f"{' '.join(map(str, self.command))}\nexit {self.code}\nstdout: {self.out[-1500:]!r}\n"
            f"stderr: {self.err[-1500:]}"
        )


def environment(extra: dict | None = None) -> dict:
    env = {k: v for k, v in os.environ.items() if k != "CHORUS_FORCE_ISA"}
    return env | (extra or {})


def command_of(words) -> list:
    return [binary(), *map(str, words)]


def chorus(
    *words, stdin: bytes | None = b"", env: dict | None = None, timeout: float = TIMEOUT_S, cwd=None
) -> Done:
    """Runs the binary to its end. Raises AssertionError for a crash, TimeoutExpired for a hang."""
    command = command_of(words)
    done = subprocess.run(
        command, input=stdin, capture_output=True, timeout=timeout, cwd=cwd, env=environment(env)
    )
    out = Done(command, done.returncode, done.stdout, done.stderr.decode("utf-8", "replace"))
    if out.code < 0 or CRASHES.search(out.err):
        raise AssertionError(f"crashed: {out}")
    return out


def in_parallel(function, items: list) -> list:
    """function(item) for each, two at a time; the results in order."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(function, items))


def bits(result: dict) -> tuple:
    """What must be identical whatever else ran. JSON floats read back to the same bits."""
    freeze = lambda v: tuple(map(freeze, v)) if isinstance(v, list) else v
    return tuple(
        freeze(result.get(field))
        for field in (
            "prompt_tokens",
            "tokens",
            "text",
            "finish_reason",
            "logprobs",
            "top_logprobs",
        )
    )


def random_ids(rng: random.Random, model: str, length: int) -> list:
    return [rng.randrange(NUM_SPECIAL, VOCABULARY[model]) for _ in range(length)]


# --- a reader of GGUF that is just enough to know where things lie ---------------------------

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


class Gguf:
    """Offsets in a little-endian GGUF file: end of metadata and header, start of the tensors."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 4
        assert data[:4] == b"GGUF"
        self.version = self._take("I")
        self.num_tensors, self.num_keys = self._take("Q"), self._take("Q")
        self.metadata, self.value_at = {}, {}
        for _ in range(self.num_keys):
            key = self._string()
            self.value_at[key] = self.at
            self.metadata[key] = self._value(self._take("I"))
        self.metadata_end = self.at
        self.tensors = {}  # name -> (shape, type, offset in the data, place of the shape)
        for _ in range(self.num_tensors):
            name = self._string()
            begin = self.at
            shape = [self._take("Q") for _ in range(self._take("I"))]
            self.tensors[name] = (shape, self._take("I"), self._take("Q"), begin)
        self.header_end = self.at
        alignment = self.metadata.get("general.alignment", 32)
        self.data_begin = (self.at + alignment - 1) // alignment * alignment

    def _take(self, kind: str):
        (value,) = struct.unpack_from("<" + kind, self.data, self.at)
        self.at += struct.calcsize("<" + kind)
        return value

    def _string(self) -> str:
        size = self._take("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode("utf-8")

    def _value(self, kind: int):
        if kind == 8:
            return self._string()
        if kind == 9:
            item = self._take("I")
            return [self._value(item) for _ in range(self._take("Q"))]
        return self._take(_SCALARS[kind])


class SessionFile:
    """The sections of a session file, to be changed and written with the checksums they need."""

    NAMES = ("format", "tokens", "sampling", "notes", "kv")

    def __init__(self, data: bytes):
        self.magic = data[:12]
        assert struct.unpack_from("<I", data, 12) == (len(self.NAMES),)
        at = 16 + 40 * len(self.NAMES) + 32
        self.sections = {}
        for n, name in enumerate(self.NAMES):
            (size,) = struct.unpack_from("<Q", data, 16 + 40 * n)
            self.sections[name] = data[at : at + size]
            at += size

    def encode(self) -> bytes:
        header = self.magic + struct.pack("<I", len(self.NAMES))
        for name in self.NAMES:
            section = self.sections[name]
            header += struct.pack("<Q", len(section)) + hashlib.sha256(section).digest()
        header += hashlib.sha256(header).digest()
        return header + b"".join(self.sections[name] for name in self.NAMES)


class CliTest(unittest.TestCase):
    maxDiff = 4000

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="chorus_cli_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name: str, content) -> str:
        """A file in the test's folder; returns its path. A list is written as JSON Lines."""
        path = self.folder / name
        if isinstance(content, list):
            content = "".join(json.dumps(line) + "\n" for line in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return str(path)

    def expect(self, code: int, *words, **options) -> Done:
        done = chorus(*words, **options)
        self.assertEqual(code, done.code, str(done))
        return done

    def run_json(self, *words, code: int = 0, **options) -> Done:
        """`chorus run` with --json."""
        return self.expect(code, "run", *words, "--json", **options)

    def run_ids(self, model: str, rows: list, *words, code: int = 0, **options) -> Done:
        """`chorus run --tokens` over the rows of ids."""
        return self.run_json(
            model, "--tokens", self.write("ids.jsonl", rows), *words, code=code, **options
        )

    def assert_error_line(self, done: Done, field: str | None = None) -> dict:
        """The only line on stdout is an error object; its field is the one given."""
        lines = done.json_lines()
        self.assertEqual(1, len(lines), str(done))
        error = lines[0]
        self.assertEqual("error", error.get("type"), str(done))
        self.assertLessEqual({"type", "code", "field", "message"}, set(error), str(done))
        self.assertIn(error["code"], CODES, str(done))
        self.assertTrue(error["message"], str(done))
        if field is not None:
            self.assertEqual(field, error["field"], str(done))
        return error

    def assert_refused(self, code: int, field: str, *words, **options) -> None:
        """Exit `code`; stderr names `field`, and so does the error object of --json."""
        done = self.expect(code, *words, **options)
        self.assertEqual(b"", done.out, str(done))
        self.assertIn(field, done.err, str(done))
        self.assert_error_line(self.expect(code, *words, "--json", **options), field)


def main() -> None:
    if len(sys.argv) == 1:
        print(f"seed {seed()}", file=sys.stderr)
    unittest.main()
