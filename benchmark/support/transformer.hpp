// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The model of examples/gpt at its default size, and random bytes for it.

#include <cstddef>
#include <cstdint>

#include <stagger/stagger.hpp>

#include <gpt/model/model.hpp>
#include <gpt/settings.hpp>
#include <layers/by_work.hpp>

namespace bench {

inline gpt::Settings const transformer{};

[[nodiscard]] inline gpt::ModelShape transformer_shape() {
  return {transformer.layers, transformer.width, transformer.heads, transformer.context};
}

[[nodiscard]] inline auto transformer_pipeline() {
  return stagger::Pipeline{
      gpt::make_model<float>(transformer_shape(), static_cast<std::uint64_t>(transformer.seed))};
}

/// A pipeline of two stages on `threads` threads.
[[nodiscard]] inline auto transformer_in_two(int threads, stagger::Options options) {
  options.clip_norm = transformer.clip;
  return transformer_pipeline().with(layers::ByWork{gpt::work_of(transformer_shape()), 2},
                                     stagger::schedule::OneFOneB{}, stagger::optimizer::AdamW{},
                                     gpt::CrossEntropy<float>{}, stagger::host::Threads{threads},
                                     options);
}

/// A batch of microbatches of equal size.
[[nodiscard]] inline stagger::Batch<gpt::Tokens, gpt::Tokens> transformer_batch(
    std::size_t microbatches) {
  gpt::Random random = gpt::stream(1, 1);
  stagger::Batch<gpt::Tokens, gpt::Tokens> batch;
  auto const sequences = static_cast<std::size_t>(transformer.batch) / microbatches;
  for (auto* part : {&batch.inputs, &batch.targets}) {
    part->resize(microbatches);
    for (auto& tokens : *part) {
      tokens.resize({sequences, static_cast<std::size_t>(transformer.context)});
      for (auto& token : tokens) token = static_cast<std::uint8_t>(random.next());
    }
  }
  return batch;
}

}  // namespace bench
