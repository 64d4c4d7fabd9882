#include "text/rust_border.h"

#if defined(__SANITIZE_THREAD__)  // of GCC
#define CHORUS_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CHORUS_THREAD_SANITIZER 1
#endif
#endif

#ifdef CHORUS_THREAD_SANITIZER
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

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

#ifdef CHORUS_THREAD_SANITIZER
UncheckedByThreadSanitizer::UncheckedByThreadSanitizer() {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}

UncheckedByThreadSanitizer::~UncheckedByThreadSanitizer() {
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
#else
UncheckedByThreadSanitizer::UncheckedByThreadSanitizer() = default;
UncheckedByThreadSanitizer::~UncheckedByThreadSanitizer() = default;
#endif

ChorusTextBytes border_bytes(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace chorus::text
