// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Workers some of whose layers are late, of whom one is killed at any point of a step and
///         comes back at any point of a later one, held against the sequential loop.

#include "catch.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/core/backoff.hpp>
#include <stagger/engine/run_together.hpp>

#include "forwarding_link.hpp"
#include "overlapped_oracle.hpp"
#include "workers_oracle.hpp"

namespace overlapped_oracle {

/// A worker's link that notes what the worker has pushed, and does something at one of its calls.
class Watched final : public Forwarding {
 public:
  /// @param pushes  () -> how many of a layer the server counts for the worker
  Watched(std::shared_ptr<stagger::detail::ParameterLink> to, std::function<std::uint32_t()> pushes)
      : Forwarding(std::move(to)), pushes_(std::move(pushes)) {}

  /// A step comes.
  /// @param at    the call of the step at which something happens; negative: at none
  /// @param what  it
  void watch(int at, std::function<void()> what) {
    calls_.store(0);
    at_ = at;
    what_ = std::move(what);
    done_ = Done::nothing();
  }
  [[nodiscard]] Done const& done() const { return done_; }
  /// Whether that has happened.
  [[nodiscard]] bool happened() const { return at_ >= 0 && calls_.load() > at_; }
  /// The server knows that the worker wants to begin.
  mutable std::atomic<bool> asks{false};
  /// Before that: the worker waits until the others have ended a step, or until what is late of the
  /// last one has come.
  mutable std::atomic<bool> waits{false};
  /// The step with which it begins, once the server has let it in.
  std::atomic<std::uint32_t> first_step{0};
  void comes_back() {
    watch(-1, nullptr);
    waits.store(false);
    asks.store(false);
    first_step.store(0);
  }

  void report(double loss) override {
    call();
    Forwarding::report(loss);
    done_.reported = true;
  }
  void push(std::size_t l, std::byte const* values, bool last, Bytes part) override {
    call();
    Forwarding::push(l, values, last, part);
    bool const late = part.first == 0 && part.last != Bytes{}.last;
    (late ? done_.late : done_.urgent)[l] = true;
  }
  void ask(std::size_t l, std::uint32_t rounds, Bytes part) override {
    call();
    Forwarding::ask(l, rounds, part);
  }
  stagger::detail::VersionTag take(std::size_t l, std::uint32_t rounds, std::byte* values,
                                   Bytes part) override {
    call();
    return Forwarding::take(l, rounds, values, part);
  }
  void ask_late(std::uint32_t step) override {
    call();
    Forwarding::ask_late(step);
    if (step == 0) wait(!waits_for().empty());
  }
  [[nodiscard]] bool begins() const noexcept override {
    bool const yes = Forwarding::begins();
    if (!yes) wait(true);
    return yes;
  }
  void read(std::size_t l, std::byte* values) override {
    Forwarding::read(l, values);
    first_step.store(pushes_());
  }

 private:
  void wait(bool waited) const noexcept {
    if (!asks.load() || waited) waits.store(waited);
    asks.store(true);
  }
  void call() {
    if (calls_++ == at_) what_();
  }
  std::atomic<int> calls_{0};
  int at_ = -1;
  std::function<std::uint32_t()> pushes_;
  std::function<void()> what_;
  Done done_;
};

[[noreturn]] inline void die() { throw std::runtime_error("killed"); }

struct Failure {
  int worker = 2;           // that is killed in step 2
  int at = 0;               // the call at which it is
  int back = 0;             // the call of another one in step 3 at which it comes back
  bool leaves = false;      // its pipeline is destroyed, and another one comes back
  std::vector<int> cuts{};  // of each worker
  int threads = 1;          // likewise
  std::vector<double> shares{1.0 / 3, 1.0 / 3, 1.0 / 3};
};

/// Three workers; what `server` has must go on without one that fails.
/// @return how many workers waited to come back; nothing if the step has fewer calls
template <class Server, class Model, class Optimizer>
std::optional<int> compare_failure(Server const& server, Model const& model, Rules const& rules,
                                   Optimizer const& optimizer, Failure const& failure) {
  CAPTURE(failure.worker, failure.at, failure.back, failure.leaves, failure.threads);
  constexpr int workers = 3;
  constexpr int steps = 7;
  std::vector<std::shared_ptr<Watched>> links(workers);
  auto const make = [&](int n) {
    auto& link = links[static_cast<std::size_t>(n)];
    link = std::make_shared<Watched>(server.worker(n).link(),
                                     [&server, n] { return server.in_process()->pushes(n, 0); });
    auto made =
        workers_oracle::stepping(model, Through{link}, n, optimizer, failure.cuts, failure.threads);
    return std::make_unique<decltype(made)>(std::move(made));
  };
  std::vector<decltype(make(0))> trainers;
  for (int n = 0; n < workers; ++n) trainers.push_back(make(n));
  Oracle<Optimizer> oracle{optimizer, rules, workers};
  oracle.shares = failure.shares;
  std::vector<std::vector<Batch>> batches(steps);
  for (int step = 0; step < steps; ++step)
    for (int n = 0; n < workers; ++n)
      batches[static_cast<std::size_t>(step)].push_back(data(3, n + 10.0 * step));
  auto const dead = static_cast<std::size_t>(failure.worker);
  batches[4][dead] = batches[3][dead];  // for whichever of the steps it comes back
  std::size_t step = 0;
  auto const take = [&](bool with_dead) {
    std::vector<sg::Step> ran;
    for (std::size_t n = 0; n < workers; ++n)
      if (with_dead || n != dead) ran.push_back(trainers[n]->step(batches[step][n]));
    static_cast<void>(sg::run_together(std::move(ran)));
  };
  for (; step < 2; ++step) {
    take(true);
    oracle.train(batches[step]);
  }

  std::vector<Done> done(workers);
  links[dead]->watch(failure.at, die);
  try {
    take(true);
  } catch (std::exception const& error) {
    REQUIRE(error.what() == std::string("killed"));
    done[dead] = links[dead]->done();
  }
  oracle.train(batches[step++], done);
  if (done[dead].ended) return {};

  if (failure.leaves) trainers[dead] = nullptr;
  std::thread back;
  std::exception_ptr wrong, wrong_there;
  auto const come_back = [&] {
    if (failure.leaves) {
      trainers[dead] = make(failure.worker);
      oracle.taken[dead] = 0;
    }
    links[dead]->comes_back();
    back = std::thread([&] {
      try {
        static_cast<void>(run(trainers[dead]->step(batches[3][dead])));
      } catch (...) {
        wrong_there = std::current_exception();
      }
    });
    static_cast<void>(sg::detail::wait_until([&] { return links[dead]->asks.load(); }, 20));
  };
  Watched& other = *links[(dead + 1) % workers];
  other.watch(failure.back, come_back);
  try {
    take(false);
    other.watch(-1, nullptr);
    if (!back.joinable()) come_back();  // that step has fewer calls
    // The server has let it in: before anything of that step was added, and then the step counts
    // it, or when the step had ended. If all layers are late, the others may end a step before it
    // has read any.
    static_cast<void>(sg::detail::wait_until([&] { return links[dead]->first_step != 0; }, 20));
    bool const within = links[dead]->first_step == 3;
    done[dead] = within ? Done() : Done::nothing();
    oracle.train(batches[step++], done);
    if (!within) {
      take(false);
      oracle.train(batches[step++]);
    }
  } catch (...) {
    wrong = std::current_exception();
  }
  back.join();
  for (auto const& error : {wrong, wrong_there})
    if (error) std::rethrow_exception(error);
  for (; step < steps; ++step) {
    take(true);
    oracle.train(batches[step]);
  }
  for (auto const& trainer : trainers) REQUIRE(weights(*trainer) == oracle.p);
  return links[dead]->waits.load() ? 1 : 0;
}

/// Likewise, killed at every call of a step.
/// @param server_of  () -> one for three workers
/// @param backs      how many calls there are at which it may come back; each failure takes another
/// @param waited     how often it waited for the others to end a step
/// @return           how often it was killed
template <class ServerOf, class Model, class Optimizer>
int compare_failures(ServerOf server_of, Model const& model, Rules const& rules,
                     Optimizer const& optimizer, Failure failure, int backs, int& waited) {
  for (failure.at = 0;; ++failure.at) {
    failure.back = (failure.back + 7) % backs;
    failure.leaves = failure.at % 2 == 1;
    auto const server = server_of();
    auto const has_waited = compare_failure(*server, model, rules, optimizer, failure);
    if (!has_waited) return failure.at;
    waited += *has_waited;
  }
}

}  // namespace overlapped_oracle
