// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What one process keeps of its connection to the other ranks: contexts, operations, and
/// the notes that say who has left or failed.
///
/// All ranks talk over one communicator of MPI. A stagger communicator is a *context* on it: a list
/// of members and a range of tags, so that a split needs no blocking call of MPI. A second
/// communicator of MPI carries notes. Neither is ever freed: a note that arrives late must not meet
/// another use of its communicator.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/communicator.hpp>
#include <stagger/core/text.hpp>
#include <stagger/mpi/detail/wire.hpp>
#include <stagger/mpi/error.hpp>
#include <stagger/mpi/session.hpp>

namespace stagger::mpi {

/// How an all-reduce is carried out. `slices` adds in rank order, so that its bits are those of
/// collective::InProcess; `iallreduce` is MPI_Iallreduce, whose bits are the MPI library's affair,
/// and whose calls are not compared between ranks.
enum class AllReduce : std::uint8_t { slices, iallreduce };

[[nodiscard]] constexpr char const* name(AllReduce algorithm) noexcept {
  return algorithm == AllReduce::slices ? "slices" : "iallreduce";
}

namespace detail {

struct Context;

enum class Stage : std::uint8_t { working, done, failed };

/// What a request of MPI carries.
enum class Cargo : std::uint8_t { header, part, result, message, native };

struct About {
  int peer = -1;  // rank of the context
  Cargo cargo = Cargo::message;
  bool out = false;
  std::size_t index = 0;  // segment
  std::size_t bytes = 0;
};

/// An operation. Records are pooled: the vectors keep their room.
struct Record {
  Context* context = nullptr;
  Record* previous = nullptr;  // in the connection's list, while under way
  Record* next = nullptr;
  Stage stage = Stage::working;

  Descriptor what{};
  std::byte* data = nullptr;
  std::uint64_t number = 0;
  int peer = -1;  // of a message
  Header mine{};

  std::vector<MPI_Request> requests{};
  std::vector<About> about{};
  std::vector<int> spare{};  // slots of `requests` without one
  std::vector<int> ended{};
  std::vector<MPI_Status> statuses{};
  std::size_t live = 0;

  std::vector<std::byte> outbox{};   // own header, and what travels with it
  std::vector<std::byte> inbox{};    // one such per rank
  std::vector<std::byte> scratch{};  // segments of others, to be added
  std::vector<void*> parts{};
  std::vector<std::size_t> arrived{};         // parts of a segment, by place in the window
  std::vector<bool> parts_sent{};             // by peer, then segment of its slice
  std::vector<std::size_t> results_opened{};  // receives of sums, by peer
  int headers_left = 0;
  std::size_t segment = 0;        // elements
  std::size_t segments = 0;       // of the own slice
  std::size_t most_segments = 0;  // of any slice: the first is the longest
  std::size_t folded = 0;
  bool opened = false;  // its first requests
  bool forwarded = false;
  bool together = false;  // the numbers travel with the header

  void* target = nullptr;  // of a split
  void (*deliver)(Record&) = nullptr;
  std::shared_ptr<Context> made{};

  Errc code = Errc::peer_failed;
  std::string trouble{};

  [[nodiscard]] std::string text() const {
    std::string s = mine.text() + " #" + std::to_string(number);
    if (what.call == Call::send) s += " to rank " + std::to_string(peer);
    if (what.call == Call::receive) s += " from rank " + std::to_string(peer);
    return s;
  }
};

class Connection;

/// One communicator as this rank keeps it. Lives until its handle and its operations are gone.
struct Context {
  struct Departed {
    bool gone = false;
    std::uint64_t collectives = 0;
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
  };
  static constexpr std::uint64_t depth = 256;  ///< collectives that can be under way at once
  static constexpr std::uint32_t tags = 1024;  ///< that a context has
  static constexpr int phases = 3;

  std::shared_ptr<Connection> connection{};
  std::uint32_t id = 0;
  int rank = 0;
  std::vector<int> members{};  ///< ranks of the connection, by rank of this
  AllReduce algorithm = AllReduce::slices;
  MPI_Comm native = MPI_COMM_NULL;  ///< of MPI_Iallreduce
  std::vector<std::weak_ptr<Context>> children{};

  std::uint64_t collectives = 0;  ///< started
  std::vector<std::uint64_t> sent{};
  std::vector<std::uint64_t> received{};
  collective::Traffic traffic{};
  std::vector<Departed> departed{};
  int busy = 0;  ///< operations under way

  bool broken = false;
  Errc code = Errc::peer_failed;
  int culprit = -1;
  std::string reason{};
  std::string gave_up{};  ///< what a deadline said, in case nobody waits any longer
  bool withdrawing = false;
  std::chrono::steady_clock::time_point withdrawn_at{};  ///< when the first operation failed

  std::vector<std::unique_ptr<Record>> records{};
  std::vector<Record*> spare{};

  Context(std::shared_ptr<Connection> shared, std::uint32_t own_id, int own_rank,
          std::vector<int> all, AllReduce chosen)
      : connection(std::move(shared)),
        id(own_id),
        rank(own_rank),
        members(std::move(all)),
        algorithm(chosen),
        sent(members.size()),
        received(members.size()),
        departed(members.size()) {}
  Context(Context const&) = delete;
  Context& operator=(Context const&) = delete;
  ~Context() = default;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members.size()); }
  [[nodiscard]] int member(int peer) const noexcept {
    return members[static_cast<std::size_t>(peer)];
  }
  [[nodiscard]] int tag(std::uint64_t number, int phase) const noexcept {
    return static_cast<int>(id * tags + static_cast<std::uint32_t>(number % depth) * phases) +
           phase;
  }
  [[nodiscard]] int message_tag() const noexcept {
    return static_cast<int>(id * tags + depth * phases);
  }

  [[nodiscard]] Record& take_record() {
    if (spare.empty()) {
      spare.reserve(records.size() + 1);
      records.push_back(std::make_unique<Record>());
      spare.push_back(records.back().get());
    }
    Record& r = *spare.back();
    spare.pop_back();
    r.context = this;
    r.stage = Stage::working;
    r.what = Descriptor{};
    r.mine = Header{};
    r.data = nullptr;
    r.peer = -1;
    r.headers_left = 0;
    r.segments = r.folded = 0;
    r.opened = r.forwarded = r.together = false;
    r.target = nullptr;
    r.deliver = nullptr;
    return r;
  }
  void give_record(Record& r) noexcept {
    r.made.reset();
    spare.push_back(&r);
  }
};

/// The process's end of a connection. Used by one thread at a time.
class Connection {
 public:
  Connection(MPI_Comm data, MPI_Comm control, int rank, int size)
      : data_(data), control_(control), rank_(rank), size_(size) {
    head_.next = head_.previous = &head_;
    void* bound = nullptr;
    int found = 0;
    MPI_Comm_get_attr(data_, MPI_TAG_UB, &bound, &found);
    most_contexts_ =
        static_cast<std::uint32_t>(found != 0 ? *static_cast<int*>(bound) : 32767) / Context::tags;
    listen();
  }
  Connection(Connection const&) = delete;
  Connection& operator=(Connection const&) = delete;
  ~Connection() {
    for (auto& r : abandoned) static_cast<void>(r.release());
    if (!running()) {
      for (auto& n : notes_) static_cast<void>(n.release());
      return;
    }
    if (listening_ != MPI_REQUEST_NULL) {
      MPI_Cancel(&listening_);
      MPI_Wait(&listening_, MPI_STATUS_IGNORE);
    }
    // A note is small and almost always gone by now; one that is not belongs to MPI for good.
    for (auto& n : notes_) {
      int done = 0;
      MPI_Test(&n->request, &done, MPI_STATUS_IGNORE);
      if (done == 0) static_cast<void>(n.release());
    }
  }

  [[nodiscard]] MPI_Comm data() const noexcept { return data_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] Record& head() noexcept { return head_; }

  void append(Record& r) noexcept {
    r.previous = head_.previous;
    r.next = &head_;
    head_.previous->next = &r;
    head_.previous = &r;
    ++r.context->busy;
  }
  void remove(Record& r) noexcept {
    if (r.next == nullptr) return;
    r.previous->next = r.next;
    r.next->previous = r.previous;
    r.next = r.previous = nullptr;
    --r.context->busy;
  }

  /// A number for a context that this rank has not used and proposes to the others.
  [[nodiscard]] std::uint32_t propose() noexcept { return next_context_++; }

  /// Makes a context of the number that all agreed on, and reads what came for it already.
  [[nodiscard]] std::shared_ptr<Context> make(std::shared_ptr<Connection> const& self,
                                              std::uint32_t id, int rank, std::vector<int> members,
                                              AllReduce algorithm) {
    if (id >= most_contexts_) {
      throw Error(Errc::bad_configuration,
                  text("this MPI has tags for ", most_contexts_,
                       " communicators of stagger; split less often, or use an MPI with a larger "
                       "MPI_TAG_UB"));
    }
    for (auto const& weak : contexts_) {
      auto const other = weak.lock();
      if (other && other->id == id) {
        throw Error(Errc::bad_configuration,
                    "two communicators were split at once, and not in the same order on every "
                    "rank; wait for one split before the other starts");
      }
    }
    next_context_ = std::max(next_context_, id + 1);
    auto context = std::make_shared<Context>(self, id, rank, std::move(members), algorithm);
    std::erase_if(contexts_, [](auto const& weak) { return weak.expired(); });
    contexts_.push_back(context);
    for (auto const& note : early_) {
      if (note.context == id) apply(*context, note);
    }
    return context;
  }

  /// Makes a part of a context, broken where the context is.
  void adopt(Context& context, std::shared_ptr<Context> const& part) {
    std::erase_if(context.children, [](auto const& weak) { return weak.expired(); });
    context.children.push_back(part);
    if (context.broken) static_cast<void>(mark_broken(*part, context.code, -1, context.reason));
  }

  /// Breaks a context and all that were split from it, for this rank and for every member. The
  /// first reason stays.
  void break_down(Context& context, Errc code, int culprit, std::string const& reason) {
    if (!mark_broken(context, code, culprit, reason)) return;
    Note note;
    note.kind = Note::Kind::broken;
    note.code = code;
    note.culprit = culprit;
    std::snprintf(note.reason, sizeof(note.reason), "%s", reason.c_str());
    tell(context, note);
  }

  /// Tells the members that this rank starts nothing any more.
  void leave(Context& context) {
    if (context.broken) return;
    Note note;
    note.collectives = context.collectives;
    tell(context, note);
  }

  /// Reads notes, if any came.
  void hear() {
    for (;;) {
      int came = 0;
      if (listening_ == MPI_REQUEST_NULL) return;
      check(MPI_Test(&listening_, &came, MPI_STATUS_IGNORE), "MPI_Test", "the notes of peers");
      if (came == 0) break;
      Note const note = heard_;
      listen();
      bool known = false;
      for (auto const& weak : contexts_) {
        auto const context = weak.lock();
        if (context && context->id == note.context) {
          apply(*context, note);
          known = true;
        }
      }
      if (!known) early_.push_back(note);
    }
    std::erase_if(notes_, [](auto& n) {
      int done = 0;
      MPI_Test(&n->request, &done, MPI_STATUS_IGNORE);
      return done != 0;
    });
  }

  bool moving = false;
  unsigned rounds = 0;
  std::chrono::microseconds spin{1000};  ///< how long a wait asks without leaving the core
  /// Records whose requests MPI may still work on after an error; they stay for good.
  std::vector<std::unique_ptr<Record>> abandoned{};

 private:
  struct Sent {
    Note note{};
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void listen() {
    check(MPI_Irecv(&heard_, static_cast<int>(sizeof(heard_)), MPI_BYTE, MPI_ANY_SOURCE, 0,
                    control_, &listening_),
          "MPI_Irecv", "the notes of peers");
  }

  void tell(Context& context, Note note) {
    note.context = context.id;
    note.rank = context.rank;
    for (int p = 0; p < context.size(); ++p) {
      if (p == context.rank) continue;
      auto const peer = static_cast<std::size_t>(p);
      auto sent = std::make_unique<Sent>();
      sent->note = note;
      sent->note.sent = context.sent[peer];
      sent->note.received = context.received[peer];
      MPI_Isend(&sent->note, static_cast<int>(sizeof(Note)), MPI_BYTE, context.member(p), 0,
                control_, &sent->request);
      notes_.push_back(std::move(sent));
    }
  }

  void apply(Context& context, Note const& note) {
    if (note.version != wire_version) {
      static_cast<void>(mark_broken(context, Errc::mismatch, -1,
                                    "a peer runs another version of stagger; build all ranks from "
                                    "one"));
    } else if (note.kind == Note::Kind::broken) {
      static_cast<void>(
          mark_broken(context, note.code, note.culprit,
                      std::string(note.reason, strnlen(note.reason, sizeof(note.reason)))));
    } else {
      context.departed[static_cast<std::size_t>(note.rank)] = {true, note.collectives, note.sent,
                                                               note.received};
    }
  }

  bool mark_broken(Context& context, Errc code, int culprit, std::string const& reason) {
    if (context.broken) return false;
    context.broken = true;
    context.code = code;
    context.culprit = culprit;
    context.reason = reason;
    troubled() = true;
    for (auto const& weak : context.children) {
      if (auto const child = weak.lock()) static_cast<void>(mark_broken(*child, code, -1, reason));
    }
    return true;
  }

  MPI_Comm data_;
  MPI_Comm control_;
  int rank_;
  int size_;
  std::uint32_t most_contexts_ = 0;
  std::uint32_t next_context_ = 0;
  Record head_{};
  Note heard_{};
  MPI_Request listening_ = MPI_REQUEST_NULL;
  std::vector<std::weak_ptr<Context>> contexts_{};
  std::vector<Note> early_{};
  std::vector<std::unique_ptr<Sent>> notes_{};
};

}  // namespace detail
}  // namespace stagger::mpi
