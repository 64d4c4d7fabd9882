"""What a GGUF says about text (template, byte-level pieces), by none of the project's readers."""

import gguf
import jinja2
import jinja2.sandbox


def field(reader: gguf.GGUFReader, name: str, default=None):
    """Value of a metadata key, or `default`."""
    found = reader.get_field(name)
    return default if found is None else found.contents()


def byte_of_char() -> dict[str, int]:
    """Inverse of GPT-2's map of the 256 bytes onto printable characters."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in printable}
    unprintable = (b for b in range(256) if b not in printable)
    table.update({chr(256 + n): b for n, b in enumerate(unprintable)})
    return table


class Pieces:
    """Turns ids of a byte-level BPE vocabulary into bytes (special tokens give their own text)."""

    def __init__(self, reader: gguf.GGUFReader):
        self.tokens = field(reader, "tokenizer.ggml.tokens")
        self.types = field(reader, "tokenizer.ggml.token_type")
        self.bytes = byte_of_char()

    def decode(self, ids: list[int]) -> bytes:
        out = bytearray()
        for token in ids:
            text = self.tokens[token]
            if self.types[token] == gguf.TokenType.NORMAL:
                out += bytes(self.bytes[c] for c in text)
            else:
                out += text.encode()
        return bytes(out)


def render(reader: gguf.GGUFReader, messages: list[dict]) -> str:
    """The conversation by the model's own template, with the generation prompt."""
    # trim_blocks and lstrip_blocks are what chat templates are written for.
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = env.from_string(field(reader, "tokenizer.chat_template"))
    return template.render(messages=messages, add_generation_prompt=True)
