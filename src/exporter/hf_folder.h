// A Hugging Face model folder: config.json and its companions, the weights in one or several
// safetensors files, and the tokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/memory_map.h"
#include "base/result.h"
#include "exporter/hf_settings.h"
#include "exporter/safetensors.h"
#include "json/value.h"

namespace chorus {

// Thread: immutable after open. Moves, does not copy; pointers to tensors stay valid across moves.
class HfFolder {
 public:
  // Reads config.json, what there is of generation_config.json, tokenizer_config.json,
  // special_tokens_map.json, chat_template.jinja and chat_template.json, and maps the weights and
  // tokenizer.json. The weights are model.safetensors; where that is missing, the files that
  // model.safetensors.index.json names. Errors: kNotFound for the folder; kInvalidArgument for a
  // path that is not one; kDataLoss for what is missing or wrong in it, with the file's name, or
  // the member's or tensor's, as field; kUnimplemented for a folder whose weights are PyTorch's
  // .bin files.
  static Result<HfFolder> open(const std::string& path);
  // The same of contents, with one weight file. The bytes must outlive the result.
  static Result<HfFolder> parse(const HfTexts& texts, std::span<const std::byte> weights,
                                std::span<const std::byte> tokenizer_json = {});

  const HfSettings& settings() const { return settings_; }
  // An object; HfConfig reads it.
  const json::Value& config() const { return settings_.config; }
  // tokenizer.json as it is, unparsed; empty when there is none.
  std::span<const std::byte> tokenizer_json() const { return tokenizer_json_; }

  // The weight files, by name; tensors()[i] of each is in the order of its header.
  const std::vector<std::string>& file_names() const { return file_names_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  // All tensors, file by file. No two have one name.
  const std::vector<const SafetensorsTensor*>& tensors() const { return tensors_; }
  // nullptr when there is none.
  const SafetensorsTensor* find_tensor(std::string_view name) const;

 private:
  HfFolder() = default;
  Status open_weights(const std::string& path);
  Status open_files(const std::string& path);
  void list_tensors();

  HfSettings settings_;
  MemoryMap tokenizer_map_;  // empty for parse()
  std::span<const std::byte> tokenizer_json_;
  std::vector<std::string> file_names_;
  std::vector<SafetensorsFile> files_;
  std::vector<const SafetensorsTensor*> tensors_;
  std::unordered_map<std::string_view, const SafetensorsTensor*> index_;
};

}  // namespace chorus
