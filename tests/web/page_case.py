"""What tests of the page have in common.

With CHORUS_BIN and CHORUS_DEMO_MODEL pages are opened at a server that runs, too. With
CHORUS_SHOTS, a folder, they are photographed there.
"""
import os
import re
import subprocess
import threading
import unittest

from browser import Browser

BINARY = os.environ.get("CHORUS_BIN", "")
MODEL = os.environ.get("CHORUS_DEMO_MODEL", "")
SHOTS = os.environ.get("CHORUS_SHOTS", "")
SERVER_KEY = "the-key-of-this-test"

IDLE = "turns.size === 0"
ANSWERS = "document.querySelectorAll('.message.assistant')"
LAST = f"[...{ANSWERS}].at(-1)"
# Keeps what the page asks for.
FACTS = r"""
  window.facts = [];
  const realFetch = window.fetch;
  window.fetch = (path, options) => {
    window.facts.push([options?.method ?? "GET", String(path), options?.body ?? ""]);
    return realFetch(path, options);
  };
"""


class PageCase(unittest.TestCase):
    """Opens the page; at its end the page must have thrown nothing and broken no rule of its CSP."""

    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def open(self, url, **options):
        page = self.browser.page(url, before=FACTS + options.pop("before", ""), **options)
        self.addCleanup(page.close)
        self.addCleanup(lambda: self.assertEqual(page.errors, []))
        return page

    def say(self, page, text, wait=True):
        page.evaluate("document.getElementById('input').focus()")
        page.type(text)
        page.press("Enter")
        page.wait(f"turns.size > 0 || {LAST}?.querySelector('.usage, .error')")
        self.wait_shown(page)
        if wait:
            self.wait_answer(page)

    def wait_shown(self, page):
        """Waits until all that has changed so far is shown: the page shows it at the next frame."""
        page.evaluate("new Promise((resolve) => requestAnimationFrame(resolve))")

    def wait_answer(self, page):
        self.wait_shown(page)  # the last answer is not the one before
        page.wait(f"{IDLE} && {LAST}?.querySelector('.actions button')", 120)

    def usage(self, page):
        """{cached, computed, way} of the last answer."""
        usage = page.evaluate(f"({{...{LAST}.querySelector('.usage').dataset}})")
        return int(usage["cached"]), int(usage["computed"]), usage["way"]

    def body(self, page):
        return page.evaluate(f"{LAST}.querySelector('.body').innerText")

    def path(self, page):
        return page.texts(".message .body")

    def sent(self, page, pattern):
        return [each for each in page.evaluate("facts") if re.fullmatch(pattern, f"{each[0]} {each[1]}")]

    def assert_no_sideways(self, page, where):
        width, seen = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        self.assertLessEqual(width, seen, where)
        wide = page.evaluate("""[...document.querySelectorAll("body *")]
          .filter((each) => each.offsetParent && !each.closest("pre, .unseen, .skip, #model"))
          .filter((each) => each.getBoundingClientRect().right > innerWidth + 0.5)
          .map((each) => each.outerHTML.slice(0, 80))""")
        self.assertEqual(wide, [], where)

    def shoot(self, page, name):
        if SHOTS:
            page.screenshot(os.path.join(SHOTS, name + ".png"))


class Serving:
    """A server of the demo model on a port of its own, until close()."""

    def __init__(self, *flags, key=SERVER_KEY):
        environment = {name: value for name, value in os.environ.items() if name != "CHORUS_API_KEY"}
        if key is not None:
            environment["CHORUS_API_KEY"] = key
        self.process = subprocess.Popen(
            [BINARY, "serve", MODEL, "--port", "0", "--context", "1024", *flags],
            stderr=subprocess.PIPE, text=True, env=environment)
        said = []
        for line in self.process.stderr:
            said.append(line)
            if match := re.search(r"http://\S+", line):
                self.url = match[0].rstrip("/") + "/"
                break
        else:
            raise AssertionError("the server does not serve:\n" + "".join(said))
        # Nothing that it says later may fill the pipe.
        self.reader = threading.Thread(target=self.process.stderr.read, daemon=True)
        self.reader.start()

    def close(self):
        self.process.terminate()
        self.process.wait(60)
        self.reader.join()
        self.process.stderr.close()
