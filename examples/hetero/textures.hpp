// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The network of examples/vgg and its textures, for workers that learn in virtual time.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "learning.hpp"
#include "vgg/images.hpp"
#include "vgg/model/model.hpp"

namespace textures {

namespace sg = stagger;
using learning::Settings;

/// Images to learn from, and others that are held out.
class Task {
 public:
  /// @param epoch_steps  of a worker
  Task(std::uint64_t seed, int epoch_steps)
      : epoch_steps_(epoch_steps), data_(vgg::make_textures(seed, 4000, held_out)) {}

  [[nodiscard]] static auto model(Settings const& s) {
    return vgg::make_model<float>(shape(), s.seed);
  }
  [[nodiscard]] static std::size_t bytes() {
    std::size_t parameters = 0;
    for (auto const& layer : vgg::features_of(shape())) parameters += layer.parameters;
    return sizeof(float) * parameters;
  }
  [[nodiscard]] int steps(Settings const&) const noexcept { return epoch_steps_; }

  /// Draws from all images, other ones in each step of each worker.
  class Shard {
   public:
    Shard(Task const& task, Settings const& s, int worker) : task_(task), s_(s), worker_(worker) {}
    [[nodiscard]] vgg::Batch const& at(int step) {
      task_.data_.training.draw(s_.seed, std::int64_t{step} * s_.workers + worker_,
                                {static_cast<std::size_t>(s_.batch), 1}, batch_);
      return batch_;
    }

   private:
    Task const& task_;
    Settings const& s_;
    int worker_;
    vgg::Batch batch_{};
  };
  [[nodiscard]] Shard shard(Settings const& s, int worker) const { return {*this, s, worker}; }

  template <class Trainer> [[nodiscard]] double accuracy(Trainer& train) const {
    vgg::Batch batch;
    data_.held_out.take(0, {held_out, 1}, batch);
    std::vector<typename Trainer::Output> logits(1);
    sg::run(train.predict(batch.inputs, logits));
    std::size_t right = 0;
    for (std::size_t i = 0; i < held_out; ++i) {
      float const* const row = logits[0].data() + i * vgg::classes;
      if (std::max_element(row, row + vgg::classes) - row == batch.targets[0][i]) ++right;
    }
    return 100 * static_cast<double>(right) / static_cast<double>(held_out);
  }

 private:
  static constexpr std::size_t held_out = 500;
  [[nodiscard]] static vgg::ModelShape shape() { return {.width = 8, .dropout = 0}; }

  int epoch_steps_;
  vgg::DataSet data_;
};

}  // namespace textures
