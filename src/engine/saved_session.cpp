#include "engine/saved_session.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/sha256.h"
#include "batching/sampling_policy.h"

namespace chorus {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<char, 8> kMagic = {'C', 'H', 'O', 'R', 'U', 'S', 'S', '\x1a'};
constexpr uint32_t kVersion = 1;
constexpr size_t kMaxName = 32;

enum Section : uint32_t { kFormat, kTokens, kSampling, kNotes, kKv, kNumSections };
constexpr const char* kSectionNames[kNumSections] = {"format", "tokens", "sampling", "notes", "kv"};

struct SectionEntry {
  uint64_t bytes = 0;
  Digest checksum{};
};
// What stands in front of the sections, which follow it in order and without gaps.
struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t num_sections = kNumSections;
  SectionEntry sections[kNumSections];
  Digest checksum{};  // of everything before it
};
static_assert(sizeof(Header) == 16 + 40 * kNumSections + 32);

struct SamplingRecord {
  float temperature = 0;
  uint32_t choice = 0;
  uint64_t seed = 0;
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  uint32_t zero = 0;
};
static_assert(sizeof(SamplingRecord) == 32);

// Behind the record where any of it is not as SamplingParams has it: so files without are as they
// always were. The lists follow, in this order.
struct AdjustmentRecord {
  float typical_p = 1;
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  uint32_t num_biases = 0;     // id and bias, 8 bytes each
  uint32_t num_allowed = 0;    // ids
  uint32_t num_sequences = 0;  // of bad_sequences: u32 length, ids
  uint32_t zero = 0;
};
static_assert(sizeof(AdjustmentRecord) == 32 && sizeof(TokenBias) == 8);

Digest header_checksum(const Header& header) {
  return sha256(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, checksum)));
}

// ---- Writing ----

void append(std::span<const std::byte> bytes, std::vector<std::byte>& out) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}
template <typename T>
void append_value(const T& value, std::vector<std::byte>& out) {
  append(std::as_bytes(std::span(&value, 1)), out);
}
void append_name(const std::string& name, std::vector<std::byte>& out) {
  append_value(static_cast<uint32_t>(name.size()), out);
  append(std::as_bytes(std::span(name)), out);
}

std::vector<std::byte> encode_format(const KvFormat& format) {
  std::vector<std::byte> out;
  append_value(format.identity, out);
  append_value(format.numerics_version, out);
  append_name(format.kv_type, out);
  append_name(format.activations, out);
  append_name(format.isa, out);
  return out;
}

std::vector<std::byte> encode_sampling(const SamplingParams& sampling) {
  std::vector<std::byte> out;
  append_value(SamplingRecord{sampling.temperature, sampling.choice, sampling.seed, sampling.top_k,
                              sampling.top_p, sampling.min_p},
               out);
  const auto& biases = sampling.logit_bias;
  const auto& allowed = sampling.allowed_tokens;
  const auto& bad = sampling.bad_sequences;
  if (sampling.typical_p == 1 && !sampling.remembers() && biases.empty() && allowed.empty())
    return out;
  append_value(
      AdjustmentRecord{sampling.typical_p, sampling.repetition_penalty, sampling.frequency_penalty,
                       sampling.presence_penalty, static_cast<uint32_t>(biases.size()),
                       static_cast<uint32_t>(allowed.size()), static_cast<uint32_t>(bad.size())},
      out);
  append(std::as_bytes(std::span(biases)), out);
  append(std::as_bytes(std::span(allowed)), out);
  for (const std::vector<TokenId>& sequence : bad) {
    append_value(static_cast<uint32_t>(sequence.size()), out);
    append(std::as_bytes(std::span(sequence)), out);
  }
  return out;
}

// ---- Reading ----

// Takes values from the front of bytes; once they do not suffice, everything fails.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool take(std::span<std::byte> out) {
    if (out.size() > bytes_.size()) return false;
    if (!out.empty()) std::memcpy(out.data(), bytes_.data(), out.size());
    bytes_ = bytes_.subspan(out.size());
    return true;
  }
  template <typename T>
  bool take_value(T& value) {
    return take(std::as_writable_bytes(std::span(&value, 1)));
  }
  bool take_name(std::string& name) {
    uint32_t size = 0;
    if (!take_value(size) || size > kMaxName) return false;
    name.resize(size);
    return take(std::as_writable_bytes(std::span(name)));
  }
  template <typename T>
  bool take_list(uint32_t count, std::vector<T>& list) {
    if (count > bytes_.size() / sizeof(T)) return false;
    list.resize(count);
    return take(std::as_writable_bytes(std::span(list)));
  }
  size_t num_left() const { return bytes_.size(); }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

bool decode_format(std::span<const std::byte> bytes, KvFormat& format) {
  Reader reader(bytes);
  return reader.take_value(format.identity) && reader.take_value(format.numerics_version) &&
         reader.take_name(format.kv_type) && reader.take_name(format.activations) &&
         reader.take_name(format.isa) && reader.at_end();
}

bool decode_tokens(std::span<const std::byte> bytes, std::vector<TokenId>& tokens) {
  if (bytes.size() % sizeof(TokenId) != 0) return false;
  tokens.resize(bytes.size() / sizeof(TokenId));
  if (!bytes.empty()) std::memcpy(tokens.data(), bytes.data(), bytes.size());
  return true;
}

bool decode_adjustments(Reader& reader, SamplingParams& sampling) {
  AdjustmentRecord record;
  if (!reader.take_value(record) || record.zero != 0) return false;
  sampling.typical_p = record.typical_p;
  sampling.repetition_penalty = record.repetition_penalty;
  sampling.frequency_penalty = record.frequency_penalty;
  sampling.presence_penalty = record.presence_penalty;
  if (!reader.take_list(record.num_biases, sampling.logit_bias) ||
      !reader.take_list(record.num_allowed, sampling.allowed_tokens) ||
      record.num_sequences > reader.num_left() / sizeof(uint32_t))
    return false;
  sampling.bad_sequences.resize(record.num_sequences);
  for (std::vector<TokenId>& sequence : sampling.bad_sequences) {
    uint32_t length = 0;
    if (!reader.take_value(length) || !reader.take_list(length, sequence)) return false;
  }
  return true;
}

bool decode_sampling(std::span<const std::byte> bytes, SamplingParams& sampling) {
  SamplingRecord record;
  Reader reader(bytes);
  if (!reader.take_value(record)) return false;
  if (!reader.at_end() && !decode_adjustments(reader, sampling)) return false;
  if (!reader.at_end()) return false;
  sampling.temperature = record.temperature;
  sampling.choice = record.choice;
  sampling.seed = record.seed;
  sampling.top_k = record.top_k;
  sampling.top_p = record.top_p;
  sampling.min_p = record.min_p;
  return record.zero == 0 && check_sampling(sampling, INT32_MAX).ok();
}

Status check_header(const Header& header) {
  if (header.magic != kMagic) return data_loss("magic", "this is not a session file");
  if (header.version != kVersion)
    return data_loss("version", "expected " + std::to_string(kVersion) + ", found " +
                                    std::to_string(header.version));
  if (header_checksum(header) != header.checksum)
    return data_loss("checksum", "the header is damaged");
  if (header.num_sections != kNumSections)
    return data_loss("sections", "expected " + std::to_string(kNumSections) + ", found " +
                                     std::to_string(header.num_sections));
  return {};
}

}  // namespace

std::vector<std::byte> encode_session(const SavedSession& session) {
  const std::vector<std::byte> sampling = encode_sampling(session.sampling);
  const std::vector<std::byte> format = encode_format(session.format);
  const std::array<std::span<const std::byte>, kNumSections> sections = {
      format, std::as_bytes(std::span(session.tokens)), sampling,
      std::as_bytes(std::span(session.notes)), session.kv};
  Header header;
  size_t total = sizeof(Header);
  for (size_t i = 0; i < kNumSections; ++i) {
    header.sections[i] = {sections[i].size(), sha256(sections[i])};
    total += sections[i].size();
  }
  header.checksum = header_checksum(header);
  std::vector<std::byte> file;
  file.reserve(total);
  append_value(header, file);
  for (const auto& section : sections) append(section, file);
  return file;
}

Result<SavedSession> decode_session(std::span<const std::byte> file) {
  Header header;
  if (file.size() < sizeof(Header)) return data_loss("magic", "this is not a session file");
  std::memcpy(&header, file.data(), sizeof(Header));
  CHORUS_RETURN_IF_ERROR(check_header(header));
  std::span<const std::byte> rest = file.subspan(sizeof(Header));
  std::array<std::span<const std::byte>, kNumSections> sections;
  for (size_t i = 0; i < kNumSections; ++i) {
    const std::string name = kSectionNames[i];
    const uint64_t bytes = header.sections[i].bytes;
    if (bytes > rest.size()) return data_loss(name, "the file ends in this section");
    sections[i] = rest.first(static_cast<size_t>(bytes));
    rest = rest.subspan(static_cast<size_t>(bytes));
    if (sha256(sections[i]) != header.sections[i].checksum)
      return data_loss(name, "the section is damaged: its checksum differs");
  }
  if (!rest.empty())
    return data_loss("file", std::to_string(rest.size()) + " bytes follow the last section");
  SavedSession session;
  if (!decode_format(sections[kFormat], session.format))
    return data_loss("format", "the section does not hold what it should");
  if (!decode_tokens(sections[kTokens], session.tokens))
    return data_loss("tokens", "expected a whole number of ids");
  if (!decode_sampling(sections[kSampling], session.sampling))
    return data_loss("sampling", "expected sampling parameters in their ranges");
  const auto notes = sections[kNotes];
  session.notes.assign(reinterpret_cast<const char*>(notes.data()), notes.size());
  session.kv.assign(sections[kKv].begin(), sections[kKv].end());
  return session;
}

}  // namespace chorus
