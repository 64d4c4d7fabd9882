#!/usr/bin/env python3
"""kill -9 while sessions are saved: what was saved before is whole, and the server that is started
next serves it."""

import http.client
import os
import random
import threading
import time

import serving
import support
from serving import ServerTest

NUM_KILLS = 12


class SavingTest(ServerTest):
    def start(self):
        return self.serve("--session-dir", str(self.folder))

    def answer(self, server, session: str) -> list:
        """What the session says next, in a copy of it."""
        copy = server.post(f"/v1/sessions/{session}/fork", {})["id"]
        done = server.post(
            f"/v1/sessions/{copy}/generate",
            {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": True},
        )
        self.assertEqual(200, server.ask("DELETE", f"/v1/sessions/{copy}").status)
        return done["choices"]

    def test_killed_while_saving(self):
        rng = random.Random(support.seed())
        server = self.start()
        words = "the sea " * 60
        session = server.post("/v1/sessions", {"model": server.model, "prompt": words})["id"]
        expected = self.answer(server, session)
        server.post(f"/v1/sessions/{session}/save", {"name": "kept"})
        pauses = []
        for _ in range(NUM_KILLS):
            ready = threading.Event()
            saved = [0]

            def save_again_and_again() -> None:
                connection = server.connect()
                try:
                    while True:
                        answer = serving.ask_through(
                            connection, "POST", f"/v1/sessions/{session}/save", {"name": "kept"}
                        )
                        self.assertEqual(200, answer.status, answer)
                        saved[0] += 1
                        ready.set()
                except (ConnectionError, http.client.HTTPException, OSError):
                    pass
                finally:
                    connection.close()

            client = threading.Thread(target=save_again_and_again)
            client.start()
            self.assertTrue(ready.wait(serving.PATIENCE_S))
            time.sleep(rng.uniform(0, 0.05))
            server.process.kill()
            client.join()
            server.kill()
            pauses.append(saved[0])
            files = [name for name in os.listdir(self.folder) if name.endswith("kept.session")]
            self.assertEqual(1, len(files), os.listdir(self.folder))
            server = self.start()
            session = server.post("/v1/sessions/load", {"name": "kept"})["id"]
            self.assertEqual(expected, self.answer(server, session))
        serving.say(f"killed {NUM_KILLS} times within {sum(pauses)} saves: the file stayed whole")

    def test_what_cannot_be_loaded_changes_nothing(self):
        server = self.start()
        session = server.post("/v1/sessions", {"model": server.model, "prompt": "snow"})["id"]
        expected = self.answer(server, session)
        (self.folder / "broken.session").write_bytes(b"no session")
        for name, status in [("missing", 404), ("broken", 400), ("../kept", 400), ("", 400), ("a/b", 400)]:
            answer = server.ask("POST", "/v1/sessions/load", {"name": name})
            self.assertEqual(status, answer.status, f"{name!r}: {answer}")
            self.assertIn("error", answer.json)
        self.assertEqual(expected, self.answer(server, session))
        self.assertEqual(1, len(server.ask("GET", "/v1/sessions").json["data"]))


if __name__ == "__main__":
    support.main()
