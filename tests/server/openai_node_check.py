#!/usr/bin/env python3
"""The official JavaScript client (openai_node_check.mjs) against a server of the model.

Environment: CHORUS_NODE_FOLDER is where the npm package was installed.
"""

import os
import pathlib
import subprocess

import serving
import support

SCRIPT = pathlib.Path(__file__).resolve().parent / "openai_node_check.mjs"


class NodeTest(serving.ServerTest):
    def test_every_call(self):
        server = self.serve("--api-key", "secret", "--open-metrics")
        words = ["node", SCRIPT, server.base_url(), server.model, "secret", os.environ["CHORUS_NODE_FOLDER"]]
        self.assertEqual(0, subprocess.run(words, timeout=600).returncode)
        server.wait_idle()


if __name__ == "__main__":
    support.main()
