// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Workers of a parameter server whose layers, loss and batches allocate nothing.

#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
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

inline auto stepping(sg::collective::ServerWorker worker) {
  return pipeline().with(sg::partition::Cuts{{2}}, sg::schedule::OneFOneB{},
                         sg::staleness::Synchronous{}, std::move(worker), Sum{},
                         sg::optimizer::Sgd{.rate = 0.01}, sg::host::Threads{2});
}
inline auto streaming(sg::collective::ServerWorker worker) {
  return pipeline().with(
      sg::partition::Cuts{{2}}, sg::schedule::Fifo{.in_flight = 4},
      sg::staleness::WaveSynchronous{
          .in_flight = 4, .distance = 0, .adds = sg::staleness::Adds::in_worker_order},
      std::move(worker), Sum{}, sg::optimizer::Sgd{.rate = 0.01}, sg::host::Threads{2});
}
inline sg::Batch<float, float> batch(std::size_t count) {
  sg::Batch<float, float> made;
  made.inputs.assign(count, 0.25F);
  made.targets.assign(count, 0.5F);
  return made;
}

}  // namespace scalar_worker
