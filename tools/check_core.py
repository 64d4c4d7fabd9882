#!/usr/bin/env python3
"""Checks that kv, batching and engine need no backend, no program and no model: by the table of layers
that cmake/layers.cmake writes, and by compiling them and what they need without exceptions and
run-time type information, which a small target may lack."""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys

CORE = ("kv", "batching", "engine")
ALLOWED = {"base", "kv", "exec", "batching", "engine"}
FLAGS = ["-std=c++20", "-fsyntax-only", "-fno-exceptions", "-fno-rtti"]


def needed_layers(table):
    """The core with all that it depends on, and the folder of each."""
    layers = {}
    for line in table.splitlines():
        name, folder, deps, *_ = line.split("|")
        layers[name] = (folder, deps.split())
    needed, left = {}, list(CORE)
    while left:
        name = left.pop()
        if name not in needed:
            needed[name] = layers[name][0]
            left += layers[name][1]
    return needed


def compile_errors(compiler, root, source):
    includes = [f"-I{root / folder}" for folder in ("src", "include", "include/chorus")]
    done = subprocess.run([compiler, *FLAGS, *includes, source], capture_output=True, text=True)
    return f"{source}\n{done.stderr}" if done.returncode != 0 else ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", type=pathlib.Path, required=True)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--compiler", required=True)
    arguments = parser.parse_args()
    needed = needed_layers(arguments.table.read_text())
    errors = [f"the core needs the layer {name}" for name in sorted(needed) if name not in ALLOWED]
    sources = [
        source
        for folder in needed.values()
        for source in sorted((arguments.root / "src" / folder).rglob("*.cpp"))
        if not source.name.endswith("_test.cpp")
    ]
    if len(sources) < 20:
        errors.append(f"found {len(sources)} sources only")
    check = lambda source: compile_errors(arguments.compiler, arguments.root, source)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        errors += filter(None, pool.map(check, sources))
    print("\n".join(errors) if errors else f"{len(sources)} sources, no error")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
