// SPDX-License-Identifier: Apache-2.0
// pipeline_faults WHAT: process 1 of several dies or hangs in a backward of a pipeline that spans
// them; every other one prints the error it got and how long it waited, and whether its parameters
// are those of the last whole step.

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/engine/pipeline.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/mpi/processes.hpp>
#include <stagger/mpi/session.hpp>

namespace sg = stagger;

namespace {

constexpr double deadline_s = 2;
bool armed = false;
std::string what;

using Numbers = std::vector<float>;

struct Scale {
  using Input = Numbers;
  using Output = Numbers;
  sg::Parameter<> factor{"factor", {0.5F}};
  auto parameters() { return std::tie(factor); }
  void forward(sg::Context& context, Numbers const& x, Numbers& y, sg::NothingSaved&) {
    y = x;
    for (float& v : y) v *= context[factor][0];
  }
  void backward(sg::Context& context, Numbers const& x, Numbers const& dy, Numbers& dx,
                sg::NothingSaved&) {
    if (armed && context.microbatch() == 2) {
      if (what == "kill") raise(SIGKILL);
      if (what == "hang") std::this_thread::sleep_for(std::chrono::seconds(6));
      if (what == "throw") throw sg::Error(sg::Errc::bad_data, "a value is not finite");
    }
    dx = dy;
    for (std::size_t i = 0; i < x.size(); ++i) {
      context.gradient(factor)[0] += x[i] * dy[i];
      dx[i] *= context[factor][0];
    }
  }
};

struct Sum {
  using policy_tag = sg::LossTag;
  using Target = float;
  double terms(float const&) const { return 1; }
  double value(sg::Context&, Numbers const& y, float const& target) const {
    return static_cast<double>(y[0] - target);
  }
  double value_and_gradient(sg::Context& context, Numbers const& y, float const& target,
                            double scale, Numbers& dy) const {
    dy.assign(y.size(), static_cast<float>(scale));
    return value(context, y, target);
  }
};

int run() {
  sg::mpi::Session const session;
  int process = 0;
  int processes = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  auto const made = [&](auto device) {
    return sg::Pipeline{std::vector<Scale>(static_cast<std::size_t>(processes))}.with(
        Sum{}, device, sg::Options{.deadline_s = deadline_s});
  };
  auto train = made(sg::mpi::Processes{});
  auto alone = made(sg::host::Threads{1});
  sg::Batch<Numbers, float> const batch{{{1}, {2}, {3}, {4}}, {1, 2, 3, 4}};
  auto const own = static_cast<std::size_t>(process);
  for (int step = 0; step < 10; ++step) {
    armed = step == 5 && process == 1;
    auto const start = std::chrono::steady_clock::now();
    try {
      sg::run(train.step(batch));
    } catch (sg::Error const& e) {
      std::chrono::duration<double> const waited = std::chrono::steady_clock::now() - start;
      bool const whole = train.parameters()[own].values<float>()[0] ==
                             alone.parameters()[own].values<float>()[0] &&
                         train.steps() == 5;
      std::printf("FAULT rank %d after %.1f s, %s update: %s\n", process, waited.count(),
                  whole ? "no partial" : "A PARTIAL", e.what());
      std::fflush(stdout);
      return 0;
    }
    armed = false;
    sg::run(alone.step(batch));
  }
  std::printf("rank %d saw no fault\n", process);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  what = argc > 1 ? argv[1] : "";
  return run();
}
