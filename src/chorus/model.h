// The text parts of a model. Where programs come from: chorus/program.h.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "chorus/program.h"
#include "program/program.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace chorus {

// The text side of a program. Thread: immutable after creation.
class TextModel {
 public:
  // kUnimplemented or kDataLoss with field "tokenizer" when the program's vocabulary cannot be
  // used.
  static Result<std::shared_ptr<const TextModel>> create(const Program& program);

  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  // The model's template over these messages, ready for the assistant's turn. Errors:
  // kUnimplemented with field "chat_template" when the model has none; what the template refuses.
  Result<std::string> render_chat(std::span<const text::ChatMessage> messages) const;
  // The same over messages with more than role and content, a JSON array, with what else the
  // template is told, a JSON object or nothing; ready for the assistant's turn if asked for.
  Result<std::string> render_chat_json(std::string_view messages_json,
                                       std::string_view variables_json,
                                       bool add_generation_prompt) const;
  // The template's source; empty where the model has none.
  const std::string& chat_template() const { return template_source_; }

 private:
  TextModel() = default;
  text::RenderOptions render_options() const;

  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<text::ChatTemplate> template_;
  std::string template_source_;
  Status template_status_;  // why there is no template_
};

}  // namespace chorus
