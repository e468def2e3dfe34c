// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A connection between a worker and its server in virtual time, with the mishaps that a seed
///         has drawn for it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/messages.hpp>
#include <stagger/collective/server_connection.hpp>
#include <stagger/core/error.hpp>
#include <stagger/sim/clock.hpp>

#include "faults/disk.hpp"

namespace lab {

namespace remote = stagger::collective::detail;
namespace sim = stagger::sim::detail;
using remote::Message;
using Kind = remote::MessageKind;

struct Parcel {
  Message message{};  // of kind 0: the connection ends
  std::vector<std::byte> payload{};
};

enum class Mishap : std::uint8_t { lost, doubled, late };
struct Mischance {
  int way = 0;              // 0: to the server, 1: to the worker
  std::uint64_t count = 0;  // messages that went this way before
  Mishap what{};
  double delay_s = 0;  // of what is late
};

class Line;

/// Sees what the server's end of a connection takes and sends.
class Watch {
 public:
  virtual void arrives(Line const& line, Parcel const& parcel) = 0;  // the server has not seen it
  virtual void arrived(Line const& line) = 0;                        // now it has
  virtual void sends(Line const& line, Parcel const& parcel) = 0;
  virtual void goes(Line const& line) = 0;  // it ends, which the server does not know yet
  virtual void gone(Line const& line) = 0;  // now it does

 protected:
  ~Watch() = default;
};

/// A worker's process, which waits.
class Sleeper {
 public:
  /// Something has come.
  virtual void wake() = 0;

 protected:
  ~Sleeper() = default;
};

/// Carries one message at a time in each direction, over the link that all share.
class Line final : private sim::EventTarget {
 public:
  Line(Watch& watch, sim::SharedTime& time, int worker, Sleeper& sleeper, remote::MessageEnd& end,
       std::shared_ptr<remote::ServerInProcess> server, remote::RemoteRules const& rules,
       double const& worker_frozen_s, double const& server_frozen_s)
      : watch_(watch),
        time_(time),
        worker_(worker),
        sleeper_(sleeper),
        connection_(std::make_unique<remote::ServerConnection>(std::move(server), rules)),
        ends_{&end, connection_.get()},
        frozen_s_{&worker_frozen_s, &server_frozen_s} {
    for (int n = 0; n < 2; ++n) sides_[n].line = this, ways_[n].number = sides_[n].number = n;
    connection_->carried_by(sides_[1]);
  }
  Line(Line const&) = delete;
  Line& operator=(Line const&) = delete;
  ~Line() {
    time_.queue.remove(*this);
    time_.network.forget(*this);
  }

  double slow_s = 0;  // which each message takes longer
  std::vector<Mischance> mischances{};

  void wake(int n) noexcept {
    if (!std::exchange(ways_[n].woken, true)) time_.queue.at(now(), *this, pump_way, index(n));
  }
  /// The worker sends what there is, and goes.
  void close() noexcept {
    if (ends_[0] == nullptr) return;
    for (Parcel parcel; ends_[0]->next(parcel.message, view_);) {
      parcel.payload.assign(view_.begin(), view_.end());
      ways_[0].waiting.push_back(std::move(parcel));
    }
    ends_[0] = nullptr;
    ways_[0].waiting.emplace_back();
    wake(0);
  }
  /// It ends amid a message, which its ends come to know when they do.
  /// @param worker_s, server_s  later; negative: never, for one that runs no longer
  void cut(double worker_s, double server_s) {
    cut_ = true;
    if (worker_s < 0) ends_[0] = nullptr;
    if (server_s < 0) ends_[1] = nullptr;
    time_.queue.at(now() + std::max(0.0, worker_s), *this, lose_end, 0);
    time_.queue.at(now() + std::max(0.0, server_s), *this, lose_end, 1);
  }
  /// The server's process has ended at once.
  /// @param worker_s  later the worker comes to know of it
  /// @return whether the worker has gone and the server did not notice
  bool lose_server(double worker_s) {
    if (connection_ == nullptr) return false;
    bool const unnoticed = ends_[0] == nullptr && open() && !cut_;
    cut(worker_s, -1);
    connection_->lose();  // it tells neither end
    connection_ = nullptr;
    return unnoticed;
  }
  [[nodiscard]] int worker() const noexcept { return worker_; }
  /// Whether the server has let the worker in.
  [[nodiscard]] bool joined() const noexcept {
    return ends_[1] != nullptr && connection_->joined();
  }
  /// Whether the server's end lives and all that it wants to say has been sent.
  [[nodiscard]] bool silent() const noexcept {
    return ends_[1] != nullptr && !cut_ && !ways_[1].busy && !ways_[1].woken;
  }
  [[nodiscard]] bool open() const noexcept { return ends_[1] != nullptr; }
  [[nodiscard]] bool is_cut() const noexcept { return cut_; }

  /// A worker's hold on it.
  struct Handle final : remote::Transport {
    explicit Handle(Line& of) : line(of) { line.wake(0); }
    ~Handle() override { line.close(); }
    void wake() noexcept override { line.wake(0); }
    void close() noexcept override { line.close(); }
    Line& line;
  };

 private:
  enum : std::uint32_t { pump_way, carried_way, deliver_way, deliver_late, lose_end };
  struct Side final : remote::Transport {
    void wake() noexcept override { line->wake(number); }
    void close() noexcept override {}  // only workers do
    Line* line = nullptr;
    int number = 0;
  };
  struct Way {
    int number = 0;
    bool busy = false;
    bool woken = false;
    bool lost = false;     // what is under way
    bool doubled = false;  // likewise
    std::uint64_t count = 0;
    Parcel under_way{};
    std::deque<Parcel> waiting{};  // of an end that has gone
    std::deque<Parcel> late{};
  };

  static std::size_t index(int n) { return static_cast<std::size_t>(n); }
  [[nodiscard]] double now() const { return time_.queue.now_s(); }

  void happen(std::uint32_t what, std::size_t n) override {
    Way& way = ways_[n];
    if (what == pump_way) {
      way.woken = false;
      pump(way);
    } else if (what == carried_way) {
      carried(way);
    } else if (what == deliver_way) {
      arrive(way);
    } else if (what == deliver_late) {
      Parcel const parcel = std::move(way.late.front());
      way.late.pop_front();
      deliver(way, parcel);
    } else {
      lose(static_cast<int>(n), "the connection has ended");
    }
  }

  void pump(Way& way) {
    if (way.busy || cut_ || disk().dead()) return;
    if (now() < *frozen_s_[way.number]) {
      way.woken = true;
      return time_.queue.at(*frozen_s_[way.number], *this, pump_way, index(way.number));
    }
    if (!take(way)) return;
    way.busy = true;
    way.lost = way.doubled = false;
    for (Mischance const& each : mischances) {
      if (each.way != way.number || each.count != way.count || way.under_way.message.kind == Kind{})
        continue;
      way.doubled = each.what == Mishap::doubled;
      way.lost = each.what != Mishap::doubled;
      if (each.what != Mishap::late) continue;
      way.late.push_back(way.under_way);
      time_.queue.at(now() + each.delay_s, *this, deliver_late, index(way.number));
    }
    ++way.count;
    time_.network.send(sizeof(Message) + way.under_way.payload.size(),
                       way.number == 0 ? sim::Direction::push : sim::Direction::pull, *this,
                       carried_way, index(way.number));
  }
  bool take(Way& way) {
    Parcel& parcel = way.under_way;
    if (!way.waiting.empty()) {
      parcel = std::move(way.waiting.front());
      way.waiting.pop_front();
      return true;
    }
    try {
      if (ends_[way.number] == nullptr || !ends_[way.number]->next(parcel.message, view_))
        return false;
    } catch (std::exception const& error) {
      refuse(way.number, error.what());
      return take(way);
    }
    parcel.payload.assign(view_.begin(), view_.end());
    if (way.number == 1) watch_.sends(*this, parcel);
    return true;
  }

  void carried(Way& way) {
    slow_s > 0 ? time_.queue.at(now() + slow_s, *this, deliver_way, index(way.number))
               : arrive(way);
  }
  void arrive(Way& way) {
    int const to = 1 - way.number;
    if (now() < *frozen_s_[to])
      return time_.queue.at(*frozen_s_[to], *this, deliver_way, index(way.number));
    if (!way.lost) deliver(way, way.under_way);
    if (way.doubled) deliver(way, way.under_way);
    way.busy = false;
    wake(way.number);
  }
  void deliver(Way const& way, Parcel const& parcel) {
    int const to = 1 - way.number;
    if (ends_[to] == nullptr || cut_ || disk().dead()) return;  // the server's process has ended
    if (parcel.message.kind == Kind{}) return lose(to, "the other side has gone");
    if (to == 1) watch_.arrives(*this, parcel);
    try {
      auto const buffer = ends_[to]->payload_buffer(parcel.message);
      std::copy(parcel.payload.begin(), parcel.payload.end(), buffer.begin());
      ends_[to]->received(parcel.message);
    } catch (std::exception const& error) {
      refuse(to, error.what());
    }
    to == 1 ? watch_.arrived(*this) : sleeper_.wake();
  }
  /// An end ends the connection, and says why.
  void refuse(int n, char const* sentence) {
    Parcel parcel{{.kind = Kind::refused, .bytes = std::strlen(sentence)}, {}};
    auto const* const words = reinterpret_cast<std::byte const*>(sentence);
    parcel.payload.assign(words, words + parcel.message.bytes);
    lose(n, sentence);
    ways_[n].waiting.push_back(std::move(parcel));
    ways_[n].waiting.emplace_back();
    wake(n);
  }
  void lose(int n, char const* sentence) {
    if (auto* const end = std::exchange(ends_[n], nullptr); end != nullptr) {
      if (n == 1) watch_.goes(*this);
      end->gone(std::make_exception_ptr(stagger::Error(
          stagger::Errc::io,
          stagger::text("the connection of worker ", worker_, " has ended: ", sentence,
                        "; check whether the other side still runs"))));
      n == 1 ? watch_.gone(*this) : sleeper_.wake();
    }
  }

  Watch& watch_;
  sim::SharedTime& time_;
  int worker_;
  Sleeper& sleeper_;
  std::unique_ptr<remote::ServerConnection> connection_;  // null: the server's process has ended
  remote::MessageEnd* ends_[2];
  double const* frozen_s_[2];
  Side sides_[2];
  Way ways_[2];
  std::span<std::byte const> view_;
  bool cut_ = false;
};

}  // namespace lab
