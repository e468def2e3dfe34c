// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a parameter server has taken, added and said, kept by what passes on its connections
///         alone, and held against its log. Pushes are whole numbers, so sums are exact and one that is
///         lost or added twice shows.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/model/exchange.hpp>
#include <stagger/parameters/detail/store_history.hpp>

namespace lab {

using stagger::detail::StoreEvent;
using stagger::staleness::Adds;
using stagger::staleness::Pushes;

struct TallyRules {
  Adds adds{};
  Pushes pushes{};
  std::vector<double> weights{};  // [workers]
  double first = 0;               // value of each element
  bool takes_over = false;  // those who are there take over the weights of those who have gone
  std::size_t clocks = 0;   // the last elements, which count pushes of a worker each, or none
};

using Values = std::vector<double>;  // [elements] of a layer
using Pushed = std::vector<std::uint32_t>;

/// One layer.
class Tally {
 public:
  struct Worker {
    std::uint32_t count = 0;  // pushes that it has made, or is taken to have made
    std::uint32_t start = 0;  // those before its stream
    std::uint32_t lead =
        0;  // of them, those by which it was ahead of the slowest when it came back
    std::uint32_t stream = 0xffffffff;  // that it began last; at first none
    bool ended = false;
    bool gone = false;
    bool came_back = false;
    std::deque<double> waiting{};  // accepted, and not added
    Values answer{};               // in turn: the values behind its last push
    Pushed contained{};            // likewise: [workers] pushes of each in them,
    std::vector<bool> over{};      // and whether its stream had ended then
    bool begun = false;            // it has pushed the urgent part of a layer that is divided
    double begins = 0;             // that push; every element of a push has one value
    std::set<double> made{};       // pushes that the server has not accepted yet
    std::set<double> accepted{};
  };

  Tally(TallyRules const& rules, std::size_t elements, std::string& wrong)
      : rules_(rules),
        wrong_(wrong),
        workers_(rules.weights.size()),
        value_(elements, rules.first),
        rounds_{value_} {
    for (std::size_t n = 0; n < workers_.size(); ++n) keep_answer(static_cast<int>(n));
  }

  [[nodiscard]] Worker& of(int n) { return workers_[static_cast<std::size_t>(n)]; }
  [[nodiscard]] std::uint32_t streams() const { return streams_; }
  [[nodiscard]] Values const& newest() const { return value_; }
  [[nodiscard]] std::uint64_t added() const { return added_; }

  /// The urgent part of the next push has come, which the server does not acknowledge.
  /// @param late  how many of the first elements it lacks
  void begin_push(int n, double value, std::size_t late) {
    if (!empty() && of(n).made.count(value) == 0) wrong("begun, but not made, or twice", n, value);
    of(n).begun = true;
    of(n).begins = value;
    late_ = late;
  }
  /// The server acknowledges it.
  void accept(int n, std::uint64_t number, double value, bool last) {
    Worker& own = of(n);
    if (empty()) own.made.insert(value), own.accepted.insert(value);
    if (std::exchange(own.begun, false) && own.begins != value)
      wrong("not the one whose urgent part has come", n, value);
    if (number <= own.count) {
      if (own.accepted.count(value) == 0) wrong("acknowledged, but never added", n, value);
      return;
    }
    if (number != own.count + 1) wrong("accepted behind one that is missing", n, value);
    if (own.ended) wrong("accepted behind the last one of a stream", n, value);
    if (own.made.erase(value) == 0) wrong("accepted, but not made, or twice", n, value);
    own.accepted.insert(value);
    ++own.count;
    own.waiting.push_back(value);
    touched_ = true;
    if (last) end(n);
  }
  void end(int n) {
    of(n).ended = true;
    of(n).begun = false;
    touched_ = any_ended_ = true;
  }
  void end_all() {
    for (std::size_t n = 0; n < workers_.size(); ++n) end(static_cast<int>(n));
  }
  void leave(int n) {
    if (of(n).gone && of(n).ended) return;
    of(n).gone = true;
    bool const begun = of(n).begun && !lacks_late_;
    leaves_ = !rules_.takes_over;
    end(n);
    of(n).begun = begun;  // what it has pushed is added
  }
  /// The server's process has ended before it could write who has left.
  void forget_leaving(Tally const& before) {
    for (std::size_t n = 0; n < workers_.size(); ++n) {
      workers_[n].ended = workers_[n].ended && (!workers_[n].gone || before.workers_[n].gone);
      if (std::exchange(workers_[n].gone, before.workers_[n].gone) != workers_[n].gone) turn_ = 0;
    }
  }
  /// Rounds since all workers had ended, without one that lacks its late part.
  [[nodiscard]] std::uint32_t steps() const { return complete() - base_; }
  /// Whether nothing that a worker pushed before it left waits to be added, and no late part.
  [[nodiscard]] bool between(int n) {
    return !lacks_late_ && of(n).waiting.empty() && !of(n).begun;
  }
  [[nodiscard]] bool empty() const { return value_.empty(); }
  /// It begins a stream.
  void begin(int n) {
    of(n).stream = streams_;
    come_back(n);
  }
  /// It is waited for again.
  void come_back(int n) {
    Worker& own = of(n);
    if (!own.gone) return;
    std::uint32_t const border = exact() ? rounds() : slowest(own.count - own.lead);
    own.gone = own.ended = false;
    own.came_back = true;
    own.count = own.start = std::max(own.count, border);
    own.lead = rules_.adds == Adds::on_arrival ? own.count - border : 0;
    keep_answer(n);
  }

  /// What the server says that it has added since, and what it should have added.
  /// @param log  null: it says nothing, and is taken to have added what it should
  void follow(stagger::List<StoreEvent> const* log) {
    log_ = log;
    add_begun();
    while (wrong_.empty() && more_added()) exact() ? add_round() : add_one();
    if (std::exchange(touched_, false) && wrong_.empty() && could_add())
      wrong("not added though it could be", -1, 0);
    if (!std::exchange(any_ended_, false)) return;
    bool const leaves = std::exchange(leaves_, false);
    for (Worker const& each : workers_)
      if (!each.ended) return;
    std::uint32_t start = 0;
    for (Worker const& each : workers_) start = std::max(start, each.count);
    if (exact() && start > rounds()) wrong("missing where all have ended", -1, start);
    // A late part that nobody has pushed stays as it was; the urgent one that all have pushed, too.
    lacks_late_ = false;
    if (exact()) start = rounds();
    for (Worker& each : workers_) {
      each.ended = each.gone;
      each.count = each.start = start;
      each.lead = 0;
    }
    for (std::size_t n = 0; n < workers_.size(); ++n) keep_answer(static_cast<int>(n));
    turn_ = 0;
    if (leaves) skip_ended();  // all have failed, and it has left behind that
    ++streams_;
    base_ = rounds();
  }

  /// Whether the worker is in a stream.
  [[nodiscard]] bool midst(int n) const {
    Worker const& own = workers_[static_cast<std::size_t>(n)];
    return own.stream == streams_ && !own.ended;
  }
  /// Whether an answer that contains so many pushes of the worker's stream could be given now.
  /// @param urgent  whether its late part may be missing
  [[nodiscard]] bool ready(int n, std::uint32_t asked, bool urgent) const {
    Worker const& own = workers_[static_cast<std::size_t>(n)];
    if (exact()) return (urgent ? rounds() : complete()) >= own.start + asked;
    return own.waiting.empty() && fewest_added() >= own.start - own.lead + asked;
  }
  [[nodiscard]] bool all_ended(int n) const {
    return workers_[static_cast<std::size_t>(n)].stream != streams_;
  }
  /// What that answer is. @param last  it is asked for behind a stream
  [[nodiscard]] Values const& answer(int n, std::uint32_t asked, bool last) {
    Worker const& own = of(n);
    if (exact()) return rounds_[std::min(own.start + (last ? 0 : asked), rounds())];
    return rules_.adds == Adds::in_turn ? own.answer : value_;
  }
  [[nodiscard]] Values const& first(int n) {
    return rules_.adds == Adds::in_turn ? of(n).answer : value_;
  }
  /// [workers] pushes of each that an answer contains that is not exact, since the worker's stream
  /// began.
  [[nodiscard]] Pushed contained(int n) {
    Pushed all = of(n).contained;
    for (std::size_t other = 0; other < all.size(); ++other) {
      if (rules_.adds == Adds::on_arrival) all[other] = added_of(other);
      all[other] -= std::min(all[other], of(n).start - of(n).lead);
    }
    return all;
  }
  /// Whether it may say so. Of another whose stream has ended, it says that it has all.
  [[nodiscard]] bool contains(int n, Pushed const& pushed) {
    Pushed const all = contained(n);
    for (std::size_t other = 0; other < all.size(); ++other) {
      bool const over =
          rules_.adds == Adds::in_turn ? bool(of(n).over[other]) : workers_[other].ended;
      bool const may_be_all = over && static_cast<int>(other) != n;
      if (pushed[other] != all[other] && !(may_be_all && pushed[other] == 0xffffffff)) return false;
    }
    return true;
  }
  /// Whether it has been in a stream and has not gone.
  [[nodiscard]] bool takes_part(int n) { return !of(n).gone && of(n).stream != 0xffffffff; }
  /// Pushes of the slowest worker whose stream goes on. @param none  where there is none
  [[nodiscard]] std::uint32_t slowest(std::uint32_t none) const {
    std::uint32_t least = 0xffffffff;
    for (Worker const& each : workers_)
      if (!each.ended) least = std::min(least, each.count - each.lead);
    return least == 0xffffffff ? none : least;
  }

 private:
  [[nodiscard]] bool exact() const { return rules_.adds == Adds::in_worker_order; }
  [[nodiscard]] std::uint32_t rounds() const {
    return static_cast<std::uint32_t>(rounds_.size() - 1);
  }
  /// Without one that lacks its late part.
  [[nodiscard]] std::uint32_t complete() const { return rounds() - (lacks_late_ ? 1 : 0); }
  [[nodiscard]] std::uint32_t fewest_added() const {
    std::uint32_t least = 0xffffffff;
    for (std::size_t n = 0; n < workers_.size(); ++n)
      if (!workers_[n].ended) least = std::min(least, added_of(n));
    return least;
  }
  [[nodiscard]] std::uint32_t added_of(std::size_t n) const {
    return workers_[n].count - workers_[n].lead -
           static_cast<std::uint32_t>(workers_[n].waiting.size());
  }
  void keep_answer(int n) {
    of(n).answer = value_;
    of(n).contained.clear();
    of(n).over.clear();
    for (std::size_t other = 0; other < workers_.size(); ++other) {
      of(n).contained.push_back(added_of(other));
      of(n).over.push_back(workers_[other].ended);
    }
  }
  void wrong(char const* what, int n, double value) {
    if (wrong_.empty()) wrong_ = stagger::text("a push of worker ", n, ", ", value, ", is ", what);
  }

  [[nodiscard]] bool more_added() {
    if (log_ == nullptr) return touched_ && could_add();
    while (seen_ < log_->size() && (*log_)[seen_].kind == StoreEvent::Kind::taken) ++seen_;
    return seen_ < log_->size();
  }
  /// Those who are there take over the weights of those who have gone.
  [[nodiscard]] double scale(std::set<int> const& pushed) const {
    double all = 0;
    double there = 0;
    for (std::size_t n = 0; n < workers_.size(); ++n) {
      all += rules_.weights[n];
      bool const pushes = pushed.count(static_cast<int>(n)) != 0;
      if (pushes || !rules_.takes_over || !workers_[n].gone) there += rules_.weights[n];
    }
    return all / there;
  }
  /// @param base         the values before the round
  /// @param first, last  elements to which it is added
  void add(int n, double pushed, Values const& base, double scale, std::size_t first,
           std::size_t last) {
    double const weight = rules_.weights[static_cast<std::size_t>(n)] * scale;
    std::size_t const counted = value_.size() - (value_.empty() ? 0 : rules_.clocks);
    if (last > counted)
      value_[counted + static_cast<std::size_t>(n)] += rules_.pushes == Pushes::changes ? 1 : scale;
    for (std::size_t i = first; i < std::min(last, counted); ++i)
      if (rules_.pushes == Pushes::changes)
        value_[i] += pushed;
      else
        value_[i] += weight * (rules_.pushes == Pushes::gradients ? -pushed : pushed - base[i]);
  }
  void add_first_of(int n, Values const& base, double scale, std::size_t last) {
    double const pushed = of(n).waiting.front();
    of(n).waiting.pop_front();
    ++seen_, ++added_;
    add(n, pushed, base, scale, 0, last);
  }
  /// The urgent part of a round, once everybody has pushed it.
  void add_begun() {
    std::set<int> begun;
    for (std::size_t n = 0; n < workers_.size(); ++n) {
      if (workers_[n].begun)
        begun.insert(static_cast<int>(n));
      else if (!workers_[n].ended)
        return;
    }
    if (begun.empty() || lacks_late_) return;
    for (int const n : begun) add(n, of(n).begins, value_, scale(begun), late_, value_.size());
    rounds_.push_back(value_);
    lacks_late_ = true;
    for (Worker& each : workers_) each.begun = each.begun && !each.ended;
  }

  /// The oldest push of every worker that has one, in their order; of nobody else is it waited for.
  void add_round() {
    std::set<int> pushed;
    for (std::size_t n = 0; n < workers_.size(); ++n) {
      if (!workers_[n].waiting.empty())
        pushed.insert(static_cast<int>(n));
      else if (!workers_[n].ended)
        return wrong("missing in a round that was added", static_cast<int>(n), rounds());
    }
    if (pushed.empty()) return wrong("added and was not accepted", next_event().worker, 0);
    Values const base = value_;
    double const scaled = scale(pushed);
    std::uint32_t const before = complete();
    for (int const n : pushed) {
      StoreEvent const event = next_event();
      if (log_ != nullptr &&
          (event.kind != StoreEvent::Kind::added || event.worker != n || event.pushes != added_))
        return wrong("not added in the order of workers", n, of(n).waiting.front());
      if (of(n).count - of(n).waiting.size() != before)
        return wrong("added in the round of another", n, of(n).waiting.front());
      add_first_of(n, base, scaled, lacks_late_ ? late_ : value_.size());
    }
    if (!std::exchange(lacks_late_, false)) rounds_.emplace_back();
    rounds_.back() = value_;
  }
  void add_one() {
    if (rules_.adds == Adds::in_turn) skip_ended();
    StoreEvent event = next_event();
    if (log_ == nullptr) event = {StoreEvent::Kind::added, next_to_add(), added_};
    if (rules_.adds == Adds::in_turn && event.worker != turn_)
      return wrong("added before its turn", event.worker, 0);
    if (of(event.worker).waiting.empty() || event.pushes != added_)
      return wrong("added twice, or was not accepted", event.worker, 0);
    add_first_of(event.worker, Values(value_), scale({event.worker}), value_.size());
    keep_answer(event.worker);
    if (rules_.adds == Adds::in_turn) turn_ = next(turn_);
  }
  [[nodiscard]] StoreEvent next_event() const {
    return log_ != nullptr && seen_ < log_->size() ? (*log_)[seen_] : StoreEvent{};
  }
  /// Of those whose pushes wait; on arrival there is only one.
  [[nodiscard]] int next_to_add() const {
    if (rules_.adds == Adds::in_turn) return turn_;
    int n = 0;
    while (workers_[static_cast<std::size_t>(n)].waiting.empty()) ++n;
    return n;
  }
  [[nodiscard]] int next(int n) const { return (n + 1) % static_cast<int>(workers_.size()); }
  void skip_ended() {
    for (std::size_t i = 0; i < workers_.size() && of(turn_).waiting.empty() && of(turn_).ended;
         ++i)
      turn_ = next(turn_);
  }
  [[nodiscard]] bool could_add() {
    bool any = false;
    bool all = true;
    for (Worker const& each : workers_) {
      any = any || !each.waiting.empty();
      all = all && (!each.waiting.empty() || each.ended);
    }
    if (rules_.adds == Adds::on_arrival) return any;
    if (exact()) return any && all;
    skip_ended();
    return !of(turn_).waiting.empty();
  }

  TallyRules const& rules_;
  std::string& wrong_;
  std::vector<Worker> workers_;
  Values value_;
  std::vector<Values> rounds_;  // [rounds + 1] the values behind each, and the first ones
  std::size_t late_ = 0;        // how many of the first elements are late, of a layer in two parts
  bool lacks_late_ = false;     // the last round does
  stagger::List<StoreEvent> const* log_ = nullptr;
  std::size_t seen_ = 0;  // events of the log
  std::uint32_t added_ = 0;
  std::uint32_t streams_ = 0;
  std::uint32_t base_ = 0;  // rounds when all workers had ended
  int turn_ = 0;
  bool touched_ = false;  // there may be something to add
  bool any_ended_ = false;
  bool leaves_ = false;  // somebody has left, where others do not go on without who fails
};

}  // namespace lab
