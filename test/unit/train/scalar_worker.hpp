// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Workers of a parameter server whose layers, loss and batches allocate nothing.

#include <barrier>
#include <cstddef>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
#include <stagger/train/pipeline.hpp>

namespace scalar_worker {

namespace sg = stagger;

/// y = a[0] x; the other values only travel.
struct Scale {
  using Input = float;
  using Output = float;
  sg::Parameter<> a;
  explicit Scale(std::size_t size) : a("a", std::vector<float>(size, 0.5F)) {}
  auto parameters() { return std::tie(a); }
  void forward(sg::Context& c, float const& x, float& y, sg::NothingSaved&) { y = c[a][0] * x; }
  void backward(sg::Context& c, float const& x, float const& dy, float& dx, sg::NothingSaved&) {
    dx = c[a][0] * dy;
    c.gradient(a)[0] += dy * x;
  }
};

struct Sum {
  using policy_tag = sg::LossTag;
  using Target = float;
  double terms(float const&) const { return 1; }
  double value(sg::Context&, float const& y, float const&) const { return static_cast<double>(y); }
  double value_and_gradient(sg::Context&, float const& y, float const&, double scale,
                            float& dy) const {
    dy = static_cast<float>(scale);
    return static_cast<double>(y);
  }
};

/// Two stages; one layer's message is small, the others' are not.
inline auto pipeline() {
  return sg::Pipeline{sg::Sequential{std::vector<Scale>{Scale(10), Scale(5000), Scale(100'000)}}};
}

inline sg::optimizer::Sgd const sgd{.rate = 0.01, .momentum = 0.9};

template <class Model, class Collective> auto stepping(Model const& model, Collective worker) {
  return pipeline().with(sg::partition::Cuts{{2}}, sg::schedule::OneFOneB{}, model,
                         std::move(worker), Sum{}, sgd, sg::host::Threads{2});
}
/// Calls `check(model)` for each staleness model whose workers take steps.
template <class Check> void each_model_of_steps(Check check) {
  using sg::staleness::Pushes;
  check(sg::staleness::Synchronous{});
  for (Pushes const pushes : {Pushes::gradients, Pushes::changes}) {
    check(sg::staleness::Asynchronous{pushes});
    check(sg::staleness::StaleSynchronous{2, pushes});
  }
  check(sg::staleness::StaleSynchronous{2, Pushes::changes, sg::staleness::Adds::in_worker_order});
  check(sg::staleness::RoundRobinSynchronous{});
  for (bool const average_state : {false, true})
    check(sg::staleness::LocalSgd{.period = 2, .average_state = average_state});
  check(
      sg::staleness::OverlappedSynchronous<sg::staleness::overlapped::ParameterGradientProduct,
                                           sg::staleness::overlapped::SplitLayer,
                                           sg::staleness::overlapped::ShareLate>{.budget = {0.6}});
}
inline auto streaming(sg::collective::ServerWorker worker) {
  return pipeline().with(
      sg::partition::Cuts{{2}}, sg::schedule::Fifo{.in_flight = 4},
      sg::staleness::WaveSynchronous{
          .in_flight = 4, .distance = 0, .adds = sg::staleness::Adds::in_worker_order},
      std::move(worker), Sum{}, sgd, sg::host::Threads{2});
}
inline sg::Batch<float, float> batch(std::size_t count) {
  sg::Batch<float, float> made;
  made.inputs.assign(count, 0.25F);
  made.targets.assign(count, 0.5F);
  return made;
}

/// Two workers take rounds, each on a thread of its own, and begin and end each round together.
/// @param take   (trainer, batch) -> step
/// @param count  (body) -> allocations while it runs
/// @return       of the third round, which a fourth follows
template <class Trainer, class Take, class Count>
long allocations_of_a_round(Trainer& one, Trainer& two, Take take, Count count) {
  auto const few = batch(4);
  auto const many = batch(10);
  std::barrier together(2);
  auto const round = [&](Trainer& train) {
    together.arrive_and_wait();
    sg::run(take(train, few));
    sg::run(take(train, many));
    together.arrive_and_wait();
  };
  std::thread other([&] {
    for (int i = 0; i < 4; ++i) round(two);
  });
  round(one);
  round(one);
  long const made = count([&] { round(one); });
  round(one);
  other.join();
  return made;
}

}  // namespace scalar_worker
