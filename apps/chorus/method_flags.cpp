#include "method_flags.h"

#include <algorithm>
#include <string_view>

#include "arguments.h"
#include "program/limits.h"

namespace chorus::cli {

namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> words;
  size_t begin = 0;
  for (size_t end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(separator, begin);
    words.push_back(text.substr(begin, end - begin));
  }
  return words;
}

// By the flag that decides a field of methods.
std::string flag_of(const std::string& field, bool has_forward) {
  if (has_forward) return "--max-step";
  return field.find("methods[1]") == 0 ? "--prefill" : "--decode-widths";
}

int32_t most_rows(const std::vector<Method>& methods) {
  int32_t most = 1;
  for (const Method& method : methods) most = std::max(most, method.max_tokens);
  return most;
}

}  // namespace

void MethodFlags::declare(CommandLine& line) {
  line.group("Methods");
  line.flag("--methods", methods_text_, "LIST",
            "forward (default), or decode,prefill: of fixed widths, and of everything wider");
  line.flag("--decode-widths", widths_text_, "N,N,...",
            "rows that decode takes, ascending (default: 1,2,4,8)");
  line.flag("--prefill", prefill_text_, "MIN:MAX",
            "rows that prefill takes (default: 2 to those of --max-step)");
  line.flag("--max-step", max_step_text_, "N", "most rows of a forward (default: 2048)");
}

bool MethodFlags::is_given() const {
  return !methods_text_.empty() || !widths_text_.empty() || !prefill_text_.empty() ||
         !max_step_text_.empty();
}

Status MethodFlags::parse() {
  CHORUS_RETURN_IF_ERROR(parse_methods());
  CHORUS_RETURN_IF_ERROR(parse_widths());
  CHORUS_RETURN_IF_ERROR(parse_prefill());
  if (max_step_text_.empty()) return Status();
  CHORUS_ASSIGN_OR_RETURN(const int64_t count,
                          parse_count("--max-step", max_step_text_, 1, kMaxStepTokens));
  max_step_ = static_cast<int32_t>(count);
  if (max_prefill_ <= max_step_) return Status();
  return invalid_argument("--prefill", "expected at most " + std::to_string(max_step_) +
                                           " rows, those of --max-step, found " +
                                           std::to_string(max_prefill_));
}

Status MethodFlags::parse_methods() {
  if (methods_text_.empty()) return Status();
  CHORUS_ASSIGN_OR_RETURN(const int choice,
                          parse_choice("--methods", methods_text_, {"forward", "decode,prefill"}));
  has_forward_ = choice == 0;
  if (!has_forward_) return Status();
  for (const auto& [flag, text] :
       {std::pair("--decode-widths", &widths_text_), std::pair("--prefill", &prefill_text_)}) {
    if (!text->empty()) return invalid_argument(flag, "expected none beside --methods forward");
  }
  return Status();
}

Status MethodFlags::parse_widths() {
  if (widths_text_.empty()) return Status();
  for (const std::string& word : split(widths_text_, ',')) {
    CHORUS_ASSIGN_OR_RETURN(const int64_t width,
                            parse_count("--decode-widths", word, 1, kMaxStepTokens));
    if (!widths_.empty() && width <= widths_.back()) {
      return invalid_argument("--decode-widths", "expected each above the one before, found " +
                                                     word + " after " +
                                                     std::to_string(widths_.back()));
    }
    widths_.push_back(static_cast<int32_t>(width));
  }
  return Status();
}

Status MethodFlags::parse_prefill() {
  if (prefill_text_.empty()) return Status();
  const std::vector<std::string> words = split(prefill_text_, ':');
  if (words.size() != 2) {
    return invalid_argument("--prefill", "expected MIN:MAX, found \"" + prefill_text_ + "\"");
  }
  CHORUS_ASSIGN_OR_RETURN(const int64_t least,
                          parse_count("--prefill", words[0], 1, kMaxStepTokens));
  CHORUS_ASSIGN_OR_RETURN(const int64_t most,
                          parse_count("--prefill", words[1], 1, kMaxStepTokens));
  if (least > most) {
    return invalid_argument("--prefill",
                            "expected MIN:MAX with MIN at most MAX, found " + prefill_text_);
  }
  min_prefill_ = static_cast<int32_t>(least);
  max_prefill_ = static_cast<int32_t>(most);
  return Status();
}

Result<std::vector<Method>> MethodFlags::apply(const std::vector<Method>& methods) const {
  const bool had_forward = methods.size() == 1;
  const bool has_forward = methods_text_.empty() ? had_forward : has_forward_;
  int32_t most = max_step_ > 0 ? max_step_ : most_rows(methods);
  std::vector<Method> chosen;
  if (has_forward) {
    for (const auto& [flag, text] :
         {std::pair("--decode-widths", &widths_text_), std::pair("--prefill", &prefill_text_)}) {
      if (text->empty()) continue;
      return invalid_argument(flag, "expected --methods decode,prefill beside it");
    }
    chosen = forward_method(most);
  } else {
    if (max_prefill_ > 0) most = max_prefill_;
    int32_t least = had_forward ? 2 : methods[1].min_tokens;
    least = min_prefill_ > 0 ? min_prefill_ : std::min(least, most);
    std::vector<int32_t> widths = widths_;
    if (widths.empty()) {
      for (const int32_t width :
           had_forward ? std::vector<int32_t>{1, 2, 4, 8} : methods[0].widths) {
        if (width <= most) widths.push_back(width);
      }
    }
    chosen = decode_and_prefill(std::move(widths), least, most);
  }
  const Status status = check_methods(chosen);
  if (status.ok()) return chosen;
  return invalid_argument(flag_of(status.field(), has_forward), status.message());
}

}  // namespace chorus::cli
