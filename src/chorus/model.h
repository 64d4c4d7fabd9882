// A model by path: a program (loaded or exported in memory) and its text parts.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "exec/types.h"
#include "program/program.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace chorus {

struct ModelOptions {
  int32_t context = 0;                              // 0: the model's
  std::function<void(double share_done)> progress;  // while exporting; on the calling thread
};

// A .chorus program is mapped, a .gguf file exported in memory. Errors: kNotFound (no such file),
// kDataLoss (damaged or not acceptable; the field says where), kUnimplemented (a folder, or a
// feature that the exporter does not offer).
Result<std::shared_ptr<const Program>> load_program(const std::string& path,
                                                    const ModelOptions& options);

// The ids that end an answer.
std::vector<TokenId> end_tokens(const Program& program);

// The text side of a program. Thread: immutable after creation.
class TextModel {
 public:
  // kUnimplemented or kDataLoss with field "tokenizer" when the program's vocabulary cannot be
  // used.
  static Result<std::unique_ptr<TextModel>> create(const Program& program);

  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  // The model's template over these messages, ready for the assistant's turn. Errors:
  // kUnimplemented with field "chat_template" when the model has none; what the template refuses.
  Result<std::string> render_chat(const std::vector<text::ChatMessage>& messages) const;

 private:
  TextModel() = default;

  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<text::ChatTemplate> template_;
  Status template_status_;  // why there is no template_
};

}  // namespace chorus
