// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Parameters that several processes update: what each hands to the others before the end
///         of a step, and how all come to have everything.

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/mpi/detail/channels.hpp>
#include <stagger/mpi/detail/exchange.hpp>
#include <stagger/mpi/detail/held_parameters.hpp>

namespace stagger::mpi::detail {

/// Brings values and optimizer state of every layer from the process that updates it, or from each
/// that updates a part. All processes call it.
inline void gather(Exchange& world, HeldParameters const& held,
                   std::vector<int> const& process_of) {
  auto& machine = held.machine;
  double const deadline_s = machine.options().deadline_s;
  auto const broadcast = [&](std::span<std::byte> bytes, int rank) {
    if (bytes.empty()) return;
    world.broadcast(bytes, process_of[static_cast<std::size_t>(rank)],
                    "bring parameters and optimizer state to all", deadline_s);
  };
  std::vector<ParameterState> shown;
  machine.append_states(shown);
  auto& parameters = machine.parameters();
  for (std::size_t l = 0, next = 0; l < parameters.size(); ++l)
    for (std::size_t p = 0; p < parameters[l].count(); ++p, ++next) {
      int const owner = held.owner_of(l);
      broadcast(shown[next].value, owner);
      for (auto const state : shown[next].state)
        if (!machine.shards()) broadcast(state, owner);
    }
  if (!machine.shards()) return;
  held.each_shard([&](int rank, std::size_t l, ByteRange part) {
    for (std::size_t s = 0; s < 2; ++s)
      if (part.first < part.last) broadcast(parameters[l].shown_state(s, part), rank);
  });
}

/// One process's part in the end of a step in which each replica updates a part of its layers. What
/// comes from others stays in the messages until it is agreed that all have everything.
class ParameterExchange {
 public:
  /// @param runs  [processes][ranks] whether a process runs a rank; outlives this
  /// @param pool  of messages, for values
  void load(HeldParameters const& held, bool const* runs, int processes, int here,
            std::size_t pool) {
    runs_ = runs;
    pool_ = pool;
    here_ = here;
    ranks_ = held.program().ranks.size();
    takers_.clear();
    others_.clear();
    given_.resize(static_cast<std::size_t>(processes));
    for (int p = 0; p < processes; ++p) {
      if (p == here) continue;
      given_[static_cast<std::size_t>(p)].bytes = held.renewed_bytes(runs_of(p), runs_of(here));
      bool const taker = held.renewed_bytes(runs_of(here), runs_of(p)) != 0;
      (taker ? takers_ : others_).push_back(p);
    }
  }
  void begin_step() noexcept {
    for (Given& given : given_) given.here = false;
  }

  /// To those who have the same stages, what is new; to the others, that there is something.
  void send(HeldParameters const& held, Channels& channels, Stamp const& stamp) const {
    held.clear_gradients_of(runs_of(here_));
    for (int const& peer : takers_) {
      auto message = channels.blank(pool_);
      held.write_values(message->payload, runs_of(here_), runs_of(peer));
      channels.post(std::move(message), stamp, say_values, &peer, 1);
    }
    if (!others_.empty())
      channels.post(channels.blank(), stamp, say_values, others_.data(), others_.size());
  }
  /// Keeps what a process hands over.
  void take(Channels& channels, ByteReader const& in, int peer) {
    Given& given = given_[static_cast<std::size_t>(peer)];
    if (in.left() != given.bytes)
      raise(Errc::mismatch, "process ", peer, " hands over ", in.left(),
            " bytes of parameters instead of ", given.bytes,
            "; start all processes with one program");
    given.here = given.bytes != 0;
    if (given.here) channels.keep_payload(peer, given.memory);
  }
  /// Once all have everything: puts it where it belongs.
  void commit(HeldParameters const& held, Channels& channels) noexcept {
    for (std::size_t p = 0; p < given_.size(); ++p) {
      Given& given = given_[p];
      if (!std::exchange(given.here, false)) continue;
      ByteReader in(given.memory.bytes.get(), given.bytes);
      held.read_values(in, runs_of(static_cast<int>(p)), runs_of(here_));
      channels.return_payload(static_cast<int>(p), given.memory);
    }
  }

 private:
  /// What a process updates and this one has.
  struct Given {
    std::size_t bytes = 0;
    bool here = false;  // in this step
    Payload memory{};
  };

  [[nodiscard]] bool const* runs_of(int process) const noexcept {
    return runs_ + static_cast<std::size_t>(process) * ranks_;
  }

  bool const* runs_ = nullptr;
  std::size_t ranks_ = 0;
  std::size_t pool_ = 0;
  int here_ = 0;
  std::vector<int> takers_{};   // processes that are handed what this one has updated
  std::vector<int> others_{};   // the rest
  std::vector<Given> given_{};  // [processes]
};

}  // namespace stagger::mpi::detail
