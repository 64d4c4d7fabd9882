// A session outside of an engine: what Session::save gives and Runner::load takes, and the file
// form of it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "chorus/base/result.h"
#include "chorus/exec/module.h"
#include "chorus/exec/types.h"

namespace chorus {

struct SavedSession {
  std::vector<TokenId> tokens;  // the context
  // Of the last generation, with the seed it used; neither its constraint nor its min_tokens.
  SamplingParams sampling;
  KvFormat format;            // of `kv`
  std::string notes;          // whatever an application adds; the engine does not read it
  std::vector<std::byte> kv;  // as Executor::save wrote it; empty: to be computed from the tokens
};

// The session file (docs/formats.md): versioned, each section with its SHA-256, little endian.
std::vector<std::byte> encode_session(const SavedSession& session);

// Checks everything but what `notes` and `kv` hold; the executor checks `kv` when it is loaded.
// Errors: kDataLoss with the part of the file as field (magic, version, checksum, sections, format,
// tokens, sampling, notes, kv, file).
Result<SavedSession> decode_session(std::span<const std::byte> file);

}  // namespace chorus
