// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a user may choose, with its defaults.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpt {

/// Defaults are those of the command line.
struct Settings {
  // The model.
  std::int64_t layers = 4;    ///< transformer blocks
  std::int64_t width = 128;   ///< numbers per token between layers
  std::int64_t heads = 4;     ///< attention heads; they share the width
  std::int64_t context = 64;  ///< bytes that a prediction may look back on, itself included

  // What it learns, and how.
  std::vector<std::string> text;  ///< files; empty: the project's own sources
  std::int64_t steps = 300;       ///< optimizer steps
  std::int64_t batch = 32;        ///< sequences per step
  double rate = 5e-3;             ///< highest learning rate
  std::int64_t warmup = 30;       ///< steps until it is reached
  double clip = 1;                ///< highest norm of the gradients
  std::int64_t seed = 1;

  // The pipeline. None of these changes a bit of the result, but `microbatches`, which orders the
  // sums, and a schedule that adds them from the last microbatch to the first.
  std::int64_t stages = 2;
  std::int64_t microbatches = 8;
  std::string schedule = "1f1b";
  std::int64_t chunks = 0;         ///< stages of a rank; 0: as many as the schedule usually has
  std::int64_t replicas = 1;       ///< ranks that share each row of the schedule
  bool shard_optimizer = false;    ///< replicas in processes keep a part of AdamW's state each
  std::string device = "threads";  ///< where ranks run; "mpi": in the processes that mpirun
                                   ///< started; "cuda": every rank a stream of one GPU
  std::int64_t threads = 0;        ///< 0: as many as stages, or as processors if these are fewer
  bool recompute = false;
  bool compare = false;  ///< train on one device as well and demand the same bits

  // On a GPU.
  std::string precision = "fp32";  ///< of a GPU's products: fp32, tf32 or bf16
  bool graph = false;              ///< record a step as a CUDA graph and replay it

  // By measuring first.
  std::string plan;  ///< "auto", or a file with a plan: it says all of the above; empty: none

  // What planners read.
  std::string profile;  ///< file for what each layer costs, instead of training; empty: none

  // What is kept.
  std::string checkpoint;              ///< folder; empty: none
  std::int64_t checkpoint_every = 50;  ///< steps
  bool resume = false;
  std::int64_t stop_at = 0;        ///< end after this step as if interrupted; 0: do not
  std::string output = "gpt-out";  ///< folder of trace and timeline; "none": they are not written
  std::int64_t sample = 400;       ///< bytes written at the end
  std::optional<std::string> prompt{};  ///< how the sample begins; nothing: as the text suggests

  /// Embedding, blocks, head.
  [[nodiscard]] std::int64_t chain() const noexcept { return layers + 2; }

  /// Rows of the schedule; each runs `chunks` stages.
  [[nodiscard]] std::int64_t ranks() const noexcept { return stages / chunks; }

  [[nodiscard]] bool over_mpi() const noexcept { return device == "mpi"; }
  [[nodiscard]] bool on_gpu() const noexcept { return device == "cuda"; }

  /// The learning rate of a step: rises in a line, falls in a cosine to a tenth.
  [[nodiscard]] double rate_at(std::int64_t step) const;

  /// Whether trace and timeline are wanted.
  [[nodiscard]] bool writes() const noexcept { return output != "none"; }

  /// @throws Error  with Errc::bad_configuration, naming the flag, the value and what would do
  void check() const;
};

/// Reads the command line.
/// @return       nothing if help or version was asked for and printed
/// @throws Error with Errc::bad_configuration
[[nodiscard]] std::optional<Settings> parse(int argc, char const* const* argv);

/// A sentence of the library with the flags of this program where it names parts of the library.
[[nodiscard]] std::string in_flags(std::string sentence);

/// What two lists of settings differ in: "steps 8, now 9; rate 0.005, now 0.004".
[[nodiscard]] std::string differences(std::string const& before, std::string const& now);

}  // namespace gpt
