// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/play_workers.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/proof/verify.hpp>
#include <stagger/staleness/wave_synchronous.hpp>

namespace play_workers_test {

namespace schedule = stagger::schedule;
using schedule::Action;
using schedule::Fifo;
using schedule::Kind;
using schedule::Table;
using schedule::WaveWorker;
using stagger::staleness::WaveSynchronous;

namespace {

/// A staleness model that lets workers drift `looser` waves further apart in every other three
/// waves; then it needs several more of them at once.
struct Loosening {
  int in_flight = 1, distance = 0, looser = 0;
  [[nodiscard]] int minibatches() const { return in_flight; }
  [[nodiscard]] int needs(int m) const {
    int const waves = (m + 1) / in_flight - 1;
    return waves - distance - (waves / 3 % 2 == 0 ? 0 : looser);
  }
};

/// Workers in ticks. Each stage's changes travel on their own: `push` ticks to the server, `pull`
/// ticks back.
struct Slow {
  struct Worker {
    std::vector<int> forward{}, backward{}, transfer{};  // [stages], behind each
  };
  std::vector<Worker> workers{};
  int in_flight = 1, distance = 0, minibatches = 1, push = 0, pull = 0;
  int looser = 0;  // as Loosening
  int jitter = 0;  // percent
  unsigned seed = 1;

  struct Result {
    std::vector<std::vector<std::vector<Action>>> rows{};  // [workers][stages]
    int end = 0;
    double waiting = 0, idle = 0;  // of all workers
  };

  [[nodiscard]] int needs(int m) const {
    int const waves = (m + 1) / in_flight - 1;
    int most = 0;
    for (int w = waves - (looser == 0 ? 0 : looser + 3); w <= waves; ++w)
      most = std::max(most, w - distance - (w % 6 < 3 ? 0 : looser));
    return most;
  }
  /// What a stage asks for when it takes what a minibatch needs; 0: nothing.
  [[nodiscard]] std::size_t needs_after(int rounds) const {
    for (int m = 0; m < minibatches; ++m)
      if (needs(m) > rounds) return static_cast<std::size_t>(needs(m));
    return 0;
  }

  /// Tick by tick. @param orders  [workers]; none: what is ready first
  [[nodiscard]] Result run(std::vector<Table> const& orders = {}) const {
    struct Stage {
      std::vector<int> f_ready{}, b_ready{};  // [minibatches] -1: not yet
      int f = 0, b = 0;                       // begun
      std::vector<int> asked{};               // [rounds] when for each; -1: not yet
      int entered = 0;                        // with their input, and open gates
      int until = 0;                          // busy
      std::size_t next = 0;                   // in a given row
    };
    int const waves = (minibatches + in_flight - 1) / in_flight;
    std::mt19937 random(seed);
    std::vector<std::vector<Stage>> stages;
    // [workers][stages][waves] when a push of all layers is at the server; all stages alike, so that
    // a stage of one worker waits for the same stage of the others
    std::vector<std::vector<std::vector<int>>> at_server;
    Result result;
    for (auto const& worker : workers) {
      std::size_t const count = worker.forward.size();
      stages.emplace_back(count);
      at_server.emplace_back(count, std::vector<int>(static_cast<std::size_t>(waves), -1));
      result.rows.emplace_back(count);
      for (Stage& stage : stages.back()) {
        stage.asked.assign(static_cast<std::size_t>(waves) + 2, -1);
        stage.asked[needs_after(0)] = 0;
        stage.f_ready = stage.b_ready = std::vector<int>(static_cast<std::size_t>(minibatches), -1);
      }
      for (int m = 0; m < std::min(in_flight, minibatches); ++m)
        stages.back()[0].f_ready[static_cast<std::size_t>(m)] = 0;
    }
    auto const arrives = [&](std::size_t w, std::size_t s, int rounds) {  // -1: not known yet
      if (rounds == 0) return 0;
      int leaves = stages[w][s].asked[static_cast<std::size_t>(rounds)];
      if (leaves < 0) return -1;
      for (auto const& server : at_server)
        for (int r = 0; r < rounds; ++r) {
          int const at = server[s][static_cast<std::size_t>(r)];
          if (at < 0) return -1;
          leaves = std::max(leaves, at);
        }
      return leaves + pull;
    };
    int open = 0;
    for (auto const& worker : workers)
      open += 2 * minibatches * static_cast<int>(worker.forward.size());
    for (int now = 0; open != 0; ++now)
      for (std::size_t w = 0; w < workers.size(); ++w) {
        bool busy = false, waits = false;
        for (std::size_t s = 0; s < stages[w].size(); ++s) {
          Stage& stage = stages[w][s];
          while (stage.until <= now) {
            bool const last = s + 1 == stages[w].size();
            int best = -1, best_ready = 0;
            bool best_forward = false;
            auto const offer = [&](bool forward, int m, int ready) {
              if (ready < 0 || ready > now || (best >= 0 && ready >= best_ready)) return;
              best = m, best_ready = ready, best_forward = forward;
            };
            auto const forward_ready = [&](int m) {
              int const input = stage.f_ready[static_cast<std::size_t>(m)];
              int const gate = arrives(w, s, needs(m));
              return input < 0 || gate < 0 ? -1 : std::max(input, gate);
            };
            if (orders.empty()) {
              if (stage.b < minibatches)
                offer(false, stage.b,
                      last && stage.f > stage.b ? 0
                                                : stage.b_ready[static_cast<std::size_t>(stage.b)]);
              if (stage.f < minibatches && !(last && stage.f > stage.b))
                offer(true, stage.f, forward_ready(stage.f));
            } else if (stage.next < orders[w].row(static_cast<int>(s)).size()) {
              Action const& a = orders[w].row(static_cast<int>(s))[stage.next];
              bool const forward = a.kind == Kind::forward;
              offer(forward, a.microbatch,
                    forward ? forward_ready(a.microbatch)
                            : stage.b_ready[static_cast<std::size_t>(a.microbatch)]);
            }
            if (best < 0) break;
            ++stage.next;
            --open;
            auto const m = static_cast<std::size_t>(best);
            int cost = (best_forward ? workers[w].forward : workers[w].backward)[s];
            if (jitter != 0)
              cost = cost *
                     (100 - jitter +
                      static_cast<int>(random() % (2U * static_cast<unsigned>(jitter) + 1))) /
                     100;
            stage.until = now + cost;
            result.rows[w][s].push_back({.kind = best_forward ? Kind::forward : Kind::backward,
                                         .stage = static_cast<int>(s),
                                         .microbatch = best});
            if (best_forward) {
              ++stage.f;
              if (best > 0 && needs(best) > needs(best - 1))
                stage.asked[needs_after(needs(best))] = now;  // the next one, when one is taken
              if (last)
                stage.b_ready[m] = stage.until;
              else
                stages[w][s + 1].f_ready[m] = stage.until + workers[w].transfer[s];
              continue;
            }
            ++stage.b;
            if (s > 0)
              stages[w][s - 1].b_ready[m] = stage.until + workers[w].transfer[s - 1];
            else if (best + in_flight < minibatches)
              stages[w][0].f_ready[m + static_cast<std::size_t>(in_flight)] = stage.until;
            if ((best + 1) % in_flight == 0 || best + 1 == minibatches) {
              at_server[w][s][m / static_cast<std::size_t>(in_flight)] = stage.until + push;
              result.end = std::max(result.end, stage.until + push + pull);
            }
          }
          busy = busy || stage.until > now;
        }
        for (std::size_t s = 0; s < stages[w].size(); ++s)
          for (int& m = stages[w][s].entered; m < minibatches; ++m) {
            int const input = stages[w][s].f_ready[static_cast<std::size_t>(m)];
            int const gate = arrives(w, s, needs(m));
            if (input < 0 || input > now) break;
            if (gate >= 0 && gate <= now) continue;
            waits = true;
            break;
          }
        result.waiting += waits ? 1 : 0;
        result.idle += waits && !busy ? 1 : 0;
      }
    return result;
  }
};

std::vector<int> quarters(std::size_t stages) {
  std::vector<int> cuts;
  for (std::size_t s = 1; s < stages; ++s) cuts.push_back(static_cast<int>(s));
  return cuts;
}

/// The same for the library, a layer for each stage.
WaveWorker worker_of(Slow::Worker const& slow) {
  WaveWorker worker{.cuts = quarters(slow.forward.size())};
  for (std::size_t s = 0; s < slow.forward.size(); ++s)
    worker.costs.stages.push_back({.forward_s = static_cast<double>(slow.forward[s]),
                                   .backward_input_s = static_cast<double>(slow.backward[s]),
                                   .backward_weight_s = 0,
                                   .transfer_s = static_cast<double>(slow.transfer[s])});
  return worker;
}

/// Its link: pushes and answers do not hinder each other, and take as long.
schedule::WaveServer server_of(Slow const& slow) {
  return {.in_flight = slow.in_flight,
          .model = Loosening{slow.in_flight, slow.distance, slow.looser},
          .layer_bytes = std::vector<std::uint64_t>(slow.workers[0].forward.size(), 0),
          .links = {{.latency_s = static_cast<double>(slow.push)}}};
}

std::vector<Action> actions(std::span<schedule::Span const> row) {
  std::vector<Action> all;
  for (auto const& span : row) all.push_back(span.action);
  return all;
}

/// The orders of all workers: made for the gate, or without it.
std::vector<Table> orders_of(Slow const& slow, bool gated) {
  std::vector<Table> orders;
  auto const server = server_of(slow);
  for (std::size_t w = 0; w < slow.workers.size(); ++w) {
    WaveWorker const own = worker_of(slow.workers[w]);
    Fifo fifo{.in_flight = slow.in_flight, .costs = own.costs};
    if (gated) {
      fifo.gate = {.model = server.model,
                   .links = server.links,
                   .layer_bytes = server.layer_bytes,
                   .cuts = own.cuts};
      for (std::size_t other = 0; other < slow.workers.size(); ++other)
        if (other != w) fifo.gate.others.push_back(worker_of(slow.workers[other]));
    }
    orders.push_back(fifo.table({own.stages(), slow.minibatches}));
    REQUIRE_FALSE(verify(orders.back()));
  }
  return orders;
}

/// HetPipe's four equal workers: 42 ticks for a minibatch in a stage, 63 for a push or an answer.
Slow hetpipe() {
  Slow slow;
  Slow::Worker const one{{14, 14, 14, 14}, {28, 28, 28, 28}, {0, 0, 0, 0}};
  slow.workers.assign(4, one);
  slow.in_flight = 5, slow.minibatches = 400, slow.push = slow.pull = 63;
  return slow;
}

}  // namespace

TEST_CASE("schedule/play_workers: HetPipe's example loses nothing in the order of a play",
          "[schedule]") {
  Slow const slow = hetpipe();
  auto const server = server_of(slow);
  std::vector<WaveWorker> const workers(4, worker_of(slow.workers[0]));
  auto const played = schedule::play_workers(workers, server, slow.minibatches);
  auto const ready = slow.run();
  auto const gated = slow.run(orders_of(slow, true));
  auto const plain = slow.run(orders_of(slow, false));
  for (auto const& worker : played) {
    CHECK(worker.end_s == ready.end);
    CHECK(4 * worker.waiting_s == ready.waiting);
    CHECK(4 * worker.idle_waiting_s == ready.idle);
  }
  // Behind the last minibatch there are a push and an answer, which last 3 of its units.
  CHECK((ready.end - 126) / 42.0 == Approx(561));
  CHECK(ready.idle / ready.waiting == Approx(0).margin(0.005));
  CHECK((gated.end - 126) / 42.0 == Approx(561));
  CHECK(gated.idle / gated.waiting == Approx(0).margin(0.005));
  CHECK((plain.end - 126) / 42.0 == Approx(639).margin(1));
  CHECK(plain.idle / plain.waiting == Approx(0.66).margin(0.01));
}

TEST_CASE("schedule/play_workers: with jitter, the order of a play still loses little",
          "[schedule]") {
  Slow slow = hetpipe();
  auto const gated = orders_of(slow, true);
  auto const plain = orders_of(slow, false);
  slow.jitter = 20;
  double end = 0, waiting = 0, idle = 0, plain_end = 0;
  for (slow.seed = 1; slow.seed <= 5; ++slow.seed) {
    auto const ran = slow.run(gated);
    end += (ran.end - 126) / 42.0 / 5;
    waiting += ran.waiting;
    idle += ran.idle;
    plain_end += (slow.run(plain).end - 126) / 42.0 / 5;
  }
  CAPTURE(end, idle / waiting, plain_end);
  CHECK(end <= 600);
  CHECK(idle / waiting <= 0.06);
  CHECK(plain_end >= 1.08 * end);
}

TEST_CASE(
    "schedule/play_workers: unequal workers run in the order of a simulation tick by tick, never "
    "later "
    "than without the gate",
    "[schedule]") {
  std::mt19937 random(3);
  auto const below = [&](unsigned end) { return static_cast<int>(random() % end); };
  int earlier = 0;
  for (int i = 0; i < 300; ++i) {
    Slow slow;
    std::size_t const stages = 1 + static_cast<std::size_t>(below(4));
    slow.workers.resize(1 + static_cast<std::size_t>(below(4)));
    bool const balanced = i % 2 == 0;  // as workers are whose planner has cut them well
    for (auto& worker : slow.workers) {
      int const forward = 3 + below(20);
      for (std::size_t s = 0; s < stages; ++s) {
        worker.forward.push_back(balanced ? forward : 3 + below(40));
        worker.backward.push_back(balanced ? 2 * forward : 3 + below(40));
        worker.transfer.push_back(s + 1 < stages ? below(8) : 0);
      }
    }
    slow.in_flight = 1 + below(5);
    slow.distance = below(3);
    slow.looser = i < 200 ? 0 : 1 + below(3);
    slow.minibatches = 1 + below(40);
    slow.push = slow.pull = below(80);
    CAPTURE(i, stages, slow.workers.size(), slow.in_flight, slow.distance, slow.looser,
            slow.minibatches, slow.push);
    std::vector<WaveWorker> workers;
    for (auto const& worker : slow.workers) workers.push_back(worker_of(worker));
    auto const played = schedule::play_workers(workers, server_of(slow), slow.minibatches);
    auto const ready = slow.run();
    double end = 0, waiting = 0, idle = 0;
    for (std::size_t w = 0; w < workers.size(); ++w) {
      for (std::size_t s = 0; s < stages; ++s)
        REQUIRE(actions(played[w].timeline.row(s)) == ready.rows[w][s]);
      end = std::max(end, played[w].end_s);
      waiting += played[w].waiting_s;
      idle += played[w].idle_waiting_s;
    }
    REQUIRE(end == ready.end);
    REQUIRE(waiting == ready.waiting);
    REQUIRE(idle == ready.idle);
    auto const gated = slow.run(orders_of(slow, true));
    auto const plain = slow.run(orders_of(slow, false));
    REQUIRE(gated.end == ready.end);
    if (!balanced || slow.looser != 0) continue;
    REQUIRE(gated.end <= 1.01 * plain.end);
    if (gated.end < plain.end) ++earlier;
  }
  CHECK(earlier >= 10);
}

TEST_CASE("schedule/WaveModel: is a copy of a staleness model, also in constant expressions",
          "[schedule]") {
  constexpr auto copied = [] {
    schedule::WaveModel first = WaveSynchronous{2, 1};
    schedule::WaveModel const second = first;
    first = {};
    return !first && second && second.minibatches() == 2 && second.needs(5) == 1;
  };
  static_assert(copied());
  CHECK(copied());
}

TEST_CASE("schedule/play_workers: refuses what no workers can be", "[schedule]") {
  schedule::WaveServer const server{
      .model = WaveSynchronous{1}, .layer_bytes = {1, 1}, .links = {{}}};
  auto const play = [&](WaveWorker const& worker, schedule::WaveServer const& with) {
    return schedule::play_workers(std::vector<WaveWorker>{worker}, with, 4);
  };
  REQUIRE_THROWS_WITH(play({.cuts = {2}}, server),
                      Catch::Contains("worker 0 is cut in front of layer 2"));
  REQUIRE_THROWS_WITH(play({.cuts = {0}}, server), Catch::Contains("in front of layer 0"));
  REQUIRE_THROWS_WITH(play({.layer_links = {0}}, server), Catch::Contains("links for 1 layers"));
  REQUIRE_THROWS_WITH(play({.layer_links = {0, 1}}, server), Catch::Contains("takes link 1 of 1"));
  REQUIRE_THROWS_WITH(play({}, {.in_flight = 0, .layer_bytes = {1}}), Catch::Contains("0"));
  REQUIRE_THROWS_WITH(play({}, {.layer_bytes = {1}}), Catch::Contains("WaveServer::model"));
  REQUIRE_THROWS_WITH(play({}, {.model = WaveSynchronous{1}}),
                      Catch::Contains("no layer is given"));
  REQUIRE_THROWS_WITH(play({}, {.model = WaveSynchronous{0}, .layer_bytes = {1}}),
                      Catch::Contains("a wave of 0 minibatches cannot be pushed"));
  REQUIRE_THROWS_WITH(play({}, {.model = WaveSynchronous{2, -1}, .layer_bytes = {1}}),
                      Catch::Contains("a worker cannot be -1 waves ahead"));
  REQUIRE_THROWS_WITH(schedule::play_workers({}, server, 4), Catch::Contains("no worker"));
  REQUIRE_THROWS_WITH(
      (Fifo{.gate = {.model = WaveSynchronous{1}, .layer_bytes = {1, 1, 1}, .cuts = {1}}}.table(
          {3, 4})),
      Catch::Contains("WaveGate::cuts make 2 stages"));
}

}  // namespace play_workers_test
