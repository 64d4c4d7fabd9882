// Writes seed inputs for the reader fuzzers: write_seeds FOLDER makes FOLDER/gguf_reader_fuzz,
// FOLDER/program_reader_fuzz and FOLDER/session_fuzz. The same build gives the same files.
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/memory_map.h"
#include "engine/saved_session.h"
#include "exec/fake_module.h"
#include "executors/module_executor.h"
#include "exporter/testing/gguf_writer.h"
#include "program/testing/tiny_program.h"

namespace {

using namespace chorus;

bool write(const std::string& folder, const std::string& name, std::span<const std::byte> bytes) {
  std::filesystem::create_directories(folder);
  const std::span<const std::byte> parts[] = {bytes};
  const Status status = write_file_atomically(folder + "/" + name, parts);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return status.ok();
}

bool write_gguf(const std::string& folder) {
  GgufWriter scored = tiny_gguf();
  scored.set_string("tokenizer.ggml.model", "llama");
  scored.set_f32s("tokenizer.ggml.scores", std::vector<float>(20, -1.0f));
  scored.tensors.push_back(
      {"output.weight", {32, 20}, kGgmlF32, random_matrix(WeightType::kF32, 20, 32, 9)});
  scored.set_f32("llama.rope.freq_base", 1e5f);
  return write(folder, "tied", tiny_gguf().finish()) && write(folder, "scored", scored.finish());
}

bool write_program(const std::string& folder) {
  for (const bool tied : {true, false}) {
    TinyOptions options;
    options.num_layers = tied ? 2 : 1;
    options.width = 32;
    options.ff_width = 32;
    options.num_heads = 2;
    options.num_kv_heads = 1;
    options.vocabulary = 21;
    options.tokenizer = tied;
    options.window = tied ? 8 : 0;
    options.tied = tied;
    const auto image = tiny_builder(options).build_image();
    if (!image.ok()) return false;
    for (const std::byte mode : {std::byte{0}, std::byte{1}}) {
      std::vector<std::byte> input{mode};
      input.insert(input.end(), image->bytes().begin(), image->bytes().end());
      const std::string name = std::string(tied ? "tied" : "untied") +
                               (mode == std::byte{0} ? "_repaired" : "_as_it_is");
      if (!write(folder, name, input)) return false;
    }
  }
  return true;
}

class Sink final : public ByteSink {
 public:
  Status write(std::span<const std::byte> bytes) override {
    content.insert(content.end(), bytes.begin(), bytes.end());
    return {};
  }
  std::vector<std::byte> content;
};

// With the layer groups that session_fuzz has.
bool write_sessions(const std::string& folder) {
  FakeModuleOptions options;
  options.groups.push_back({.policy = {}, .num_blocks = 8});
  options.groups.push_back({.policy = {.window = 20}, .num_blocks = 8});
  FakeModule module(options);
  const auto executor = std::move(ModuleExecutor::create(module, {4, 100})).value();
  const SessionId session = executor->open({}).value();
  SavedSession saved{.tokens = std::vector<TokenId>(60, 3)};
  BatchInput input{.session = session};
  input.tokens = std::make_shared<const std::vector<TokenId>>(saved.tokens);
  input.size = 60;
  BatchOutput output;
  CHORUS_CHECK(executor->execute(std::span(&input, 1), output).ok());
  Sink sink;
  CHORUS_CHECK(executor->save(session, sink).ok());
  saved.format = executor->info().kv_format;
  for (const bool with_kv : {false, true}) {
    if (with_kv) saved.kv = sink.content;
    std::vector<std::byte> file = encode_session(saved);
    file.push_back(std::byte{0});
    if (!write(folder, with_kv ? "with_kv" : "tokens", file)) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_seeds FOLDER\n");
    return 2;
  }
  const std::string folder = argv[1];
  const bool ok = write_gguf(folder + "/gguf_reader_fuzz") &&
                  write_program(folder + "/program_reader_fuzz") &&
                  write_sessions(folder + "/session_fuzz");
  return ok ? 0 : 1;
}
