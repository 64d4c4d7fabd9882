"""The part of the HTTP API that the page uses, with scripted answers and failures.

Tokens are counted, not made: three for a message, and one for each four characters begun.
"""
import http.server
import json
import pathlib
import re
import select
import socket
import sys
import threading
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "src/server/web"
sys.path.insert(0, str(SOURCE))
import embed  # noqa: E402

CONTEXT = 2048
DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "max_tokens": None}


def num_tokens(message):
    return 3 + (len(message["content"]) + 3) // 4


class Failure(Exception):
    def __init__(self, status, message, param=None, headers=()):
        super().__init__(message)
        self.status = status
        self.param = param
        self.headers = dict(headers)

    def body(self):
        return {"error": {"message": str(self), "type": "error", "param": self.param, "code": None}}


class MockApi:
    """A server on a port of its own. Tests set what it answers and look at `requests`."""

    def __init__(self):
        self.lock = threading.RLock()
        self.sessions = {}
        self.next_id = 0
        self.requests = []        # (method, path, body, headers)
        self.failures = []        # [pattern of "METHOD path", Failure], each once
        self.key = None
        self.max_sessions = 8
        self.pieces = None        # of the next answers; None: an answer to what was said
        self.pace_s = 0.0         # before each piece
        self.gate = None          # a semaphore: each piece waits for it
        self.finish = "stop"
        self.cut_after = None     # pieces after which the connection is closed
        self.raw = None           # bytes of streams, in place of pieces
        self.counters = {"generation_tokens_total": 0, "computed_tokens_total": 0,
                         "prompt_tokens_total": 0, "prefix_cache_queries_total": 0,
                         "prefix_cache_hits_total": 0, "num_preemptions_total": 0,
                         "evictions_total": 0}
        self.running = 0
        self.page, hashes = embed.put_together(SOURCE)
        self.policy = embed.policy(hashes)
        mock = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def handle(self):
                mock.connections.add(self.connection)
                try:
                    super().handle()
                except (ConnectionError, TimeoutError):
                    pass
                mock.connections.discard(self.connection)

            def do_GET(self):
                mock.answer(self)

            do_POST = do_DELETE = do_GET

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

        self.open_server = lambda port: Server(("127.0.0.1", port), Handler)
        self.server = None
        self.connections = set()
        self.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"

    def start(self):
        port = 0 if self.server is None else self.server.server_address[1]
        self.server = self.open_server(port)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended meanwhile

    # ---- Requests ----

    def sent(self, pattern):
        """The requests whose "METHOD path" matches."""
        with self.lock:
            return [each for each in self.requests
                    if re.fullmatch(pattern, f"{each[0]} {each[1]}")]

    def fail(self, pattern, status, message, **options):
        self.failures.append((pattern, Failure(status, message, **options)))

    def answer(self, handler):
        length = int(handler.headers.get("content-length", 0))
        body = json.loads(handler.rfile.read(length) or b"{}")
        name = f"{handler.command} {handler.path}"
        with self.lock:
            self.requests.append((handler.command, handler.path, body, dict(handler.headers)))
        try:
            if handler.path == "/":
                return self.reply(handler, 200, self.page, "text/html; charset=utf-8",
                                  {"content-security-policy": self.policy})
            for i, (pattern, failure) in enumerate(self.failures):
                if re.fullmatch(pattern, name):
                    del self.failures[i]
                    raise failure
            if handler.path != "/health" and self.key is not None:
                if handler.headers.get("authorization") != "Bearer " + self.key:
                    raise Failure(401, "the API key is not known")
            self.route(handler, name, body)
        except Failure as failure:
            self.reply(handler, failure.status, failure.body(), headers=failure.headers)

    def reply(self, handler, status, body, kind="application/json", headers=None):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("content-type", kind)
        handler.send_header("content-length", str(len(data)))
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    def route(self, handler, name, body):
        if name == "GET /health":
            return self.reply(handler, 200, {"status": "ok"})
        if name == "GET /metrics":
            return self.reply(handler, 200, self.metrics().encode(), "text/plain")
        if name == "GET /v1/models":
            return self.reply(handler, 200, {"object": "list", "data": [
                {"id": "scripted-model", "object": "model", "max_model_len": CONTEXT}]})
        if name == "GET /props":
            return self.reply(handler, 200, {"default_generation_settings": {"params": DEFAULTS}})
        if name == "GET /v1/sessions":
            with self.lock:
                return self.reply(handler, 200, {
                    "object": "list", "data": [self.summary(each) for each in self.sessions.values()]})
        if name == "POST /v1/sessions":
            return self.reply(handler, 200, self.facts(self.open([], 0)))
        if name == "POST /v1/chat/completions":
            return self.generate(handler, body, None)
        if match := re.fullmatch(r"(\w+) /v1/sessions/([\w-]+)(?:/(\w+))?", name):
            return self.session_route(handler, *match.groups(), body)
        raise Failure(404, "there is nothing at " + handler.path)

    # ---- Sessions ----

    def open(self, messages, tokens):
        with self.lock:
            if len(self.sessions) >= self.max_sessions:
                raise Failure(429, f"expected fewer than {self.max_sessions} held sessions",
                              param="sessions", headers={"retry-after": "1"})
            self.next_id += 1
            session = {"id": f"session-{self.next_id}", "messages": messages, "tokens": tokens,
                       "is_busy": False, "used": time.monotonic()}
            self.sessions[session["id"]] = session
            return session

    def facts(self, session):
        return {"id": session["id"], "object": "session", "created": 0,
                "is_busy": session["is_busy"], "idle_s": int(time.monotonic() - session["used"]),
                "tokens": session["tokens"], "pending_tokens": 0,
                "messages": [dict(each) for each in session["messages"]]}

    def summary(self, session):
        summary = self.facts(session)
        summary["num_messages"] = len(summary.pop("messages"))
        return summary

    def take(self, id_):
        with self.lock:
            session = self.sessions.get(id_)
            if session is None:
                raise Failure(404, "there is no session " + id_, param="session")
            if session["is_busy"]:
                raise Failure(409, "another request is at work in it", param="session")
            return session

    def session_route(self, handler, method, id_, action, body):
        with self.lock:
            if method == "GET" and action is None and id_ in self.sessions:
                return self.reply(handler, 200, self.facts(self.sessions[id_]))
            session = self.take(id_)
            if method == "DELETE":
                del self.sessions[id_]
                return self.reply(handler, 200, {"id": id_, "object": "session", "deleted": True})
            if action == "fork":
                at = body.get("at", session["tokens"])
                kept = [dict(each) for each in session["messages"] if each["end"] <= at]
                return self.reply(handler, 200, self.facts(self.open(kept, at)))
            if action != "generate":
                raise Failure(404, "there is nothing at " + handler.path)
            session["is_busy"] = True
        try:
            self.generate(handler, body, session)
        finally:
            with self.lock:
                session["is_busy"] = False
                session["used"] = time.monotonic()

    # ---- Answers ----

    def generate(self, handler, body, session):
        for name, (low, high) in {"temperature": (0, 100), "top_p": (1e-9, 1)}.items():
            if name in body and not low <= body[name] <= high:
                raise Failure(400, f"expected a number from {low} to {high}, found {body[name]}",
                              param=name)
        new = body.get("messages", [])
        held = [] if session is None else session["messages"]
        if not new and not held:
            raise Failure(400, "expected one: the session is empty", param="prompt")
        goes_on = not new and held[-1]["role"] == "assistant"
        kept = 0 if session is None else session["tokens"]
        prompt = max(kept, 1) if not new else kept + sum(map(num_tokens, new))
        cached = min(kept, prompt - 1)
        everything = [*held, *new]
        with self.lock:
            self.running += 1
            if session is not None:
                session["messages"] = held = [
                    *held, *({**each, "end": prompt} for each in new)]
                session["tokens"] = prompt
            self.counters["computed_tokens_total"] += prompt - cached
            self.counters["prompt_tokens_total"] += prompt
        pieces = self.pieces or re.findall(
            r"\S+\s*", f"Answer to: {everything[-1]['content']} (of {len(everything)} messages).")
        said = []
        try:
            self.stream(handler, body, pieces, said, session, prompt, cached, goes_on)
        finally:
            with self.lock:
                self.running -= 1
                if session is not None and said:
                    self.keep(session, "".join(said), prompt + len(said), goes_on)

    def keep(self, session, text, end, goes_on):
        if goes_on:
            text = session["messages"].pop()["content"] + text
        session["messages"].append({"role": "assistant", "content": text, "end": end})
        session["tokens"] = end

    def stream(self, handler, body, pieces, said, session, prompt, cached, goes_on):
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()

        def write(data):
            handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            handler.wfile.flush()

        def event(**members):
            write(b"data: " + json.dumps({"object": "chat.completion.chunk", **members}).encode() +
                  b"\n\n")

        if self.raw is not None:
            for piece in self.raw:
                write(piece)
                time.sleep(0.01)
            return handler.wfile.write(b"0\r\n\r\n")
        event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""},
                        "finish_reason": None}], usage=None)
        for i, piece in enumerate(pieces[:body.get("max_tokens")]):
            if self.cut_after is not None and i >= self.cut_after:
                handler.close_connection = True
                return handler.connection.shutdown(socket.SHUT_RDWR)
            if not self.may_go_on(handler):
                said += [piece] if said else []  # one more than the client got to know
                handler.close_connection = True
                return None
            said.append(piece)
            with self.lock:
                self.counters["generation_tokens_total"] += 1
                self.counters["computed_tokens_total"] += 1
            event(choices=[{"index": 0, "delta": {"content": piece}, "finish_reason": None}],
                  usage=None)
        is_cut = len(said) < len(pieces)
        event(choices=[{"index": 0, "delta": {}, "finish_reason": "length" if is_cut else self.finish}],
              usage=None)
        last = {"choices": [], "usage": {
            "prompt_tokens": prompt, "completion_tokens": len(said),
            "total_tokens": prompt + len(said), "prompt_tokens_details": {"cached_tokens": cached}}}
        if session is not None:
            with self.lock:
                self.keep(session, "".join(said), prompt + len(said), goes_on)
                last["session"] = self.facts(session)
                session["is_busy"] = False
            said.clear()
        event(**last)
        write(b"data: [DONE]\n\n")
        return handler.wfile.write(b"0\r\n\r\n")

    def may_go_on(self, handler):
        """Waits for the next piece; false when the client has left meanwhile."""
        end = time.monotonic() + self.pace_s
        while True:
            readable, _, _ = select.select([handler.connection], [], [], 0)
            if readable and not handler.connection.recv(1, socket.MSG_PEEK):
                return False
            if self.gate is not None:
                if self.gate.acquire(timeout=0.02):
                    return True
            elif time.monotonic() >= end:
                return True
            else:
                time.sleep(min(0.02, max(end - time.monotonic(), 0)))

    def metrics(self):
        label = '{model_name="scripted \\"model\\""}'
        held = sum((each["tokens"] + 15) // 16 for each in self.sessions.values())
        lines = ["# HELP chorus_kv_blocks KV blocks of each layer group, by who has them.",
                 "# TYPE chorus_kv_blocks gauge",
                 f'chorus_kv_blocks{{model_name="m",group="0",state="held"}} {held}',
                 'chorus_kv_blocks{model_name="m",group="0",state="cached"} 40',
                 f'chorus_kv_blocks{{model_name="m",group="0",state="free"}} {216 - held}',
                 f"chorus_num_requests_running{label} {self.running}",
                 f"chorus_num_requests_waiting{label} 0",
                 f"chorus_sessions{label} {len(self.sessions)}"]
        lines += [f"chorus_{name}{label} {value}" for name, value in self.counters.items()]
        return "\n".join(lines) + "\n"
