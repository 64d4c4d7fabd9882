#!/usr/bin/env python3
"""The curl lines of docs/server.md, run against a server as they stand.

Rule: a block fenced as sh that holds `curl` is one command, followed by a block with its answer: `json`
must have the same members and types as the real one (null stands for any, {} for any object; an element of an array
must look like one of those shown, and there is one but for messages), `text` is an event stream, of which the shown events must come in
this order. A comment `# 404` in the command is the status that is expected, else 200. An id that an
answer shows stands for the real one in what follows; http://localhost:8080 is the server.
"""

import json
import pathlib
import re
import subprocess
import unittest

import serving
import support
from serving import ROOT, ServerTest

PAGE = ROOT / "docs" / "server.md"
BLOCK = re.compile(r"^```(sh|json|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
STATUS_MARK = "\n--status "


def examples() -> list:
    """(command, kind of the answer, answer) in order."""
    blocks = [(found[1], found[2]) for found in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]
    pairs = []
    for i, (kind, text) in enumerate(blocks):
        if kind == "sh" and "curl" in text:
            assert i + 1 < len(blocks) and blocks[i + 1][0] != "sh", f"no answer follows: {text}"
            pairs.append((text, *blocks[i + 1]))
    return pairs


def type_of(value) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


class Shapes:
    """Compares answers with those shown, and gathers which id stands for which."""

    def __init__(self):
        self.ids = {}

    def differs(self, shown, real, path: str) -> str | None:
        """Where and how, or None."""
        if shown is None or real is None:
            return None
        if type_of(shown) != type_of(real):
            return f"{path}: shown is {type_of(shown)}, the server says {real!r:.80}"
        if isinstance(shown, dict) and shown:
            if shown.keys() != real.keys():
                return f"{path}: {sorted(shown.keys() ^ real.keys())} is in one alone"
            return next(filter(None, (self.differs(shown[k], real[k], f"{path}.{k}") for k in shown)), None)
        if isinstance(shown, list):
            for i, element in enumerate(real):
                found = [self.differs(each, element, f"{path}[{i}]") for each in shown]
                if found and None not in found:
                    return found[0]
            if shown and not real and not path.endswith(".messages"):
                return f"{path}: the server shows nothing"
        if isinstance(shown, str) and path.endswith(".id") and shown.startswith("session-"):
            self.ids.setdefault(shown, real)
        return None


def events_of(text: str) -> list:
    lines = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


class DocsTest(ServerTest):
    def run_command(self, command: str, server) -> tuple:
        command = command.replace("http://localhost:8080", server.base_url())
        # Whole ids at once: a real one may begin as another shown one does.
        command = re.sub(r"session-\d+(?![0-9a-f])", lambda m: self.shapes.ids.get(m[0], m[0]), command)
        self.assertIn(server.base_url(), command)
        expected = int(found[1]) if (found := re.search(r"# (\d\d\d)\b", command)) else 200
        command = re.sub(r"\bcurl\b", f"curl -sS -w '{STATUS_MARK}%{{http_code}}'", command)
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, timeout=serving.PATIENCE_S, cwd=self.folder
        )
        self.assertEqual(0, done.returncode, f"{command}\n{done.stderr}")
        body, status = done.stdout.rsplit(STATUS_MARK, 1)
        self.assertEqual(expected, int(status), f"{command}\n{body}")
        return body, expected

    def check(self, command: str, kind: str, answer: str, server) -> None:
        body, _ = self.run_command(command, server)
        if kind == "json":
            wrong = self.shapes.differs(json.loads(answer), json.loads(body), "answer")
            self.assertIsNone(wrong, f"{command}\n{body}")
        elif answer.startswith("data:"):
            self.check_events(command, events_of(answer), events_of(body))
        else:
            for line in answer.splitlines():
                self.assertIn(line, body, command)

    def check_events(self, command: str, shown: list, real: list) -> None:
        self.assertEqual("[DONE]", real[-1], command)
        rest = iter(real)
        for each in shown:
            wrong = "nothing came"
            for event in rest:
                wrong = self.shapes.differs(each, event, "event") if each != event else None
                if wrong is None:
                    break
            self.assertIsNone(wrong, f"{command}\nexpected {each}")

    def test_every_command(self):
        self.shapes = Shapes()
        saved = self.folder / "sessions"
        saved.mkdir()
        server = self.serve("--served-model-name", "smollm2", "--session-dir", str(saved))
        found = examples()
        self.assertGreater(len(found), 15)
        for command, kind, answer in found:
            with self.subTest(command):
                self.check(command, kind, answer, server)
        serving.say(f"{len(found)} commands of {PAGE.name} answer as shown")

    def test_every_route_has_one(self):
        text = "".join(command for command, _, _ in examples())
        listed = re.findall(r"^\| `(GET|POST|DELETE)` \| `(/\S*)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
        self.assertGreater(len(listed), 15)
        for method, path in listed:
            pattern = re.sub(r"\\\{[^}]*\\\}", r"[^\\s/\"']+", re.escape(path))
            self.assertRegex(text, rf"http://localhost:8080{pattern}(?=[\s\"'?]|$)", f"{method} {path}")


    def test_parameters_and_their_defaults(self):
        """Those of the table are there with these defaults, as the server tells in /props."""
        table = PAGE.read_text(encoding="utf-8").split("\n## Parameters\n")[1].split("\n## ")[0]
        shown = {
            found[1]: json.loads(found[2])
            for found in re.finditer(r"^\| `(\w+)` \| (\S+) \|", table, re.MULTILINE)
        }
        told = self.serve().ask("GET", "/props").json["default_generation_settings"]["params"]
        self.assertGreater(len(shown), 15)
        for name, default in shown.items():
            self.assertIn(name, told)
            self.assertEqual(told[name], default, name)

    def test_refused_ones_are_refused(self):
        text = PAGE.read_text(encoding="utf-8").split("Refused with 400")[1].split("Not there")[0]
        names = re.findall(r"`(\w+)`", text)
        self.assertGreater(len(names), 40)
        server = self.serve()
        for name in names:
            value = {"cache_prompt": False, "modalities": ["text", "audio"]}.get(name, ["x"])
            answer = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, name: value})
            self.assertEqual(400, answer.status, f"{name}: {answer}")
            self.assertTrue(answer.json["error"]["param"].startswith(name), answer)
        missing = PAGE.read_text(encoding="utf-8").split("Not there (404):")[1].split("\n\n")[0]
        for path in re.findall(r"`(/\S+)`", missing):
            self.assertIn(server.ask("POST", path, {}).status, (404, 405), path)


class ShapesTest(unittest.TestCase):
    def test_what_differs_is_found(self):
        shapes = Shapes()
        shown = {"a": 1, "b": [{"c": "x"}], "d": None}
        self.assertIsNone(shapes.differs(shown, {"a": 2.5, "b": [{"c": "y"}] * 2, "d": "z"}, ""))
        for other in (
            {"a": 1, "b": []},
            {"a": "1", "b": [{"c": "x"}], "d": None},
            {"a": True, "b": [{"c": "x"}], "d": None},
            {"a": 1, "b": [{"c": 1}], "d": None},
            {"a": 1, "b": [{"c": "x"}, {}], "d": None},
            {"a": 1, "b": [], "d": None},
            {"a": 1, "b": [{"c": "x"}], "d": None, "e": 1},
        ):
            self.assertIsNotNone(shapes.differs(shown, other, ""), other)


if __name__ == "__main__":
    support.main()
