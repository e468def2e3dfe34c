// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Schedules over GPUs, and a stage that throws.

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <stagger/schedule/named.hpp>

#include "cuda/checks.hpp"
#include "cuda/gpus_model.hpp"

namespace gpus_model {

struct Case {
  char const* name;
  int ranks;
  int chunks;
  int microbatches;
  int gpus;

  /// Of a minibatch: the slices of a microbatch count as microbatches of their own.
  [[nodiscard]] int parts() const {
    return std::string(name) == "seq-1f1b" ? 2 * microbatches : microbatches;
  }
  [[nodiscard]] std::vector<int> cuts() const { return even_cuts(ranks * chunks); }
};

inline constexpr Case three{"1f1b", 3, 1, 3, 3};

/// Every schedule of the catalog that trains and flushes, in shapes that it allows, on as many GPUs
/// as ranks or on fewer.
inline constexpr Case catalog_cases[] = {
    {"gpipe", 4, 1, 5, 4},       {"1f1b", 4, 1, 6, 4},       {"1f1b", 4, 1, 6, 2},
    {"interleaved", 2, 2, 4, 2}, {"looped-bfs", 2, 2, 5, 2}, {"zb-h1", 3, 1, 5, 3},
    {"zb-h2", 3, 1, 6, 2},       {"zb-v", 2, 2, 5, 2},       {"v-half", 2, 2, 6, 2},
    {"v-min", 2, 2, 6, 2},       {"v-1f1b", 2, 2, 5, 2},     {"dualpipe", 2, 1, 4, 2},
    {"dualpipe-v", 2, 2, 5, 2},  {"chimera", 2, 1, 4, 2},    {"chimera", 4, 1, 4, 4},
    {"hanayo", 2, 2, 4, 2},      {"auto", 3, 1, 4, 3},       {"seq-1f1b", 3, 1, 4, 3},
    {"fifo", 3, 1, 4, 3},        {"pipedream", 3, 1, 5, 3},  {"pipedream-2bw", 4, 1, 4, 4}};

inline Made schedule_of(Case const& c) {
  std::string const name = c.name;
  return {[name](sg::Shape shape) {
            if (name == "seq-1f1b") shape.microbatches /= 2;  // two slices each
            return sg::schedule::Named{name}.table(shape);
          },
          c.chunks};
}

/// GPUs 0 to count - 1.
inline std::vector<int> first(int count) {
  std::vector<int> devices;
  for (int g = 0; g < count; ++g) devices.push_back(g);
  return devices;
}

template <class Gpus> Gpus ahead(Gpus gpus, int steps) {
  gpus.ahead = steps;
  return gpus;
}
template <class Gpus>
Gpus captured(Gpus gpus, int steps_ahead, sg::cuda::GraphCounts* counts = nullptr) {
  gpus.ahead = steps_ahead;
  gpus.capture = true;
  gpus.counts = counts;
  return gpus;
}

template <class Rule = sg::optimizer::AdamW>
auto on_host(Case const& c, Rule rule = optimizer(), sg::Options options = clipping()) {
  return sg::Pipeline{model()}.with(sg::partition::Cuts{c.cuts()}, schedule_of(c), Loss{}, rule,
                                    sg::host::Threads{1}, options);
}
template <class Gpus> auto on_all(Case const& c, Gpus gpus, double deadline_s = 60) {
  return over(std::move(gpus), optimizer(), c.cuts(), schedule_of(c), clipping(deadline_s));
}

/// Throws when it is called for the n-th time; where n is negative, it looks at its stream then.
struct Trap {
  using Input = Values;
  using Output = Values;
  int* armed = nullptr;
  void forward(sg::Context&, Values const& x, Values& y, sg::NothingSaved&) {
    if (*armed > 0 && --*armed == 0) throw std::runtime_error("sprung");
    if (*armed < 0 && ++*armed == 0) static_cast<void>(cudaStreamSynchronize(sg::cuda::stream()));
    y = x;
  }
  void backward_input(sg::Context&, Values const&, Values const& dy, Values& dx,
                      sg::NothingSaved&) {
    dx = dy;
  }
};

/// Three stages, the second of which has the trap.
inline auto with_trap(sg::cuda::Gpus gpus, int* armed) {
  return sg::Pipeline{sg::Sequential{OnGpu<Embedding>{}, OnGpu<Dense>{}, Trap{armed}, OnGpu<Norm>{},
                                     OnGpu<Dense>{Dense{7}}}}
      .with(sg::partition::Cuts{{2, 4}}, schedule_of(three), LossOnGpu{},
            sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()}, std::move(gpus),
            clipping());
}

}  // namespace gpus_model
