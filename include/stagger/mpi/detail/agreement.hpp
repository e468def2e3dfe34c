// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A step that all processes take together: the comparisons before messages are used, the
///         common loading of a program, and the reports of failures.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include <stagger/collective/handshake.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/mpi/detail/channels.hpp>
#include <stagger/mpi/detail/ending.hpp>
#include <stagger/mpi/detail/exchange.hpp>
#include <stagger/mpi/detail/placement.hpp>
#include <stagger/program/facts.hpp>

namespace stagger::mpi::detail {

/// @throws Error mismatch if another process takes another step than this one
inline void require_same_step(Envelope const& theirs, Stamp const& own, int peer, int here) {
  bool const differs = theirs.uses != 0 && own.uses != 0 && theirs.uses != own.uses;
  if (theirs.steps == own.steps && !differs) return;
  bool const lower = peer < here;
  int const first = lower ? peer : here;
  int const second = lower ? here : peer;
  if (theirs.steps != own.steps)
    raise(Errc::mismatch, "process ", first, " goes on from step ",
          lower ? theirs.steps : own.steps, ", process ", second, " from step ",
          lower ? own.steps : theirs.steps,
          "; resume all processes from the same checkpoint, and take the same steps in all");
  if (own.uses <= 2)
    raise(Errc::mismatch, "process ", own.uses == 1 ? here : peer, " is asked for a loss, process ",
          own.uses == 1 ? peer : here, " for outputs; ask for the same in all processes");
  raise(Errc::mismatch, "processes ", first, " and ", second, " take step ", own.steps + 1,
        " with different numbers in the optimizer, such as its learning rate; set them alike in "
        "all processes");
}

/// What a program does, for error messages.
[[nodiscard]] inline std::string asked(Program const& program) {
  return text(program.training ? "a training" : "a forward-only", " step of ",
              counted(program.microbatches, "microbatch"));
}

/// @throws Error  mismatch if only one of this process and another is to load a program
[[noreturn]] inline void refuse_load(Envelope const& theirs, Stamp const& own, int peer, int here,
                                     Program const& program) {
  if (theirs.steps != own.steps) require_same_step(theirs, own, peer, here);
  raise(Errc::mismatch, "process ", here, " is asked for ", asked(program), ", process ", peer,
        " for something else; ask for the same in all processes");
}

/// Tells all other processes why a step ended here, or could not begin. They may be gone.
inline void tell_failure(Channels& channels, Stamp const& stamp,
                         std::exception_ptr const& failure) noexcept {
  peers_may_be_lost = true;
  FailureReport const told = report_of(failure);
  try {
    auto message = channels.blank();
    message->payload.add(static_cast<std::uint32_t>(told.code));
    message->payload.add(told.message.data(), told.message.size());
    channels.post_to_all(std::move(message), stamp, notice_of_failure);
    channels.flush(0.2);
  } catch (...) {  // the others will reach their deadline
  }
}
/// The error that another process reported, for the caller here.
[[nodiscard]] inline Error failure_of(int peer, Envelope const& envelope, ByteReader& in) {
  peers_may_be_lost = true;
  auto const code = static_cast<Errc>(in.take<std::uint32_t>());
  std::string message(in.left(), ' ');
  in.take(message.data(), message.size());
  if (code == Errc::deadline || code == Errc::mismatch) return {code, message};  // as in all
  bool const began = (envelope.epoch & 1U) != 0;
  return {
      Errc::peer_failed,
      text("process ", peer, began ? " ended the step: " : " could not begin the step: ", message)};
}

/// The step, or the preparation of one, that all processes are taking together: its stamp for
/// messages, and whether the others know why this process has stopped.
class Round {
 public:
  Round(stagger::detail::Machine const& machine, Channels& channels)
      : machine_(machine), channels_(channels) {}

  /// @param number  of the round, counted by every process alike
  void open(std::uint32_t number) noexcept {
    stamp_.epoch = 2 * number;
    told_ = false;
  }
  /// The program is being loaded.
  void begin_load() noexcept { stamp(stamp_.epoch, 0); }
  /// The step runs.
  void begin_step() noexcept {
    stamp(stamp_.epoch | 1U, machine_.arguments().outputs.first != nullptr ? 2 : 1);
  }
  [[nodiscard]] Stamp const& stamp() const noexcept { return stamp_; }

  [[nodiscard]] bool told() const noexcept { return told_; }
  /// Tells the others why this process stopped. They may be gone.
  void tell(std::exception_ptr const& failure) noexcept {
    told_ = true;
    tell_failure(channels_, stamp_, failure);
  }
  /// Receives the reason why another process stopped, which it has sent to all processes.
  [[nodiscard]] std::exception_ptr take_failure(int peer, Envelope const& envelope,
                                                ByteReader& in) {
    told_ = true;
    return std::make_exception_ptr(failure_of(peer, envelope, in));
  }

 private:
  /// @param wants  of a step without an update: see Stamp::uses
  void stamp(std::uint32_t epoch, std::uint64_t wants) noexcept {
    bool const training = machine_.program().training;
    stamp_ = {epoch, machine_.steps(), training ? machine_.optimizer_digest() : wants};
  }

  stagger::detail::Machine const& machine_;
  Channels& channels_;
  Stamp stamp_{};
  bool told_ = false;
};

/// @throws Error  mismatch for the first fact that is not equal in all processes
inline void agree(Exchange& world, std::vector<collective::Fact> const& facts, double seconds) {
  collective::agree(world.rank(), world.size(), facts, [&](std::span<std::byte> all) {
    world.all_gather(all, "compare what they run", seconds);
  });
}

/// The facts of a program that must be equal in all processes: what every rank does, and where it
/// runs.
/// @param prepares  whether the program is only prepared, and no step follows
[[nodiscard]] inline std::vector<collective::Fact> facts_of(Program const& program,
                                                            Placement const& placement,
                                                            bool prepares) {
  std::vector<collective::Fact> facts;
  facts.push_back({"what the step does", program.training ? "training" : "forward only"});
  facts.push_back({"the number of microbatches", std::to_string(program.microbatches)});
  facts.push_back({"the number of ranks", std::to_string(program.ranks.size())});
  std::string places;
  for (int r = 0; r < placement.ranks(); ++r)
    places += text(places.empty() ? "" : " ", placement.process_of(r));
  facts.push_back({"the processes of the ranks", places});
  facts.push_back({"the groups of gradients", stagger::detail::describe_groups(program)});
  for (std::size_t r = 0; r < program.ranks.size(); ++r)
    facts.push_back(
        {text("the program of rank ", r), stagger::detail::digest_of(program.ranks[r]).hex()});
  facts.push_back({"what is asked for", prepares ? "Trainer::prepare" : "a step"});
  return facts;
}
/// A digest of these facts, for which nothing is allocated.
[[nodiscard]] inline std::uint64_t digest_of(Program const& program, Placement const& placement,
                                             bool prepares) noexcept {
  stagger::detail::Digest all;
  all.numbers(program.training, program.microbatches, program.ranks.size(), prepares,
              program.groups.size());
  for (int r = 0; r < placement.ranks(); ++r) all.numbers(placement.process_of(r));
  for (GradientGroup const& group : program.groups)
    all.numbers(group.stage, group.lowest, group.highest);
  for (RankProgram const& rank : program.ranks)
    all.numbers(stagger::detail::digest_of(rank).value());
  return all.value();
}

/// The agreement of all processes before they load a program.
class LoadAgreement {
 public:
  /// @param prepares  as in facts_of
  /// @throws Error  the reason why a process could not begin the round; mismatch with a process
  /// that loads another program or none; deadline for one that does not arrive
  void reach(Exchange& world, Channels& channels, Round& round, Program const& program,
             Placement const& placement, bool prepares, double seconds) {
    if (channels.size() == 1) return;
    round.begin_load();
    Stamp const& stamp = round.stamp();
    std::uint64_t const digest = digest_of(program, placement, prepares);
    auto message = channels.blank();
    message->payload.add(digest);
    channels.post_to_all(std::move(message), stamp, notice_of_load);
    int const here = channels.rank();
    if (came_.size() == 0) came_ = FixedArray<bool>(channels.size());
    std::fill(came_.begin(), came_.end(), false);
    came_[here] = true;
    bool same = true;
    auto const deliver = [&](int peer, Envelope const& envelope, ByteReader& in) {
      if (envelope.what == notice_of_failure)
        std::rethrow_exception(round.take_failure(peer, envelope, in));
      if (envelope.what != notice_of_load) return;
      require_same_step(envelope, stamp, peer, here);
      same = same && in.take<std::uint64_t>() == digest;
      came_[peer] = true;
    };
    Backoff waiting(std::chrono::microseconds(100), std::chrono::milliseconds(20));
    for (bool moved = true;; moved = channels.poll(stamp.epoch, deliver)) {
      auto const missing = std::find(came_.begin(), came_.end(), false);
      if (missing == came_.end()) break;
      for (int p = 0; p < channels.size(); ++p) {
        Envelope const* const next = came_[p] ? nullptr : channels.ahead(p, stamp.epoch);
        if (next != nullptr) refuse_load(*next, stamp, p, here, program);
      }
      if (waiting.waited_s() >= seconds)
        raise(Errc::deadline, "process ", missing - came_.begin(), " has not asked for ",
              asked(program), " within ", seconds,
              " s; see whether it lives, and ask for the same in all processes");
      if (!moved) waiting.pause();
    }
    if (!same)  // throws an error that names the difference
      agree(world, facts_of(program, placement, prepares), seconds);
  }

 private:
  FixedArray<bool> came_{};  // [processes]
};

}  // namespace stagger::mpi::detail
