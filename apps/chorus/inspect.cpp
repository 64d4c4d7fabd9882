// chorus inspect: what a program or a checkpoint is.
#include <cstdio>

#include "exporter/describe_gguf.h"
#include "models.h"
#include "program/describe.h"
#include "verbs.h"

namespace chorus::cli {

namespace {

struct InspectFlags {
  std::string file;
  bool tensors = false;
  bool graph = false;
  bool verify = false;
  CommonFlags common;
};

json::Value types_json(const std::vector<TypeTotal>& totals) {
  json::Array types;
  for (const TypeTotal& total : totals) {
    json::Value entry;
    entry.set("type", total.type);
    entry.set("tensors", total.num_weights);
    entry.set("parameters", total.num_parameters);
    entry.set("bytes", total.bytes);
    types.push_back(std::move(entry));
  }
  return types;
}

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
    methods.push_back(std::move(entry));
  }
  value.set("methods", std::move(methods));
  json::Array groups;
  for (const GroupDescription& group : program.groups) groups.push_back(group_json(group));
  value.set("groups", std::move(groups));
  value.set("kv_bytes_per_token_bf16", program.kv_bytes_per_token_bf16);
  value.set("kv_bytes_per_token_f32", program.kv_bytes_per_token_f32);
  value.set("weights", types_json(program.weights_by_type));
  json::Value tokenizer;
  if (!program.tokenizer_model.empty()) {
    tokenizer.set("model", program.tokenizer_model);
    tokenizer.set("pre", program.tokenizer_pre);
    tokenizer.set("tokens", program.num_tokens);
    tokenizer.set("merges", program.num_merges);
  }
  value.set("tokenizer", std::move(tokenizer));
  value.set("chat_template", program.has_chat_template);
  value.set("hash", program.content);
  value.set("kv_identity", program.kv_identity);
  return value;
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

json::Value gguf_json(const GgufDescription& file, bool with_tensors) {
  json::Value value;
  value.set("type", "gguf");
  value.set("version", file.version);
  value.set("architecture", file.architecture);
  value.set("name", file.name);
  value.set("parameters", file.num_parameters);
  value.set("metadata_values", file.num_values);
  json::Array types;
  for (const GgufTypeTotal& total : file.tensors_by_type) {
    json::Value entry;
    entry.set("type", total.type);
    entry.set("tensors", total.num_tensors);
    entry.set("parameters", total.num_parameters);
    entry.set("bytes", total.bytes);
    types.push_back(std::move(entry));
  }
  value.set("weights", std::move(types));
  json::Value tokenizer;
  if (!file.tokenizer_model.empty()) {
    tokenizer.set("model", file.tokenizer_model);
    tokenizer.set("pre", file.tokenizer_pre);
  }
  value.set("tokenizer", std::move(tokenizer));
  value.set("chat_template", file.has_chat_template);
  if (!with_tensors) return value;
  json::Array tensors;
  for (const GgufTensorDescription& tensor : file.tensors) {
    json::Value entry;
    entry.set("name", tensor.name);
    entry.set("type", tensor.type);
    entry.set("dims", json::Array(tensor.dims.begin(), tensor.dims.end()));
    entry.set("bytes", tensor.bytes);
    tensors.push_back(std::move(entry));
  }
  value.set("tensors", std::move(tensors));
  return value;
}

int inspect_gguf(const InspectFlags& flags, Console& console) {
  if (flags.verify) {
    return console.error(
        invalid_argument("--verify", "expected a .chorus program: a GGUF file holds no hashes"),
        kUsage);
  }
  const auto file = GgufFile::open(flags.file);
  if (!file.ok()) return console.error(file.status(), kBadModel);
  const json::Value value = gguf_json(describe(*file), flags.tensors);
  if (console.json()) {
    console.line(value);
  } else {
    console.text(lines_of(value));
  }
  return kDone;
}

int inspect_program(const InspectFlags& flags, Console& console) {
  const auto opened = open_program(flags.file, 0, console);
  if (!opened.ok()) return opened.exit_code;
  const Program& program = *opened.value;
  const ProgramDescription description = describe(program);
  json::Value value = program_json(description);
  if (flags.tensors) {
    json::Array weights;
    for (const WeightDescription& weight : description.weights) {
      weights.push_back(weight_json(weight));
    }
    value.set("tensors", std::move(weights));
  }
  if (flags.graph) {
    const auto lines = graph_lines(program);
    json::Array graph(lines.begin(), lines.end());
    if (console.json())
      value.set("graph", std::move(graph));
    else
      for (const std::string& line : lines) console.text(line + "\n");
  }
  if (flags.verify) {
    const Status status = program.verify_weights();
    if (!status.ok()) return console.error(status, kBadModel);
    value.set("verified", true);
  }
  if (console.json()) {
    console.line(value);
  } else if (!flags.graph || flags.verify) {
    console.text(lines_of(value));
  }
  return kDone;
}

}  // namespace

void add_inspect(CommandLine& line) {
  CLI::App& app = *line.app.add_subcommand("inspect", "what a program or a checkpoint is");
  app.allow_extras();
  auto flags = std::make_shared<InspectFlags>();
  app.add_option("FILE", flags->file, "a .chorus program or a .gguf file");
  app.add_flag("--tensors", flags->tensors, "every weight");
  app.add_flag("--graph", flags->graph, "the operators, one a line");
  app.add_flag("--verify", flags->verify, "read every weight and compare its hash");
  flags->common.declare(app);
  app.callback([&line, flags] {
    line.action = [flags] {
      const Status parsed = flags->common.parse();
      Console console(flags->common);
      if (!parsed.ok()) return console.error(parsed, kUsage);
      if (flags->file.empty()) {
        return console.error(invalid_argument("FILE", "expected a .chorus program or a .gguf file"),
                             kUsage);
      }
      const bool as_gguf = is_gguf_file(flags->file) && !flags->graph;
      return as_gguf ? inspect_gguf(*flags, console) : inspect_program(*flags, console);
    };
  });
}

std::string description_text(const Program& program) {
  return lines_of(program_json(describe(program)));
}

}  // namespace chorus::cli
