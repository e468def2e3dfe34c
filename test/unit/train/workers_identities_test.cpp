// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/parameter_server.hpp>

#include "catch.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/engine/replicas.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "engine/small_model.hpp"
#include "plain_layers.hpp"
#include "workers_oracle.hpp"

namespace workers_identities_test {

namespace sg = stagger;

namespace {

namespace plain = plain_layers;
using sg::staleness::WaveSynchronous;

using workers_oracle::adam;
using workers_oracle::sgd;

/// Values of all parameters, byte by byte. The optimizer's state stands with the server.
template <class Trainer> std::vector<std::byte> values(Trainer& train) {
  std::vector<std::byte> all;
  for (auto const& state : train.parameters())
    all.insert(all.end(), state.value.begin(), state.value.end());
  return all;
}

/// The model that replicas are tested with, but for what is random by row.
auto rows_model() {
  using namespace small_model;
  return sg::Sequential{Embedding{}, Dense{}, Curve{}, Dense{5}, Curve{}, Dense{7}};
}

small_model::Batch rows_batch(int step, std::size_t rows) {
  small_model::Batch result;
  for (int m = 0; m < 3; ++m) {
    auto const seed = static_cast<std::uint64_t>(step * 100 + m);
    small_model::Tokens x({rows});
    small_model::Tokens t({rows});
    for (std::size_t r = 0; r < rows; ++r) {
      x[r] = static_cast<std::int32_t>(sg::random_bits(6, {seed, r}) % small_model::classes);
      t[r] = static_cast<std::int32_t>(sg::random_bits(7, {seed, r}) % small_model::width);
    }
    result.inputs.push_back(std::move(x));
    result.targets.push_back(std::move(t));
  }
  return result;
}

/// Part `n` of `of` of the rows of every microbatch.
small_model::Batch share_of(small_model::Batch const& whole, std::size_t n, std::size_t of) {
  auto const cut = [&](small_model::Tokens const& all) {
    small_model::Tokens part({all.size() / of});
    for (std::size_t r = 0; r < part.size(); ++r) part[r] = all[n * part.size() + r];
    return part;
  };
  small_model::Batch result;
  for (auto const& x : whole.inputs) result.inputs.push_back(cut(x));
  for (auto const& t : whole.targets) result.targets.push_back(cut(t));
  return result;
}

}  // namespace

TEST_CASE("train/ParameterServer: equal workers in step are replicas, bit for bit", "[train]") {
  for (int const count : {1, 2, 4}) {
    CAPTURE(count);
    auto const N = static_cast<std::size_t>(count);
    sg::Options options;
    if (count != 1) options.replicas = {count, count};
    auto replicated = sg::Pipeline{rows_model()}.with(sg::partition::Cuts{{3}}, small_model::Loss{},
                                                      adam, sg::host::Threads{2}, options);
    sg::collective::ParameterServer const server({.workers = count, .shards = 2});
    auto const make = [&](int n) {
      return sg::Pipeline{rows_model()}.with(sg::partition::Cuts{{3}}, sg::staleness::Synchronous{},
                                             server.worker(n), small_model::Loss{}, adam,
                                             sg::host::Threads{1});
    };
    std::vector<decltype(make(0))> workers;
    for (int n = 0; n < count; ++n) workers.push_back(make(n));
    for (int step = 0; step < 5; ++step) {
      CAPTURE(step);
      auto const batch = rows_batch(step, 8);
      static_cast<void>(run(replicated.step(batch)));
      std::vector<small_model::Batch> shares;
      for (std::size_t n = 0; n < N; ++n) shares.push_back(share_of(batch, n, N));
      std::vector<sg::Step> steps;
      for (std::size_t n = 0; n < N; ++n) steps.push_back(workers[n].step(shares[n]));
      static_cast<void>(sg::run_together(std::move(steps)));
      for (auto& worker : workers) REQUIRE(values(worker) == values(replicated));
    }
  }
}

TEST_CASE("train/StaleSynchronous: s steps that push changes are waves of one minibatch, D = s",
          "[train]") {
  using namespace workers_oracle;
  constexpr int count = 12;
  for (int const workers : {1, 2, 4})
    for (int const bound : {0, 1, 3}) {
      CAPTURE(workers, bound);
      auto const N = static_cast<std::size_t>(workers);
      sg::collective::ParameterServer const for_steps({.workers = workers});
      sg::collective::ParameterServer const for_waves({.workers = workers});
      auto const step = [&](int n) {
        return stepping(Stale{workers, bound}.model(), for_steps, n, adam, {1 + n % 3});
      };
      auto const wave = [&](int n) {
        return workers_oracle::make(Waves{workers, 1, bound}, for_waves, n, {2}, 2, adam);
      };
      std::vector<decltype(step(0))> stepped;
      std::vector<decltype(wave(0))> streamed;
      std::vector<Batch> all(N);
      std::vector<Batch> one(N);
      std::vector<sg::Steps> steps;
      std::vector<sg::Step> streams;
      for (int n = 0; n < workers; ++n) {
        stepped.push_back(step(n));
        streamed.push_back(wave(n));
        all[static_cast<std::size_t>(n)] = data(count, n);
      }
      for (std::size_t n = 0; n < N; ++n) {
        streams.push_back(streamed[n].stream(all[n]));
        steps.push_back([&, n, m = 0](sg::Metrics const*) mutable {
          if (m == count + bound) return std::optional<sg::Step>{};
          if (m == count) stepped[n].optimizer().rate = 0;  // the last weights take s steps to come
          auto const i = static_cast<std::size_t>(m++ % count);
          one[n].inputs = {all[n].inputs[i]};
          one[n].targets = {all[n].targets[i]};
          return std::optional(stepped[n].step(one[n]));
        });
      }
      sg::run_together(std::move(streams));
      sg::run_together(std::move(steps));
      for (std::size_t n = 0; n < N; ++n)
        REQUIRE(plain::weights(stepped[n]) == plain::weights(streamed[0]));
    }
}

TEST_CASE("train/StaleSynchronous: in order with a bound of 0 it is Synchronous", "[train]") {
  using namespace workers_oracle;
  sg::collective::ParameterServer const stale({.workers = 2});
  sg::collective::ParameterServer const in_step({.workers = 2});
  sg::staleness::StaleSynchronous const model{.adds = sg::staleness::Adds::in_worker_order};
  auto a = stepping(model, stale, 0, adam);
  auto b = stepping(model, stale, 1, adam);
  auto c = stepping(sg::staleness::Synchronous{}, in_step, 0, adam);
  auto d = stepping(sg::staleness::Synchronous{}, in_step, 1, adam);
  for (int step = 0; step < 6; ++step) {
    auto const one = data(2, step);
    auto const two = data(2, step + 10.0);
    sg::run_together(a.step(one), b.step(two));
    sg::run_together(c.step(one), d.step(two));
    REQUIRE(plain::weights(a) == plain::weights(c));
    REQUIRE(plain::weights(b) == plain::weights(c));
  }
}

TEST_CASE("train/RoundRobinSynchronous: one worker takes the steps of a pipeline without a server",
          "[train]") {
  using namespace workers_oracle;
  auto const compare = [](auto const& optimizer) {
    sg::collective::ParameterServer const server({.workers = 1});
    auto in_turn = stepping(sg::staleness::RoundRobinSynchronous{}, server, 0, optimizer);
    std::vector<Layer> stack;
    for (int l = 0; l < layers; ++l) stack.emplace_back(l);
    auto alone = sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
        sg::partition::Cuts{{1, 3}}, Loss{}, optimizer, sg::host::Threads{2});
    for (int step = 0; step < 6; ++step) {
      auto const batch = data(3, step);
      static_cast<void>(run(in_turn.step(batch)));
      static_cast<void>(run(alone.step(batch)));
      REQUIRE(plain::weights(in_turn) == plain::weights(alone));
    }
  };
  compare(sgd);
  compare(adam);
}

TEST_CASE("train/StaleSynchronous: a worker keeps as many changes as weights may lack", "[train]") {
  using namespace workers_oracle;
  auto const memory = [](int bound) {
    sg::collective::ParameterServer const server({.workers = 1});
    return stepping(Stale{1, bound}.model(), server, 0, sgd).memory().parameters;
  };
  std::uint64_t const copy = layers * 64;  // 12 weights in 64 bytes
  CHECK(memory(1) == memory(0));           // the change that is pushed is kept in any case
  CHECK(memory(4) == memory(1) + 3 * copy);
}

TEST_CASE("train/WaveSynchronous: one worker with one minibatch in flight is sequential descent",
          "[train]") {
  using namespace plain;
  constexpr std::size_t depth = 2;
  for (auto const adds : {sg::staleness::Adds::in_worker_order, sg::staleness::Adds::on_arrival})
    for (int const distance : {0, 3}) {
      sg::collective::ParameterServer const server({.workers = 1});
      auto train = sg::Pipeline{Layer{0}, Layer{1}}.with(
          sg::schedule::Fifo{.in_flight = 1},
          WaveSynchronous{.in_flight = 1, .distance = distance, .adds = adds}, server.worker(0),
          Loss{}, sgd, sg::host::Threads{2});
      auto const batch = data(9);
      static_cast<void>(run(train.stream(batch)));

      std::vector<Numbers> w{initial(0), initial(1)};
      std::vector<Numbers> velocity(depth, Numbers(w[0].size()));
      std::vector<Numbers> unused = velocity;
      for (std::size_t m = 0; m < batch.inputs.size(); ++m) {
        std::vector<Numbers> y{batch.inputs[m], {}, {}};
        for (std::size_t l = 0; l < depth; ++l) plain::forward(w[l], y[l], y[l + 1]);
        sg::Context context;
        Numbers dy, dx;
        Loss{}.value_and_gradient(context, y.back(), batch.targets[m], 1.0 / double{width}, dy);
        for (std::size_t l = depth; l-- > 0;) {
          Numbers gradient(w[l].size());
          Numbers change(w[l].size());
          plain::backward(w[l], y[l], y[l + 1], dy, dx, gradient.data());
          dy = dx;
          sg::OptimizerView<float> view;
          view.value = w[l].data();
          view.next = change.data();
          view.gradient = gradient.data();
          view.state = {velocity[l].data(), unused[l].data()};
          view.size = change.size();
          sgd.change(view, 1, static_cast<std::int64_t>(m) + 1);
          for (std::size_t i = 0; i < change.size(); ++i) w[l][i] += change[i];
        }
      }
      REQUIRE(plain::weights(train) == w);
    }
}

namespace {

/// How far two workers have come in their first layer.
class Course {
 public:
  struct Counts {
    int began[2] = {0, 0};  // forwards
    int ended[2] = {0, 0};  // backwards
  };
  template <class Change> void note(Change change) {
    {
      std::lock_guard const lock(mutex_);
      change(counts_);
    }
    changed_.notify_all();
  }
  /// @return whether it came to be; a test that waits in vain fails, and does not hang
  template <class Holds> bool await(Holds holds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return holds(counts_); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Counts counts_;
};

/// What is measured while two workers run, the second of which is held back.
struct Race {
  Course course;
  int Nm = 1;
  int D = 0;
  int count = 0;
  bool gate = true;
  int lead = 0;        // the most of: gates passed - clock of the slowest
  int ahead = 0;       // likewise: own clock - clock of the slowest
  bool stuck = false;  // the first worker did not come as far as it may

  /// The clock of worker 1, which is the slowest, is at least what it has pushed.
  void began(int worker, int m) {
    course.note([&](Course::Counts& counts) {
      ++counts.began[worker];
      if (worker == 0) lead = std::max(lead, (m + 1) / Nm - 1 - counts.ended[1] / Nm);
    });
  }
  void ended(int worker, int m) {
    if (worker == 1 && m % Nm == 0) hold(m / Nm);
    course.note([&](Course::Counts& counts) {
      ++counts.ended[worker];
      if (worker == 0) ahead = std::max(ahead, counts.ended[0] / Nm - counts.ended[1] / Nm);
    });
  }
  /// Holds worker 1 in its wave `clock` until worker 0 has come as far as it may: it has begun all
  /// minibatches that need no more than `clock` waves, and ended all that this lets it end.
  void hold(int clock) {
    int const begun = gate ? std::min(count, (clock + D + 2) * Nm - 1) : count;
    int const done = gate ? std::min(count, (clock + D + 1) * Nm) : begun;
    bool const came = course.await([&](Course::Counts const& counts) {
      return counts.began[0] >= begun && counts.ended[0] >= done;
    });
    stuck = stuck || !came;
  }
};

/// A layer that tells of what it runs.
struct Watched : plain::Layer {
  Race* race = nullptr;
  int worker = 0;
  Watched(Race* watched_by, int number) : Layer(0), race(watched_by), worker(number) {}
  void forward(sg::Context& context, Input const& x, Output& y, Saved& saved) {
    race->began(worker, static_cast<int>(context.microbatch()));
    Layer::forward(context, x, y, saved);
  }
  void backward(sg::Context& context, Input const& x, Output const& dy, Input& dx, Saved& saved) {
    Layer::backward(context, x, dy, dx, saved);
    race->ended(worker, static_cast<int>(context.microbatch()));
  }
};

/// Waves without a gate.
struct Ungated : WaveSynchronous {
  [[nodiscard]] constexpr int needs(int) const noexcept { return 0; }
};

template <class Model> void run_race(Race& race, Model const& model) {
  sg::collective::ParameterServer const server({.workers = 2});
  auto const make = [&](int n) {
    return sg::Pipeline{Watched(&race, n), plain::Layer{1}}.with(
        sg::schedule::Fifo{.in_flight = race.Nm}, model, server.worker(n), plain::Loss{}, sgd,
        sg::host::Threads{2});
  };
  auto fast = make(0);
  auto slow = make(1);
  auto const batch = plain::data(race.count);
  static_cast<void>(sg::run_together(fast.stream(batch), slow.stream(batch)));
  CHECK_FALSE(race.stuck);
  CHECK(plain::weights(fast) == plain::weights(slow));
}

}  // namespace

TEST_CASE("train/WaveSynchronous: the clock bounds hold and are attained while a worker is slow",
          "[train]") {
  for (int const Nm : {1, 2, 4, 5})
    for (int const D : {0, 1, 3})
      for (auto const adds :
           {sg::staleness::Adds::in_worker_order, sg::staleness::Adds::on_arrival}) {
        CAPTURE(Nm, D, static_cast<int>(adds));
        Race race;
        race.Nm = Nm;
        race.D = D;
        race.count = (D + 4) * Nm + 1;
        run_race(race, WaveSynchronous{.in_flight = Nm, .distance = D, .adds = adds});
        CHECK(race.lead == D);
        CHECK(race.ahead == D + 1);
      }
}

TEST_CASE("train/WaveSynchronous: without the gate, a slow worker is left behind", "[train]") {
  for (int const Nm : {1, 4}) {
    Race race;
    race.Nm = Nm;
    race.count = 6 * Nm;
    race.gate = false;
    run_race(race, Ungated{{.in_flight = Nm, .adds = sg::staleness::Adds::on_arrival}});
    CHECK(race.lead == 5);
    CHECK(race.ahead == 6);
  }
}

namespace {

/// A user's model whose weights lag several of its own pushes behind.
struct Lagging {
  using policy_tag = sg::StalenessTag;
  static constexpr bool synchronous = false;
  static constexpr auto pushes = sg::staleness::Pushes::changes;
  static constexpr auto adds = sg::staleness::Adds::in_worker_order;
  int lag = 5;
  [[nodiscard]] int microbatches() const { return 1; }
  [[nodiscard]] int minibatches() const { return 1; }
  [[nodiscard]] int version(int m, int) const { return std::max(0, m - lag); }
  [[nodiscard]] int needs(int m) const { return std::max(0, m - lag - 2); }
};

}  // namespace

TEST_CASE("train/ParameterServer: own pushes are kept for a model whose weights lag far behind",
          "[train]") {
  using namespace plain;
  sg::collective::ParameterServer const server({.workers = 1});
  auto train = sg::Pipeline{Layer{0}}.with(sg::schedule::Fifo{.in_flight = 1}, Lagging{},
                                           server.worker(0), Loss{}, sgd, sg::host::Threads{1});
  auto const batch = data(14);
  static_cast<void>(run(train.stream(batch)));
  // Of one worker, rounds and own pushes are the same: the weights after m - lag changes.
  std::vector<Numbers> after{initial(0)};
  Numbers velocity(after[0].size());
  Numbers unused(after[0].size());
  for (std::size_t m = 0; m < batch.inputs.size(); ++m) {
    Numbers const seen = after[m > 5 ? m - 5 : 0];
    Numbers y, dy, dx, gradient(seen.size()), change(seen.size());
    plain::forward(seen, batch.inputs[m], y);
    sg::Context context;
    Loss{}.value_and_gradient(context, y, batch.targets[m], 1.0 / double{width}, dy);
    plain::backward(seen, batch.inputs[m], y, dy, dx, gradient.data());
    sg::OptimizerView<float> view;
    Numbers value = seen;
    view.value = value.data();
    view.next = change.data();
    view.gradient = gradient.data();
    view.state = {velocity.data(), unused.data()};
    view.size = change.size();
    sgd.change(view, 1, static_cast<std::int64_t>(m) + 1);
    Numbers next = after.back();
    for (std::size_t i = 0; i < next.size(); ++i) next[i] += change[i];
    after.push_back(next);
  }
  REQUIRE(plain::weights(train) == std::vector<Numbers>{after.back()});
}

TEST_CASE("train/WaveSynchronous: a worker keeps at most Nm + D + 3 copies of its parameters",
          "[train]") {
  using namespace plain;
  auto const memory = [](int depth, WaveSynchronous const& model, int workers) {
    sg::collective::ParameterServer const server({.workers = workers});
    auto const make = [&](int n) {
      std::vector<Layer> stack;
      for (int l = 0; l < depth; ++l) stack.emplace_back(l);
      return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
          sg::partition::Cuts{{depth - 1}}, sg::schedule::Fifo{.in_flight = model.in_flight}, model,
          server.worker(n), Loss{}, sgd, sg::host::Threads{1});
    };
    std::vector<decltype(make(0))> trainers;
    std::vector<sg::Step> steps;
    auto const batch = data((model.distance + 4) * model.in_flight);
    for (int n = 0; n < workers; ++n) trainers.push_back(make(n));
    for (auto& train : trainers) steps.push_back(train.stream(batch));
    static_cast<void>(sg::run_together(std::move(steps)));
    for (auto const& train : trainers)
      REQUIRE(train.memory().parameters == trainers[0].memory().parameters);
    return trainers[0].memory().parameters;
  };
  auto const alone = [](int depth) {
    std::vector<Layer> stack;
    for (int l = 0; l < depth; ++l) stack.emplace_back(l);
    return sg::Pipeline{sg::Sequential{std::move(stack)}}
        .with(Loss{}, sgd, sg::host::Threads{1})
        .memory()
        .parameters;
  };
  auto const copy = (alone(8) - alone(4)) / 3;  // value, gradient and velocity
  REQUIRE(copy * 3 == alone(8) - alone(4));
  for (int const workers : {1, 2})
    for (auto const adds : {sg::staleness::Adds::in_worker_order, sg::staleness::Adds::on_arrival})
      for (int const Nm : {1, 2, 4, 5})
        for (int const D : {0, 1, 4}) {
          CAPTURE(workers, static_cast<int>(adds), Nm, D);
          WaveSynchronous const model{Nm, D, adds};
          auto const more = memory(8, model, workers) - memory(4, model, workers);
          REQUIRE(more % copy == 0);                              // of the first stage
          auto const copies = static_cast<int>(more / copy) - 2;  // but for gradient and velocity
          CHECK(copies <= Nm + D + 3);
          CHECK(copies >= Nm + D);  // versions and changes, and D waves
        }
}

}  // namespace workers_identities_test
