// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   How operations of an in-process communicator move on. No call here ever blocks.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include <stagger/collective/detail/record.hpp>

namespace stagger::collective::detail {

/// Bytes of each buffer touched under one flag: what a peer that gives up may have to wait for.
inline constexpr std::size_t block_bytes = std::size_t{64} << 10;
/// Blocks one poll works through before it looks at the next operation.
inline constexpr int blocks_per_poll = 16;

[[nodiscard]] inline std::byte* at(void* data, ElementType const* type,
                                   std::size_t element) noexcept {
  return static_cast<std::byte*>(data) + element * type->size;
}

[[nodiscard]] inline std::uint64_t packed(Record const& r) noexcept {
  return 16 * (r.number + 1) + static_cast<std::uint64_t>(r.what.call);
}

inline void break_mismatch(Record const& r, int peer, Descriptor const& theirs) {
  int const a = std::min(r.end->rank, peer);
  int const b = std::max(r.end->rank, peer);
  std::string const mine = r.what.text();
  std::string const other = theirs.text();
  r.end->world->break_down(
      Errc::mismatch, -1,
      "call #" + std::to_string(r.number) + " differs: rank " + std::to_string(a) + " called " +
          (a == peer ? other : mine) + ", rank " + std::to_string(b) + " called " +
          (a == peer ? mine : other) + "; every rank must make the same calls in the same order");
}

/// Whether every rank has shown `phase` of this collective; breaks the world where one has left
/// before.
[[nodiscard]] inline bool all_at(Record const& r, std::uint64_t phase) {
  World& world = *r.end->world;
  for (int p = 0; p < world.ranks(); ++p) {
    auto const& seen = world.cell(r.number, p).phase;
    if (seen.load(std::memory_order_acquire) >= phase) continue;
    if (world.anyone_left() && world.standing(p).left.load(std::memory_order_acquire) &&
        seen.load(std::memory_order_acquire) < phase) {
      world.break_down(Errc::peer_failed, p,
                       "rank " + std::to_string(p) + " left without " + r.what.text() + " #" +
                           std::to_string(r.number) + "; the last call it finished is " +
                           call_text(world.standing(p).finished.load(std::memory_order_relaxed)));
    }
    return false;
  }
  return true;
}

/// Compares with whoever is there already.
[[nodiscard]] inline bool agreed(Record const& r, std::uint64_t shown) {
  World& world = *r.end->world;
  bool all = true;
  for (int p = 0; p < world.ranks(); ++p) {
    Cell const& cell = world.cell(r.number, p);
    if (cell.phase.load(std::memory_order_acquire) < shown) {
      all = false;
    } else if (!cell.what.agrees(r.what)) {
      break_mismatch(r, p, cell.what);
      return false;
    }
  }
  return all ? true : all_at(r, shown);
}

/// Shows a message on an edge when there is room. @return whether it stands there
[[nodiscard]] inline bool post(Record& r, Edge& edge, std::uint64_t number, std::size_t first,
                               std::size_t count) {
  if (edge.posted.load(std::memory_order_relaxed) != number)
    return false;  // an earlier send waits for room
  if (edge.taken.load(std::memory_order_acquire) + Edge::room <= number) return false;
  auto& message = edge.messages[number % Edge::room];
  message.what = r.what;
  message.what.count = count;
  message.data = count == 0 ? nullptr : at(r.data, r.what.type, first);
  edge.posted.store(number + 1, std::memory_order_release);
  r.end->traffic.messages += 1;
  r.end->traffic.bytes += count * r.what.type->size;
  return true;
}

/// Takes what the edge shows into `target`, a block per round. @return whether all of it is there
[[nodiscard]] inline bool take(Record& r, Edge& edge, std::uint64_t number, std::byte* target,
                               std::size_t count, bool add) {
  if (edge.taken.load(std::memory_order_relaxed) != number)
    return false;  // an earlier receive comes first
  if (edge.posted.load(std::memory_order_acquire) <= number) return false;
  auto const& message = edge.messages[number % Edge::room];
  std::size_t const size = r.what.type->size;
  for (int round = 0; r.at < count; ++round) {
    if (round == blocks_per_poll) return false;
    std::size_t const n = std::min(count - r.at, block_bytes / size);
    bool const sound = r.end->world->touch(r.end->rank, [&] {
      auto const* const from = static_cast<std::byte const*>(message.data) + r.at * size;
      if (add)
        r.what.type->combine(r.what.reduction, target + r.at * size, from, n);
      else
        std::memmove(target + r.at * size, from, n * size);
    });
    if (!sound) return false;
    r.at += n;
  }
  r.at = 0;
  edge.taken.store(number + 1, std::memory_order_release);
  return true;
}

/// Whether the peer of a message is gone and will never answer; breaks the world then.
inline void check_peer(Record const& r, Edge const& edge) {
  World& world = *r.end->world;
  if (!world.anyone_left() || !world.standing(r.peer).left.load(std::memory_order_acquire)) return;
  bool const answered = r.what.call == Call::send
                            ? edge.taken.load(std::memory_order_acquire) > r.number
                            : edge.posted.load(std::memory_order_acquire) > r.number;
  if (answered) return;
  world.break_down(Errc::peer_failed, r.peer,
                   "rank " + std::to_string(r.peer) + " left before it answered " + r.text() +
                       " of rank " + std::to_string(r.end->rank) +
                       "; the last call it finished is " +
                       call_text(world.standing(r.peer).finished.load(std::memory_order_relaxed)));
}

/// @return  whether the message is through
[[nodiscard]] inline bool advance_send(Record& r) {
  Edge& edge = r.end->world->edge(r.end->rank, r.peer, false);
  if (r.stage == Stage::queued) {
    if (!post(r, edge, r.number, 0, r.what.count)) return check_peer(r, edge), false;
    r.stage = Stage::leaving;
  }
  if (edge.taken.load(std::memory_order_acquire) > r.number) return true;
  check_peer(r, edge);
  return false;
}

[[nodiscard]] inline bool advance_receive(Record& r) {
  World& world = *r.end->world;
  Edge& edge = world.edge(r.peer, r.end->rank, false);
  if (r.stage == Stage::queued) {
    if (edge.taken.load(std::memory_order_relaxed) != r.number ||
        edge.posted.load(std::memory_order_acquire) <= r.number) {
      check_peer(r, edge);
      return false;
    }
    auto const& sent = edge.messages[r.number % Edge::room].what;
    if (sent.count != r.what.count || !same_type(sent.type, r.what.type)) {
      world.break_down(Errc::mismatch, -1,
                       "rank " + std::to_string(r.peer) + " sends " + sent.text() +
                           " as message #" + std::to_string(r.number) + ", rank " +
                           std::to_string(r.end->rank) + " expects " + r.what.text() +
                           "; both ends must agree on type and count");
      return false;
    }
    r.stage = Stage::working;
  }
  return take(r, edge, r.number, static_cast<std::byte*>(r.data), r.what.count, false);
}

/// The steps of a named all-reduce. @return whether the last one is behind this rank
[[nodiscard]] inline bool advance_steps(Record& r) {
  End& end = *r.end;
  World& world = *end.world;
  if (end.turns_done != r.turn) return false;
  for (int const n = step_count(r.what.algorithm, world.ranks()); r.step < n;) {
    Step const s = step(r.what.algorithm, end.rank, world.ranks(), r.what.count, r.step);
    bool const beside = s.arrival == Arrival::exchange_add;
    auto const to = static_cast<std::size_t>(s.to);
    auto const from = static_cast<std::size_t>(s.from);
    if (s.to >= 0 && !r.posted) {
      r.posted =
          post(r, world.edge(end.rank, s.to, true), end.inner_sent[to], s.out.first, s.out.size());
      if (!r.posted) return false;
      r.post_number = end.inner_sent[to]++;
    }
    if (s.from >= 0 && !r.received) {
      std::size_t const bytes = s.in.size() * r.what.type->size;
      if (beside && r.beside.size() < bytes) r.beside.resize(bytes);
      std::byte* const target = beside ? r.beside.data() : at(r.data, r.what.type, s.in.first);
      r.received = take(r, world.edge(s.from, end.rank, true), end.inner_received[from], target,
                        s.in.size(), s.arrival == Arrival::add);
      if (!r.received) return false;
      ++end.inner_received[from];
    }
    if (s.to >= 0 &&
        world.edge(end.rank, s.to, true).taken.load(std::memory_order_acquire) <= r.post_number) {
      return false;
    }
    if (beside) r.what.type->combine(r.what.reduction, r.data, r.beside.data(), s.in.size());
    r.posted = r.received = false;
    ++r.step;
  }
  ++end.turns_done;
  return true;
}

/// The part of a collective that this rank does once all are there. @return whether it is done
[[nodiscard]] inline bool advance_work(Record& r, std::uint64_t finished) {
  End& end = *r.end;
  World& world = *end.world;
  if (r.what.call == Call::barrier) return true;
  if (r.what.call == Call::split) {
    int leader = -1;
    int members = 0;
    for (int p = world.ranks() - 1; p >= 0; --p) {
      Cell const& c = world.cell(r.number, p);
      if (r.color < 0 || c.color != r.color) continue;
      leader = p;
      ++members;
      if (c.key < r.key || (c.key == r.key && p <= end.rank)) ++r.made_rank;
    }
    if (leader == end.rank) {
      r.made = std::make_shared<World>(members);
      world.adopt(r.made);
    } else if (leader >= 0) {
      Cell const& c = world.cell(r.number, leader);
      if (c.phase.load(std::memory_order_acquire) < finished) return r.made_rank = -1, false;
      // It lies with the leader, who drops it as soon as the world is broken.
      if (!world.touch(end.rank,
                       [&] { r.made = *static_cast<std::shared_ptr<World> const*>(c.data); }))
        return r.made_rank = -1, false;
    }
    return true;
  }
  if (r.what.algorithm != AllReduce::slices) return advance_steps(r);
  if (world.ranks() == 1 || r.what.count == 0) return true;
  if (r.parts.empty()) {
    for (int p = 0; p < world.ranks(); ++p) r.parts.push_back(world.cell(r.number, p).data);
  }
  ElementType const* const type = r.what.type;
  auto const self = static_cast<std::size_t>(end.rank);
  Slice const mine = r.what.call == Call::broadcast ? Slice{0, r.what.count}
                                                    : slice(r.what.count, end.rank, world.ranks());
  auto const others = static_cast<std::uint64_t>(world.ranks() - 1);
  if (r.what.call == Call::broadcast && r.what.root == end.rank) {
    end.traffic.messages += others;
    end.traffic.bytes += others * r.what.count * type->size;
    return true;
  }
  for (int round = 0; r.at < mine.size(); ++round) {
    if (round == blocks_per_poll) return false;
    std::size_t const n = std::min(mine.size() - r.at, block_bytes / type->size);
    std::size_t const first = mine.first + r.at;
    bool const sound = world.touch(end.rank, [&] {
      if (r.what.call == Call::broadcast) {
        std::memcpy(at(r.data, type, first),
                    at(r.parts[static_cast<std::size_t>(r.what.root)], type, first),
                    n * type->size);
      } else if (r.what.call == Call::all_gather) {
        for (std::size_t p = 0; p < r.parts.size(); ++p) {
          if (p != self)
            std::memcpy(at(r.parts[p], type, first), at(r.data, type, first), n * type->size);
        }
      } else {
        int const only = r.what.call == Call::reduce_scatter ? end.rank : -1;
        type->fold(r.what.reduction, r.parts.data(), world.ranks(), first, n, only);
      }
    });
    if (!sound) return false;
    r.at += n;
  }
  if (r.what.call != Call::broadcast) {
    std::uint64_t const ways =
        r.what.call == Call::all_reduce ? 2 : 1;  // read from each other, write to each other
    end.traffic.messages += ways * others;
    end.traffic.bytes += ways * others * mine.size() * type->size;
  }
  return true;
}

/// Puts this rank's call where the others see it, once all are through with what stood there
/// before.
[[nodiscard]] inline bool show(Record& r, Cell& mine, std::uint64_t before) {
  if (!all_at(r, before)) return false;
  mine.what = r.what;
  mine.data = r.what.call == Call::split ? static_cast<void*>(&r.made) : r.data;
  mine.color = r.color;
  mine.key = r.key;
  r.parts.clear();
  mine.phase.store(before + 1, std::memory_order_release);
  r.stage = Stage::shown;
  return true;
}

[[nodiscard]] inline bool advance_collective(Record& r) {
  World& world = *r.end->world;
  Cell& mine = world.cell(r.number, r.end->rank);
  std::uint64_t const before =
      2 * (r.number / World::depth);  // all are through with what stood here
  switch (r.stage) {
    case Stage::queued:
      if (!show(r, mine, before)) return false;
      [[fallthrough]];
    case Stage::shown:
      if (!agreed(r, before + 1)) return false;
      r.stage = Stage::working;
      [[fallthrough]];
    case Stage::working:
      if (!advance_work(r, before + 2)) return false;
      mine.phase.store(before + 2, std::memory_order_release);
      r.stage = Stage::leaving;
      [[fallthrough]];
    default:
      return all_at(r, before + 2);
  }
}

[[nodiscard]] inline bool advance(Record& r) {
  if (r.what.call == Call::send) return advance_send(r);
  return r.what.call == Call::receive ? advance_receive(r) : advance_collective(r);
}

/// Takes an ended operation out of the list.
inline void settle(Record& r, Stage stage) {
  r.stage = stage;
  Family::remove(r);
  if (stage == Stage::done) {
    r.end->world->standing(r.end->rank).finished.store(packed(r), std::memory_order_relaxed);
    if (r.deliver != nullptr) r.deliver(r);
  }
}

/// Ends an operation with an error; from here on no peer touches its buffer.
/// @pre  the world is broken
inline void fail(Record& r) {
  World& world = *r.end->world;
  world.quiesce(r.end->rank);
  Error const error = world.error(r.end->rank, r.text());
  r.code = error.code();
  r.trouble = error.what();
  settle(r, Stage::failed);
}

/// What the start of an operation does: tells the others of it, and no work.
inline void begin(Record& r) {
  World& world = *r.end->world;
  world.standing(r.end->rank).started.store(packed(r), std::memory_order_relaxed);
  r.end->family->append(r);
  if (r.what.call == Call::receive) return;
  if (r.what.call != Call::send) {
    static_cast<void>(show(r, world.cell(r.number, r.end->rank), 2 * (r.number / World::depth)));
  } else if (post(r, world.edge(r.end->rank, r.peer, false), r.number, 0, r.what.count)) {
    r.stage = Stage::leaving;
  }
}

/// Moves every operation of the family on, in the order they were started.
inline void advance_all(Family& family) {
  if (family.moving) return;
  family.moving = true;
  struct Reset {
    bool& flag;
    explicit Reset(bool& f) : flag(f) {}
    ~Reset() { flag = false; }
  } const reset(family.moving);
  for (Record* r = family.head.next; r != &family.head;) {
    Record* const next = r->next;
    if (advance(*r)) settle(*r, Stage::done);
    // Whoever broke the world may have seen the last phase of this one before: look once more.
    else if (r->end->world->state() == 2)
      advance(*r) ? settle(*r, Stage::done) : fail(*r);
    r = next;
  }
}

/// What an operation waits for, for the one who waits too long.
[[nodiscard]] inline std::string blocked_on(Record const& r) {
  World& world = *r.end->world;
  int peer = r.peer;
  std::string why = "which has not answered it";
  if (peer < 0) {
    std::uint64_t const before = 2 * (r.number / World::depth);
    std::uint64_t const need = r.stage == Stage::queued  ? before
                               : r.stage == Stage::shown ? before + 1
                                                         : before + 2;
    for (int p = world.ranks() - 1; p >= 0; --p) {
      if (p != r.end->rank && world.cell(r.number, p).phase.load(std::memory_order_acquire) < need)
        peer = p;
    }
    why = r.stage == Stage::queued
              ? "which is not through with a call " + std::to_string(World::depth) + " earlier"
          : r.stage == Stage::shown ? "which has not called it"
                                    : "which has not done its part of it";
  }
  if (peer < 0) return "its own part is not done";
  auto const& standing = world.standing(peer);
  return "it waits for rank " + std::to_string(peer) + ", " + why + "; rank " +
         std::to_string(peer) + " last started " +
         call_text(standing.started.load(std::memory_order_relaxed)) + " and last finished " +
         call_text(standing.finished.load(std::memory_order_relaxed));
}

}  // namespace stagger::collective::detail
