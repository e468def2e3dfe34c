// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The back end of sim::VirtualClock.

#include <stagger/core/requirements.hpp>

#include <algorithm>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/alpha_beta.hpp>
#include <stagger/core/random.hpp>
#include <stagger/engine/backend.hpp>
#include <stagger/program/describe.hpp>
#include <stagger/schedule/costs.hpp>
#include <stagger/sim/clock.hpp>
#include <stagger/sim/detail/carried_link.hpp>

namespace stagger::sim {

/// Ranks as targets of an event queue, which others may share.
class VirtualClockBackend final : private detail::EventTarget {
 public:
  static constexpr bool timed = true;

  /// @param device  a VirtualClock, whose header includes this one
  /// @throws Error  for costs and times that are negative, not finite or not one for each stage or
  /// layer, or a jitter out of range
  template <class Device>
  VirtualClockBackend(Device const& device, stagger::detail::Machine& machine, int)
      : costs_(device.costs),
        sum_(device.sum),
        layer_backward_s_(device.layer_backward_s),
        jitter_(device.jitter),
        seed_(device.seed),
        machine_(machine),
        shared_(device.clock.has_value()),
        time_(shared_ ? device.clock->time() : Clock().time()) {
    schedule::require_costs(device.costs, machine.stages());
    if (!(device.jitter >= 0 && device.jitter < 1))
      raise(Errc::bad_configuration, "a jitter of ", device.jitter,
            " could make time run backwards; use 0 <= jitter < 1");
    auto const layers = machine.parameters().size();
    if (!device.layer_backward_s.empty() && device.layer_backward_s.size() != layers)
      raise(Errc::bad_configuration, device.layer_backward_s.size(),
            " backward times were given for ", layers, " layers; give one for each, or none");
    for (std::size_t l = 0; l < device.layer_backward_s.size(); ++l)
      collective::detail::require_cost(text("layer_backward_s of layer ", l).c_str(),
                                       device.layer_backward_s[l]);
    collective::detail::require_cost("sum.startup_s", device.sum.startup_s);
    collective::detail::require_cost("sum.per_byte_s", device.sum.per_byte_s);
    machine.outside({this,
                     [](void* self, std::uint32_t signal, std::uint32_t count) noexcept {
                       static_cast<VirtualClockBackend*>(self)->give_outside(signal, count);
                     },
                     [](void* self, std::exception_ptr why) noexcept {
                       auto& own = *static_cast<VirtualClockBackend*>(self);
                       own.fail(std::move(why));
                       own.end();
                     }});
  }
  VirtualClockBackend(VirtualClockBackend const&) = delete;
  VirtualClockBackend& operator=(VirtualClockBackend const&) = delete;
  ~VirtualClockBackend() {
    end();
    if (untold_) --time_->queue.untold;
    time_->queue.make_room(room_, 0);
  }

  /// A worker's link to its server, in the time of its clock.
  template <class Device>
  [[nodiscard]] static std::shared_ptr<detail::ParameterLink> carry(
      Device const& device, std::shared_ptr<detail::ParameterLink> link) {
    if (!device.clock)
      raise(Errc::bad_configuration,
            "workers of a parameter server share one virtual time; give each of them a copy of one "
            "sim::Clock as VirtualClock::clock");
    return std::make_shared<detail::CarriedLink>(std::move(link), device.clock->time());
  }

  void load(std::vector<int> const&) {
    std::size_t const ranks = machine_.ranks().size();
    given_.resize(machine_.program().signals.size());
    state_.resize(ranks);
    std::size_t const events = ranks * 2 + given_.size() * 4;
    time_->queue.make_room(room_, events);
    room_ = events;
  }

  /// The step that the machine has begun takes part from now on.
  void begin() noexcept {
    std::fill(given_.begin(), given_.end(), 0);
    std::fill(state_.begin(), state_.end(), State::queued);
    open_ = state_.size();
    running_ = true;
    if (!shared_) time_->queue.restart();
    try {
      for (std::size_t r = 0; r < state_.size(); ++r) at(time_->queue.now_s(), resumes, r);
    } catch (...) {
      fail(std::current_exception());
      end();
    }
  }

  /// Runs the step to its end, and meanwhile what else happens.
  void drive() {
    drive([&] { return running_; });
  }
  /// Likewise, until this one or another ends. @return whether this one has
  [[nodiscard]] bool drive_together() {
    return drive([&] { return time_->queue.untold == 0; });
  }

  bool start(std::coroutine_handle<>) {
    drive();
    return false;
  }

  void fail(std::exception_ptr failure) noexcept { machine_.fail(std::move(failure)); }

  [[nodiscard]] bool stopping() const noexcept { return machine_.failed(); }
  [[nodiscard]] bool ready(Wait const& wait) const noexcept {
    return given_[wait.signal] >= wait.count;
  }

  void execute(stagger::detail::RankState& rank, Instruction const& in) {
    cost_s_ = cost(rank, in);
    double const now_s = time_->queue.now_s();
    double time_s = now_s;
    auto clock = [&] { return std::exchange(time_s, now_s + cost_s_); };
    stagger::detail::carry_out(
        machine_, rank, in,
        {[](void* self) { return (*static_cast<decltype(clock)*>(self))(); }, &clock});
  }

  void give(stagger::detail::RankState&, std::uint32_t which) {
    int const edge = machine_.program().signals[which].edge;
    double const delay_s = edge < 0 ? 0 : costs_.of(edge).transfer_s;
    if (delay_s > 0)
      at(time_->queue.now_s() + delay_s, arrives, which);
    else
      arrive(which);
  }

 private:
  enum class State : std::uint8_t { queued, blocked, done };
  enum Kind : std::uint32_t { resumes, arrives };  // a rank, a signal

  void at(double time_s, Kind kind, std::size_t number) {
    time_->queue.at(time_s, *this, kind, number);
    ++events_;
  }
  void happen(std::uint32_t kind, std::size_t number) override {
    --events_;
    kind == arrives ? arrive(static_cast<std::uint32_t>(number)) : resume(number);
  }

  /// Lets things happen while `more` holds, which is false once this step has ended.
  /// @return whether it has
  template <class More> bool drive(More more) {
    try {
      while (running_ && more() && time_->queue.next()) continue;
    } catch (...) {
      fail(std::current_exception());
      end();
    }
    if (running_ && more()) {  // nothing happens any more
      try {
        raise(Errc::bad_schedule, stall_text());
      } catch (...) {
        fail(std::current_exception());
      }
      end();
    }
    if (!running_ && std::exchange(untold_, false)) --time_->queue.untold;
    return !running_;
  }

  /// The step has ended: nothing more happens in it.
  void end() noexcept {
    if (events_ != 0) time_->queue.remove(*this);
    events_ = 0;
    if (!std::exchange(running_, false)) return;
    untold_ = true;
    ++time_->queue.untold;
  }

  void arrive(std::uint32_t which) {
    ++given_[which];
    wake(which);
  }
  void give_outside(std::uint32_t which, std::uint32_t count) noexcept {
    if (!running_) return;
    given_[which] = count;
    try {
      wake(which);
    } catch (...) {
      fail(std::current_exception());
      end();
    }
  }
  void wake(std::uint32_t which) {
    int const receiver = machine_.program().signals[which].receiver;
    for (std::size_t r = 0; r < state_.size(); ++r) {
      if (receiver != SignalEnds::everyone && static_cast<std::size_t>(receiver) != r) continue;
      if (state_[r] != State::blocked || !ready(machine_.ranks()[r].blocked_on)) continue;
      state_[r] = State::queued;
      at(time_->queue.now_s(), resumes, r);
    }
  }

  void resume(std::size_t rank) {
    switch (stagger::detail::go_on(*this, machine_.ranks()[rank])) {
      case stagger::detail::Progress::blocked:
        state_[rank] = State::blocked;
        break;
      case stagger::detail::Progress::elapsing:
        at(time_->queue.now_s() + cost_s_, resumes, rank);
        break;
      case stagger::detail::Progress::finished:
      case stagger::detail::Progress::stopped:
        state_[rank] = State::done;
        --open_;
        break;
    }
    if (open_ == 0 || machine_.failed()) end();
  }

  [[nodiscard]] double cost(stagger::detail::RankState const& rank, Instruction const& in) const {
    auto const& costs = costs_.of(in.stage);
    double cost_s = 0;
    if (!computes(in.op) && !has_group(in.op)) return 0;
    if (in.op == Op::forward || in.op == Op::recompute) cost_s += costs.forward_s;
    if (in.op == Op::backward || in.op == Op::backward_input) cost_s += costs.backward_input_s;
    if (in.op == Op::backward || in.op == Op::backward_weight) cost_s += costs.backward_weight_s;
    if (has_group(in.op)) cost_s = group_cost(in);
    cost_s *= in.op == Op::reduce ? 1 : rank.share;  // 1 unless it is a replica
    if (jitter_ == 0) return cost_s;
    std::uint64_t const x = random_bits(seed_, {static_cast<std::uint64_t>(machine_.steps()),
                                                static_cast<std::uint64_t>(rank.number),
                                                static_cast<std::uint64_t>(&in - rank.begin)});
    double const unit = static_cast<double>(x >> 11U) * 0x1p-53;  // [0, 1)
    return cost_s * (1 - jitter_ + 2 * jitter_ * unit);
  }

  /// Of a part of a backward, or of a sum.
  [[nodiscard]] double group_cost(Instruction const& in) const {
    auto const& costs = costs_.of(in.stage);
    auto const extent = machine_.extent(in);
    if (in.op == Op::reduce) {
      if (sum_ != collective::CostLine{}) return sum_.seconds(extent.bytes);
      return extent.bytes == 0 ? 0
                               : costs.reduce_s * static_cast<double>(extent.bytes) /
                                     static_cast<double>(extent.stage_bytes);
    }
    auto const weight = [&](std::size_t from, std::size_t end) {
      if (layer_backward_s_.empty()) return static_cast<double>(end - from);
      double sum = 0;
      for (; from < end; ++from) sum += layer_backward_s_[extent.first_layer + from];
      return sum;
    };
    double const whole_s =
        costs.backward_weight_s + (in.op == Op::backward_part ? costs.backward_input_s : 0);
    double const all = weight(0, extent.layers);
    return all > 0 ? whole_s * weight(extent.lowest, extent.end) / all : 0;
  }

  [[nodiscard]] std::string stall_text() const {
    std::vector<std::size_t> at;
    for (auto const& rank : machine_.ranks())
      at.push_back(
          static_cast<std::size_t>(rank.next.load(std::memory_order_relaxed) - rank.begin));
    return "the ranks wait for each other: " +
           stagger::detail::describe_stall(machine_.program(), at, given_, machine_.waits_for());
  }

  schedule::Costs costs_;
  collective::CostLine sum_;
  std::vector<double> layer_backward_s_;
  double jitter_;
  std::uint64_t seed_;
  stagger::detail::Machine& machine_;
  bool shared_;
  std::shared_ptr<detail::SharedTime> time_;
  std::vector<State> state_;          // [ranks]
  std::vector<std::uint32_t> given_;  // [signals]
  std::size_t events_ = 0;            // in the queue
  std::size_t room_ = 0;              // for them
  std::size_t open_ = 0;              // ranks that are not done
  bool running_ = false;
  bool untold_ = false;  // nobody has been told that the step has ended
  double cost_s_ = 0;    // of the instruction carried out last
};

}  // namespace stagger::sim
