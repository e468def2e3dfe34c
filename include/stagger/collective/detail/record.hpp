// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   One operation in flight as its own rank keeps it, and the list that moves them all on.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <stagger/collective/detail/world.hpp>

namespace stagger::collective::detail {

struct End;

enum class Stage : std::uint8_t { queued, shown, working, leaving, done, failed };

/// An operation. Records are pooled: the vectors keep their room.
struct Record {
  End* end = nullptr;
  Record* previous = nullptr;  // in the family's list, while under way
  Record* next = nullptr;

  Descriptor what{};
  void* data = nullptr;
  std::uint64_t number = 0;  // of the collectives of this end, or of the messages of this edge
  std::uint64_t turn = 0;    // among the collectives that go in steps: one at a time
  int peer = -1;             // of a message
  Stage stage = Stage::queued;

  std::size_t at = 0;  // elements of this stage, or of this step, that are behind it
  int step = 0;
  bool posted = false;    // this step's message out
  bool received = false;  // this step's message in
  std::uint64_t post_number = 0;
  std::vector<void*> parts{};       // everybody's buffer
  std::vector<std::byte> beside{};  // where an exchanged vector is received

  int color = 0;
  int key = 0;
  std::shared_ptr<World> made{};  // by a split
  int made_rank = -1;
  void (*deliver)(Record&) = nullptr;  // hands `made` to the place in `data`

  Errc code = Errc::peer_failed;
  std::string trouble{};

  [[nodiscard]] std::string text() const {
    std::string s = what.text() + " #" + std::to_string(number);
    if (what.call == Call::send) s += " to rank " + std::to_string(peer);
    if (what.call == Call::receive) s += " from rank " + std::to_string(peer);
    return s;
  }
};

/// All communicators that one rank of a run has by splitting one from another. They move on
/// together, so that the order in which their owner waits for operations does not matter. Used by
/// one thread at a time.
struct Family {
  Record head{};
  bool moving = false;
  Family() { head.next = head.previous = &head; }
  Family(Family const&) = delete;
  Family& operator=(Family const&) = delete;

  void append(Record& r) noexcept {
    r.previous = head.previous;
    r.next = &head;
    head.previous->next = &r;
    head.previous = &r;
  }
  static void remove(Record& r) noexcept {
    if (r.next == nullptr) return;
    r.previous->next = r.next;
    r.next->previous = r.previous;
    r.next = r.previous = nullptr;
  }
};

/// One rank's private half of a communicator. Lives until its handle and its operations are gone.
struct End {
  End(std::shared_ptr<World> shared, int own, AllReduce chosen, std::shared_ptr<Family> kin)
      : world(std::move(shared)),
        family(std::move(kin)),
        rank(own),
        algorithm(chosen),
        sent(static_cast<std::size_t>(world->ranks())),
        received(sent.size()),
        inner_sent(sent.size()),
        inner_received(sent.size()) {}
  End(End const&) = delete;
  End& operator=(End const&) = delete;

  std::shared_ptr<World> world;
  std::shared_ptr<Family> family;
  int rank;
  AllReduce algorithm;
  int holders = 1;                // the handle and the operations
  std::uint64_t collectives = 0;  // started
  std::uint64_t turns = 0;        // handed out to collectives that go in steps
  std::uint64_t turns_done = 0;
  std::vector<std::uint64_t>
      sent;  // messages started, by peer; the inner ones belong to collectives
  std::vector<std::uint64_t> received;
  std::vector<std::uint64_t> inner_sent;
  std::vector<std::uint64_t> inner_received;
  Traffic traffic{};
  std::vector<std::unique_ptr<Record>> records{};
  std::vector<Record*> spare{};

  [[nodiscard]] Record& take_record() {
    if (spare.empty()) {
      spare.reserve(records.size() + 1);
      records.push_back(std::make_unique<Record>());
      spare.push_back(records.back().get());
    }
    Record& r = *spare.back();
    spare.pop_back();
    r.end = this;
    r.stage = Stage::queued;
    r.posted = r.received = false;
    r.at = 0;
    r.step = 0;
    r.made_rank = -1;
    r.deliver = nullptr;
    return r;
  }

  /// `records` and `spare` have room for each other, so this cannot fail.
  void give_record(Record& r) noexcept {
    r.made.reset();
    spare.push_back(&r);
  }

  [[nodiscard]] bool busy() const noexcept {
    for (auto const& r : records) {
      if (r->next != nullptr && r->end == this) return true;
    }
    return false;
  }
};

}  // namespace stagger::collective::detail
