#!/usr/bin/env python3
"""./dev server-check [PART...]: real clients and proxies, and storms, against `chorus serve`.

Every part is a file of tests beside this one; what it found is on stderr. A part fails where what it
needs is not installed. Environment: CHORUS_BIN; CHORUS_DEMO_MODEL; CHORUS_NODE_FOLDER (node).
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# Name: the words for Python, whether the demo model is served, and more environment.
PARTS = {
    "openai-python": (["openai_python_check.py"], True, {}),
    "openai-node": (["openai_node_check.py"], True, {}),
    "lm-eval": (["lm_eval_check.py"], True, {}),
    "prometheus": (["prometheus_check.py"], False, {}),
    "proxies": (["proxies_check.py"], True, {}),
    "web": (["-m", "unittest", "discover", "-s", "../web", "-p", "*_test.py"], True, {}),
    "docs": (["docs_test.py"], True, {}),
    "identity": (["identity_test.py"], True, {}),
    "load": (["load_test.py"], False, {}),
    "saving": (["saving_test.py"], True, {}),
    "storm": (["storm_test.py"], False, {"CHORUS_STORM": "1000"}),
}


def run(name: str) -> bool:
    words, on_demo_model, extra = PARTS[name]
    env = os.environ | extra
    env["CHORUS_SERVER_MODEL"] = os.environ["CHORUS_DEMO_MODEL"] if on_demo_model else ""
    print(f"server-check: {name}", file=sys.stderr, flush=True)
    begin = time.monotonic()
    code = subprocess.run([sys.executable, "-B", *words], env=env, cwd=HERE).returncode
    word = "passed" if code == 0 else "FAILED"
    print(f"server-check: {name} {word} after {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return code == 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev server-check", description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[[], *PARTS], help=", ".join(PARTS))
    chosen = parser.parse_args().parts or list(PARTS)
    failed = [name for name in chosen if not run(name)]
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed{': ' if failed else ''}{', '.join(failed)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
