// The GGUF reader and, for what it takes, description, lowering, packing and loading.
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/check.h"
#include "exporter/describe_gguf.h"
#include "exporter/export.h"
#include "program/program.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace chorus;
  const auto file = GgufFile::parse(std::as_bytes(std::span(data, size)));
  if (!file.ok()) return 0;
  CHORUS_CHECK_EQ(describe(*file).tensors.size(), file->tensors().size());
  auto image = export_gguf(*file);
  if (!image.ok()) return 0;
  // What the exporter writes, the reader takes.
  const auto program = Program::from_bytes(std::move(image).value());
  CHORUS_CHECK(program.ok());
  CHORUS_CHECK(program->verify_weights().ok());
  return 0;
}
