#!/usr/bin/env python3
"""The server's web page in a real browser, against an API with scripted answers and failures."""
import json
import re
import threading
import unittest

from mock_api import CONTEXT, MockApi
from page_case import ANSWERS, IDLE, LAST, PageCase

ANSWER = """# A heading

A paragraph with **bold words** and `inline code`, and an unclosed ` mark.

- one
- two, with **bold**
  - deeper

1. first
2. second

```python
print("<b>not bold</b>")
```
<script>window.pwned = 1</script> <img src=x onerror="window.pwned = 2">
"""


class Scripted(PageCase):
    """What needs answers and failures to order."""

    def setUp(self):
        self.api = MockApi()
        self.addCleanup(self.api.stop)

    def start(self, **options):
        page = self.open(self.api.url, **options)
        page.wait("modelName !== ''")
        return page

    def test_each_piece_is_seen_before_the_next(self):
        page = self.start()
        self.api.gate = threading.Semaphore(0)
        self.api.pieces = ["alpha ", "beta ", "gamma"]
        self.say(page, "Go.", wait=False)
        self.assertIn("Waiting", page.wait(f"{LAST}?.innerText"))
        for seen in ("alpha", "alpha beta", "alpha beta gamma"):
            self.api.gate.release()
            page.wait(f"{LAST}.querySelector('.body').innerText.trim() === {json.dumps(seen)}")
        self.wait_answer(page)

    def test_markup_of_the_model(self):
        page = self.start()
        self.api.pieces = re.findall(r"[^ ]+ ?|\s", ANSWER)
        self.say(page, "Markup, please.")
        shown = page.evaluate(f"""(() => {{
          const body = {LAST}.querySelector(".body");
          return {{tags: [...body.querySelectorAll("*")].map((each) => each.localName),
                   code: body.querySelector("pre code").textContent,
                   strong: [...body.querySelectorAll("strong")].map((each) => each.textContent),
                   inline: body.querySelector("p code").textContent,
                   items: [...body.querySelectorAll("li")].map((each) => each.textContent),
                   last: body.lastElementChild.textContent}};
        }})()""")
        self.assertFalse({"script", "img", "b"} & set(shown["tags"]))
        self.assertEqual(shown["code"], 'print("<b>not bold</b>")')
        self.assertEqual(shown["strong"], ["bold words", "bold"])
        self.assertEqual(shown["inline"], "inline code")
        self.assertEqual(shown["items"], ["one", "two, with bold", "deeper", "first", "second"])
        self.assertEqual(shown["last"].strip(), ANSWER.splitlines()[-1])
        self.assertIsNone(page.evaluate("window.pwned"))
        # Written to be read, whatever the pieces were cut like.
        self.assertEqual(page.evaluate(f"chat.nodes[{LAST}.dataset.node].text"), ANSWER)
        self.shoot(page, "markup")

    def test_policy_holds(self):
        page = self.start()
        refused = page.evaluate("""(async () => {
          const name = async (action) => {
            try { await action(); return "done"; } catch (error) { return error.name; }
          };
          const element = document.createElement("button");
          document.body.append(element);
          return [
            await name(() => { element.innerHTML = "<b>x</b>"; }),
            await name(() => element.setAttribute("onclick", "window.pwned = 1")),
            await name(() => { document.createElement("script").text = "window.pwned = 2"; }),
            await name(() => window.eval("window.pwned = 3")),
            await name(() => realFetch("http://127.0.0.2:9/")),
            await name(() => element.setAttribute("style", "color: rgb(1, 2, 3)")),
            getComputedStyle(element).color === "rgb(1, 2, 3)",
            window.pwned ?? null,
          ];
        })()""")
        self.assertEqual(refused, ["TypeError", "TypeError", "TypeError", "EvalError", "TypeError",
                                   "done", False, None])
        for rule in ("TrustedHTML", "TrustedScript", "connect-src", "style-src"):
            self.assertTrue(any(rule in each for each in page.errors), (rule, page.errors))
        page.errors.clear()

    def test_copy(self):
        page = self.start(before="""
          navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); };
        """)
        self.api.pieces = ["Some ", "text.\n", "```\n", "and code\n", "```"]
        self.say(page, "Go.")
        page.click_text("Copy", ".message.assistant")
        page.wait("window.copied === 'Some text.\\n```\\nand code\\n```'")
        page.click_text("Copy code", ".message.assistant")
        page.wait("window.copied === 'and code'")

    def test_parameters_reach_the_request(self):
        page = self.start()
        page.wait("document.getElementById('field-temperature').placeholder === '1'")
        page.click("[data-panel=settings]")
        for name, value in {"max_tokens": "40", "temperature": "0.5", "top_p": "0.9", "top_k": "20",
                            "min_p": "0.05", "seed": "7", "presence_penalty": "0.1",
                            "frequency_penalty": "-0.2", "repetition_penalty": "1.1",
                            "stop": "END\n\nhalt", "more": '{"logit_bias": {"5": -1}}'}.items():
            page.evaluate(f"document.getElementById('field-{name}').focus()")
            page.type(value)
        page.evaluate("document.getElementById('system').focus()")
        page.type("You are brief.")
        self.shoot(page, "settings")
        self.say(page, "Hello.")
        body = self.api.sent("POST .*/generate")[-1][2]
        self.assertEqual(body, {
            "model": "scripted-model", "stream": True, "stream_options": {"include_usage": True},
            "messages": [{"role": "system", "content": "You are brief."},
                         {"role": "user", "content": "Hello."}],
            "max_tokens": 40, "temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "seed": 7,
            "presence_penalty": 0.1, "frequency_penalty": -0.2, "repetition_penalty": 1.1,
            "stop": ["END", "halt"], "logit_bias": {"5": -1}})
        self.say(page, "Again.")  # the system prompt is there already
        self.assertEqual(self.api.sent("POST .*/generate")[-1][2]["messages"],
                         [{"role": "user", "content": "Again."}])
        page.click("#reset")
        self.say(page, "With defaults.")
        self.assertEqual(set(self.api.sent("POST .*/generate")[-1][2]),
                         {"model", "stream", "stream_options", "messages"})

    def test_wrong_parameter_is_not_sent(self):
        page = self.start()
        page.click("[data-panel=settings]")
        page.evaluate("document.getElementById('field-more').focus()")
        page.type("{no json")
        self.say_nothing(page, "Hello.")
        self.assertEqual(page.focused(), "field-more")
        self.assertIn("not JSON", page.text("#field-more-error"))
        self.assertEqual(page.evaluate("document.getElementById('input').value"), "Hello.")

    def say_nothing(self, page, text):
        page.evaluate("document.getElementById('input').focus()")
        page.type(text)
        page.press("Enter")
        self.assertEqual(self.api.sent("POST .*"), [])

    def test_number_that_cannot_be_sent(self):
        page = self.start()
        page.click("[data-panel=settings]")
        page.evaluate("document.getElementById('field-seed').focus()")
        page.type("12345678901234567890")
        self.say_nothing(page, "Hello.")
        self.assertEqual(page.text("#field-seed-error"), "too large")

    def test_arrow_keys_step_a_field(self):
        page = self.start()
        page.wait("document.getElementById('field-temperature').placeholder === '1'")
        page.click("[data-panel=settings]")
        page.evaluate("document.getElementById('field-temperature').focus()")
        for _ in range(3):
            page.press("ArrowDown")
        self.assertEqual(page.evaluate("document.getElementById('field-temperature').value"), "0.7")

    def test_full_queue(self):
        page = self.start()
        self.api.fail("POST .*/generate", 429, "expected fewer than 4 requests at once",
                      param="queue", headers={"retry-after": "8"})
        self.say(page, "Hello.")
        self.assertIn("no room", page.text(".note.error"))
        self.assertIn("Try again in 8 seconds", page.text(".note.error"))
        self.assertRegex(page.text(".message.assistant .actions"), r"Try again \(\d s\)")
        page.wait("document.querySelector('.message.assistant .actions').innerText === 'Try again'")
        self.shoot(page, "error")
        page.click_text("Try again", ".message.assistant")
        page.wait(f"{LAST}.querySelector('.usage')")
        self.assertEqual(len(page.texts("#branch-list .branch")), 1)

    def test_draining(self):
        page = self.start()
        self.api.fail("POST /v1/sessions", 503, "the server is shutting down",
                      headers={"retry-after": "5"})
        self.say(page, "Hello.")
        self.assertIn("the server is shutting down", page.text(".note.error"))
        self.assertIn("5 seconds", page.text(".note.error"))

    def test_error_in_mid_stream(self):
        page = self.start()
        self.api.raw = [b': ping\n\n', b'data: {"choices":[{"index":0,"delta":{"content":"Half"}}]}\n\n',
                        b'data: {"error":{"message":"out of blocks","param":null}}\n\ndata: [DONE]\n\n']
        self.say(page, "Hello.")
        self.assertEqual(self.body(page), "Half")
        self.assertIn("out of blocks", page.text(".note.error"))

    def test_drained_in_mid_stream(self):
        page = self.start()
        self.api.raw = [b'data: {"choices":[{"index":0,"delta":{"content":"Half"}}]}\n\n',
                        b'data: {"error":{"message":"the server is shutting down","type":"unavailable_error"}}\n\n']
        self.say(page, "Hello.")
        self.assertIn("takes no requests at the moment", page.text(".note.error"))

    def test_events_cut_anywhere(self):
        page = self.start()
        text = "Grüße, 世界 \U0001f30d!"
        whole = ": ping\r\n\r\ndata:" + json.dumps({"choices": [{"index": 0, "delta": {
            "content": text}}]}, ensure_ascii=False) + "\r\n\r\ndata: [DONE]\r\n\r\n"
        self.api.raw = [bytes([byte]) for byte in whole.encode()]
        self.say(page, "Hello.")
        self.assertEqual(self.body(page), text)
        self.assertEqual(page.texts(".note.error"), [])

    def test_connection_lost_while_it_answers(self):
        page = self.start()
        self.api.pieces = ["one ", "two ", "three ", "four"]
        self.api.cut_after = 2
        self.say(page, "Hello.")
        self.assertEqual(self.body(page).strip(), "one two")
        self.assertIn("connection", page.text(".note.error"))
        self.api.cut_after = None
        page.click_text("Try again", ".message.assistant")
        page.wait(f"{LAST}.querySelector('.usage')")
        self.assertEqual(self.body(page).strip(), "one two three four")

    def test_server_goes_and_comes_back(self):
        page = self.start()
        self.api.stop()
        page.wait("!document.getElementById('banner').hidden", 20)
        self.assertIn("connection to the server was lost", page.text("#banner"))
        self.say(page, "Hello?")
        self.assertIn("connection to the server was lost", page.text(".note.error"))
        self.shoot(page, "lost")
        self.api.start()
        page.wait("document.getElementById('banner').hidden", 40)
        page.click_text("Try again", ".message.assistant")
        page.wait(f"{LAST}.querySelector('.usage')")

    def test_opened_before_the_model_is_there(self):
        for _ in range(2):
            self.api.fail("GET /v1/models", 503, "the model is being loaded",
                          headers={"retry-after": "1"})
        page = self.open(self.api.url)
        page.wait("document.getElementById('banner').innerText.includes('being loaded')")
        page.wait("modelName !== ''", 20)
        page.wait("document.getElementById('banner').hidden")
        self.assertEqual(len(self.api.sent("GET /v1/models")), 3)

    def test_key_is_asked_for(self):
        self.api.key = "secret-key"
        page = self.open(self.api.url)
        page.wait("document.getElementById('key-dialog').open")
        self.assertEqual(page.focused(), "dialog-key")
        self.shoot(page, "key")
        page.type("wrong")
        page.press("Enter")
        page.wait("document.getElementById('key-dialog').open && "
                  "document.getElementById('key-title').innerText.includes('does not know')")
        page.type("secret-key")
        page.press("Enter")
        page.wait("modelName !== ''")
        self.say(page, "Hello.")
        self.assertEqual(self.api.sent("POST .*/generate")[-1][3]["authorization"], "Bearer secret-key")
        kept = page.evaluate("[JSON.stringify(localStorage), document.cookie, location.href, sessionStorage['chorus.key']]")
        self.assertNotIn("secret-key", "".join(kept[:3]))
        self.assertEqual(kept[3], "secret-key")
        page.reload()
        page.wait("modelName !== ''")
        self.assertFalse(page.evaluate("document.getElementById('key-dialog').open"))

    def test_key_not_now(self):
        self.api.key = "secret-key"
        page = self.open(self.api.url)
        page.wait("document.getElementById('key-dialog').open")
        page.press("Escape")
        page.wait("!document.getElementById('key-dialog').open")
        looks = len(self.api.sent("GET /metrics"))
        page.wait(f"facts.filter((each) => each[1] === 'metrics').length > {looks}", 20)
        self.assertFalse(page.evaluate("document.getElementById('key-dialog').open"))
        self.assertIn("API key", page.text("#server-note"))
        page.click("[data-panel=settings]")
        page.evaluate("document.getElementById('key').focus()")
        page.type("secret-key")
        page.press("Enter")
        page.wait("modelName !== ''")

    def test_no_room_for_sessions(self):
        self.api.max_sessions = 0
        page = self.start()
        self.say(page, "Hello.")
        self.assertEqual(self.usage(page)[2], "chat")
        self.assertIn("no room for another session", page.text(".message.assistant .note"))
        self.say(page, "And again.")
        body = self.api.sent("POST /v1/chat/completions")[-1][2]
        self.assertEqual([each["role"] for each in body["messages"]], ["user", "assistant", "user"])
        # A branch there is computed with its answer.
        page.click_text("Branch", ".message.assistant")
        self.say(page, "On a branch.")
        self.assertEqual(self.usage(page)[2], "chat")

    def test_server_without_sessions(self):
        page = self.start()
        self.api.fail("POST /v1/sessions", 404, "there is nothing at /v1/sessions")
        self.say(page, "Hello.")
        self.assertEqual(self.usage(page)[2], "chat")
        self.assertIn("without a session", page.text(".message.assistant .note"))

    def test_own_sessions_make_way(self):
        self.api.max_sessions = 2
        page = self.start()
        self.say(page, "First.")
        for _ in range(3):
            page.click_text("Retry", ".message.assistant")
            self.wait_answer(page)
            self.assertEqual(self.usage(page)[1:], (1, "fork"))
        self.assertEqual(len(self.api.sessions), 2)
        self.assertEqual(set(page.evaluate("Object.keys(chat.sessions)")), set(self.api.sessions))

    def test_session_that_is_gone_is_opened_again(self):
        page = self.start()
        self.say(page, "First.")
        self.api.sessions.clear()  # closed for being idle
        self.say(page, "Second.")
        self.assertEqual(self.usage(page)[2], "opened")
        body = self.api.sent("POST .*/generate")[-1][2]
        self.assertEqual([each["role"] for each in body["messages"]], ["user", "assistant", "user"])
        self.assertEqual(len(self.path(page)), 4)

    def test_branch_while_it_answers(self):
        page = self.start()
        self.say(page, "First.")
        self.api.gate = threading.Semaphore(2)
        self.say(page, "Second.", wait=False)
        page.wait("document.querySelectorAll('.message').length === 4")
        page.evaluate(f"{ANSWERS}[0].querySelector('[title^=\"Begin another\"]').click()")
        self.api.gate = None
        self.say(page, "Beside it.")
        page.wait(IDLE)
        self.assertEqual(len(page.texts("#branch-list .branch")), 2)
        self.assertEqual(self.path(page)[2], "Beside it.")

    def test_branch_at_a_question_asks_for_an_answer(self):
        page = self.start()
        self.say(page, "A question.")
        page.click_text("Branch", ".message.user")
        page.wait("document.getElementById('send').innerText === 'Answer'")
        page.press("Enter")
        page.wait(f"{IDLE} && {LAST}?.querySelector('.usage')")
        self.assertEqual(self.usage(page)[1], 1)
        self.assertNotIn("messages", self.api.sent("POST .*/generate")[-1][2])

    def test_stopped_before_the_first_token(self):
        page = self.start()
        self.api.gate = threading.Semaphore(0)
        self.say(page, "First.", wait=False)
        page.wait("document.querySelector('.waiting')")
        page.press("Escape")
        page.wait(IDLE)
        self.api.gate = None
        page.click_text("Retry", ".message.assistant")
        page.wait(f"{IDLE} && {LAST}?.querySelector('.usage')")
        self.assertEqual(len(page.texts("#branch-list .branch")), 1)

    def test_rests_while_hidden(self):
        page = self.start()
        page.wait("facts.filter((each) => each[1] === 'metrics').length >= 2")
        page.evaluate("""Object.defineProperty(document, "hidden", {configurable: true, value: true});
          document.dispatchEvent(new Event("visibilitychange"));
          new Promise((resolve) => setTimeout(resolve, 300))""")
        before = len(self.api.sent("GET /metrics"))
        page.evaluate("new Promise((resolve) => setTimeout(resolve, 2 * kLiveMs + 500))")
        self.assertEqual(len(self.api.sent("GET /metrics")), before)
        page.evaluate("""Object.defineProperty(document, "hidden", {value: false});
          document.dispatchEvent(new Event("visibilitychange"))""")
        page.wait(f"facts.filter((each) => each[1] === 'metrics').length > {before}")

    def test_list_of_sessions_is_asked_for_where_it_is_seen(self):
        page = self.start()
        page.click("[data-panel=server]")  # closes it
        page.wait("document.getElementById('server').hidden")
        before = len(self.api.sent("GET /v1/sessions"))
        looks = len(self.api.sent("GET /metrics"))
        page.wait(f"facts.filter((each) => each[1] === 'metrics').length >= {looks + 2}", 20)
        self.assertEqual(len(self.api.sent("GET /v1/sessions")), before)

    def test_close_a_session(self):
        page = self.start()
        self.say(page, "First.")
        page.click("#session-list .remove")
        page.wait("document.querySelectorAll('#session-list li').length === 0")
        self.assertEqual(self.api.sessions, {})

    def test_numbers_of_the_live_view(self):
        page = self.start()
        self.api.counters.update(prefix_cache_queries_total=200, prefix_cache_hits_total=50)
        page.wait("document.getElementById('numbers').innerText.includes('25 %')", 20)
        page.wait("document.getElementById('kv-text').innerText.includes('40 kept')")
        rates = page.evaluate("""loadOf(
          parseMetrics('vllm:generation_tokens_total{a="b}\\\\""} 30\\nchorus_computed_tokens_total 50\\n'),
          parseMetrics('vllm:generation_tokens_total{a="b}\\\\""} 10\\n# HELP x\\nchorus_computed_tokens_total 60\\n'), 4000)""")
        self.assertEqual((rates["generated"], rates["computed"]), (5, None))

    def test_spoken(self):
        page = self.start()
        self.api.gate = threading.Semaphore(0)
        self.api.pieces = ["A first ", "sentence. ", "A ", "second"]
        self.say(page, "Go.", wait=False)
        self.api.gate.release(2)
        page.wait("document.getElementById('spoken').textContent === 'A first sentence. '")
        self.assertEqual(page.evaluate("document.getElementById('spoken').getAttribute('aria-live')"), "polite")
        self.api.gate.release(2)
        self.wait_answer(page)
        spoken = page.wait("[...document.querySelectorAll('#spoken p')].map((each) => each.textContent)")
        self.assertEqual(spoken[:2], ["A first sentence. ", "A second"])
        self.assertIn("Answer complete: 4 tokens", spoken[2])

    def test_light_and_dark(self):
        def colours(page, selector):
            return page.evaluate(f"""(() => {{
              const style = getComputedStyle(document.querySelector({json.dumps(selector)}));
              const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
              let holder = document.querySelector({json.dumps(selector)});
              while (/, 0\\)$/.test(getComputedStyle(holder).backgroundColor)) holder = holder.parentElement;
              return [numbers(style.color), numbers(getComputedStyle(holder).backgroundColor)];
            }})()""")

        def luminance(rgb):
            parts = [c / 255 for c in rgb[:3]]
            r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
            return 0.2126 * r + 0.7152 * g + 0.0722 * b

        page = self.start()
        self.api.pieces = re.findall(r"[^ ]+ ?|\s", ANSWER)
        self.say(page, "Markup, please.")
        self.api.fail("POST .*/generate", 429, "too many", param="queue", headers={"retry-after": "1"})
        self.say(page, "More.")
        papers = []
        for dark in (False, True):
            page.set_dark(dark)
            for selector in ("body", ".message.user .body", ".message.assistant p", ".usage", ".about",
                             ".hint", "#send", ".note.error", "button.quiet", "pre code", "#context",
                             ".toggle[aria-expanded=true]", ".usage .way", "figcaption"):
                # What the page asks the server for again and again is not there at every moment.
                page.wait(f"document.querySelector({json.dumps(selector)}) !== null")
                text, paper = colours(page, selector)
                light, dim = sorted((luminance(text), luminance(paper)), reverse=True)
                self.assertGreaterEqual((light + 0.05) / (dim + 0.05), 4.5, (selector, dark))
            papers.append(luminance(colours(page, "body")[1]))
            for width, height in ((1280, 800), (320, 640)):
                page.resize(width, height)
                page.wait("document.readyState")
                self.shoot(page, f"{'dark' if dark else 'light'}-{width}")
            page.resize(1280, 800)
        self.assertGreater(papers[0], 0.7)
        self.assertLess(papers[1], 0.05)

    def test_everything_comes_from_the_page(self):
        page = self.start()
        self.say(page, "Hello.")
        loaded = page.evaluate("performance.getEntriesByType('resource').map((each) => each.name)")
        paths = {each.removeprefix(self.api.url) for each in loaded}
        self.assertLessEqual({each for each in paths if not each.startswith("v1/")},
                             {"metrics", "props", "health"}, paths)

    def test_context_is_shown(self):
        page = self.start()
        self.say(page, "Hello.")
        page.wait(f"/^\\d+ of {CONTEXT:,} tokens of context/.test(document.getElementById('context').innerText)")


if __name__ == "__main__":
    unittest.main(verbosity=2)
