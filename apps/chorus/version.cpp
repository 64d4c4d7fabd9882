#include "version.h"

#include <cstdlib>

#include "base/cpu_features.h"
#include "build_info.h"

namespace chorus::cli {

namespace {

std::string compiler() {
#if defined(__clang__)
  return std::string("clang ") + __clang_version__;
#else
  return std::string("g++ ") + __VERSION__;
#endif
}

}  // namespace

Result<std::string> version_text() {
  const char* forced = std::getenv("CHORUS_FORCE_ISA");
  CHORUS_ASSIGN_OR_RETURN(const Isa chosen, choose_isa(forced == nullptr ? "" : forced));
  std::string text = "chorus " CHORUS_VERSION " (" CHORUS_COMMIT ")\n";
  text += "compiler: " + compiler() + "\ninstruction sets built in:";
  for (const Isa isa : built_isas()) text += " " + std::string(isa_name(isa));
  text += "\nchosen: " + std::string(isa_name(chosen)) + "\n";
  return text;
}

json::Value version_json() {
  json::Value value;
  value.set("version", CHORUS_VERSION);
  value.set("commit", CHORUS_COMMIT);
  value.set("compiler", compiler());
  return value;
}

}  // namespace chorus::cli
