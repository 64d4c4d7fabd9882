// Writes seed inputs for the fuzzers: write_seeds FOLDER makes a folder in it for each of
// chat_template_fuzz, gguf_reader_fuzz, hf_config_fuzz, program_reader_fuzz, safetensors_fuzz and
// session_fuzz. The same build gives the same files.
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

bool write_text(const std::string& folder, const std::string& name, const std::string& text) {
  return write(folder, name, std::as_bytes(std::span(text)));
}

// Texts, each with a zero byte behind it.
std::string zero_ended(std::span<const std::string> texts) {
  std::string all;
  for (const std::string& text : texts) all += text + std::string(1, '\0');
  return all;
}

// Templates after those of models in use, with the messages and variables that they ask for.
bool write_chat_templates(const std::string& folder) {
  const std::string chat = R"([{"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Name a fruit."}, {"role": "assistant", "content": "Plum"}])";
  const std::string chatml[] = {
      "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
      "{{ '<|im_start|>system\nBe brief<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
      "message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n'}}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
      chat};
  const std::string turns[] = {
      "{{ bos_token }}{%- if messages[0].role == 'system' -%}{%- set first = "
      "messages[0].content ~ '\n' -%}{%- set rest = messages[1:] -%}{%- else -%}{%- set first = '' "
      "-%}{%- set rest = messages -%}{%- endif -%}{%- for m in rest -%}{%- if (m.role == 'user') "
      "!= (loop.index0 % 2 == 0) -%}{{ raise_exception('roles take turns') }}{%- endif -%}"
      "<turn>{{ m.role }}\n{% if loop.first %}{{ first }}{% endif %}{% generation %}"
      "{{ m.content.strip().split('</think>')[-1].lstrip('\\n') }}{% endgeneration %}</turn>\n"
      "{%- endfor -%}",
      chat};
  const std::string tools[] = {
      "{%- macro part(c) -%}{%- if c is string -%}{{ c }}{%- elif c is not none -%}{%- for i in c "
      "-%}{%- if i.type == 'text' -%}{{ i.text | e }}{%- else -%}{% continue %}{%- endif -%}"
      "{%- endfor -%}{%- endif -%}{%- endmacro -%}{%- set ns = namespace(last=-1, all=[]) -%}"
      "{%- for t in tools -%}{{ t | tojson(indent=2) }}{{ t.function.parameters | dictsort | "
      "list }}{%- endfor -%}{%- for m in messages | reverse -%}{%- if m.role == 'user' and ns.last "
      "< 0 -%}{%- set ns.last = loop.length - loop.revindex0 -%}{%- endif -%}{%- for call in "
      "m.get('tool_calls', []) -%}{%- for k, v in call.function.arguments.items() -%}{{ k ~ '=' "
      "~ v | tojson(ensure_ascii=true, separators=(',', ':')) }}{%- endfor -%}{%- endfor -%}"
      "{{ part(m.content) }}{%- set ns.all = ns.all + [m.role] -%}{%- endfor -%}"
      "{{ ns.all | join(', ') | upper }} {{ strftime_now('%d %b %Y') }} {{ 1.5e-7 * ns.last }} "
      "{{ tools | selectattr('type', 'equalto', 'function') | map(attribute='type') | list }}",
      R"([{"role": "user", "content": [{"type": "text", "text": "<é>"}, {"type": "image"}]},
        {"role": "assistant", "content": null, "tool_calls":
          [{"function": {"name": "f", "arguments": {"x": [1, 2.5, true, "\u00e9"]}}}]}])",
      R"({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": {}}}}]})"};
  return write_text(folder, "chatml", zero_ended(chatml)) &&
         write_text(folder, "turns", zero_ended(turns)) &&
         write_text(folder, "tools", zero_ended(tools));
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
  return write_text(folder, "config", texts[0]) && write_text(folder, "all", zero_ended(texts));
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
      write_chat_templates(folder + "/chat_template_fuzz") &&
      write_gguf(folder + "/gguf_reader_fuzz") && write_hf_config(folder + "/hf_config_fuzz") &&
      write_program(folder + "/program_reader_fuzz") &&
      write_safetensors(folder + "/safetensors_fuzz") && write_sessions(folder + "/session_fuzz");
  return ok ? 0 : 1;
}
