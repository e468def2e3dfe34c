// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The back end of sim::VirtualClock.

#include <stagger/core/requirements.hpp>

#include <algorithm>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include <stagger/collective/alpha_beta.hpp>
#include <stagger/core/random.hpp>
#include <stagger/engine/backend.hpp>
#include <stagger/program/describe.hpp>
#include <stagger/schedule/costs.hpp>

namespace stagger::sim {

/// An event queue ordered by (time, order of creation): what happens at the same moment happens in
/// a fixed order.
class VirtualClockBackend {
 public:
  static constexpr bool timed = true;

  /// @param device  a VirtualClock, whose header includes this one
  /// @throws Error  for costs and times that are negative, not finite or not one for each stage or
  /// layer, or a jitter out of range
  template <class Device>
  VirtualClockBackend(Device const& device, detail::Machine& machine, int)
      : costs_(device.costs),
        sum_(device.sum),
        layer_backward_s_(device.layer_backward_s),
        jitter_(device.jitter),
        seed_(device.seed),
        machine_(machine) {
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
  }
  VirtualClockBackend(VirtualClockBackend const&) = delete;
  VirtualClockBackend& operator=(VirtualClockBackend const&) = delete;
  ~VirtualClockBackend() = default;

  void load(std::vector<int> const&) {
    std::size_t const ranks = machine_.ranks().size();
    given_.resize(machine_.program().signals.size());
    state_.resize(ranks);
    events_.reserve(ranks * 2 + given_.size() * 4);
  }

  /// Runs the step that the machine has begun, to its end.
  void drive() {
    std::fill(given_.begin(), given_.end(), 0);
    std::fill(state_.begin(), state_.end(), State::queued);
    events_.clear();
    order_ = 0;
    now_s_ = 0;
    for (std::size_t r = 0; r < state_.size(); ++r) at(0, Event::resume, r);
    while (!events_.empty()) {
      Event const event = next_event();
      now_s_ = event.time_s;
      if (event.kind == Event::arrive)
        arrive(static_cast<std::uint32_t>(event.target));
      else
        resume(event.target);
    }
    for (State const state : state_)
      if (state != State::done)
        return fail(std::make_exception_ptr(Error(Errc::bad_schedule, stall_text())));
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

  void execute(detail::RankState& rank, Instruction const& in) {
    cost_s_ = cost(rank, in);
    double time_s = now_s_;
    auto clock = [&] { return std::exchange(time_s, now_s_ + cost_s_); };
    detail::carry_out(
        machine_, rank, in,
        {[](void* self) { return (*static_cast<decltype(clock)*>(self))(); }, &clock});
  }

  void give(detail::RankState&, std::uint32_t which) {
    int const edge = machine_.program().signals[which].edge;
    double const delay_s = edge < 0 ? 0 : costs_.of(edge).transfer_s;
    if (delay_s > 0)
      at(now_s_ + delay_s, Event::arrive, which);
    else
      arrive(which);
  }

 private:
  enum class State : std::uint8_t { queued, blocked, done };
  struct Event {
    enum Kind : std::uint8_t { resume, arrive };
    double time_s = 0;
    std::uint64_t order = 0;
    std::size_t target = 0;  // rank or signal
    Kind kind = resume;
    /// Which of two comes later: a heap keeps its largest first.
    static bool later(Event const& a, Event const& b) noexcept {
      return a.time_s != b.time_s ? a.time_s > b.time_s : a.order > b.order;
    }
  };

  void at(double time_s, Event::Kind kind, std::size_t target) {
    Event event;
    event.time_s = time_s;
    event.order = order_++;
    event.target = target;
    event.kind = kind;
    events_.push_back(event);
    std::push_heap(events_.begin(), events_.end(), Event::later);
  }

  Event next_event() {
    std::pop_heap(events_.begin(), events_.end(), Event::later);
    Event const event = events_.back();
    events_.pop_back();
    return event;
  }

  void arrive(std::uint32_t which) {
    ++given_[which];
    int const receiver = machine_.program().signals[which].receiver;
    for (std::size_t r = 0; r < state_.size(); ++r) {
      if (receiver != SignalEnds::everyone && static_cast<std::size_t>(receiver) != r) continue;
      if (state_[r] != State::blocked || !ready(machine_.ranks()[r].blocked_on)) continue;
      state_[r] = State::queued;
      at(now_s_, Event::resume, r);
    }
  }

  void resume(std::size_t rank) {
    switch (detail::go_on(*this, machine_.ranks()[rank])) {
      case detail::Progress::blocked:
        state_[rank] = State::blocked;
        break;
      case detail::Progress::elapsing:
        at(now_s_ + cost_s_, Event::resume, rank);
        break;
      case detail::Progress::finished:
      case detail::Progress::stopped:
        state_[rank] = State::done;
        break;
    }
    if (!machine_.failed()) return;
    events_.clear();  // nobody goes on
    std::fill(state_.begin(), state_.end(), State::done);
  }

  [[nodiscard]] double cost(detail::RankState const& rank, Instruction const& in) const {
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
           detail::describe_stall(machine_.program(), at, given_);
  }

  schedule::Costs costs_;
  collective::CostLine sum_;
  std::vector<double> layer_backward_s_;
  double jitter_;
  std::uint64_t seed_;
  detail::Machine& machine_;
  std::vector<State> state_;          // [ranks]
  std::vector<std::uint32_t> given_;  // [signals]
  std::vector<Event> events_;         // a heap
  std::uint64_t order_ = 0;
  double now_s_ = 0;
  double cost_s_ = 0;  // of the instruction carried out last
};

}  // namespace stagger::sim
