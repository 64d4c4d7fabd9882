#!/usr/bin/env python3
"""Checks the layer rule: a folder includes only headers of its own layer and of the layers it declares.

Reads the table that cmake/layers.cmake writes (name|folder|dependencies|headers) and every quoted
#include below the source root. Fails on an include of an undeclared layer, of a header that no list
names, and on a header in a layer's folder that its list does not name.
"""
import argparse
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
SUFFIXES = {".h", ".cpp", ".inc"}


def read_table(path):
    """[(name, folder, dependencies, headers)], innermost folders first."""
    rows = []
    for line in path.read_text().splitlines():
        if line.strip():
            name, folder, deps, headers = line.split("|")
            rows.append((name, folder, deps.split(), headers.split()))
    return sorted(rows, key=lambda row: -len(row[1]))


def layer_of(path, rows):
    for name, folder, _, _ in rows:
        if path == folder or path.startswith(folder + "/"):
            return name
    return None


def check(rows, source):
    errors = []
    allowed = {name: {name, *deps} for name, _, deps, _ in rows}
    listed = {f"{folder}/{header}" for _, folder, _, headers in rows for header in headers}
    for file in sorted(source.rglob("*")):
        relative = file.relative_to(source).as_posix()
        layer = layer_of(relative, rows)
        if file.suffix not in SUFFIXES or layer is None:
            continue
        if file.suffix == ".h" and relative not in listed:
            errors.append(f"{relative}: the header is in no HEADERS list")
        is_test = file.stem.endswith("_test")
        for include in INCLUDE.findall(file.read_text()):
            target = layer_of(include, rows)
            if target is None:
                if (source / include).exists() or not include.endswith("_generated.h"):
                    errors.append(f'{relative}: "{include}" is in no layer (includes start at src/)')
            elif target not in allowed[layer] and not is_test:
                errors.append(f'{relative}: layer {layer} may not include "{include}" of layer {target}')
            elif include not in listed and include.endswith(".h") and not include.endswith("_generated.h"):
                errors.append(f'{relative}: "{include}" is in no HEADERS list')
    return errors


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    args = parser.parse_args()
    rows = read_table(args.table)
    if not rows:
        sys.exit(f"{args.table}: no layers")
    errors = check(rows, args.source)
    print("\n".join(errors) if errors else f"{len(rows)} layers, no forbidden include")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
