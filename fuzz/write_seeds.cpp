// Writes seed inputs for the reader fuzzers: write_seeds FOLDER makes a folder in it for each of
// gguf_reader_fuzz, hf_config_fuzz, program_reader_fuzz, safetensors_fuzz and session_fuzz. The
// same build gives the same files.
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
#include "exporter/testing/tiny_hf_folder.h"
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

bool write_safetensors(const std::string& folder) {
  SafetensorsWriter other = tiny_safetensors();
  other.add("lm_head.weight", "BF16", {20, 32}, std::vector<std::byte>(20 * 32 * 2));
  other.add("scale", "F8_E4M3", {}, std::vector<std::byte>(1));
  other.padding = "  ";
  return write(folder, "tied", tiny_safetensors().finish()) &&
         write(folder, "other", other.finish());
}

// With the texts in the order that hf_config_fuzz has.
bool write_hf_config(const std::string& folder) {
  const SafetensorsWriter weights = tiny_safetensors();
  std::string index = "{\"metadata\": {\"total_size\": " + std::to_string(weights.data().size()) +
                      "}, \"weight_map\": {";
  for (const SafetensorsWriter::Tensor& tensor : weights.tensors) {
    if (index.back() != '{') index += ", ";
    index += "\"" + tensor.name + "\": \"model-00001-of-00001.safetensors\"";
  }
  const std::string texts[] = {
      kTinyHfConfig,
      index + "}}",
      R"({"eos_token_id": [2, 3], "temperature": 0.6})",
      R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": true,
          "added_tokens_decoder": {"2": {"content": "</s>"}},
          "chat_template": [{"name": "default", "template": "{{ messages }}"}]})",
      R"({"pad_token": "<pad>", "unk_token": {"content": "<unk>"}})",
      R"({"chat_template": "{{ messages }}"})"};
  std::string all;
  for (const std::string& text : texts) all += text + std::string(1, '\0');
  return write(folder, "config", std::as_bytes(std::span(texts[0]))) &&
         write(folder, "all", std::as_bytes(std::span(all)));
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
  const bool ok =
      write_gguf(folder + "/gguf_reader_fuzz") && write_hf_config(folder + "/hf_config_fuzz") &&
      write_program(folder + "/program_reader_fuzz") &&
      write_safetensors(folder + "/safetensors_fuzz") && write_sessions(folder + "/session_fuzz");
  return ok ? 0 : 1;
}
