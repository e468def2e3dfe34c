// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/parameter_server.hpp>

#include "catch.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>

#include "forwarding_link.hpp"
#include "workers_oracle.hpp"

namespace failing_workers_test {

using namespace workers_oracle;
using sg::collective::OnFailure;
using sg::collective::ParameterServer;
using sg::collective::ServerEvent;

namespace {

/// Added pushes of each worker.
std::vector<std::size_t> added(ParameterServer const& server, std::size_t layer,
                               std::size_t workers) {
  std::vector<std::size_t> counts(workers);
  for (ServerEvent const& event : server.log(layer))
    if (event.kind == ServerEvent::Kind::added) ++counts[static_cast<std::size_t>(event.worker)];
  return counts;
}

/// A last layer that fails in the step that it is told to.
struct Fragile : Layer {
  std::shared_ptr<std::atomic<bool>> fails = std::make_shared<std::atomic<bool>>(false);
  using Layer::Layer;
  void forward(sg::Context& context, Input const& x, Output& y, Saved& saved) {
    if (context.training() && fails->load()) throw std::runtime_error("out of ink");
    Layer::forward(context, x, y, saved);
  }
};

/// Of two streams that begin at the same time, whether that of one worker has begun, or could not.
struct Order {
  std::atomic<bool> kept{false};  // false: in any order
  std::atomic<bool> begun{false};
};
/// Its stream begins after that of another worker.
class Behind final : public Forwarding {
 public:
  Behind(ParameterServer const& server, int worker, Order const& order)
      : Forwarding(server.worker(worker).link()), order_(order) {}
  void begin() override {
    while (order_.kept.load() && !order_.begun.load()) std::this_thread::yield();
    Forwarding::begin();
  }

 private:
  Order const& order_;
};
/// Its stream begins before those of other workers.
class Ahead final : public Forwarding {
 public:
  Ahead(ParameterServer const& server, int worker, Order& order)
      : Forwarding(server.worker(worker).link()), order_(order) {}
  void begin() override {
    struct Tell {
      Order& order;
      ~Tell() { order.begun.store(order.kept.load()); }
    } const tell{order_};
    Forwarding::begin();
  }

 private:
  Order& order_;
};

/// Its first stream is lost when the worker asks for weights, or while it reads them.
class LostOnce final : public Forwarding {
 public:
  LostOnce(ParameterServer const& server, bool reading)
      : Forwarding(server.worker(0).link()), reading_(reading) {}
  void read(std::size_t l, std::byte* values) override {
    if (reading_) lose();
    Forwarding::read(l, values);
  }
  void ask(std::size_t l, std::uint32_t rounds, Bytes part) override {
    lose();
    Forwarding::ask(l, rounds, part);
  }
  void end(std::exception_ptr why) noexcept override {
    lost_ = false;
    Forwarding::end(why);
  }

 private:
  void lose() const {
    if (lost_) throw sg::Error(sg::Errc::peer_failed, "the link is lost");
  }
  bool reading_;
  bool lost_ = true;  // until the stream ends
};

/// In a stream that fails after two steps, the last that the worker hears is that all layers are late.
class ToldInTheEnd final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  void end(std::exception_ptr why) noexcept override {
    std::byte const all{0x0f};
    if (why) listener_->late_layers(2, {.bitmap = std::span(&all, 1)});
    Forwarding::end(why);
  }
};

/// Workers that take steps in virtual time, where all begin a step before any goes on with it.
template <class Model> struct Stepping {
  sg::sim::Clock clock;
  std::vector<std::shared_ptr<std::atomic<bool>>> fails;
  int slow = -1;  // a worker that computes longer than all others
  auto make(Model const& model, ParameterServer const& server, int worker) {
    Fragile last(3);
    fails.push_back(last.fails);
    sg::sim::VirtualClock device;
    device.costs = sg::schedule::Costs::uniform(worker == slow ? 20 : 1 + worker, 2, 0);
    device.clock = clock;
    return sg::Pipeline{sg::Sequential{Layer(0), Layer(1), Layer(2), std::move(last)}}.with(
        sg::partition::Cuts{{2}}, model, server.worker(worker), Loss{}, adam, device);
  }
};

}  // namespace

TEST_CASE("train/OnFailure: steps go on without a worker, whose weight goes to the others",
          "[train]") {
  // Shares of 1/2, 1/4 and 1/4. Worker 2 misses steps 2 to 4.
  std::vector<double> const shares{0.5, 0.25, 0.25};
  ParameterServer const server(
      {.workers = 3, .weights = shares, .log = true, .on_failure = OnFailure::go_on});
  Stepping<sg::staleness::Synchronous> made;
  std::vector<decltype(made.make({}, server, 0))> trainers;
  for (int n = 0; n < 3; ++n) trainers.push_back(made.make({}, server, n));
  OracleServer<sg::optimizer::AdamW> oracle{adam};
  for (int step = 0; step < 7; ++step) {
    CAPTURE(step);
    std::size_t const there = step >= 2 && step <= 4 ? 2 : 3;
    std::vector<Batch> batches;
    for (int n = 0; n < 3; ++n) batches.push_back(data(2, n + 10.0 * step));
    made.fails[2]->store(step == 2);
    std::vector<sg::Step> steps;
    for (std::size_t n = 0; n < (step == 2 ? 3 : there); ++n)
      steps.push_back(trainers[n].step(batches[n]));
    if (step == 2)
      REQUIRE_THROWS_WITH(sg::run_together(std::move(steps)), "out of ink");
    else
      sg::run_together(std::move(steps));
    double const counted = there == 2 ? 0.75 : 1;
    std::vector<Numbers> sum(layers, Numbers(width * width + width));
    for (std::size_t n = 0; n < there; ++n) {
      auto const part =
          scaled(gradients(oracle.w, batches[n]), static_cast<float>(shares[n] * (1 / counted)));
      for (std::size_t l = 0; l < layers; ++l) add(sum[l], part[l]);
    }
    oracle.step(sum);
    for (std::size_t n = 0; n < there; ++n) REQUIRE(weights(trainers[n]) == oracle.w);
  }
  for (std::size_t l = 0; l < layers; ++l)
    CHECK(added(server, l, 3) == std::vector<std::size_t>{7, 7, 4});
}

TEST_CASE("train/OnFailure: the turn passes on from a worker that fails, in virtual time",
          "[train]") {
  using Model = sg::staleness::RoundRobinSynchronous;
  for (auto const failure : {OnFailure::go_on, OnFailure::fail_fast})
    for (std::size_t const failing : {0U, 1U, 2U}) {
      CAPTURE(failure == OnFailure::go_on, failing);
      ParameterServer const server({.workers = 3, .log = true, .on_failure = failure});
      // The others wait for its push when it fails.
      Stepping<Model> made{
          .clock = sg::sim::Clock({.rate = 100}), .fails = {}, .slow = static_cast<int>(failing)};
      std::vector<decltype(made.make({}, server, 0))> trainers;
      for (int n = 0; n < 3; ++n) trainers.push_back(made.make({}, server, n));
      auto const batch = data(2);
      auto const step = [&](std::vector<std::size_t> const& who) {
        std::vector<sg::Step> steps;
        for (std::size_t const n : who) steps.push_back(trainers[n].step(batch));
        sg::run_together(std::move(steps));
      };
      std::vector<std::size_t> others;
      for (std::size_t n = 0; n < 3; ++n)
        if (n != failing) others.push_back(n);
      step({0, 1, 2});
      made.fails[failing]->store(true);
      REQUIRE_THROWS_WITH(step({0, 1, 2}), "out of ink");
      made.fails[failing]->store(false);
      if (failure == OnFailure::go_on)
        step(others);
      else if (failing != 0)  // worker 0 had pushed and gone on, so its next step fails
        REQUIRE_THROWS_WITH(step({0, 1, 2}),
                            Catch::Matchers::Contains("which ends the stream of worker 0"));
      step({0, 1, 2});
      step({0, 1, 2});
      for (std::size_t l = 0; failure == OnFailure::go_on && l < layers; ++l) {
        auto const counts = added(server, l, 3);
        for (std::size_t n = 0; n < 3; ++n) CHECK(counts[n] == (n == failing ? 3 : 5));
      }
    }
}

TEST_CASE("train/OnFailure: a stream goes on without a worker that fails, and with it later",
          "[train]") {
  for (bool const exact : {true, false})
    for (int const fail_at : {0, 5, 11}) {
      CAPTURE(exact, fail_at);
      struct Chosen : Waves {
        bool exact = true;
        [[nodiscard]] sg::staleness::WaveSynchronous model() const {
          auto made = Waves::model();
          if (!exact) made.adds = sg::staleness::Adds::on_arrival;
          return made;
        }
      };
      Chosen const waves{{3, 2, 1}, exact};
      ParameterServer const server(
          {.workers = 3, .shards = 2, .log = true, .on_failure = OnFailure::go_on});
      Order order;
      std::vector<decltype(make(waves, server, 0, {2}, 2, sgd))> trainers;
      for (int n = 0; n < 3; ++n) {
        std::shared_ptr<sg::detail::ParameterLink> link;
        if (n == 2)
          link = std::make_shared<Ahead>(server, n, order);
        else
          link = std::make_shared<Behind>(server, n, order);
        trainers.push_back(
            make(waves, Through{std::move(link)}, n, {1 + n}, 2, sgd, n == 2 ? fail_at : -1));
      }
      auto const batch = data(12);
      REQUIRE_THROWS_WITH(sg::run_together(trainers[0].stream(batch), trainers[1].stream(batch),
                                           trainers[2].stream(batch)),
                          "out of ink");
      REQUIRE(weights(trainers[0]) == weights(trainers[1]));
      for (std::size_t l = 0; l < layers; ++l) {
        auto const counts = added(server, l, 3);
        CHECK(counts[0] == 6);
        CHECK(counts[1] == 6);
        CHECK(counts[2] <= static_cast<std::size_t>(fail_at / 2));  // whole waves before it
      }
      // A shorter stream does not fail. All three are in it from some wave on.
      auto const whole = data(fail_at == 0 ? 1 : fail_at, 1);
      if (fail_at == 0) continue;  // it fails always
      // If the others had ended this stream before worker 2 begins, it would wait for their third.
      order.kept.store(true);
      sg::run_together(trainers[0].stream(whole), trainers[1].stream(whole),
                       trainers[2].stream(whole));
      REQUIRE(weights(trainers[0]) == weights(trainers[1]));
      REQUIRE(weights(trainers[0]) == weights(trainers[2]));
      auto const wanted = static_cast<std::size_t>((fail_at + 1) / 2);
      for (std::size_t l = 0; l < layers; ++l) CHECK(added(server, l, 3)[0] == 6 + wanted);
    }
}

namespace {

/// Where a worker is in its stream, for the other one.
struct Amid {
  std::atomic<bool> armed{false};  // the next last push of worker 0 is held
  std::atomic<bool> held{false};
  std::atomic<bool> waits{false};  // worker 1 waits to come back
  std::atomic<bool> reads{false};  // it reads weights while worker 0 is held
};
/// Stops after its last push of one layer, while those of others are still to come.
class StopsAmid final : public Forwarding {
 public:
  StopsAmid(ParameterServer const& server, Amid& amid)
      : Forwarding(server.worker(0).link()), amid_(amid) {}
  void push(std::size_t l, std::byte const* values, bool last, Bytes part) override {
    Forwarding::push(l, values, last, part);
    if (!last || !amid_.armed.exchange(false)) return;
    amid_.held.store(true);
    while (!amid_.waits.load() && !amid_.reads.load()) std::this_thread::yield();
    amid_.held.store(false);
  }

 private:
  Amid& amid_;
};
class ComesBack final : public Forwarding {
 public:
  ComesBack(ParameterServer const& server, Amid& amid)
      : Forwarding(server.worker(1).link()), amid_(amid) {}
  [[nodiscard]] bool begins() const noexcept override {
    bool const yes = Forwarding::begins();
    if (!yes) amid_.waits.store(true);
    return yes;
  }
  void read(std::size_t l, std::byte* values) override {
    if (amid_.held.load()) amid_.reads.store(true);
    Forwarding::read(l, values);
  }

 private:
  Amid& amid_;
};

}  // namespace

TEST_CASE("train/OnFailure: a worker that comes back waits until the others have ended a stream",
          "[train]") {
  Waves const waves{2, 2, 0};
  ParameterServer const server({.workers = 2, .on_failure = OnFailure::go_on});
  Amid amid;
  auto a = make(waves, Through{std::make_shared<StopsAmid>(server, amid)}, 0, {2}, 2, sgd);
  auto b = make(waves, Through{std::make_shared<ComesBack>(server, amid)}, 1, {2}, 2, sgd, 5);
  auto const longer = data(8);
  auto const shorter = data(4, 1);  // does not fail
  REQUIRE_THROWS_WITH(sg::run_together(a.stream(longer), b.stream(longer)), "out of ink");
  amid.armed.store(true);
  std::exception_ptr failure;
  std::thread others([&] {
    try {
      for (int stream = 0; stream < 2; ++stream) static_cast<void>(run(a.stream(shorter)));
    } catch (...) {
      failure = std::current_exception();
    }
  });
  while (!amid.held.load()) std::this_thread::yield();
  CHECK_NOTHROW(run(b.stream(shorter)));
  others.join();
  CHECK(failure == nullptr);
  CHECK(amid.waits.load());
  CHECK_FALSE(amid.reads.load());
  CHECK(weights(a) == weights(b));
}

TEST_CASE("train/OnFailure: who waits for a worker goes on when that one's pipeline goes",
          "[train]") {
  ParameterServer const server({.workers = 2, .on_failure = OnFailure::go_on});
  auto a = stepping(sg::staleness::StaleSynchronous{1}, server, 0, sgd);
  auto gone =
      std::make_unique<decltype(stepping(sg::staleness::StaleSynchronous{1}, server, 1, sgd))>(
          stepping(sg::staleness::StaleSynchronous{1}, server, 1, sgd));
  auto const batch = data(2);
  static_cast<void>(run(gone->step(batch)));
  std::atomic<int> ended{0};
  std::thread thread([&] {
    for (int step = 0; step < 10; ++step) {
      static_cast<void>(run(a.step(batch)));
      ++ended;
    }
  });
  while (ended.load() < 1) std::this_thread::yield();
  gone = nullptr;
  thread.join();
  CHECK(ended.load() == 10);
}

namespace {

/// Refuses an empty target before the step begins.
struct Picky : Loss {
  double terms(Target const& target) const {
    if (target.size() == 0) throw std::runtime_error("nothing to learn");
    return Loss::terms(target);
  }
};
/// Begins later than others, and notes the error with which its worker ends.
class Ends final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  void begin() override {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    Forwarding::begin();
    begun.store(true);
  }
  void end(std::exception_ptr why) noexcept override {
    try {
      if (why) std::rethrow_exception(why);
    } catch (sg::Error const& error) {
      code = error.code();
    } catch (...) {
      code = {};
    }
    Forwarding::end(why);
  }
  std::optional<sg::Errc> code{};
  std::atomic<bool> begun{false};
};

}  // namespace

TEST_CASE("train/OnFailure: the others hear of a step that cannot begin, also after a failed one",
          "[train]") {
  ParameterServer const server({.workers = 2});
  Fragile last(3);
  auto const made = [&](std::shared_ptr<sg::detail::ParameterLink> link, Fragile const& end) {
    return sg::Pipeline{sg::Sequential{Layer(0), Layer(1), Layer(2), end}}.with(
        sg::staleness::Synchronous{}, Through{std::move(link)}.worker(0), Picky{}, sgd,
        sg::host::Threads{1}, sg::Options{.deadline_s = 3});
  };
  auto const ends = std::make_shared<Ends>(server.worker(1).link());
  auto a = made(server.worker(0).link(), last);
  auto b = made(ends, Fragile(3));
  auto const good = data(2);
  auto without = good;
  without.targets[1] = {};
  auto const step = [&](Batch const& of_a) {
    sg::run_together(std::vector<sg::Steps>{a.step(of_a), b.step(good)});
  };
  for (bool const fails : {false, true, true, true, true}) {
    step(good);
    last.fails->store(true);
    if (fails) REQUIRE_THROWS_WITH(step(good), "out of ink");
    last.fails->store(false);
    REQUIRE_THROWS_WITH(step(without), "nothing to learn");
    REQUIRE(ends->code == sg::Errc::peer_failed);  // it has not waited until its deadline
  }
  // Likewise where the other worker is not one of the same run.
  last.fails->store(true);
  REQUIRE_THROWS_WITH(step(good), "out of ink");
  last.fails->store(false);
  ends->begun.store(false);
  std::thread apart([&] {
    try {
      sg::run(b.step(good));
    } catch (sg::Error const&) {  // as `ends` notes
    }
  });
  while (!ends->begun.load()) std::this_thread::yield();
  CHECK_THROWS_WITH(sg::run_together(std::vector<sg::Steps>{a.step(without)}), "nothing to learn");
  apart.join();
  CHECK(ends->code == sg::Errc::peer_failed);
  step(good);
  CHECK(weights(a) == weights(b));
}

namespace {

/// What two workers wait for, of whom one begins a stream when that of the other has failed.
struct Turns {
  std::atomic<bool> fallen{false};
  std::atomic<bool> pushed{true};  // by the one that begins; false: the other waits for that
};
class Falls final : public Forwarding {
 public:
  Falls(ParameterServer const& server, Turns& turns)
      : Forwarding(server.worker(0).link()), turns_(turns) {}
  void end(std::exception_ptr why) noexcept override {
    Forwarding::end(why);
    if (!why) return;
    turns_.fallen.store(true);
    while (!turns_.pushed.load()) std::this_thread::yield();
  }

 private:
  Turns& turns_;
};
class BeginsLater final : public Forwarding {
 public:
  BeginsLater(ParameterServer const& server, Turns& turns, int stream)
      : Forwarding(server.worker(1).link()), turns_(turns), stream_(stream) {}
  void begin() override {
    bool const waits = ++streams_ == stream_;
    while (waits && !turns_.fallen.load()) std::this_thread::yield();
    Forwarding::begin();
  }
  void push(std::size_t l, std::byte const* values, bool last, Bytes part) override {
    if (turns_.fallen.load()) turns_.pushed.store(true);
    Forwarding::push(l, values, last, part);
  }

 private:
  Turns& turns_;
  int stream_;
  int streams_ = 0;
};

}  // namespace

TEST_CASE("train/OnFailure: who begins after another worker has failed does not wait for it",
          "[train]") {
  struct Case {
    int stream;            // in which worker 0 fails
    bool throws;           // its function throws instead of giving that stream
    bool unknown = false;  // nobody but the server knows of that when worker 1 begins
  };
  auto const batch = data(4);
  for (Case const& fails : {Case{1, false}, Case{1, false, true}, Case{2, false}, Case{2, true}}) {
    CAPTURE(fails.stream, fails.throws, fails.unknown);
    ParameterServer const server({.workers = 2});
    Turns turns;
    turns.pushed.store(!fails.unknown);
    auto const first = std::make_shared<Falls>(server, turns);
    auto const second = std::make_shared<BeginsLater>(server, turns, fails.stream);
    Fragile last(3);
    auto const made = [&](std::shared_ptr<sg::detail::ParameterLink> link, Fragile const& end) {
      return sg::Pipeline{sg::Sequential{Layer(0), Layer(1), Layer(2), end}}.with(
          sg::schedule::Fifo{2}, sg::staleness::WaveSynchronous{.in_flight = 2, .distance = 0},
          Through{std::move(link)}.worker(0), Loss{}, sgd, sg::host::Threads{1},
          sg::Options{.deadline_s = 20});
    };
    auto a = made(first, last);
    auto b = made(second, Fragile(3));
    int of_a = 0;
    std::atomic<int> of_b{0};
    auto const steps = [&](sg::Metrics const* before) -> std::optional<sg::Step> {
      bool const now = ++of_a == fails.stream;
      while (before != nullptr && of_b.load() < of_a) std::this_thread::yield();
      if (now && fails.throws) throw std::runtime_error("out of ink");
      last.fails->store(now);
      return a.stream(batch);
    };
    auto const begun = std::chrono::steady_clock::now();
    REQUIRE_THROWS_WITH(sg::run_together(std::vector<sg::Steps>{
                            sg::Steps(steps), sg::Steps([&](sg::Metrics const*) {
                              ++of_b;
                              return std::optional(b.stream(batch));
                            })}),
                        "out of ink");
    CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(15));
    CHECK(of_b.load() == fails.stream);
    last.fails->store(false);
    sg::run_together(a.stream(batch), b.stream(batch));
    CHECK(weights(a) == weights(b));
  }
}

TEST_CASE("train/OnFailure: a stream that fails while it begins ends, so that the next one begins",
          "[train]") {
  auto const batch = data(6);
  Waves const waves{1, 2, 0};
  ParameterServer const sound({.workers = 1});
  auto expected = make(waves, sound, 0, {2}, 2, sgd);
  static_cast<void>(run(expected.stream(batch)));
  for (bool const reading : {false, true}) {
    CAPTURE(reading);
    ParameterServer const server({.workers = 1});
    auto train = make(waves, Through{std::make_shared<LostOnce>(server, reading)}, 0, {2}, 2, sgd);
    REQUIRE_THROWS_WITH(run(train.stream(batch)), "the link is lost");
    static_cast<void>(run(train.stream(batch)));
    CHECK(weights(train) == weights(expected));
  }
}

TEST_CASE("train/OnFailure: what is late in a stream that fails is not late in the next one",
          "[train]") {
  namespace osp = sg::staleness::overlapped;
  using Model = sg::staleness::OverlappedSynchronous<osp::GradientNorm, osp::FirstFit,
                                                     osp::ShareLate, osp::NoPrediction>;
  auto const batch = data(2);
  auto const trained = [&](auto const& through) {
    Fragile last(3);
    auto const fails = last.fails;
    auto train = sg::Pipeline{sg::Sequential{Layer(0), Layer(1), Layer(2), std::move(last)}}.with(
        sg::partition::Cuts{{2}}, Model{.budget = {0.3}}, through.worker(0), Loss{}, sgd,
        sg::host::Threads{2});
    for (int step = 0; step < 5; ++step) {
      fails->store(step == 2);
      if (step == 2)
        REQUIRE_THROWS_WITH(run(train.step(batch)), "out of ink");
      else
        static_cast<void>(run(train.step(batch)));
    }
    return weights(train);
  };
  ParameterServer const plain({.workers = 1});
  ParameterServer const server({.workers = 1});
  CHECK(trained(Through{std::make_shared<ToldInTheEnd>(server.worker(0).link())}) ==
        trained(plain));
}

}  // namespace failing_workers_test
