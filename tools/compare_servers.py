#!/usr/bin/env python3
"""Compares two running servers of one model: chorus serve and llama-server.

    chorus serve MODEL.gguf --port 8080 --threads 2 --context 8192
    llama-server -m MODEL.gguf --port 8081 -t 2 -np 32 -c 65536 --kv-unified
    compare_servers.py http://127.0.0.1:8080 http://127.0.0.1:8081 [--rounds N] [--json FILE]

Each test is run once by each side, round after round; the other server idles meanwhile.

    gap      the longest time between two events of a stream while a prompt of 4000 tokens of
             someone else is read (seconds), and the median of the stream
    prefix   8 requests at once that begin with the same 1024 tokens, unknown until then, and go on
             with 16 of their own: prompt tokens that were computed, all together
    chats    32 chats at once with one system message of about 400 words: seconds until all have
             their 64 tokens

Prompts are token ids of ordinary vocabulary. Standard library only.
"""
import argparse
import concurrent.futures
import http.client
import json
import pathlib
import random
import statistics
import sys
import threading
import time
import urllib.parse

SIDES = ("chorus", "peer")
LONG_PROMPT, SHARED, OWN, SHARERS = 4000, 1024, 16, 8
CHATS, CHAT_TOKENS, SYSTEM_WORDS = 32, 64, 400
IDS = range(1000, 40000)
PATIENCE_S = 600
WORDS = "river light morning bread snow mountain green bird house forest music paper stone".split()


class Server:
    """Requests to one address; each opens a connection of its own. Thread: any."""

    def __init__(self, url: str):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port
        self.model = self.get("/v1/models")["data"][0]["id"]

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)

    def get(self, path: str) -> dict:
        connection = self.connect()
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())

    def send(self, path: str, body: dict) -> http.client.HTTPResponse:
        connection = self.connect()
        body = {"model": self.model, "temperature": 0, "ignore_eos": True} | body
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {response.read()[:300]}")
        return response

    def post(self, path: str, body: dict) -> dict:
        return json.loads(self.send(path, body).read())


def ids(rng: random.Random, count: int) -> list:
    return rng.choices(IDS, k=count)


def computed(usage: dict) -> int:
    """Prompt tokens whose KV was not at hand."""
    return usage["prompt_tokens"] - (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def measure_gap(server: Server, rng: random.Random) -> dict:
    times, enough = [], threading.Event()
    long_is_done = threading.Event()

    def read_stream() -> None:
        body = {"prompt": ids(rng, 32), "max_tokens": 2000, "stream": True}
        response = server.send("/v1/completions", body)
        for line in response:
            if line.startswith(b"data: {"):
                times.append(time.monotonic())
            if len(times) >= 20:
                enough.set()
            if long_is_done.is_set():
                break  # the connection is closed: the server stops

    reader = threading.Thread(target=read_stream)
    reader.start()
    enough.wait(PATIENCE_S)
    begin = time.monotonic()
    server.post("/v1/completions", {"prompt": ids(rng, LONG_PROMPT), "max_tokens": 1})
    end = time.monotonic()
    time.sleep(0.2)  # the event that waited for the last slice
    long_is_done.set()
    reader.join()
    gaps = [b - a for a, b in zip(times, times[1:]) if b >= begin and a <= end]
    return {"longest_s": max(gaps), "median_s": statistics.median(gaps), "prompt_s": end - begin}


def at_once(calls: list) -> list:
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def measure_prefix(server: Server, rng: random.Random) -> dict:
    shared = ids(rng, SHARED)
    bodies = [{"prompt": shared + ids(rng, OWN), "max_tokens": 1} for _ in range(SHARERS)]
    begin = time.monotonic()
    answers = at_once([lambda b=b: server.post("/v1/completions", b) for b in bodies])
    return {
        "computed_tokens": sum(computed(answer["usage"]) for answer in answers),
        "wall_s": time.monotonic() - begin,
    }


def measure_chats(server: Server, rng: random.Random) -> dict:
    system = " ".join(rng.choices(WORDS, k=SYSTEM_WORDS))
    bodies = [
        {
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": "Tell of " + " ".join(rng.choices(WORDS, k=6))},
            ],
            "max_tokens": CHAT_TOKENS,
        }
        for _ in range(CHATS)
    ]
    begin = time.monotonic()
    answers = at_once([lambda b=b: server.post("/v1/chat/completions", b) for b in bodies])
    wall = time.monotonic() - begin
    tokens = [answer["usage"]["completion_tokens"] for answer in answers]
    if tokens != [CHAT_TOKENS] * CHATS:
        raise RuntimeError(f"chats: expected {CHAT_TOKENS} tokens each, found {tokens}")
    return {"wall_s": wall}


TESTS = {"gap": measure_gap, "prefix": measure_prefix, "chats": measure_chats}


def main(words: list) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("chorus", help="its URL")
    parser.add_argument("peer", help="llama-server's URL")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--conditions", default="", help="processor, commits, flags: kept as they are")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    args = parser.parse_args(words)
    servers = {"chorus": Server(args.chorus), "peer": Server(args.peer)}
    found = {name: {side: [] for side in SIDES} for name in TESTS}
    for i in range(args.rounds):
        for name, measure in TESTS.items():
            for side in SIDES:
                result = measure(servers[side], random.Random(f"{args.seed} {i} {name}"))
                found[name][side].append(result)
                print(f"round {i + 1} {name:7} {side:7} {json.dumps(result)}", flush=True)
    if args.json is not None:
        report = {"type": "servers", "conditions": args.conditions, "rounds": args.rounds}
        args.json.write_text(json.dumps(report | {"tests": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
