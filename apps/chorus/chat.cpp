// chorus chat: a conversation that keeps its tokens in the KV cache, with branches.
#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <list>
#include <unistd.h>

#include "arguments.h"
#include "chat_settings.h"
#include "chorus/generation_fields.h"
#include "conversation.h"
#include "line_reader.h"
#include "models.h"
#include "saving.h"
#include "text/detokenizer.h"
#include "verbs.h"

namespace chorus::cli {

namespace {

constexpr float kDefaultTemperature = 0.7f;
constexpr int32_t kDefaultMaxTokens = 1024;

// A command line of the chat: "/name argument".
struct Command {
  const char* name;
  const char* argument;  // how help shows it; empty: takes none
  const char* help;      // lines
};

constexpr Command kCommands[] = {
    {"/help", "", "this list"},
    {"/undo", "", "take back the last message and its answer"},
    {"/retry", "", "answer the last message once more"},
    {"/rewind", "N", "take back the last N messages and their answers"},
    {"/fork", "[NAME]", "go on in a copy of the conversation"},
    {"/branches", "", "list the copies"},
    {"/switch", "NAME", "go on in another copy"},
    {"/save", "FILE", "write this branch, its messages and KV; what was taken back is left out"},
    {"/load", "[--recompute] FILE",
     "go on with what /save wrote, as a new branch; its turns can be taken\n"
     "back like others. --recompute: from its tokens, also when it was saved\n"
     "with another KV type, instruction set and so on"},
    {"/system", "[TEXT]", "set the system message of this conversation; without TEXT: none"},
    {"/set", "[NAME [VALUE]]",
     "show or set temperature, top_k, top_p and so on; /set alone lists them"},
    {"/stats", "", "tokens computed and reused by each turn"},
    {"/quit", "", "end (so does Ctrl-D)"},
};

// Its lines of /help.
std::string help_of(const Command& command) {
  constexpr size_t kColumn = 27;
  std::string text = "  " + std::string(command.name) + " " + command.argument;
  text.append(kColumn - std::min(kColumn, text.size()), ' ');
  for (const char* at = command.help; *at != '\0'; ++at) {
    text += *at;
    if (*at == '\n') text.append(kColumn, ' ');
  }
  return text + "\n";
}

// As the name of a branch: valid UTF-8 with _ for spaces and control characters.
std::string as_name(std::string_view text) {
  std::string name = text::to_valid_utf8(text);
  for (char& c : name) c = (c >= 0 && c <= ' ') || c == 0x7f ? '_' : c;
  return name;
}

class ChatVerb final : public Verb {
 public:
  ChatVerb() : Verb("chat", "talk with a model in the terminal") {}
  bool has_json() const override { return false; }
  void declare(CommandLine& line) override;
  Status parse() override;
  int run(Console& console, Interrupt& interrupt) override;

 private:
  int open_model(Console& console);
  Status check_template() const;
  bool take_signal(int signal, const LineReader& reader);
  void talk(LineReader& reader, Console& console);
  Status handle(const std::string& line, Console& console);
  Status run_command(const std::string& name, const std::string& argument, Console& console);

  Status answer(const std::string& message, uint32_t choice, Console& console);
  Status generate(Turn& turn, ChatPrompt prompt, Console& console);
  ChoicesPlan plan_for(const Turn& turn, const std::vector<TokenId>& prompt, int32_t held,
                       int64_t room) const;
  void stream(PromptChoices& answers, Console& console);
  Status retry(Console& console);
  Status rewind(const std::string& name, const std::string& argument, Console& console);
  Status fork(std::string name, Console& console);
  Status save(const std::string& file, Console& console);
  Status load(const std::string& argument, Console& console);
  bool is_taken(const std::string& name) const;
  Status switch_to(const std::string& name, Console& console);
  Status set(const std::string& argument, Console& console);
  std::string branches_text() const;
  std::string stats_text() const;
  void tell(const std::string& text, Console& console) const;
  Conversation& current() { return *current_; }
  const Conversation& current() const { return *current_; }

  std::string model_;
  std::optional<std::string> system_;
  EngineFlags engine_flags_;
  SamplingFlags sampling_flags_;

  const SteadyClock clock_;
  EngineOptions engine_options_;
  GenerationFields defaults_, settings_;
  std::vector<TokenId> end_tokens_;
  std::shared_ptr<const TextModel> text_;  // with the generations
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<UpdateSignal> signal_ = std::make_shared<UpdateSignal>();  // with the generations
  std::list<Conversation> branches_;
  std::list<Conversation>::iterator current_;
  Interrupt* interrupt_ = nullptr;
  bool is_interactive_ = false;
  bool wants_end_ = false;
  bool has_failed_ = false;
  std::atomic<bool> is_answering_{false};
  std::atomic<bool> wants_stop_{false};
};

void ChatVerb::declare(CommandLine& line) {
  line.argument("MODEL", model_, kModelKinds);
  line.group("Chat");
  line.flag("--system", system_, "TEXT", "the system message");
  sampling_flags_.declare_for_chat(line);
  engine_flags_.declare(line);
}

Status ChatVerb::parse() {
  CHORUS_ASSIGN_OR_RETURN(engine_options_, engine_flags_.parse(common_));
  CHORUS_ASSIGN_OR_RETURN(settings_, sampling_flags_.parse());
  if (!sampling_flags_.has_temperature()) settings_.sampling.temperature = kDefaultTemperature;
  defaults_ = settings_;
  return Status();
}

int ChatVerb::open_model(Console& console) {
  auto program = open_program(model_, 0, console);
  if (!program.ok()) return program.exit_code;
  end_tokens_ = end_tokens(*program.value);
  auto text = TextModel::create(*program.value);
  if (!text.ok()) return console.error(text.status(), kBadModel);
  text_ = std::move(text).value();
  if (const Status status = check_template(); !status.ok()) {
    return console.error(status, kBadModel);
  }
  auto engine = open_engine(program.value, engine_options_, clock_, console);
  if (!engine.ok()) return engine.exit_code;
  engine_ = std::move(engine.value);
  auto session = engine_->runner().open();
  if (!session.ok()) return console.error(session.status(), kFailed);
  branches_.emplace_back("main", system_, std::move(session).value());
  current_ = branches_.begin();
  return kDone;
}

// A model without a usable template cannot chat; a template may still refuse some messages.
Status ChatVerb::check_template() const {
  const auto rendered = text_->render_chat(std::array{text::ChatMessage{"user", "hello"}});
  return rendered.ok() || rendered.status().code() == Code::kInvalidArgument ? Status()
                                                                             : rendered.status();
}

// On the thread that waits for signals. True: the process goes on.
bool ChatVerb::take_signal(int signal, const LineReader& reader) {
  if (signal == SIGINT && is_answering_.load()) {
    wants_stop_.store(true);
    signal_->notify();
    return true;
  }
  // One that comes as an answer ends was meant for it.
  if (signal == SIGINT && is_interactive_) return true;
  reader.restore_terminal();
  return false;
}

int ChatVerb::run(Console& console, Interrupt& interrupt) {
  if (const int code = open_model(console); code != kDone) return code;
  is_interactive_ = isatty(0) == 1 && isatty(1) == 1;
  LineReader reader(is_interactive_);
  interrupt_ = &interrupt;
  interrupt.on_signal([&](int signal) { return take_signal(signal, reader); });
  talk(reader, console);
  interrupt.on_signal({});
  if (interrupt.requested()) return kInterrupted;
  return has_failed_ && !is_interactive_ ? kFailed : kDone;
}

void ChatVerb::talk(LineReader& reader, Console& console) {
  tell(engine_->program().name() + ", context " + std::to_string(engine_->settings().context) +
           "; /help lists the commands",
       console);
  std::string line;
  // A signal ends the process at once, but for one that meets a file being written.
  while (!wants_end_ && !interrupt_->requested()) {
    const std::string prompt = branches_.size() > 1 ? current().name() + "> " : "> ";
    const LineReader::Kind kind = reader.read(prompt, line);
    if (kind == LineReader::Kind::kEnd) return;
    if (kind == LineReader::Kind::kCancelled) continue;
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    const Status status = handle(line, console);
    if (status.ok()) continue;
    console.error(status, kFailed);
    has_failed_ = true;
  }
}

Status ChatVerb::handle(const std::string& line, Console& console) {
  if (!line.starts_with("/")) return answer(line, 0, console);
  if (line.starts_with("//")) return answer(line.substr(1), 0, console);
  const size_t end = std::min(line.find_first_of(" \t"), line.size());
  const size_t begin = std::min(line.find_first_not_of(" \t", end), line.size());
  const size_t last = line.find_last_not_of(" \t");
  return run_command(line.substr(0, end), line.substr(begin, last + 1 - std::min(begin, last + 1)),
                     console);
}

Status ChatVerb::run_command(const std::string& name, const std::string& argument,
                             Console& console) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    return invalid_argument(name, "unknown command" + suggestion(name, names) +
                                      " (/help lists them; a message that begins with / is "
                                      "written with //)");
  }
  const Command& command = kCommands[found - names.begin()];
  if (*command.argument == '\0' && !argument.empty()) {
    return invalid_argument(name, "expected nothing behind it, found \"" + argument + "\"");
  }
  if (name == "/help") {
    for (const Command& each : kCommands) console.text(help_of(each));
  } else if (name == "/undo") {
    return rewind(name, "1", console);
  } else if (name == "/retry") {
    return retry(console);
  } else if (name == "/rewind") {
    return rewind(name, argument, console);
  } else if (name == "/fork") {
    return fork(argument, console);
  } else if (name == "/branches") {
    console.text(branches_text());
  } else if (name == "/switch") {
    return switch_to(argument, console);
  } else if (name == "/save") {
    return save(argument, console);
  } else if (name == "/load") {
    return load(argument, console);
  } else if (name == "/system") {
    current().set_system(argument.empty() ? std::nullopt : std::optional(argument));
  } else if (name == "/set") {
    return set(argument, console);
  } else if (name == "/stats") {
    console.text(stats_text());
  } else {
    wants_end_ = true;
  }
  return Status();
}

// ---- Answers ----

// Generates an answer to the message and keeps both, unless it failed or was stopped before its
// first token.
Status ChatVerb::answer(const std::string& message, uint32_t choice, Console& console) {
  CHORUS_ASSIGN_OR_RETURN(ChatPrompt prompt, current().prompt_for(*text_, message));
  Turn turn;
  turn.message = message;
  turn.choice = choice;
  turn.prompt = prompt.text;
  CHORUS_RETURN_IF_ERROR(generate(turn, std::move(prompt), console));
  current().add(std::move(turn));
  return Status();
}

Status ChatVerb::generate(Turn& turn, ChatPrompt prompt, Console& console) {
  const std::vector<TokenId>& tokens = prompt.tokens;
  const int64_t context = engine_->settings().context;
  const int64_t room = context - static_cast<int64_t>(tokens.size());
  if (room < 1) {
    return invalid_argument("context", "expected a conversation of fewer than " +
                                           std::to_string(context) + " tokens, found " +
                                           std::to_string(tokens.size()) +
                                           " with this message, which is taken back");
  }
  CHORUS_ASSIGN_OR_RETURN(Session session, current().take_session(tokens));
  const auto held = static_cast<int32_t>(session.position());
  PromptChoices answers(engine_->runner(), text_, plan_for(turn, tokens, held, room),
                        std::move(session));
  answers.start(0);
  stream(answers, console);
  const PromptChoices::Choice& answer = answers.choices()[0];
  const size_t num_generated = answer.tokens().size();
  current().give_back(answers.take_session(), tokens, answer.token_ids());
  if (num_generated == 0) {
    if (answer.error.ok())
      return Status(Code::kCancelled, "message", "stopped before its answer, and taken back");
    return answer.error;
  }
  console.text("\n");
  take_answer(answer, *text_, end_tokens_, turn);
  const int32_t recomputed = std::min(held, answer.metrics.recomputed_tokens);
  turn.counts.reused = held - recomputed + answer.metrics.cached_tokens;
  turn.counts.computed = static_cast<int32_t>(tokens.size()) - turn.counts.reused;
  turn.counts.generated = static_cast<int32_t>(num_generated);
  turn.counts.tokens_per_s = answer.metrics.tpot_ms > 0 ? 1000 / answer.metrics.tpot_ms : 0;
  if (answer.finish == FinishReason::kLength) {
    console.note("(cut after " + std::to_string(num_generated) + " tokens" +
                 (num_generated == static_cast<size_t>(room) ? ", the context is full)" : ")"));
  }
  if (answer.finish == FinishReason::kCancelled) console.note("(stopped)");
  return answer.error;
}

// Of the prompt behind its first `held` tokens, with `room` for an answer.
ChoicesPlan ChatVerb::plan_for(const Turn& turn, const std::vector<TokenId>& prompt, int32_t held,
                               int64_t room) const {
  GenerationFields settings = settings_;
  settings.max_tokens = static_cast<int32_t>(
      std::min<int64_t>(settings_.max_tokens.value_or(kDefaultMaxTokens), room));
  ChoicesPlan plan;
  plan.tokens.assign(prompt.begin() + held, prompt.end());
  plan.options = generation_options(settings, end_tokens_);
  plan.options.sampling.choice += turn.choice;
  plan.options.signal = signal_;
  plan.stops = settings.stop;
  plan.text = text_options(settings);
  return plan;
}

// Shows the text as it comes, until the end or Ctrl-C.
void ChatVerb::stream(PromptChoices& answers, Console& console) {
  const PromptChoices::Choice& answer = answers.choices()[0];
  wants_stop_.store(false);
  is_answering_.store(true);
  size_t num_shown = 0;
  for (;;) {
    const uint64_t seen = signal_->count();
    if (wants_stop_.load()) answers.cancel();
    const bool changed = answers.poll();
    if (answer.text().size() > num_shown) {
      console.text(answer.text().substr(num_shown));
      num_shown = answer.text().size();
    }
    if (answers.finished()) break;
    if (!changed) signal_->wait(seen);
  }
  is_answering_.store(false);
}

Status ChatVerb::retry(Console& console) {
  if (current().turns().empty()) {
    return invalid_argument("/retry", "expected a message before it, found none");
  }
  Turn old = current().turns().back();
  current().drop_turns(1);
  // The next choice: with a seed, too, it is another answer, and the same one in each run.
  const Status status = answer(old.message, old.choice + 1, console);
  if (!status.ok()) current().add(std::move(old));
  return status;
}

// ---- Commands ----

// By the command of this name.
Status ChatVerb::rewind(const std::string& name, const std::string& argument, Console& console) {
  const auto most = static_cast<int64_t>(current().turns().size());
  if (most == 0) return invalid_argument(name, "expected a message to take back, found none");
  CHORUS_ASSIGN_OR_RETURN(const int64_t count, parse_count(name, argument, 1, most));
  current().drop_turns(static_cast<size_t>(count));
  tell("(" + std::to_string(current().turns().size()) + " turns are left)", console);
  return Status();
}

// Whether a branch has this name.
bool ChatVerb::is_taken(const std::string& name) const {
  return std::any_of(branches_.begin(), branches_.end(),
                     [&](const Conversation& branch) { return branch.name() == name; });
}

Status ChatVerb::fork(std::string name, Console& console) {
  for (size_t i = 2; name.empty(); ++i) {
    const std::string next = "fork" + std::to_string(i);
    if (!is_taken(next)) name = next;
  }
  if (name != as_name(name)) {
    return invalid_argument("/fork", "expected a name of UTF-8 without spaces and control " +
                                         ("characters, found \"" + as_name(name) + "\""));
  }
  if (is_taken(name)) return invalid_argument("/fork", "expected a new name, found " + name);
  CHORUS_ASSIGN_OR_RETURN(Conversation branch, current().fork(name));
  branches_.push_back(std::move(branch));
  current_ = std::prev(branches_.end());
  tell("(on " + name + ")", console);
  return Status();
}

Status ChatVerb::save(const std::string& file, Console& console) {
  if (file.empty()) return invalid_argument("/save", "expected a file");
  if (current().turns().empty()) {
    return invalid_argument("/save", "expected a message before it, found none");
  }
  CHORUS_RETURN_IF_ERROR(check_not_same("/save", file, model_));
  const auto saved = current().save();
  if (!saved.ok()) return at_flag("/save", saved.status());
  CHORUS_RETURN_IF_ERROR(write_saved("/save", *saved, file, *interrupt_));
  tell("(saved " + std::to_string(current().turns().size()) + " turns)", console);
  return Status();
}

Status ChatVerb::load(const std::string& argument, Console& console) {
  constexpr std::string_view kRecompute = "--recompute";
  std::string file = argument;
  const bool recompute = file == kRecompute || file.starts_with(std::string(kRecompute) + " ");
  if (recompute) {
    file.erase(0, std::min(file.find_first_not_of(" \t", kRecompute.size()), file.size()));
  }
  if (file.empty()) return invalid_argument("/load", "expected a file");
  CHORUS_ASSIGN_OR_RETURN(const SavedSession saved, read_saved("/load", file));
  CHORUS_ASSIGN_OR_RETURN(Session session,
                          load_saved("/load", saved, recompute, engine_->runner()));
  // The file's name without its folder and ending, and a number if there is one of that name.
  const std::string stem = as_name(std::filesystem::path(file).stem().string());
  std::string name = stem;
  for (size_t i = 2; is_taken(name); ++i) name = stem + std::to_string(i);
  auto branch = Conversation::restore(name, saved, std::move(session));
  if (!branch.ok()) return branch.status().within("/load");
  branches_.push_back(std::move(branch).value());
  current_ = std::prev(branches_.end());
  tell("(on " + name + ", " + std::to_string(current().turns().size()) + " turns)", console);
  return Status();
}

Status ChatVerb::switch_to(const std::string& name, Console& console) {
  std::vector<std::string> names;
  for (auto branch = branches_.begin(); branch != branches_.end(); ++branch) {
    names.push_back(branch->name());
    if (branch->name() != name) continue;
    current_ = branch;
    tell("(on " + name + ", " + std::to_string(current().turns().size()) + " turns)", console);
    return Status();
  }
  return invalid_argument("/switch", "expected the name of a branch, found \"" + name + "\"" +
                                         suggestion(name, names) + " (/branches lists them)");
}

Status ChatVerb::set(const std::string& argument, Console& console) {
  if (argument.empty()) {
    console.text(settings_text(settings_));
    return Status();
  }
  const size_t end = std::min(argument.find_first_of(" \t"), argument.size());
  const size_t begin = std::min(argument.find_first_not_of(" \t", end), argument.size());
  return change_setting(argument.substr(0, end), argument.substr(begin), defaults_, settings_)
      .within("/set");
}

std::string ChatVerb::branches_text() const {
  std::string text;
  for (const Conversation& branch : branches_) {
    char line[64];
    std::snprintf(line, sizeof line, "  %zu turns, %zu tokens held\n", branch.turns().size(),
                  branch.num_held());
    text += (&branch == &current() ? "* " : "  ") + branch.name() + line;
  }
  return text;
}

std::string ChatVerb::stats_text() const {
  std::string text = "turn  reused  computed  generated  tokens/s\n";
  char line[160];
  for (size_t i = 0; i < current().turns().size(); ++i) {
    const TurnCounts& counts = current().turns()[i].counts;
    std::snprintf(line, sizeof line, "%4zu  %6d  %8d  %9d  %8.1f\n", i + 1, counts.reused,
                  counts.computed, counts.generated, counts.tokens_per_s);
    text += line;
  }
  const RunnerMetrics metrics = engine_->runner().metrics();
  int64_t blocks = 0;
  int64_t blocks_used = 0;
  for (const GroupUsage& group : metrics.usage.groups) {
    blocks += group.blocks_total;
    blocks_used += group.blocks_total - group.blocks_free - group.blocks_cached;
  }
  std::snprintf(line, sizeof line,
                "all branches: %lld prompt tokens computed, %lld recomputed, %lld generated, "
                "%lld of %lld KV blocks\n",
                static_cast<long long>(metrics.prompt_tokens - metrics.cached_tokens),
                static_cast<long long>(metrics.recomputed_tokens),
                static_cast<long long>(metrics.generated_tokens),
                static_cast<long long>(blocks_used), static_cast<long long>(blocks));
  return text + line;
}

// For people who watch; a pipe gets answers, and what it asked for.
void ChatVerb::tell(const std::string& text, Console& console) const {
  if (is_interactive_) console.note(text);
}

}  // namespace

std::unique_ptr<Verb> make_chat() { return std::make_unique<ChatVerb>(); }

}  // namespace chorus::cli
