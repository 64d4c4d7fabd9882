#!/usr/bin/env python3
"""`chorus chat`: what it answers and computes when piped, and the terminal."""

import re
import signal
import subprocess

import support
import terminal
from support import TIED, TINY_CONTEXT, CliTest

END = "<|im_end|>\n"
GREEDY = ["--temperature", "0", "--ignore-eos"]
DRAWN = ["--temperature", "1.5", "--seed", "5", "--ignore-eos"]


def retemplated(data: bytes, template: str) -> bytes:
    """A GGUF file with another chat template, which may not be longer."""
    begin = data.index(b"{% for message in messages %}")
    end = data.index(b"{% endif %}", begin) + len(b"{% endif %}")
    filler = end - begin - len(template.encode()) - 4
    assert filler >= 0, filler
    return data[:begin] + template.encode() + b"{#" + b" " * filler + b"#}" + data[end:]


class ChatTest(CliTest):
    def chat(self, *lines, model: str = TIED, words=GREEDY, code: int = 0, tokens: int = 12):
        text = "".join(line + "\n" for line in lines)
        command = ["chat", model, "--max-tokens", tokens, *words]
        return self.expect(code, *command, stdin=text.encode())

    def counts(self, done: support.Done) -> list:
        """(reused, computed, generated) of each turn, of the last /stats."""
        table = done.out.decode("utf-8").rsplit("turn  reused", 1)[1]
        rows = re.findall(r"(?m)^ *(\d+) +(\d+) +(\d+) +(\d+) +[\d.]+$", table)
        self.assertEqual(list(range(1, len(rows) + 1)), [int(row[0]) for row in rows])
        return [tuple(map(int, row[1:])) for row in rows]

    def answer_to(self, messages: list, *words, model: str = TIED, tokens: int = 12) -> dict:
        """What run answers to the messages."""
        path = self.write("messages.jsonl", [{"messages": messages}])
        return self.run_json(
            model, "--prompts", path, "--max-tokens", tokens, *(words or GREEDY)
        ).results()[0]

    def ids(self, text: str, model: str = TIED) -> list:
        done = self.expect(0, "tokenize", model, text, "--special", "--json")
        return done.of_type("tokens")[0]["tokens"]


class PipeTest(ChatTest):
    def test_one_line_is_one_message(self):
        first = self.answer_to([{"role": "user", "content": "hello"}])
        done = self.chat("hello")
        self.assertEqual(first["text"] + "\n", done.out.decode("utf-8"))
        self.assertNotIn("\x1b", done.err)
        again = self.chat("", "hello\r", "   ")
        self.assertEqual(done.out, again.out)

    def test_the_next_turn_follows_the_tokens_of_the_one_before(self):
        first = self.answer_to([{"role": "user", "content": "hello"}])
        rest = self.ids(END + "<|im_start|>user\nmore" + END + "<|im_start|>assistant\n")
        prompt = first["prompt_tokens"] + first["tokens"] + rest
        second = self.run_ids(TIED, [prompt], "--max-tokens", "12", *GREEDY).results()[0]
        done = self.chat("hello", "more", "/stats")
        answers = done.out.decode("utf-8")
        self.assertTrue(answers.startswith(first["text"] + "\n" + second["text"] + "\n"), answers)
        held = len(first["prompt_tokens"]) + 12
        self.assertEqual(
            [(0, len(first["prompt_tokens"]), 12), (held, len(rest), 12)], self.counts(done)
        )

    def test_an_end_token_is_the_templates(self):
        # At such a temperature an end token comes early now and then. The session holds it, and
        # keeps it when it is the one that the template writes.
        num_kept = 0
        for seed in range(8):
            words = ["--temperature", "30", "--seed", seed]
            counts = self.counts(self.chat("a", "b", "c", "/stats", words=words, tokens=60))
            for before, after in zip(counts, counts[1:]):
                ended = before[2] < 60
                self.assertIn(sum(before) - after[0], (0, 1) if ended else (0,), seed)
                num_kept += ended and sum(before) == after[0]
        self.assertGreater(num_kept, 0)

    def test_system_message(self):
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
        expected = self.answer_to(messages)["text"] + "\n"
        done = self.chat("hello", words=[*GREEDY, "--system", "be brief"])
        self.assertEqual(expected, done.out.decode("utf-8"))
        done = self.chat("/system be brief", "hello")
        self.assertEqual(expected, done.out.decode("utf-8"))
        done = self.chat("/system be brief", "/system", "hello")
        self.assertEqual(self.chat("hello").out, done.out)

    def test_a_message_may_begin_with_a_slash(self):
        expected = self.answer_to([{"role": "user", "content": "/quit"}])["text"] + "\n"
        self.assertEqual(expected, self.chat("//quit").out.decode("utf-8"))

    def test_quit_ends_at_once(self):
        self.assertEqual(b"", self.chat("/quit", "hello").out)

    def test_repeatable_with_a_seed(self):
        for words in (DRAWN, ["--seed", "9"]):
            lines = ["one", "two", "/retry", "three"]
            self.assertEqual(self.chat(*lines, words=words).out, self.chat(*lines, words=words).out)

    def test_the_default_temperature_is_that_of_a_chat(self):
        drawn = {self.chat("hello", words=[], tokens=30).out for _ in range(4)}
        self.assertGreater(len(drawn), 1)


class TreeTest(ChatTest):
    def test_retry_runs_one_token_and_answers_otherwise(self):
        done = self.chat("hello", "more", "/retry", "/stats", words=DRAWN)
        plain = self.chat("hello", "more", words=DRAWN)
        self.assertTrue(done.out.startswith(plain.out))
        before = self.counts(self.chat("hello", "more", "/stats", words=DRAWN))
        prompt = before[1][0] + before[1][1]
        self.assertEqual([before[0], (prompt - 1, 1, 12)], self.counts(done))
        retried = done.out[len(plain.out) :].split(b"turn  reused")[0]
        self.assertNotIn(retried, plain.out)
        # At temperature 0 it is the same answer.
        greedy = self.chat("hello", "/retry").out.decode("utf-8")
        self.assertEqual(greedy[: len(greedy) // 2], greedy[len(greedy) // 2 :])

    def test_after_a_retry_the_chat_goes_on_from_the_new_answer(self):
        done = self.chat("hello", "/retry", "/retry", "more", "/stats", words=DRAWN)
        first, second = self.counts(done)
        self.assertEqual(1, first[1])
        self.assertEqual(sum(first), second[0])

    def test_what_is_taken_back_leaves_no_trace(self):
        expected = self.chat("hello", "more things", "then", words=DRAWN).out
        for back in (["/undo"], ["/rewind 1"], ["x", "y", "/rewind 3"], ["x", "/undo", "/undo"]):
            lines = ["hello", "more thoughts", *back, "more things", "then"]
            out = self.chat(*lines, words=DRAWN).out
            self.assertTrue(out.endswith(expected[len(self.chat("hello", words=DRAWN).out) :]))

    def test_rewind_and_the_same_again_computes_one_token(self):
        done = self.chat("a", "b", "c", "/rewind 2", "b", "/stats", words=DRAWN)
        counts = self.counts(done)
        self.assertEqual(2, len(counts))
        self.assertEqual(1, counts[1][1])
        done = self.chat("a", "b", "c", "/rewind 2", "d", "/stats", words=DRAWN)
        self.assertGreaterEqual(self.counts(done)[1][0], sum(self.counts(done)[0]))

    def test_forks_share_what_is_held(self):
        lines = ["hello", "/fork", "one way", "/stats", "/switch main", "another", "/stats"]
        done = self.chat(*lines, "/switch fork2", "on", "/stats", words=DRAWN)
        texts = done.out.decode("utf-8").split("turn  reused")
        tables = []
        for text in texts[1:]:
            part = support.Done([], 0, ("turn  reused" + text).encode(), "")
            tables.append(self.counts(part))
        one, another, on = tables
        self.assertEqual(sum(one[0]), one[1][0])
        self.assertEqual(one[0], another[0])
        self.assertEqual(sum(another[0]), another[1][0])
        self.assertEqual(sum(on[1]), on[2][0])
        # All computed tokens, over all branches, are the new ones.
        computed = int(re.findall(r"(\d+) prompt tokens computed", texts[-1])[0])
        turns = [one[0], one[1], another[1], on[2]]
        self.assertEqual(sum(turn[1] for turn in turns), computed)

    def test_branches_answer_as_if_alone(self):
        first = self.chat("hello", "one way", "on", words=DRAWN).out
        second = self.chat("hello", "another", words=DRAWN).out
        hello = self.chat("hello", words=DRAWN).out
        lines = ["hello", "/fork b", "another", "/switch main", "one way", "/switch b", "/branches"]
        done = self.chat(*lines, "/switch main", "on", words=DRAWN)
        text = done.out.decode("utf-8")
        answers = re.sub(r"(?m)^[ *] \w+  \d+ turns, \d+ tokens held\n", "", text)
        expected = second + first[len(hello) :]
        self.assertEqual(expected.decode("utf-8"), answers)
        self.assertIn("* b  2 turns", text)
        self.assertIn("  main  2 turns", text)

    def test_branches_in_a_pool_of_a_fraction_of_the_need(self):
        lines = ["hello"]
        for n in range(6):
            lines += ["/switch main", f"/fork b{n}", f"go {n}"]
        lines += [f"/switch b{n}\non {n}" for n in range(6)]
        roomy = self.chat(*lines, words=DRAWN)
        tight = self.chat(*lines, "/stats", words=[*DRAWN, "--kv-blocks", "16"])
        out, stats = tight.out.split(b"turn  reused")
        self.assertEqual(roomy.out, out)
        self.assertGreater(int(re.findall(rb"(\d+) recomputed", stats)[0]), 0)


class TemplateTest(ChatTest):
    def model(self, template: str) -> str:
        with open(TIED, "rb") as file:
            return self.write("other.gguf", retemplated(file.read(), template))

    def expected(self, model: str, messages: list) -> str:
        """The chat's answers to the messages, each by run over all that was said before."""
        said, out = [], ""
        for message in messages:
            said.append({"role": "user", "content": message})
            said.append({"role": "assistant", "content": self.answer_to(said, model=model)["text"]})
            out += said[-1]["content"] + "\n"
        return out

    def test_templates_that_rewrite_earlier_turns(self):
        for template in (
            # Earlier answers are left out.
            "{% for m in messages if m.role=='user' %}U{{m.content}}{{'\\n'}}{% endfor %}A:",
            # Only the last message is shown.
            "{{messages[-1].content}}{{'\\n'}}A:",
            # The number of messages comes first, and answers are changed.
            "{{messages|length}}{% for m in messages %}|{{m.content[:3]}}{% endfor %}",
        ):
            model = self.model(template)
            done = self.chat("hello", "more", "and", model=model)
            self.assertEqual(self.expected(model, ["hello", "more", "and"]), done.out.decode())

    def test_a_template_that_refuses_a_message(self):
        model = self.model(
            "{% if messages|length>1 %}{{raise_exception('one only')}}{% endif %}"
            "{{messages[0].content}}"
        )
        done = self.chat("hello", "more", "/undo", "hello", model=model, code=1)
        self.assertIn("one only", done.err)
        once = self.chat("hello", model=model).out
        self.assertEqual(2 * once, done.out)

    def test_no_template(self):
        with open(TIED, "rb") as file:
            data = file.read()
        self.assertEqual(1, data.count(b"tokenizer.chat_template"))
        path = self.write("none.gguf", data.replace(b"chat_template", b"chat_nothings"))
        done = self.expect(3, "chat", path)
        self.assertIn("chat_template", done.err)


class MessageTest(ChatTest):
    def test_bad_commands_are_told_and_the_chat_goes_on(self):
        lines = {
            "/foo": "/foo: unknown command",
            "/forc": "did you mean /fork",
            "/undo": "/undo: expected a message to take back",
            "/retry": "expected a message before it",
            "/rewind 1": "message to take back",
            "/switch nowhere": "/switch: expected the name of a branch",
            "/switch mian": "did you mean main",
            "/fork main": "/fork: expected a new name",
            "/fork a b": "/fork: expected a name",
            "/fork a\x07b": "/fork: expected a name",
            "/fork \x7f": "/fork: expected a name",
            "/set temperature hot": "/set.temperature: expected a number",
            "/set top": "/set.top: unknown setting",
            "/set max_tokens 0": "/set.max_tokens: expected",
            "/stats now": "/stats: expected nothing behind it",
        }
        done = self.chat(*lines, "hello", code=1)
        for wanted in lines.values():
            self.assertIn(wanted, done.err)
        self.assertEqual(self.chat("hello").out, done.out)
        for bad in ("/rewind", "/rewind 0", "/rewind 2", "/rewind x"):
            done = self.chat("hello", bad, "more", code=1)
            self.assertEqual(self.chat("hello", "more").out, done.out, bad)

    def test_help_lists_what_there_is(self):
        out = self.chat("/help").out.decode()
        names = "help undo retry fork branches switch rewind save load system set stats quit"
        for name in names.split():
            self.assertRegex(out, rf"(?m)^  /{name}\b")
        self.assertTrue(all(len(line) < 100 for line in out.split("\n")))

    def test_settings(self):
        lines = ["/set temperature 0", "/set max_tokens 3", "/set seed 7", "/set stop a b", "/set"]
        out = self.chat(*lines, words=["--ignore-eos"]).out.decode()
        for name, value in [("temperature", 0), ("max_tokens", 3), ("seed", 7), ("stop", '"a b"')]:
            self.assertRegex(out, rf"(?m)^{name} +{value}$")
        done = self.chat("/set max_tokens 3", "hello", "/set max_tokens", "/retry", "/stats")
        self.assertEqual(12, self.counts(done)[0][2])
        short = self.chat("/set max_tokens 3", "hello", "/stats")
        self.assertEqual(3, self.counts(short)[0][2])

    def test_a_stop_text_ends_the_answer(self):
        full = self.answer_to([{"role": "user", "content": "hello"}], tokens=40)["text"]
        stops = [c for c in dict.fromkeys(full[2:]) if 33 < ord(c) < 127 and c != '"']
        self.assertTrue(stops, full)
        for stop in stops[:4]:
            cut = full[: full.index(stop)]
            done = self.chat(f"/set stop {stop}", "hello", "/set stop", "more", "/stats", tokens=40)
            self.assertTrue(done.out.decode("utf-8").startswith(cut + "\n"))
            # The stop text is no part of the context: the next turn follows the text shown.
            said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": cut}]
            said.append({"role": "user", "content": "more"})
            prompt = self.answer_to(said, tokens=1)["prompt_tokens"]
            reused, computed, _ = self.counts(done)[1]
            self.assertLess(abs(reused + computed - len(prompt)), 40)
            self.assertIn(reused, range(20, len(prompt)))

    def test_a_full_context_takes_the_message_back(self):
        long = "word " * (TINY_CONTEXT + 10)
        done = self.chat("hello", long, "more", code=1)
        self.assertIn("context: expected a conversation of fewer than 512 tokens", done.err)
        self.assertEqual(self.chat("hello", "more").out, done.out)

    def test_an_answer_ends_where_the_context_does(self):
        done = self.chat("hello", "more", "/undo", "/stats", tokens=1000, code=1)
        self.assertIn("the context is full", done.err)
        self.assertIn("context: expected", done.err)
        done = self.chat("hello", "/stats", tokens=1000)
        self.assertEqual(TINY_CONTEXT, sum(self.counts(done)[0]))

    def test_no_json(self):
        self.assertEqual(2, support.chorus("chat", TIED, "--json").code)

    def interrupted_chat(self) -> tuple:
        process = subprocess.Popen(
            support.command_of(["chat", TIED, "--max-tokens", "100000", *DRAWN]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.addCleanup(process.kill)
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        self.assertTrue(process.stdout.read1(1))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(b"more\n/stats\n", timeout=support.TIMEOUT_S)
        return process.returncode, out, err

    def test_an_interrupt_stops_the_answer_only(self):
        # The signal may come when the answer has just ended, and then it ends the chat; or so late
        # that there is no room for what follows.
        for _ in range(50):
            code, out, err = self.interrupted_chat()
            if code == 0 or b"context" not in err:
                break
        self.assertEqual(0, code, err)
        (first, second) = self.counts(support.Done([], 0, out, ""))
        self.assertIn(b"(stopped)", err)
        self.assertLess(first[2], 512 - first[1])
        self.assertEqual(sum(first), second[0])


class TerminalTest(ChatTest):
    def start(self, *words, tokens: int = 8, **options) -> terminal.Process:
        command = ["chat", TIED, "--max-tokens", tokens, *GREEDY, *words]
        process = self.enterContext(terminal.Process(*command, **options))
        process.wait_for_text("> ")
        process.wait_for_editing()
        return process

    def ask(self, process: terminal.Process, text: str, prompt: str = "> ") -> str:
        """Types the line; what the screen shows until the next prompt."""
        process.wait_for_editing()
        process.wait_for(lambda s: s.lines[s.row].rstrip().endswith(">"))
        begin = len(process.raw)
        process.send(text + "\r")
        mark = prompt.encode()

        def answered(_) -> bool:
            # Editing may draw the prompt again; the answer stands behind the end of the line.
            _, end, answer = process.raw[begin:].partition(b"\n")
            return bool(end) and answer.rstrip(b"\x1b[K\r").endswith(mark)

        process.wait_for(answered)
        return process.raw[begin:].decode("utf-8", "replace")

    def test_a_conversation(self):
        process = self.start()
        text = self.ask(process, "hello")
        self.assertIn("(cut after 8 tokens)", text)
        self.ask(process, "/fork b", "b> ")
        self.ask(process, "more", "b> ")
        self.assertIn("/undo", self.ask(process, "/help", "b> "))
        table = self.ask(process, "/stats", "b> ").replace("\r", "")
        counts = self.counts(support.Done([], 0, table.encode(), ""))
        self.assertEqual(sum(counts[0]), counts[1][0])
        process.wait_for_editing()
        process.send("\x04")
        self.assertEqual(0, process.finish())

    def test_quit(self):
        process = self.start()
        process.send("/quit\r")
        self.assertEqual(0, process.finish())

    def test_lines_are_edited(self):
        # "/statz", backspace, "s"; then cursor left, delete at the cursor, home and end.
        process = self.start()
        self.assertIn("all branches:", self.ask(process, "/statz\x7fs"))
        self.assertIn("all branches:", self.ask(process, "stats\x01/\x05"))
        self.assertIn("all branches:", self.ask(process, "/stxats\x1b[D\x1b[D\x1b[D\x7f"))
        self.assertIn("ignore_eos", self.ask(process, "abc\x15/set"))

    def test_history(self):
        process = self.start()
        self.assertIn("ignore_eos", self.ask(process, "/set"))
        self.assertIn("* main", self.ask(process, "/branches"))
        self.assertIn("* main", self.ask(process, "\x1b[A"))
        self.assertIn("ignore_eos", self.ask(process, "\x1b[A\x1b[A"))
        self.assertIn("ignore_eos", self.ask(process, "\x1b[A\x1b[A\x1b[B"))

    def test_characters_of_several_bytes(self):
        for env in ({"LANG": "C.UTF-8"}, {"LANG": "C", "LC_ALL": "", "LC_CTYPE": ""}):
            process = self.start(env=env)
            # Two backspaces remove two characters.
            text = self.ask(process, "/fork aé→\x7f\x7fü", "aü> ")
            self.assertIn("(on aü)", text)

    def test_ctrl_c_drops_the_line(self):
        process = self.start()
        process.send("/quit")
        process.wait_for_text("/quit")
        process.send("\x03")
        process.wait_for_text("^C")
        self.assertIn("* main", self.ask(process, "/branches"))
        process.wait_for_editing()
        process.send("\x03\x03\x03")
        process.settle()
        self.assertIn("* main", self.ask(process, "/branches"))
        process.wait_for_editing()
        process.send("\x04")
        self.assertEqual(0, process.finish())

    def stops_answer(self, process, text):
        """Whether Ctrl-C came before the answer to `text` ended by itself."""
        process.send(text + "\r")
        begin = len(process.raw)
        process.wait_for(lambda _: len(process.raw) > begin + 60)
        process.send("\x03")
        ends = (b"(stopped)", b"(cut after")
        process.wait_for(lambda _: any(end in process.raw[begin:] for end in ends))
        if b"(stopped)" in process.raw[begin:]:
            return True
        process.settle()
        return False

    def test_ctrl_c_stops_the_answer_only(self):
        process = self.start(tokens=100000)
        for n in range(3):
            process.wait_for_editing()
            # A busy machine may see the key when the whole context was generated: once more, then.
            tries = 10
            while not self.stops_answer(process, f"hello {n}"):
                tries -= 1
                self.assertGreater(tries, 0, "every answer ended before the key came")
                self.ask(process, "/undo")
                process.wait_for_editing()
            process.wait_for(lambda s: s.lines[s.row].startswith("> "))
            self.assertIsNone(process.process.poll())
            if n < 2:
                self.ask(process, "/undo")
        table = self.ask(process, "/stats").replace("\r", "")
        (turn,) = self.counts(support.Done([], 0, table.encode(), ""))
        self.assertLess(turn[1] + turn[2], TINY_CONTEXT)
        process.wait_for_editing()
        process.send("\x04")
        self.assertEqual(0, process.finish())

    def test_a_signal_that_ends_it_restores_the_terminal(self):
        process = self.start()
        process.signal(signal.SIGTERM)
        self.assertEqual(130, process.finish())

    def test_a_dumb_terminal(self):
        process = self.start(env={"TERM": "dumb"})
        self.assertIn("* main", self.ask(process, "/branches"))
        process.wait_for_editing()
        process.send("\x04")
        self.assertEqual(0, process.finish())


if __name__ == "__main__":
    support.main()
