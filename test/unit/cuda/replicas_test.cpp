// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/gpus.hpp>

#include "catch.hpp"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include <stagger/schedule/gpipe.hpp>

#include "cuda/replica_cases.hpp"

namespace replicas_test {

using namespace replica_cases;

namespace {

Case on_one_gpu(Case c) {
  c.place.assign(c.place.size(), 0);
  return c;
}

sg::cuda::Gpus one_gpu(bool capture = false) {
  auto gpus = on(1);
  gpus.capture = capture;
  return gpus;
}

auto uneven_on_one_gpu(bool capture) {
  return placed(one_gpu(capture), by("layerwise", 0), on_one_gpu(uneven()), clipping());
}

}  // namespace

TEST_CASE("cuda/Replicas: replicas on one GPU have the host's bits", "[cuda]") {
  bool const capture = GENERATE(false, true);
  std::vector<Case> all;
  for (auto const& c : cases()) all.push_back(on_one_gpu(c));
  check_all_replicas(all, [&](Case const&) { return one_gpu(capture); });
}

TEST_CASE("cuda/Replicas: whatever CUDA refuses, parameters are those before or after the step",
          "[cuda]") {
  bool const capture = GENERATE(false, true);
  CAPTURE(capture);
  check_refusals(
      {.calls = {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
                 si::Call::memcpy_async, si::Call::memset_async, si::Call::malloc_from_pool},
       .most = 160,
       .stride = 13},
      [&] { return uneven_on_one_gpu(capture); }, [](int s) { return upload(batch_of(s)); },
      course_of_uneven());
}

TEST_CASE("cuda/Replicas: memory that is not there is refused, and nothing leaks", "[cuda]") {
  check_out_of_memory([] {
    auto const data = upload(batch_of(0));
    auto train = uneven_on_one_gpu(false);
    sg::run(train.step(data));
  });
}

TEST_CASE("cuda/Replicas: in steady state nothing is made, allocated or synchronised with",
          "[cuda]") {
  si::Session const session;
  auto train = uneven_on_one_gpu(false);
  auto const& counts = train.capture(GENERATE(false, true));
  check_steady(train, upload(batch_of(0)));
  CHECK(counts.instantiations <= 1);
}

namespace {

std::atomic<int> sums{0};
std::atomic<bool> in_vain{false};

/// The kernel of its backward is not done before a sum of gradients has begun.
struct Gate {
  using Input = Values;
  using Output = Values;
  void forward(sg::Context&, Values const& x, Values& y, sg::NothingSaved&) { y = x; }
  void backward_input(sg::Context&, Values const&, Values const& dy, Values& dx,
                      sg::NothingSaved&) {
    dx = dy;
    auto const wait = [] {
      auto const start = std::chrono::steady_clock::now();
      while (sums == 0 && !in_vain) {
        std::this_thread::yield();
        if (std::chrono::steady_clock::now() - start > std::chrono::seconds(30)) in_vain = true;
      }
    };
    sg::cuda::check(launch(sg::cuda::stream(), wait), "launch a kernel");
  }
};

}  // namespace

TEST_CASE("cuda/Replicas: gradients are added up while the last backward still runs", "[cuda]") {
  si::Session const session;
  auto kernels_of_it = sg::cuda::parameter_kernels;
  kernels_of_it.add = [](sg::ElementType type, void* sum, void const* more, std::size_t size,
                         cudaStream_t stream) {
    auto const told = launch(stream, [] { ++sums; });
    return told != cudaSuccess ? told
                               : sg::cuda::parameter_kernels.add(type, sum, more, size, stream);
  };
  auto device = on_device();
  device.kernels = &kernels_of_it;
  sg::Options options;
  options.replicas = {2};
  auto train = sg::Pipeline{sg::Sequential{OnGpu<Embedding>{}, OnGpu<Dense>{}, Gate{},
                                           OnGpu<Dense>{Dense{7}}}}
                   .with(made(sg::schedule::GPipe{}), LossThere{},
                         sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()}, device,
                         by("layerwise", 0), options);
  auto const data = upload(row_model::batch(0, 1, 4, false));
  in_vain = false;
  for (int s = 0; s < 3; ++s) {
    sums = 0;
    sg::run(train.step(data));
    CHECK(sums > 0);
    CHECK_FALSE(in_vain);
  }
}

TEST_CASE("cuda/Replicas: the measured steps decide, and then the host may run ahead", "[cuda]") {
  si::Session const session;
  sg::Options options;
  options.replicas = {2, 2};
  auto train =
      there(on_device(true), by("optimal", 2), even_cuts(2), made(sg::schedule::GPipe{}), options);
  auto const data = upload(batch_of(0));
  auto const& counts = train.capture();
  for (int s = 0; s < 12; ++s) sg::run(train.step(data));
  auto const replays = counts.replays;
  sg::run(train.step(data));
  CHECK(counts.replays == replays + 1);
  train.record(true);
  sg::run(train.step(data));
  int summed = 0;
  for (auto const& span : train.reductions().spans) {
    ++summed;
    CHECK(span.action.kind == sg::schedule::Kind::reduce_gradient);
    CHECK(span.start_s <= span.end_s);
  }
  CHECK(summed > 0);
}

TEST_CASE("cuda/Replicas: what kernels would read after the host has cut the next is refused",
          "[cuda]") {
  si::Session const session;
  sg::Options options;
  options.replicas = {2};
  options.seed = run_seed;
  auto train = sg::Pipeline{sg::Sequential{OnDevice<Embedding>{}, OnDevice<Dense>{}}}.with(
      made(sg::schedule::GPipe{}), EnqueuedLoss{},
      sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()}, on_device(), options);
  auto const data = batch_of(0);
  try {
    sg::run(train.step(data));
    FAIL("no error");
  } catch (sg::Error const& error) {
    CHECK(std::string(error.what()).find("the input of layer 0 has rows that the host copies") ==
          0);
  }
}

}  // namespace replicas_test
