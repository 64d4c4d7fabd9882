#!/usr/bin/env python3
"""Checks the layer rule: a folder includes only headers of its own layer and of the layers it declares.

Reads the table that cmake/layers.cmake writes (name|folder|dependencies|headers|public headers) and
every quoted #include below the source root and the root of the public headers. Fails on an include
of an undeclared layer, of a header that no list names, and on a header in a layer's folder that its
list does not name. A public header may include public headers only, by the names they are installed
under ("chorus/exec/types.h").
"""
import argparse
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
SUFFIXES = {".h", ".cpp", ".inc"}
PREFIX = "chorus/"  # of installed headers


def read_table(path):
    """[(name, folder, dependencies, headers, public headers)], innermost folders first."""
    rows = []
    for line in path.read_text().splitlines():
        if line.strip():
            name, folder, deps, headers, public = line.split("|")
            rows.append((name, folder, deps.split(), headers.split(), public.split()))
    return sorted(rows, key=lambda row: -len(row[1]))


def layer_of(path, rows):
    for name, folder, *_ in rows:
        if path == folder or path.startswith(folder + "/"):
            return name
    return None


def check(rows, source, public_root):
    errors = []
    allowed = {name: {name, *deps} for name, _, deps, *_ in rows}
    private = {f"{folder}/{header}" for _, folder, _, headers, _ in rows for header in headers}
    public = {f"{folder}/{header}" for _, folder, *_, headers in rows for header in headers}
    listed = private | public

    def without_prefix(name):
        """An include as sources write it: "chorus/exec/types.h" is "exec/types.h"."""
        rest = name.removeprefix(PREFIX)
        return rest if name.startswith(PREFIX) and rest in public else name

    def check_file(file, relative, layer, is_public):
        is_test = file.stem.endswith("_test")
        for written in INCLUDE.findall(file.read_text()):
            include = without_prefix(written)
            target = layer_of(include, rows)
            if is_public and (not written.startswith(PREFIX) or include not in public):
                errors.append(f'{relative}: the public header includes "{written}", which is not')
            elif target is None:
                if (source / include).exists() or not include.endswith("_generated.h"):
                    errors.append(f'{relative}: "{include}" is in no layer (includes start at src/)')
            elif target not in allowed[layer] and not is_test:
                errors.append(f'{relative}: layer {layer} may not include "{include}" of layer {target}')
            elif include not in listed and include.endswith(".h") and not include.endswith("_generated.h"):
                errors.append(f'{relative}: "{include}" is in no HEADERS list')

    for file in sorted(source.rglob("*")):
        relative = file.relative_to(source).as_posix()
        layer = layer_of(relative, rows)
        if file.suffix not in SUFFIXES or layer is None:
            continue
        if file.suffix == ".h" and relative not in private:
            errors.append(f"{relative}: the header is in no HEADERS list")
        check_file(file, relative, layer, False)
    for file in sorted(public_root.rglob("*.h")):
        relative = file.relative_to(public_root).as_posix()
        name = relative if "/" in relative else PREFIX + relative  # the facade's have no folder
        if name not in public:
            errors.append(f"{PREFIX}{relative}: the header is in no PUBLIC list")
            continue
        check_file(file, PREFIX + relative, layer_of(name, rows), True)
    return errors


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--public", type=pathlib.Path, required=True)
    args = parser.parse_args()
    rows = read_table(args.table)
    if not rows:
        sys.exit(f"{args.table}: no layers")
    errors = check(rows, args.source, args.public)
    print("\n".join(errors) if errors else f"{len(rows)} layers, no forbidden include")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
