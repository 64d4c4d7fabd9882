#!/usr/bin/env python3
"""GET /metrics through the parser of Prometheus's own Python library, and the counts beside what was
asked for. Checks what the format asks beyond its grammar: a type and a help for each family, buckets
that only grow and end in +Inf with the count."""

import collections

from prometheus_client.parser import text_string_to_metric_families

import serving
import support
from serving import ServerTest


class PrometheusTest(ServerTest):
    def families(self, server) -> dict:
        answer = server.ask("GET", "/metrics")
        self.assertEqual("text/plain; version=0.0.4; charset=utf-8", answer.headers["content-type"])
        found = {}
        for family in text_string_to_metric_families(answer.text):
            self.assertNotIn(family.name, found, "a family is there twice")
            found[family.name] = family
        return found

    def check_shape(self, families: dict) -> None:
        for family in families.values():
            self.assertIn(family.type, ("counter", "gauge", "histogram"), family.name)
            self.assertTrue(family.documentation, family.name)
            self.assertTrue(family.samples, family.name)
            seen = set()
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                self.assertNotIn(key, seen)
                seen.add(key)
            if family.type == "histogram":
                self.check_histogram(family)

    def check_histogram(self, family) -> None:
        buckets, counts = collections.defaultdict(list), {}
        for sample in family.samples:
            labels = dict(sample.labels)
            bound = labels.pop("le", None)
            key = tuple(sorted(labels.items()))
            if sample.name.endswith("_bucket"):
                buckets[key].append((float(bound), sample.value))
            elif sample.name.endswith("_count"):
                counts[key] = sample.value
        self.assertEqual(set(buckets), set(counts), family.name)
        for key, pairs in buckets.items():
            self.assertEqual(sorted(pairs), pairs, family.name)
            values = [value for _, value in pairs]
            self.assertEqual(sorted(values), values, family.name)
            self.assertEqual((float("inf"), counts[key]), pairs[-1], family.name)

    def test_parsed_and_true(self):
        for words, prefix in [([], "chorus_"), (["--vllm-metric-names"], "vllm:")]:
            server = self.serve(*words)
            self.check_shape(self.families(server))
            prompts = [[5] * 40, [6] * 7, [5] * 40]
            generated = 0
            for prompt in prompts:
                done = server.post(
                    "/v1/completions",
                    {"model": server.model, "prompt": prompt, "max_tokens": 6, "n": 2, "ignore_eos": True},
                )
                generated += done["usage"]["completion_tokens"]
            families = self.families(server)
            self.check_shape(families)

            def value(name: str, **labels) -> float:
                # The names of families have no endings.
                family = families[name.removesuffix("_total").removesuffix("_count")]
                (found,) = [
                    sample.value
                    for sample in family.samples
                    if sample.name == name and labels.items() <= sample.labels.items()
                ]
                return found

            self.assertEqual(generated, value(prefix + "generation_tokens_total"))
            self.assertEqual(6, value(prefix + "request_success_total", finished_reason="length"))
            self.assertEqual(6, value(prefix + "time_to_first_token_seconds_count"))
            self.assertEqual(0, value(prefix + "num_requests_running"))
            self.assertGreater(value(prefix + "prefix_cache_hits_total"), 0)
            self.assertEqual(3, value("chorus_http_requests_total", status="200") - 1)
            serving.say(f"{len(families)} families with {prefix} are what Prometheus expects")
            server.kill()


if __name__ == "__main__":
    support.main()
