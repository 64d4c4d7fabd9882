// The facts of a program file, as plain data, and their checked reading from the FlatBuffers part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/sha256.h"
#include "program/graph.h"

namespace chorus {

// The version of the arithmetic in docs/formats.md that results of a program follow.
inline constexpr int32_t kNumericsVersion = 1;

// An entry of a program: what one forward of it accepts. A program has `forward` alone, from 1 row
// on; or `decode` and `prefill`, in this order, which together serve every number of rows.
struct Method {
  std::string name;
  int32_t min_tokens = 1;  // rows per forward, both included
  int32_t max_tokens = 0;
  int32_t min_wanted = 0;  // wanted rows that every forward must name at least
  // Of `decode`: the numbers of rows that it takes, ascending, from min_tokens to max_tokens. Empty
  // for the others, which take every number between their bounds.
  std::vector<int32_t> widths = {};
  friend bool operator==(const Method&, const Method&) = default;
};

// `forward` of 1 to max_tokens rows.
std::vector<Method> forward_method(int32_t max_tokens);
// Bounds of `decode` are the first and the last width, 0 where there is none.
std::vector<Method> decode_and_prefill(std::vector<int32_t> widths, int32_t min_prefill,
                                       int32_t max_prefill);

// What check_manifest asks of methods. Errors: kDataLoss, fields "methods" and "methods[i].NAME".
Status check_methods(const std::vector<Method>& methods);

// Bytes of the file: [offset, offset + bytes), offset a multiple of 64. No bytes: absent.
struct Segment {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  Digest sha256{};
};

// The tokenizer model whose definition is a tokenizer.json.
inline constexpr std::string_view kDefinedTokenizer = "huggingface";

// The small part of a tokenizer; ids are -1 where the model has none.
struct TokenizerFacts {
  // "gpt2" (byte-level BPE), "llama" (scores), "huggingface" (a tokenizer.json); empty: the program
  // has no tokenizer.
  std::string model;
  std::string pre;  // the pre-tokenizer's name, may be empty
  int32_t bos = -1;
  int32_t eos = -1;
  int32_t eot = -1;
  int32_t pad = -1;
  int32_t unk = -1;
  std::vector<int32_t> end_ids;  // ids besides eos and eot that end a generation
  bool add_bos = false;          // in front of every prompt
  bool add_eos = false;
  bool add_space_prefix = false;
};

struct Manifest {
  int32_t numerics_version = kNumericsVersion;
  std::string architecture;
  std::string name;
  int32_t context = 0;  // longest sequence
  int32_t vocabulary = 0;
  std::vector<Method> methods;
  Graph graph;
  std::vector<Weight> weights;
  std::vector<Digest> weight_hashes;  // of each weight's packed bytes
  TokenizerFacts tokenizer;
  Segment tokens;
  Segment merges;
  Segment definition;  // the tokenizer.json
  Segment chat_template;
};

std::vector<std::byte> encode_manifest(const Manifest& manifest);

// Requires: `bytes` starts at a multiple of 8. The structure and all names are checked; what the
// values mean is not (check_manifest, check_graph). Errors: kDataLoss, the field is the path of the
// fault in the manifest.
Result<Manifest> decode_manifest(std::span<const std::byte> bytes);

// Everything that can be said without the segments' contents: limits, methods, ids, text that
// people see, sizes of weights against shape and packing, the graph, and that the segments lie in
// [begin, end) of the file without overlap, each less than 64 bytes after the one before.
// Errors: kDataLoss with the field's path.
Status check_manifest(const Manifest& manifest, uint64_t begin, uint64_t end);

// Every segment that has bytes, weights included, ascending by offset.
std::vector<Segment> segments_in_order(const Manifest& manifest);

// Decides whether two programs compute the same KV bits from the same tokens: a hash of the
// numerics version, the graph with its ropes and layer groups, and the weights' shapes, packings
// and hashes. Names, methods, context and tokenizer have no part in it.
Digest kv_identity(const Manifest& manifest);

}  // namespace chorus
