// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/gpus.hpp>

#include "catch.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/cuda/tensor.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/staleness/stale_synchronous.hpp>

#include "cuda/kernel_cases.hpp"
#include "engine/typed_oracle.hpp"
#include "kernels.hpp"
#include "skip.hpp"
#include "stages.hpp"

using namespace small_model;

namespace {

/// Puts a function of the host onto the stream of the stage at hand. It stays for as long as the
/// process lasts, since a graph may call it again.
template <class Body> void launch(Body body) {
  auto* const kept = new Body(std::move(body));
  sg::cuda::check(cudaLaunchHostFunc(
                      sg::cuda::stream(), [](void* self) { (*static_cast<Body*>(self))(); }, kept),
                  "launch a function of the host");
}

/// Computes on values of the host that the device hands on.
struct OnStream {
  using Input = double;
  using Output = double;
  double* sum;  // of x * dy over all microbatches
  void forward(sg::Context&, double const& x, double& y, sg::NothingSaved&) {
    launch([&x, &y] { y = x + 1; });
  }
  void backward_input(sg::Context&, double const& x, double const& dy, double& dx,
                      sg::NothingSaved&) {
    launch([&x, &dy, &dx, to = sum] {
      dx = dy / 2;
      *to += x * dy;
    });
  }
};
struct LossOnStream {
  using policy_tag = sg::LossTag;
  using Target = double;
  double terms(double const&) const { return 1; }
  double value(sg::Context&, double const&, double const&) const { return 0; }
  double value_and_gradient(sg::Context&, double const& y, double const& target, double scale,
                            double& dy) const {
    launch([&y, &target, scale, &dy] { dy = (y - target) * scale; });
    return 0;
  }
};

/// Its output is its parameter, so that the gradient of that is the output's.
struct Constant {
  using Input = sg::cuda::Tensor<>;
  using Output = sg::cuda::Tensor<>;
  static constexpr std::size_t size = 1U << 20U;
  sg::Parameter<> values{"values", std::vector<float>(size, 1.0F)};
  auto parameters() { return std::tie(values); }

  void forward(sg::Context& context, Input const& x, Output& y, sg::NothingSaved&) {
    y.resize_like(x);
    copy(y.data(), context[values].data());
  }
  void backward(sg::Context& context, Input const&, Output const& dy, Input& dx,
                sg::NothingSaved&) {
    copy(context.gradient(values).data(), dy.data());  // of the only microbatch
    dx.resize_like(dy);
    copy(dx.data(), dy.data());
  }
  static void copy(float* to, float const* from) {
    sg::cuda::check(cudaMemcpyAsync(to, from, size * sizeof(float), cudaMemcpyDeviceToDevice,
                                    sg::cuda::stream()),
                    "copy values");
  }
};
/// Half the square of the output, whose gradient is the output.
struct SquareOfOutput {
  using policy_tag = sg::LossTag;
  using Target = double;
  double terms(double const&) const { return 1; }
  double value(sg::Context&, sg::cuda::Tensor<> const&, double const&) const { return 0; }
  double value_and_gradient(sg::Context&, sg::cuda::Tensor<> const& y, double const&, double,
                            sg::cuda::Tensor<>& dy) const {
    dy.resize_like(y);
    Constant::copy(dy.data(), y.data());
    return 0;
  }
};

}  // namespace

TEST_CASE("gpu/Gpus, one: two workers push gradients or changes to a server on the host", "[gpu]") {
  if (no_gpu()) return;
  auto const pushes = GENERATE(sg::staleness::Pushes::gradients, sg::staleness::Pushes::changes);
  sg::collective::ParameterServer server({.workers = 2, .average_changes = true});
  sg::cuda::Gpus device;
  device.devices = {0};
  device.kernels = &sg::cuda::parameter_kernels;
  auto const worker = [&](int number) {
    return sg::Pipeline{Constant{}, Constant{}}.with(
        device, SquareOfOutput{}, sg::cuda::Enqueued<sg::optimizer::Sgd>{{.rate = 0.25}},
        sg::staleness::StaleSynchronous{0, pushes, sg::staleness::Adds::in_worker_order},
        server.worker(number), sg::Options{.deadline_s = 20});
  };
  auto a = worker(0);
  auto b = worker(1);
  sg::Batch<sg::cuda::Tensor<>, double> batch;
  batch.inputs = inputs(1, Constant::size);
  batch.targets = {0};
  float expected = 1;
  for (int step = 0; step < 10; ++step) {
    sg::run_together(a.step(batch), b.step(batch));
    expected -= 0.25F * expected;
    for (auto* const train : {&a, &b})
      for (auto const& state : train->parameters()) {
        auto const* const first = reinterpret_cast<float const*>(state.value.data());
        REQUIRE(std::count(first, first + Constant::size, expected) ==
                static_cast<std::ptrdiff_t>(Constant::size));
      }
  }
}

TEST_CASE("gpu/parameter_kernels: sums, norms and updates are the host's but for rounding",
          "[gpu]") {
  if (no_gpu()) return;
  kernel_cases::check_all(8, 3'000'001);  // products and sums are one operation on a GPU
}

TEST_CASE("gpu/Gpus, one: functions of the host come in the order of the program, also as a graph",
          "[gpu]") {
  if (no_gpu()) return;
  bool const capture = GENERATE(false, true);
  for (auto const& schedule :
       {made(sg::schedule::OneFOneB{}), made(sg::schedule::ZeroBubbleH1{})}) {
    constexpr int stages = 4;
    constexpr std::size_t microbatches = 8;
    double sums[stages] = {};
    std::vector<OnStream> all;
    for (double& sum : sums) all.push_back({&sum});
    sg::cuda::Gpus device;
    device.devices = {0};
    device.capture = capture;
    auto train = sg::Pipeline{all}.with(device, schedule, LossOnStream{});
    sg::Batch<double, double> batch;
    for (std::size_t m = 0; m < microbatches; ++m) {
      batch.inputs.push_back(static_cast<double>(m));
      batch.targets.push_back(2);
    }
    double expected[stages] = {};
    for (int step = 0; step < 10; ++step) {
      sg::run(train.step(batch));
      for (double const x : batch.inputs) {
        double dy = (x + stages - 2) / microbatches;
        for (int s = stages - 1; s >= 0; --s, dy /= 2) expected[s] += (x + s) * dy;
      }
      for (int s = 0; s < stages; ++s) REQUIRE(sums[s] == expected[s]);
    }
  }
}

TEST_CASE("gpu/Gpus, one: kernels of four stages pass tensors on in order", "[gpu]") {
  if (no_gpu()) return;
  auto run =
      sg::Pipeline{AddOne{}, AddOne{}, AddOne{}, AddOne{}}.with(sg::cuda::Gpus{.devices = {0}});
  auto const x = inputs(16, 1U << 20U);
  std::vector<sg::cuda::Tensor<>> y(16);
  std::vector<float> got(1U << 20U);
  for (int turn = 0; turn < 20; ++turn) {
    sg::run(run.predict(x, y));
    for (auto const& one : y) {
      one.download(got);
      sg::cuda::check(cudaStreamSynchronize(nullptr), "download");
      REQUIRE(got.front() == 5);
      REQUIRE(got.back() == 5);
    }
  }
}

TEST_CASE("gpu/Gpus, one: replicas cut tensors by rows and put them together again", "[gpu]") {
  if (no_gpu()) return;
  sg::Options options;
  options.replicas = {2, {3, 1}, 1, {1, 5, 2}};
  auto run = sg::Pipeline{AddOne{}, AddOne{}, AddOne{}, AddOne{}}.with(
      sg::cuda::Gpus{.devices = {0}}, options);
  auto const x = inputs(16, 1U << 20U);
  std::vector<sg::cuda::Tensor<>> y(16);
  std::vector<float> got(1U << 20U);
  for (int turn = 0; turn < 20; ++turn) {
    sg::run(run.predict(x, y));
    for (auto const& one : y) {
      REQUIRE(one.size() == got.size());
      one.download(got);
      sg::cuda::check(cudaStreamSynchronize(nullptr), "download");
      REQUIRE(std::count(got.begin(), got.end(), 5.0F) == static_cast<std::ptrdiff_t>(got.size()));
    }
  }
}

TEST_CASE("gpu/Gpus, one: a kernel that spins is an error in time", "[gpu]") {
  if (no_gpu()) return;
  sg::cuda::Pinned<int> open(1);
  open.data()[0] = 0;
  auto const start = std::chrono::steady_clock::now();
  {
    sg::Options options;
    options.deadline_s = 1;
    auto const x = inputs(2, 256);
    std::vector<sg::cuda::Tensor<>> y(2);
    auto run = sg::Pipeline{AddOne{}, Spin{open.data()}, AddOne{}}.with(
        sg::cuda::Gpus{.devices = {0}}, options);
    try {
      sg::run(run.predict(x, y));
      FAIL("the step ended");
    } catch (sg::Error const& error) {
      CHECK(error.code() == sg::Errc::deadline);
    }
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(2));
    *static_cast<int volatile*>(open.data()) = 1;  // so that memory can be freed
    sg::cuda::check(cudaDeviceSynchronize(), "end the kernel");
  }
}

TEST_CASE("gpu/Gpus, one: the host enqueues the next step while a kernel holds the device up",
          "[gpu]") {
  if (no_gpu()) return;
  sg::cuda::Pinned<int> open(1);
  int volatile& gate = *open.data();
  gate = 1;
  auto const x = inputs(4, 1024);
  std::vector<std::vector<sg::cuda::Tensor<>>> y(3);
  for (auto& outputs : y) outputs.resize(4);
  sg::Options options;
  options.deadline_s = 30;
  auto run = sg::Pipeline{AddOne{}, Spin{open.data()}, AddOne{}}.with(
      sg::cuda::Gpus{.devices = {0}}, options);
  for (auto& outputs : y) sg::run(run.predict(x, outputs));  // memory is there from now on
  gate = 0;
  auto first = sg::enqueue(run.predict(x, y[0]));
  auto second = sg::enqueue(run.predict(x, y[1]));
  CHECK_FALSE(first.done());
  CHECK_FALSE(second.done());
  gate = 1;
  auto third = sg::enqueue(run.predict(x, y[2]));
  CHECK(first.done());
  run.settle();
  CHECK(second.done());
  CHECK(third.done());
}

TEST_CASE("gpu/Gpus, one: steps that nobody waits for come in order", "[gpu]") {
  if (no_gpu()) return;
  sg::cuda::Gpus device;
  device.devices = {0};
  device.ahead = 3;
  auto run = sg::Pipeline{AddOne{}, AddOne{}, AddOne{}}.with(device);
  std::vector<std::vector<sg::cuda::Tensor<>>> values;
  values.push_back(inputs(4, 1U << 16U));
  values.resize(21);
  for (std::size_t turn = 0; turn < 20; ++turn) {  // each reads what the one before has written
    values[turn + 1].resize(4);
    static_cast<void>(sg::enqueue(run.predict(values[turn], values[turn + 1])));
  }
  run.settle();
  std::vector<float> got(1U << 16U);
  for (auto const& one : values[20]) {
    one.download(got);
    sg::cuda::check(cudaStreamSynchronize(nullptr), "download");
    CHECK(got.front() == 61);
    CHECK(got.back() == 61);
  }
}

TEST_CASE("gpu/device: more memory than there is is refused with what would fit", "[gpu]") {
  if (no_gpu()) return;
  sg::cuda::MemoryNeed need;
  need.in_flight_bytes = std::uint64_t{1} << 30U;
  need.in_flight = 4096;
  try {
    sg::cuda::select_device(0, need);
    FAIL("4 TiB fit");
  } catch (sg::Error const& error) {
    CHECK(std::string(error.what()).find("it fits with") != std::string::npos);
  }
  CHECK_THROWS_AS(sg::cuda::Tensor<>({std::size_t{1} << 40U}), sg::cuda::Error);
}
