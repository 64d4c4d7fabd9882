// Folders of tests/golden, each with one thing changed: what must be refused, and by which name.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exporter/export.h"
#include "exporter/rope_scaling.h"
#include "exporter/testing/temporary_folder.h"
#include "exporter/testing/tiny_hf_folder.h"

namespace chorus {
namespace {

const std::string kFolders = std::string(CHORUS_SOURCE_DIR) + "/tests/golden/folders/";

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// A copy of a checkpoint in which `from`, which config.json has, is `to`.
Status export_changed(const std::string& name, const std::string& from, const std::string& to) {
  const TemporaryFolder folder;
  for (const auto& entry : std::filesystem::directory_iterator(kFolders + name)) {
    std::filesystem::copy(entry.path(), folder.path());
  }
  std::string config = text_of(folder.path_of("config.json"));
  const size_t at = config.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  folder.write("config.json", config.replace(at, from.size(), to));
  return export_program(folder.path()).status();
}

struct Change {
  const char* folder;
  const char* from;
  const char* to;
  Code code;
  const char* field;
};

TEST(LowerFolder, WhatDoesNotFitIsRefusedByName) {
  constexpr Code kBad = Code::kDataLoss;
  constexpr Code kNotYet = Code::kUnimplemented;
  const std::vector<Change> changes = {
      {"llama_yarn", "\"llama\"", "\"mamba\"", kNotYet, "config.json.model_type"},
      {"llama_yarn", "\"silu\"", "\"gelu\"", kNotYet, "config.json.hidden_act"},
      {"llama_yarn", "\"use_cache\"", "\"new_feature\"", kNotYet, "config.json.new_feature"},
      {"llama_yarn", "\"yarn\"", "\"dynamic\"", kNotYet, "config.json.rope_parameters.rope_type"},
      {"llama_yarn", "\"factor\": 4.0", "\"factor\": -4.0", kBad,
       "config.json.rope_parameters.factor"},
      {"llama_yarn", "\"factor\": 4.0", "\"new\": 4.0", kNotYet, "config.json.rope_parameters.new"},
      {"llama_yarn", "\"hidden_size\": 40", "\"hidden_size\": 44", kBad,
       "model.embed_tokens.weight"},
      {"llama_yarn", "\"vocab_size\": 131", "\"vocab_size\": 132", kBad, "config.json.vocab_size"},
      {"llama_yarn", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", kBad,
       "config.json.num_key_value_heads"},
      {"llama_yarn", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", kBad,
       "model.layers.2.input_layernorm.weight"},
      {"llama_yarn", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", kNotYet,
       "model.layers.1.input_layernorm.weight"},
      {"llama_yarn", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": -1", kBad,
       "config.json.rms_norm_eps"},
      {"llama_yarn", "\"attention_bias\": false", "\"attention_bias\": true", kBad,
       "model.layers.0.self_attn.q_proj.bias"},
      {"llama_linear", "\"mlp_bias\": true", "\"mlp_bias\": false", kNotYet,
       "model.layers.0.mlp.down_proj.bias"},
      {"llama_llama3", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", kBad,
       "lm_head.weight"},
      {"llama_llama3", "\"low_freq_factor\": 1.0", "\"low_freq_factor\": 5.0", kBad,
       "config.json.rope_parameters.high_freq_factor"},
      {"gemma3_text", "\"full_attention\",", "\"chunked_attention\",", kNotYet,
       "config.json.layer_types[5]"},
      {"gemma3_text", "\"use_bidirectional_attention\": false",
       "\"use_bidirectional_attention\": true", kNotYet, "config.json.use_bidirectional_attention"},
      {"gemma3_text", "\"use_cache\": true", "\"rope_local_base_freq\": -1", kBad,
       "config.json.rope_local_base_freq"},
      {"gemma3_text", "\"sliding_window\": 24", "\"sliding_window\": 0", kBad,
       "config.json.sliding_window"},
      {"gemma3_text", "\"final_logit_softcapping\": 6.0", "\"final_logit_softcapping\": -6.0", kBad,
       "config.json.final_logit_softcapping"},
      {"llama_yarn", "\"use_cache\"", "\"rope_interleaved\"", kNotYet,
       "config.json.rope_interleaved"},
      {"llama_yarn", "\"use_cache\": true", "\"activation\": \"geglu\"", kNotYet,
       "config.json.activation"},
      {"gemma3_text", "\"use_cache\": true",
       "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8.0}", kNotYet,
       "config.json.rope_scaling"},
      {"gemma3_vision", "\"mm_tokens_per_image\"", "\"new_feature\"", kNotYet,
       "config.json.new_feature"},
      {"gemma3_vision", "\"query_pre_attn_scalar\": 32", "\"query_pre_attn_scalar\": 0", kBad,
       "config.json.text_config.query_pre_attn_scalar"},
      {"muse_glimmer_6", "\"layer_rope_theta\": [", "\"layer_rope_theta\": [0,", kBad,
       "config.json.text_config.layer_rope_theta"},
      {"muse_glimmer_7", "[\n      500000.0,", "[\n      7.0,", kNotYet,
       "config.json.text_config.layer_rope_theta[0]"},
      {"muse_glimmer_6", "\"num_attention_heads\": 3", "\"num_attention_heads\": 2", kBad,
       "model.language_model.layers.0.self_attn.q_proj.weight"},
      {"gemma3_text", "\"final_logit_softcapping\": 6.0", "\"final_logit_softcapping\": 1e39", kBad,
       "config.json.final_logit_softcapping"},
      {"muse_glimmer_6", "\"qk_scale_factor\": 3.87", "\"qk_scale_factor\": -1e39", kBad,
       "config.json.text_config.qk_scale_factor"},
      {"muse_glimmer_6", "\"post_norm_eps\": 1e-08", "\"post_norm_eps\": -1", kBad,
       "config.json.text_config.post_norm_eps"},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(std::string(change.folder) + ": " + change.to);
    const Status status = export_changed(change.folder, change.from, change.to);
    EXPECT_EQ(status.code(), change.code) << status.to_string();
    EXPECT_EQ(status.field(), change.field);
  }
}

TEST(LowerFolder, EveryCheckpointIsTakenAsItIs) {
  for (const char* name : {"gemma3_text", "gemma3_vision", "llama_linear", "llama_llama3",
                           "llama_yarn", "muse_glimmer_6", "muse_glimmer_7", "muse_glimmer_8"}) {
    const auto program = export_program(kFolders + name);
    EXPECT_TRUE(program.ok()) << program.status().to_string();
  }
}

TEST(LowerFolder, MembersThatChangeNothingAreTaken) {
  for (const char* member : {"\"is_llama_config\": true", "\"rope_interleaved\": false",
                             "\"activation\": \"swiglu\"", "\"rope_scaling\": null"}) {
    const Status status = export_changed("llama_yarn", "\"use_cache\": true", member);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
}

// The program of kTinyHfConfig, in which head and embedding are tied, with one more tensor.
Result<Program> export_with(SafetensorsWriter::Tensor tensor) {
  SafetensorsWriter w = tiny_safetensors();
  w.tensors.push_back(std::move(tensor));
  const auto bytes = w.finish();
  const auto folder = HfFolder::parse({.config = kTinyHfConfig}, bytes);
  if (!folder.ok()) return folder.status();
  CHORUS_ASSIGN_OR_RETURN(AlignedBuffer image, export_folder(*folder));
  return Program::from_bytes(std::move(image));
}

bool has_weight(const Program& program, std::string_view name) {
  return std::ranges::find(program.weights(), name, &Weight::name) != program.weights().end();
}

TEST(LowerFolder, ATiedHeadOfOtherValuesIsTheHeadAllTheSame) {
  const std::string name = "lm_head.weight";
  const auto table = random_matrix(WeightType::kF32, 20, 32, 1);  // the embedding's seed
  const auto again = export_with({name, "F32", {20, 32}, table});
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_FALSE(has_weight(*again, name));
  const auto other =
      export_with({name, "F32", {20, 32}, random_matrix(WeightType::kF32, 20, 32, 77)});
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  EXPECT_TRUE(has_weight(*other, name));
  EXPECT_EQ(export_with({name, "F32", {32, 20}, table}).status().field(), name);
  EXPECT_EQ(export_with({"lm_head.bias", "F32", {1}, {4, std::byte{0}}}).status().field(),
            "lm_head.bias");
}

TEST(LowerFolder, FrequenciesOfRopeInLayersAreLeftOut) {
  const auto program =
      export_with({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}, {4, std::byte{0}}});
  EXPECT_TRUE(program.ok()) << program.status().to_string();
  const std::string behind = "model.layers.1.self_attn.rotary_emb.inv_freq";
  EXPECT_EQ(export_with({behind, "F32", {1}, {4, std::byte{0}}}).status().field(), behind);
}

TEST(LowerFolder, VisionTowersAreLeftOutByName) {
  const auto folder = HfFolder::open(kFolders + "gemma3_vision");
  ASSERT_TRUE(folder.ok());
  const auto left_out = left_out_tensors(*folder);
  ASSERT_TRUE(left_out.ok());
  EXPECT_GT(left_out->size(), 10u);
  for (const std::string& name : *left_out) {
    EXPECT_TRUE(name.starts_with("vision_tower.") || name.starts_with("multi_modal_projector."))
        << name;
  }
  EXPECT_TRUE(left_out_tensors(*HfFolder::open(kFolders + "gemma3_text"))->empty());
}

TEST(LowerFolder, GroupsAndRopesAreTheConfigurations) {
  const auto program = export_program(kFolders + "muse_glimmer_7");
  ASSERT_TRUE(program.ok());
  const Graph& graph = program->graph();
  ASSERT_EQ(graph.groups.size(), 2u);
  EXPECT_EQ(graph.groups[0].policy.window, 100);
  EXPECT_EQ(graph.groups[0].layers, (std::vector<int32_t>{0, 1, 3, 4, 5}));
  EXPECT_EQ(graph.groups[1].policy.window, 0);
  EXPECT_EQ(graph.groups[1].layers, (std::vector<int32_t>{2, 6}));
  ASSERT_EQ(graph.ropes.size(), 1u);
  EXPECT_EQ(graph.ropes[0].theta, 500000.0);
}

// Wavelengths are the plain ones for short ones and the factor's multiple for long ones.
TEST(RopeScaling, StretchesLongWavelengthsOnly) {
  for (const RopeScalingKind kind : {RopeScalingKind::kLlama3, RopeScalingKind::kYarn}) {
    RopeScaling scaling;
    scaling.kind = kind;
    scaling.factor = 8.0;
    scaling.original_context = 4096;
    const RopeTable table = make_rope_table(10000.0, 128, scaling);
    ASSERT_EQ(table.factors.size(), 64u);
    EXPECT_EQ(table.factors.front(), 1.0f);
    EXPECT_FLOAT_EQ(table.factors.back(), 8.0f);
    EXPECT_TRUE(std::is_sorted(table.factors.begin(), table.factors.end()));
  }
  EXPECT_TRUE(make_rope_table(10000.0, 128, {}).factors.empty());
  EXPECT_DOUBLE_EQ(yarn_attention_factor(1.0), 1.0);
}

}  // namespace
}  // namespace chorus
