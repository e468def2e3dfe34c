// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The sums of squares of gradients, which every GPU gets before an update.

#include <algorithm>
#include <cstddef>
#include <span>

#include <stagger/core/list.hpp>
#include <stagger/cuda/detail/distributed_state.hpp>
#include <stagger/cuda/detail/streams.hpp>

namespace stagger::cuda::detail {

/// A parameter's squares are added up on the GPU of the stage's first owner. Within a process its
/// sum is then copied to the other GPUs; between processes all GPUs are added up, of which all but
/// one have 0, so that the order does not matter.
class SquareSums {
 public:
  explicit SquareSums(Streams& streams) : streams_(streams) {}

  /// Finds which GPU has which sums. Called once it is known which rank updates which layers.
  [[gnu::cold]] void load() {
    stagger::detail::DistributedState const state{streams_.machine()};
    for (std::size_t g = 0; g < gpus().size(); ++g) {
      gpus().select(g);
      gpus()[g].sums.resize({std::max<std::size_t>(1, streams_.machine().model.parameter_count())});
    }
    own_.clear();
    std::size_t first = 0;  // parameters are numbered in layer order, and so are cells
    for (std::size_t c = 0; c < state.program().cells.size(); ++c) {
      if (state.first_owner(c) != c) continue;
      Run run{streams_.gpu_of(state.rank_of(c)), first, 0};
      state.each_layer(
          c, [&](std::size_t l, auto const*) { run.count += state.parameters(l).count(); });
      first += run.count;
      if (run.count != 0) own_.push_back(run);
    }
  }

  /// Clears the sums if they are added up between processes.
  void clear() const {
    if (gpus().processes() == nullptr) return;
    auto& gpu = gpus()[0];
    check(cudaMemsetAsync(gpu.sums.data(), 0, gpu.sums.size() * sizeof(double),
                          gpu.main_stream.get()),
          "clear sums of squares");
  }

  /// Gives all GPUs all sums, once the enqueued work of their ranks is done; ranks then wait for
  /// the sums.
  void share() const {
    if (gpus().size() == 1 && gpus().processes() == nullptr) return;
    streams_.join();
    if (gpus().processes() != nullptr) {
      gpus().processes()->all_reduce(std::span(gpus()[0].sums.data(), gpus()[0].sums.size()));
    } else {
      for (std::size_t g = 1; g < gpus().size(); ++g) {
        streams_.record(gpus()[g].main_stream, streams_.event(g, streams_.numbers().start()));
        streams_.wait(gpus()[0].main_stream, streams_.event(g, streams_.numbers().start()));
      }
      for (auto const& run : own_)
        if (run.gpu != 0) copy(run, run.gpu, 0);
      for (std::size_t g = 1; g < gpus().size(); ++g)
        for (auto const& run : own_)
          if (run.gpu != g) copy(run, 0, g);
      streams_.follow(0);
    }
    streams_.fork();
  }

 private:
  struct Run {  // parameters that stand one after another
    std::size_t gpu;
    std::size_t first;
    std::size_t count;
  };

  [[nodiscard]] GpuSet& gpus() const noexcept { return streams_.gpus(); }
  /// Enqueued on the first GPU's first stream.
  void copy(Run const& run, std::size_t from, std::size_t to) const {
    check(gpus().copy({gpus()[to].sums.data() + run.first, run.count * sizeof(double)}, to,
                      gpus()[from].sums.data() + run.first, from, gpus()[0].main_stream.get()),
          "copy sums of squares");
  }

  Streams& streams_;
  List<Run> own_;
};

}  // namespace stagger::cuda::detail
