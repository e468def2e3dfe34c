// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The simulation of the workers of a parameter server together: pipelines with their own
///         costs, the links that they share, and the server's rounds.
/// @source Park et al., "HetPipe", USENIX ATC 2020, sections 4 and 5.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/grid.hpp>
#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/detail/greedy.hpp>
#include <stagger/schedule/intervals.hpp>
#include <stagger/schedule/legal.hpp>
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

/// Runs what became ready first; of several, a backward first, then the lower microbatch. A last
/// stage runs the backward after the forward.
struct ByReadiness {
  [[nodiscard]] constexpr auto operator()(Candidate const& c) const {
    bool const fused = c.kind == Kind::backward && c.part->last;
    return std::tuple(fused ? -1.0 : c.ready_s, c.kind == Kind::forward, c.microbatch);
  }
};

/// @throws Error  bad_configuration, bad_data for workers that do not fit the model or the links
inline void require_workers(std::span<WaveWorker const> workers, WaveServer const& server) {
  auto const layers = server.layer_bytes.size();
  auto const links = static_cast<int>(server.links.size());
  if (workers.empty()) raise(Errc::bad_configuration, "no worker is given; play at least one");
  require(server.in_flight >= 1, "workers", Count::in_flight, server.in_flight, 1,
          "at least one is injected");
  if (layers == 0)
    raise(Errc::bad_configuration,
          "no layer is given whose changes the workers push; let WaveServer::layer_bytes have a "
          "number for each");
  if (!server.model)
    raise(Errc::bad_configuration,
          "nothing says which pushes the workers wait for; let WaveServer::model be the staleness "
          "model by which they train");
  server.model.check();
  if (server.model.minibatches() < 1)
    raise(Errc::bad_configuration, "a push of ", server.model.minibatches(),
          " minibatches cannot be made; let minibatches() of the staleness model be at least 1");
  for (Links const& each : server.links) require_links(each);
  for (std::size_t w = 0; w < workers.size(); ++w) {
    WaveWorker const& worker = workers[w];
    require_costs(worker.costs, worker.stages());
    int before = 0;
    for (int const cut : worker.cuts)
      if (int const last = std::exchange(before, cut);
          cut <= last || std::cmp_greater_equal(cut, layers))
        raise(Errc::bad_configuration, "worker ", w, " is cut in front of layer ", cut,
              "; its cuts must rise from 1 to ", layers, " layers less one");
    if (!worker.layer_links.empty() && worker.layer_links.size() != layers)
      raise(Errc::bad_configuration, "worker ", w, " has links for ", worker.layer_links.size(),
            " layers, of which there are ", layers, "; give one for each, or none");
    for (int const link : worker.layer_links)
      if (link < -1 || link >= links)
        raise(Errc::bad_configuration, "worker ", w, " takes link ", link, " of ", links,
              "; links are numbered from 0, and -1 is none");
  }
}

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
      Timeline& timeline = played_[w].timeline;  // each stage runs 2 * minibatches actions
      for (int s = 0; s < workers[w].stages(); ++s) {
        auto const& cuts = workers[w].cuts;
        std::size_t const stage = at(s);
        stages_.push_back({.worker = static_cast<int>(w),
                           .first = s == 0 ? 0 : cuts[stage - 1],
                           .last = stage < cuts.size() ? cuts[stage] : layers_,
                           .next_span = timeline.spans.size()});
        timeline.begin_row();
        timeline.spans.resize(timeline.spans.size() + 2 * at(minibatches));
      }
      for (std::size_t l = 0; l < workers[w].layer_links.size(); ++l)
        layer_links_(l, w) = workers[w].layer_links[l];
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
    played_[at(stage.worker)].timeline.spans[stage.next_span++] = {
        {.kind = kind, .stage = part.stage, .microbatch = n}, start_s, end_s};
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
        if (stage.push_s <= now_s) {
          stage.push_s = never;
          for (int l = stage.first; l < stage.last; ++l) send(l, stage.worker, Direction::push);
        }
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
    int first = 0, last = 0;    // layers first <= l < last
    std::size_t next_span = 0;  // of the worker's timeline
    double push_s = never;      // when it pushes next
    int taken = 0;              // rounds that its minibatches see
    int rounds = 0;             // that have arrived
    double arrived_s = 0;       // when they came
    int asks = 0;               // rounds that it has asked for
    int missing = 0;            // layers of those
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
    for (Span const& span : played.timeline.spans) busy.emplace_back(span.start_s, span.end_s);
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

/// Simulates all workers. Each stage runs what is ready first, as Fifo does, and pushes each
/// layer's changes when it has run the last backward of a wave; a layer's round is added once the
/// pushes of all workers have arrived; a stage asks for the next round when it takes one, and
/// begins a minibatch once the rounds have arrived that it needs by the staleness model. The last
/// wave may be shorter.
/// @param minibatches  of each worker, >= 1
/// @return             [workers]
/// @throws Error  bad_configuration, bad_data for workers that do not fit the model or the
///                links, and for numbers that no worker, server or link can have
[[nodiscard]] [[gnu::cold]] inline std::vector<PlayedWorker> play_workers(
    std::span<WaveWorker const> workers, WaveServer const& server, int minibatches) {
  detail::require_workers(workers, server);
  require_counts("workers", {.microbatches = minibatches}, 1);
  detail::WaveExchange exchange(workers, server, minibatches);
  std::vector<detail::StagePart> parts;
  for (std::size_t w = 0; w < workers.size(); ++w) {
    Shape const shape{.ranks = workers[w].stages(), .microbatches = minibatches};
    for (detail::StagePart part : detail::stage_parts(Mapping::looped, shape, server.in_flight)) {
      part.cost = workers[w].costs.of(part.stage);
      part.rank += exchange.first_rank(w);
      parts.push_back(std::move(part));
    }
  }
  static_cast<void>(detail::greedy_rows(parts, exchange.ranks(), detail::Backwards::whole,
                                        detail::ByReadiness{}, exchange));
  return std::move(exchange).take();
}

}  // namespace stagger::schedule
