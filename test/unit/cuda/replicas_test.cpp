// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/gpus.hpp>

#include "catch.hpp"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/dual_pipe.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>

#include "replica_model.hpp"

using namespace replica_model;

namespace {

struct Case {
  char const* name;
  Made schedule;
  int positions;
  sg::Replicas replicas;
  std::size_t rows = 4;
};

std::vector<Case> cases() {
  using namespace sg::schedule;
  return {{"gpipe", made(GPipe{}), 1, {2}},
          {"1f1b", made(OneFOneB{}), 2, {3, 1}},
          {"split", split(made(OneFOneB{}), 2), 2, {2, 3}},
          {"uneven", made(OneFOneB{}), 2, {{15, 1}, {1, 1}}, 16},
          {"interleaved", made(Interleaved{}), 2, {2, 2}},
          {"chimera", made(Chimera{}), 2, {2, 1}},
          {"dualpipe", made(DualPipe{}), 2, {1, 1}}};
}

using Grouping = sg::collective::AllReduce<grouping::Named>;

void same_as_on_the_host(Case const& c, Grouping policy, bool clips, bool recompute, bool capture) {
  CAPTURE(c.name, clips, recompute, capture);
  si::Session const session;
  si::jitter(7);
  astray = 0;
  {
    constexpr int microbatches = 4;
    auto const cuts = even_cuts(c.positions * c.schedule.each);
    sg::Options options;
    if (clips) options.clip_norm = clip;
    options.recompute = recompute;
    options.replicas = c.replicas;
    auto host = row_model::pipeline(sg::host::Threads{1}, cuts, c.schedule, options);
    auto train = there(enqueued_model::on_device(capture), policy, cuts, c.schedule, options);
    std::vector<BatchThere> data;  // what was enqueued is used until its ticket is done
    std::vector<sg::Ticket> tickets;
    for (int s = 0; s < 4; ++s) {
      auto const here = row_model::batch(s, microbatches, c.rows, !capture);
      auto const expected = sg::run(host.step(here));
      data.push_back(upload(here));
      auto const got = sg::run(train.step(data.back()));
      REQUIRE(got.loss == expected.loss);
      REQUIRE(got.gradient_norm == expected.gradient_norm);
      REQUIRE((bits(train) == bits(host)));
    }
    auto const last = row_model::batch(9, microbatches, c.rows, !capture);
    auto const last_there = upload(last);
    REQUIRE(sg::run(train.evaluate(last_there)).loss == sg::run(host.evaluate(last)).loss);
    std::vector<Matrix> expected(microbatches);
    std::vector<Values> outputs(microbatches);
    sg::run(host.predict(last.inputs, expected));
    sg::run(train.predict(last_there.inputs, outputs));
    sg::cuda::check(cudaStreamSynchronize(sg::cuda::stream()), "wait");
    for (std::size_t m = 0; m < expected.size(); ++m) {
      auto const got = read(bare(outputs[m]));
      REQUIRE(got.size() == expected[m].size());
      REQUIRE(std::equal(got.data(), got.data() + got.size(), expected[m].data()));
    }
    for (int s = 4; s < 7; ++s) {  // ahead of the device
      auto const next = row_model::batch(s, microbatches, c.rows, !capture);
      sg::run(host.step(next));
      data.push_back(upload(next));
      tickets.push_back(sg::enqueue(train.step(data.back())));
    }
    for (auto& ticket : tickets) ticket.wait();
    REQUIRE((bits(train) == bits(host)));
  }
  CHECK(astray == 0);
  si::reset();
  REQUIRE(session.left() == si::Live{});
}

Grouping by(char const* name, int measured_steps) {
  Grouping policy;
  policy.grouping = grouping::named(name);
  policy.measured_steps = measured_steps;
  return policy;
}

}  // namespace

TEST_CASE("cuda/Replicas: replicas on one GPU have the host's bits", "[cuda]") {
  int number = 0;
  for (auto const& c : cases())
    for (bool const capture : {false, true}) {
      if (sanitized && number++ % 3 != 0) continue;
      same_as_on_the_host(c, by("single", 0), true, false, capture);
      same_as_on_the_host(c, by("layerwise", 0), false, true, capture);
      same_as_on_the_host(c, by("optimal", 1), true, false, capture);
    }
}

namespace {

auto uneven(bool capture, bool clips = true) {
  sg::Options options;
  if (clips) options.clip_norm = clip;
  options.replicas = {{3, 1}, {1, 1}};
  return there(enqueued_model::on_device(capture), by("layerwise", 0), even_cuts(2),
               made(sg::schedule::OneFOneB{}), options);
}
auto uneven_on_the_host() {
  sg::Options options;
  options.clip_norm = clip;
  options.replicas = {{3, 1}, {1, 1}};
  return row_model::pipeline(sg::host::Threads{1}, even_cuts(2), made(sg::schedule::OneFOneB{}),
                             options);
}
Batch batch_of(int step) { return row_model::batch(step, 3, 4, false); }

}  // namespace

TEST_CASE("cuda/Replicas: whatever CUDA refuses, parameters are those before or after the step",
          "[cuda]") {
  std::vector<std::vector<std::byte>> course;
  {
    auto host = uneven_on_the_host();
    for (int s = 0; s < 3; ++s) {
      auto const data = batch_of(s);
      sg::run(host.step(data));
      course.push_back(bits(host));
    }
  }
  int number = 0;
  for (bool const capture : {false, true})
    for (auto const call :
         {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
          si::Call::memcpy_async, si::Call::memset_async, si::Call::malloc_from_pool})
      for (int nth = 1; nth <= 160; nth += nth < 4 ? 1 : 13) {
        if (sanitized && number++ % 9 != 0) continue;
        CAPTURE(capture, static_cast<int>(call), nth);
        si::Session const session;
        {
          auto train = uneven(capture);
          auto const step = [&](int s) {
            auto const data = upload(batch_of(s));
            sg::run(train.step(data));
          };
          step(0);
          si::fail(call, nth, cudaErrorLaunchFailure);
          bool failed = false;
          try {
            step(1);
          } catch (sg::cuda::Error const&) {
            failed = true;
          }
          si::fail(si::Call::comm_init, 1, 0);  // no more of it
          REQUIRE((bits(train) == course[failed ? 0 : 1]));
          if (failed) step(1);
          step(2);
          REQUIRE((bits(train) == course[2]));
        }
        si::reset();
        REQUIRE(session.left() == si::Live{});
      }
}

TEST_CASE("cuda/Replicas: memory that is not there is refused, and nothing leaks", "[cuda]") {
  si::Session const session;
  auto const data = upload(batch_of(0));
  int nth = 1;
  for (bool refused = true; refused; ++nth) {
    si::fail(si::Call::malloc, nth, cudaErrorMemoryAllocation);
    try {
      auto train = uneven(false);
      sg::run(train.step(data));
      refused = false;
    } catch (sg::cuda::Error const& error) {
      REQUIRE(error.result() == cudaErrorMemoryAllocation);
    }
    si::fail(si::Call::comm_init, 1, 0);
  }
  CHECK(nth > 20);
}

TEST_CASE("cuda/Replicas: in steady state nothing is made, allocated or synchronised with",
          "[cuda]") {
  si::Session const session;
  auto train = uneven(false);
  auto const& counts = train.capture(GENERATE(false, true));
  auto const data = upload(batch_of(0));
  auto const still = [] {
    using si::Call;
    std::uint64_t sum = 0;
    for (Call const call :
         {Call::event_create, Call::stream_create, Call::malloc, Call::malloc_host,
          Call::malloc_from_pool, Call::pool_create, Call::stream_synchronize, Call::memcpy,
          Call::memset, Call::graph_instantiate})
      sum += si::calls(call);
    return sum;
  };
  for (int s = 0; s < 2; ++s) sg::run(train.step(data));
  auto const before = still();
  for (int s = 0; s < 3; ++s) sg::run(train.step(data));
  CHECK(still() == before);
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
  auto kernels_of_it = kernels;
  kernels_of_it.add = [](sg::ElementType type, void* sum, void const* more, std::size_t size,
                         cudaStream_t stream) {
    auto const told = launch(stream, [] { ++sums; });
    return told != cudaSuccess ? told : kernels.add(type, sum, more, size, stream);
  };
  auto device = enqueued_model::on_device();
  device.kernels = &kernels_of_it;
  sg::Options options;
  options.replicas = {2};
  auto train = sg::Pipeline{sg::Sequential{OnDevice<Embedding>{}, OnDevice<Dense>{}, Gate{},
                                           OnDevice<Dense>{Dense{7}}}}
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
  auto train = there(enqueued_model::on_device(true), by("optimal", 2), even_cuts(2),
                     made(sg::schedule::GPipe{}), options);
  auto const data = upload(batch_of(0));
  auto const& counts = train.capture();
  for (int s = 0; s < 12; ++s) sg::run(train.step(data));
  auto const replays = counts.replays;
  sg::run(train.step(data));
  CHECK(counts.replays == replays + 1);
  train.record(true);
  sg::run(train.step(data));
  int summed = 0;
  for (auto const& row : train.reductions().rows)
    for (auto const& span : row) {
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
  auto train = sg::Pipeline{sg::Sequential{enqueued_model::OnDevice<Embedding>{},
                                           enqueued_model::OnDevice<Dense>{}}}
                   .with(made(sg::schedule::GPipe{}), enqueued_model::EnqueuedLoss{},
                         sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()},
                         enqueued_model::on_device(), options);
  auto const data = batch_of(0);
  try {
    sg::run(train.step(data));
    FAIL("no error");
  } catch (sg::Error const& error) {
    CHECK(std::string(error.what()).find("the input of layer 0 has rows that the host copies") ==
          0);
  }
}
