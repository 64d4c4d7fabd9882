// The program reader, past the checksum. An input whose first byte is odd is read as it is; the
// others get the right header for a manifest at the offset that their header names, and the right
// hashes of text segments, so that damage reaches the checks behind.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "program/describe.h"
#include "program/image.h"
#include "program/manifest.h"
#include "program/packing/r16k4.h"
#include "program/program.h"

namespace {

using namespace chorus;

constexpr size_t kManifestOffsetAt = 24;

void repair_hash(std::span<const std::byte> image, Segment& segment) {
  if (segment.bytes == 0 || segment.offset > image.size() ||
      segment.bytes > image.size() - segment.offset) {
    return;
  }
  segment.sha256 = sha256(image.subspan(segment.offset, segment.bytes));
}

// The image with the checksums it should have; as it is where that makes no sense.
std::vector<std::byte> repaired(std::span<const std::byte> input) {
  std::vector<std::byte> image(input.begin(), input.end());
  uint64_t offset = 0;
  if (image.size() < kImageHeaderBytes) return image;
  std::memcpy(&offset, image.data() + kManifestOffsetAt, sizeof offset);
  if (offset < kImageHeaderBytes || offset > image.size() || offset % 64 != 0) return image;
  const std::vector<std::byte> bytes(image.begin() + static_cast<ptrdiff_t>(offset), image.end());
  auto manifest = decode_manifest(bytes);
  if (manifest.ok()) {
    repair_hash(image, manifest->tokens);
    repair_hash(image, manifest->merges);
    repair_hash(image, manifest->chat_template);
    const auto encoded = encode_manifest(*manifest);
    image.resize(offset);
    image.insert(image.end(), encoded.begin(), encoded.end());
  }
  write_image_header(image, offset);
  return image;
}

// Reads everything that a backend and a tokenizer would.
void use(const Program& program) {
  CHORUS_CHECK_EQ(program.tokenizer().tokens.empty(), program.tokenizer().facts.model.empty());
  size_t text_bytes = program.chat_template().size();
  for (const auto token : program.tokenizer().tokens) text_bytes += token.size();
  for (const auto merge : program.tokenizer().merges) text_bytes += merge.size();
  CHORUS_CHECK_LE(text_bytes, program.image().size());
  for (size_t i = 0; i < program.weights().size(); ++i) {
    const Weight& weight = program.weights()[i];
    std::vector<float> row(static_cast<size_t>(weight.columns));
    dequantize_row(weight, program.weight_bytes(static_cast<WeightId>(i)), weight.rows - 1, row);
  }
  (void)program.verify_weights();
  CHORUS_CHECK_EQ(describe(program).weights.size(), program.weights().size());
  CHORUS_CHECK_EQ(graph_lines(program).size(), program.graph().ops.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const bool as_it_is = (data[0] & 1) != 0;
  const auto input = std::as_bytes(std::span(data, size)).subspan(1);
  const auto image =
      as_it_is ? std::vector<std::byte>(input.begin(), input.end()) : repaired(input);
  const auto program = Program::from_bytes(AlignedBuffer::copy_of(image));
  if (program.ok()) use(*program);
  return 0;
}
