// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Iterations over several GPUs as CUDA graphs.

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <stagger/cuda/detail/iteration.hpp>
#include <stagger/cuda/graph.hpp>
#include <stagger/nccl/detail/consent.hpp>
#include <stagger/nccl/detail/wiring.hpp>

namespace stagger::nccl::detail {

/// One graph for each turn, over all GPUs of this process: the streams of the others belong to the
/// capture of the first one's. A graph of each GPU would be as right to NCCL, but launching them is
/// several calls: one may block until the next is made, or be refused when others have begun.
class Recordings {
 public:
  Recordings(Fleet& fleet, Wiring& wiring, std::size_t turns, cuda::GraphCounts* counts)
      : fleet_(fleet), wiring_(wiring), turns_(turns), counts_(counts ? counts : &own_counts_) {}

  [[nodiscard]] cuda::GraphCounts& counts() const noexcept { return *counts_; }
  /// Nothing that was recorded counts any more.
  void forget() noexcept {
    for (auto& turn : turns_) turn.current = false;
  }

  /// An iteration goes on behind the last one. Within a GPU it does so by itself; a graph, though,
  /// begins and ends on the first of them.
  void follow(bool replays) {
    if (last_ == Wiring::none || last_replayed_ == replays) return;
    for (std::size_t g = 1; g < fleet_.size(); ++g)
      if (replays)
        fleet_[0].home.wait(wiring_.end_of(last_, g));
      else
        fleet_[g].home.wait(wiring_.end_of(last_, 0));
  }
  /// Which iteration was the last; none: all that were have ended.
  void went(std::size_t turn, bool replayed) noexcept {
    last_ = turn;
    last_replayed_ = replayed;
  }

  /// Whether the processes can be asked; else `meet` them first.
  [[nodiscard]] bool met() const noexcept { return fleet_.alone() || consent_.has_value(); }
  /// @pre  no step is in flight
  [[gnu::cold]] void meet(double meet_s) { consent_.emplace(fleet_, meet_s); }

  /// Whether an iteration must be recorded, since the batch is another than the graph was made for,
  /// here or in another process.
  [[nodiscard]] bool stale(std::size_t number, stagger::detail::StepArguments const& arguments,
                           std::size_t microbatches, double seconds) {
    Turn const& turn = turns_[number];
    bool const own = !turn.current || !turn.shown.same(arguments, microbatches);
    return fleet_.alone() ? own : consent_->any(own, seconds);
  }

  /// Records what `body()` enqueues on the streams of all GPUs.
  /// @throws Error  what CUDA and NCCL refused; what `body` throws
  template <class Body>
  [[gnu::cold]] void record(std::size_t number, stagger::detail::StepArguments const& arguments,
                            std::size_t microbatches, Body body) {
    struct Capturing {
      explicit Capturing(Fleet& of) : fleet(of) { fleet.capturing(true); }
      Capturing(Capturing const&) = delete;
      Capturing& operator=(Capturing const&) = delete;
      ~Capturing() { fleet.capturing(false); }
      Fleet& fleet;
    } const capturing(fleet_);
    Turn& turn = turns_[number];
    turn.current = false;
    wiring_.use(0);
    turn.graph.capture(fleet_[0].home, *counts_, [&] {
      fleet_[0].home.record(wiring_.end_of(number, 0));
      for (std::size_t g = 1; g < fleet_.size(); ++g)
        fleet_[g].home.wait(wiring_.end_of(number, 0));
      body();
      for (std::size_t g = 1; g < fleet_.size(); ++g) {
        fleet_[g].home.record(wiring_.end_of(number, g));
        fleet_[0].home.wait(wiring_.end_of(number, g));
      }
    });
    turn.shown.remember(arguments, microbatches);
    turn.current = true;
  }

  void replay(std::size_t number) {
    wiring_.use(0);
    turns_[number].graph.replay(fleet_[0].home, *counts_);
  }

  /// Ends what the processes say to each other. @return whether nothing of it is left
  [[nodiscard]] [[gnu::cold]] bool idle() const { return !consent_ || consent_->idle(); }
  [[gnu::cold]] void abort(char const* reason) {
    if (consent_) consent_->abort(reason);
  }
  /// NCCL keeps what graphs refer to until they are gone.
  [[gnu::cold]] void drop() noexcept {
    for (auto& turn : turns_) turn = Turn();
  }

 private:
  struct Turn {
    cuda::Graph graph;
    cuda::detail::Shown shown;  // what it was recorded with
    bool current = false;
  };

  Fleet& fleet_;
  Wiring& wiring_;
  std::vector<Turn> turns_;
  cuda::GraphCounts own_counts_;
  cuda::GraphCounts* counts_;
  std::optional<Consent> consent_;
  std::size_t last_ = Wiring::none;
  bool last_replayed_ = false;
};

}  // namespace stagger::nccl::detail
