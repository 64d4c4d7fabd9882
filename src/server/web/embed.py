#!/usr/bin/env python3
"""Puts the page together from its sources and writes it as C++.

Each <link rel="stylesheet" href="X"> and <script src="X"></script> of page.html, on a line of its
own, becomes the text of X inside <style> or <script>. The Content-Security-Policy allows these by
their hashes.
"""
import argparse
import base64
import hashlib
import pathlib
import re

REFERENCE = re.compile(
    r'<link rel="stylesheet" href="(?P<style>[\w.]+)">|<script src="(?P<script>[\w.]+)"></script>')
LINE_BYTES = 96


def put_together(folder):
    """The page, and the hashes of its styles and scripts as CSP writes them."""
    hashes = {"style": [], "script": []}

    def inline(match):
        kind = "style" if match["style"] else "script"
        text = "\n" + (folder / match[kind]).read_text()
        if f"</{kind}" in text or "<!--" in text:
            raise SystemExit(f"{match[kind]}: what ends a {kind} may not be in it")
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
        return f"<{kind}>{text}</{kind}>"

    return REFERENCE.sub(inline, (folder / "page.html").read_text()).encode(), hashes


def policy(hashes):
    return "; ".join([
        "default-src 'none'",
        "script-src " + " ".join(hashes["script"]),
        "style-src " + " ".join(hashes["style"]),
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ])


def literal(data):
    """Bytes as string literals, a line each."""
    def escape(byte):
        char = chr(byte)
        if char in '"\\':
            return "\\" + char
        return char if 32 <= byte < 127 and char != "?" else f"\\{byte:03o}"
    pieces = [data[at:at + LINE_BYTES] for at in range(0, len(data), LINE_BYTES)]
    return "\n".join('    "' + "".join(map(escape, piece)) + '"' for piece in pieces)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="of the sources")
    parser.add_argument("output", type=pathlib.Path, help="the C++ source, or with .html the page")
    args = parser.parse_args()
    page, hashes = put_together(args.folder)
    if args.output.suffix == ".html":
        args.output.write_bytes(page)
        return
    etag = hashlib.sha256(page + policy(hashes).encode()).hexdigest()[:32]
    args.output.write_text(f"""// Written by embed.py.
#include "server/web/page_data.h"

namespace chorus::web {{

const std::string_view kPageData(
{literal(page)},
    {len(page)});
const std::string_view kPageTag("\\"{etag}\\"");
const std::string_view kPagePolicy(
{literal(policy(hashes).encode())});

}}  // namespace chorus::web
""")


if __name__ == "__main__":
    main()
