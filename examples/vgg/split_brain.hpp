// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What SplitBrain's paper measured, and the same on its cluster in virtual time.
/// @source Y. Lai, A. Kadav, E. Kruus, "SplitBrain: Hybrid Data and Model Parallel Deep Learning",
///         2021: tables 1 and 2.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <stagger/collective/alpha_beta.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/stagger.hpp>

#include "model/model.hpp"

namespace vgg::split_brain {

namespace sg = stagger;

/// A row of table 1: a layer, and how many weights it has without biases.
struct LayerWeights {
  char const* name;
  std::size_t weights;
};
inline constexpr std::array<LayerWeights, 10> table_1{{{"Conv0", 1728},
                                                       {"Conv1", 36864},
                                                       {"Conv2", 73728},
                                                       {"Conv3", 147456},
                                                       {"Conv4", 294912},
                                                       {"Conv5", 589824},
                                                       {"Conv6", 589824},
                                                       {"FC0", 4194304},
                                                       {"FC1", 1048576},
                                                       {"FC2", 10240}}};

/// A row of table 2. The printed row of 32 ranks in 8 groups of 8 would need 64; it is read as 4.
struct Throughput {
  int ranks;
  int members;  ///< of each group
  double images_s;
};
inline constexpr std::array<Throughput, 15> table_2{{{1, 1, 121.99},
                                                     {2, 1, 247.43},
                                                     {2, 2, 235.72},
                                                     {4, 1, 489.62},
                                                     {4, 2, 470.1},
                                                     {4, 4, 421},
                                                     {8, 1, 965.92},
                                                     {8, 2, 941.84},
                                                     {8, 8, 520},
                                                     {16, 1, 1946.99},
                                                     {16, 2, 1863.5},
                                                     {32, 8, 2062.84},
                                                     {32, 4, 3293.68},
                                                     {32, 2, 3695.64},
                                                     {32, 1, 3896.27}}};

/// Two constants, fitted to all of table 2: what an image takes on one rank, and what each of K
/// passes costs for each of K - 1 others.
[[nodiscard]] constexpr double fitted_images_s(int ranks, int members) noexcept {
  return ranks / (8.21e-3 + 0.127e-3 * members * (members - 1));
}

/// The published network.
inline constexpr ModelShape shape{.width = 64};
/// Images of a rank in a minibatch. The paper does not tell them.
inline constexpr std::size_t local_batch = 16;

/// The network's layers with their weights alone, as the paper counts them.
[[nodiscard]] inline std::vector<sg::partition::LayerFeatures> layers_of_weights() {
  auto layers = features_of(shape);
  for (auto& layer : layers) {
    layer.parameters -= layer.biases;
    layer.biases = 0;
  }
  return layers;
}

/// What the network's layers take on one rank of the paper's cluster, in seconds for an image.
[[nodiscard]] inline std::vector<double> image_seconds(ModelShape const& of) {
  auto const published = work_of(shape);
  double const unit_s =
      1 / table_2[0].images_s / std::accumulate(published.begin(), published.end(), 0.0);
  auto seconds = work_of(of);
  for (double& each : seconds) each *= unit_s;
  return seconds;
}

/// What a member of a group takes from another costs there: links have 5 GB/s, and the start-up is
/// what one row of table 2 leaves, that of one group of 8. Its members make three exchanges forward
/// and two backward with 7 others in each of 8 passes.
[[nodiscard]] constexpr sg::collective::CostLine exchange() noexcept {
  constexpr double per_byte_s = 1 / 5e9;
  constexpr auto features = 4096 + 2 * 1024 + 4096 + 1024;  // 4096 and 1024 twice, 4096 and 1024
  constexpr double bytes_s = per_byte_s * sizeof(float) * 7 * local_batch * features;
  constexpr double more_s = local_batch * (8 / table_2[8].images_s - 1 / table_2[0].images_s);
  return {(more_s - bytes_s) / (5 * 8 * 7), per_byte_s};
}

/// The paper's cluster for a network cut into stages. Summing up gradients takes no time: the
/// throughput that the paper has without groups is that of one rank times their number.
/// @param cuts  [stages - 1] first layer of each stage after the first
/// @param rows  images of a microbatch, of all ranks of a stage together
[[nodiscard]] inline sg::sim::VirtualClock cluster(ModelShape const& of, std::span<int const> cuts,
                                                   int ranks, double rows) {
  auto const seconds = image_seconds(of);
  auto const outputs = outputs_of(of);
  sg::sim::VirtualClock clock{.exchange = exchange(), .layer_backward_s = seconds};
  for (std::size_t s = 0; s <= cuts.size(); ++s) {
    auto const first = s == 0 ? std::size_t{0} : static_cast<std::size_t>(cuts[s - 1]);
    auto const end = s == cuts.size() ? seconds.size() : static_cast<std::size_t>(cuts[s]);
    double const third_s = rows / 3 *
                           std::accumulate(seconds.begin() + static_cast<std::ptrdiff_t>(first),
                                           seconds.begin() + static_cast<std::ptrdiff_t>(end), 0.0);
    double const bytes = rows / ranks * static_cast<double>(outputs[end - 1] * sizeof(float));
    clock.costs.stages.push_back(
        {.forward_s = third_s,
         .backward_input_s = third_s,
         .backward_weight_s = third_s,
         .transfer_s = exchange().startup_s + exchange().per_byte_s * bytes});
  }
  return clock;
}

/// A layer with the sizes of another: what it takes is left to the virtual clock.
struct Timed {
  using Input = sg::Tensor<float>;   // [rows][in]
  using Output = sg::Tensor<float>;  // [rows][out]
  std::size_t in, out;
  bool splits;
  std::size_t* most;  // numbers that it has been given at once

  [[nodiscard]] std::size_t inputs() const { return splits ? in : 0; }
  [[nodiscard]] std::size_t outputs() const { return splits ? out : 0; }
  [[nodiscard]] Timed part(int member, int members, sg::SplitBy) const {
    Timed own = *this;
    own.out = sg::features_of(member, members, out).size();
    return own;
  }
  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) const {
    *most = std::max(*most, x.size());
    y.resize({x.extent(0), out});
    y.fill(0);
  }
  void backward_input(sg::Context&, Input const& x, Output const&, Input& dx,
                      sg::NothingSaved&) const {
    dx.resize_like(x);
    dx.fill(0);
  }
};

/// One minibatch of the published network.
struct Run {
  double images_s = 0;             ///< of all ranks
  std::uint64_t dense_inputs = 0;  ///< numbers that a rank keeps for its first dense layer
  sg::TrafficCount forward{};      ///< what a rank sends to others of its group
  sg::TrafficCount backward{};
};

/// A minibatch of the engine on the paper's cluster, with the published network's sizes.
/// @param passes  microbatches: as many as members are the scheme B/K, one is BK
[[nodiscard]] inline Run run_minibatch(int ranks, int members, int passes) {
  std::vector<Timed> convolutions;
  std::vector<Timed> dense;
  std::array<std::size_t, 3> most{};
  for (auto const& layer : features_of(shape))
    if (layer.inputs != 0)
      dense.push_back({layer.inputs, layer.outputs, true, &most[dense.empty() ? 1 : 2]});
    else
      convolutions.push_back({1, 1, false, most.data()});
  convolutions.back().out = dense.front().in;
  std::size_t const rows =
      local_batch * static_cast<std::size_t>(ranks) / static_cast<std::size_t>(passes);
  sg::sim::VirtualClock clock = cluster(shape, {}, ranks, static_cast<double>(rows));
  auto train = sg::Pipeline{sg::Sequential{std::move(convolutions), std::move(dense)}}.with(
      sg::partition::LayerSplit{.group = members}, sg::schedule::OneFOneB{},
      sg::loss::MeanSquaredError<float>{}, std::move(clock),
      sg::Options{.record = true, .replicas = sg::Replicas::even(&ranks, 1)});
  sg::Batch<sg::Tensor<float>, sg::Tensor<float>> batch;
  for (int m = 0; m < passes; ++m) {
    batch.inputs.emplace_back().resize({rows, 1});
    batch.targets.emplace_back().resize({rows, classes});
    batch.inputs.back().fill(0);
    batch.targets.back().fill(0);
  }
  sg::run(train.step(batch));
  double end_s = 0;
  for (auto const& span : train.timeline().spans) end_s = std::max(end_s, span.end_s);
  Run run;
  run.images_s = static_cast<double>(local_batch) * ranks / end_s;
  run.dense_inputs = most[1] * static_cast<std::size_t>(train.peak_in_flight()[0]);
  run.forward = train.traffic().of(0, sg::TrafficKind::shared_activations);
  run.backward = train.traffic().of(0, sg::TrafficKind::shared_gradients);
  return run;
}

/// How the members of a group bring each other their batches for the first dense layer.
enum class Scheme { in_turns, parts };  ///< B: one after the other its whole batch; B/K

/// The seconds in which every member has the batches of all, where the port of a member carries one
/// message in each direction at a time. A pass begins when the one before it has ended.
/// @param batch_s  in which a port carries the batch of a member
[[nodiscard]] inline double exchange_seconds(Scheme scheme, int members, double batch_s) {
  double now_s = 0;
  for (int pass = 0; pass < members; ++pass) {
    std::vector<double> sends(static_cast<std::size_t>(members), now_s);
    std::vector<double> receives = sends;
    for (int away = 1; away < members; ++away)
      for (int from = 0; from < members; ++from) {
        if (scheme == Scheme::in_turns && from != pass) continue;
        double& out = sends[static_cast<std::size_t>(from)];
        double& in = receives[static_cast<std::size_t>((from + away) % members)];
        double const share = scheme == Scheme::in_turns ? 1.0 : 1.0 / members;
        out = in = std::max(out, in) + share * batch_s;
      }
    now_s = *std::max_element(receives.begin(), receives.end());
  }
  return now_s;
}

}  // namespace vgg::split_brain
