// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The times at which a device carried out the actions of a recorded step.

#include <cstddef>
#include <vector>

#include <stagger/cuda/stream.hpp>
#include <stagger/program/program.hpp>

namespace stagger::cuda::detail {

/// The timed events of one step. They are made when a step is first recorded; steps that are not
/// recorded cost nothing.
class Timeline {
 public:
  /// @param origin  the stream whose first moment is time 0
  void begin(Stream const& origin) {
    marks_.clear();
    used_ = 0;
    mark(origin);
  }

  /// Whether an instruction has a time: an action, or a sum of gradients.
  [[nodiscard]] static bool shows(Instruction const& in) noexcept {
    return computes(in.op) || has_group(in.op);
  }

  /// Runs the function that enqueues an action, between two events of its stream.
  template <class Enqueue>
  void action(std::size_t rank, Instruction const& in, Stream const& stream, Enqueue enqueue) {
    mark(stream);
    enqueue();
    mark(stream);
    marks_.push_back({rank, &in});
  }

  /// Delivers the times once the device is done.
  template <class Machine> [[gnu::cold]] void finish(Machine& machine) {
    auto const since_start = [this](std::size_t event) {
      return events_[event].seconds_since(events_[0]);
    };
    for (std::size_t k = 0; k < marks_.size(); ++k) {
      auto& rank = machine.ranks()[marks_[k].rank];
      Instruction const& in = *marks_[k].in;
      if (!computes(in.op)) {
        machine.options().replicas.ops()->note(machine, rank, in, since_start(2 * k + 1),
                                               since_start(2 * k + 2));
        continue;
      }
      if (rank.record) record(rank, in, since_start(2 * k + 1), since_start(2 * k + 2));
    }
  }

 private:
  struct Mark {
    std::size_t rank;
    Instruction const* in;
  };
  void mark(Stream const& stream) {
    if (used_ == events_.size()) events_.emplace_back();
    events_[used_++].record(stream);
  }

  std::vector<TimedEvent> events_;  // the start, then two for each action in the order of issue
  std::size_t used_ = 0;
  std::vector<Mark> marks_;
};

}  // namespace stagger::cuda::detail
