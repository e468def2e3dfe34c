// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The exchange of waves for which forward passes of workers wait: pushes, rounds and
///         answers, over links that they share.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/grid.hpp>
#include <stagger/schedule/detail/greedy.hpp>
#include <stagger/schedule/intervals.hpp>
#include <stagger/schedule/links.hpp>
#include <stagger/schedule/timeline.hpp>
#include <stagger/schedule/wave_workers.hpp>

namespace stagger::schedule {

/// One worker of a play. Times are seconds since all began.
struct PlayedWorker {
  Timeline timeline{};   ///< a row for each stage, forwards and backwards in the order they ran
  double end_s = 0;      ///< when it has everything that all have pushed
  double waiting_s = 0;  ///< that minibatches which could enter waited for other workers' waves
  double idle_waiting_s = 0;  ///< the part of it in which none of the worker's stages did anything
};

namespace detail {

/// A gate of `greedy_rows`, whose ranks are the stages of all workers, one worker after the other.
class WaveExchange {
 public:
  /// @pre the arguments have been checked
  /// @throws Error  bad_configuration for a model that needs pushes which are not made before
  WaveExchange(std::span<WaveWorker const> workers, WaveServer const& server, int minibatches)
      : server_(server),
        minibatches_(minibatches),
        layers_(static_cast<int>(server.layer_bytes.size())),
        needs_(needs_of(server.model, minibatches)),
        pushed_(layers_, workers.size(), 0),
        asked_(layers_, workers.size(), 0),
        layer_links_(layers_, workers.size(), server.links.empty() ? -1 : 0),
        played_(workers.size()),
        waits_(workers.size()) {
    for (Links const& links : server.links) links_.emplace_back(links);
    for (std::size_t w = 0; w < workers.size(); ++w) {
      first_rank_.push_back(static_cast<int>(stages_.size()));
      for (int s = 0; s < workers[w].stages(); ++s) {
        auto const& cuts = workers[w].cuts;
        std::size_t const stage = at(s);
        stages_.push_back({.worker = static_cast<int>(w),
                           .first = s == 0 ? 0 : cuts[stage - 1],
                           .last = stage < cuts.size() ? cuts[stage] : layers_});
      }
      for (std::size_t l = 0; l < workers[w].layer_links.size(); ++l)
        layer_links_(l, w) = workers[w].layer_links[l];
      played_[w].timeline.rows.resize(at(workers[w].stages()));
    }
    for (WorkerStage& stage : stages_) ask(stage);
  }

  [[nodiscard]] double opens(StagePart const& part, int n, double input_s) const {
    int const rounds = needs_[at(n)];
    WorkerStage const& stage = stages_[at(part.rank)];
    if (rounds == stage.taken || input_s < 0) return input_s;
    return stage.rounds < rounds ? -1 : std::max(input_s, stage.arrived_s);
  }

  void ran(StagePart const& part, Kind kind, int n, double start_s, double end_s) {
    WorkerStage& stage = stages_[at(part.rank)];
    PlayedWorker& played = played_[at(stage.worker)];
    played.timeline.rows[at(part.stage)].push_back(
        {{.kind = kind, .stage = part.stage, .microbatch = n}, start_s, end_s, false});
    if (kind == Kind::forward) {
      int const rounds = needs_[at(n)];
      if (rounds == stage.taken) return;
      if (stage.arrived_s > part.forward_at[n])
        waits_[at(stage.worker)].emplace_back(part.forward_at[n], stage.arrived_s);
      stage.taken = rounds;
      now_s_ = start_s;
      ask(stage);
    } else if ((n + 1) % server_.model.minibatches() == 0 || n + 1 == minibatches_) {
      stage.push_s = end_s;
      next_s_ = std::min(next_s_, end_s);
    }
  }

  [[nodiscard]] double next_s() const noexcept { return next_s_; }

  /// Carries out the next event.
  /// @param wake  is called with the ranks for which a gate has opened
  template <class Wake> void advance(double now_s, Wake const& wake) {
    now_s_ = now_s;
    do {
      for (WorkerStage& stage : stages_)
        if (stage.push_s <= now_s) push(stage);
      for (Transfers& link : links_) {
        link.advance(now_s);
        for (std::uint32_t number = 0; link.arrived(number);) arrive(number);
      }
      next_s_ = never;
      for (WorkerStage const& stage : stages_) next_s_ = std::min(next_s_, stage.push_s);
      for (Transfers const& link : links_) next_s_ = std::min(next_s_, link.next_s());
    } while (next_s_ <= now_s);
    for (int const rank : opened_) wake(rank);
    opened_.clear();
  }

  [[nodiscard]] std::vector<PlayedWorker> take() && {
    for (std::size_t w = 0; w < played_.size(); ++w) measure(played_[w], waits_[w]);
    return std::move(played_);
  }
  [[nodiscard]] int first_rank(std::size_t worker) const { return first_rank_[worker]; }
  [[nodiscard]] int ranks() const { return static_cast<int>(stages_.size()); }

 private:
  static constexpr double never = std::numeric_limits<double>::infinity();
  static constexpr int everything = std::numeric_limits<int>::max();  // rounds

  /// A stage of a worker.
  struct WorkerStage {
    int worker = 0;
    int first = 0, last = 0;  // layers first <= l < last
    double push_s = never;    // when it pushes next
    int taken = 0;            // rounds that its minibatches see
    int rounds = 0;           // that have arrived
    double arrived_s = 0;     // when they came
    int asks = 0;             // rounds that it has asked for
    int missing = 0;          // layers of those
  };

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  /// [minibatches] rounds that each needs: at least those of the one before.
  static std::vector<int> needs_of(WaveModel const& model, int minibatches) {
    std::vector<int> needs;
    for (int m = 0; m < minibatches; ++m) {
      needs.push_back(std::max(m == 0 ? 0 : needs.back(), model.needs(m)));
      if (needs.back() > m / model.minibatches())
        raise(Errc::bad_configuration, "the staleness model needs ", counted(needs.back(), "push"),
              " of every worker at minibatch ", m, ", before which a worker makes ",
              m / model.minibatches(), "; let it need no more than those");
    }
    return needs;
  }

  /// Asks for the rounds that some later minibatch needs next or, if none needs more, for the
  /// weights with all pushes.
  void ask(WorkerStage& stage) {
    if (stage.asks == everything) return;
    auto const next = std::upper_bound(needs_.begin(), needs_.end(), stage.asks);
    stage.asks = next == needs_.end() ? everything : *next;
    stage.missing = stage.last - stage.first;
    for (int l = stage.first; l < stage.last; ++l) {
      asked_(l, stage.worker) = stage.asks;
      answer(l, stage.worker);
    }
  }
  /// Sends the requested weights of a layer, if they are there.
  void answer(int layer, int worker) {
    int& asked = asked_(layer, worker);
    if (asked == 0) return;
    int const all = (minibatches_ - 1) / server_.model.minibatches() + 1;
    for (std::size_t w = 0; w < played_.size(); ++w)
      if (pushed_(layer, w) < std::min(asked, all)) return;
    asked = 0;
    send(layer, worker, Direction::pull);
  }

  void push(WorkerStage& stage) {
    stage.push_s = never;
    for (int l = stage.first; l < stage.last; ++l) send(l, stage.worker, Direction::push);
  }
  void send(int layer, int worker, Direction direction) {
    auto const number = static_cast<std::uint32_t>((worker * layers_ + layer) * 2 +
                                                   (direction == Direction::push ? 0 : 1));
    int const link = layer_links_(layer, worker);
    if (link < 0) return arrive(number);
    links_[at(link)].start(now_s_, server_.layer_bytes[at(layer)], direction, number);
    next_s_ = std::min(next_s_, links_[at(link)].next_s());
  }
  void arrive(std::uint32_t number) {
    int const layer = static_cast<int>(number / 2) % layers_;
    int const worker = static_cast<int>(number / 2) / layers_;
    if (number % 2 == 0) {
      ++pushed_(layer, worker);
      for (int w = 0; at(w) < played_.size(); ++w) answer(layer, w);
      return;
    }
    int rank = first_rank_[at(worker)];
    while (stages_[at(rank)].last <= layer) ++rank;
    WorkerStage& stage = stages_[at(rank)];
    if (--stage.missing != 0) return;
    stage.rounds = stage.asks;
    stage.arrived_s = now_s_;
    opened_.push_back(rank);
    PlayedWorker& played = played_[at(worker)];
    played.end_s = std::max(played.end_s, now_s_);
  }

  static void measure(PlayedWorker& played, std::vector<Interval> const& waits) {
    std::vector<Interval> busy;
    for (auto const& row : played.timeline.rows)
      for (Span const& span : row) busy.emplace_back(span.start_s, span.end_s);
    busy = joined(std::move(busy));
    for (Interval const& wait : joined(waits)) {
      double const seconds = wait.second - wait.first;
      played.waiting_s += seconds;
      played.idle_waiting_s += seconds - covered_s(wait, busy);
    }
  }

  WaveServer const& server_;
  int minibatches_;
  int layers_;
  std::vector<int> needs_;  // [minibatches] rounds, ascending
  Grid<int> pushed_;        // [layers][workers] pushes that have arrived
  Grid<int> asked_;         // [layers][workers] rounds that are not there; 0: none
  Grid<int> layer_links_;   // [layers][workers]
  std::vector<PlayedWorker> played_;
  std::vector<std::vector<Interval>> waits_;  // [workers]
  std::vector<WorkerStage> stages_{};         // [ranks]
  std::vector<int> first_rank_{};             // [workers]
  std::vector<Transfers> links_{};
  std::vector<int> opened_{};  // ranks
  double next_s_ = never;
  double now_s_ = 0;
};

}  // namespace detail
}  // namespace stagger::schedule
