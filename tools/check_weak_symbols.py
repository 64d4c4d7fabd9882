#!/usr/bin/env python3
"""Fails when an object file in an archive defines a symbol that the linker may share with others.

A file built with the flags of one instruction set must not: the linker keeps one copy of a weak
function for the whole program, and that copy would then run on processors without the set. Names
that sanitizers add are not functions of ours and are left out.
"""
import argparse
import subprocess
import sys

WEAK_TYPES = "WVuwv"


def shared_symbols(nm_output, members):
    """(member, symbol) for each weak or unique definition; raises when a member is not there."""
    found = []
    missing = set(members)
    member = None
    for line in nm_output.splitlines():
        if line.endswith(".o:"):
            member = line[:-1]
            missing.discard(member)
            continue
        fields = line.split()
        if member not in members or len(fields) < 3:  # an undefined symbol has two fields
            continue
        kind, name = fields[1], fields[2]
        if kind in WEAK_TYPES and not name.startswith(("__odr_asan", "DW.ref", "__asan", "__ubsan")):
            found.append((member, name))
    if missing:
        raise SystemExit(f"not in the archive: {', '.join(sorted(missing))}")
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--archive", required=True)
    parser.add_argument("members", nargs="+")
    args = parser.parse_args()
    output = subprocess.run([args.nm, args.archive], check=True, capture_output=True, text=True).stdout
    found = shared_symbols(output, set(args.members))
    for member, name in found:
        print(f"{member}: {name} could be shared by the linker")
    if not found:
        print(f"{len(args.members)} objects, no symbol that could be shared")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
