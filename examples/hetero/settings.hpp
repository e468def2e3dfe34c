// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The settings of a run, with their defaults.

#include <cstdint>
#include <optional>
#include <string>

namespace hetero {

/// What the command line sets; the defaults are those of the flags.
struct Settings {
  // What is trained, and how.
  std::string model = "vgg";         ///< or "gpt"
  std::string sync = "wsp";          ///< a name of staleness_models
  std::int64_t workers = 4;          ///< that train together
  std::int64_t stages = 4;           ///< of each
  std::int64_t in_flight = 4;        ///< minibatches of a push: Nm of wsp, microbatches of a step
  std::int64_t distance = 0;         ///< D of wsp, in waves
  std::int64_t bound = 2;            ///< of ssp, in steps
  std::int64_t period = 4;           ///< T of local-sgd, in steps
  bool exact = false;                ///< ssp, wsp: the same bits for any timing
  double late = 0.5;                 ///< osp: share of the bytes, 0 to 0.8
  bool whole_layers = false;         ///< osp: no layer is late in part
  std::string pushes = "gradients";  ///< or "changes": what workers of asp and ssp push
  std::int64_t steps = 120;          ///< of each worker; wsp: waves
  std::int64_t batch = 8;            ///< examples of a minibatch
  double rate = 0;                   ///< learning rate of all workers together; 0: the model's
  double target = 0;                 ///< loss to be reached; 0: the model's
  std::int64_t window = 0;           ///< minibatches of its mean; 0: two pushes of every worker
  std::int64_t seed = 1;
  bool compare = false;          ///< all staleness models, instead of `sync`
  std::string paper;             ///< whose claims are run: "hetpipe" or "osp"; empty: none
  std::int64_t seeds = 5;        ///< of those, each is run with
  std::int64_t paper_steps = 0;  ///< of each worker in those of "osp"; 0: as many as it takes

  // Where it runs.
  std::string device = "clock";            ///< or "threads", "mpi", "tcp"
  std::string cluster = "vgg-19";          ///< or "resnet-152", "equal"
  std::string gpus = "VRGQ";               ///< kinds of HetPipe's that take part
  std::string allocation = "ed";           ///< a name of placement::Allocation
  std::string parameters = "round-robin";  ///< a name of placement::ParameterPlacement
  double minibatch_s = 1;                  ///< of a stage of "equal"; no flag sets it
  double link = 0;                         ///< r = N S / (b T_c); 0: the cluster's own links

  // Files that are written besides the table; empty: none.
  std::string csv;
  std::string trace;
  std::string chart;

  [[nodiscard]] bool timed() const noexcept { return device == "clock"; }

  /// @throws Error  with Errc::bad_configuration, naming the flag, the value and what would do
  void check() const;
};

/// Reads the command line.
/// @return       nothing if help or the version was requested and printed
/// @throws Error with Errc::bad_configuration
[[nodiscard]] std::optional<Settings> parse(int argc, char const* const* argv);

}  // namespace hetero
