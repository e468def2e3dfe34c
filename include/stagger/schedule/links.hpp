// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The link between a parameter server and its workers: how long pushes and pulls that
///         share it take, in virtual time and in schedules for workers.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/math.hpp>

namespace stagger::schedule {

/// How transfers share a link.
enum class Sharing : std::uint8_t {
  fair,           ///< all current transfers get the same share of its rate
  fifo,           ///< one after the other; the next one is sent while the last bytes of the
                  ///< previous one are in transit
  one_at_a_time,  ///< one after the other; the next one begins when the previous one has arrived
};

/// Whether pushes and pulls share one capacity.
enum class Duplex : std::uint8_t {
  full,  ///< no: the link has its rate in each direction
  half,  ///< yes
};

/// The server's link, which all workers share. By default transfers take no time.
struct Links {
  double rate = std::numeric_limits<double>::infinity();  ///< > 0, bytes/s
  double latency_s = 0;                                   ///< of each transfer, after its bytes
  double loss = 0;  ///< >= 0: for each byte, `loss` more travel again
  Sharing sharing = Sharing::fair;
  Duplex duplex = Duplex::full;

  /// Whether everything arrives when it is sent.
  [[nodiscard]] bool instant() const noexcept {
    return rate == std::numeric_limits<double>::infinity() && latency_s == 0;
  }
  friend bool operator==(Links const&, Links const&) = default;
};

/// @throws Error bad_configuration for numbers that are out of range
inline void require_links(Links const& links) {
  if (!(links.rate > 0))
    raise(Errc::bad_configuration, "a link cannot carry ", links.rate,
          " bytes/s; let Links::rate be more than 0");
  if (!stagger::detail::math::finite_and_not_negative(links.latency_s))
    raise(Errc::bad_configuration, "a link cannot have a latency of ", links.latency_s,
          " s; let Links::latency_s be finite and at least 0");
  if (!stagger::detail::math::finite_and_not_negative(links.loss))
    raise(Errc::bad_configuration, "a link cannot lose ", links.loss,
          " of each byte; let Links::loss be finite and at least 0");
}

/// The direction of a transfer.
enum class Direction : std::uint8_t { push, pull };

/// The current transfers. The class has no clock of its own: its owner tells it the time, which
/// never decreases.
class Transfers {
 public:
  /// @throws Error  as require_links
  explicit Transfers(Links const& links) : links_(links) { require_links(links); }

  /// @param number  by which `arrived` reports it
  void start(double now_s, std::uint64_t bytes, Direction direction, std::uint32_t number) {
    advance(now_s);
    bool const second = links_.duplex == Duplex::full && direction == Direction::pull;
    Capacity& capacity = capacities_[second ? 1 : 0];
    double const size = static_cast<double>(bytes) * (1 + links_.loss);
    if (links_.sharing == Sharing::fair) {
      if (capacity.active.empty()) capacity.served = 0;
      insert(capacity.active, capacity.served + size, number);
    } else {
      double const sent_s = std::max(capacity.free_s, now_s) + size / links_.rate;
      capacity.free_s = sent_s + (links_.sharing == Sharing::one_at_a_time ? links_.latency_s : 0);
      insert(travelling_, sent_s + links_.latency_s, number);
    }
    advance(now_s);  // a transfer without bytes is sent at once
  }

  /// The time of the next event; it may change with every start. Infinite: none.
  [[nodiscard]] double next_s() const noexcept {
    double next = never;
    for (Capacity const& capacity : capacities_) next = std::min(next, end_s(capacity));
    return travelling_.empty() ? next : std::min(next, travelling_.front().at);
  }

  /// @param now_s  at most next_s()
  void advance(double now_s) {
    for (Capacity& capacity : capacities_) {
      while (end_s(capacity) <= now_s) {
        Entry const first = take_first(capacity.active);
        capacity.served = first.at;
        capacity.last_s = now_s;
        insert(travelling_, now_s + links_.latency_s, first.number);
      }
      if (!capacity.active.empty() && now_s > capacity.last_s)
        capacity.served += (now_s - capacity.last_s) * share(capacity);
      capacity.last_s = now_s;
    }
    now_s_ = now_s;
  }

  /// Removes a transfer that has arrived by now, the earliest first.
  /// @return whether there is one
  [[nodiscard]] bool arrived(std::uint32_t& number) {
    if (travelling_.empty() || travelling_.front().at > now_s_) return false;
    number = take_first(travelling_).number;
    return true;
  }

 private:
  static constexpr double never = std::numeric_limits<double>::infinity();
  struct Entry {
    double at = 0;
    std::uint32_t number = 0;
  };
  /// The transfers of one direction, or of both.
  struct Capacity {
    List<Entry> active;  // fair: by how much each of them will have been given when it ends
    double served = 0;   // bytes that each has been given since the link was idle
    double last_s = 0;   // when that was
    double free_s = 0;   // not fair: when the next may begin
  };

  [[nodiscard]] double share(Capacity const& capacity) const noexcept {
    return links_.rate / static_cast<double>(capacity.active.size());
  }
  [[nodiscard]] double end_s(Capacity const& capacity) const noexcept {
    if (capacity.active.empty()) return never;
    return capacity.last_s + (capacity.active.front().at - capacity.served) / share(capacity);
  }
  /// After those with the same time.
  static void insert(List<Entry>& entries, double at, std::uint32_t number) {
    entries.push_back({at, number});
    for (std::size_t i = entries.size() - 1; i > 0 && entries[i - 1].at > at; --i)
      std::swap(entries[i - 1], entries[i]);
  }
  static Entry take_first(List<Entry>& entries) {
    Entry const first = entries.front();
    std::move(entries.begin() + 1, entries.end(), entries.begin());
    entries.pop_back();
    return first;
  }

  Links links_;
  std::array<Capacity, 2> capacities_;  // by direction; half duplex: the first alone
  List<Entry> travelling_;              // by when they arrive
  double now_s_ = 0;
};

}  // namespace stagger::schedule
