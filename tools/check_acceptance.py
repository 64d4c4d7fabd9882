#!/usr/bin/env python3
"""Checks that every test that docs/acceptance.md names exists: `Suite.Name`, `ctest NAME`, `fuzz NAME`.

A `Suite.Name` is a gtest, or a method of a Python test.
"""
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("src", "apps", "bench", "tests", "fuzz")
GTEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.M)
ADDED = re.compile(r"\b(?:add_test|chorus_test|chorus_python_test)\(\s*NAME\s+(\w+)")
FUZZED = re.compile(r"\bchorus_fuzz\(\s*(\w+)")
ROW = re.compile(r"^\| *(\d+) *\|", re.M)


def texts(pattern):
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob(pattern)):
            yield path.read_text()


def existing():
    names = set()
    for text in texts("*.cpp"):
        names.update(f"{suite}.{name}" for suite, name in GTEST.findall(text))
    for text in texts("*.py"):
        for suite in ast.parse(text).body:
            if isinstance(suite, ast.ClassDef):
                names.update(f"{suite.name}.{each.name}" for each in suite.body
                             if isinstance(each, ast.FunctionDef) and each.name.startswith("test_"))
    for text in texts("CMakeLists.txt"):
        names.update(f"ctest {name}" for name in ADDED.findall(text))
        names.update(f"fuzz {name}" for name in FUZZED.findall(text))
    return names


def check(page, names):
    errors = []
    numbers = [int(number) for number in ROW.findall(page)]
    if numbers != sorted(set(numbers)):
        errors.append("the numbers are not in order, each once")
    for line in page.splitlines():
        if not ROW.match(line):
            continue
        tests = re.findall(r"`([^`]+)`", line.split("|")[3])
        if not tests:
            errors.append(f"no test: {line}")
        errors += [f"there is no test {test}" for test in tests if test not in names]
    if not numbers:
        errors.append("no row was found")
    return errors


def main():
    errors = check((ROOT / "docs/acceptance.md").read_text(), existing())
    print("\n".join(errors) if errors else "every test that is named exists")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
