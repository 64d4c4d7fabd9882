#!/usr/bin/env python3
"""Makes GGUF files of checkpoints in tests/golden/folders with llama.cpp's own converter.

    convert_tiny_folders.py --llama LLAMA_CPP --folders tests/golden/folders NAME...      by hand

LLAMA_CPP is a checkout of llama.cpp. NAME.gguf stands beside the folder NAME and has the types of the
folder's tensors. The checkpoints have no tokenizer, so the files have none: that step is left out
(where the converter counts a tokenizer's tokens, it finds as many as the embedding has rows).
"""

import argparse
import json
import pathlib
import runpy
import shutil
import sys
import tempfile


def write_counted_tokenizer(folder):
    config = json.loads((folder / "config.json").read_text())
    size = config.get("text_config", config)["vocab_size"]
    tokenizer = {"model": {"vocab": {str(n): n for n in range(size)}}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", type=pathlib.Path, required=True)
    parser.add_argument("--folders", type=pathlib.Path, required=True)
    parser.add_argument("names", nargs="+")
    args = parser.parse_args()
    sys.path[:0] = [str(args.llama), str(args.llama / "gguf-py")]
    from conversion.base import TextModel
    import conversion

    temporary = tempfile.TemporaryDirectory()
    for name in args.names:
        folder = pathlib.Path(temporary.name) / name
        shutil.copytree(args.folders / name, folder)
        write_counted_tokenizer(folder)
        kind = conversion.get_model_class(TextModel.load_hparams(folder, False)["architectures"][0])
        kind.set_vocab = lambda self: self.gguf_writer.add_tokenizer_model("none")
        sys.argv = ["convert_hf_to_gguf.py", str(folder), "--outtype", "auto", "--outfile",
                    str(args.folders / f"{name}.gguf")]
        runpy.run_path(str(args.llama / "convert_hf_to_gguf.py"), run_name="__main__")


if __name__ == "__main__":
    main()
