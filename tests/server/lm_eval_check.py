#!/usr/bin/env python3
"""lm-eval, unmodified, through /v1/completions with echo and logprobs: the log-likelihood of every
continuation, whether it is the greedy one, and the accuracy equal what the command line computes.

The model's own tokens come from the server (/tokenizer_info, /tokenize): nothing else is needed."""

import json
import os
import tempfile

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TQDM_DISABLE": "1"}
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="chorus_lm_eval_")

import lm_eval  # noqa: E402  reads the environment above
from lm_eval.tasks import TaskManager  # noqa: E402

import serving
import support
from serving import ServerTest

# Contexts are longer than continuations: the command line scores the second half of a window.
QUESTIONS = [
    ("The capital of France is the city of", [" Paris", " Rome", " Berlin"], 0),
    ("Bees fly from flower to flower and then they make", [" steel", " honey", " snow"], 1),
    ("Water that is colder than zero degrees turns into", [" fire", " wood", " ice"], 2),
    ("The opposite of hot, as every child knows, is", [" cold", " loud"], 0),
    ("In the night one sees the moon and the", [" stars", " lunch", " carpets", " sun"], 0),
    ("Three and four together are, when one counts them,", [" seven", " twelve"], 0),
    ("A doctor works most of the time in a", [" hospital", " volcano"], 0),
    ("She opened her umbrella outside because it began to", [" sing", " rain heavily"], 1),
    ("The first month of the year has the name", [" January", " August"], 0),
    ("Counted exactly, as a number in digits, seventeen times eighteen makes", [" 306", " 206", " 288"], 0),
    ("The longest river that flows into the Caspian Sea has the name", [" Nile", " Volga", " Ural"], 1),
    ("Der Hund läuft über die Straße, und die Katze", [" schläft", " 🙂🙂"], 0),
]
TASK = {
    "task": "chorus_check",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
    "target_delimiter": "",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


class LmEvalTest(ServerTest):
    def tokenize(self, text: str) -> list:
        return self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def split(self, context: str, continuation: str) -> tuple:
        """Tokens of both, as lm-eval draws the line between them."""
        spaces = len(context) - len(context.rstrip())
        if spaces:
            continuation, context = context[-spaces:] + continuation, context[:-spaces]
        whole, begin = self.tokenize(context + continuation), self.tokenize(context)
        return whole[: len(begin)], whole[len(begin) :]

    def directly(self, pairs: list) -> list:
        """(sum of logprobs, is it greedy) for pairs of context and continuation, from the command line."""
        model = serving.model_path()
        windows = self.write_lines("windows.jsonl", [context + rest for context, rest in pairs])
        scored = support.chorus("perplexity", model, windows, "--tokens", "--per-token", "--json")
        logprobs = [line["logprobs"] for line in scored.of_type("window")]
        longest = max(len(rest) for _, rest in pairs)
        prompts = self.write_lines("contexts.jsonl", [context for context, _ in pairs])
        greedy = support.chorus(
            "run", model, "--tokens", prompts, "--max-tokens", longest, "--ignore-eos", "--json"
        ).results()
        found = []
        for (context, rest), values, result in zip(pairs, logprobs, greedy, strict=True):
            self.assertGreaterEqual(len(values), len(rest))
            found.append((sum(values[-len(rest) :]), result["tokens"][: len(rest)] == rest))
        return found

    def write_lines(self, name: str, rows: list) -> str:
        path = self.folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    def test_against_the_command_line(self):
        items = [{"question": q, "choices": c, "answer": a} for q, c, a in QUESTIONS]
        data = self.write_lines("items.jsonl", items)
        self.server = server = self.serve()
        pairs = [self.split(question, choice) for question, choices, _ in QUESTIONS for choice in choices]
        self.expected = self.directly(pairs)
        arguments = {"model": server.model, "base_url": server.base_url() + "/v1/completions", "max_length": 512}
        for batch, concurrent in [(1, 1), (4, 1), (1, 4)]:
            outcome = lm_eval.simple_evaluate(
                model="local-completions",
                model_args=arguments | {"num_concurrent": concurrent, "max_retries": 1},
                tasks=[TASK | {"dataset_kwargs": {"data_files": {"test": data}}}],
                task_manager=TaskManager(include_defaults=False),
                batch_size=batch,
                bootstrap_iters=0,
            )
            self.compare(outcome, f"batches of {batch}, {concurrent} at once")

    def compare(self, outcome: dict, how: str) -> None:
        correct, rest = 0, list(self.expected)
        samples = sorted(outcome["samples"]["chorus_check"], key=lambda sample: sample["doc_id"])
        self.assertEqual(len(QUESTIONS), len(samples))
        for sample, (question, choices, answer) in zip(samples, QUESTIONS, strict=True):
            expected, rest = rest[: len(choices)], rest[len(choices) :]
            found = [tuple(resp[0]) for resp in sample["resps"]]
            self.assertEqual(expected, found, question)
            likeliest = max(range(len(choices)), key=lambda i: expected[i][0])
            correct += likeliest == answer
        accuracy = outcome["results"]["chorus_check"]["acc,none"]
        self.assertEqual(correct / len(QUESTIONS), accuracy)
        serving.say(f"lm-eval, {how}: accuracy {accuracy}, log-likelihoods equal to the command line's")


if __name__ == "__main__":
    support.main()
