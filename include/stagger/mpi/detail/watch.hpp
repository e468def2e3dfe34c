// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The supervision of a step: how long nothing has moved, how long each process has been
///         silent, and the progress of all ranks.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/mpi/detail/placement.hpp>
#include <stagger/mpi/detail/stall.hpp>

namespace stagger::mpi::detail {

class Watch {
 public:
  using Clock = std::chrono::steady_clock;

  void load(Placement const& placement) {
    if (heard_at_.size() == 0) heard_at_ = FixedArray<Clock::time_point>(placement.processes());
    at_.assign(static_cast<std::size_t>(placement.ranks()), 0);
  }
  void begin_step() {
    started_at_ = moved_at_ = reported_at_ = Clock::now();
    std::fill(heard_at_.begin(), heard_at_.end(), started_at_);
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

  /// The message of a stall: which rank waits for which.
  /// @param given  [signals] that are known to be given
  [[nodiscard]] std::string describe_stall(stagger::detail::Machine const& machine,
                                           Placement const& placement,
                                           List<std::uint32_t> const& given, bool ended) const {
    std::vector<double> silent;
    for (int p = 0; p < placement.processes(); ++p)
      silent.push_back(p == placement.here() ? 0 : silent_s(p));
    double const deadline_s = machine.options().deadline_s;
    Stall const stall(machine.program(), placement, at_, given);
    if (!ended) return stall.describe(silent, deadline_s, machine.waits_for());
    return stall.describe_handover(silent, deadline_s) +
           text("; parameters are those after step ", machine.steps());
  }

 private:
  [[nodiscard]] static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  [[nodiscard]] static std::size_t done(stagger::detail::RankState const& rank) {
    return static_cast<std::size_t>(rank.next.load(std::memory_order_relaxed) - rank.begin);
  }

  Clock::time_point started_at_{}, moved_at_{}, reported_at_{};
  FixedArray<Clock::time_point> heard_at_{};  // [processes]
  std::vector<std::size_t> at_{};             // [ranks] instructions that are known to be done
};

}  // namespace stagger::mpi::detail
