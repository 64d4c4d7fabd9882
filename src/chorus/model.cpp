#include "chorus/model.h"

#include <filesystem>
#include <fstream>

#include "exporter/export.h"

namespace chorus {

namespace {

text::Vocabulary vocabulary_of(const Program& program) {
  const TokenizerData& data = program.tokenizer();
  text::Vocabulary vocabulary;
  vocabulary.model = data.facts.model;
  vocabulary.definition = data.definition;
  vocabulary.num_ids = program.vocabulary();
  vocabulary.pre_tokenizer = data.facts.pre;
  vocabulary.tokens.assign(data.tokens.begin(), data.tokens.end());
  vocabulary.merges.assign(data.merges.begin(), data.merges.end());
  vocabulary.scores.assign(data.scores.begin(), data.scores.end());
  vocabulary.token_types.assign(data.types.begin(), data.types.end());
  vocabulary.bos_id = data.facts.bos;
  vocabulary.eos_id = data.facts.eos;
  vocabulary.unknown_id = data.facts.unk;
  vocabulary.padding_id = data.facts.pad;
  vocabulary.add_bos = data.facts.add_bos;
  vocabulary.add_eos = data.facts.add_eos;
  vocabulary.add_space_prefix = data.facts.add_space_prefix;
  return vocabulary;
}

bool is_gguf(const std::string& path) {
  // Opening a named pipe would wait for its writer.
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  char magic[4] = {};
  std::ifstream file(path, std::ios::binary);
  return file.read(magic, sizeof magic) && std::string_view(magic, sizeof magic) == "GGUF";
}

std::string piece_or_nothing(const text::Tokenizer& tokenizer, int32_t id) {
  if (!tokenizer.is_valid(id)) return "";
  return std::string(tokenizer.piece(id).value());
}

}  // namespace

Result<std::shared_ptr<const Program>> load_program(const std::string& path,
                                                    const ModelOptions& options) {
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(path, error);
  if (is_folder || is_gguf(path)) {
    ExportOptions exporting;
    exporting.context = options.context;
    if (options.progress) {
      exporting.progress = [&options](uint64_t done, uint64_t total) {
        options.progress(static_cast<double>(done) / static_cast<double>(total));
      };
    }
    CHORUS_ASSIGN_OR_RETURN(Program program, export_program(path, exporting));
    return std::make_shared<const Program>(std::move(program));
  }
  CHORUS_ASSIGN_OR_RETURN(Program program, Program::load(path));
  return std::make_shared<const Program>(std::move(program));
}

std::vector<TokenId> end_tokens(const Program& program) {
  const TokenizerFacts& facts = program.tokenizer().facts;
  std::vector<TokenId> ids;
  for (const int32_t id : {facts.eos, facts.eot}) {
    if (id >= 0) ids.push_back(id);
  }
  ids.insert(ids.end(), facts.end_ids.begin(), facts.end_ids.end());
  return ids;
}

Result<std::shared_ptr<const TextModel>> TextModel::create(const Program& program) {
  if (program.tokenizer().facts.model.empty()) {
    return unimplemented(
        "tokenizer",
        "the model has no vocabulary (a Hugging Face folder has it in tokenizer.json)");
  }
  std::shared_ptr<TextModel> model(new TextModel());
  CHORUS_ASSIGN_OR_RETURN(model->tokenizer_, text::Tokenizer::create(vocabulary_of(program)));
  model->template_source_ = program.chat_template();
  if (!program.chat_template().empty()) {
    // A template that does not parse is reported when it is used: text without it works.
    auto chat_template = text::ChatTemplate::create(program.chat_template());
    if (chat_template.ok()) {
      model->template_ = std::move(chat_template).value();
    } else {
      model->template_status_ = chat_template.status();
    }
  } else {
    model->template_status_ = unimplemented("chat_template", "the model has no chat template");
  }
  return std::shared_ptr<const TextModel>(std::move(model));
}

text::RenderOptions TextModel::render_options() const {
  text::RenderOptions options;
  options.bos_token = piece_or_nothing(*tokenizer_, tokenizer_->bos_id());
  options.eos_token = piece_or_nothing(*tokenizer_, tokenizer_->eos_id());
  options.unk_token = piece_or_nothing(*tokenizer_, tokenizer_->unknown_id());
  options.pad_token = piece_or_nothing(*tokenizer_, tokenizer_->padding_id());
  return options;
}

Result<std::string> TextModel::render_chat(std::span<const text::ChatMessage> messages) const {
  if (template_ == nullptr) return template_status_;
  return template_->render(messages, render_options());
}

Result<std::string> TextModel::render_chat_json(std::string_view messages_json,
                                                std::string_view variables_json,
                                                bool add_generation_prompt) const {
  if (template_ == nullptr) return template_status_;
  text::RenderOptions options = render_options();
  options.variables_json = variables_json;
  options.add_generation_prompt = add_generation_prompt;
  return template_->render_json(messages_json, options);
}

}  // namespace chorus
