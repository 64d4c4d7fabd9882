#include "text/rust_border.h"

namespace chorus::text {

Status BorderError::status(int32_t code) const {
  // The numbers of rust/src/error.rs.
  switch (code) {
    case 0:
      return Status();
    case 1:
      return invalid_argument(field_, message_);
    case 2:
      return unimplemented(field_, message_);
    case 3:
      return data_loss(field_, message_);
    case 4:
      return resource_exhausted(field_, message_);
    default:
      return internal_error(field_, message_);
  }
}

void BorderError::receive(void* context, ChorusTextBytes field, ChorusTextBytes message) {
  auto* error = static_cast<BorderError*>(context);
  error->field_.assign(field.data, field.num_bytes);
  error->message_.assign(message.data, message.num_bytes);
}

ChorusTextBytes border_bytes(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace chorus::text
