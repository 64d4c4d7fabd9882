"""The prompts of the golden files: data only.

PLAIN: name -> text, tokenised without special tokens.
SPECIAL: name -> text in which special tokens are written out and must be parsed.
CHATS: name -> messages, rendered by the model's own template.
LONG: name -> (file in the system's common-licenses folder, index of the first token); 2000 tokens each.
"""

PLAIN = {
    "single_token": "Hello",
    "en_fact": "The capital of France is",
    "en_story": "Once upon a time, in a village at the foot of a mountain, there lived a clockmaker who",
    "de": "Die Würde des Menschen ist unantastbar. Sie zu achten und zu schützen ist",
    "fr": "L'été dernier, nous avons traversé les Pyrénées à pied ; c'était",
    "es": "¿Dónde está la biblioteca? La biblioteca está en",
    "pt": "A língua portuguesa é falada em vários países, não só no Brasil, mas também em",
    "ru": "Все счастливые семьи похожи друг на друга, каждая несчастливая семья",
    "el": "Η Αθήνα είναι η πρωτεύουσα της Ελλάδας και",
    "zh": "人工智能是计算机科学的一个分支,它试图了解智能的实质。今天天气",
    "ja": "吾輩は猫である。名前はまだ無い。どこで生れたか",
    "ko": "대한민국의 수도는 서울이며, 인구는 약",
    "ar": "اللغة العربية هي إحدى أكثر اللغات انتشارًا في العالم، و",
    "he": "ירושלים היא עיר הבירה של",
    "hi": "भारत एक विशाल देश है और इसकी राजधानी",
    "th": "กรุงเทพมหานครเป็นเมืองหลวงของ",
    "emoji": "I ❤️ 🍕 and 👩‍👩‍👧‍👦 love 🏳️‍🌈! Then 🤖 said: \"👍🏽",
    "combining": "Cafe\u0301 nai\u0308ve A\u030angstro\u0308m vs Café naïve Ångström — ﬁ ½ ² ℌ",
    "code_python": "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n    if n < 2:\n        return n\n    ",
    "code_cpp": "#include <vector>\n\ntemplate <typename T>\nT sum(const std::vector<T>& v) {\n\tT s{};\n\tfor (const auto& x : v) {\n\t\t",
    "code_json": "{\n  \"name\": \"widget\",\n  \"sizes\": [1, 2.5, -3e10],\n  \"tags\": [\"a\", \"b\"],\n  \"nested\": {\"x\": null, \"y\": true,",
    "code_html": "<!DOCTYPE html>\n<html lang=\"en\">\n<head><title>Test</title></head>\n<body class='x y'>\n<!-- a comment -->\n<p>",
    "whitespace": "a  b   c    d\te\t\tf\n\n\ng\r\nh \n i\n\n    j        k\u00a0l\u2003m",
    "whitespace_ends": "   leading spaces and trailing newline\n",
    "numbers": "3.14159265358979 1,234,567.89 0x1F 007 1e-9 2026-11-30 12:34:56 +49 (0)30 123456 ١٢٣",
    "sums": "1+1=2, 2+2=4, 3+3=6, 4+4=8, 12+13=",
    "contractions": "It's what they'd've said: we'll, I'm, you're, DON'T, can't, 'tis, o'clock's",
    "punctuation": "Wait... what?!? --- (see [1], {2}); a/b\\c & d|e ~ `f` @user #tag $5 50% ^_^ <<>> «»",
    "url": "See https://www.example.org/a/b.html?x=1&y=%20#frag or mail some.one+tag@example.co.uk for",
    "special_written_out": "The text <|im_start|> is not a token here, nor is <|im_end|> or <|endoftext|>.",
}

SPECIAL = {
    "special_parsed": "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\nHi!<|im_end|>\n<|endoftext|>A new document",
}

CHATS = {
    "chat_one": [{"role": "user", "content": "What is gravity?"}],
    "chat_system": [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
    "chat_turns": [
        {"role": "user", "content": "Name three primary colours."},
        {"role": "assistant", "content": "Red, yellow and blue."},
        {"role": "user", "content": "And which do you get from the first two?"},
    ],
    "chat_unicode": [
        {"role": "system", "content": "Tu es un assistant très poli. 😊"},
        {"role": "user", "content": "Écris un haïku sur l'hiver.\n\n  (en français)  "},
    ],
    "chat_code": [
        {"role": "user", "content": "Write a C++ function that reverses a std::string in place.\n```cpp\n"},
    ],
}

LONG = {
    "long_gpl2": ("GPL-2", 0),
    "long_mpl2": ("MPL-2.0", 500),
}
LONG_TOKENS = 2000
