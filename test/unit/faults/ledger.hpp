// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Everything that passes at a parameter server, held against what it should have done: what it
///         owes each worker, and a tally of each layer.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/core/alignment.hpp>
#include <stagger/core/error.hpp>
#include <stagger/parameters/parameter_link.hpp>

#include "faults/disk.hpp"
#include "faults/line.hpp"
#include "faults/model.hpp"
#include "faults/tally.hpp"

namespace lab {

using stagger::alignment_bytes;
using stagger::text;

class Ledger final : public Watch {
 public:
  /// @param durable   whether a server goes on from what the one before it had
  /// @param elements  [layers]
  /// @param time      of which it tells
  Ledger(Model const& model, TallyRules rules, bool go_on, bool durable,
         std::vector<std::size_t> elements, sim::EventQueue const& time)
      : model_(model),
        rules_(std::move(rules)),
        go_on_(go_on),
        durable_(durable),
        elements_(std::move(elements)),
        time_(time),
        owed_(rules_.weights.size()),
        came_(rules_.weights.size(), std::numeric_limits<double>::infinity()),
        failures_(rules_.weights.size()) {}
  Ledger(Ledger const&) = delete;
  Ledger& operator=(Ledger const&) = delete;

  /// A server that has been started, or none.
  void serve(std::shared_ptr<remote::ServerInProcess> server) {
    server_ = std::move(server);
    for (std::size_t n = 0; n < owed_.size(); ++n) {
      owed_[n] = {};
      for (Tally& each : tallies_)
        owed_[n].awaited = owed_[n].awaited || (durable_ && each.takes_part(static_cast<int>(n)));
    }
    if (server_ == nullptr || (durable_ && !tallies_.empty())) return;
    tallies_.clear();
    failures_.assign(failures_.size(), 0);
    choices_.clear();
    for (std::size_t const each : elements_) tallies_.emplace_back(rules_, each, wrong_);
  }

  void wrong(std::string const& words) {
    if (wrong_.empty()) wrong_ = text(words, ", at ", time_.now_s(), " s");
  }
  /// The first thing that was wrong, or nothing.
  [[nodiscard]] std::string const& wrong() const noexcept { return wrong_; }
  /// Remembers messages from now on.
  void remember() noexcept { remembers_ = true; }
  [[nodiscard]] std::vector<std::string> const& messages() const noexcept { return messages_; }
  [[nodiscard]] Tally& tally(std::size_t l) { return tallies_[l]; }
  /// Whether the server takes the worker to be in a stream.
  [[nodiscard]] bool active(int n) const { return owed_[static_cast<std::size_t>(n)].active; }
  /// Whether the worker has come back, from when on it counts as having pushed what others have.
  [[nodiscard]] bool has_come_back(int n) {
    return std::any_of(tallies_.begin(), tallies_.end(),
                       [n](Tally& each) { return each.of(n).came_back; });
  }
  /// s, when a server let the worker in for the first time.
  [[nodiscard]] double came_s(int n) const { return came_[static_cast<std::size_t>(n)]; }

  /// The server's process may end in the event that comes.
  void note() { before_ = std::make_unique<Before>(Before{tallies_, owed_, failures_}); }
  /// It has ended there: what has not come to the disk has not happened.
  /// @return whether a worker has gone and the server may not know it
  bool roll_back(Disk const& of) {
    bool left = std::exchange(left_unnoticed_, false);
    if (of.wrote_record()) {  // all layers end when it starts again
      for (std::size_t l = 0; !go_on_ && l < tallies_.size(); ++l)
        if (of.lost(l)) tallies_[l].forget_leaving(before_->tallies[l]);
      return left;
    }
    for (std::size_t n = 0; n < owed_.size(); ++n)
      left = left || (before_->owed[n].line != nullptr && owed_[n].line == nullptr);
    std::vector<Tally> known;
    for (std::size_t l = 0; l < tallies_.size(); ++l)
      known.push_back(of.lost(l) ? before_->tallies[l] : tallies_[l]);
    tallies_.swap(known);
    for (std::size_t n = 0; n < owed_.size(); ++n)  // it may have begun in some layers
      before_->owed[n].active = before_->owed[n].active || owed_[n].active;
    owed_ = before_->owed;
    failures_ = before_->failures;
    return left;
  }

  /// Nobody waits for what is there.
  void look() {
    for (std::size_t n = 0; n < owed_.size(); ++n) {
      Owed const& own = owed_[n];
      if (own.line == nullptr || !own.line->silent()) continue;
      if (own.acknowledgements != 0) wrong(text("worker ", n, " gets no acknowledgement"));
      if (own.lost) wrong(text("worker ", n, " does not hear that another has failed"));
      if (own.reads && !own.returns) wrong(text("worker ", n, " waits for weights to begin with"));
      if (own.active && !own.returns && own.asks_choice != 0 &&
          own.first + own.asks_choice - 1 <= steps() && all_reported())
        wrong(text("worker ", n, " waits to hear which layers are late in a step"));
      for (std::size_t l = 0; l < tallies_.size() && own.active; ++l) {
        std::uint32_t const asked = own.asks[l];
        int const worker = static_cast<int>(n);
        if (asked != 0 &&
            (asked == everything ? tallies_[l].all_ended(worker)
                                 : tallies_[l].ready(worker, asked - 1, own.urgent[l])))
          wrong(text("worker ", n, " waits for weights of layer ", l, " that are there"));
      }
    }
  }
  /// The server waits no longer for those who have not come back since it was started again.
  void give_up() {
    for (int n = 0; n < static_cast<int>(owed_.size()); ++n) {
      if (!std::exchange(owed(n).awaited, false)) continue;
      owed(n).active = midst(n);
      end(n, true);
      for (Tally& tally : tallies_)
        if (owed(n).line == nullptr) tally.leave(n);
    }
    server_->give_up_awaited();
    follow();
    admit();
  }
  /// Behind everything: the server has what the pushes make.
  void close() {
    if (server_ == nullptr || server_->wants_values()) return;
    for (std::size_t l = 0; l < elements_.size(); ++l) {
      Parcel now{{}, std::vector<std::byte>(bytes_of(l))};
      server_->read(0, l, now.payload.data());
      if (values_of(now, l) != tallies_[l].first(0))
        wrong(text("layer ", l, " ends as ", words(values_of(now, l)), " where all pushes make ",
                   words(tallies_[l].first(0))));
    }
  }

  void arrives(Line const& line, Parcel const& parcel) override {
    // Several messages may arrive in one event, and what the ones before have made may be kept.
    if (disk().armed()) disk().begin_event(), note();
    remember(line, " to the server: ", parcel);
    int const n = line.worker();
    Owed& own = owed(n);
    if (own.line != &line) return;
    Message const& message = parcel.message;
    std::size_t const l = message.layer;
    bool const of_stream = (message.kind >= Kind::push && message.kind <= Kind::fail) ||
                           (message.kind >= Kind::push_rest && message.kind <= Kind::ask_choice);
    if (of_stream && message.stream != own.stream) return;  // it comes too late
    switch (message.kind) {
      case Kind::begin:
        if (message.stream <= own.stream) return;
        own.stream = message.stream;
        own.begins = true;
        own.reads = false;
        // One that has not pushed may begin again because it was not answered.
        own.active = own.active || (std::exchange(own.awaited, false) && pushed(n));
        return end(n, true);
      case Kind::resume:
        own.stream = message.stream;
        own.failures = message.rounds;
        own.resumes = true;
        return;
      case Kind::read:
        own.reads = true;
        return;
      case Kind::push:
      case Kind::last_push:
      case Kind::push_late:
        return push(n, message, pushed(parcel, l));
      case Kind::push_rest:
        if (own.active && message.number == tallies_[l].of(n).count + 1)
          tallies_[l].begin_push(n, pushed(parcel, l),
                                 (bytes_of(l) - message.bytes) / sizeof(double));
        return;
      case Kind::ask:
      case Kind::ask_rest:
      case Kind::ask_late:
        return ask(n, message);
      case Kind::report:
        // A step counts one loss of each worker; a duplicate is not counted.
        if (own.active && own.first + own.reports <= std::min(steps(), least_reported()))
          ++own.reports;
        return;
      case Kind::ask_choice:
        if (own.active) own.asks_choice = message.rounds + 1;
        return;
      case Kind::ask_last:
        if (own.active) own.asks[l] = everything;
        return;
      case Kind::end:
        return end(n, false);
      case Kind::fail:
        return end(n, true);
      case Kind::leave:
        return leave(n);
      default:
        return;
    }
  }
  void arrived(Line const& line) override {
    Owed& own = owed(line.worker());
    note_joined(line);
    follow();
    if (std::exchange(own.begins, false)) begin(line.worker());  // it was not refused
    if (std::exchange(own.resumes, false)) resume(line.worker());
    admit();
  }
  void sends(Line const& line, Parcel const& parcel) override {
    remember(line, " from the server: ", parcel);
    int const n = line.worker();
    Owed& own = owed(n);
    Message const& message = parcel.message;
    // It may have waited for the first values of another one.
    if (message.kind == Kind::joined) note_joined(line);
    if (own.line != &line) return;
    if (message.kind == Kind::pushed) --own.acknowledgements;
    if (message.kind == Kind::lost) own.lost = false;
    if (message.kind == Kind::choice && own.active) choose(n, parcel);
    if (message.kind == Kind::newest) newest(n, message, values_of(parcel, message.layer));
    if (message.kind == Kind::contents) contents(n, parcel);
    if (message.kind == Kind::answer || message.kind == Kind::last_answer) answer(n, parcel);
  }
  void goes(Line const&) override {
    left_unnoticed_ = left_unnoticed_ || disk().dead();
    if (disk().armed() && !disk().dead()) disk().begin_event(), note();
  }
  void gone(Line const& line) override {
    if (left_unnoticed_) return;
    if (owed(line.worker()).line == &line) leave(line.worker());
    follow();
    admit();
  }

 private:
  static constexpr std::uint32_t everything = stagger::detail::all_rounds;

  /// Of a worker, what the server owes it.
  struct Owed {
    Line const* line = nullptr;  // by which it has joined
    bool begins = false;
    bool resumes = false;
    bool returns = false;           // it has left before, and waits to come back
    std::uint32_t first = 0;        // the step in which it has come back
    std::uint32_t reports = 0;      // of losses
    std::uint32_t asks_choice = 0;  // the step of which it asks what is late, + 1; or 0
    bool active = false;
    bool awaited = false;  // it was in a stream when the server went
    bool lost = false;
    bool reads = false;  // it waits for the newest weights
    std::uint32_t stream = 0;
    std::uint32_t failures = 0;  // that it has been told of
    int acknowledgements = 0;
    std::vector<std::uint32_t> asks{};      // [layers] rounds + 1, or everything, or 0
    std::vector<bool> urgent{};             // [layers] it asks without what is late of the last
    std::vector<std::uint32_t> answered{};  // [layers] order() of the last answer in its stream
    std::vector<stagger::detail::ByteRange> parts{};  // [layers] that it asked for last
    bool tells = false;                               // it was told what the next answer contains,
    Values told{};                                    // which is this
  };
  struct Before {
    std::vector<Tally> tallies;
    std::vector<Owed> owed;
    std::vector<std::uint32_t> failures;
  };
  [[nodiscard]] Owed& owed(int n) { return owed_[static_cast<std::size_t>(n)]; }
  void note_joined(Line const& line) {
    Owed& own = owed(line.worker());
    if (own.line != nullptr || !line.joined()) return;
    own.line = &line;
    double& came_s = came_[static_cast<std::size_t>(line.worker())];
    came_s = std::min(came_s, time_.now_s());
    join(line.worker());
  }

  void follow() {
    if (server_ == nullptr || server_->wants_values()) return;
    for (std::size_t l = 0; l < tallies_.size(); ++l)
      (void)server_->look_at(l, [&](auto const& history) {
        tallies_[l].follow(durable_ ? nullptr : &history.log());
        return 0;
      });
  }
  /// It is let in, for the first time or again.
  void join(int n) {
    if (!midst(n)) owed(n).awaited = false;
    owed(n).returns = !go_on_ && gone(n);
    admit();
  }
  [[nodiscard]] bool gone(int n) {
    return std::any_of(tallies_.begin(), tallies_.end(),
                       [n](Tally& each) { return each.of(n).gone; });
  }
  /// Whether nobody's stream has ended in one layer and goes on in another.
  [[nodiscard]] bool in_one_stream() {
    for (int n = 0; n < static_cast<int>(owed_.size()); ++n) {
      auto const over = std::count_if(tallies_.begin(), tallies_.end(),
                                      [n](Tally& each) { return each.all_ended(n); });
      if (!gone(n) && over != 0 && over != static_cast<long>(tallies_.size())) return false;
    }
    return true;
  }
  [[nodiscard]] bool goes_on_late() const { return go_on_ && model_.late != nullptr; }
  /// Of workers with late layers, steps that have been added in all layers.
  [[nodiscard]] std::uint32_t steps() const {
    std::uint32_t least = everything;
    for (Tally const& each : tallies_)
      if (!each.empty()) least = std::min(least, each.steps());
    return least;
  }
  /// Steps of which all losses have come; a message may be lost.
  [[nodiscard]] std::uint32_t least_reported() const {
    std::uint32_t least = everything;
    for (Owed const& each : owed_)
      if (each.active && !each.returns) least = std::min(least, each.first + each.reports);
    return least;
  }
  [[nodiscard]] bool all_reported() const { return least_reported() >= steps(); }
  /// Whether everything of the last step with late layers has come, and nothing of the next.
  [[nodiscard]] bool between_steps(int n) {
    bool between = all_reported();
    for (Tally& each : tallies_)
      between = between && (each.empty() || (each.between(n) && each.steps() == steps()));
    return between;
  }
  /// Whoever has joined again is waited for as soon as no stream ends in one layer after the other,
  /// nor a step with late layers.
  void admit() {
    for (int n = 0; n < static_cast<int>(owed_.size()); ++n) {
      if (!owed(n).returns || !(model_.late != nullptr ? between_steps(n) : in_one_stream()))
        continue;
      owed(n).returns = false;
      owed(n).first = steps();
      if (steps() == 0) choices_.clear();
      for (Tally& tally : tallies_) owed(n).active ? tally.begin(n) : tally.come_back(n);
    }
  }
  void begin(int n) {
    owed(n).returns = gone(n);
    owed(n).reports = owed(n).asks_choice = 0;
    if (!go_on_ && std::none_of(owed_.begin(), owed_.end(), [](auto& each) { return each.active; }))
      begin_steps();
    if (!owed(n).returns)
      for (Tally& tally : tallies_) tally.begin(n);
    owed(n).failures = failures_[static_cast<std::size_t>(n)];
    resume(n);
  }
  /// Of workers with late layers, all count their steps anew.
  void begin_steps() {
    choices_.clear();
    for (Owed& each : owed_) each.first = 0;
  }
  void resume(int n) {
    Owed& own = owed(n);
    own.active = own.failures == failures_[static_cast<std::size_t>(n)];
    own.awaited = own.awaited && !own.active;
    own.lost = !own.active;
    own.asks.assign(elements_.size(), 0);
    own.urgent.assign(elements_.size(), false);
    own.answered.assign(elements_.size(), order(0, false));
    own.parts.assign(elements_.size(), {});
    own.tells = false;
  }
  [[nodiscard]] bool midst(int n) const {
    return std::any_of(tallies_.begin(), tallies_.end(),
                       [n](Tally const& each) { return each.midst(n); });
  }
  [[nodiscard]] bool pushed(int n) {
    return std::any_of(tallies_.begin(), tallies_.end(), [n](Tally& each) {
      return each.midst(n) && each.of(n).count != each.of(n).start;
    });
  }
  void leave(int n) {
    end(n, true);
    for (Tally& tally : tallies_) tally.leave(n);
    owed(n) = {};
  }
  void end(int n, bool failed) {
    bool const awaited = failed && owed(n).awaited && midst(n);
    if (!std::exchange(owed(n).active, false) && !awaited) return;
    if (!failed || go_on_) owed(n).returns = false;
    failed = failed || goes_on_late();
    for (Tally& tally : tallies_) {
      if (!failed && !tally.of(n).ended && !tally.all_ended(n)) tally.end(n);
      if (failed && go_on_) tally.leave(n);
      if (failed && !go_on_) tally.end_all();
    }
    if (!failed) return;
    if (!go_on_) begin_steps();
    if (go_on_) {
      ++failures_[static_cast<std::size_t>(n)];
      return;
    }
    for (std::uint32_t& each : failures_) ++each;
    for (Owed& each : owed_)
      if (std::exchange(each.active, false)) each.lost = true;
  }
  /// Of a round, the urgent part is asked for before the late one.
  [[nodiscard]] static std::uint32_t order(std::uint32_t rounds, bool urgent) {
    return 2 * rounds + (urgent ? 0 : 1);
  }
  void ask(int n, Message const& message) {
    Owed& own = owed(n);
    std::size_t const l = message.layer;
    if (!own.active) return;
    bool const urgent = message.kind == Kind::ask_rest;
    if (urgent)
      own.parts[l] = {message.number, bytes_of(l)};
    else
      own.parts[l] = {0, message.kind == Kind::ask_late ? message.number : bytes_of(l)};
    if (rules_.adds == Adds::in_worker_order && order(message.rounds, urgent) <= own.answered[l])
      return;  // it comes too late
    if (message.rounds + 1 < own.asks[l]) return;
    own.asks[l] = message.rounds + 1;
    own.urgent[l] = urgent;
  }
  void push(int n, Message const& message, double value) {
    Owed& own = owed(n);
    Tally& tally = tallies_[message.layer];
    bool const again = message.number <= tally.of(n).count;
    if (message.number > tally.of(n).count + 1 || !own.active) return;
    ++own.acknowledgements;
    bool const last = message.kind == Kind::last_push;
    tally.accept(n, message.number, value, last);
    if (again || last) return;
    // The slowest has made what the last minibatch of this push needed.
    std::uint32_t const start = tally.of(n).start - tally.of(n).lead;
    std::uint32_t const made = tally.of(n).count - tally.of(n).start;
    int const needed = model_.needs(static_cast<int>(made) * model_.per_push - 1);
    if (needed > 0 && tally.slowest(start + made) < start + static_cast<std::uint32_t>(needed))
      wrong(text("worker ", n, " is further ahead than ", model_.name, " allows, with ", made,
                 " pushes where the slowest has ", tally.slowest(0) - start));
  }
  /// All workers are told the same.
  void choose(int n, Parcel const& parcel) {
    Message const& message = parcel.message;
    Parcel const told{{.layer = message.layer, .number = message.number}, parcel.payload};
    owed(n).asks_choice = 0;
    auto const [at, first] = choices_.emplace(owed(n).first + message.rounds, told);
    Parcel const& other = at->second;
    if (!first && (other.payload != told.payload || other.message.layer != message.layer ||
                   other.message.number != message.number))
      wrong(text("worker ", n, " is told that other layers are late in step ", message.rounds,
                 " than another"));
  }
  void newest(int n, Message const& message, Values const& values) {
    Tally& tally = tallies_[message.layer];
    owed(n).reads = false;
    if (owed(n).active && owed(n).returns) wrong(text("worker ", n, " reads before it comes back"));
    if (message.rounds != owed(n).failures)
      wrong(text("worker ", n, " hears of ", message.rounds, " failures, not ", owed(n).failures));
    if (values != tally.first(n) || message.number != tally.of(n).count)
      wrong(text("worker ", n, " reads ", words(values), " behind push ", message.number,
                 " where layer ", message.layer, " has ", words(tally.first(n)), " behind push ",
                 tally.of(n).count));
  }
  /// Whether a worker still uses an answer. What was asked for may be sent when all have pushed their
  /// last, behind which nobody takes it.
  [[nodiscard]] bool counts(int n, Tally const& tally) const {
    return rules_.adds != Adds::on_arrival || !tally.all_ended(n);
  }
  /// @return whether the weights of an answer contain the rounds that were asked for
  bool has_rounds(int n, Message const& message, bool urgent) {
    Tally const& tally = tallies_[message.layer];
    if (!counts(n, tally) || tally.ready(n, message.rounds, urgent)) return true;
    wrong(text("worker ", n, " gets weights of layer ", message.layer, " with fewer than the ",
               message.rounds, " rounds that it needs"));
    return false;
  }
  /// The values of the answer that follows are those of this moment.
  void contents(int n, Parcel const& parcel) {
    Message const& message = parcel.message;
    Tally& tally = tallies_[message.layer];
    Pushed pushed(owed_.size());
    if (parcel.payload.size() != pushed.size() * sizeof(pushed[0]))
      return wrong(text("worker ", n, " is told ", parcel.payload.size(), " bytes of contents"));
    std::memcpy(pushed.data(), parcel.payload.data(), parcel.payload.size());
    if (counts(n, tally) && !tally.contains(n, pushed))
      wrong(text("worker ", n, " is told that weights of layer ", message.layer, " contain ",
                 words(pushed), " pushes of each worker, not ", words(tally.contained(n))));
    if (counts(n, tally) && *std::min_element(pushed.begin(), pushed.end()) < message.rounds)
      wrong(text("worker ", n, " gets weights with ", words(pushed),
                 " pushes of each worker, and needs ", message.rounds));
    static_cast<void>(has_rounds(n, message, false));  // the weights of the answer are taken now
    owed(n).told = tally.answer(n, message.rounds, false);
    owed(n).tells = true;
  }
  void answer(int n, Parcel const& parcel) {
    Message const& message = parcel.message;
    std::size_t const l = message.layer;
    Tally& tally = tallies_[l];
    bool const last = message.kind == Kind::last_answer;
    bool const exact = rules_.adds == Adds::in_worker_order;
    auto const part = last ? stagger::detail::ByteRange{0, bytes_of(l)} : owed(n).parts[l];
    bool const urgent = part.first != 0;
    if (last && !tally.all_ended(n))
      wrong(text("worker ", n, " gets the last weights of layer ", l, " before all have ended"));
    if (std::exchange(owed(n).tells, false) == (exact || last))
      wrong(text("worker ", n, exact || last ? " is" : " is not", " told what layer ", l,
                 " contains"));
    if (exact && !last && !has_rounds(n, message, urgent)) return;
    Values const& all = exact || last ? tally.answer(n, message.rounds, last) : owed(n).told;
    std::size_t const first = part.first / sizeof(double);
    std::size_t const end = std::min(part.last / sizeof(double), elements_[l]);
    Values const values = values_of(parcel, l, part);
    if (!std::equal(values.begin(), values.end(), all.begin() + static_cast<long>(first),
                    all.begin() + static_cast<long>(end)))
      wrong(text("worker ", n, " gets ", words(values), " for elements ", first, " to ", end,
                 " of ", message.rounds, " rounds of layer ", l, ", which are ", words(all)));
    owed(n).asks[l] = 0;
    owed(n).answered[l] = order(message.rounds, urgent);
  }

  /// Of a layer's values, or of a push.
  [[nodiscard]] std::size_t bytes_of(std::size_t l) const {
    return (elements_[l] * sizeof(double) + alignment_bytes - 1) / alignment_bytes *
           alignment_bytes;
  }
  /// @param part  of the layer, which the message has
  [[nodiscard]] Values values_of(Parcel const& parcel, std::size_t l,
                                 stagger::detail::ByteRange part = {}) {
    part.last = std::min(part.last, bytes_of(l));
    if (parcel.payload.size() != part.size())
      wrong(text("a message of layer ", l, " has ", parcel.payload.size(), " bytes, not ",
                 part.size()));
    std::size_t const end = std::min(part.last / sizeof(double), elements_[l]);
    Values values(end - std::min(end, part.first / sizeof(double)));
    std::size_t const bytes = std::min(values.size() * sizeof(double), parcel.payload.size());
    if (bytes != 0) std::memcpy(values.data(), parcel.payload.data(), bytes);
    return values;
  }
  /// The value of each element of a push; of a layer without elements 0.
  [[nodiscard]] double pushed(Parcel const& parcel, std::size_t l) {
    std::size_t const missing = bytes_of(l) - parcel.message.bytes;
    bool const urgent = parcel.message.kind == Kind::push_rest;
    Values const values =
        values_of(parcel, l,
                  {urgent ? missing : 0, urgent ? bytes_of(l) : std::size_t{parcel.message.bytes}});
    for (std::size_t i = 0; i + rules_.clocks < values.size(); ++i)
      if (values[i] != values[0]) wrong("a message has two kinds of values");
    return values.empty() ? 0 : values[0];
  }
  template <class Numbers> [[nodiscard]] static std::string words(Numbers const& values) {
    std::string all;
    for (std::size_t i = 0; i < values.size(); ++i)
      if (true) all += text(all.empty() ? "" : " | ", values[i]);
    return all;
  }
  void remember(Line const& line, char const* way, Parcel const& parcel) {
    if (!remembers_) return;
    Message const& message = parcel.message;
    auto const kind = static_cast<std::size_t>(message.kind);
    static constexpr char const* of_worker[] = {"",
                                                "join",
                                                "values",
                                                "begin",
                                                "read",
                                                "push",
                                                "last push",
                                                "ask",
                                                "ask for the last",
                                                "end",
                                                "fail",
                                                "who",
                                                "leave",
                                                "push the rest",
                                                "push late",
                                                "ask for the rest",
                                                "ask late",
                                                "report",
                                                "ask what is late",
                                                "resume"};
    static constexpr char const* of_server[] = {"wanted", "joined", "refused",     "newest",
                                                "pushed", "answer", "last answer", "lost",
                                                "waits",  "late",   "scores",      "contents"};
    messages_.push_back(text(time_.now_s(), " s, worker ", line.worker(), way,
                             kind < 64 ? of_worker[kind] : of_server[kind - 64], ", layer ",
                             message.layer, ", stream ", message.stream, ", rounds ",
                             message.rounds, ", number ", message.number));
  }

  Model const& model_;
  TallyRules rules_;
  bool go_on_;
  bool durable_;
  std::vector<std::size_t> elements_;
  sim::EventQueue const& time_;
  std::shared_ptr<remote::ServerInProcess> server_;
  std::string wrong_;
  std::vector<Tally> tallies_;               // [layers]
  std::vector<Owed> owed_;                   // [workers]
  std::vector<double> came_;                 // [workers]
  std::vector<std::uint32_t> failures_;      // [workers] streams that have ended by one
  std::map<std::uint32_t, Parcel> choices_;  // in each step, which layers are late
  std::unique_ptr<Before> before_;
  bool left_unnoticed_ = false;  // a worker has gone when the server's process had ended
  bool remembers_ = false;
  std::vector<std::string> messages_;
};

}  // namespace lab
