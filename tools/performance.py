#!/usr/bin/env python3
"""Writes the results in docs/performance.md, and its pictures, from what was measured.

    performance.py [--check] [--page docs/performance.md] [--data docs/performance]

Of the data folder, *.json are documents of tools/compare.py --json, tools/compare_servers.py --json
or tests/server/load.py --json, and *.jsonl are lines of `chorus bench --machine --profile --json`. Everything between the page's two marks is replaced.
--check writes nothing and fails where something would change. Standard library only.
"""
import argparse
import json
import math
import pathlib
import re
import sys
from xml.sax.saxutils import escape

from compare import ratios_by_round

ROOT = pathlib.Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- results: written by tools/performance.py -->", "<!-- end of results -->"
SIDES = {"chorus": ("Chorus", "#0072b2"), "peer": ("llama.cpp", "#d55e00")}
MIB = 2**20


# ---- Pictures -----------------------------------------------------------------------------------

WIDTH, HEIGHT = 420, 300  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 56, 84, 46, 40


def nice_ceiling(value: float) -> float:
    """The end of a scale, of which a quarter is a round number, that is not below a value."""
    power = 10.0 ** math.floor(math.log10(value))
    steps = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10)
    return next(step * power for step in steps if step * power >= value * 0.999999)


def panel(title: str, x_name: str, lines: dict, offset: int) -> str:
    """Values over x, which doubles from tick to tick. lines: side -> [(x, min, median, max)]."""
    xs = sorted({point[0] for points in lines.values() for point in points})
    top = nice_ceiling(max(point[3] for points in lines.values() for point in points))
    low, high = math.log2(xs[0]), math.log2(xs[-1])

    def place(x: float, y: float) -> tuple:
        across = (math.log2(x) - low) / (high - low) if high > low else 0.5
        return (
            offset + LEFT + across * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM),
        )

    left, right = offset + LEFT, offset + WIDTH - RIGHT
    out = [
        f'<text x="{left}" y="16" font-weight="bold">{escape(title)}</text>',
        f'<text x="{left - 40}" y="34">tokens/s of all sessions</text>',
    ]
    for tick in range(5):
        value = top * tick / 4
        _, y = place(xs[0], value)
        out.append(f'<path d="M{left} {y:.1f}H{right}" stroke="#dddddd"/>')
        out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for x in xs:
        across, _ = place(x, 0)
        base = HEIGHT - BOTTOM
        out.append(f'<text x="{across:.1f}" y="{base + 16}" text-anchor="middle">{x:g}</text>')
    middle = (left + right) / 2
    out.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_name)}</text>')
    ends = {}
    for side, points in lines.items():
        name, colour = SIDES[side]
        path = "L".join("{:.1f} {:.1f}".format(*place(p[0], p[2])) for p in points)
        out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, least, median, most in points:
            across, y = place(x, median)
            (_, y_low), (_, y_high) = place(x, least), place(x, most)
            out.append(f'<path d="M{across:.1f} {y_low:.1f}V{y_high:.1f}" stroke="{colour}"/>')
            out.append(f'<circle cx="{across:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        ends[side] = place(points[-1][0], points[-1][2])
    if len(ends) == 2 and abs(ends["chorus"][1] - ends["peer"][1]) < 14:  # names would overlap
        up = "chorus" if ends["chorus"][1] <= ends["peer"][1] else "peer"
        ends = {s: (x, y + (-7 if s == up else 7)) for s, (x, y) in ends.items()}
    for side, (x, y) in ends.items():
        name, colour = SIDES[side]
        out.append(f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" fill="{colour}">{name}</text>')
    return "\n".join(out)


def picture(panels: list) -> str:
    """An SVG of panels side by side: (title, name of x, lines) each."""
    body = "\n".join(panel(*each, offset=i * WIDTH) for i, each in enumerate(panels))
    width = WIDTH * len(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" '
        f'viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" font-size="12" fill="#333333">\n'
        f'<rect width="{width}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def lines_over(rows: list, x: str) -> dict:
    """side -> points over a member of the rows."""
    rows = sorted(rows, key=lambda row: row[x])
    point = lambda row, side: (row[x], *(row[side][k] for k in ("min", "median", "max")))
    return {side: [point(row, side) for row in rows] for side in SIDES}


def models_of(report: dict) -> list:
    return list(dict.fromkeys(row["model"] for row in report["rows"]))


def pictures_of(name: str, report: dict) -> dict:
    """File name -> (SVG, what it shows): throughput over B, and over the context of one B."""
    over_batch, over_context = [], []
    for model in models_of(report):
        decode = [r for r in report["rows"] if r["model"] == model and r["test"] == "decode"]
        short = [row for row in decode if row["prompt"] == 128]
        if len(short) >= 2:
            over_batch.append((model, "sessions", lines_over(short, "batch")))
        for batch in sorted({row["batch"] for row in decode}):
            rows = [row for row in decode if row["batch"] == batch]
            if len(rows) >= 3:
                lines = lines_over(rows, "prompt")
                title = f"{model}, {batch} sessions"
                over_context.append((title, "tokens of context", lines))
    found = {}
    if over_batch:
        found[f"{name}-batch.svg"] = (picture(over_batch), "Throughput over the number of sessions")
    if over_context:
        found[f"{name}-context.svg"] = (picture(over_context), "Throughput over the context")
    return found


# ---- Tables -------------------------------------------------------------------------------------


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def side_text(side: dict) -> str:
    return f"{number(side['median'])} ({number(side['min'])} to {number(side['max'])})"


def machine_line(machine: dict) -> str:
    rates = machine["rates"][-1]
    giga = lambda name: number(rates[name]["max"] * 1e-9)
    trip = machine["round_trip_ns"]
    return (
        f"{giga('read_bytes_per_s')} GB/s read, {giga('int8_macs_per_s')} int8 and "
        f"{giga('float_macs_per_s')} float GMAC/s"
        + (f", {trip['median']:.0f} ns from core to core and back" if trip else "")
    )


def comparison_text(report: dict) -> list:
    peer, rounds = report["peer_commit"] or "unknown", report["rounds"]
    lines = [
        f"{report['cpu']}, {report['threads']} threads, instruction set `{report['isa']}`, "
        f"{report['time'][:16].replace('T', ' ')} UTC; Chorus {report['version']['commit']}, "
        f"llama.cpp {peer}; {rounds} round{'s' if rounds != 1 else ''}. Before: "
        f"{machine_line(report['machine_before'])}. After: "
        f"{machine_line(report['machine_after'])}.",
        "",
        "| model | row | unit | Chorus | llama.cpp | ratio (of each round) | peak MiB, Chorus / llama.cpp "
        "| others |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        sides = [row[side] for side in SIDES]
        peaks = " / ".join(f"{max(side['peak_bytes']) / MIB:.0f}" for side in sides)
        foreign = max(sides[0]["foreign"] + sides[1]["foreign"])
        ratio = f"**{row['ratio']:.2f}**" if row["conclusive"] else f"{row['ratio']:.2f}"
        ratios = ratios_by_round(row["unit"] == "s", *(side["samples"] for side in sides))
        ratio += f" ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append(
            f"| {row['model']} | {row['row']} | {row['unit']} | {side_text(sides[0])} | "
            f"{side_text(sides[1])} | {ratio} | {peaks} | {foreign:.0%} |"
        )
    if not all(row["conclusive"] for row in report["rows"]):
        lines += ["", "Ratios that are not bold are of rows that were too noisy to conclude from."]
    return lines


def limits_text(records: list) -> list:
    """Tables of one `chorus bench --machine --json`, with --profile or without."""
    by_type = lambda kind: [record for record in records if record["type"] == kind]
    (machine,), (conditions,) = by_type("machine"), by_type("conditions")
    lines = [
        f"{conditions['model']['name']}, {conditions['cpu']}, {conditions['threads']} threads, "
        f"instruction set `{conditions['isa']}`, Chorus {conditions['version']['commit']}: "
        f"{machine_line(machine)}.",
        "",
        "| test | sessions | context | tokens/s | step ms, p50 / p99 | bound by | of that limit "
        "| engine's own share | KV MiB | others |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for record in by_type("bench"):
        limit, foreign = record["limit"], record["foreign_load"]
        step = record["step_ms"]
        lines.append(
            f"| {record['test']} | {record['batch']} | {record['prompt']} | "
            f"{side_text(record['tokens_per_s'])} | "
            f"{number(step['p50'])} / {number(step['p99'])} | "
            f"{limit['bound']} | {limit['share']:.0%} | {record['overhead_share']:.1%} | "
            f"{record['kv_bytes'] / MIB:.1f} | {'-' if foreign is None else f'{foreign:.0%}'} |"
        )
    for profile in by_type("profile"):
        lines += [
            "",
            f"Operators of {profile['test']}, {profile['batch']} sessions: share of the time "
            "(and of their own limit): "
            + ", ".join(operator_text(each, profile["busy_ns"]) for each in profile["operators"])
            + ".",
        ]
    return lines


SERVER_FIGURES = [
    ("gap", "longest_s", "longest gap of a stream beside a prompt of 4000 tokens", "s"),
    ("gap", "prompt_s", "until that prompt's first token", "s"),
    ("prefix", "computed_tokens", "prompt tokens computed for 8 requests on 1024 new shared ones", ""),
    ("prefix", "wall_s", "until all 8 are answered", "s"),
    ("chats", "wall_s", "32 chats with one system message, 64 tokens each", "s"),
]


def servers_text(report: dict) -> list:
    """Table of one document of tools/compare_servers.py."""
    lines = [
        f"{report['conditions']}; {report['rounds']} rounds, medians (least to greatest).",
        "",
        "| what | Chorus | llama-server |",
        "|---|---|---|",
    ]
    for test, figure, words, unit in SERVER_FIGURES:
        cells = []
        for side in SIDES:
            values = sorted(result[figure] for result in report["tests"][test][side])
            least, most = number(values[0]), number(values[-1])
            middle = number(values[len(values) // 2])
            cells.append(f"{middle} ({least} to {most}){' ' if unit else ''}{unit}")
        lines.append(f"| {words} | {cells[0]} | {cells[1]} |")
    return lines


def load_text(report: dict) -> list:
    """Table of one document of tests/server/load.py."""
    given, engine = report["arguments"], report["engine"]
    quantiles = ("p50", "p99", "p99.9", "max")
    others = report["foreign_load_cores"]
    lines = [
        f"{given['conditions']}. {given['clients']} clients for {given['seconds']:.0f} s, prompts of "
        f"{given['prompt_words'][0]} to {given['prompt_words'][1]} words, answers of up to "
        f"{given['answer_tokens'][0]} to {given['answer_tokens'][1]} tokens: {report['completed']} answers, "
        f"{number(report['output_throughput'])} tokens/s; 4xx {report['statuses_4xx']}, "
        f"5xx {report['statuses_5xx']}; preemptions {engine['preemptions']:.0f}; others kept "
        f"{'?' if others is None else f'{others:.2f}'} cores busy.",
        "",
        "| ms | " + " | ".join(quantiles) + " |",
        "|---" * (len(quantiles) + 1) + "|",
    ]
    rows = [(f"client: {name}", report[f"{name.lower()}_ms"]) for name in ("TTFT", "ITL", "TPOT", "E2EL")]
    rows += [(f"engine: {name}, at most", engine[f"{name.lower()}_ms"]) for name in ("TTFT", "ITL", "queue", "step")]
    for name, values in rows:
        lines.append(f"| {name} | " + " | ".join(number(values[q]) for q in quantiles) + " |")
    return lines


def operator_text(operator: dict, busy_ns: int) -> str:
    share = operator.get("limit_share")
    limit = "" if share is None else f" ({share:.0%})"
    return f"{operator['name']} {operator['ns'] / busy_ns:.1%}{limit}"


def results_text(data: pathlib.Path, relative: str) -> tuple:
    """(Markdown, {file name: SVG}) of everything in the data folder."""
    lines, svgs = [], {}
    for path in sorted(data.glob("*.json")):
        report = json.loads(path.read_text())
        if report.get("type") == "servers":
            lines += ["", f"### Beside llama-server: {path.stem}", "", *servers_text(report)]
            continue
        if report.get("type") == "load":
            lines += ["", f"### Under load: {path.stem}", "", *load_text(report)]
            continue
        lines += ["", f"### Beside llama.cpp: {path.stem}", "", *comparison_text(report)]
        for name, (svg, caption) in pictures_of(path.stem, report).items():
            svgs[name] = svg
            lines += ["", f"![{caption}]({relative}/{name})"]
    for path in sorted(data.glob("*.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines() if line]
        lines += ["", f"### Beside the machine's limits: {path.stem}", "", *limits_text(records)]
    if not lines:
        lines = ["", "Nothing has been measured with this version yet."]
    return "\n".join(lines) + "\n\n", svgs


def write_or_check(files: dict, check: bool) -> int:
    """Writes the files that differ, or names them."""
    changed = [p for p, text in files.items() if not p.exists() or p.read_text() != text]
    for path in changed:
        print(f"{path} {'is not what the data say' if check else 'written'}")
        if not check:
            path.write_text(files[path])
    return 1 if check and changed else 0


def main(words: list) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/performance.md")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "docs/performance")
    args = parser.parse_args(words)
    page = args.page.read_text()
    marks = re.compile(f"({re.escape(BEGIN)}\n).*({re.escape(END)})", re.S)
    if marks.search(page) is None:
        print(f"{args.page}: expected the marks {BEGIN} and {END}", file=sys.stderr)
        return 2
    text, svgs = results_text(args.data, args.data.name)
    files = {args.data / name: svg for name, svg in svgs.items()}
    files[args.page] = marks.sub(lambda match: match[1] + text + match[2], page)
    return write_or_check(files, args.check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
