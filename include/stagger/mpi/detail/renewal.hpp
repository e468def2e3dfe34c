// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Parameters that several processes update: what each hands to the others after a step,
///         and how all come to have everything.

#include <cstddef>
#include <exception>
#include <span>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/engine/cargo.hpp>
#include <stagger/mpi/communicator.hpp>
#include <stagger/mpi/detail/channels.hpp>

namespace stagger::mpi::detail {

/// Brings values and optimizer state of every layer from the process that updates it, or from each
/// that updates a part. All processes call it.
inline void gather(Communicator& world, stagger::detail::Cargo const& cargo,
                   std::vector<int> const& process_of) {
  auto& machine = cargo.machine;
  double const deadline_s = machine.options().deadline_s;
  auto const broadcast = [&](std::span<std::byte> bytes, int rank) {
    if (bytes.empty()) return;
    world.broadcast(bytes, process_of[static_cast<std::size_t>(rank)]).wait(deadline_s);
  };
  std::vector<ParameterState> shown;
  machine.append_states(shown);
  auto& parameters = machine.parameters();
  for (std::size_t l = 0, next = 0; l < parameters.size(); ++l)
    for (std::size_t p = 0; p < parameters[l].count(); ++p, ++next) {
      int const owner = cargo.owner_of(l);
      broadcast(shown[next].value, owner);
      for (auto const state : shown[next].state)
        if (!machine.shards()) broadcast(state, owner);
    }
  if (!machine.shards()) return;
  cargo.each_shard([&](int rank, std::size_t l, stagger::detail::ByteRange part) {
    for (std::size_t s = 0; s < 2; ++s)
      if (part.first < part.last) broadcast(parameters[l].shown_state(s, part), rank);
  });
}

/// One process's part in the end of a step in which each replica updates a part of its layers.
class Renewal {
 public:
  /// @param runs  [processes][ranks] whether a process runs a rank; outlives this
  /// @param pool  of messages, for values
  void load(stagger::detail::Cargo const& cargo, bool const* runs, int processes, int here,
            std::size_t pool) {
    runs_ = runs;
    pool_ = pool;
    here_ = here;
    ranks_ = cargo.program().ranks.size();
    givers_ = 0;
    takers_.clear();
    for (int p = 0; p < processes; ++p) {
      if (p == here) continue;
      if (cargo.renews(runs_of(p), runs_of(here))) ++givers_;
      if (cargo.renews(runs_of(here), runs_of(p))) takers_.push_back(p);
    }
  }
  void begin_step() noexcept { missing_ = givers_; }
  /// Processes whose values have not come.
  [[nodiscard]] int missing() const noexcept { return missing_; }

  /// To those who have the same stages, what is new. The others have none of it in this step.
  void send(stagger::detail::Cargo const& cargo, Channels& channels, std::uint32_t epoch,
            std::uint32_t what) const {
    if (cargo.machine.shards()) cargo.clear_gradients_of(runs_of(here_));
    for (int const& peer : takers_) {
      auto message = channels.blank(pool_);
      cargo.write_values(message->payload, runs_of(here_), runs_of(peer));
      channels.post(std::move(message), epoch, what, &peer, 1);
    }
  }
  void take(stagger::detail::Cargo const& cargo, ByteReader& in, int peer) {
    cargo.read_values(in, runs_of(peer), runs_of(here_));
    --missing_;
  }

  /// After a step that was decided, and whose values did not all come: no step can follow.
  void tear() noexcept { torn_ = true; }
  [[nodiscard]] bool torn() const noexcept { return torn_; }
  [[nodiscard]] static std::exception_ptr trouble() {
    return std::make_exception_ptr(
        Error(Errc::peer_failed,
              "a process ended before it had handed over the parameters that it updated, so some "
              "are new and some old; go on from a checkpoint in new processes"));
  }

 private:
  [[nodiscard]] bool const* runs_of(int process) const noexcept {
    return runs_ + static_cast<std::size_t>(process) * ranks_;
  }

  bool const* runs_ = nullptr;
  std::size_t ranks_ = 0;
  std::size_t pool_ = 0;
  int here_ = 0;
  std::vector<int> takers_{};  // processes that are handed what this one has updated
  int givers_ = 0;             // those that hand it what they have
  int missing_ = 0;
  bool torn_ = false;
};

}  // namespace stagger::mpi::detail
