// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What the tests of GPUs share: options, words of errors, counted calls, and steps that are
/// compared with the host's or meet a refusal of CUDA.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/enqueued_model.hpp"

namespace enqueued_model {

inline sg::Options options_with(bool clips, bool recompute = false, double deadline_s = 60) {
  sg::Options options;
  if (clips) options.clip_norm = clip;
  options.recompute = recompute;
  options.seed = run_seed;
  options.deadline_s = deadline_s;
  return options;
}
inline sg::Options clipping(double deadline_s = 60) {
  return options_with(true, false, deadline_s);
}

/// What `body` throws, in words; empty: nothing.
template <class Body> [[nodiscard]] std::string words_of(Body body) {
  try {
    body();
  } catch (std::exception const& error) {
    return error.what();
  }
  return {};
}

[[nodiscard]] inline bool has(std::string const& words, char const* part) {
  return words.find(part) != std::string::npos;
}

inline std::uint64_t calls_of(std::initializer_list<si::Call> list) {
  std::uint64_t sum = 0;
  for (si::Call const call : list) sum += si::calls(call);
  return sum;
}
/// Calls that make something, allocate or synchronise: none of them belongs into a step.
inline std::uint64_t costly_calls() {
  using si::Call;
  return calls_of({Call::event_create, Call::stream_create, Call::malloc, Call::malloc_host,
                   Call::malloc_from_pool, Call::pool_create, Call::stream_synchronize,
                   Call::memcpy, Call::memset, Call::graph_instantiate});
}

/// Five steps of which the last three make no call that costs.
template <class Train, class Data> void check_steady(Train& train, Data const& data) {
  for (int s = 0; s < 2; ++s) sg::run(train.step(data));
  auto const before = costly_calls();
  for (int s = 0; s < 3; ++s) sg::run(train.step(data));
  CHECK(costly_calls() == before);
}

/// Enqueues steps on two batches by turns. Before a batch is used again, where a program would
/// write to it, its last step is awaited.
template <class Train> class TwoBatches {
 public:
  TwoBatches(Train& train, int microbatches)
      : data{batch(0, microbatches, false), batch(1, microbatches, false)}, train_(train) {}

  void steps(int count) {
    for (int s = 0; s < count; ++s) {
      auto& ticket = tickets_[s % 2];
      if (ticket) ticket->wait();
      ticket = sg::enqueue(train_.step(data[s % 2]));
    }
  }

  Batch data[2];

 private:
  Train& train_;
  std::optional<sg::Ticket> tickets_[2];
};

/// Four steps and an evaluation have the host's numbers, bit by bit. @param batch_of  (step)
template <class Train, class Host, class BatchOf>
void check_same(Train& train, Host& host, BatchOf batch_of) {
  for (int s = 0; s < 4; ++s) {
    auto const data = batch_of(s);
    auto const here = sg::run(host.step(data));
    auto const there = sg::run(train.step(data));
    REQUIRE(there.loss == here.loss);
    REQUIRE(there.gradient_norm == here.gradient_norm);
    REQUIRE((bits(train) == bits(host)));
  }
  auto const data = batch_of(9);
  REQUIRE(sg::run(train.evaluate(data)).loss == sg::run(host.evaluate(data)).loss);
}

/// The same for steps that are all enqueued before the first is looked at.
template <class Train, class Host>
void check_same_ahead(Train& train, Host& host, std::vector<Batch> const& data) {
  std::vector<sg::Ticket> tickets;
  for (auto const& one : data) tickets.push_back(sg::enqueue(train.step(one)));
  for (std::size_t s = 0; s < data.size(); ++s) {
    auto const here = sg::run(host.step(data[s]));
    auto const there = tickets[s].metrics();
    REQUIRE(there.loss == here.loss);
    REQUIRE(there.terms == here.terms);
    REQUIRE(there.gradient_norm == here.gradient_norm);
  }
  REQUIRE((bits(train) == bits(host)));
}

/// Calls of which one is refused: each of the first three, then every `stride`-th.
struct Refusals {
  std::vector<si::Call> calls;
  int most;
  int stride;
};

template <class Body> void each_refusal(Refusals const& refusals, Body body) {
  int number = 0;
  for (auto const call : refusals.calls)
    for (int nth = 1; nth <= refusals.most; nth += nth < 4 ? 1 : refusals.stride) {
      if (sanitized && number++ % 9 != 0) continue;
      CAPTURE(static_cast<int>(call), nth);
      si::Session const session;
      body([&](auto&& step) {
        si::fail(call, nth, cudaErrorLaunchFailure);
        bool failed = false;
        try {
          step();
        } catch (sg::cuda::Error const& error) {
          failed = true;
          REQUIRE(error.result() == cudaErrorLaunchFailure);
        }
        si::fail(si::Call::comm_init, 1, 0);  // no more of it
        return failed;
      });
      si::reset();
      REQUIRE(session.left() == si::Live{});
    }
}

/// Whatever is refused in the second step, parameters are those before or after it.
/// @param batch_of  (step)
/// @param course    parameters after each step
template <class Make, class BatchOf>
void check_refusals(Refusals const& refusals, Make make, BatchOf batch_of,
                    std::vector<std::vector<std::byte>> const& course) {
  each_refusal(refusals, [&](auto refused_in) {
    auto train = make();
    auto const step = [&](std::size_t s) {
      auto const data = batch_of(static_cast<int>(s));
      sg::run(train.step(data));
    };
    step(0);
    bool const failed = refused_in([&] { step(1); });
    REQUIRE((bits(train) == course[failed ? 0 : 1]));
    for (std::size_t s = failed ? 1 : 2; s < course.size(); ++s) step(s);
    REQUIRE((bits(train) == course.back()));
  });
}

/// Memory that is not there is refused wherever a pipeline asks for it, and nothing leaks.
template <class Body> void check_out_of_memory(Body body) {
  si::Session const session;
  int nth = 1;
  for (bool refused = true; refused; ++nth) {
    si::fail(si::Call::malloc, nth, cudaErrorMemoryAllocation);
    try {
      body();
      refused = false;
    } catch (sg::cuda::Error const& error) {
      REQUIRE(error.result() == cudaErrorMemoryAllocation);
      REQUIRE(std::string(error.what()).find("the GPU has no ") == 0);
    }
    si::fail(si::Call::comm_init, 1, 0);
  }
  CHECK(nth > 20);
  si::reset();
  CHECK(session.left() == si::Live{});
}

/// Copies values and optimizer state, as a program that writes parameters between steps does.
template <class From, class To> void copy_parameters(From& first, To& second) {
  auto const from = first.parameters();
  auto const to = second.parameters();
  REQUIRE(from.size() == to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    REQUIRE(from[i].name == to[i].name);
    std::copy(from[i].value.begin(), from[i].value.end(), to[i].value.begin());
    for (std::size_t k = 0; k < 2; ++k)
      std::copy(from[i].state[k].begin(), from[i].state[k].end(), to[i].state[k].begin());
  }
}

}  // namespace enqueued_model
