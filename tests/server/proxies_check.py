#!/usr/bin/env python3
"""nginx and HAProxy in front, set up as docs/operating.md says: streams are not held back, a client
that leaves is noticed in every phase, and connections to the server are kept."""

import contextlib
import os
import json
import random
import re
import shutil
import signal
import socket
import subprocess
import time

import serving
import support
from serving import ROOT, ServerTest

PAGE = ROOT / "docs" / "operating.md"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return found


def replaced(text: str, old: str, new: str) -> str:
    assert old in text, f"{PAGE.name} does not have {old!r}"
    return text.replace(old, new)


class ProxyTest(ServerTest):
    def setUp(self):
        super().setUp()
        self.server = self.serve()

    def start(self, program: str, words: list) -> None:
        path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
        self.assertTrue(path, f"{program} is not installed")
        log = open(self.folder / f"{program}.log", "wb")
        self.addCleanup(log.close)
        process = subprocess.Popen([path, *words], stdout=log, stderr=log, cwd=self.folder)

        def end() -> None:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=serving.PATIENCE_S)

        self.addCleanup(end)
        until = time.monotonic() + serving.PATIENCE_S
        while True:
            self.assertIsNone(process.poll(), (self.folder / f"{program}.log").read_text())
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            self.assertLess(time.monotonic(), until)
            time.sleep(0.02)

    def nginx(self) -> None:
        self.port = free_port()
        text = replaced(block("nginx"), "127.0.0.1:8080", f"127.0.0.1:{self.server.port}")
        text = replaced(text, "listen 80;", f"listen 127.0.0.1:{self.port};")
        temporary = "".join(f"{kind}_temp_path {self.folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        path = self.folder / "nginx.conf"
        user = "user root;\n" if os.geteuid() == 0 else ""
        path.write_text(
            f"{user}daemon off;\npid {self.folder}/nginx.pid;\nerror_log stderr;\nevents {{}}\n"
            f"http {{\naccess_log off;\n{temporary}{text}}}\n"
        )
        self.start("nginx", ["-c", str(path), "-p", str(self.folder)])

    def haproxy(self) -> None:
        self.port = free_port()
        text = replaced(block("haproxy"), "127.0.0.1:8080", f"127.0.0.1:{self.server.port}")
        text = replaced(text, "bind :80", f"bind 127.0.0.1:{self.port}")
        path = self.folder / "haproxy.cfg"
        path.write_text(text)
        self.start("haproxy", ["-f", str(path), "-db"])

    # ---- What is asked ----

    def request(self, tokens: int) -> dict:
        return {"model": self.server.model, "prompt": "The sea is", "max_tokens": tokens, "ignore_eos": True}

    def long_request(self) -> dict:
        return self.request(400 if serving.is_tiny() else 1000)

    def first_byte_ms(self, port: int) -> tuple:
        """Until the first event of a stream, and until its end."""
        with contextlib.closing(self.server.connect(port)) as connection:
            connection.connect()
            begin = time.monotonic()
            stream = serving.events(serving.open_stream(connection, "/v1/completions", self.request(64)))
            next(stream)
            first = time.monotonic() - begin
            number = 1 + sum(1 for _ in stream)
            whole = time.monotonic() - begin
        self.assertGreater(number, 10)
        return first * 1000, whole * 1000

    def check_stream(self, name: str) -> None:
        direct, through = [], []
        for _ in range(3):
            direct.append(self.first_byte_ms(self.server.port))
            through.append(self.first_byte_ms(self.port))
        best_direct, best_through = min(direct), min(through)
        serving.say(
            f"{name}: first event after {best_through[0]:.1f} ms of {best_through[1]:.1f} ms"
            f" (direct: {best_direct[0]:.1f} of {best_direct[1]:.1f})"
        )
        # Whoever gathers a stream shows its first event at its end.
        self.assertTrue(any(first < whole / 2 for first, whole in through), through)

    def check_leaving(self, name: str) -> None:
        """In the queue, in the prompt, and in mid-stream."""
        noticed = {}
        longest = 400 if serving.is_tiny() else 1500
        tokens = support.random_ids(random.Random(support.seed()), support.TIED, longest)
        for phase, body, events_before in [
            ("in the prompt", {"prompt": tokens, "max_tokens": 1, "n": 1}, 0),
            ("unstreamed", self.long_request() | {"stream": False}, None),
            ("in mid-stream", self.long_request(), 3),
        ]:
            body = {"model": self.server.model, "ignore_eos": True} | body
            left = self.server.metrics().value("chorus_http_clients_left_total")
            for _ in range(20):  # one that ended before its client left says nothing
                connection = self.server.connect(self.port)
                if events_before is None:
                    connection.request("POST", "/v1/completions", json.dumps(body), serving.JSON_TYPE)
                    time.sleep(0.02)
                else:
                    connection.request(
                        "POST", "/v1/completions", json.dumps(body | {"stream": True}), serving.JSON_TYPE
                    )
                    if events_before:
                        response = connection.getresponse()
                        stream = serving.events(response)
                        for _ in range(events_before):
                            next(stream)
                        response.close()
                    else:
                        time.sleep(0.01)
                begin = time.monotonic()
                connection.close()
                metrics = self.server.wait_idle()
                if metrics.value("chorus_http_clients_left_total") > left:
                    noticed[phase] = (time.monotonic() - begin) * 1000
                    break
        self.assertEqual({"in the prompt", "unstreamed", "in mid-stream"}, set(noticed), name)
        shown = ", ".join(f"{phase} {ms:.0f} ms" for phase, ms in noticed.items())
        serving.say(f"{name}: a client that left was noticed, and all it held was free: {shown}")

    def check_kept(self, name: str) -> None:
        """One connection of a client stays, and so do those to the server."""
        before = self.server.metrics().value("chorus_http_connections_total")
        with contextlib.closing(self.server.connect(self.port)) as connection:
            for _ in range(40):
                answer = serving.ask_through(connection, "GET", "/v1/models")
                self.assertEqual(200, answer.status)
                own = connection.sock
                self.assertIsNotNone(own, "the proxy closed the connection")
        opened = self.server.metrics().value("chorus_http_connections_total") - before
        serving.say(f"{name}: 40 requests of one client opened {opened - 1:.0f} more connections to the server")
        self.assertLess(opened, 20)

    def check_errors(self) -> None:
        with contextlib.closing(self.server.connect(self.port)) as connection:
            answer = serving.ask_through(connection, "POST", "/v1/completions", {"model": self.server.model, "prompt": "a", "n": 0})
            self.assertEqual((400, "n"), (answer.status, answer.json["error"]["param"]))
            self.assertTrue(answer.headers["x-request-id"])

    def check(self, name: str) -> None:
        self.check_errors()
        self.check_stream(name)
        self.check_kept(name)
        self.check_leaving(name)

    def test_nginx(self):
        self.nginx()
        self.check("nginx")

    def test_haproxy(self):
        self.haproxy()
        self.check("HAProxy")


if __name__ == "__main__":
    support.main()
