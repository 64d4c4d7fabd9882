#!/usr/bin/env python3
"""The official Python client, unmodified: every call that the server offers."""

import asyncio
import http.server
import json
import threading
import time

import openai

import serving
import support
from serving import ServerTest

MESSAGES = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": [{"type": "text", "text": "Name a fruit."}]},
]
PROMPT = "The sea is"


class Refuses(http.server.BaseHTTPRequestHandler):
    """Forwards to the server, whose answer to the first tries is replaced."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        plan = self.server.plan
        plan["tries"] += 1
        if plan["tries"] <= plan["refusals"]:
            answer = plan["answer"]
            status, text, headers = answer.status, answer.text.encode(), answer.headers
        else:
            real = plan["server"].ask("POST", self.path, json.loads(body))
            status, text, headers = real.status, real.text.encode(), real.headers
        self.send_response(status)
        for name, value in headers.items():
            if name in ("content-type", "retry-after", "retry-after-ms", "x-should-retry"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


class OpenAiTest(ServerTest):
    @classmethod
    def setUpClass(cls):
        cls.server = serving.Server("--api-key", "secret", "--open-metrics")
        cls.addClassCleanup(cls.server.kill)
        cls.model = cls.server.model
        cls.client = openai.OpenAI(base_url=cls.server.base_url() + "/v1", api_key="secret", max_retries=0)
        serving.say(f"openai {openai.__version__} from PyPI, model {cls.model}")

    def chat(self, **fields):
        given = {"model": self.model, "messages": MESSAGES, "max_tokens": 12} | fields
        return self.client.chat.completions.create(**given)

    def complete(self, **fields):
        given = {"model": self.model, "prompt": PROMPT, "max_tokens": 12} | fields
        return self.client.completions.create(**given)

    def test_models(self):
        listed = self.client.models.list()
        self.assertEqual([self.model], [model.id for model in listed])
        one = self.client.models.retrieve(self.model)
        self.assertEqual((self.model, "model"), (one.id, one.object))
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.models.retrieve("another")
        self.assertEqual("model_not_found", caught.exception.code)

    def test_chat(self):
        done = self.chat(seed=1)
        self.assertTrue(done.id.startswith("chatcmpl-"))
        self.assertEqual("chat.completion", done.object)
        self.assertLess(abs(time.time() - done.created), 600)
        self.assertEqual(self.model, done.model)
        (choice,) = done.choices
        self.assertEqual("assistant", choice.message.role)
        self.assertIn(choice.finish_reason, ("stop", "length"))
        usage = done.usage
        self.assertGreater(usage.prompt_tokens, 5)
        self.assertLessEqual(usage.completion_tokens, 12)
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertGreaterEqual(usage.prompt_tokens_details.cached_tokens, 0)
        self.assertTrue(done.system_fingerprint)
        self.assertTrue(done._request_id)

    def test_chat_stream(self):
        for n in (1, 3):
            fields = {"seed": 7, "n": n, "temperature": 1.0}
            whole = self.chat(**fields)
            chunks = list(self.chat(stream=True, stream_options={"include_usage": True}, **fields))
            self.assertEqual(1, len({(c.id, c.created, c.model, c.object) for c in chunks}))
            self.assertEqual("chat.completion.chunk", chunks[0].object)
            self.assertEqual([], chunks[-1].choices)
            self.assertEqual(whole.usage.completion_tokens, chunks[-1].usage.completion_tokens)
            self.assertEqual(whole.usage.prompt_tokens, chunks[-1].usage.prompt_tokens)
            self.assertTrue(all(c.usage is None for c in chunks[:-1]))
            texts, ends, first = {}, {}, set()
            for chunk in chunks[:-1]:
                (choice,) = chunk.choices
                if choice.index not in first:
                    self.assertEqual("assistant", choice.delta.role)
                    first.add(choice.index)
                else:
                    self.assertIsNone(choice.delta.role)
                texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
                self.assertNotIn(choice.index, ends, "something behind the end of a choice")
                if choice.finish_reason:
                    ends[choice.index] = choice.finish_reason
            self.assertEqual({c.index: c.message.content for c in whole.choices}, texts)
            self.assertEqual({c.index: c.finish_reason for c in whole.choices}, ends)
        self.assertTrue(all(c.choices for c in self.chat(stream=True)), "usage was not asked for")

    def test_chat_stream_helper(self):
        """The client's own accumulator, which is strict about the order of events."""
        with self.client.chat.completions.stream(
            model=self.model, messages=MESSAGES, max_tokens=8, seed=3, logprobs=True
        ) as stream:
            kinds = [event.type for event in stream]
            try:
                final = stream.get_final_completion()
            except openai.LengthFinishReasonError as error:  # what the helper makes of max_tokens
                final = error.completion
        self.assertIn("content.delta", kinds)
        self.assertEqual(self.chat(max_tokens=8, seed=3).choices[0].message.content, final.choices[0].message.content)

    def test_chat_logprobs(self):
        done = self.chat(logprobs=True, top_logprobs=3, temperature=0)
        content = done.choices[0].logprobs.content
        self.assertEqual(done.usage.completion_tokens, len(content) + (done.choices[0].finish_reason == "stop"))
        for token in content:
            self.assertEqual(3, len(token.top_logprobs))
            self.assertEqual(token.logprob, token.top_logprobs[0].logprob, "greedy takes the likeliest")
            order = [each.logprob for each in token.top_logprobs]
            self.assertEqual(sorted(order, reverse=True), order)
            self.assertLessEqual(token.logprob, 0)
        text = b"".join(bytes(token.bytes) for token in content).decode("utf-8", "replace")
        self.assertTrue(text.startswith(done.choices[0].message.content), text)
        bare = self.chat(logprobs=True, temperature=0).choices[0].logprobs.content
        self.assertEqual([t.logprob for t in content], [t.logprob for t in bare])
        self.assertEqual([], bare[0].top_logprobs)
        self.assertIsNone(self.chat().choices[0].logprobs)

    def test_completions(self):
        done = self.complete(seed=2)
        self.assertEqual("text_completion", done.object)
        chunks = list(self.complete(seed=2, stream=True))
        self.assertEqual({"text_completion"}, {chunk.object for chunk in chunks})
        self.assertEqual(done.choices[0].text, "".join(c.choices[0].text for c in chunks))
        echo = self.complete(seed=2, echo=True).choices[0].text
        self.assertEqual(PROMPT + done.choices[0].text, echo)
        prompts = ["The sea", "Snow", "Bread"]
        many = self.complete(prompt=prompts, n=2, temperature=0)
        self.assertEqual(list(range(6)), [choice.index for choice in many.choices])
        for i, prompt in enumerate(prompts):
            alone = self.complete(prompt=prompt, temperature=0).choices[0].text
            self.assertEqual([alone] * 2, [c.text for c in many.choices[2 * i : 2 * i + 2]])
        best = self.complete(best_of=3, n=1, seed=5)
        self.assertEqual(1, len(best.choices))

    def test_prompts_of_ids(self):
        ids = self.server.post("/tokenize", {"prompt": PROMPT}, {"authorization": "Bearer secret"})["tokens"]
        text = self.complete(temperature=0).choices[0].text
        self.assertEqual(text, self.complete(prompt=ids, temperature=0).choices[0].text)
        both = self.complete(prompt=[ids, ids[:2]], temperature=0).choices
        self.assertEqual(text, both[0].text)
        self.assertEqual(2, len(both))

    def test_completions_logprobs(self):
        echo = self.complete(echo=True, logprobs=2, max_tokens=0)
        logprobs = echo.choices[0].logprobs
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertEqual(echo.usage.prompt_tokens, len(logprobs.tokens))
        self.assertEqual(0, echo.usage.completion_tokens)
        self.assertEqual(PROMPT, echo.choices[0].text)
        self.assertTrue(all(value <= 0 for value in logprobs.token_logprobs[1:]))
        more = self.complete(echo=True, logprobs=2, max_tokens=3, temperature=0).choices[0].logprobs
        self.assertEqual(logprobs.token_logprobs, more.token_logprobs[: len(logprobs.tokens)])
        self.assertEqual(sorted(more.text_offset), more.text_offset)

    def test_stop(self):
        text = self.complete(temperature=0, max_tokens=24).choices[0].text
        for begin in range(1, len(text) - 4, 3):
            stop = text[begin : begin + 3]
            expected = text[: text.index(stop)]
            for stream in (False, True):
                done = self.complete(temperature=0, max_tokens=24, stop=[stop, "\0never"], stream=stream)
                found = done.choices[0] if not stream else None
                pieces = [chunk.choices[0] for chunk in done] if stream else [found]
                self.assertEqual(expected, "".join(piece.text for piece in pieces), (text, stop))
                self.assertEqual("stop", pieces[-1].finish_reason)

    def test_seeds(self):
        def texts(**fields):
            return [choice.text for choice in self.complete(n=4, max_tokens=16, temperature=1.2, **fields).choices]

        self.assertEqual(texts(seed=11), texts(seed=11))
        self.assertNotEqual(texts(seed=11), texts(seed=12))
        self.assertEqual(4, len(set(texts(seed=11))), "choices of one seed differ")
        self.assertNotEqual(texts(), texts(), "without a seed each request draws one")

    def test_parameters(self):
        """Parameters of others than OpenAI are taken by both routes."""
        text = self.complete(temperature=0).choices[0].text
        self.assertEqual(text, self.complete(temperature=1, extra_body={"top_k": 1}).choices[0].text)
        self.assertEqual(text, self.complete(temperature=1, top_p=1e-6).choices[0].text)
        self.assertEqual(text, self.complete(temperature=1, extra_body={"min_p": 1.0}).choices[0].text)
        for name, value in [
            ("priority", 1),
            ("deadline_ms", 600_000),
            ("cache_salt", "a"),
            ("stop_token_ids", [5]),
            ("top_k", 5),
            ("prompt_logprobs", 1),
            ("ignore_eos", True),
        ]:
            with self.subTest(name):
                self.complete(extra_body={name: value})
                self.chat(extra_body={name: value})
        self.chat(user="somebody", metadata={"a": "b"}, store=False)

    def test_what_is_refused(self):
        big = 1 << 40
        for param, fields in [
            ("tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}),
            ("tool_choice", {"tool_choice": "required"}),
            ("response_format", {"response_format": {"type": "json_object"}}),
            ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}}),
            ("temperature", {"temperature": -1}),
            ("top_p", {"top_p": 2}),
            ("n", {"n": 0}),
            ("n", {"n": 1 << 20}),
            ("max_tokens", {"max_tokens": -1}),
            ("max_completion_tokens", {"max_tokens": openai.omit, "max_completion_tokens": 0}),
            ("presence_penalty", {"presence_penalty": 3}),
            ("frequency_penalty", {"frequency_penalty": -3}),
            ("logit_bias", {"logit_bias": {str(big): 1}}),
            ("logit_bias", {"logit_bias": {"x": 1}}),
            ("repetition_penalty", {"extra_body": {"repetition_penalty": 0}}),
            ("allowed_token_ids", {"extra_body": {"allowed_token_ids": [big]}}),
            ("top_logprobs", {"logprobs": True, "top_logprobs": 1000}),
            ("stop", {"stop": ""}),
            ("messages", {"messages": []}),
            ("top_k", {"extra_body": {"top_k": "many"}}),
            ("min_p", {"extra_body": {"min_p": 2}}),
            ("structured_outputs", {"extra_body": {"structured_outputs": {"choice": ["a"]}}}),
            ("stop_token_ids", {"extra_body": {"stop_token_ids": [big]}}),
        ]:
            with self.subTest(param=param, fields=str(fields)[:80]):
                with self.assertRaises(openai.BadRequestError) as caught:
                    self.chat(**fields)
                error = caught.exception
                self.assertTrue(error.param and error.param.startswith(param), f"{param}: {error}")
                self.assertEqual("invalid_request_error", error.type)
                self.assertTrue(error.code)
                self.assertTrue(error.request_id)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.chat(model="another")
        self.assertEqual(("model_not_found", "model"), (caught.exception.code, caught.exception.param))
        with self.assertRaises(openai.BadRequestError):
            self.complete(prompt=[[]])
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(prompt="the sea " * 20_000)
        self.assertTrue(caught.exception.param)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.responses.create(model=self.model, input="hello")
        self.assertEqual("unimplemented", caught.exception.code)
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model=self.model, input="hello")
        with self.assertRaises(openai.AuthenticationError) as caught:
            self.client.with_options(api_key="wrong").models.list()
        self.assertEqual("invalid_api_key", caught.exception.code)
        self.chat()  # nothing of all that hurt it

    def test_retries(self):
        """What the server says when it is full (429) or drains (503) makes clients come again."""
        full = serving.Server("--queue", "0", "--max-running", "1", "--max-sessions", "2")
        self.addCleanup(full.kill)
        holder = full.connect()
        self.addCleanup(holder.close)
        longest = 400 if serving.is_tiny() else 4000
        stream = serving.open_stream(
            holder, "/v1/completions", {"model": full.model, "prompt": "a", "max_tokens": longest, "ignore_eos": True}
        )
        stream.readline()
        refused = full.ask("POST", "/v1/completions", {"model": full.model, "prompt": "a", "max_tokens": 1})
        answers = [refused] if refused.status == 429 else []
        self.assertTrue(answers, f"expected 429, found {refused}")
        full.process.terminate()
        full.wait_for("draining")
        draining = full.ask("POST", "/v1/completions", {"model": full.model, "prompt": "a", "max_tokens": 1})
        self.assertEqual(503, draining.status, draining)
        holder.close()
        answers.append(draining)
        for answer in answers:
            self.assertIn("retry-after", answer.headers)
            for refusals, tries in [(2, 3), (3, 3)]:
                plan = {"tries": 0, "refusals": refusals, "answer": answer, "server": self.anonymous()}
                proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
                proxy.plan = plan
                threading.Thread(target=proxy.serve_forever, daemon=True).start()
                self.addCleanup(proxy.server_close)
                self.addCleanup(proxy.shutdown)
                client = openai.OpenAI(base_url=f"http://127.0.0.1:{proxy.server_port}/v1", api_key="-", max_retries=2)
                call = lambda: client.completions.create(model=self.model, prompt=PROMPT, max_tokens=2)
                if refusals == 2:
                    self.assertEqual(2, call().usage.completion_tokens)
                else:
                    kind = openai.RateLimitError if answer.status == 429 else openai.InternalServerError
                    with self.assertRaises(kind):
                        call()
                self.assertEqual(tries, plan["tries"])

    def anonymous(self):
        if not hasattr(OpenAiTest, "open_server"):
            OpenAiTest.open_server = serving.Server()
            OpenAiTest.addClassCleanup(OpenAiTest.open_server.kill)
        return OpenAiTest.open_server

    def test_leaving_in_mid_stream(self):
        longest = 400 if serving.is_tiny() else 2000
        for leave in ("close", "break"):
            stream = self.chat(stream=True, max_tokens=longest, extra_body={"ignore_eos": True}, n=2)
            for number, _ in enumerate(stream):
                if number == 5:
                    break
            stream.close()
            self.server.wait_idle()
        metrics = self.server.metrics()
        self.assertGreaterEqual(metrics.value("chorus_http_clients_left_total"), 2)

    def test_time_limit_of_the_client(self):
        longest = 400 if serving.is_tiny() else 4000
        with self.assertRaises(openai.APITimeoutError):
            self.chat(max_tokens=longest, n=4, timeout=0.05, extra_body={"ignore_eos": True})
        self.server.wait_idle()

    def test_asynchronous_client(self):
        async def all_at_once():
            async with openai.AsyncOpenAI(base_url=self.server.base_url() + "/v1", api_key="secret") as client:
                calls = [
                    client.completions.create(model=self.model, prompt=PROMPT, max_tokens=8, seed=seed)
                    for seed in range(16)
                ]
                return [done.choices[0].text for done in await asyncio.gather(*calls)]

        together = asyncio.run(all_at_once())
        alone = [self.complete(max_tokens=8, seed=seed).choices[0].text for seed in range(16)]
        self.assertEqual(alone, together)


if __name__ == "__main__":
    support.main()
