// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The settings of a run, with their defaults.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/model.hpp"

namespace vgg {

/// What the command line sets; the defaults are those of the flags.
struct Settings {
  // The model.
  std::int64_t width = 8;  ///< channels of the first convolution
  double dropout = 0.5;    ///< rate behind the first two dense layers
  bool linear = false;     ///< train a linear model instead

  // Data and training.
  std::string data;          ///< folder with CIFAR-10; empty: textures
  std::int64_t steps = 400;  ///< optimizer steps
  std::int64_t epochs = 0;   ///< training images seen, in units of all there are; 0: as `steps`
  std::int64_t batch = 32;   ///< images per step
  double rate = 5e-3;        ///< highest learning rate
  std::int64_t seed = 1;
  std::int64_t evaluate = 0;  ///< steps between two held-out accuracies; 0: at the end only

  // The pipeline.
  std::int64_t stages = 2;
  std::int64_t microbatches = 4;
  std::string schedule = "1f1b";
  std::int64_t workers = 1;  ///< ranks of each stage; on the command line at least `mp` if left out
  std::int64_t mp = 1;       ///< of them, members of a group that shares dense layers
  std::int64_t period = 0;   ///< steps between means of the groups' weights; 0: each step adds up
                             ///< gradients of all
  double threshold =
      100;  ///< operations per element communicated above which one is shared; at the
            ///< default width, the layers that 225 shares at the paper's
  std::string update = "accumulate";  ///< of dense layers, or "each-pass"
  std::string device = "threads";     ///< or "mpi", "clock"
  std::int64_t threads = 0;           ///< 0: as many as ranks, but not more than processors

  bool compare = false;  ///< train with groups of each size that divides `mp`
  std::string picture;   ///< file to draw what members of a group have to; empty: none

  // The paper.
  bool paper = false;  ///< print SplitBrain's claims instead of training
  std::string chart;   ///< file to draw their trade-off to; empty: none

  /// Pipelines that train the model together: with a period, one for each group.
  [[nodiscard]] std::int64_t pipelines() const noexcept { return period > 0 ? workers / mp : 1; }
  /// What one of them takes in a step.
  [[nodiscard]] Minibatch minibatch() const noexcept {
    return {static_cast<std::size_t>(batch / pipelines()), static_cast<std::size_t>(microbatches)};
  }
  [[nodiscard]] ModelShape shape() const noexcept { return {width, dropout, minibatch()}; }
  /// Ranks of all stages.
  [[nodiscard]] std::int64_t ranks() const;
  /// Whether dense layers are updated after each microbatch.
  [[nodiscard]] bool each_pass() const noexcept { return update == "each-pass"; }
  [[nodiscard]] int layers() const noexcept { return linear ? 1 : layers_of_model; }

  /// The runs of --compare, by the size of a group; only the last one draws a picture.
  [[nodiscard]] std::vector<Settings> compared() const;

  /// @throws Error  with Errc::bad_configuration, naming the flag, the value and what would do
  void check() const;
};

/// Reads the command line.
/// @return       nothing if help or the version was requested and printed
/// @throws Error with Errc::bad_configuration
[[nodiscard]] std::optional<Settings> parse(int argc, char const* const* argv);

}  // namespace vgg
