// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   How operations over MPI begin and move on. No call here ever blocks.
///
/// A collective begins with a header to every peer, so that calls that differ are found, and goes
/// on while headers travel. Vectors that fit beside the header travel with it, whole, and each rank
/// adds them all in rank order. Longer ones are cut: each rank receives everybody's piece of its
/// own slice in segments, adds them in rank order, and hands the sums to the others.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <stagger/collective/communicator.hpp>
#include <stagger/mpi/detail/connection.hpp>
#include <stagger/mpi/detail/requests.hpp>

namespace stagger::mpi::detail {

/// Bytes of a segment: added while they are in the cache, sent on while the next one arrives.
inline constexpr std::size_t segment_bytes = std::size_t{256} << 10;
/// Segments of one peer that may arrive before they are added.
inline constexpr std::size_t window = 4;
/// Segments added in one poll.
inline constexpr int segments_per_poll = 4;

inline constexpr std::size_t slot_bytes = sizeof(Header) + inline_bytes;

[[nodiscard]] inline std::byte* element(Record const& r, std::size_t index) noexcept {
  return r.data + index * r.what.type->size;
}
[[nodiscard]] inline std::byte* slot(Record& r, int peer) noexcept {
  return r.inbox.data() + static_cast<std::size_t>(peer) * slot_bytes;
}
[[nodiscard]] inline bool adds(Record const& r) noexcept {
  return r.what.call == Call::all_reduce || r.what.call == Call::reduce_scatter;
}
[[nodiscard]] inline Slice slice_of(Record const& r, int rank) noexcept {
  return collective::slice(r.what.count, rank, r.context->size());
}
[[nodiscard]] inline std::size_t segments_of(Record const& r, int rank) noexcept {
  return (slice_of(r, rank).size() + r.segment - 1) / r.segment;
}
/// Elements [first, last) of a segment of a rank's slice.
[[nodiscard]] inline Slice segment_of(Record const& r, int rank, std::size_t index) noexcept {
  Slice const all = slice_of(r, rank);
  std::size_t const first = all.first + index * r.segment;
  return {first, std::min(all.last, first + r.segment)};
}

/// Ranks other than this one, the next first, so that not all of them send to one.
template <class Visit> void each_peer(Context const& c, Visit&& visit) {
  for (int i = 1; i < c.size(); ++i) visit((c.rank + i) % c.size());
}

inline void count_traffic(Record& r, std::uint64_t messages, std::size_t bytes) noexcept {
  r.context->traffic.messages += messages;
  r.context->traffic.bytes += bytes;
}

inline void receive_part(Record& r, int peer, std::size_t index) {
  Slice const s = segment_of(r, r.context->rank, index);
  std::size_t const place = static_cast<std::size_t>(peer) * window + index % window;
  open_receive(r, peer, Cargo::part, index,
               r.scratch.data() + place * r.segment * r.what.type->size,
               s.size() * r.what.type->size, r.context->tag(r.number, 1));
}
inline void receive_result(Record& r, int peer, std::size_t index) {
  Slice const s = segment_of(r, peer, index);
  open_receive(r, peer, Cargo::result, index, element(r, s.first), s.size() * r.what.type->size,
               r.context->tag(r.number, 2));
}
inline void send_result(Record& r, std::size_t index) {
  Slice const s = segment_of(r, r.context->rank, index);
  std::size_t const bytes = s.size() * r.what.type->size;
  each_peer(*r.context, [&](int p) {
    open_send(r, p, Cargo::result, index, element(r, s.first), bytes, r.context->tag(r.number, 2));
    count_traffic(r, 1, bytes);
  });
}

/// Parent and children in the tree of a broadcast: ranks counted from the root, each bit a level.
[[nodiscard]] inline int from_root(Record const& r) noexcept {
  int const n = r.context->size();
  return (r.context->rank - r.what.root + n) % n;
}
inline void forward(Record& r) {
  Context& c = *r.context;
  int const place = from_root(r);
  int const low = place == 0 ? c.size() : place & -place;
  int bit = 1;
  while (bit < low && place + bit < c.size()) bit *= 2;
  for (bit /= 2; bit >= 1; bit /= 2) {
    if (bit >= low || place + bit >= c.size()) continue;
    int const child = (place + bit + r.what.root) % c.size();
    open_send(r, child, Cargo::header, 0, r.outbox.data(), r.outbox.size(), c.tag(r.number, 0));
    std::size_t const bytes = r.what.count * r.what.type->size;
    if (!r.together) open_send(r, child, Cargo::part, 0, r.data, bytes, c.tag(r.number, 1));
    count_traffic(r, 1, bytes);
  }
  r.forwarded = true;
}

/// Writes the own header, and the numbers beside it when they fit.
inline void fill_outbox(Record& r) {
  r.mine.number = r.number;
  r.mine.describe(r.what);
  std::size_t const bytes = r.together ? r.what.count * r.what.type->size : 0;
  r.outbox.resize(sizeof(Header) + bytes);
  std::memcpy(r.outbox.data(), &r.mine, sizeof(Header));
  if (bytes != 0) std::memcpy(r.outbox.data() + sizeof(Header), r.data, bytes);
}

inline void begin_broadcast(Record& r) {
  Context& c = *r.context;
  fill_outbox(r);
  int const place = from_root(r);
  if (place == 0) return forward(r);
  int const parent = ((place & (place - 1)) + r.what.root) % c.size();
  r.headers_left = 1;
  open_receive(r, parent, Cargo::header, 0, slot(r, parent), slot_bytes, c.tag(r.number, 0));
  if (!r.together) {
    open_receive(r, parent, Cargo::part, 0, r.data, r.what.count * r.what.type->size,
                 c.tag(r.number, 1));
  }
}

inline void begin_native(Record& r, MPI_Datatype type) {
  Context& c = *r.context;
  constexpr std::size_t most = 0x7fffffff;
  if (r.what.count > most) {
    throw Error(Errc::bad_configuration,
                text("MPI_Iallreduce takes at most 2147483647 elements, not ", r.what.count,
                     "; give it pieces, or use AllReduce::slices"));
  }
  MPI_Op const ops[] = {MPI_SUM, MPI_MIN, MPI_MAX};
  std::size_t const at = take_slot(r, {-1, Cargo::native, false, 0, 0});
  int const code =
      MPI_Iallreduce(MPI_IN_PLACE, r.data, static_cast<int>(r.what.count), type,
                     ops[static_cast<int>(r.what.reduction)], c.native, &r.requests[at]);
  if (code != MPI_SUCCESS) check(code, "MPI_Iallreduce", doing(r));
}

/// Opens the first requests of a collective.
inline void begin_collective(Record& r) {
  Context& c = *r.context;
  if (c.size() == 1) return;
  if (r.inbox.size() < static_cast<std::size_t>(c.size()) * slot_bytes) {
    r.inbox.resize(static_cast<std::size_t>(c.size()) * slot_bytes);
  }
  std::size_t const bytes = r.what.type == nullptr ? 0 : r.what.count * r.what.type->size;
  bool const broadcast = r.what.call == Call::broadcast;
  r.together = bytes <= inline_bytes && (broadcast || r.what.call == Call::all_reduce);
  if (broadcast) return begin_broadcast(r);
  fill_outbox(r);
  r.headers_left = c.size() - 1;
  each_peer(c, [&](int p) {
    open_receive(r, p, Cargo::header, 0, slot(r, p), slot_bytes, c.tag(r.number, 0));
  });
  bool const long_sum = adds(r) && !r.together && r.what.count != 0;
  if (long_sum) {
    r.segment = std::max<std::size_t>(1, segment_bytes / r.what.type->size);
    r.segments = segments_of(r, c.rank);
    std::size_t const room =
        static_cast<std::size_t>(c.size()) * window * r.segment * r.what.type->size;
    if (r.scratch.size() < room) r.scratch.resize(room);
    r.arrived.assign(window, 0);
    r.most_segments = segments_of(r, 0);
    r.parts_sent.assign(static_cast<std::size_t>(c.size()) * r.most_segments, false);
    r.results_opened.assign(static_cast<std::size_t>(c.size()), 0);
    for (std::size_t s = 0; s < std::min(window, r.segments); ++s) {
      each_peer(c, [&](int p) { receive_part(r, p, s); });
    }
  }
  each_peer(c, [&](int p) {
    open_send(r, p, Cargo::header, 0, r.outbox.data(), r.outbox.size(), c.tag(r.number, 0));
    count_traffic(r, 1, r.outbox.size() - sizeof(Header));
  });
  if (long_sum) {
    each_peer(c, [&](int p) {
      for (std::size_t s = 0; s < segments_of(r, p); ++s) {
        Slice const part = segment_of(r, p, s);
        std::size_t const n = part.size() * r.what.type->size;
        open_send(r, p, Cargo::part, s, element(r, part.first), n, c.tag(r.number, 1));
        count_traffic(r, 1, n);
      }
    });
  } else if (r.what.call == Call::all_gather && r.what.count != 0) {
    r.segment = r.what.count;  // one each
    each_peer(c, [&](int p) {
      if (slice_of(r, p).size() != 0) receive_result(r, p, 0);
    });
    if (slice_of(r, c.rank).size() != 0) send_result(r, 0);
  }
}

/// Compares a peer's call with the own one.
inline void read_header(Record& r, int peer) {
  Header theirs;
  std::memcpy(&theirs, slot(r, peer), sizeof(theirs));
  --r.headers_left;
  if (theirs.version != wire_version) {
    throw Error(Errc::mismatch,
                text("rank ", peer, " runs another version of stagger; build all ranks from one"));
  }
  if (theirs.agrees(r.mine)) return;
  int const own = r.context->rank;
  Header const& low = peer < own ? theirs : r.mine;
  Header const& high = peer < own ? r.mine : theirs;
  throw Error(Errc::mismatch,
              text("call #", r.number, " differs: rank ", std::min(own, peer), " called ",
                   low.text(), ", rank ", std::max(own, peer), " called ", high.text(),
                   "; every rank must make the same calls in the same order"));
}

/// Opens receives of a peer's sums where the own part has been read, in the order they are sent.
inline void open_results(Record& r, int peer, std::size_t sent) {
  auto const first = static_cast<std::size_t>(peer) * r.most_segments;
  auto& next = r.results_opened[static_cast<std::size_t>(peer)];
  r.parts_sent[first + sent] = true;
  for (; next < r.most_segments && r.parts_sent[first + next]; ++next) {
    receive_result(r, peer, next);
  }
}

inline void note_end(Record& r, About const& about, std::size_t bytes) {
  switch (about.cargo) {
    case Cargo::header:
      if (!about.out) read_header(r, about.peer);
      return;
    case Cargo::part:
      if (r.what.call == Call::broadcast) return;
      if (!about.out) {
        ++r.arrived[about.index % window];
      } else if (r.what.call == Call::all_reduce) {
        open_results(r, about.peer, about.index);
      }
      return;
    case Cargo::message:
      if (!about.out && bytes != about.bytes) {
        throw Error(Errc::mismatch,
                    text("rank ", about.peer, " sent ", bytes, " bytes as message #", r.number,
                         ", rank ", r.context->rank, " expects ", r.text(),
                         "; both ends must agree on type and count"));
      }
      return;
    case Cargo::result:
    case Cargo::native:
      return;
  }
}

/// Adds the segments that are there, in rank order.
inline void fold_segments(Record& r) {
  Context& c = *r.context;
  auto const others = static_cast<std::size_t>(c.size() - 1);
  std::size_t const size = r.what.type->size;
  r.parts.resize(static_cast<std::size_t>(c.size()));
  for (int turn = 0; turn < segments_per_poll && r.folded < r.segments; ++turn) {
    std::size_t const place = r.folded % window;
    if (r.arrived[place] != others) return;
    Slice const s = segment_of(r, c.rank, r.folded);
    for (int p = 0; p < c.size(); ++p) {
      auto const peer = static_cast<std::size_t>(p);
      r.parts[peer] = p == c.rank ? element(r, s.first)
                                  : r.scratch.data() + (peer * window + place) * r.segment * size;
    }
    r.what.type->fold(r.what.reduction, r.parts.data(), c.size(), 0, s.size(), c.rank);
    r.arrived[place] = 0;
    if (r.what.call == Call::all_reduce) send_result(r, r.folded);
    if (r.folded + window < r.segments) {
      each_peer(c, [&](int p) { receive_part(r, p, r.folded + window); });
    }
    ++r.folded;
  }
}

/// What follows once all headers, and the numbers beside them, are there.
inline void after_headers(Record& r) {
  Context& c = *r.context;
  if (r.forwarded) return;
  if (r.what.call == Call::broadcast) {
    if (from_root(r) == 0) return;
    if (r.together) {
      int const parent = ((from_root(r) & (from_root(r) - 1)) + r.what.root) % c.size();
      std::size_t const bytes = r.what.count * r.what.type->size;
      if (bytes != 0) {
        std::memcpy(r.data, slot(r, parent) + sizeof(Header), bytes);
        std::memcpy(r.outbox.data() + sizeof(Header), r.data, bytes);
      }
    } else if (r.live != 0) {
      return;  // the numbers are on their way
    }
    return forward(r);
  }
  r.forwarded = true;
  if (!r.together || !adds(r) || r.what.count == 0) return;
  r.parts.resize(static_cast<std::size_t>(c.size()));
  for (int p = 0; p < c.size(); ++p) {
    r.parts[static_cast<std::size_t>(p)] = p == c.rank ? r.data : slot(r, p) + sizeof(Header);
  }
  r.what.type->fold(r.what.reduction, r.parts.data(), c.size(), 0, r.what.count, c.rank);
}

/// Makes this rank's part of a split, whose headers are all there.
inline void make_part(Record& r) {
  Context& c = *r.context;
  std::uint32_t id = r.mine.proposed;
  struct Member {
    std::int32_t key;
    int rank;
  };
  std::vector<Member> found;
  for (int p = 0; p < c.size(); ++p) {
    Header theirs = r.mine;
    if (p != c.rank) std::memcpy(&theirs, slot(r, p), sizeof(theirs));
    id = std::max(id, theirs.proposed);
    if (theirs.color >= 0 && theirs.color == r.mine.color) found.push_back({theirs.key, p});
  }
  MPI_Comm native = MPI_COMM_NULL;
  if (c.native != MPI_COMM_NULL) {
    // All ranks have called split by now, so this ends as soon as each of them has polled.
    check(MPI_Comm_split(c.native, r.mine.color < 0 ? MPI_UNDEFINED : r.mine.color, r.mine.key,
                         &native),
          "MPI_Comm_split", doing(r));
    if (native != MPI_COMM_NULL) MPI_Comm_set_errhandler(native, MPI_ERRORS_RETURN);
  }
  if (r.mine.color < 0) return;
  std::sort(found.begin(), found.end(), [](Member const& a, Member const& b) {
    return a.key != b.key ? a.key < b.key : a.rank < b.rank;
  });
  std::vector<int> members;
  int rank = 0;
  for (auto const& m : found) {
    if (m.rank == c.rank) rank = static_cast<int>(members.size());
    members.push_back(c.member(m.rank));
  }
  r.made = c.connection->make(c.connection, id, rank, std::move(members), c.algorithm);
  r.made->native = native;
  c.connection->adopt(c, r.made);
}

/// @return  whether the operation is done
[[nodiscard]] inline bool advance(Record& r) {
  collect(r, [&](About const& about, std::size_t bytes) { note_end(r, about, bytes); });
  if (r.what.call == Call::send || r.what.call == Call::receive || r.context->size() == 1) {
    if (r.what.call == Call::split) make_part(r);
    return r.live == 0;
  }
  if (r.headers_left == 0) after_headers(r);
  if (r.folded < r.segments) fold_segments(r);
  if (r.live != 0 || r.headers_left != 0 || r.folded < r.segments) return false;
  if (r.what.call == Call::split) make_part(r);
  return true;
}

inline void settle(Record& r, Stage stage) {
  r.stage = stage;
  r.context->connection->remove(r);
  if (stage == Stage::done && r.deliver != nullptr) r.deliver(r);
}

/// Ends an operation of a broken context.
inline void fail(Record& r) {
  Context& c = *r.context;
  bool const own_fault = c.code == Errc::peer_failed && c.culprit == c.rank;
  r.code = own_fault ? Errc::cancelled : c.code;
  r.trouble = r.text() + " of rank " + std::to_string(c.rank) + " ended: " + c.reason;
  if (!withdraw(r)) {
    // MPI keeps these buffers for good; the handle gets a record without them.
    auto const own = std::find_if(c.records.begin(), c.records.end(),
                                  [&](auto const& held) { return held.get() == &r; });
    if (own != c.records.end()) {
      auto kept = std::make_unique<Record>();
      std::swap(kept->requests, r.requests);
      std::swap(kept->about, r.about);
      std::swap(kept->statuses, r.statuses);
      std::swap(kept->outbox, r.outbox);
      std::swap(kept->inbox, r.inbox);
      std::swap(kept->scratch, r.scratch);
      r.spare.clear();
      r.ended.clear();
      r.live = 0;
      c.connection->abandoned.push_back(std::move(kept));
    }
  }
  settle(r, Stage::failed);
}

/// Breaks the context of an operation whose peer has left and will never answer it.
inline void check_departed(Record& r) {
  Context& c = *r.context;
  for (std::size_t i = 0; i < r.requests.size(); ++i) {
    if (r.requests[i] == MPI_REQUEST_NULL || r.about[i].peer < 0) continue;
    int const p = r.about[i].peer;
    auto const& gone = c.departed[static_cast<std::size_t>(p)];
    if (!gone.gone) continue;
    bool const answered = r.what.call == Call::send      ? gone.received > r.number
                          : r.what.call == Call::receive ? gone.sent > r.number
                                                         : gone.collectives > r.number;
    if (answered) continue;
    return c.connection->break_down(
        c, Errc::peer_failed, p,
        text("rank ", p, " left before it answered ", r.text(), " of rank ", c.rank));
  }
}

/// Moves every operation of the connection on, in the order they were started.
inline void advance_all(Connection& connection) {
  if (connection.moving) return;
  connection.moving = true;
  struct Reset {
    bool& flag;
    explicit Reset(bool& f) : flag(f) {}
    ~Reset() { flag = false; }
  } const reset(connection.moving);
  bool const listen = connection.rounds++ % 16 == 0;
  if (listen) connection.hear();
  for (Record* r = connection.head().next; r != &connection.head();) {
    Record* const next = r->next;
    bool done = false;
    try {
      done = r->opened && advance(*r);
    } catch (Error const& e) {
      connection.break_down(*r->context, e.code(), -1, e.what());
    }
    if (!done && listen) check_departed(*r);
    if (done)
      settle(*r, Stage::done);
    else if (r->context->broken)
      fail(*r);
    r = next;
  }
}

/// What an operation waits for, for the one who waits too long.
[[nodiscard]] inline std::string blocked_on(Record const& r) {
  int peer = -1;
  Cargo cargo = Cargo::native;
  bool out = false;
  for (std::size_t i = 0; i < r.requests.size(); ++i) {
    if (r.requests[i] == MPI_REQUEST_NULL) continue;
    About const& a = r.about[i];
    // A missing header says most: that rank has not even called.
    bool const better = peer < 0 || (a.cargo == Cargo::header && !a.out &&
                                     (cargo != Cargo::header || out || a.peer < peer));
    if (!better) continue;
    peer = a.peer;
    cargo = a.cargo;
    out = a.out;
  }
  if (peer < 0) {
    return r.live != 0 ? "MPI_Iallreduce waits for another rank" : "its own part is not done";
  }
  std::string const who = "it waits for rank " + std::to_string(peer) + ", which has not ";
  if (out) return who + "taken what it was sent";
  if (cargo == Cargo::header) return who + "called it";
  return who + (cargo == Cargo::message ? "answered it" : "done its part of it");
}

}  // namespace stagger::mpi::detail
