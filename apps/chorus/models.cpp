#include "models.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "arguments.h"
#include "program/program.h"

namespace chorus::cli {

namespace {

std::string suggest_files(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  const std::filesystem::path wanted(path);
  const std::filesystem::path folder = wanted.has_parent_path() ? wanted.parent_path() : ".";
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    names.push_back(entry.path().filename().string());
    if (names.size() >= 10000) break;
  }
  return suggestion(wanted.filename().string(), names);
}

std::string hex(const Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// The engine's error with flags in the place of its options' names.
Status with_flags(const Status& status) {
  std::string field = status.field();
  std::string message = status.message();
  for (const std::string name :
       {"threads", "kv_layout", "block_size", "context", "kv_blocks", "max_sessions",
        "max_batch_tokens", "max_decode_sequences", "prefill_chunk", "target_step_ms",
        "priority_age_ms", "shortest_first_ms"}) {
    std::string flag = "--" + name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    if (field == name) field = flag;
    const size_t at = name.find('_') == std::string::npos ? name.npos : message.find(name);
    if (at != std::string::npos) message.replace(at, name.size(), flag);
  }
  if (field == "kv_memory_bytes") field = "--kv-memory";
  if (field == "force_isa") field = "CHORUS_FORCE_ISA";
  return Status(status.code(), std::move(field), std::move(message));
}

void show_export(double share, Console& console) {
  char text[64];
  std::snprintf(text, sizeof text, "exporting in memory: %3.0f %%", 100 * share);
  console.progress(text);
}

// The program, or its error reported.
Opened<std::shared_ptr<const Program>> opened(Result<std::shared_ptr<const Program>> program,
                                              const std::string& path, Console& console) {
  console.progress("");
  if (program.ok()) return {std::move(program).value(), kDone};
  Status status = program.status();
  if (status.code() == Code::kNotFound) {
    status = not_found(path, "no such model" + suggest_files(path));
  }
  if (status.field() == "header" || status.field() == "header.magic") {
    status = Status(status.code(), status.field(),
                    "expected " + std::string(kModelKinds) + ", found none of them in " + path);
  }
  if (status.field() == "context") {
    return {nullptr, console.error(Status(status.code(), "--context", status.message()), kUsage)};
  }
  return {nullptr, console.error(status, kBadModel)};
}

}  // namespace

bool is_gguf_file(const std::string& path) {
  // Opening a named pipe would wait for its writer.
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  char magic[4] = {};
  std::ifstream file(path, std::ios::binary);
  return file.read(magic, sizeof magic) && std::string_view(magic, sizeof magic) == "GGUF";
}

Opened<std::shared_ptr<const Program>> open_program(const std::string& path, int32_t context,
                                                    Console& console) {
  ModelOptions options;
  options.context = context;
  options.progress = [&console](double share) { show_export(share, console); };
  return opened(load_program(path, options), path, console);
}

Opened<std::shared_ptr<const Program>> export_checkpoint(const std::string& path,
                                                         ExportOptions options, Console& console) {
  options.progress = [&console](uint64_t done, uint64_t total) {
    show_export(static_cast<double>(done) / static_cast<double>(total), console);
  };
  auto program = export_program(path, options);
  if (!program.ok()) return opened(program.status(), path, console);
  return opened(std::make_shared<const Program>(std::move(program).value()), path, console);
}

Opened<std::unique_ptr<Engine>> open_engine(std::shared_ptr<const Program> program,
                                            const EngineOptions& options, const Clock& clock,
                                            Console& console) {
  auto engine = Engine::create(std::move(program), options, clock);
  if (engine.ok()) {
    console.log().info("engine: " + engine_json((*engine)->settings()).dump());
    return {std::move(engine).value(), kDone};
  }
  const Code code = engine.status().code();
  const ExitCode exit_code = code == Code::kInvalidArgument                            ? kUsage
                             : code == Code::kDataLoss || code == Code::kUnimplemented ? kBadModel
                                                                                       : kFailed;
  return {nullptr, console.error(with_flags(engine.status()), exit_code)};
}

json::Value model_json(const Program& program, const std::string& path) {
  json::Value value;
  value.set("path", path);
  value.set("architecture", program.architecture());
  value.set("name", program.name());
  value.set("hash", hex(program.content()));
  value.set("context", program.context());
  value.set("vocabulary", program.vocabulary());
  uint64_t weight_bytes = 0;
  for (const Weight& weight : program.weights()) weight_bytes += weight.bytes;
  value.set("weight_bytes", weight_bytes);
  return value;
}

json::Value engine_json(const EngineSettings& settings) {
  json::Value value;
  value.set("threads", settings.threads);
  value.set("isa", isa_name(settings.isa));
  value.set("activations", name_of(settings.activations));
  value.set("kv_type", name_of(settings.kv_type));
  value.set("block_size", settings.block_size);
  value.set("context", settings.context);
  json::Array blocks;
  for (const int32_t count : settings.kv_blocks) blocks.emplace_back(count);
  value.set("kv_blocks", std::move(blocks));
  value.set("kv_memory", settings.kv_bytes);
  value.set("max_sessions", settings.max_sessions);
  value.set("max_batch_tokens", settings.max_batch_tokens);
  value.set("prefill_chunk", settings.prefill_chunk);
  value.set("max_decode_sequences", settings.max_decode_sequences);
  value.set("target_step_ms", settings.target_step_ms);
  value.set("priority_age_ms", settings.priority_age_ms);
  value.set("shortest_first_ms", settings.shortest_first_ms);
  value.set("prefix_cache", settings.prefix_cache);
  return value;
}

json::Value kv_json(const EngineSettings& settings, const Usage& usage) {
  json::Array groups;
  for (const GroupUsage& group : usage.groups) {
    json::Value entry;
    entry.set("layers", group.num_layers);
    entry.set("window", group.window == 0 ? json::Value() : json::Value(group.window));
    entry.set("blocks", group.blocks_total);
    entry.set("peak_blocks", group.blocks_peak);
    entry.set("cells", int64_t{group.blocks_total} * settings.block_size);
    entry.set("bytes_per_block", group.bytes_per_block);
    groups.push_back(std::move(entry));
  }
  json::Value value;
  value.set("block_size", settings.block_size);
  value.set("layout", name_of(settings.kv_layout));
  value.set("groups", std::move(groups));
  value.set("copied_blocks", usage.copied_blocks);
  value.set("bytes", settings.kv_bytes);
  return value;
}

json::Value by_method_json(const Usage& usage, int64_t MethodUsage::* count) {
  json::Value value;
  for (const char* name : {"decode", "prefill", "forward"}) {
    int64_t sum = 0;
    for (const MethodUsage& method : usage.methods) {
      if (method.name == name) sum += method.*count;
    }
    value.set(name, sum);
  }
  return value;
}

}  // namespace chorus::cli
