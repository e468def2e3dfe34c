// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The weights that each minibatch sees if workers exchange changes through a server, and
///         the slots of versions and changes.

#include <cstddef>
#include <cstdint>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/detail/messages.hpp>
#include <stagger/program/versions.hpp>

namespace stagger::detail {

/// The slots of versions and changes of one stage. A change is turned in place into the version
/// that contains it last. Slot 0 has the version from before the stream, and at the end the version
/// that stays.
class ExchangeSlots {
 public:
  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(users_.size()); }
  /// @return an unused slot, which then has one user
  [[nodiscard]] std::uint16_t take() {
    std::size_t slot = 0;
    while (slot < users_.size() && users_[slot] != 0) ++slot;
    if (slot == users_.size()) users_.push_back(0);
    ++users_[slot];
    return static_cast<std::uint16_t>(slot);
  }
  void use(std::uint16_t slot) { ++users_[slot]; }
  void release(std::uint16_t slot) { --users_[slot]; }

 private:
  List<std::uint32_t> users_{1};  // [slots]; the first version's
};

/// Follows one row in the order in which it will run.
class ExchangePass {
 public:
  [[gnu::cold]] ExchangePass(StalenessModel const& model, StageRow const& row)
      : model_(model),
        row_(row),
        minibatches_(static_cast<std::uint32_t>(row.forward.size())),
        per_push_(static_cast<std::uint32_t>(model.push_minibatches)),
        change_(minibatches_) {
    versions_.seen.resize(minibatches_);
    versions_.updates.resize(minibatches_);
  }

  /// @throws Error  bad_schedule for an order that does not fit the staleness model
  [[nodiscard]] [[gnu::cold]] Versions run() {
    List<std::uint32_t> const forwards = in_order(row_.forward, row_.length);
    List<std::uint32_t> const ends = in_order(row_.end, row_.length);
    std::size_t f = 0;
    for (std::size_t e = 0; e < ends.size(); ++e) {
      for (; f < forwards.size() && row_.forward[forwards[f]] <= row_.end[ends[e]]; ++f)
        begin(forwards[f], static_cast<std::uint32_t>(f), static_cast<std::uint32_t>(e));
      end(ends[e], static_cast<std::uint32_t>(e));
    }
    versions_.pulls.push_back({minibatches_, (minibatches_ + per_push_ - 1) / per_push_, 0, true});
    versions_.slots = slots_.count();
    return std::move(versions_);
  }

 private:
  /// Before the forward of a minibatch: brings the newest version up to what the minibatch must
  /// see.
  void begin(std::uint32_t m, std::uint32_t expected, std::uint32_t ended) {
    int const minibatch = static_cast<int>(m);
    int const own = model_.version(model_.policy, minibatch, static_cast<int>(ended));
    int const rounds =  // it has at least the rounds of the previous one
        std::max(model_.needs(model_.policy, minibatch), static_cast<int>(rounds_));
    if (m != expected)
      raise(Errc::bad_schedule, "stage ", row_.stage, " begins minibatch ", m, " where ", expected,
            " is next; workers that exchange changes take minibatches in order");
    if (own < static_cast<int>(own_) || own > static_cast<int>(ended))
      raise(Errc::bad_schedule, "the staleness model asks for version ", own,
            " of the weights of stage ", row_.stage, " at minibatch ", m, ", when ", ended,
            " changes have been made and the minibatch before saw ", own_,
            "; use a schedule with fewer minibatches in flight, such as schedule::Fifo{1}, or a "
            "staleness model for as many");
    if (std::int64_t{rounds} * model_.push_minibatches > own)
      raise(Errc::bad_schedule, "the staleness model needs ", counted(rounds, "push"),
            " of every worker at minibatch ", m, ", whose weights contain ", own,
            " own minibatches; a worker can wait for no more than it has pushed itself");
    auto const wanted = static_cast<std::uint32_t>(own);
    std::uint32_t const pushed = wanted / per_push_;
    if (pushed > own_ / per_push_) {
      if (model_.adds == staleness::Adds::on_arrival && ended / per_push_ > pushed)
        raise(Errc::bad_schedule, "the staleness model lets minibatch ", m, " of stage ",
              row_.stage, " see ", pushed, " of ", ended / per_push_,
              " own pushes; where the server adds on arrival, it sees all of them: let the model "
              "add in the order of workers, or the weights contain what has been pushed");
      pull(m, static_cast<std::uint32_t>(rounds), pushed);
    }
    if (static_cast<std::uint32_t>(rounds) != rounds_)
      raise(Errc::bad_schedule, "the staleness model needs ", counted(rounds, "push"),
            " of every worker at minibatch ", m,
            ", amid a push of its own; it may need more only with the first "
            "minibatch whose weights contain a further push of ",
            model_.push_minibatches);
    while (own_ < wanted) add(m);
    slots_.use(newest_);
    versions_.seen[m] = newest_;
  }

  /// Makes a version from a snapshot and the worker's own later pushes.
  void pull(std::uint32_t m, std::uint32_t rounds, std::uint32_t pushed) {
    for (; own_ < pushed * per_push_; ++own_) slots_.release(change_[own_]);
    slots_.release(newest_);
    newest_ = slots_.take();
    rounds_ = rounds;
    versions_.pulls.push_back(
        {m, rounds, static_cast<std::uint16_t>(pushed - rounds), true, 0, newest_});
  }

  /// Makes a version from the newest one and the next change.
  void add(std::uint32_t m) {
    std::uint16_t const to = change_[own_++];
    versions_.pulls.push_back({m, 0, 0, false, newest_, to});
    slots_.release(newest_);
    newest_ = to;
  }

  /// After the last backward of a minibatch: makes its change.
  void end(std::uint32_t m, std::uint32_t expected) {
    if (m != expected)
      raise(Errc::bad_schedule, "stage ", row_.stage, " ends minibatch ", m, " where ", expected,
            " is next; workers that exchange changes take minibatches in order");
    std::uint16_t const seen = versions_.seen[m];
    slots_.release(seen);
    change_[m] = slots_.take();  // in place, if no other minibatch sees that version
    versions_.updates[m] = {row_.end[m], seen, change_[m]};
  }

  StalenessModel const& model_;
  StageRow const& row_;
  std::uint32_t minibatches_;
  std::uint32_t per_push_;
  Versions versions_;
  ExchangeSlots slots_;
  List<std::uint16_t> change_;  // [minibatches] slot
  std::uint16_t newest_ = 0;    // slot of the newest version
  std::uint32_t own_ = 0;       // own changes that it contains
  std::uint32_t rounds_ = 0;    // pushes of every worker that it contains
};

/// @throws Error  bad_schedule for an order of actions that does not fit the staleness model; names
///                stage and minibatch
[[nodiscard]] [[gnu::cold]] inline Versions fix_exchanged_versions(StalenessModel const& model,
                                                                   StageRow const& row) {
  if (model.microbatches != 1)
    raise(Errc::bad_configuration,
          "workers that exchange changes take minibatches of 1 microbatch, "
          "not of ",
          model.microbatches, "; let microbatches() of the staleness model be 1");
  return ExchangePass(model, row).run();
}

}  // namespace stagger::detail
