// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The supervision of a step: how long nothing has moved, how long each process has been
///         silent, the progress of the ranks of all processes, and the reports about them.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/list.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/mpi/detail/channels.hpp>
#include <stagger/mpi/detail/edge_values.hpp>
#include <stagger/mpi/detail/held_parameters.hpp>
#include <stagger/mpi/detail/placement.hpp>
#include <stagger/program/describe.hpp>
#include <stagger/program/program.hpp>

namespace stagger::mpi::detail {

/// What one process knows when no rank moves: which rank waits for which, and which processes have
/// fallen silent.
class Stall {
 public:
  /// @param at     [ranks] instructions that are known to be done
  /// @param given  [signals] that are known to be given
  Stall(Program const& program, Placement const& placement, std::vector<std::size_t> at,
        List<std::uint32_t> const& given)
      : program_(program), placement_(placement), at_(std::move(at)), given_(given.size(), 0) {
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      auto const& code = program.ranks[r].code;
      std::vector<std::uint32_t> gives(given.size(), 0);
      for (std::size_t i = 0; i < code.size(); ++i)  // a rank has passed each signal that it gave
        for (std::size_t g = 0; g < code[i].signal_count; ++g)
          if (++gives[code[i].signal[g]] <= given[code[i].signal[g]])
            at_[r] = std::max(at_[r], i + 1);
      for (std::size_t i = 0; i < at_[r]; ++i)
        for (std::size_t g = 0; g < code[i].signal_count; ++g) ++given_[code[i].signal[g]];
    }
  }

  /// What each rank waits for. @param outside  who gives signals that no rank gives
  [[nodiscard]] std::string waits(std::string const& outside) const {
    return stagger::detail::describe_stall(program_, at_, given_, outside);
  }
  /// For a process that has fallen silent, what others wait for from it.
  /// @param quiet_s  since it was heard from
  [[nodiscard]] std::string silent(int process, double quiet_s) const {
    std::string silent = text("; process ", process, " has not been heard of for ",
                              std::round(quiet_s * 10) / 10, " s");
    for (std::size_t r = 0; r < program_.ranks.size(); ++r)
      if (placement_.runs(process)[r] && at_[r] < program_.ranks[r].code.size())
        silent += text(", its rank ", r, " owes ",
                       stagger::detail::describe(program_, program_.ranks[r].code[owed(r)]));
    return silent;
  }

 private:
  /// The first instruction of a rank that another rank waits for; if none does, the next one.
  [[nodiscard]] std::size_t owed(std::size_t rank) const {
    auto const& code = program_.ranks[rank].code;
    std::size_t first = code.size();
    for (std::size_t r = 0; r < program_.ranks.size(); ++r) {
      auto const& other = program_.ranks[r];
      if (at_[r] >= other.code.size()) continue;
      std::size_t w = 0;
      for (std::size_t i = 0; i < at_[r]; ++i) w += other.code[i].waits;
      for (std::size_t const end = w + other.code[at_[r]].waits; w < end; ++w)
        if (given_[other.waits[w].signal] < other.waits[w].count)
          first = std::min(first, sender_of(code, other.waits[w]));
    }
    return first < code.size() ? first : at_[rank];
  }

  /// The instruction whose signal ends a wait; the end of the code if it is on another rank.
  [[nodiscard]] static std::size_t sender_of(List<Instruction> const& code, Wait const& wait) {
    std::uint32_t left = wait.count;
    for (std::size_t i = 0; i < code.size(); ++i)
      for (std::size_t g = 0; g < code[i].signal_count; ++g)
        if (code[i].signal[g] == wait.signal && --left == 0) return i;
    return code.size();
  }

  Program const& program_;
  Placement const& placement_;
  std::vector<std::size_t> at_;       // [ranks]
  std::vector<std::uint32_t> given_;  // [signals]
};

class Watch {
 public:
  using Clock = std::chrono::steady_clock;

  void load(Placement const& placement) {
    heard_at_.resize(static_cast<unsigned>(placement.processes()));
    at_.assign(static_cast<std::size_t>(placement.ranks()), 0);
  }
  void begin_step() {
    started_at_ = moved_at_ = reported_at_ = Clock::now();
    heard_at_.assign(heard_at_.size(), started_at_);
    std::fill(at_.begin(), at_.end(), 0);
  }

  /// Seconds since the step began.
  [[nodiscard]] double now_s() const { return seconds_since(started_at_); }
  /// Seconds since a rank of this process moved, or one of another process is known to have moved.
  [[nodiscard]] double quiet_s() const { return seconds_since(moved_at_); }
  [[nodiscard]] double silent_s(int process) const { return seconds_since(heard_at_[process]); }
  void moved() { moved_at_ = Clock::now(); }
  void heard_from(int process) { heard_at_[process] = Clock::now(); }

  /// Whether it is time to report this process's progress to the others.
  [[nodiscard]] bool is_time_to_report(double every_s) {
    if (seconds_since(reported_at_) < every_s) return false;
    reported_at_ = Clock::now();
    return true;
  }
  static void write(ByteWriter& out, stagger::detail::RankState const& rank) {
    out.add(static_cast<std::uint32_t>(rank.number));
    out.add(static_cast<std::uint64_t>(done(rank)));
  }
  void read(ByteReader& in) {
    while (in.left() != 0) {
      auto const rank = in.take<std::uint32_t>();
      auto const at = static_cast<std::size_t>(in.take<std::uint64_t>());
      if (at > at_[rank]) moved();
      at_[rank] = std::max(at_[rank], at);
    }
  }
  /// Notes the progress of a rank of this process.
  void note_progress(stagger::detail::RankState const& rank) {
    at_[static_cast<std::size_t>(rank.number)] = done(rank);
  }

  /// The message of a stall.
  /// @param given  [signals] that are known to be given
  /// @param ended  whether the ranks of this process have ended, but not every process has all
  ///               updated parameters
  [[nodiscard]] std::string describe_stall(stagger::detail::Machine const& machine,
                                           Placement const& placement,
                                           List<std::uint32_t> const& given, bool ended) const {
    double const deadline_s = machine.options().deadline_s;
    Stall const stall(machine.program(), placement, at_, given);
    std::string silent;
    for (int p = 0; p < placement.processes(); ++p)
      if (p != placement.here() && silent_s(p) >= deadline_s / 2)
        silent += stall.silent(p, silent_s(p));
    if (ended)
      return text("for ", deadline_s, " s no process said that it has all updated parameters",
                  silent, "; parameters are those after step ", machine.steps());
    return text("no rank moved for ", deadline_s, " s: ", stall.waits(machine.waits_for()), silent,
                "; raise Options::deadline_s if an action may take that long");
  }

 private:
  [[nodiscard]] static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  [[nodiscard]] static std::size_t done(stagger::detail::RankState const& rank) {
    return static_cast<std::size_t>(rank.next.load(std::memory_order_relaxed) - rank.begin);
  }

  Clock::time_point started_at_{}, moved_at_{}, reported_at_{};
  List<Clock::time_point> heard_at_{};  // [processes]
  std::vector<std::size_t> at_{};       // [ranks] instructions that are known to be done
};

struct LocalRank {
  enum class State : std::uint8_t { runnable, blocked, done };
  stagger::detail::RankState* rank = nullptr;
  State state = State::done;
};

/// Sends and receives reports about ranks: their progress, recorded spans, and results for the
/// caller of the step.
class Reports {
 public:
  Reports(HeldParameters const& held, EdgeValues const& values, Channels& channels)
      : held_(held), values_(values), channels_(channels) {}

  /// If ranks vote to update, their votes also say that they have finished, and carry the results.
  void begin_step() noexcept { missing_ = held_.commits() ? 0 : channels_.size() - 1; }
  /// Whether reports of other processes are still missing.
  [[nodiscard]] bool missing() const noexcept { return missing_ != 0; }

  /// If steps are recorded: sends the spans of a rank and of its reducer, which has finished too.
  void send_spans(stagger::detail::RankState const& rank, List<LocalRank> const& ranks,
                  Stamp const& stamp) {
    if (!held_.machine.options().record) return;
    for (LocalRank const& entry : ranks)
      if (entry.rank == &rank || reducer_for(entry) == rank.number) send_spans(*entry.rank, stamp);
  }
  /// @param ranks  of this process, which have all finished
  void send_results(List<LocalRank> const& ranks, Stamp const& stamp) {
    auto message = channels_.blank();
    for (LocalRank const& entry : ranks) {
      if (held_.machine.options().record) send_spans(*entry.rank, stamp);
      message->payload.add(static_cast<std::uint32_t>(entry.rank->number));
      values_.results(Writing{message->payload}, entry.rank->number);
    }
    channels_.post_to_all(std::move(message), stamp, notice_of_results);
  }
  /// Sends the progress of this process's ranks, for the error messages of the others when nothing
  /// moves.
  void send_progress(List<LocalRank> const& ranks, Stamp const& stamp) {
    auto message = channels_.blank();
    for (LocalRank const& entry : ranks) Watch::write(message->payload, *entry.rank);
    channels_.post_to_all(std::move(message), stamp, notice_of_progress);
  }
  /// @param what  notice_of_spans or notice_of_results
  void take(std::uint32_t what, ByteReader& in) {
    while (in.left() != 0) {
      auto const rank = in.take<std::uint32_t>();
      if (what == notice_of_spans)
        values_.spans(Reading{in}, rank);
      else
        values_.results(Reading{in}, rank);
    }
    if (what == notice_of_results) --missing_;
  }

 private:
  [[nodiscard]] int reducer_for(LocalRank const& entry) const {
    return held_.program().ranks[entry.rank->number].reducer_for;
  }
  void send_spans(stagger::detail::RankState const& rank, Stamp const& stamp) {
    auto message = channels_.blank();
    message->payload.add(static_cast<std::uint32_t>(rank.number));
    values_.spans(Writing{message->payload}, rank.number);
    channels_.post_to_all(std::move(message), stamp, notice_of_spans);
  }

  HeldParameters const& held_;
  EdgeValues const& values_;
  Channels& channels_;
  int missing_ = 0;  // processes that have not finished
};

}  // namespace stagger::mpi::detail
