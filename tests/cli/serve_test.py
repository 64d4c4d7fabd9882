#!/usr/bin/env python3
"""`chorus serve` as a process: where it listens, whom it lets in, how it ends, what it logs."""

import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time

import support
from support import TIED, CliTest

END_S = 30  # bound on what takes no time, on a busy machine
ADDRESS = re.compile(r"at http://127\.0\.0\.1:(\d+)")


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str):
        super().__init__("localhost", timeout=END_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(END_S)
        self.sock.connect(self.path)


class Server:
    """A running `chorus serve`; what it says on stderr is gathered."""

    def __init__(self, test: CliTest, *words, model: str = TIED, env: dict | None = None):
        self.test = test
        command = support.command_of(["serve", model, "--port", "0", *words])
        if "--no-tcp" in words:
            command = support.command_of(["serve", model, *words])
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=support.environment(env),
        )
        test.addCleanup(self.kill)
        self.said = ""
        self.heard = threading.Condition()
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()

    def listen(self) -> None:
        for line in self.process.stderr:
            with self.heard:
                self.said += line.decode("utf-8", "replace")
                self.heard.notify_all()
        with self.heard:
            self.heard.notify_all()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.listener.join()
        self.process.stdout.close()
        self.process.stderr.close()
        self.test.assertIsNone(support.CRASHES.search(self.said), self.said)

    def wait_for(self, pattern: str) -> re.Match:
        until = time.monotonic() + END_S
        with self.heard:
            while not (found := re.search(pattern, self.said)):
                left = until - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not self.listener.is_alive()):
                    self.test.fail(f"never said {pattern}: {self.said}")
                self.heard.wait(min(left, 0.2))
        return found

    def port(self) -> int:
        return int(self.wait_for(ADDRESS.pattern)[1])

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port(), timeout=END_S)

    def ask(self, method: str, path: str, body=None, headers: dict | None = None):
        """Status, headers and the JSON or text of an answer."""
        with contextlib.closing(self.connect()) as connection:
            return answer_of(connection, method, path, body, headers)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        return self.process.wait(timeout=END_S)


def answer_of(connection, method: str, path: str, body=None, headers: dict | None = None):
    text = None if body is None else json.dumps(body)
    connection.request(method, path, text, {"content-type": "application/json"} | (headers or {}))
    response = connection.getresponse()
    data = response.read()
    is_json = response.getheader("content-type", "").startswith("application/json")
    content = json.loads(data) if is_json else data.decode()
    return response.status, dict(response.getheaders()), content


def completion(**fields) -> dict:
    return {"model": "tied_q4_1", "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True} | fields


class ServeTest(CliTest):
    def serve(self, *words, **options) -> Server:
        return Server(self, *words, **options)

    def hold_a_request(self, server: Server) -> socket.socket:
        """A stream of some megabytes whose client does not read: it stays open until it does."""
        connection = socket.socket()
        self.addCleanup(connection.close)
        connection.settimeout(END_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port()))
        fields = {"prompt": [[5]] * 8, "n": 8, "max_tokens": 200, "logprobs": 5, "stream": True}
        body = json.dumps(completion(**fields)).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)
        begin = connection.recv(64)
        self.assertTrue(begin.startswith(b"HTTP/1.1 200"), begin)
        return connection

    def test_tells_where_it_listens_and_answers(self):
        server = self.serve()
        self.assertEqual(200, server.ask("GET", "/health")[0])
        status, _, models = server.ask("GET", "/v1/models")
        self.assertEqual((200, "tied_q4_1"), (status, models["data"][0]["id"]))
        status, headers, done = server.ask(
            "POST", "/v1/completions", completion(), {"x-request-id": "mine"}
        )
        self.assertEqual(200, status, done)
        self.assertEqual(4, done["usage"]["completion_tokens"])
        self.assertEqual("mine", headers["x-request-id"])
        status, headers, page = server.ask("GET", "/")
        self.assertEqual(200, status)
        self.assertIn("<html", page)
        self.assertNotIn("access-control-allow-origin", headers)
        server.signal(signal.SIGTERM)
        self.assertEqual(0, server.end())

    def test_names_of_the_model(self):
        server = self.serve("--served-model-name", "a", "--served-model-name", "b/c")
        _, _, models = server.ask("GET", "/v1/models")
        self.assertEqual(["a", "b/c"], [model["id"] for model in models["data"]])

    def test_flags_are_what_it_says(self):
        """Given ones win, whatever else is derived; the context is each session's."""
        force = {"CHORUS_FORCE_ISA": "generic"}
        words = "--max-sessions 9 --context 128 --kv-blocks 64 --block-size 16 --kv-type f32"
        more = "--activations f32 --max-running 5 --queue 3 --served-model-name a"
        server = self.serve(*words.split(), *more.split(), env=force)
        server.wait_for(
            "each of 9 sessions may have 128 tokens; all of them share KV for 1024"
        )
        props = server.ask("GET", "/props")[2]
        told = {
            "max_sessions": 9,
            "context": 128,
            "kv_type": "f32",
            "activations": "f32",
            "total_slots": 5,
            "max_queued": 3,
            "model_alias": "a",
            "isa": "generic",
        }
        self.assertEqual(told, {name: props[name] for name in told})
        self.assertEqual(128, props["default_generation_settings"]["n_ctx"])
        slots = server.ask("GET", "/slots")[2]
        self.assertEqual([128] * 5, [slot["n_ctx"] for slot in slots])
        server.kill()
        for sessions in (1, 30):
            server = self.serve("--max-sessions", sessions)
            props = server.ask("GET", "/props")[2]
            self.assertEqual((sessions, 512), (props["max_sessions"], props["context"]))
            done = server.ask("POST", "/v1/completions", completion(max_tokens=509))[2]
            self.assertEqual(512, done["usage"]["total_tokens"])
            server.kill()

    def test_a_unix_socket(self):
        path = str(self.folder / "chorus.sock")
        server = self.serve("--unix-socket", path, "--no-tcp")
        server.wait_for("at unix:")
        with contextlib.closing(UnixConnection(path)) as connection:
            self.assertEqual(200, answer_of(connection, "GET", "/health")[0])
        server.signal(signal.SIGINT)
        self.assertEqual(0, server.end())
        self.assertFalse(os.path.exists(path))

    def test_keys(self):
        keys = self.write("keys", "# users\nalice key-a\nkey-b\n")
        for words, env, good in [
            (["--api-key", "key-1", "--api-key", "key-2"], {}, ["key-1", "key-2"]),
            (["--api-key-file", keys], {}, ["key-a", "key-b"]),
            ([], {"CHORUS_API_KEY": "key-e"}, ["key-e"]),
        ]:
            server = self.serve(*words, env=env)
            self.assertEqual(200, server.ask("GET", "/health")[0])
            for key in [None, "", "key", "key-11", *good]:
                headers = {} if key is None else {"authorization": f"Bearer {key}"}
                status = server.ask("GET", "/v1/models", headers=headers)[0]
                self.assertEqual(200 if key in good else 401, status, key)
            server.kill()

    def test_metrics_and_access_log(self):
        log = self.folder / "access.jsonl"
        server = self.serve("--access-log", log, "--vllm-metric-names")
        for _ in range(3):
            self.assertEqual(200, server.ask("POST", "/v1/completions", completion())[0])
        status, headers, text = server.ask("GET", "/metrics")
        self.assertEqual(200, status)
        self.assertIn("version=0.0.4", headers["content-type"])
        label = '{model_name="tied_q4_1"'
        self.assertIn(f"vllm:prompt_tokens_total{label}}} 9\n", text)
        self.assertIn(f"vllm:generation_tokens_total{label}}} 12\n", text)
        self.assertIn(f'vllm:request_success_total{label},finished_reason="length"}} 3\n', text)
        self.assertIn(f"vllm:time_to_first_token_seconds_count{label}}} 3\n", text)
        self.assertIn(f'chorus_http_requests_total{label},status="200"}} 3\n', text)
        server.signal(signal.SIGTERM)
        self.assertEqual(0, server.end())
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        self.assertEqual(["/v1/completions"] * 3 + ["/metrics"], [line["path"] for line in lines])
        always = {"time", "request_id", "peer", "method", "status", "ms", "bytes"}
        for line in lines:
            self.assertLessEqual(always, set(line))
        for line in lines[:3]:
            self.assertEqual((3, 4), (line["prompt_tokens"], line["completion_tokens"]))

    def test_an_access_log_on_stdout(self):
        server = self.serve("--access-log", "-")
        server.ask("GET", "/health")
        self.assertEqual("/health", json.loads(server.process.stdout.readline())["path"])

    def test_drains(self):
        server = self.serve("--drain-timeout", "600")
        held = self.hold_a_request(server)
        server.signal(signal.SIGTERM)
        server.wait_for("draining")
        self.assertEqual(503, server.ask("GET", "/health")[0])
        status, headers, error = server.ask("POST", "/v1/completions", completion())
        self.assertEqual(503, status, error)
        self.assertTrue({"retry-after", "retry-after-ms"} & set(headers), headers)
        self.assertIsNone(server.process.poll())
        data = b""
        while part := held.recv(1 << 16):
            data += part
        self.assertTrue(data.rstrip().endswith(b"data: [DONE]\n\n\r\n0"), data[-200:])
        self.assertEqual(64, data.count(b'"finish_reason":"length"'))
        self.assertEqual(0, server.end())

    def test_cuts_what_does_not_end_in_time(self):
        server = self.serve("--drain-timeout", "0.2")
        held = self.hold_a_request(server)
        server.signal(signal.SIGTERM)
        self.assertEqual(0, server.end())
        server.wait_for("cutting")
        data = b""
        with contextlib.suppress(ConnectionError):
            while part := held.recv(1 << 16):
                data += part
        self.assertLess(data.count(b'"finish_reason":"length"'), 64)

    def test_a_second_signal_ends_at_once(self):
        server = self.serve("--drain-timeout", "1000")
        self.hold_a_request(server)
        server.signal(signal.SIGTERM)
        server.wait_for("draining")
        server.signal(signal.SIGTERM)
        self.assertEqual(130, server.end())

    def test_a_client_that_leaves_frees_what_it_held(self):
        server = self.serve()
        for _ in range(20):
            self.hold_a_request(server).close()
        until = time.monotonic() + END_S
        while time.monotonic() < until:
            text = server.ask("GET", "/metrics")[2]
            if re.search(r"chorus_num_requests_running\{[^}]*\} 0\n", text) and re.search(
                r"chorus_sessions\{[^}]*\} 0\n", text
            ):
                return
            time.sleep(0.05)
        self.fail(text)

    def test_a_place_that_is_taken(self):
        server = self.serve()
        done = self.expect(1, "serve", TIED, "--port", server.port())
        self.assertIn("--port", done.err)
        self.assertIn("in use", done.err)
        done = self.expect(1, "serve", TIED, "--host", "203.0.113.1", "--port", 0)
        self.assertIn("--host", done.err)
        done = self.expect(1, "serve", TIED, "--no-tcp", "--unix-socket", "/nowhere/x")
        self.assertIn("--unix-socket", done.err)
        done = self.expect(1, "serve", TIED, "--port", 0, "--access-log", "/nowhere/x")
        self.assertIn("--access-log", done.err)

    def test_a_model_that_is_none(self):
        done = self.expect(3, "serve", self.write("x.gguf", b"GGUF nonsense"), "--port", 0)
        self.assertTrue(done.err)

    def test_flags_that_cannot_be(self):
        keys = self.write("keys", "a b c\n")
        empty = self.write("empty", "# nothing\n")
        for flag, value in [
            ("--port", "65536"),
            ("--port", "-1"),
            ("--port", "x"),
            ("--max-connections", "0"),
            ("--max-body", "0"),
            ("--max-bodies", "many"),
            ("--cors", "https://example.org/"),
            ("--queue", "-1"),
            ("--drain-timeout", "-1"),
            ("--drain-timeout", "nan"),
            ("--api-key", "a b"),
            ("--api-key-file", keys),
            ("--api-key-file", empty),
            ("--api-key-file", "/nowhere/x"),
            ("--session-dir", keys),
            ("--session-dir", "/proc/nowhere"),
        ]:
            done = self.expect(2, "serve", TIED, flag, value)
            self.assertIn(flag, done.err)
            self.assertNotIn("a b", done.err)
        self.assertIn("--no-tcp", self.expect(2, "serve", TIED, "--no-tcp").err)


if __name__ == "__main__":
    support.main()
