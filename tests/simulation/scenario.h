// What a seed decides before anything happens: the model, and the engines that run it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/options.h"
#include "exec/module.h"
#include "tests/simulation/oracle.h"

namespace chorus::simulation {

struct EngineScenario {
  int32_t block_size = 16;          // of the layout kind sequence: as long as a session
  std::vector<int32_t> num_blocks;  // [groups]
  std::vector<MethodInfo> methods;  // of few rows: a step may have several forwards
  int32_t max_sessions = 8;
  RunnerOptions runner;
};

struct Scenario {
  Model model;
  int32_t max_session_tokens = 128;
  std::vector<EngineScenario> engines;  // one or two; sessions are saved in one and loaded in both
  // Prompts begin with a part of one of these, so that sessions have prefixes in common.
  std::vector<std::vector<TokenId>> texts;
  int32_t faults_per_thousand = 0;  // events that make something fail
  int32_t turns_per_hundred = 40;   // events that are turns of an engine
  bool has_suspends = false;        // of every second seed: others are as they were without
};

Scenario make_scenario(uint64_t seed);

// One line.
std::string describe(const Scenario& scenario);

}  // namespace chorus::simulation
