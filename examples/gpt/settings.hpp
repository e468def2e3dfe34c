// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The settings of a run, with their defaults.

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace gpt {

/// What the command line sets; the defaults are those of the flags.
struct Settings {
  // The model.
  std::int64_t layers = 4;    ///< transformer blocks
  std::int64_t width = 128;   ///< numbers per token between layers
  std::int64_t heads = 4;     ///< attention heads; they share the width
  std::int64_t context = 64;  ///< longest sequence, in bytes

  // Data and training.
  std::vector<std::string> text;  ///< files; empty: the project's own sources
  std::int64_t steps = 300;       ///< optimizer steps
  std::int64_t batch = 32;        ///< sequences per step
  double rate = 5e-3;             ///< highest learning rate
  std::int64_t warmup = 30;       ///< steps until the highest learning rate is reached
  double clip = 1;                ///< highest norm of the gradients
  std::int64_t seed = 1;

  // The pipeline. None of these changes a bit of the result, except `microbatches`, which changes
  // the order of summation, replicas and groups, and a schedule that adds gradients in reverse
  // order.
  std::int64_t stages = 2;
  std::int64_t microbatches = 8;
  std::string schedule = "1f1b";
  std::int64_t chunks = 0;           ///< stages on each rank; 0: the schedule's default
  std::int64_t replicas = 1;         ///< replicas of each stage
  std::int64_t tensor_parallel = 1;  ///< ranks that share each half block
  bool shard_optimizer = false;      ///< each replica keeps only a part of AdamW's state
  std::string device = "threads";    ///< or "mpi": processes that mpirun started; or
                                     ///< "cuda": each rank on a stream of one GPU
  std::int64_t threads = 0;          ///< 0: as many as ranks, but not more than processors
  bool recompute = false;
  bool compare = false;  ///< also train on one device and require the same bits

  // On a GPU.
  std::string precision = "fp32";  ///< of matrix products on a GPU: fp32, tf32 or bf16
  bool graph = false;              ///< capture a step as a CUDA graph and replay it

  // Planning.
  std::string plan;  ///< "auto", or a file with a plan, which replaces the above; empty: none

  // Profiling.
  std::string profile;  ///< file to write the cost of each layer to, instead of training

  // Output.
  std::string checkpoint;              ///< folder; empty: none
  std::int64_t checkpoint_every = 50;  ///< steps
  bool resume = false;
  std::int64_t stop_at = 0;             ///< end after this step as if interrupted; 0: never
  std::string output = "gpt-out";       ///< folder of trace and timeline; "none": not written
  std::int64_t sample = 400;            ///< bytes generated at the end
  std::optional<std::string> prompt{};  ///< how the sample begins; unset: derived from the text

  /// Number of layers: embedding, two halves of each block, and head.
  [[nodiscard]] std::int64_t chain() const noexcept { return 2 * layers + 2; }

  /// Ranks of each row of the schedule.
  [[nodiscard]] std::int64_t ranks_of_row() const noexcept { return replicas * tensor_parallel; }

  /// Rows of the schedule; each runs `chunks` stages.
  [[nodiscard]] std::int64_t ranks() const noexcept { return stages / chunks; }

  [[nodiscard]] bool over_mpi() const noexcept { return device == "mpi"; }
  [[nodiscard]] bool on_gpu() const noexcept { return device == "cuda"; }

  /// The learning rate of a step: linear warm-up, then cosine decay to a tenth.
  [[nodiscard]] double rate_at(std::int64_t step) const;

  /// Whether trace and timeline are written.
  [[nodiscard]] bool writes() const noexcept { return output != "none"; }

  /// @throws Error  with Errc::bad_configuration, naming the flag, the value and what would do
  void check() const;
};

/// Reads the command line.
/// @return       nothing if help or the version was requested and printed
/// @throws Error with Errc::bad_configuration
[[nodiscard]] std::optional<Settings> parse(int argc, char const* const* argv);

/// Prints an error to standard error, with the flags of this program for names of the library.
void print_error(std::exception const& error);

/// The differences of two lists of settings: "steps 8, now 9; rate 0.005, now 0.004".
[[nodiscard]] std::string differences(std::string const& before, std::string const& now);

}  // namespace gpt
