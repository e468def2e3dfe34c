// SPDX-License-Identifier: Apache-2.0
// A device of your own: one thread that runs all ranks in turn and logs each action.
//
// Build:  g++ -std=c++20 -O2 -ffp-contract=off -I include examples/15_own_device.cpp -pthread
//
// expect: 0F0 0F1 1F0 1B0 1F1 1B1 0B0 0F2 0B1 1F2 1B2 0B2
// expect: same bits as on threads: yes
#include <algorithm>
#include <coroutine>
#include <cstdio>
#include <exception>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/engine/backend.hpp>
#include <stagger/engine/make_session.hpp>  // where the engine is compiled separately, no other file brings it
#include <stagger/stagger.hpp>

namespace sg = stagger;

/// Executes programs on one thread, so that signals can be plain counters.
class LoggingBackend {
 public:
  static constexpr bool timed = false;  // no simulated clock

  template <class Device>
  LoggingBackend(Device const& device, sg::engine::Machine& machine, int)
      : machine_(machine), log_(*device.log) {}

  void load(std::vector<int> const&) { given_.resize(machine_.program().signals.size()); }
  void drive() {
    std::fill(given_.begin(), given_.end(), 0U);
    std::size_t running = machine_.ranks().size();
    while (running != 0 && !stopping()) {
      running = 0;
      for (auto& rank : machine_.ranks())
        if (sg::engine::go_on(*this, rank) == sg::engine::Progress::blocked) ++running;
    }
  }
  bool start(std::coroutine_handle<>) {
    drive();
    return false;
  }
  void fail(std::exception_ptr why) noexcept { machine_.fail(std::move(why)); }
  bool stopping() const noexcept { return machine_.failed(); }
  bool ready(sg::Wait const& wait) const noexcept { return given_[wait.signal] >= wait.count; }
  void give(sg::engine::RankState&, std::uint32_t signal) noexcept { ++given_[signal]; }
  void execute(sg::engine::RankState& rank, sg::Instruction const& in) {
    if (sg::in_table(in.op)) log_.append(sg::engine::describe(in) + " ");
    sg::engine::carry_out(machine_, rank, in);
  }

 private:
  sg::engine::Machine& machine_;
  std::string& log_;
  std::vector<std::uint32_t> given_;  // [signals]
};

struct Logged {
  using policy_tag = sg::DeviceTag;
  using Backend = LoggingBackend;
  static constexpr sg::DeviceTraits traits{};
  std::string* log = nullptr;  ///< must outlive the pipeline
  int places() const noexcept { return 1; }
};

struct Scale {  // y = a x
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  sg::Parameter<> a{"a", {1.5F}};
  auto parameters() { return std::tie(a); }
  void forward(sg::Context& c, Input const& x, Output& y, sg::NothingSaved&) {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = c[a][0] * x[i];
  }
  void backward(sg::Context& c, Input const& x, Output const& dy, Input& dx, sg::NothingSaved&) {
    dx.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) dx[i] = c[a][0] * dy[i];
    for (std::size_t i = 0; i < x.size(); ++i) c.gradient(a)[0] += x[i] * dy[i];
  }
};

/// The parameters after one step.
template <class Device> std::vector<float> trained(Device device) {
  auto train = sg::Pipeline{Scale{}, Scale{}}.with(sg::loss::MeanSquaredError<>{}, device);
  sg::Batch<sg::Tensor<>, sg::Tensor<>> batch;
  for (float v = 1; v < 4; ++v) {
    batch.inputs.push_back(sg::Tensor<>::of({v}));
    batch.targets.push_back(sg::Tensor<>::of({2 * v}));
  }
  static_cast<void>(sg::run(train.step(batch)));
  std::vector<float> values;
  for (auto const& parameter : train.parameters())
    values.push_back(parameter.template values<float>()[0]);
  return values;
}

int main() {
  std::string log;
  auto const logged = trained(Logged{.log = &log});
  std::printf("%s\n", log.c_str());
  bool const same = logged == trained(sg::host::Threads{2});
  std::printf("same bits as on threads: %s\n", same ? "yes" : "no");
}
