#!/usr/bin/env python3
"""Clients that leave at random moments: in the queue, in the prompt, between tokens, while nothing
is streamed. Afterwards nothing runs, all blocks are free, and memory has not grown.

Environment: CHORUS_STORM is the number of clients (300).
"""

import json
import os
import random
import socket
import threading
import time

import serving
import support
from serving import ServerTest

NUM_THREADS = 24
LONGEST_STAY_S = 0.4
# What the allocator may keep of a storm: far below one leaked request in ten (each reads a prompt
# of kilobytes and holds its tokens).
ALLOWED_GROWTH = 8 << 20


def body_of(rng: random.Random, model: str, longest: int) -> dict:
    body = {
        "model": model,
        "prompt": [rng.randrange(support.NUM_SPECIAL, 250) for _ in range(rng.randrange(1, longest // 2))],
        "max_tokens": longest // 2,
        "ignore_eos": True,
        "temperature": rng.choice([0, 1]),
        "stream": rng.random() < 0.6,
        "n": rng.choice([1, 1, 1, 4]),
    }
    if rng.random() < 0.2:
        body["logprobs"] = 5
    if rng.random() < 0.2:
        body["priority"] = rng.randrange(3)
    return body


def stay_and_leave(port: int, rng: random.Random, body: dict) -> str:
    """How it left. A client that breaks off within its request is one of them."""
    text = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(text) + text
    with socket.create_connection(("127.0.0.1", port), timeout=serving.PATIENCE_S) as client:
        moment = rng.random()
        if moment < 0.1:
            client.sendall(request[: rng.randrange(len(request))])
            return "within the request"
        client.sendall(request)
        # How fast the server is decides where the others are caught, but not these.
        if moment < 0.3:
            return "at once"
        if moment < 0.5:
            return "at the first byte" if client.recv(1) else "after the end"
        client.settimeout(rng.uniform(0, LONGEST_STAY_S))
        until = time.monotonic() + client.gettimeout()
        read = 0
        try:
            while time.monotonic() < until:
                data = client.recv(4096)
                if not data:
                    return "after the end"
                read += len(data)
        except (TimeoutError, BlockingIOError):
            pass
        if rng.random() < 0.3:  # with a reset in place of an end
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        return "while it was answered" if read else "before the answer"


class StormTest(ServerTest):
    def storm(self, server, number: int, seed: str, longest: int) -> dict:
        left = {}
        lock = threading.Lock()
        numbers = iter(range(number))

        def run() -> None:
            while True:
                with lock:
                    each = next(numbers, None)
                if each is None:
                    return
                rng = random.Random(f"{seed}/{each}")
                how = stay_and_leave(server.port, rng, body_of(rng, server.model, longest))
                with lock:
                    left[how] = left.get(how, 0) + 1

        threads = [threading.Thread(target=run) for _ in range(NUM_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return left

    def test_clients_that_leave(self):
        number = int(os.environ.get("CHORUS_STORM", "300"))
        # Few places, so that many leave while they wait.
        server = self.serve("--max-sessions", "16", "--queue", "64")
        longest = 256
        witness = {"model": server.model, "prompt": "the sea", "max_tokens": 16, "temperature": 0}
        expected = server.post("/v1/completions", witness)["choices"]
        self.storm(server, number // 2, f"{support.seed()}/first", longest)  # what grows once, grows here
        server.wait_idle()
        before = server.resident_bytes()
        left = self.storm(server, number, f"{support.seed()}/second", longest)
        metrics = server.wait_idle()
        after = server.resident_bytes()
        self.assertEqual(number, sum(left.values()))
        self.assertGreater(left["at once"], number // 10, left)
        self.assertGreater(left["at the first byte"], number // 10, left)
        self.assertGreater(metrics.value("chorus_http_clients_left_total"), number // 10)
        self.assertLess(after - before, ALLOWED_GROWTH, "memory grew in a storm")
        self.assertEqual(expected, server.post("/v1/completions", witness)["choices"])
        serving.say(
            f"{number} clients left: {left}; then nothing runs, no block is held, own memory"
            f" {before >> 20} -> {after >> 20} MiB"
        )


if __name__ == "__main__":
    support.main()
