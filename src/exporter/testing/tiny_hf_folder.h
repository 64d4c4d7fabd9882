// A Hugging Face folder of a llama model for tests, in memory.
#pragma once

#include <string>
#include <utility>

#include "exporter/testing/safetensors_writer.h"
#include "program/testing/tiny_program.h"

namespace chorus {

inline constexpr char kTinyHfConfig[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
  "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
  "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 128, "vocab_size": 20,
  "rms_norm_eps": 1e-05, "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": [2, 3],
  "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
  "torch_dtype": "float32", "transformers_version": "5.24.0"})";

// The weights of kTinyHfConfig: random, in F32.
inline SafetensorsWriter tiny_safetensors() {
  SafetensorsWriter w;
  w.metadata.set("format", "pt");
  uint64_t seed = 1;
  const auto matrix = [&](std::string name, int32_t rows, int32_t columns) {
    w.add(std::move(name), "F32", {rows, columns},
          random_matrix(WeightType::kF32, rows, columns, seed++));
  };
  const auto norm = [&](std::string name) {
    w.add(std::move(name), "F32", {32}, random_matrix(WeightType::kF32, 1, 32, seed++));
  };
  matrix("model.embed_tokens.weight", 20, 32);
  norm("model.layers.0.input_layernorm.weight");
  matrix("model.layers.0.self_attn.q_proj.weight", 32, 32);
  matrix("model.layers.0.self_attn.k_proj.weight", 16, 32);
  matrix("model.layers.0.self_attn.v_proj.weight", 16, 32);
  matrix("model.layers.0.self_attn.o_proj.weight", 32, 32);
  norm("model.layers.0.post_attention_layernorm.weight");
  matrix("model.layers.0.mlp.gate_proj.weight", 64, 32);
  matrix("model.layers.0.mlp.up_proj.weight", 64, 32);
  matrix("model.layers.0.mlp.down_proj.weight", 32, 64);
  norm("model.norm.weight");
  return w;
}

}  // namespace chorus
