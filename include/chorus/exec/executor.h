// The seam above: what the engine asks of an execution backend, in tokens and positions.
#pragma once

#include <cstddef>
#include <string>

#include "chorus/exec/module.h"
#include "chorus/exec/types.h"

namespace chorus {

// What a session would add in a step: rows for positions [start, start + count).
// start < length is a rewind.
struct SessionDemand {
  SessionId session{};
  Position start = 0;
  int32_t count = 0;
};

struct ExecutorInfo {
  int32_t vocabulary = 0;              // tokens are in [0, vocabulary)
  int32_t max_sessions = 0;            // resident at once, clones included
  int32_t max_session_tokens = 0;      // longest session
  int32_t preferred_batch_tokens = 0;  // a packing hint, 0 = none; never a limit
  int32_t block_size = 0;              // cells per block
  bool has_prefix_index = false;       // else attach_prefix never finds anything
  KvFormat kv_format;                  // of what save writes and load reads
};

struct GroupUsage {
  int32_t window = 0;  // 0: full history
  int32_t num_layers = 0;
  int64_t bytes_per_block = 0;
  int32_t blocks_total = 0;
  int32_t blocks_free = 0;
  int32_t blocks_cached = 0;  // held by the prefix index alone
  int32_t blocks_peak = 0;    // most in use or cached at once since initialize
};

struct MethodUsage {
  std::string name;
  int64_t forwards = 0;
  int64_t padded_rows = 0;
};

struct Usage {
  std::vector<GroupUsage> groups;
  std::vector<MethodUsage> methods;
  int64_t steps = 0;
  int64_t copied_blocks = 0;
  ModuleUsage module;
};

// Where a session's KV is written to and read from. Errors stop the transfer.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual Status write(std::span<const std::byte> bytes) = 0;
};
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual Status read(std::span<std::byte> bytes) = 0;  // exactly so many bytes
};

// Runs steps over sessions. Called on the engine thread only and never calls back, so it needs no
// locks. A failed call leaves every session as it was.
class Executor {
 public:
  virtual ~Executor() = default;

  // Once, on the engine thread, before any other call but info().
  virtual Status initialize() = 0;
  virtual ExecutorInfo info() const = 0;

  // An empty session. If it is to be indexed, every step puts its full blocks into the prefix
  // index, if there is one, under its salt and adapter. kResourceExhausted (field max_sessions) at
  // capacity.
  virtual Result<SessionId> open(const SessionOptions& options) = 0;
  // Its blocks are free when this returns, or cached. Unknown ids are ignored.
  virtual void close(SessionId session) = 0;
  // A new independent session that holds committed [0, upto) of `source`, upto = 0 included. It
  // shares blocks, copies no KV bytes and has no sampling policy. kInvalidArgument (field upto)
  // outside [0, length], and where a window has left behind what the clone's next token would see;
  // kNotFound for an unknown session.
  virtual Result<SessionId> clone(SessionId source, Position upto) = 0;
  // The policy of the next generation, which begins with the session's next output: there the index
  // keeps what another one needs to begin at the same place. kInvalidArgument names the parameter.
  virtual Status set_sampling(SessionId session, const SamplingParams& params) = 0;
  // The number of committed tokens. kNotFound for an unknown session.
  virtual Result<Position> length(SessionId session) const = 0;

  // Whether execute would find KV blocks for all of these at once. At most one demand per session.
  virtual bool can_admit(std::span<const SessionDemand> demands) const = 0;
  // Blocks of a layer group that a step could still take: the free ones, and those that only the
  // prefix index holds.
  virtual int32_t available_blocks(int32_t group) const = 0;
  // Blocks of all groups that release would really free; 0 for an unknown session.
  virtual int64_t releasable_blocks(SessionId session) const = 0;
  // Blocks of a layer group that releasing all of these would really free. Each is named once;
  // unknown ones have none.
  virtual int64_t releasable_blocks(std::span<const SessionId> sessions, int32_t group) const = 0;
  // Whether a step that appends to the session takes a block, of some group, in place of the last
  // one, which is partial and has other owners. False for an unknown session.
  virtual bool shares_last_block(SessionId session) const = 0;

  // One step for the whole batch. Ok: output.inputs has one entry per input, each with its own
  // status. Not ok: the step was aborted, no session changed, and the output is empty. The inputs
  // of a session are consecutive slices in order (not necessarily adjacent in the batch), of which
  // only the last may ask for output. An input that rewinds to where a window has left behind what
  // its first token would see fails alone (kInvalidArgument, field position); to 0 it never does.
  virtual Status execute(std::span<const BatchInput> batch, BatchOutput& output) = 0;

  // Shortens a session to `length` tokens, 0 included, outside any step. kInvalidArgument (field
  // length) when longer, and as for a rewinding input.
  virtual Status truncate(SessionId session, Position length) = 0;

  // Gives an empty session KV for the longest prefix of `tokens` that the prefix index has under
  // the session's salt and adapter, but never for all of them: one token at least is left to run.
  // The number of tokens taken, which are committed from then on; 0 where nothing is found, and
  // always for a session that is not to be indexed. It copies nothing and needs no free block.
  // kNotFound for an unknown session, kInvalidArgument (field session) for one that is not empty.
  virtual Result<Position> attach_prefix(SessionId session, std::span<const TokenId> tokens) = 0;
  // Gives the session's blocks back, of which the index may keep some as cached ones; it goes on
  // with length 0, its id and policy stay, and it may attach again.
  virtual Status release(SessionId session) = 0;
  // Writes the KV that the session holds, in a canonical form that depends neither on block size
  // nor on where its cells lie. kNotFound for an unknown session, else the sink's error.
  virtual Status save(SessionId session, ByteSink& sink) = 0;
  // A new session of what save wrote, in an executor of the same kv_format. `tokens` begin with
  // those that it holds (none: they are not known). Neither it nor its clones are indexed until
  // they were empty and attach_prefix was called: nobody else is to read what a file has brought.
  // kDataLoss names what of it cannot be;
  // kResourceExhausted (field kv_blocks, max_sessions) where there is no room; else the source's
  // error.
  virtual Result<SessionId> load(const SessionOptions& options, std::span<const TokenId> tokens,
                                 ByteSource& source) = 0;

  virtual Usage usage() const = 0;
};

}  // namespace chorus
