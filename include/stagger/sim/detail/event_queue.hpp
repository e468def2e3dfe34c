// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The event queue of a virtual clock, and the link to a parameter server in its time.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/list.hpp>
#include <stagger/schedule/links.hpp>

namespace stagger::sim::detail {

using schedule::Direction;
using schedule::Links;
using schedule::Transfers;

/// The object to which an event happens.
class EventTarget {
 public:
  /// @param kind, number  as given to EventQueue::at or Network::send
  virtual void happen(std::uint32_t kind, std::size_t number) = 0;

 protected:
  ~EventTarget() = default;
};

/// Ordered by (time, order of creation): what happens at the same moment happens in a fixed order.
class EventQueue {
 public:
  [[nodiscard]] double now_s() const noexcept { return now_s_; }
  /// Starts at 0 again. @pre there are no events
  void restart() noexcept { now_s_ = 0, order_ = 0; }

  void at(double time_s, EventTarget& target, std::uint32_t kind, std::size_t number) {
    events_.push_back({time_s, order_++, &target, number, kind});
    std::push_heap(events_.begin(), events_.end(), later);
  }
  /// Carries out the next event. @return whether there was one
  bool next() {
    if (events_.empty()) return false;
    std::pop_heap(events_.begin(), events_.end(), later);
    Event const event = events_.back();
    events_.pop_back();
    now_s_ = event.time_s;
    event.target->happen(event.kind, event.number);
    return true;
  }
  /// Drops all events of a target.
  [[gnu::cold]] void remove(EventTarget const& target) noexcept {
    std::erase_if(events_, [&](Event const& event) { return event.target == &target; });
    std::make_heap(events_.begin(), events_.end(), later);
  }
  /// Changes the number of events for which there is memory, from `before` to `after` for one user
  /// of the queue.
  void make_room(std::size_t before, std::size_t after) {
    room_ += after - before;
    events_.reserve(room_);
  }

  /// The number of steps that have ended without their driver having been told.
  std::uint32_t unreported_steps = 0;

 private:
  struct Event {
    double time_s = 0;
    std::uint64_t order = 0;
    EventTarget* target = nullptr;
    std::size_t number = 0;
    std::uint32_t kind = 0;
  };
  /// Which of two comes later: a heap keeps its largest first.
  static bool later(Event const& a, Event const& b) noexcept {
    return a.time_s != b.time_s ? a.time_s > b.time_s : a.order > b.order;
  }

  std::vector<Event> events_;  // a heap
  std::size_t room_ = 0;
  std::uint64_t order_ = 0;
  double now_s_ = 0;
};

/// The link of a parameter server, in the time of an event queue.
class Network final : private EventTarget {
 public:
  Network(EventQueue& queue, Links const& links)
      : queue_(queue), links_(links), transfers_(links) {}

  [[nodiscard]] Links const& links() const noexcept { return links_; }

  /// Sends bytes; the receiver's event happens when all have arrived.
  void send(std::uint64_t bytes, Direction direction, EventTarget& receiver, std::uint32_t kind,
            std::size_t number) {
    std::size_t slot = 0;
    while (slot < underway_.size() && underway_[slot].used) ++slot;
    if (slot == underway_.size()) underway_.push_back({});
    underway_[slot] = {&receiver, number, kind, true};
    transfers_.start(queue_.now_s(), bytes, direction, static_cast<std::uint32_t>(slot));
    schedule();
  }
  /// Messages in transit to a receiver will not be delivered; they still use the link.
  void forget(EventTarget const& receiver) noexcept {
    for (Underway& each : underway_)
      if (each.receiver == &receiver) each.receiver = nullptr;
  }

 private:
  struct Underway {
    EventTarget* receiver = nullptr;
    std::size_t number = 0;
    std::uint32_t kind = 0;
    bool used = false;
  };

  /// Adds an event for the next arrival. Events that are out of date, since another transfer has
  /// started, are recognised by their number.
  void schedule() {
    double const next_s = transfers_.next_s();
    if (next_s != scheduled_s_ && next_s < never) queue_.at(next_s, *this, 0, ++last_);
    scheduled_s_ = next_s;
  }
  void happen(std::uint32_t, std::size_t number) override {
    if (number != last_) return;
    scheduled_s_ = never;
    transfers_.advance(queue_.now_s());
    for (std::uint32_t slot = 0; transfers_.arrived(slot);) {
      Underway const arrived = std::exchange(underway_[slot], {});
      if (arrived.receiver != nullptr) arrived.receiver->happen(arrived.kind, arrived.number);
    }
    schedule();
  }

  static constexpr double never = std::numeric_limits<double>::infinity();
  EventQueue& queue_;
  Links links_;
  Transfers transfers_;
  List<Underway> underway_;
  double scheduled_s_ = never;
  std::size_t last_ = 0;  // number of the newest event
};

/// The state that pipelines with the same clock share.
struct SharedTime {
  explicit SharedTime(Links const& links) : network(queue, links) {}
  EventQueue queue;
  Network network;
  /// Workers whose pushes are not sent before it is their turn.
  List<EventTarget*> wait_for_turn{};

  /// It is the turn of another worker. @param kind  of the event that each of them gets
  void pass_turn(std::uint32_t kind) {
    for (EventTarget* const each : wait_for_turn)
      if (each != nullptr) queue.at(queue.now_s(), *each, kind, 0);
    wait_for_turn.clear();
  }
};

}  // namespace stagger::sim::detail
