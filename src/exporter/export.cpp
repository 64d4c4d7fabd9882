#include "exporter/export.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "exporter/lower_hf_tokenizer.h"
#include "exporter/lowering.h"
#include "program/names.h"

namespace chorus {

namespace {

Status lower(GgufConfig& config, Lowering& lowering, std::string_view architecture) {
  if (architecture == "llama") return lower_llama(config, lowering);
  if (architecture == "gemma3") return lower_gemma3(config, lowering);
  if (architecture == "muse-glimmer") return lower_muse_glimmer(config, lowering);
  return unimplemented("general.architecture",
                       "expected llama, gemma3 or muse-glimmer, found " + quoted(architecture));
}

struct HfArchitecture {
  std::string_view model_type;  // config.json's
  std::string_view name;        // the program's
  Status (*lower)(const HfConfig&, Lowering&);
};
constexpr HfArchitecture kHfArchitectures[] = {
    {"llama", "llama", lower_llama},
    {"gemma3", "gemma3", lower_gemma3},
    {"gemma3_text", "gemma3", lower_gemma3},
    {"muse_glimmer", "muse-glimmer", lower_muse_glimmer},
    {"muse_glimmer_text", "muse-glimmer", lower_muse_glimmer},
};

Result<HfArchitecture> architecture_of(const HfConfig& config) {
  CHORUS_ASSIGN_OR_RETURN(const std::string type, config.get_string("model_type"));
  std::string known;
  for (const HfArchitecture& architecture : kHfArchitectures) {
    if (architecture.model_type == type) return architecture;
    known += (known.empty() ? "" : ", ") + std::string(architecture.model_type);
  }
  return unimplemented(config.field("model_type"),
                       "expected one of " + known + ", found " + quoted(std::string_view(type)));
}

Status apply_context(int32_t wanted, int32_t& context) {
  if (wanted == 0) return Status();
  if (wanted < 0 || wanted > context) {
    return invalid_argument("context", "expected 1 to " + std::to_string(context) +
                                           ", the context of the checkpoint, found " +
                                           std::to_string(wanted));
  }
  context = wanted;
  return Status();
}

Status apply_quantize(const ExportOptions& options, Lowering& lowering) {
  if (!options.quantize) return Status();
  if (!can_quantize_to(*options.quantize)) {
    return invalid_argument("quantize", "expected q8_0, q4_0, q4_1 or q4_k, found " +
                                            std::string(weight_type_name(*options.quantize)));
  }
  lowering.quantize_to(*options.quantize, options.report);
  return Status();
}

Result<AlignedBuffer> export_image(const std::string& source, const ExportOptions& options) {
  std::error_code error;
  if (std::filesystem::is_directory(source, error)) {
    CHORUS_ASSIGN_OR_RETURN(const HfFolder folder, HfFolder::open(source));
    return export_folder(folder, options);
  }
  CHORUS_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(source));
  return export_gguf(file, options);
}

}  // namespace

Result<AlignedBuffer> export_gguf(const GgufFile& file, const ExportOptions& options) {
  CHORUS_ASSIGN_OR_RETURN(const auto architecture, file.find_string("general.architecture"));
  if (!architecture) return data_loss("general.architecture", "expected this key, found none");
  ProgramBuilder builder;
  builder.facts.architecture = *architecture;
  builder.facts.methods = {{"forward", 1, kDefaultMaxStep, 0}};
  const Checkpoint checkpoint = checkpoint_of(file);
  GgufConfig config(file, *architecture);
  Lowering lowering(checkpoint, builder);
  CHORUS_RETURN_IF_ERROR(apply_quantize(options, lowering));
  CHORUS_RETURN_IF_ERROR(lower(config, lowering, *architecture));
  TokenizerStorage storage;
  CHORUS_RETURN_IF_ERROR(lower_tokenizer(file, builder.facts, storage));
  CHORUS_RETURN_IF_ERROR(apply_context(options.context, builder.facts.context));
  return builder.build_image(options.progress);
}

Result<AlignedBuffer> export_folder(const HfFolder& folder, const ExportOptions& options) {
  const HfConfig config(folder.config());
  CHORUS_ASSIGN_OR_RETURN(const HfArchitecture architecture, architecture_of(config));
  ProgramBuilder builder;
  builder.facts.architecture = architecture.name;
  builder.facts.methods = {{"forward", 1, kDefaultMaxStep, 0}};
  const Checkpoint checkpoint = checkpoint_of(folder);
  Lowering lowering(checkpoint, builder);
  CHORUS_RETURN_IF_ERROR(apply_quantize(options, lowering));
  CHORUS_RETURN_IF_ERROR(architecture.lower(config, lowering));
  CHORUS_RETURN_IF_ERROR(
      lower_hf_tokenizer(folder.tokenizer_json(), folder.settings(), builder.facts));
  CHORUS_RETURN_IF_ERROR(apply_context(options.context, builder.facts.context));
  return builder.build_image(options.progress);
}

Result<std::vector<std::string>> left_out_tensors(const HfFolder& folder) {
  const HfConfig config(folder.config());
  CHORUS_ASSIGN_OR_RETURN(const HfArchitecture architecture, architecture_of(config));
  ProgramBuilder builder;
  const Checkpoint checkpoint = checkpoint_of(folder);
  Lowering lowering(checkpoint, builder);
  CHORUS_RETURN_IF_ERROR(architecture.lower(config, lowering));
  return std::vector<std::string>(lowering.left_out().begin(), lowering.left_out().end());
}

Result<Program> export_program(const std::string& source, const ExportOptions& options) {
  CHORUS_ASSIGN_OR_RETURN(AlignedBuffer image, export_image(source, options));
  return Program::from_bytes(std::move(image));
}

Status export_to_file(const std::string& source, const std::string& target,
                      const ExportOptions& options) {
  CHORUS_ASSIGN_OR_RETURN(const AlignedBuffer image, export_image(source, options));
  const std::span<const std::byte> parts[] = {image.bytes()};
  return write_file_atomically(target, parts);
}

}  // namespace chorus
