#!/usr/bin/env python3
"""The server's web page in a real browser: what holds on every server."""
import json
import unittest

from mock_api import MockApi
from page_case import ANSWERS, BINARY, IDLE, LAST, SERVER_KEY, PageCase, Serving


class OnEveryServer:
    """What holds on every server. `url` and `key` are those of one."""

    key = ""

    def begin_long(self):
        """The next answers go on for long."""

    def end_long(self):
        """They do not any more."""

    def start(self, **options):
        before = f"sessionStorage.setItem('chorus.key', {json.dumps(self.key)});" if self.key else ""
        page = self.open(self.url, before=before, **options)
        page.wait("modelName !== ''")
        self.addCleanup(lambda: self.close_sessions(page))
        return page

    def set_parameters(self, page, **values):
        """As a person does, but for the keys."""
        for name, value in values.items():
            page.evaluate(f"""(() => {{
              const input = document.getElementById("field-{name}");
              input.value = {json.dumps(str(value))};
              input.dispatchEvent(new Event("input"));
            }})()""")

    def close_sessions(self, page):
        page.evaluate("[...turns.values()].forEach((turn) => turn.controller.abort())")
        page.wait(IDLE)
        page.evaluate("""Promise.all(Object.keys(chat.sessions).map((id) =>
          request(sessionPath(id), {method: "DELETE"}).catch(() => {})))""")

    def long_answer(self, page):
        """Begins an answer that goes on for long."""
        self.begin_long()
        self.set_parameters(page, max_tokens=900, more='{"ignore_eos": true}')
        self.say(page, "Count to four hundred.", wait=False)
        page.wait(f"{LAST}.querySelector('.body').innerText.length > 10", 60)

    def test_streams_as_it_comes(self):
        page = self.start()
        self.long_answer(page)
        seen = set()
        for _ in range(5):
            before = self.body(page)
            seen.add(before)
            page.wait(f"{LAST}.querySelector('.body').innerText.length > {len(before)}", 60)
            # Markup is shown once it has ended: what is between is letters in both.
            letters = lambda text: "".join(filter(str.isalpha, text))
            self.assertTrue(letters(self.body(page)).startswith(letters(before)), before)
        self.assertEqual(len(seen), 5)
        self.assertEqual(page.evaluate(f"{LAST}.getAttribute('aria-busy')"), "true")

    def test_stop_keeps_what_came(self):
        page = self.start()
        self.long_answer(page)
        page.press("Escape")
        self.wait_answer(page)
        self.assertIn("Stopped.", page.evaluate(f"{LAST}.innerText"))
        kept = self.body(page)
        self.assertGreater(len(kept), 5)
        # The session goes on behind what was kept, and computes none of it again.
        self.end_long()
        self.set_parameters(page, max_tokens=8, more="")
        self.say(page, "And now?")
        cached, computed, way = self.usage(page)
        self.assertEqual(way, "session")
        self.assertGreater(cached, computed)
        self.assertEqual(self.path(page)[1].split(), kept.split())

    def test_stop_by_mouse(self):
        page = self.start()
        self.long_answer(page)
        page.click("#halt")
        self.wait_answer(page)
        self.assertIn("Stopped.", page.evaluate(f"{LAST}.innerText"))
        self.assertEqual(page.focused(), "input")

    def test_second_turn_reuses_the_first(self):
        page = self.start()
        self.set_parameters(page, max_tokens=12)
        self.say(page, "Tell me of the sea, please, in a sentence or two.")
        self.assertEqual(self.usage(page)[2], "opened")
        first = sum(self.usage(page)[:2])
        self.say(page, "And of rivers?")
        cached, computed, way = self.usage(page)
        self.assertEqual(way, "session")
        self.assertGreaterEqual(cached, first)
        self.assertLess(computed, first)

    def test_retry_forks(self):
        page = self.start()
        self.set_parameters(page, max_tokens=12, temperature=1)
        self.say(page, "Name an animal that lives in the woods and one that lives at sea.")
        page.click_text("Retry", ".message.assistant")
        self.wait_answer(page)
        cached, computed, way = self.usage(page)
        self.assertEqual((computed, way), (1, "fork"))  # one token, for its logits
        self.assertGreater(cached, 5)
        self.assertEqual(page.text(".switch span"), "2 of 2")
        self.assertEqual(len(page.texts("#branch-list li")), 2)

    def test_edit_makes_a_branch(self):
        page = self.start()
        self.set_parameters(page, max_tokens=8)
        self.say(page, "The first question of this conversation.")
        self.say(page, "The second question of it.")
        held = page.evaluate("Object.values(chat.sessions)[0].held")
        page.click_text("Edit", ".message.user")
        page.evaluate("document.querySelector('form.edit textarea').value = ''")
        page.type("Another second question.")
        page.press("Enter")
        self.wait_answer(page)
        path = self.path(page)
        self.assertEqual(len(path), 4)
        self.assertEqual(path[0], "The first question of this conversation.")
        self.assertEqual(path[2], "Another second question.")
        cached, _, way = self.usage(page)
        self.assertEqual(way, "fork")
        # All that was held up to the first answer, to the token.
        forks = [json.loads(each[2])["at"] for each in self.sent(page, "POST .*/fork")]
        self.assertEqual(forks, [held[1][1]])
        self.assertGreaterEqual(cached, held[1][1] - 1)
        page.click(".switch [aria-label='Previous branch']")
        page.wait("document.querySelectorAll('.message')[2].innerText.includes('The second')")
        self.assertEqual(page.text(".switch span"), "1 of 2")

    def test_branch_and_switch(self):
        page = self.start()
        self.set_parameters(page, max_tokens=8)
        for text in ("One question to begin with.", "Two, which comes behind.", "Three, the last."):
            self.say(page, text)
        held = page.evaluate("Object.values(chat.sessions)[0].held")
        page.evaluate(f"{ANSWERS}[0].querySelector('[title^=\"Begin another\"]').click()")
        page.wait("currentBranch().shared !== null")
        self.assertEqual(page.evaluate("currentBranch().shared"), held[1][1])
        self.assertIn("0 computed", page.text("#context"))
        self.assertEqual(page.focused(), "input")
        self.assertEqual(len(self.path(page)), 2)
        self.say(page, "Two, but on another branch.")
        cached, computed, way = self.usage(page)
        self.assertEqual(way, "fork")
        self.assertGreaterEqual(cached, held[1][1] - 1)
        # There and back; the first branch goes on in its own session.
        self.assertEqual(len(page.texts("#branch-list .branch")), 2)
        page.click("#branch-list li:nth-child(1) .branch")
        page.wait("document.querySelectorAll('.message').length === 6")
        self.assertEqual(self.path(page)[4], "Three, the last.")
        self.say(page, "Four, in the first branch.")
        cached, computed, way = self.usage(page)
        self.assertEqual(way, "session")
        self.assertGreater(cached, computed)
        page.click("#branch-list li:nth-child(2) .branch")
        page.wait("document.querySelectorAll('.message').length === 4")
        self.assertEqual(self.path(page)[2], "Two, but on another branch.")
        self.shoot(page, "branches")

    def test_two_branches_at_once(self):
        page = self.start()
        self.long_answer(page)
        page.evaluate("newChat()")
        self.say(page, "A question beside it.", wait=False)
        page.wait("turns.size === 2 || document.querySelectorAll('.usage').length > 0")
        page.wait(f"{LAST}.querySelector('.body').innerText.length > 0", 60)
        self.assertEqual(len(page.texts("#branch-list .branch")), 2)

    def test_delete_branch_closes_its_session(self):
        page = self.start()
        self.set_parameters(page, max_tokens=4)
        self.say(page, "A question.")
        page.click_text("Retry", ".message.assistant")
        self.wait_answer(page)
        ids = set(page.evaluate("Object.keys(chat.sessions)"))
        self.assertEqual(len(ids), 2)
        page.click("#branch-list li:nth-child(2) .remove")
        page.wait("Object.keys(chat.sessions).length === 1")
        page.wait("""requestJson("v1/sessions").then((list) =>
          list.data.filter((each) => %s.includes(each.id)).length === 1)""" % json.dumps(list(ids)))

    def test_refused_parameter_shows_at_its_field(self):
        page = self.start()
        self.set_parameters(page, top_p=7)
        self.say(page, "Hello.")
        self.assertIn("top_p", page.text(".note.error"))
        page.wait("document.getElementById('field-top_p').getAttribute('aria-invalid') === 'true'")
        self.assertIn("found 7", page.text("#field-top_p-error"))
        self.set_parameters(page, top_p=0.9, max_tokens=4)
        page.click_text("Try again", ".message.assistant")
        page.wait(f"{LAST}.querySelector('.usage')", 60)
        self.assertEqual(page.texts(".note.error"), [])
        self.assertEqual(len(self.path(page)), 2)

    def test_most_tokens_and_continue(self):
        page = self.start()
        self.set_parameters(page, max_tokens=3, more='{"ignore_eos": true}')
        self.say(page, "Count from one to twenty in words.")
        before = self.body(page)
        page.click_text("Continue", ".message.assistant")
        page.wait(f"{IDLE} && {LAST}.querySelector('.usage').dataset.way === 'session'", 60)
        self.assertEqual(len(self.path(page)), 2)
        self.assertTrue(self.body(page).startswith(before.rstrip()))
        self.assertGreater(len(self.body(page)), len(before))

    def test_reload_keeps_the_conversation(self):
        page = self.start()
        self.set_parameters(page, max_tokens=6)
        self.say(page, "Remember this question.")
        page.click_text("Retry", ".message.assistant")
        self.wait_answer(page)
        path = self.path(page)
        page.reload()
        page.wait("modelName !== '' && document.querySelectorAll('.message').length === 2")
        self.assertEqual(self.path(page), path)
        self.assertEqual(len(page.texts("#branch-list .branch")), 2)
        self.assertEqual(page.evaluate("document.getElementById('field-max_tokens').value"), "6")
        self.say(page, "Do you?")
        self.assertEqual(self.usage(page)[2], "session")

    def test_reload_while_it_answers(self):
        page = self.start()
        self.long_answer(page)
        page.reload()
        page.wait("modelName !== '' && document.querySelectorAll('.message').length === 2")
        self.assertIn("Stopped.", page.evaluate(f"{LAST}.innerText"))
        # The server has noticed that its client left, and the session can be used again.
        page.wait("""requestJson("v1/sessions").then((list) => list.data
          .filter((each) => chat.sessions[each.id]).every((each) => !each.is_busy))""")
        self.end_long()
        self.set_parameters(page, max_tokens=4, more="")
        self.say(page, "Are you there?")
        self.assertGreater(self.usage(page)[0], 0)
        self.assertEqual(self.usage(page)[2], "session")

    def test_markup_of_a_person_stays_text(self):
        page = self.start()
        self.set_parameters(page, max_tokens=4)
        text = "<img src=x onerror=\"window.pwned = 1\"><script>window.pwned = 2</script>"
        self.say(page, text)
        self.assertEqual(self.path(page)[0], text)
        self.assertIsNone(page.evaluate("window.pwned"))
        self.assertEqual(page.evaluate("document.querySelectorAll('#messages img, #messages script').length"), 0)

    def test_keyboard_alone(self):
        page = self.start()
        self.set_parameters(page, max_tokens=4)
        self.assertEqual(page.focused(), "input")
        page.type("One line")
        page.press("Enter", shift=True)
        page.type("and another.")
        self.assertEqual(page.evaluate("document.getElementById('input').value"),
                         "One line\nand another.")
        page.press("Enter")
        self.wait_answer(page)
        self.assertEqual(self.path(page)[0], "One line\nand another.")
        # From the last message's actions to the first, and retry.
        for _ in range(12):
            page.press("Tab", shift=True)
            if page.focused() == "Retry":
                break
        self.assertEqual(page.focused(), "Retry")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        self.assertEqual(outline, "solid")
        page.press("Enter")
        self.wait_answer(page)
        self.assertEqual(page.text(".switch span"), "2 of 2")
        self.assertEqual(page.focused(), "input")
        # The whole round of Tab comes by everything, in the order in which it is seen.
        order = []
        page.evaluate("document.activeElement.blur()")
        for _ in range(60):
            page.press("Tab")
            order.append(page.focused())
            if len(order) > 1 and order[-1] == order[0]:
                break
        names = ["Skip to the message box", "Settings", "new-chat", "Copy", "Previous branch", "Retry",
                 "input"]
        places = [next((i for i, each in enumerate(order) if each == name), None) for name in names]
        self.assertNotIn(None, places, order)
        self.assertEqual(places, sorted(places), order)

    def test_narrow_screen(self):
        page = self.start(width=320, height=640)
        self.set_parameters(page, max_tokens=6)
        self.assert_no_sideways(page, "empty")
        long_word = "x" * 400
        self.say(page, "A long word: " + long_word + "\n```\n" + "code " * 60 + "\n```")
        self.assert_no_sideways(page, "a long word")
        self.say(page, "`" + "y" * 200 + "` and **" + "z" * 200 + "**")
        self.assert_no_sideways(page, "long code")
        for name in ("branches", "settings", "server"):
            page.click(f"[data-panel={name}]")
            page.wait(f"!document.getElementById('{name}').hidden")
            self.assertEqual(page.focused(), name)
            self.assert_no_sideways(page, name)
            self.shoot(page, "narrow-" + name)
            page.press("Escape")
            page.wait(f"document.getElementById('{name}').hidden")
            self.assertEqual(page.evaluate("document.activeElement.dataset.panel"), name)
        self.shoot(page, "narrow")

    def test_live_view_shows_the_load(self):
        page = self.start()
        page.wait("document.getElementById('kv-text').textContent.includes('held by sessions')")
        self.long_answer(page)
        page.wait("/[1-9]/.test(document.getElementById('rate').textContent)", 30)
        page.wait("document.querySelector('#numbers dd').textContent !== '0'")
        page.wait("[...document.querySelectorAll('#session-list .about')]"
                  ".some((each) => each.textContent.includes('at work'))")
        self.shoot(page, "live")


class OnScriptedServer(OnEveryServer, PageCase):
    def setUp(self):
        self.api = MockApi()
        self.addCleanup(self.api.stop)
        self.api.pace_s = 0.01
        self.url = self.api.url

    def begin_long(self):
        self.api.pieces = [f"{i} " for i in range(400)]
        self.api.pace_s = 0.1

    def end_long(self):
        self.api.pieces = None
        self.api.pace_s = 0.01


if BINARY:
    class OnRealServer(OnEveryServer, PageCase):
        key = SERVER_KEY

        @classmethod
        def setUpClass(cls):
            super().setUpClass()
            server = Serving()
            cls.addClassCleanup(server.close)
            cls.url = server.url

        def start_on(self, *flags):
            """A page on a server of its own: (server, page)."""
            server = Serving(*flags)
            self.addCleanup(server.close)
            self.url = server.url
            return server, self.start()

        def test_no_room_for_sessions(self):
            _, page = self.start_on("--max-held-sessions", "0")
            self.set_parameters(page, max_tokens=6)
            self.say(page, "Name three fruits, please, that grow on trees in a garden.")
            self.assertEqual(self.usage(page)[2], "chat")
            self.assertIn("no room for another session", page.text(".message.assistant .facts"))
            self.say(page, "And three more?")
            cached, _, way = self.usage(page)
            self.assertEqual(way, "chat")
            self.assertGreater(cached, 0)  # whole blocks of the prefix are there none the less

        def test_led_here_by_its_own_name(self):
            server = Serving("--allow-host", "chat.example", key=None)
            self.addCleanup(server.close)
            port = server.url.rstrip("/").rsplit(":", 1)[1]
            page = self.open(f"http://evil.example:{port}/")
            self.assertIn("--allow-host", page.text("body"))
            for method in ("GET", "POST"):
                status = page.evaluate(f"fetch('/v1/sessions', {{method: '{method}'}}).then((a) => a.status)")
                self.assertEqual(status, 403)
            for name in ("chat.example", "localhost", "127.0.0.1"):
                page = self.open(f"http://{name}:{port}/")
                page.wait("document.getElementById('input')")

        def test_full_queue(self):
            _, page = self.start_on("--max-running", "1", "--queue", "0")
            self.long_answer(page)
            page.evaluate("newChat()")
            self.say(page, "Beside it.", wait=False)
            page.wait(f"{LAST}?.querySelector('.note.error')")
            self.assertIn("no room", page.text(".note.error"))
            self.assertIn("Try again in", page.text(".note.error"))

        def test_draining(self):
            server, page = self.start_on("--drain-timeout", "20")
            self.long_answer(page)
            server.process.terminate()
            page.evaluate("newChat()")
            page.wait("""request("health").then(() => false, (error) => error.status === 503)""")
            self.say(page, "Is it too late?", wait=False)
            page.wait(f"{LAST}?.querySelector('.note.error')")
            self.assertIn("takes no requests at the moment", page.text(".note.error"))
            # What ran goes on meanwhile.
            page.click("#branch-list li:nth-child(1) .branch")
            before = self.body(page)
            page.wait(f"{LAST}.querySelector('.body').innerText.length > {len(before)}")

        def test_continue_says_what_a_longer_answer_would(self):
            page = self.start()
            texts = []
            for steps in ((12,), (5, 7)):
                self.set_parameters(page, max_tokens=steps[0], temperature=0, more='{"ignore_eos": true}')
                self.say(page, "Count from one to twenty in words.")
                if len(steps) > 1:
                    self.set_parameters(page, max_tokens=steps[1])
                    page.click_text("Continue", ".message.assistant")
                    page.wait(f"{IDLE} && {LAST}.querySelector('.usage').dataset.way === 'session'")
                texts.append(page.evaluate(f"chat.nodes[{LAST}.dataset.node].text"))
                page.evaluate("newChat()")
                page.wait("document.querySelectorAll('.message').length === 0")
            self.assertEqual(texts[0], texts[1])

        def test_fork_says_what_it_would_alone(self):
            """A greedy answer on a branch is that of a conversation of its own."""
            page = self.start()
            self.set_parameters(page, max_tokens=10, temperature=0)
            self.say(page, "Name three fruits.")
            first = self.body(page)
            page.click_text("Retry", ".message.assistant")
            self.wait_answer(page)
            self.assertEqual(self.usage(page)[1:], (1, "fork"))
            self.assertEqual(self.body(page), first)


if __name__ == "__main__":
    unittest.main(verbosity=2)
