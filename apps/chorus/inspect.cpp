// chorus inspect: what a program or a checkpoint is.
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>

#include "exporter/describe_gguf.h"
#include "exporter/describe_hf.h"
#include "exporter/export.h"
#include "models.h"
#include "program/describe.h"
#include "verbs.h"

namespace chorus::cli {

namespace {

json::Value group_json(const GroupDescription& group) {
  json::Value entry;
  entry.set("layers", json::Array(group.layers.begin(), group.layers.end()));
  entry.set("window", group.window == 0 ? json::Value() : json::Value(group.window));
  entry.set("kv_bytes_per_token_bf16", group.kv_bytes_per_token_bf16);
  entry.set("kv_bytes_per_token_f32", group.kv_bytes_per_token_f32);
  return entry;
}

json::Value weight_json(const WeightDescription& weight) {
  json::Value entry;
  entry.set("name", weight.name);
  entry.set("type", weight.type);
  entry.set("packing", weight.packing);
  entry.set("rows", weight.rows);
  entry.set("columns", weight.columns);
  entry.set("offset", weight.offset);
  entry.set("bytes", weight.bytes);
  entry.set("sha256", weight.sha256);
  return entry;
}

// `count` is the member that holds the number of tensors.
template <typename Total>
json::Array types_json(const std::vector<Total>& totals, int64_t Total::* count) {
  json::Array types;
  for (const Total& total : totals) {
    json::Value entry;
    entry.set("type", total.type);
    entry.set("tensors", total.*count);
    entry.set("parameters", total.num_parameters);
    entry.set("bytes", total.bytes);
    types.push_back(std::move(entry));
  }
  return types;
}

// Null without a tokenizer.
json::Value tokenizer_json(const std::string& model, const std::string& pre) {
  json::Value value;
  if (model.empty()) return value;
  value.set("model", model);
  value.set("pre", pre);
  return value;
}

json::Value program_json(const ProgramDescription& program) {
  json::Value value;
  value.set("type", "program");
  value.set("architecture", program.architecture);
  value.set("name", program.name);
  value.set("numerics_version", program.numerics_version);
  value.set("context", program.context);
  value.set("vocabulary", program.vocabulary);
  value.set("layers", program.num_layers);
  value.set("width", program.width);
  value.set("parameters", program.num_parameters);
  value.set("file_bytes", program.file_bytes);
  value.set("weight_bytes", program.weight_bytes);
  json::Array methods;
  for (const Method& method : program.methods) {
    json::Value entry;
    entry.set("name", method.name);
    entry.set("min_tokens", method.min_tokens);
    entry.set("max_tokens", method.max_tokens);
    entry.set("min_wanted", method.min_wanted);
    entry.set("widths", method.widths.empty()
                            ? json::Value()
                            : json::Value(json::Array(method.widths.begin(), method.widths.end())));
    methods.push_back(std::move(entry));
  }
  value.set("methods", std::move(methods));
  json::Array groups;
  for (const GroupDescription& group : program.groups) groups.push_back(group_json(group));
  value.set("groups", std::move(groups));
  value.set("kv_bytes_per_token_bf16", program.kv_bytes_per_token_bf16);
  value.set("kv_bytes_per_token_f32", program.kv_bytes_per_token_f32);
  value.set("weights", types_json(program.weights_by_type, &TypeTotal::num_weights));
  json::Value tokenizer = tokenizer_json(program.tokenizer_model, program.tokenizer_pre);
  if (!tokenizer.is_null()) {
    tokenizer.set("tokens", program.num_tokens);
    tokenizer.set("merges", program.num_merges);
  }
  value.set("tokenizer", std::move(tokenizer));
  value.set("chat_template", program.has_chat_template);
  value.set("hash", program.content);
  value.set("kv_identity", program.kv_identity);
  return value;
}

json::Value gguf_json(const GgufDescription& file) {
  json::Value value;
  value.set("type", "gguf");
  value.set("version", file.version);
  value.set("architecture", file.architecture);
  value.set("name", file.name);
  value.set("parameters", file.num_parameters);
  value.set("metadata_values", file.num_values);
  value.set("files", file.num_parts);
  value.set("weights", types_json(file.tensors_by_type, &GgufTypeTotal::num_tensors));
  value.set("tokenizer", tokenizer_json(file.tokenizer_model, file.tokenizer_pre));
  value.set("chat_template", file.has_chat_template);
  return value;
}

json::Array tensors_json(const GgufDescription& file) {
  json::Array tensors;
  for (const GgufTensorDescription& tensor : file.tensors) {
    json::Value entry;
    entry.set("name", tensor.name);
    entry.set("type", tensor.type);
    entry.set("dims", json::Array(tensor.dims.begin(), tensor.dims.end()));
    entry.set("bytes", tensor.bytes);
    tensors.push_back(std::move(entry));
  }
  return tensors;
}

json::Value known_size(int64_t size) { return size < 0 ? json::Value() : json::Value(size); }

json::Value token_json(const HfSpecialToken& token) {
  json::Value value;
  if (!token.is_known()) return value;
  value.set("id", token.id ? json::Value(*token.id) : json::Value());
  value.set("text", token.text);
  return value;
}

json::Value folder_json(const HfDescription& folder) {
  json::Value value;
  value.set("type", "huggingface");
  value.set("architecture", folder.model_type);
  value.set("classes", json::Array(folder.architectures.begin(), folder.architectures.end()));
  value.set("transformers_version", folder.transformers_version);
  value.set("context", known_size(folder.context));
  value.set("vocabulary", known_size(folder.vocabulary));
  value.set("layers", known_size(folder.num_layers));
  value.set("width", known_size(folder.width));
  value.set("other_models", json::Array(folder.other_models.begin(), folder.other_models.end()));
  value.set("parameters", folder.num_parameters);
  value.set("weights", types_json(folder.tensors_by_type, &HfTypeTotal::num_tensors));
  json::Array files;
  for (const HfFileDescription& file : folder.files) {
    json::Value entry;
    entry.set("name", file.name);
    entry.set("tensors", file.num_tensors);
    entry.set("bytes", file.bytes);
    files.push_back(std::move(entry));
  }
  value.set("files", std::move(files));
  json::Value tokenizer;
  if (folder.tokenizer_bytes > 0) {
    tokenizer.set("class", folder.tokenizer_class);
    tokenizer.set("bytes", folder.tokenizer_bytes);
  }
  value.set("tokenizer", std::move(tokenizer));
  value.set("bos", token_json(folder.bos));
  value.set("eos", token_json(folder.eos));
  value.set("pad", token_json(folder.pad));
  value.set("eos_ids", json::Array(folder.eos_ids.begin(), folder.eos_ids.end()));
  value.set("chat_template", !folder.chat_templates.empty());
  value.set("chat_templates",
            json::Array(folder.chat_templates.begin(), folder.chat_templates.end()));
  return value;
}

// How many tensors of each part, such as "model.vision_tower", an export does not take.
json::Value left_out_json(const std::vector<std::string>& names) {
  std::map<std::string, int64_t> parts;
  for (const std::string& name : names) {
    const bool is_nested = name.starts_with("model.");
    ++parts[name.substr(0, name.find('.', is_nested ? std::string_view("model.").size() : 0))];
  }
  json::Value value;
  for (const auto& [part, count] : parts) value.set(part, count);
  return value;
}

json::Array tensors_json(const HfDescription& folder) {
  json::Array tensors;
  for (const HfTensorDescription& tensor : folder.tensors) {
    json::Value entry;
    entry.set("name", tensor.name);
    entry.set("type", tensor.type);
    entry.set("shape", json::Array(tensor.shape.begin(), tensor.shape.end()));
    entry.set("bytes", tensor.bytes);
    entry.set("file", tensor.file);
    tensors.push_back(std::move(entry));
  }
  return tensors;
}

json::Array tensors_json(const ProgramDescription& program) {
  json::Array weights;
  for (const WeightDescription& weight : program.weights) weights.push_back(weight_json(weight));
  return weights;
}

// "name: value" lines of a description's plain members; lists one entry a line.
std::string lines_of(const json::Value& value) {
  std::string text;
  for (const auto& [name, member] : value.as_object()) {
    if (name == "type") continue;
    text += name + ":";
    if (member.is_array()) {
      for (const json::Value& entry : member.as_array()) text += "\n  " + entry.dump();
      text += "\n";
    } else {
      text += " " + (member.is_string() ? member.as_string() : member.dump()) + "\n";
    }
  }
  return text;
}

void print(const json::Value& value, Console& console) {
  if (console.json()) {
    console.line(value);
  } else {
    console.text(lines_of(value));
  }
}

class InspectVerb final : public Verb {
 public:
  InspectVerb() : Verb("inspect", "what a program or a checkpoint is") {}
  void declare(CommandLine& line) override;
  int run(Console& console, Interrupt& interrupt) override;

 private:
  int inspect_gguf(Console& console) const;
  int inspect_folder(Console& console) const;
  int refuse_verify(Console& console) const;
  template <typename Description>
  int show(const Description& description, json::Value value, Console& console) const;
  int inspect_program(Console& console) const;

  std::string file_;
  bool tensors_ = false;
  bool graph_ = false;
  bool verify_ = false;
};

void InspectVerb::declare(CommandLine& line) {
  line.argument("FILE", file_, kModelKinds);
  line.group("Parts");
  line.flag("--tensors", tensors_, "every weight");
  line.flag("--graph", graph_, "the operators, one a line");
  line.flag("--verify", verify_, "read every weight and compare its hash");
}

int InspectVerb::refuse_verify(Console& console) const {
  return console.error(
      invalid_argument("--verify", "expected a .chorus program: a checkpoint holds no hashes"),
      kUsage);
}

template <typename Description>
int InspectVerb::show(const Description& description, json::Value value, Console& console) const {
  if (tensors_) value.set("tensors", tensors_json(description));
  print(value, console);
  return kDone;
}

int InspectVerb::inspect_gguf(Console& console) const {
  if (verify_) return refuse_verify(console);
  const auto file = GgufFile::open(file_);
  if (!file.ok()) return console.error(file.status(), kBadModel);
  const GgufDescription description = describe(*file);
  return show(description, gguf_json(description), console);
}

int InspectVerb::inspect_folder(Console& console) const {
  if (verify_) return refuse_verify(console);
  const auto folder = HfFolder::open(file_);
  if (!folder.ok()) return console.error(folder.status(), kBadModel);
  const HfDescription description = describe(*folder);
  json::Value value = folder_json(description);
  if (const auto left_out = left_out_tensors(*folder); left_out.ok() && !left_out->empty()) {
    value.set("left_out", left_out_json(*left_out));
  }
  return show(description, value, console);
}

int InspectVerb::inspect_program(Console& console) const {
  const auto opened = open_program(file_, 0, console);
  if (!opened.ok()) return opened.exit_code;
  const Program& program = *opened.value;
  const ProgramDescription description = describe(program);
  json::Value value = program_json(description);
  if (tensors_) value.set("tensors", tensors_json(description));
  if (graph_) {
    const auto lines = graph_lines(program);
    if (console.json()) value.set("graph", json::Array(lines.begin(), lines.end()));
    for (const std::string& line : lines) {
      if (!console.json()) console.text(line + "\n");
    }
  }
  if (verify_) {
    const Status status = program.verify_weights();
    if (!status.ok()) return console.error(status, kBadModel);
    value.set("verified", true);
  }
  // For people the graph stands alone, unless more was asked for.
  if (console.json() || !graph_ || verify_ || tensors_) print(value, console);
  return kDone;
}

int InspectVerb::run(Console& console, Interrupt& /*interrupt*/) {
  std::error_code error;
  // A checkpoint has no graph until it is exported.
  if (graph_) return inspect_program(console);
  if (std::filesystem::is_directory(file_, error)) return inspect_folder(console);
  return is_gguf_file(file_) ? inspect_gguf(console) : inspect_program(console);
}

}  // namespace

std::unique_ptr<Verb> make_inspect() { return std::make_unique<InspectVerb>(); }

std::string description_text(const Program& program) {
  return lines_of(program_json(describe(program)));
}

}  // namespace chorus::cli
