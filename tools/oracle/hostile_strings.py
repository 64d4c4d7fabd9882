"""Strings that tokenizers get wrong: every script, runs of white space, control characters, very long
words, and text that looks like special tokens. The same seed gives the same strings."""

import random

SPECIAL_LOOKALIKES = [
    "<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "<mask>", "<|im_start|>", "<|im_end|>",
    "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<start_of_turn>",
    "<end_of_turn>", "<unused7>", "<0x0A>", "<0x41>", "<0x-1>", "[UNK]", "[CLS]", "<tool>", "<|tool|>",
    "<|im_end", "im_end|>", "<|im_end|>>", "<<|im_end|>", "< |im_end|>", "<\u200b|im_end|>", "<table>",
    "</table>", "<h1>", "[multimodal]", "\u2581", "\u2581\u2581", "\u2581the", "\ufdd00\ufdd1",
]
SPACES = [
    " ", " ", " ", "\t", "\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0", "\u1680",
    "\u2002", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff",
]
WORDS = [
    "the", "The", "HELLO", "helloWorld", "XMLHttpRequest", "it's", "IT'S", "we'Ve", "I'LL", "don't",
    "'tis", "''s", "\u2019s", "\u2019S", "'\u017f", "caf\xe9", "cafe\u0301", "na\xefve", "stra\xdfe",
    "\u01c5\u01c8", "\u041f\u0440\u0438\u0432\u0435\u0442", "\u03b3\u03b5\u03b9\u03ac",
    "\u0645\u0631\u062d\u0628\u0627", "\u05e9\u05dc\u05d5\u05dd", "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u4f60\u597d\u4e16\u754c", "\u3053\u3093\u306b\u3061\u306f",
    "\u30ab\u30bf\u30ab\u30ca", "\uc548\ub155", "\u1112\u1161\u11ab", "\u1780\u17b6\u1793\u17cb",
    "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea",
    "\u2764\ufe0f", "1\ufe0f\u20e3", "\U0001d400\U0001d7d8", "\ufb01", "\uff21\uff11", "\u2160\u2167",
    "\xb2\xbd", "\u0661\u0662\u0663", "\u0967\u0968", "0", "7", "42", "123", "1234", "12345678", "3.14",
    "1,000,000", "0x1F", "1e-9", "2024-01-31", "a1b2", "x_y", "snake_case", "kebab-case", "http://a.b/c?d=e&f",
    "user@example.com", "C++", "#include", "\\n", "\\u00e9", "{\"a\": [1, 2]}", "<b>", "a</b>", "//", "/*",
    "$x", "x^2", "`code`", "~~", "|", "...", "\u2026", "!?", "\xbf", "\u2014", "--", "(", ")", "[", "]",
]
RANGES = [
    (0x00, 0x1f), (0x20, 0x7e), (0x7f, 0x9f), (0xa0, 0x24f), (0x250, 0x36f), (0x370, 0x52f),
    (0x530, 0x8ff), (0x900, 0xdff), (0xe00, 0x11ff), (0x1200, 0x1cff), (0x1d00, 0x20cf),
    (0x20d0, 0x2bff), (0x2c00, 0x2fff), (0x3000, 0x33ff), (0x3400, 0x9fff), (0xa000, 0xd7ff),
    (0xe000, 0xf8ff), (0xf900, 0xffff), (0x10000, 0x107ff), (0x10800, 0x11fff), (0x12000, 0x1d0ff),
    (0x1d100, 0x1f8ff), (0x1f900, 0x1ffff), (0x20000, 0x323af), (0xe0000, 0xe01ef), (0xf0000, 0x10ffff),
]


# Blocks of letters younger than the tables of some libraries: U+105C0 to U+105FF (Unicode 16).
TOO_YOUNG = range(0x105c0, 0x10600)


def _characters(rng, most):
    low, high = rng.choice(RANGES)
    found = [rng.randint(low, high) for _ in range(rng.randint(1, most))]
    return "".join(chr(character) for character in found if character not in TOO_YOUNG)


def _mixture(rng):
    parts = []
    for _ in range(rng.randint(1, 8)):
        kind = rng.random()
        if kind < 0.45:
            parts.append(rng.choice(WORDS))
        elif kind < 0.75:
            parts.append(rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 3, 5]))
        elif kind < 0.87:
            parts.append(_characters(rng, 4))
        else:
            parts.append(rng.choice(SPECIAL_LOOKALIKES))
    return "".join(parts)


def hostile_strings(count=2200, seed=20261130):
    """Distinct strings, the first of them fixed."""
    rng = random.Random(seed)
    fixed = ["", " ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\t", "\r\n", "\0", "a\0b", "\x7f"]
    fixed += SPECIAL_LOOKALIKES + WORDS
    fixed += [a + b for a in ("", " ", "a") for b in SPECIAL_LOOKALIKES[:20]]
    fixed += [space * n for space in SPACES for n in (2, 7)]
    fixed += [unit * n for unit, n in (
        ("a", 1500), ("A", 700), ("aB", 400), (" ", 900), ("\n", 300), ("\r\n", 90), ("1", 600),
        (".", 500), ("\xe9", 300), ("e\u0301", 150), ("\u4e2d", 300), ("\U0001f600", 120), ("ab ", 250),
        ("\t ", 200), ("<s>", 80), ("'s", 100), ("=", 333), ("\x01", 40), ("\U00012345", 60),
        ("\u2581", 50), ("the quick brown fox ", 40))]
    fixed += ["x" * 60 + " " * n + "y" for n in range(1, 40)]
    fixed += ["\n" * n for n in range(3, 40)] + ["\t" * n for n in range(3, 40)]
    strings = list(dict.fromkeys(fixed))
    seen = set(strings)
    while len(strings) < count:
        text = _mixture(rng) if rng.random() < 0.8 else _characters(rng, 12)
        if text not in seen:
            seen.add(text)
            strings.append(text)
    return strings
