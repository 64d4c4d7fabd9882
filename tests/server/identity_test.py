#!/usr/bin/env python3
"""Bits over HTTP: 64 streams with seeds at once give what each of them gives alone."""

import contextlib
import random
import threading

import serving
import support
from serving import ServerTest

NUM_STREAMS = 64
WORDS = "the sea snow a dragon bread seven why green mountain of and sings never".split()


def request_of(model: str, number: int) -> dict:
    """One of many kinds: greedy, sampled, with several choices, with logprobs; of all lengths."""
    rng = random.Random(f"{support.seed()}/{number}")
    body = {
        "model": model,
        "prompt": " ".join(rng.choices(WORDS, k=rng.randrange(1, 40))),
        "max_tokens": rng.randrange(1, 40),
        "seed": rng.randrange(1 << 60),
        "temperature": rng.choice([0, 0.7, 1, 1.5]),
        "ignore_eos": number % 3 != 0,
    }
    if number % 4 == 1:
        body |= {"top_p": 0.9, "top_k": 40}
    if number % 4 == 2:
        body |= {"logprobs": 3}
    if number % 8 == 3:
        body |= {"n": 3, "temperature": 1}
    return body


def stream(server, body: dict) -> dict:
    """Everything that must not depend on others, by choice."""
    choices = {}
    with contextlib.closing(server.connect()) as connection:
        for event in serving.events(serving.open_stream(connection, "/v1/completions", body)):
            if "error" in event:
                raise AssertionError(event["error"])
            for choice in event["choices"]:
                one = choices.setdefault(
                    choice["index"], {"text": "", "tokens": [], "logprobs": [], "top": [], "end": None}
                )
                one["text"] += choice["text"]
                one["end"] = choice["finish_reason"] or one["end"]
                if logprobs := choice.get("logprobs"):
                    one["tokens"] += logprobs["tokens"]
                    one["logprobs"] += logprobs["token_logprobs"]
                    one["top"] += logprobs["top_logprobs"]
    return choices


class IdentityTest(ServerTest):
    def test_streams_at_once_equal_the_same_alone(self):
        server = self.serve("--max-sessions", "96")
        requests = [request_of(server.model, number) for number in range(NUM_STREAMS)]
        together = [None] * NUM_STREAMS
        start = threading.Barrier(NUM_STREAMS)

        def run(number: int) -> None:
            start.wait()
            try:
                together[number] = stream(server, requests[number])
            except Exception as error:  # shown below, with the request
                together[number] = error

        threads = [threading.Thread(target=run, args=(n,)) for n in range(NUM_STREAMS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        metrics = server.wait_idle()
        steps = metrics.value("chorus_steps_total")
        tokens = metrics.value("chorus_generation_tokens_total")
        self.assertGreater(tokens / steps, 2, "the streams did not meet")
        for number, body in enumerate(requests):
            self.assertEqual(stream(server, body), together[number], body)
        serving.say(
            f"{NUM_STREAMS} streams at once ({tokens:.0f} tokens in {steps:.0f} steps) equal the same alone"
        )

    def test_stream_and_whole_answer_are_one(self):
        server = self.serve()
        for number in range(12):
            body = request_of(server.model, number)
            whole = server.post("/v1/completions", body)
            streamed = stream(server, body)
            self.assertEqual(len(whole["choices"]), len(streamed))
            for choice in whole["choices"]:
                one = streamed[choice["index"]]
                self.assertEqual(choice["text"], one["text"], body)
                self.assertEqual(choice["finish_reason"], one["end"], body)
                if logprobs := choice["logprobs"]:
                    self.assertEqual(logprobs["token_logprobs"], one["logprobs"], body)
                    self.assertEqual(logprobs["tokens"], one["tokens"], body)


if __name__ == "__main__":
    support.main()
