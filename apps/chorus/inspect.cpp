// chorus inspect: what a program or a checkpoint is.
#include <cstdio>

#include "exporter/describe_gguf.h"
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

int InspectVerb::inspect_gguf(Console& console) const {
  if (verify_) {
    return console.error(
        invalid_argument("--verify", "expected a .chorus program: a GGUF file holds no hashes"),
        kUsage);
  }
  const auto file = GgufFile::open(file_);
  if (!file.ok()) return console.error(file.status(), kBadModel);
  const GgufDescription description = describe(*file);
  json::Value value = gguf_json(description);
  if (tensors_) value.set("tensors", tensors_json(description));
  print(value, console);
  return kDone;
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
  const bool as_gguf = is_gguf_file(file_) && !graph_;
  return as_gguf ? inspect_gguf(console) : inspect_program(console);
}

}  // namespace

std::unique_ptr<Verb> make_inspect() { return std::make_unique<InspectVerb>(); }

std::string description_text(const Program& program) {
  return lines_of(program_json(describe(program)));
}

}  // namespace chorus::cli
