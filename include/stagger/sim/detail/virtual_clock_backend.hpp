// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The back end of sim::VirtualClock.

#include <stagger/core/requirements.hpp>

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/engine/backend.hpp>
#include <stagger/sim/clock.hpp>
#include <stagger/sim/detail/action_costs.hpp>
#include <stagger/sim/detail/carried_link.hpp>

namespace stagger::sim {

/// Executes programs by an event queue, which other back ends may share; its ranks are the targets
/// of events. A template, so that only programs with a virtual clock compile it.
/// @tparam Device  VirtualClock, whose header includes this one
template <class Device> class VirtualClockBackend final : private detail::EventTarget {
 public:
  static constexpr bool timed = true;

  /// @throws Error  as ActionCosts
  VirtualClockBackend(Device const& device, stagger::detail::Machine& machine, int)
      : costs_(device, machine),
        machine_(machine),
        shared_(device.clock.has_value()),
        time_(shared_ ? device.clock->time() : Clock().time()) {
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
    if (unreported_) --time_->queue.unreported_steps;
    time_->queue.make_room(room_, 0);
  }

  /// The same link to a parameter server, with transfers in the time of the worker's clock.
  [[nodiscard]] static std::shared_ptr<detail::ParameterLink> carry(
      Device const& device, std::shared_ptr<detail::ParameterLink> link) {
    if (!device.clock)
      raise(Errc::bad_configuration,
            "workers of a parameter server share one virtual time; give each of them a copy of one "
            "sim::Clock as VirtualClock::clock");
    return std::make_shared<detail::CarriedLink<detail::ParameterLink>>(std::move(link),
                                                                        device.clock->time());
  }

  void load(std::vector<int> const&) {
    std::size_t const ranks = machine_.ranks().size();
    given_.resize(machine_.program().signals.size());
    state_.resize(ranks);
    std::size_t const events = ranks * 2 + given_.size() * 4;
    time_->queue.make_room(room_, events);
    room_ = events;
  }

  /// From now on, the step that the machine has begun takes part in the clock's time.
  void begin() noexcept {
    Program const& program = machine_.program();
    std::size_t const outside = program.exchanges() ? program.cells.size() : 0;
    std::fill(given_.begin(), given_.end() - static_cast<std::ptrdiff_t>(outside), 0);
    std::fill(state_.begin(), state_.end(), State::queued);
    open_ = state_.size();
    running_ = true;
    if (!shared_) time_->queue.restart();
    or_end([&] {
      for (std::size_t r = 0; r < state_.size(); ++r) at(time_->queue.now_s(), resumes, r);
    });
  }

  /// Runs the step to its end, with all other events that happen meanwhile.
  void drive() {
    drive([&] { return running_; });
  }
  /// Likewise until this step or another one ends. @return whether this one has ended
  [[nodiscard]] bool drive_together() {
    return drive([&] { return time_->queue.unreported_steps == 0; });
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
    cost_s_ = costs_.seconds(rank, in);
    double const now_s = time_->queue.now_s();
    double time_s = now_s;
    auto clock = [&] { return std::exchange(time_s, now_s + cost_s_); };
    if (exchanges(in.op))  // its link reports when the bytes have arrived
      stagger::detail::carry_out(machine_, rank, in);
    else
      stagger::detail::carry_out(
          machine_, rank, in,
          {[](void* self) { return (*static_cast<decltype(clock)*>(self))(); }, &clock});
  }

  void give(stagger::detail::RankState&, std::uint32_t which) {
    int const edge = machine_.program().signals[which].edge;
    double const delay_s = edge < 0 ? 0 : costs_.transfer_s(edge);
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

  /// Carries out events until this step has ended or `more` is false. @return whether the step has
  /// ended
  template <class More> bool drive(More more) {
    or_end([&] {
      while (running_ && more() && time_->queue.next()) continue;
      if (running_ && more())  // there are no events left
        raise(machine_.program().exchanges() ? Errc::deadline : Errc::bad_schedule,
              "the ranks wait for each other: ", stagger::detail::describe_stall(machine_, given_));
    });
    if (!running_ && std::exchange(unreported_, false)) --time_->queue.unreported_steps;
    return !running_;
  }

  /// What is thrown ends the step.
  template <class Body> void or_end(Body body) noexcept {
    try {
      body();
    } catch (...) {
      fail(std::current_exception());
      end();
    }
  }
  /// Ends the step: drops its remaining events.
  void end() noexcept {
    if (events_ != 0) time_->queue.remove(*this);
    events_ = 0;
    if (!std::exchange(running_, false)) return;
    unreported_ = true;
    ++time_->queue.unreported_steps;
  }

  void arrive(std::uint32_t which) {
    ++given_[which];
    wake(which);
  }
  void give_outside(std::uint32_t which, std::uint32_t count) noexcept {
    given_[which] = count;
    if (running_) or_end([&] { wake(which); });
  }
  void wake(std::uint32_t which) {
    int const receiver = machine_.program().signals[which].receiver;
    for (std::size_t r = 0; r < state_.size(); ++r) {
      if (receiver != SignalEnds::everyone && std::cmp_not_equal(receiver, r)) continue;
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

  detail::ActionCosts<Device> costs_;
  stagger::detail::Machine& machine_;
  bool shared_;
  std::shared_ptr<detail::SharedTime> time_;
  std::vector<State> state_;          // [ranks]
  std::vector<std::uint32_t> given_;  // [signals]
  std::size_t events_ = 0;            // in the queue
  std::size_t room_ = 0;              // events for which there is memory
  std::size_t open_ = 0;              // ranks that are not done
  bool running_ = false;
  bool unreported_ = false;  // the step has ended, and its driver has not been told
  double cost_s_ = 0;        // of the instruction carried out last
};

}  // namespace stagger::sim
