// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/detail/non_finite.hpp>

#include "catch.hpp"

#include <string>
#include <utility>
#include <vector>

#include <stagger/schedule/pipe_dream.hpp>
#include <stagger/staleness/weight_stashing.hpp>

#include "cuda/not_finite_model.hpp"

namespace gpus_not_finite_test {

using namespace not_finite_model;

namespace {

How any() {
  How how;
  how.capture = GENERATE(false, true);
  how.clips = GENERATE(false, true);
  int const owners = GENERATE(1, 2, 3);
  how.two_owners = owners > 1;
  how.shards = owners > 2;
  how.gpus = GENERATE(1, 2);
  return how;
}

/// A launch of a kernel that does not ask.
struct Blind {
  template <class Update> cudaError_t operator()(Update const& update, cudaStream_t stream) const {
    return Launch{}(update, stream);
  }
};

}  // namespace

TEST_CASE("cuda/NonFinite: a skipped step leaves everything as it was, as on the host", "[cuda]") {
  How how = any();
  how.ahead = GENERATE(1, 3);
  CAPTURE(how.capture, how.clips, how.two_owners, how.shards, how.gpus, how.ahead);
  si::Session const session;
  si::jitter(11);
  Calls here;
  Calls there;
  here.poisoned = there.poisoned = 3 * parts + 1;  // in the fourth step
  auto host = on_host(how, NonFinite::skip, &here);
  auto train = on_device(how, NonFinite::skip, &there);
  auto const data = batches(8, parts, false);
  std::vector<sg::Ticket> tickets;
  for (auto const& one : data) tickets.push_back(sg::enqueue(train.step(one)));
  for (std::size_t s = 0; s < data.size(); ++s) {
    CAPTURE(s);
    auto const expected = sg::run(host.step(data[s]));
    auto const found = tickets[s].metrics();
    REQUIRE(found.skipped == (s == 3 ? 1 : 0));
    REQUIRE(expected.skipped == found.skipped);
    REQUIRE(found.loss == expected.loss);
    if (s != 3) REQUIRE(found.gradient_norm == expected.gradient_norm);
  }
  CHECK(train.steps() == 7);
  REQUIRE((bits(train) == bits(host)));
  here.poisoned = here.made.load();
  there.poisoned = there.made.load();
  CHECK(sg::run(train.step(data[0])).skipped == 1);
  CHECK(sg::run(host.step(data[0])).skipped == 1);
  CHECK(train.steps() == 7);
  CHECK(sg::run(train.step(data[1])).loss == sg::run(host.step(data[1])).loss);
  CHECK(train.steps() == 8);
  REQUIRE((bits(train) == bits(host)));
}

TEST_CASE("cuda/NonFinite: a failed step and those in flight behind it change nothing", "[cuda]") {
  How how = any();
  how.ahead = 4;
  CAPTURE(how.capture, how.clips, how.two_owners, how.shards, how.gpus);
  si::Session const session;
  si::jitter(13);
  Calls here;
  Calls there;
  there.poisoned = 2 * parts;  // in the third step
  auto host = on_host(how, NonFinite::fail, &here);
  auto train = on_device(how, NonFinite::fail, &there);
  auto const data = batches(8, parts, false);
  std::vector<sg::Ticket> tickets;
  for (std::size_t s = 0; s < 5; ++s) tickets.push_back(sg::enqueue(train.step(data[s])));
  for (std::size_t s = 0; s < 2; ++s)
    REQUIRE(tickets[s].metrics().loss == sg::run(host.step(data[s])).loss);
  for (std::size_t s = 2; s < 5; ++s) {
    CAPTURE(s);
    try {
      tickets[s].metrics();
      FAIL();
    } catch (sg::Error const& error) {
      CHECK(error.code() == sg::Errc::not_finite);
      CHECK(has(error.what(),
                "a gradient of layer 2 on rank 0, or the sum of its squares, is not finite, so "
                "nothing was updated after step "
                "2: "));
    }
  }
  CHECK(train.steps() == 2);
  REQUIRE((bits(train) == bits(host)));
  for (std::size_t s = 5; s < 8; ++s) {
    auto const expected = sg::run(host.step(data[s]));
    REQUIRE(sg::enqueue(train.step(data[s])).metrics().loss == expected.loss);
  }
  there.poisoned = there.made.load();
  CHECK(has(words_of([&] { sg::run(train.step(data[0])); }), "nothing was updated after step 5: "));
  CHECK(train.steps() == 5);
  REQUIRE((bits(train) == bits(host)));
  CHECK(sg::run(train.step(data[1])).loss == sg::run(host.step(data[1])).loss);
  REQUIRE((bits(train) == bits(host)));
}

TEST_CASE("cuda/NonFinite: an error that no ticket was asked for is thrown once by the next step",
          "[cuda]") {
  si::Session const session;
  Calls calls;
  calls.poisoned = 1;
  auto train = on_device({.ahead = GENERATE(1, 3)}, NonFinite::fail, &calls);
  auto const data = batches(2, parts, false);
  sg::Ticket last;
  int thrown = 0;
  for (int s = 0; s < 8; ++s) try {
      last = sg::enqueue(train.step(data[static_cast<std::size_t>(s % 2)]));
    } catch (sg::Error const& error) {
      CHECK(error.code() == sg::Errc::not_finite);
      ++thrown;
    }
  static_cast<void>(last.metrics());
  CHECK(thrown == 1);
}

TEST_CASE("cuda/NonFinite: a stream of minibatches fails as a whole", "[cuda]") {
  int const gpus = GENERATE(1, 2);
  bool const capture = GENERATE(false, true);
  CAPTURE(gpus, capture);
  si::Session const session;
  Calls here;
  Calls there;
  auto const with = [](auto device, auto chain, auto loss, auto rule) {
    return sg::Pipeline{std::move(chain)}.with(sg::partition::Cuts{{4}}, sg::schedule::PipeDream{},
                                               sg::staleness::WeightStashing{}, loss, rule,
                                               std::move(device), options(NonFinite::fail, false));
  };
  auto train = with(captured(on_gpus(first(gpus)), 1), layers_on_device(&there), LossOnGpu{},
                    sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()});
  train.capture(capture);
  auto host = with(sg::host::Threads{1}, layers_of_host(&here), Loss{}, optimizer());
  auto const data = batch(0, 8, false);
  for (int s = 0; s < 4; ++s) {
    if (s % 2 == 1) {
      there.poisoned = there.made + 3;
      CHECK(has(words_of([&] { sg::run(train.stream(data)); }), "a gradient is not finite in one"));
      REQUIRE((bits(train) == bits(host)));
      CHECK(train.steps() == host.steps());
    }
    CHECK(sg::run(host.stream(data)).loss == sg::run(train.stream(data)).loss);
    REQUIRE((bits(train) == bits(host)));
  }
}

TEST_CASE("cuda/NonFinite: kernels that do not look are refused by what they lack", "[cuda]") {
  si::Session const session;
  auto const data = batch(0, parts, true);
  auto const said = [&](sg::cuda::ParameterKernels const& kernels, auto launch,
                        NonFinite non_finite) {
    auto gpus = on_gpus({0});
    gpus.kernels = &kernels;
    auto train = sg::Pipeline{layers_on_gpus()}.with(
        LossOnGpu{}, sg::cuda::Enqueued<sg::optimizer::AdamW, decltype(launch)>{optimizer()},
        std::move(gpus), options(non_finite, true));
    return words_of([&] { sg::run(train.step(data)); });
  };
  auto kernels = sg::cuda::parameter_kernels;
  CHECK(said(kernels, Launch{}, NonFinite::skip).empty());
  CHECK(has(said(kernels, Blind{}, NonFinite::fail),
            "needs an optimizer's kernel that changes nothing unless scale->updates()"));
  CHECK(said(kernels, Blind{}, NonFinite::ignore).empty());
  kernels.begin = nullptr;
  CHECK(said(kernels, Launch{}, NonFinite::fail).empty());
  CHECK(has(said(kernels, Launch{}, NonFinite::skip), "needs a kernel that numbers steps"));
  kernels.finds_non_finite = false;
  CHECK(has(said(kernels, Launch{}, NonFinite::fail), "find out whether gradients are finite"));
  CHECK(said(kernels, Launch{}, NonFinite::ignore).empty());
}

TEST_CASE(
    "cuda/NonFinite: whatever happens in whatever order, the steps that succeed are the host's",
    "[cuda]") {
  int const count = sanitized ? 6 : 24;
  for (std::uint64_t seed = 0; seed < static_cast<std::uint64_t>(count); ++seed) {
    CAPTURE(seed);
    std::uint64_t draws = 0;
    auto const draw = [&](std::uint64_t below) {
      return static_cast<int>(sg::random_bits(seed, {draws++}) % below);
    };
    si::Session const session;
    si::jitter(static_cast<unsigned>(seed + 1));
    auto const data = batches(3, parts, false);
    auto const non_finite = draw(2) == 0 ? NonFinite::fail : NonFinite::skip;
    How how;
    how.capture = draw(2) == 0;
    how.clips = draw(2) == 0;
    how.two_owners = draw(2) == 0;
    how.gpus = 1 + draw(2);
    how.ahead = 1 + draw(4);
    how.shards = how.two_owners && draw(2) == 0;
    CAPTURE(static_cast<int>(non_finite), how.capture, how.clips, how.two_owners, how.shards,
            how.gpus, how.ahead);
    Calls none;
    Calls calls;
    auto host = on_host(how, non_finite, &none);
    auto train = on_device(how, non_finite, &calls);
    struct Taken {
      std::size_t batch;
      sg::Ticket ticket;
    };
    std::vector<Taken> taken;
    auto const settle = [&] {  // and compare
      for (auto& one : taken) {
        sg::Metrics metrics;
        auto const words = words_of([&] { metrics = one.ticket.metrics(); });
        CAPTURE(words);
        REQUIRE((words.empty() || has(words, "is not finite, so nothing was updated after step ")));
        if (!words.empty() || metrics.skipped != 0) continue;
        REQUIRE(metrics.loss == sg::run(host.step(data[one.batch])).loss);
      }
      taken.clear();
      static_cast<void>(words_of([&] { train.settle(); }));
      REQUIRE(train.steps() == host.steps());
      REQUIRE((bits(train) == bits(host)));
    };
    for (int n = 0; n < 16; ++n) {
      auto const batch = static_cast<std::size_t>(draw(3));
      int const what = draw(8);
      if (what == 0) {
        settle();
        calls.poisoned = calls.made + draw(2 * parts);
      } else if (what == 1) {
        settle();
        auto const words = words_of([&] {
          auto const metrics = sg::run(train.step(data[batch]));
          if (metrics.skipped == 0) REQUIRE(metrics.loss == sg::run(host.step(data[batch])).loss);
        });
        REQUIRE((words.empty() || has(words, "is not finite")));
      } else if (what == 2) {
        settle();
        REQUIRE(sg::run(train.evaluate(data[batch])).loss ==
                sg::run(host.evaluate(data[batch])).loss);
      } else {
        if (what == 3)
          si::fail(
              std::vector{si::Call::launch_kernel, si::Call::event_record, si::Call::memcpy_async,
                          si::Call::graph_launch}[static_cast<std::size_t>(draw(4))],
              1 + draw(60), cudaErrorLaunchFailure);
        auto const words =
            words_of([&] { taken.push_back({batch, sg::enqueue(train.step(data[batch]))}); });
        si::fail(si::Call::comm_init, 1, 0);  // no more of it
        CAPTURE(words);
        REQUIRE((words.empty() || has(words, "is not finite") || what == 3));
      }
    }
    settle();
  }
}

}  // namespace gpus_not_finite_test
