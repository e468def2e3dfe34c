// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The small model with a layer that makes a gradient NaN when it is told to.

#include <atomic>
#include <limits>
#include <utility>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/one_f_one_b.hpp>

#include "cuda/gpus_cases.hpp"

namespace not_finite_model {

using namespace gpus_model;
using sg::NonFinite;

/// Backward calls so far of a `Poison`, and those after which gradients are not finite.
struct Calls {
  std::atomic<int> made{0};
  std::atomic<int> poisoned{-1};
  std::atomic<int> again{-1};
};

/// Hands on what it is given, but for the calls that make a gradient NaN.
struct Poison {
  using Input = Matrix;
  using Output = Matrix;
  Calls* calls;
  void forward(sg::Context&, Matrix const& x, Matrix& y, sg::NothingSaved&) { y = x; }
  void backward_input(sg::Context&, Matrix const&, Matrix const& dy, Matrix& dx,
                      sg::NothingSaved&) {
    dx = dy;
    int const call = calls->made++;
    if (call == calls->poisoned || call == calls->again)
      dx[0] = std::numeric_limits<float>::quiet_NaN();
  }
};

inline constexpr int parts = 4;  // microbatches of a step

inline sg::Options options(NonFinite non_finite, bool clips) {
  auto result = options_with(clips);
  result.non_finite = non_finite;
  return result;
}

/// On 1 GPU, or on as many as there are ranks; each stage has one owner or two.
struct How {
  bool capture = false;
  bool clips = false;
  bool two_owners = false;
  int gpus = 1;
  int ahead = 1;
  bool shards = false;  // owners share the optimizer's state out
};
inline Made schedule_of(How const& how) {
  return how.two_owners ? made(sg::schedule::Chimera{}) : made(sg::schedule::OneFOneB{});
}

inline auto layers_of_host(Calls* calls) {
  return sg::Sequential{Embedding{}, Dense{},   Curve{}, Poison{calls},
                        Squash{},    Dropout{}, Norm{},  Dense{7}};
}
inline auto layers_on_device(Calls* calls) {
  return sg::Sequential{
      OnGpu<Embedding>{}, OnGpu<Dense>{},   OnGpu<Curve>{}, OnGpu<Poison>(Poison{calls}),
      OnGpu<Squash>{},    OnGpu<Dropout>{}, OnGpu<Norm>{},  OnGpu<Dense>{Dense{7}}};
}

inline sg::Options options_of(How const& how, NonFinite non_finite) {
  auto result = options(non_finite, how.clips);
  if (how.shards) result.replicas = {1, 1};
  return result;
}

inline auto on_host(How const& how, NonFinite non_finite, Calls* calls) {
  return sg::Pipeline{layers_of_host(calls)}.with(sg::partition::Cuts{{4}}, schedule_of(how),
                                                  Loss{}, optimizer(), sg::host::Threads{1},
                                                  options_of(how, non_finite));
}
/// @param gpus  cuda::Gpus or nccl::Gpus
template <class Gpus>
auto on_device(Gpus gpus, How const& how, NonFinite non_finite, Calls* calls) {
  gpus.ahead = how.ahead;
  gpus.capture = how.capture;
  return sg::Pipeline{layers_on_device(calls)}.with(
      sg::partition::Cuts{{4}}, schedule_of(how), LossOnGpu{},
      sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()}, std::move(gpus),
      sg::collective::AllReduce<>{.shard_optimizer = how.shards, .measured_steps = 0},
      options_of(how, non_finite));
}
inline auto on_device(How const& how, NonFinite non_finite, Calls* calls) {
  return on_device(on_gpus(first(how.gpus)), how, non_finite, calls);
}

}  // namespace not_finite_model
