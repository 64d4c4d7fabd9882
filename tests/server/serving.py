"""What the tests of a running `chorus serve` share: the process, requests to it, its metrics.

Environment: CHORUS_BIN is the binary; CHORUS_SERVER_MODEL the model that is served (a tiny one unless
told); CHORUS_TEST_SEED replaces the seed of everything random. Python's standard library only.
"""

import contextlib
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import support  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ADDRESS = re.compile(r"serving (.*) at http://127\.0\.0\.1:(\d+)")
PATIENCE_S = 120  # bound on what takes no time, on a busy machine
SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
JSON_TYPE = {"content-type": "application/json"}


def model_path() -> str:
    return os.environ.get("CHORUS_SERVER_MODEL") or support.TIED


def is_tiny() -> bool:
    return model_path() == support.TIED


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Answer:
    """Status, headers in lower case, and the body: `json` where it is JSON."""

    def __init__(self, response: http.client.HTTPResponse):
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.text = response.read().decode("utf-8")
        is_json = self.headers.get("content-type", "").startswith("application/json")
        self.json = json.loads(self.text, object_pairs_hook=support.members) if is_json else None

    def __str__(self) -> str:
        return f"{self.status} {self.text[:500]}"


class Server:
    """A running `chorus serve` on a free port of the loopback; what it says is gathered."""

    def __init__(self, *words, model: str | None = None, env: dict | None = None):
        command = support.command_of(["serve", model or model_path(), "--port", "0", *words])
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=support.environment(env),
        )
        self.said = ""
        self._heard = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            found = self.wait_for(ADDRESS)
        except BaseException:
            self.kill()
            raise
        self.model, self.port = found[1], int(found[2])

    def _listen(self) -> None:
        for line in self.process.stderr:
            with self._heard:
                self.said += line.decode("utf-8", "replace")
                self._heard.notify_all()

    def wait_for(self, pattern) -> re.Match:
        """What the server said on stderr. AssertionError when it ends or lets one wait."""
        until = time.monotonic() + PATIENCE_S
        with self._heard:
            while not (found := re.search(pattern, self.said)):
                is_over = self.process.poll() is not None and not self._listener.is_alive()
                if is_over or time.monotonic() > until:
                    raise AssertionError(f"never said {pattern}: {self.said}")
                self._heard.wait(0.2)
        return found

    def kill(self) -> None:
        """Ends it at once, and complains of what a sanitizer or an assertion said."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._listener.join()
        self.process.stderr.close()
        if support.CRASHES.search(self.said):
            raise AssertionError(self.said)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace) -> None:
        died = self.process.poll()
        self.kill()
        if died is not None:
            raise AssertionError(f"the server ended with {died}: {self.said}") from error

    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self, port: int | None = None) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=PATIENCE_S)

    def ask(self, method: str, path: str, body=None, headers: dict | None = None) -> Answer:
        with contextlib.closing(self.connect()) as connection:
            return ask_through(connection, method, path, body, headers)

    def post(self, path: str, body: dict, headers: dict | None = None) -> dict:
        """The JSON of an answer that has to be 200."""
        answer = self.ask("POST", path, body, headers)
        if answer.status != 200:
            raise AssertionError(f"POST {path}: {answer}")
        return answer.json

    def metrics(self) -> "Metrics":
        answer = self.ask("GET", "/metrics")
        if answer.status != 200:
            raise AssertionError(f"GET /metrics: {answer}")
        return Metrics(answer.text)

    def resident_bytes(self) -> int:
        """Memory of its own that the process holds, without what it maps from files."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)[1]) * 1024

    def wait_idle(self) -> "Metrics":
        """Until nothing runs, waits or is held. AssertionError if that does not come."""
        until = time.monotonic() + PATIENCE_S
        while True:
            metrics = self.metrics()
            busy = metrics.busy()
            if not busy:
                return metrics
            if time.monotonic() > until:
                raise AssertionError(f"not idle after {PATIENCE_S} s: {busy}")
            time.sleep(0.05)


class Metrics:
    """The samples of GET /metrics: a reader that is enough for our own names."""

    def __init__(self, text: str):
        self.samples = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                found = SAMPLE.match(line)
                if not found:
                    raise AssertionError(f"not a sample: {line}")
                labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found[2] or ""))
                labels.pop("model_name", None)
                self.samples[found[1], tuple(sorted(labels.items()))] = float(found[3])

    def value(self, name: str, **labels) -> float:
        return self.samples[name, tuple(sorted(labels.items()))]

    def sum(self, name: str, **labels) -> float:
        """Over all samples of the name that have these labels."""
        return sum(
            value
            for (found, has), value in self.samples.items()
            if found == name and set(labels.items()) <= set(has)
        )

    def busy(self) -> dict:
        """What is not yet as in a server that nobody uses; the answer itself is one request."""
        amounts = {
            "requests running": self.value("chorus_num_requests_running"),
            "requests waiting": self.value("chorus_num_requests_waiting"),
            "sessions": self.value("chorus_sessions"),
            "blocks held": self.sum("chorus_kv_blocks", state="held"),
            "requests open": self.value("chorus_http_open_requests") - 1,
        }
        return {name: amount for name, amount in amounts.items() if amount > 0}


def ask_through(connection, method: str, path: str, body=None, headers=None) -> Answer:
    text = None if body is None else json.dumps(body)
    connection.request(method, path, text, JSON_TYPE | (headers or {}))
    return Answer(connection.getresponse())


def events(response: http.client.HTTPResponse):
    """The data of a stream's events as JSON, as they come. AssertionError where [DONE] is missing
    or what is sent is no stream."""
    if not response.headers.get_content_type() == "text/event-stream":
        raise AssertionError(f"no stream: {response.status} {response.read()[:500]}")
    for line in response:
        line = line.rstrip(b"\r\n")
        if line == b"data: [DONE]":
            if response.read().strip():
                raise AssertionError("something behind [DONE]")
            return
        if line.startswith(b"data:"):
            yield json.loads(line[5:], object_pairs_hook=support.members)
        elif line and not line.startswith(b":"):
            raise AssertionError(f"neither data nor comment: {line}")
    raise AssertionError("the stream ended without [DONE]")


def open_stream(connection, path: str, body: dict) -> http.client.HTTPResponse:
    connection.request("POST", path, json.dumps(body | {"stream": True}), JSON_TYPE)
    return connection.getresponse()


class ServerTest(unittest.TestCase):
    maxDiff = 4000

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="chorus_server_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def serve(self, *words, **options) -> Server:
        server = Server(*words, **options)
        self.addCleanup(server.kill)
        return server
