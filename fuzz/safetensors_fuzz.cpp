// The safetensors reader and, for what it takes, lowering, packing and loading under a fixed
// config.json.
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/check.h"
#include "exporter/describe_hf.h"
#include "exporter/export.h"
#include "exporter/testing/tiny_hf_folder.h"
#include "program/program.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace chorus;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file = SafetensorsFile::parse(bytes);
  if (!file.ok()) {
    CHORUS_CHECK(file.status().code() == Code::kDataLoss && !file.status().field().empty());
    return 0;
  }
  size_t num_bytes = 0;
  for (const SafetensorsTensor& tensor : file->tensors()) {
    CHORUS_CHECK(file->find_tensor(tensor.name) == &tensor);
    num_bytes += tensor.data.size();
  }
  CHORUS_CHECK(num_bytes < size);
  const auto folder = HfFolder::parse({.config = kTinyHfConfig}, bytes);
  CHORUS_CHECK(folder.ok());
  CHORUS_CHECK_EQ(describe(*folder).tensors.size(), file->tensors().size());
  auto image = export_folder(*folder);
  if (!image.ok()) return 0;
  // What the exporter writes, the reader takes.
  const auto program = Program::from_bytes(std::move(image).value());
  CHORUS_CHECK(program.ok());
  CHORUS_CHECK(program->verify_weights().ok());
  return 0;
}
