// The session file's reader, past the checksums, and loading what it holds. An input whose last
// byte is odd is read as it is; the others get the checksums they should have.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/sha256.h"
#include "engine/saved_session.h"
#include "exec/fake_module.h"
#include "executors/module_executor.h"

namespace {

using namespace chorus;

// As docs/formats.md has it.
constexpr size_t kSections = 5;
constexpr size_t kSectionsAt = 16;
constexpr size_t kSectionBytes = 40;
constexpr size_t kChecksumAt = kSectionsAt + kSections * kSectionBytes;
constexpr size_t kHeaderBytes = kChecksumAt + 32;

void repair(std::vector<std::byte>& file) {
  if (file.size() < kHeaderBytes) return;
  size_t at = kHeaderBytes;
  for (size_t i = 0; i < kSections; ++i) {
    std::byte* entry = file.data() + kSectionsAt + i * kSectionBytes;
    uint64_t bytes = 0;
    std::memcpy(&bytes, entry, sizeof bytes);
    if (bytes > file.size() - at) return;
    const Digest digest = sha256(std::span(file).subspan(at, static_cast<size_t>(bytes)));
    std::memcpy(entry + sizeof bytes, digest.data(), digest.size());
    at += static_cast<size_t>(bytes);
  }
  const Digest digest = sha256(std::span(file).first(kChecksumAt));
  std::memcpy(file.data() + kChecksumAt, digest.data(), digest.size());
}

class Source final : public ByteSource {
 public:
  explicit Source(std::span<const std::byte> bytes) : bytes_(bytes) {}
  Status read(std::span<std::byte> out) override {
    if (out.size() > bytes_.size()) return data_loss("kv", "it ends too early");
    std::copy_n(bytes_.begin(), out.size(), out.begin());
    bytes_ = bytes_.subspan(out.size());
    return {};
  }

 private:
  std::span<const std::byte> bytes_;
};

void load(const SavedSession& saved) {
  FakeModuleOptions options;
  options.groups.push_back({.policy = {}, .num_blocks = 8});
  options.groups.push_back({.policy = {.window = 20}, .num_blocks = 8});
  FakeModule module(options);
  const auto executor = std::move(ModuleExecutor::create(module, {4, 100})).value();
  const int32_t free = executor->available_blocks(0);
  Source source(saved.kv);
  const auto session = executor->load({}, saved.tokens, source);
  executor->sessions().check_invariants();
  if (session.ok()) {
    CHORUS_CHECK(executor->length(*session).value() <= 100);
    executor->close(*session);
  }
  CHORUS_CHECK_EQ(executor->available_blocks(0), free);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> file(begin, begin + size - 1);
  if (data[size - 1] % 2 == 0) repair(file);
  const auto saved = decode_session(file);
  if (!saved.ok()) return 0;
  CHORUS_CHECK(encode_session(*saved) == file);
  load(*saved);
  return 0;
}
