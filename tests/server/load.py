#!/usr/bin/env python3
"""Load on a running server: N clients or Poisson arrivals, prompts and answers of mixed lengths, for
a time. Prints times to the first token and between tokens as clients see them and as the server's
histograms say, answers by status, and how busy others kept the machine.

  tests/server/load.py http://127.0.0.1:8080 --clients 128 --seconds 600 --json load.json

One thread and plain sockets, so that it can share a machine with the server (taskset -c 1). Python's
standard library only.

Words: TTFT is from the sending of the request to its first event that holds a token, ITL the time
between two events of a stream (an event may hold several tokens), TPOT (last event - first) /
(tokens - 1) of a request, E2EL from sending to the end. A whole answer without text is completed and
has no TTFT, ITL or TPOT. A percentile is the smallest value that so many hundredths do not exceed; of
the server's histograms the upper bound of the bucket it lies in.
"""

import argparse
import contextlib
import http.client
import json
import math
import pathlib
import random
import re
import selectors
import socket
import sys
import time
import urllib.parse

WORDS = (
    "the sea is a river of light and every morning people walk along its edge to look for bread"
    " snow falls on the mountain while seven green birds sing about an old house near the forest"
).split()
LONGEST_HEAD = 64 << 10


class Mix:
    """Requests: lengths are drawn log-uniformly, so that short ones are many and long ones there."""

    def __init__(self, args):
        self.args = args
        self.rng = random.Random(args.seed)
        self.shared = self.text(args.shared_prefix)

    def text(self, words: int) -> str:
        return " ".join(self.rng.choices(WORDS, k=words))

    def length(self, bounds: tuple) -> int:
        low, high = bounds
        return round(math.exp(self.rng.uniform(math.log(low), math.log(high))))

    def body(self) -> dict:
        args = self.args
        prompt = (self.shared + " " + self.text(self.length(args.prompt_words))).strip()
        body = {
            "model": args.model,
            "max_tokens": self.length(args.answer_tokens),
            "temperature": self.rng.choice([0, 1]),
            "seed": self.rng.randrange(1 << 32),
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if args.chat:
            return body | {"messages": [{"role": "user", "content": prompt}]}
        return body | {"prompt": prompt}


class Client:
    """One request on its own connection; keeps the times of its events."""

    def __init__(self, address: tuple, path: str, host: str, key: str, body: dict):
        text = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"connection: close\r\ncontent-length: {len(text)}\r\n"
        )
        if key:
            head += f"authorization: Bearer {key}\r\n"
        self.unsent = head.encode() + b"\r\n" + text
        self.begin = time.monotonic()
        self.times, self.status, self.tokens = [], 0, 0
        self.is_chunked = self.is_whole = self.has_error = False
        self.rest = b""
        self.lines = b""
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(address)

    def write(self) -> bool:
        """False once all is sent."""
        self.unsent = self.unsent[self.socket.send(self.unsent) :]
        return bool(self.unsent)

    def read(self) -> bool:
        """False at the end of the answer."""
        data = self.socket.recv(256 << 10)
        now = time.monotonic()
        self.rest += data
        if self.status == 0:
            head, found, rest = self.rest.partition(b"\r\n\r\n")
            if not found:
                return bool(data) and len(self.rest) < LONGEST_HEAD
            self.status = int(head.split(b" ", 2)[1])
            self.is_chunked = b"transfer-encoding: chunked" in head.lower()
            self.rest = rest
        if self.status == 200:
            self.take_events(now)
        return bool(data) and not self.is_whole

    def take_events(self, now: float) -> None:
        for line in self.take_lines():
            if not line.startswith(b"data:"):
                continue
            if line == b"data: [DONE]":
                self.is_whole = True
                continue
            event = json.loads(line[5:])
            self.has_error |= "error" in event
            if usage := event.get("usage"):
                self.tokens = usage["completion_tokens"]
            if any(c.get("text") or c.get("delta", {}).get("content") for c in event.get("choices", [])):
                self.times.append(now)

    def take_lines(self) -> list:
        """Whole lines of the body, whose chunks are put together."""
        while self.is_chunked:
            size, found, rest = self.rest.partition(b"\r\n")
            if not found:
                break
            length = int(size, 16)
            if len(rest) < length + 2:
                break
            self.lines += rest[:length]
            self.rest = rest[length + 2 :]
            if length == 0:
                break
        if not self.is_chunked:
            self.lines, self.rest = self.lines + self.rest, b""
        *whole, self.lines = self.lines.split(b"\n")
        return [line.rstrip(b"\r") for line in whole]


def cpu_seconds() -> float:
    """Of all processes since the start of the machine."""
    words = pathlib.Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    user, nice, system, _, _, irq, softirq = map(int, words[1:8])
    return (user + nice + system + irq + softirq) / 100


def process_seconds(pid: int) -> float:
    words = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / 100


class Load:
    def __init__(self, args):
        self.args = args
        url = urllib.parse.urlsplit(args.url)
        self.address = (url.hostname, url.port or 80)
        self.host = url.netloc
        self.path = "/v1/chat/completions" if args.chat else "/v1/completions"
        self.mix = Mix(args)
        self.selector = selectors.DefaultSelector()
        self.running, self.peak = 0, 0
        self.done, self.statuses, self.failures = [], {}, {}

    def get(self, path: str) -> str:
        headers = {"authorization": f"Bearer {self.args.api_key}"} if self.args.api_key else {}
        with contextlib.closing(http.client.HTTPConnection(*self.address, timeout=60)) as connection:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8")
            if answer.status != 200:
                sys.exit(f"load: GET {path}: {answer.status} {text[:300]}")
            return text

    def start(self) -> None:
        client = Client(self.address, self.path, self.host, self.args.api_key, self.mix.body())
        self.selector.register(client.socket, selectors.EVENT_WRITE, client)
        self.running += 1
        self.peak = max(self.peak, self.running)

    def step(self, timeout: float) -> int:
        """Serves whoever is ready; how many requests ended."""
        ended = 0
        for key, _ in self.selector.select(max(0.0, timeout)):
            client = key.data
            try:
                if client.unsent:
                    if not client.write():
                        self.selector.modify(client.socket, selectors.EVENT_READ, client)
                    continue
                if client.read():
                    continue
            except OSError as error:
                self.failures[type(error).__name__] = self.failures.get(type(error).__name__, 0) + 1
            self.selector.unregister(client.socket)
            client.socket.close()
            client.end = time.monotonic()
            self.running -= 1
            ended += 1
            self.count(client)
        return ended

    def count(self, client: Client) -> None:
        self.statuses[client.status] = self.statuses.get(client.status, 0) + 1
        if client.status != 200:
            return
        if client.has_error or not client.is_whole:
            name = "error in stream" if client.has_error else "no end of stream"
            self.failures[name] = self.failures.get(name, 0) + 1
            return
        self.done.append(client)

    def run(self) -> None:
        args = self.args
        begin = time.monotonic()
        until = begin + args.seconds
        arrival = begin
        pauses = []  # when a client that was told to come again does so
        if not args.rate:
            for _ in range(args.clients):
                self.start()
        while (now := time.monotonic()) < until or self.running:
            if now > until + args.patience:
                self.failures["not ended"] = self.running
                return
            if args.rate:
                while arrival <= now and now < until:
                    if self.running < args.clients:
                        self.start()
                    else:
                        self.failures["no client free"] = self.failures.get("no client free", 0) + 1
                    arrival += self.mix.rng.expovariate(args.rate)
                self.step(min(arrival - now if now < until else 0.1, 0.1))
                continue
            refused = self.statuses.get(429, 0) + self.statuses.get(503, 0)
            ended = self.step(0.1)
            refused = self.statuses.get(429, 0) + self.statuses.get(503, 0) - refused
            now = time.monotonic()
            pauses += [now + args.retry_after] * refused
            due = sum(1 for at in pauses if at <= now)
            pauses = [at for at in pauses if at > now]
            if now < until:
                for _ in range(ended - refused + due):
                    self.start()


# ---- What came out ----


def percentile(values: list, share: float) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summary_of(values: list) -> dict:
    ms = [value * 1000 for value in values]
    return {
        "count": len(ms),
        "mean": sum(ms) / len(ms) if ms else None,
        "p50": percentile(ms, 0.5),
        "p99": percentile(ms, 0.99),
        "p99.9": percentile(ms, 0.999),
        "max": max(ms, default=None),
    }


def buckets_of(text: str, name: str) -> dict:
    """Cumulative counts by upper bound, of the histogram with whatever prefix."""
    found = re.findall(rf'^\w+[:_]{name}_bucket\{{[^}}]*le="([^"]+)"[^}}]*\}} (\S+)$', text, re.MULTILINE)
    return {float(bound): float(count) for bound, count in found}


def server_summary(before: str, after: str, name: str) -> dict:
    old, new = buckets_of(before, name), buckets_of(after, name)
    counts = {bound: count - old.get(bound, 0) for bound, count in new.items()}
    total = max(counts.values(), default=0)

    def bound_of(share: float) -> float | None:
        if total == 0:
            return None
        return min(bound for bound, count in counts.items() if count >= share * total) * 1000

    return {"count": total, "p50": bound_of(0.5), "p99": bound_of(0.99), "p99.9": bound_of(0.999), "max": bound_of(1)}


def counter(text: str, name: str) -> float:
    found = re.findall(rf"^\w+[:_]{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


def report_of(load: Load, seconds: float, before: str, after: str, foreign: float | None) -> dict:
    done = load.done
    gaps = [b - a for client in done for a, b in zip(client.times, client.times[1:])]
    tpot = [(c.times[-1] - c.times[0]) / (c.tokens - 1) for c in done if c.tokens > 1 and c.times]
    errors = {str(status): n for status, n in load.statuses.items()}
    tokens = sum(client.tokens for client in done)
    return {
        "duration_s": seconds,
        "completed": len(done),
        "without_text": sum(1 for client in done if not client.times),
        "statuses": errors,
        "statuses_4xx": sum(n for status, n in load.statuses.items() if 400 <= status < 500),
        "statuses_5xx": sum(n for status, n in load.statuses.items() if status >= 500),
        "failures": load.failures,
        "max_concurrent_requests": load.peak,
        "request_throughput": len(done) / seconds,
        "total_output_tokens": tokens,
        "output_throughput": tokens / seconds,
        "ttft_ms": summary_of([c.times[0] - c.begin for c in done if c.times]),
        "itl_ms": summary_of(gaps),
        "tpot_ms": summary_of(tpot),
        "e2el_ms": summary_of([c.end - c.begin for c in done]),
        "engine": {
            "ttft_ms": server_summary(before, after, "time_to_first_token_seconds"),
            "itl_ms": server_summary(before, after, "inter_token_latency_seconds"),
            "queue_ms": server_summary(before, after, "request_queue_time_seconds"),
            "step_ms": server_summary(before, after, "step_seconds"),
            "preemptions": counter(after, "num_preemptions_total") - counter(before, "num_preemptions_total"),
            "prefix_hits": counter(after, "prefix_cache_hits_total") - counter(before, "prefix_cache_hits_total"),
        },
        "foreign_load_cores": foreign,
    }


def shown(value) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def print_report(report: dict) -> None:
    print(f"{report['completed']} requests completed in {report['duration_s']:.0f} s, "
          f"{report['without_text']} of them without text, {report['output_throughput']:.1f} tokens/s, "
          f"at most {report['max_concurrent_requests']} at once")
    print(f"answers by status: {report['statuses']}; 4xx {report['statuses_4xx']}, 5xx {report['statuses_5xx']}"
          f"; failures: {report['failures'] or 'none'}")
    rows = [("TTFT", report["ttft_ms"]), ("ITL", report["itl_ms"]), ("TPOT", report["tpot_ms"]), ("E2EL", report["e2el_ms"])]
    engine = report["engine"]
    rows += [("engine's TTFT <=", engine["ttft_ms"]), ("engine's ITL <=", engine["itl_ms"]),
             ("engine's queue <=", engine["queue_ms"]), ("engine's step <=", engine["step_ms"])]
    print(f"{'ms':18}{'count':>10}{'p50':>10}{'p99':>10}{'p99.9':>10}{'max':>10}")
    for name, row in rows:
        print(f"{name:18}{row['count']:10.0f}" + "".join(f"{shown(row[key]):>10}" for key in ("p50", "p99", "p99.9", "max")))
    print(f"preemptions {engine['preemptions']:.0f}, tokens of prompts found in the prefix cache {engine['prefix_hits']:.0f}")
    if report["foreign_load_cores"] is not None:
        print(f"others kept {report['foreign_load_cores']:.2f} cores busy meanwhile")


def bounds(text: str) -> tuple:
    low, _, high = text.partition("-")
    found = int(low), int(high or low)
    if not 1 <= found[0] <= found[1]:
        raise argparse.ArgumentTypeError(f"expected LOW-HIGH, found {text}")
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of the server, on this machine")
    parser.add_argument("--clients", type=int, default=32, help="at once; each asks again when it is answered")
    parser.add_argument("--rate", type=float, help="Poisson arrivals a second, of at most --clients at once")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--patience", type=float, default=300, help="seconds for what still runs then")
    parser.add_argument("--retry-after", type=float, default=1, help="seconds that a refused client waits")
    parser.add_argument("--prompt-words", type=bounds, default=(8, 512), metavar="LOW-HIGH")
    parser.add_argument("--answer-tokens", type=bounds, default=(8, 256), metavar="LOW-HIGH")
    parser.add_argument("--shared-prefix", type=int, default=0, metavar="WORDS", help="that all prompts begin with")
    parser.add_argument("--chat", action="store_true", help="/v1/chat/completions in place of /v1/completions")
    parser.add_argument("--model", help="its name (default: the first that is served)")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--server-pid", type=int, help="whose use of the processor is not foreign")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--conditions", default="", help="what is served where, for readers of the report")
    parser.add_argument("--json", metavar="FILE", help="the report, too, as JSON")
    args = parser.parse_args()
    if urllib.parse.urlsplit(args.url).hostname not in ("127.0.0.1", "::1", "localhost"):
        parser.error("the server has to be on this machine's loopback")
    return args


def main() -> None:
    args = arguments()
    load = Load(args)
    args.model = args.model or json.loads(load.get("/v1/models"))["data"][0]["id"]
    before = load.get("/metrics")
    begin, cpu, own = time.monotonic(), cpu_seconds(), time.process_time()
    server = process_seconds(args.server_pid) if args.server_pid else 0.0
    load.run()
    seconds = time.monotonic() - begin
    foreign = None
    if args.server_pid:
        known = process_seconds(args.server_pid) - server + time.process_time() - own
        foreign = max(0.0, cpu_seconds() - cpu - known) / seconds
    report = report_of(load, seconds, before, load.get("/metrics"), foreign)
    print_report(report)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"type": "load", "arguments": vars(args)} | report, file, indent=1)
            file.write("\n")
    sys.exit(1 if report["statuses_5xx"] or report["failures"] else 0)


if __name__ == "__main__":
    main()
