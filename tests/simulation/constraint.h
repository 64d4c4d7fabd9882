// A constraint with a state: what it allows depends on what was chosen before.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/random.h"
#include "exec/types.h"

namespace chorus::simulation {

// What a constraint does, as a value: the engine's copy and the model's follow the same rules.
struct ConstraintRules {
  uint64_t seed = 0;
  int32_t vocabulary = 0;
  int32_t fails_to_fill_at = -1;    // with so many tokens accepted
  int32_t fails_to_accept_at = -1;  // as above
  int32_t allows_nothing_at = -1;   // as above

  // About a third of the tokens, by how many were accepted and which was the last one.
  bool allows(int32_t num_accepted, TokenId last, TokenId id) const {
    const uint64_t state =
        static_cast<uint64_t>(num_accepted) << 32 | static_cast<uint32_t>(last + 1);
    const auto always =
        static_cast<TokenId>(random_bits(seed, 1, state) % static_cast<uint64_t>(vocabulary));
    return id == always || random_bits(seed ^ state, 2, static_cast<uint64_t>(id)) % 3 == 0;
  }
  void fill(int32_t num_accepted, TokenId last, std::span<uint32_t> mask) const {
    for (TokenId id = 0; id < vocabulary; ++id) {
      if (allows(num_accepted, last, id)) mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    }
  }
  bool fails_at(int32_t num_accepted) const {
    return num_accepted == fails_to_fill_at || num_accepted == fails_to_accept_at ||
           num_accepted == allows_nothing_at;
  }
};

class SimulatedConstraint final : public TokenConstraint {
 public:
  explicit SimulatedConstraint(const ConstraintRules& rules) : rules_(rules) {}
  Status fill_mask(std::span<uint32_t> mask) override {
    if (num_accepted_ == rules_.fails_to_fill_at)
      return internal_error("constraint", "fill_mask failed by the simulation");
    if (num_accepted_ != rules_.allows_nothing_at) rules_.fill(num_accepted_, last_, mask);
    return {};
  }
  Status accept(TokenId token) override {
    if (num_accepted_ == rules_.fails_to_accept_at)
      return internal_error("constraint", "accept failed by the simulation");
    ++num_accepted_;
    last_ = token;
    return {};
  }

 private:
  const ConstraintRules rules_;
  int32_t num_accepted_ = 0;
  TokenId last_ = -1;
};

}  // namespace chorus::simulation
