// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Messages between processes, which arrive in the order in which they were sent and need
///         no matching call of the receiver.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <stagger/core/backoff.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/mpi/detail/pieces.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/program/traffic.hpp>

namespace stagger::mpi::detail {

/// The step to which a message belongs, and facts about it that must be equal in all processes.
struct Stamp {
  std::uint32_t epoch = 0;
  std::int64_t steps = 0;    // optimizer steps taken before
  std::uint64_t uses = 0;    // digest of the optimizer's numbers; where nothing is updated, whether
                             // losses are wanted (1) or outputs (2); 0: not known
  std::uint64_t inputs = 0;  // digest of the inputs that the process is given; 0: not known
  std::uint64_t targets = 0;  // likewise
};

/// The header of a message, in front of its payload.
struct Envelope {
  std::uint32_t epoch = 0;
  std::uint32_t what = 0;
  std::uint64_t bytes = 0;  // of the payload
  std::int64_t steps = 0;   // as in Stamp
  std::uint64_t uses = 0;
  std::uint64_t inputs = 0;
  std::uint64_t targets = 0;
};

/// The kinds of messages that are not signals.
enum Notice : std::uint32_t {
  notice_of_failure = 0xffff0000,
  notice_of_load,   ///< the process is about to load the program with this digest
  notice_of_parts,  ///< which rows of the batch the process is given
  notice_of_progress,
  notice_of_spans,
  notice_of_results,
  notice_of_values,    ///< values that the process has updated, where each replica updates a part
  notice_of_agreement  ///< the process knows that all ranks have finished, or has all updated values
};

/// Memory for a payload that is received.
struct Payload {
  std::unique_ptr<std::byte[]> bytes{};
  std::size_t capacity = 0;
};

/// A message in transit to one or several processes.
struct Outgoing {
  Envelope envelope{};
  ByteWriter payload{};
  std::vector<MPI_Request> requests{};
  std::size_t pool = 0;
};

/// The messages that one process sends, until MPI has sent them. Their memory is reused for later
/// messages of the same pool. Messages of a pool have the same size and are made before they are
/// needed, so in the steady state nothing is allocated, however late a message is sent.
class Outbox {
 public:
  /// @param  piece  most bytes that MPI is given at a time
  Outbox(MPI_Comm processes, std::size_t piece) : processes_(processes), piece_(piece) {
    MPI_Comm_size(processes, &size_);
    MPI_Comm_rank(processes, &rank_);
    for (int p = 1; p < size_; ++p) others_.push_back((rank_ + p) % size_);
  }
  Outbox(Outbox const&) = delete;
  Outbox& operator=(Outbox const&) = delete;
  /// Never waits for a peer. Memory that MPI may still read is never freed.
  ~Outbox() {
    bool const alive = running();
    if (alive) reap();
    if (under_way_.empty()) return;
    if (alive) peers_may_be_lost = true;
    new std::vector<std::unique_ptr<Outgoing>>(std::move(under_way_));
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  /// Makes messages for pools 1, 2, ...; pool 0 is for occasional messages.
  /// @param counts  [pools] messages that are in transit at a time; further ones are made when they
  ///                are needed
  void provide(std::vector<std::size_t> const& counts) {
    reap();
    pools_.resize(std::max(pools_.size(), counts.size() + 1));
    for (std::size_t pool = 1; pool <= counts.size(); ++pool) fill(pool, counts[pool - 1]);
    hold_all();
  }
  /// Makes messages for one pool. More are made only if `blank` is called while has_spare() is
  /// false.
  /// @param bytes  of the payload, for which each has memory from now on
  void provide(std::size_t pool, std::size_t count, std::size_t bytes) {
    pools_.resize(std::max(pools_.size(), pool + 1));
    Pool& own = pools_[pool];
    if (own.made != 0 && own.room >= bytes) return;
    own.room = bytes;
    own.spare.clear();
    fill(pool, count);
    hold_all();
  }
  /// Whether `blank` finds a message that is already made.
  [[nodiscard]] bool has_spare(std::size_t pool) noexcept {
    if (pools_[pool].spare.empty()) reap();
    return !pools_[pool].spare.empty();
  }

  /// An empty message to fill and post.
  [[nodiscard]] std::unique_ptr<Outgoing> blank(std::size_t pool = 0) {
    auto& spare = pools_[pool].spare;
    if (spare.empty()) reap();
    if (spare.empty()) return made(pool);
    auto message = std::move(spare.back());
    spare.pop_back();
    message->payload.clear();
    return message;
  }

  /// Sends it to some processes.
  void post(std::unique_ptr<Outgoing> message, Stamp const& stamp, std::uint32_t what,
            int const* peers, std::size_t count) {
    std::size_t const length = message->payload.size();
    posted_ += {count, count * length};
    message->envelope = {stamp.epoch, what,         length,       stamp.steps,
                         stamp.uses,  stamp.inputs, stamp.targets};
    message->requests.reserve(count * (1 + (length + piece_ - 1) / piece_));
    under_way_.push_back(std::move(message));  // before MPI reads it
    Outgoing& sent = *under_way_.back();
    auto& bytes = pools_[sent.pool].bytes;
    bytes = std::max(bytes, length);
    for (std::size_t i = 0; i < count; ++i) {
      send(sent, &sent.envelope, sizeof(Envelope), peers[i], envelope_tag);
      each_piece(length, piece_, [&](std::size_t at, std::size_t size) {
        send(sent, sent.payload.data() + at, size, peers[i], payload_tag);
      });
    }
  }
  void post_to_all(std::unique_ptr<Outgoing> message, Stamp const& stamp, std::uint32_t what) {
    post(std::move(message), stamp, what, others_.data(), others_.size());
  }

  /// The number and the bytes of all messages that were posted.
  [[nodiscard]] TrafficCount const& posted() const noexcept { return posted_; }

  /// Waits, for at most so long, until all posted messages have been sent.
  void flush(double seconds) {
    auto const sent = [this] {
      reap();
      return under_way_.empty();
    };
    stagger::detail::Backoff const yields(std::chrono::microseconds(0), std::chrono::seconds(1));
    if (!stagger::detail::wait_until(sent, seconds, yields)) return;
    for (Pool& pool : pools_)
      for (auto& message : pool.spare) message->payload.reserve(pool.bytes);
  }

 protected:
  static constexpr int envelope_tag = 0;
  static constexpr int payload_tag = 1;
  MPI_Comm const processes_;
  std::size_t const piece_;

 private:
  static constexpr std::size_t spare_notices = 16;
  /// Messages of one kind.
  struct Pool {
    std::vector<std::unique_ptr<Outgoing>> spare{};
    std::size_t bytes = 0;  // of the largest payload so far
    std::size_t room = 0;   // bytes; messages with less are not used again
    std::size_t made = 0;   // by `provide`
  };

  [[nodiscard]] std::unique_ptr<Outgoing> made(std::size_t pool) const {
    auto message = std::make_unique<Outgoing>();
    message->pool = pool;
    message->payload.reserve(pools_[pool].room);
    message->requests.reserve(2 * others_.size());
    return message;
  }
  void fill(std::size_t pool, std::size_t count) {
    Pool& own = pools_[pool];
    own.made = count;
    own.spare.reserve(count);
    while (own.spare.size() < count) own.spare.push_back(made(pool));
  }
  /// Makes room in the list of messages in transit for all messages of all pools.
  void hold_all() {
    std::size_t all = under_way_.size();
    for (Pool const& pool : pools_) all += pool.spare.size();
    under_way_.reserve(all + spare_notices);
  }

  void send(Outgoing& message, void const* bytes, std::size_t count, int peer, int tag) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Isend(bytes, count_for(count), MPI_BYTE, peer, tag, processes_, &request),
          "MPI_Isend");
    message.requests.push_back(request);
  }

  void reap() noexcept {
    for (std::size_t i = under_way_.size(); i > 0; --i) {
      auto& message = under_way_[i - 1];
      int done = 0;
      int const code = MPI_Testall(static_cast<int>(message->requests.size()),
                                   message->requests.data(), &done, MPI_STATUSES_IGNORE);
      if (code != MPI_SUCCESS || done == 0) continue;
      message->requests.clear();
      if (Pool& pool = pools_[message->pool]; message->payload.capacity() >= pool.room)
        pool.spare.push_back(std::move(message));
      std::swap(message, under_way_.back());
      under_way_.pop_back();
    }
  }

  int size_ = 0;
  int rank_ = 0;
  std::vector<int> others_{};  // processes
  std::vector<std::unique_ptr<Outgoing>> under_way_{};
  std::vector<Pool> pools_ = std::vector<Pool>(1);
  TrafficCount posted_{};
};

/// All messages that one process sends and receives in steps.
///
/// Messages belong to rounds: each call that all processes make together is a round, and each
/// process counts them. A round r has two epochs: in 2 r it is prepared, in 2 r + 1 it runs. A
/// message of a later epoch than the current one is kept until that epoch begins.
///
/// A message is a header of fixed size, for which a receive is always posted, and perhaps a
/// payload. The memory of a payload is reused for the next one from the same process.
class Channels : public Outbox {
 public:
  /// @param  processes  a communicator for these messages alone, with MPI_ERRORS_RETURN
  /// @param  piece      most bytes that MPI is given at a time
  /// @param  slack      by how much a payload may be longer than all before it without an
  ///                    allocation
  explicit Channels(MPI_Comm processes, std::size_t piece = most_in_a_call, std::size_t slack = 0)
      : Outbox(processes, piece), slack_(slack), peers_(size()), receives_(size()), ended_(size()) {
    std::fill(receives_.begin(), receives_.end(), MPI_REQUEST_NULL);
    for (int p = 0; p < size(); ++p) {
      if (p == rank()) continue;
      check(MPI_Recv_init(&peers_[p].envelope, sizeof(Envelope), MPI_BYTE, p, envelope_tag,
                          processes_, &receives_[p]),
            "MPI_Recv_init");
      start(p);
    }
  }
  Channels(Channels const&) = delete;
  Channels& operator=(Channels const&) = delete;
  /// Never waits for a peer. Memory that MPI may still write is never freed.
  ~Channels() {
    bool const alive = running();
    for (int p = 0; alive && p < size(); ++p) {
      if (receives_[p] == MPI_REQUEST_NULL) continue;
      if (peers_[p].state == State::listening) {
        MPI_Cancel(&receives_[p]);
        MPI_Wait(&receives_[p], MPI_STATUS_IGNORE);
      }
      MPI_Request_free(&receives_[p]);
    }
    bool lost = !alive;
    for (Peer const& peer : peers_) lost = lost || peer.state == State::payload;
    if (!lost) return;
    if (alive) peers_may_be_lost = true;
    new FixedArray<Peer>(std::move(peers_));
  }

  /// Delivers the messages that have arrived for this epoch, and drops those of earlier epochs. No
  /// other message is lost if `deliver` throws.
  /// @param  deliver  (peer, envelope, ByteReader&)
  /// @return whether anything moved
  template <class Deliver> bool poll(std::uint32_t epoch, Deliver&& deliver) {
    bool moved = false;
    int count = 0;
    check(MPI_Testsome(size(), receives_.data(), &count, ended_.data(), MPI_STATUSES_IGNORE),
          "MPI_Testsome");
    for (int i = 0; i < count && count != MPI_UNDEFINED; ++i) {
      peers_[ended_[i]].state = State::held;
      ++held_;
    }
    for (int p = 0; held_ != 0 && p < size(); ++p) {
      if (peers_[p].state != State::held || later(peers_[p].envelope.epoch, epoch)) continue;
      moved = true;
      arrived(p, epoch, deliver);
    }
    for (int p = 0; loading_ != 0 && p < size(); ++p) {
      if (peers_[p].state != State::payload) continue;
      int done = 0;
      check(MPI_Test(&peers_[p].loading, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done == 0) continue;
      moved = true;
      if (peers_[p].loaded < peers_[p].envelope.bytes) {
        load_piece(p);
        continue;
      }
      --loading_;
      finish(p, epoch, deliver);
    }
    return moved;
  }

  /// The next message of a process if it belongs to a later epoch than this one; otherwise null.
  [[nodiscard]] Envelope const* ahead(int peer, std::uint32_t epoch) const noexcept {
    Peer const& other = peers_[peer];
    bool const waits = other.state == State::held && later(other.envelope.epoch, epoch);
    return waits ? &other.envelope : nullptr;
  }

  /// Called while a message is delivered: keeps the memory of its payload, and provides other
  /// memory for later ones.
  void keep_payload(int peer, Payload& memory) noexcept { std::swap(peers_[peer].payload, memory); }
  /// Gives it back, unless another payload is arriving.
  void return_payload(int peer, Payload& memory) noexcept {
    if (peers_[peer].state != State::payload) keep_payload(peer, memory);
  }

 private:
  enum class State : std::uint8_t { listening, held, payload, idle };
  struct Peer {
    Envelope envelope{};
    State state = State::idle;
    Payload payload{};
    std::size_t loaded = 0;  // bytes requested from MPI so far
    MPI_Request loading = MPI_REQUEST_NULL;
  };

  [[nodiscard]] static bool later(std::uint32_t a, std::uint32_t b) noexcept {
    return static_cast<std::int32_t>(a - b) > 0;
  }

  void start(int p) {
    peers_[p].state = State::listening;
    check(MPI_Start(&receives_[p]), "MPI_Start");
  }

  template <class Deliver> void arrived(int p, std::uint32_t epoch, Deliver& deliver) {
    Peer& peer = peers_[p];
    if (peer.payload.capacity < peer.envelope.bytes) {
      peer.payload.capacity = 0;
      peer.payload.bytes.reset(new std::byte[peer.envelope.bytes + slack_]);
      peer.payload.capacity = peer.envelope.bytes + slack_;
    }
    --held_;
    if (peer.envelope.bytes == 0) return finish(p, epoch, deliver);
    peer.state = State::payload;
    peer.loaded = 0;
    ++loading_;
    load_piece(p);
  }

  void load_piece(int p) {
    Peer& peer = peers_[p];
    std::size_t const count = std::min(piece_, peer.envelope.bytes - peer.loaded);
    check(MPI_Irecv(peer.payload.bytes.get() + peer.loaded, count_for(count), MPI_BYTE, p,
                    payload_tag, processes_, &peer.loading),
          "MPI_Irecv");
    peer.loaded += count;
  }

  template <class Deliver> void finish(int p, std::uint32_t epoch, Deliver& deliver) {
    Peer& peer = peers_[p];
    Envelope const envelope = peer.envelope;
    ByteReader payload(peer.payload.bytes.get(), envelope.bytes);
    start(p);  // the header of the next message; its payload is received once this one has been
               // read
    bool const past = later(epoch & ~1U, envelope.epoch);
    if (!past) deliver(p, envelope, payload);
  }

  std::size_t const slack_;
  FixedArray<Peer> peers_{};            // [processes]
  FixedArray<MPI_Request> receives_{};  // [processes] of envelopes
  FixedArray<int> ended_{};             // those of `receives_` that have ended
  int held_ = 0;
  int loading_ = 0;
};

}  // namespace stagger::mpi::detail
