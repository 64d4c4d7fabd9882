#include "program/rewrite.h"

#include <cstring>
#include <string>

#include "base/check.h"
#include "program/image.h"
#include "program/manifest.h"

namespace chorus {

Result<AlignedBuffer> rewrite_image(const Program& program, const ProgramChanges& changes) {
  Manifest manifest = program.manifest();
  if (changes.context < 0 || changes.context > program.context()) {
    return invalid_argument("context", "expected 1 to " + std::to_string(program.context()) +
                                           ", the context of the program, found " +
                                           std::to_string(changes.context));
  }
  if (changes.context > 0) manifest.context = changes.context;
  if (!changes.methods.empty()) manifest.methods = changes.methods;
  if (const Status status = check_methods(manifest.methods); !status.ok()) {
    return invalid_argument(status.field(), status.message());
  }
  const auto header = read_image_header(program.image());
  CHORUS_CHECK(header.ok());
  const uint64_t offset = header->manifest_offset;
  const std::vector<std::byte> encoded = encode_manifest(manifest);
  CHORUS_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::create(offset + encoded.size()));
  const std::span<std::byte> image = buffer.bytes();
  std::memcpy(image.data(), program.image().data(), offset);
  std::memcpy(image.data() + offset, encoded.data(), encoded.size());
  write_image_header(image, offset);
  return buffer;
}

}  // namespace chorus
