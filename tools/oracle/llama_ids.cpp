// Ids of many texts by llama.cpp's tokenizer, for make_tokenizer_goldens.py: what llama-tokenize
// prints for each, without a start of the process for each. It needs the few objects of llama.cpp
// that hold the vocabulary, and not its models. In LLAMA, a checkout of llama.cpp:
//
//   cmake -G Ninja -S LLAMA -B LLAMA/build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF
//   cd LLAMA/build && ninja ggml/src/libggml-base.a $(for name in llama-arch llama-hparams
//   llama-impl \
//       llama-mmap llama-model-loader llama-vocab unicode-data unicode; do
//       echo src/CMakeFiles/llama.dir/$name.cpp.o; done)
//   g++ -std=c++17 -no-pie -ILLAMA/src -ILLAMA/include -ILLAMA/ggml/include llama_ids.cpp \
//       src/CMakeFiles/llama.dir/*.cpp.o ggml/src/libggml-base.a -fopenmp -o llama_ids
//
// llama_ids FILE.gguf. Reads lines: "plain HEX" or "special HEX", a text's bytes, without or with
// special tokens recognised; or "pieces". Writes a line for each: ids; or the SHA-256 of the bytes
// of all tokens but the unused ones, in hexadecimal with a line feed after each.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama-model-loader.h"
#include "llama-vocab.h"

// What the loader would call for weights; here it never does.
extern "C" {
ggml_backend_dev_t ggml_backend_dev_by_type(enum ggml_backend_dev_type) { std::abort(); }
int32_t llama_split_path(char*, size_t, const char*, int32_t, int32_t) { std::abort(); }
int32_t llama_split_prefix(char*, size_t, const char*, int32_t, int32_t) { std::abort(); }
}

namespace {

std::string from_hex(const std::string& hex) {
  std::string text;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    text.push_back(static_cast<char>(std::strtol(hex.substr(i, 2).c_str(), nullptr, 16)));
  }
  return text;
}

void print_ids(const llama_vocab& vocabulary, const std::string& text, bool special) {
  const std::vector<llama_token> ids = vocabulary.tokenize(text, /*add_special=*/false, special);
  for (size_t i = 0; i < ids.size(); ++i) std::printf(i > 0 ? " %d" : "%d", ids[i]);
  std::printf("\n");
}

void print_pieces_hash(const llama_vocab& vocabulary) {
  std::fflush(stdout);
  FILE* hash = popen("sha256sum | cut -c 1-64", "w");
  const auto count = static_cast<llama_token>(vocabulary.n_tokens());
  for (llama_token id = 0; id < count; ++id) {
    if ((vocabulary.token_get_attr(id) & LLAMA_TOKEN_ATTR_UNUSED) != 0) continue;
    for (const char byte : vocabulary.token_to_piece(id)) {
      std::fprintf(hash, "%02x", static_cast<unsigned char>(byte));
    }
    std::fprintf(hash, "\n");
  }
  pclose(hash);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::vector<std::string> splits;
  llama_model_loader loader(nullptr, nullptr, nullptr, argv[1], splits, nullptr,
                            LLAMA_LOAD_MODE_NONE, false, true, false, nullptr, nullptr);
  llama_vocab vocabulary;
  vocabulary.load(loader, LLM_KV(loader.get_arch()));
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line == "pieces") {
      print_pieces_hash(vocabulary);
      continue;
    }
    const size_t space = line.find(' ');
    print_ids(vocabulary, from_hex(line.substr(space + 1)), line.compare(0, space, "special") == 0);
  }
}
