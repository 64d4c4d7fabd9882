"""A headless Chromium, driven over the DevTools protocol through a pipe. Standard library only."""
import base64
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 30


class ProtocolError(Exception):
    pass


def find_chromium():
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise SystemExit("no chromium: apt-get install chromium")


class Browser:
    """One process; each page has storage of its own."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="chorus-browser-")
        from_us, self.to_browser = os.pipe()
        self.from_browser, from_browser = os.pipe()

        def connect():  # the protocol's pipe is 3 (in) and 4 (out)
            os.dup2(from_us, 1000)
            os.dup2(from_browser, 1001)
            os.dup2(1000, 3)
            os.dup2(1001, 4)

        self.process = subprocess.Popen(
            [find_chromium(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox",
             "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update",
             "--host-resolver-rules=MAP *.example 127.0.0.1",
             "--disable-extensions", "--disable-sync", "--mute-audio", "--hide-scrollbars",
             f"--user-data-dir={self.folder}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=connect, close_fds=False)
        os.close(from_us)
        os.close(from_browser)
        self.lock = threading.Lock()
        self.next_id = 0
        self.answers = {}
        self.listeners = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        rest = b""
        while piece := os.read(self.from_browser, 1 << 16):
            *whole, rest = (rest + piece).split(b"\0")
            for text in whole:
                message = json.loads(text)
                if "id" in message:
                    self.answers.pop(message["id"]).put(message)
                elif listener := self.listeners.get(message.get("sessionId")):
                    listener(message["method"], message["params"])
        for answer in list(self.answers.values()):
            answer.put({"error": {"message": "the browser has ended"}})

    def call(self, method, session=None, **params):
        answer = queue.Queue()
        with self.lock:
            self.next_id += 1
            number = self.next_id
            self.answers[number] = answer
            message = {"id": number, "method": method, "params": params}
            if session:
                message["sessionId"] = session
            data = json.dumps(message).encode() + b"\0"
            while data:
                data = data[os.write(self.to_browser, data):]
        try:
            reply = answer.get(timeout=TIMEOUT_S)
        except queue.Empty:
            raise ProtocolError(f"{method}: no answer") from None
        if "error" in reply:
            raise ProtocolError(f"{method}: {reply['error']['message']}")
        return reply["result"]

    def page(self, url, **options):
        return Page(self, url, **options)

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowUp": 38, "ArrowDown": 40, " ": 32}


class Page:
    """A tab at a URL. `errors` are exceptions and refused resources of the page."""

    def __init__(self, browser, url, width=1280, height=800, dark=False, before=None):
        self.browser = browser
        self.errors = []
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        self.target = browser.call("Target.createTarget", url="about:blank",
                                   browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target,
                                    flatten=True)["sessionId"]
        browser.listeners[self.session] = self._on_event
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")
        self.resize(width, height)
        self.set_dark(dark)
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        if before:
            self.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        self.go(url)

    def _on_event(self, method, params):
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["source"] in ("security", "violation"):
            self.errors.append(params["entry"]["text"])

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def reload(self):
        self.evaluate("window.isOld = true")
        self.call("Page.reload")
        self.wait("!window.isOld && document.readyState === 'complete'")

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)

    def set_dark(self, dark):
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def evaluate(self, expression):
        """The value of an expression, awaited, as JSON carries it."""
        reply = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                          awaitPromise=True, allowUnsafeEvalBlockedByCSP=False)
        if details := reply.get("exceptionDetails"):
            raise ProtocolError(details.get("exception", {}).get("description", details["text"]))
        return reply["result"].get("value")

    def wait(self, expression, timeout_s=TIMEOUT_S):
        """Waits until an expression holds, and returns its value."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                value = self.evaluate(expression)
                if value not in (None, False, "", 0):
                    return value
            except ProtocolError as error:
                # Between two documents there is nothing to ask.
                if time.monotonic() > end:
                    raise error
            if time.monotonic() > end:
                raise AssertionError(f"still not: {expression}\n{self.text('body')}")
            time.sleep(0.02)

    def text(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def texts(self, selector):
        return self.evaluate(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.innerText)")

    def click(self, selector):
        """A mouse click in the middle of an element that can be seen."""
        box = self.wait(f"""(() => {{
          const element = document.querySelector({json.dumps(selector)});
          if (!element || element.disabled) return null;
          element.scrollIntoView({{block: "nearest"}});
          const box = element.getBoundingClientRect();
          const x = box.x + box.width / 2, y = box.y + box.height / 2;
          const hit = document.elementFromPoint(x, y);
          return box.width > 0 && element.contains(hit) ? [x, y] : null;
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left",
                      clickCount=1)

    def click_text(self, text, within="body"):
        """Clicks the last button of that text."""
        self.wait(f"""(() => {{
          const all = [...document.querySelectorAll({json.dumps(within + " button")})]
            .filter((each) => each.innerText.trim() === {json.dumps(text)} && each.offsetParent);
          document.querySelectorAll("[data-chosen]").forEach((each) => delete each.dataset.chosen);
          if (all.length === 0) return false;
          all[all.length - 1].dataset.chosen = "";
          return true;
        }})()""")
        self.click("[data-chosen]")

    def press(self, key, shift=False):
        text = {"Enter": "\r", " ": " "}.get(key)
        common = {"key": key, "code": "Space" if key == " " else key,
                  "windowsVirtualKeyCode": KEYS[key], "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown",
                  **({"text": text} if text else {}), **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def focused(self):
        """What has the focus, in words."""
        return self.evaluate("""(() => {
          const element = document.activeElement;
          return element.id || element.getAttribute("aria-label") || element.innerText.trim();
        })()""")

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)
        self.browser.listeners.pop(self.session, None)
