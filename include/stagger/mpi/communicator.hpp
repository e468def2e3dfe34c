// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A communicator between processes, carried by an existing MPI.

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include <stagger/collective/communicator.hpp>
#include <stagger/mpi/detail/progress.hpp>

namespace stagger::mpi {

class Communicator;
struct World;

/// How a wait for other processes passes the time: it asks again at once for as long as `spin`,
/// then for `yield` lets others have the core between questions, and from then on sleeps up to
/// 200 µs at a time.
class Waiting {
 public:
  explicit Waiting(std::chrono::microseconds spin,
                   std::chrono::microseconds yield = std::chrono::milliseconds(20)) noexcept
      : spin_(spin), yield_(yield) {}

  /// @param  waited  since the wait began
  void pause(std::chrono::steady_clock::duration waited) {
    if (waited < spin_) return;
    if (waited < spin_ + yield_) return std::this_thread::yield();
    std::this_thread::sleep_for(sleep_);
    if (sleep_ < longest) sleep_ *= 2;
  }

 private:
  static constexpr std::chrono::microseconds longest{200};
  std::chrono::microseconds spin_;
  std::chrono::microseconds yield_;
  std::chrono::microseconds sleep_{25};
};

/// An operation of a Communicator over MPI; models collective::Operation.
///
/// Dropping it before it is done ends the communicator for all ranks. Its buffer is free again when
/// it is done, has thrown (a deadline apart) or was dropped. No MPI can take back what a peer is
/// copying at that moment: an error waits for that, 0.2 s for what is read and 2 s for what is
/// written. Keep buffers longer where a rank may hang for more than that and come back.
class [[nodiscard]] Operation {
 public:
  Operation() = default;
  Operation(Operation&& other) noexcept
      : context_(std::move(other.context_)), record_(std::exchange(other.record_, nullptr)) {}
  Operation& operator=(Operation&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(record_, other.record_);
    return *this;
  }
  ~Operation() {
    if (record_ == nullptr) return;
    if (record_->stage == detail::Stage::working) drop();
    context_->give_record(*record_);
  }

  /// Moves on all operations of this rank in this communicator and its kin, without blocking.
  /// @return  whether this one is done; always true for an empty handle
  /// @throws Error  what the operation ended with: mismatch, peer_failed, cancelled on the rank at
  ///                fault, or io for what MPI refused
  bool poll() {
    if (record_ == nullptr) return true;
    if (record_->stage == detail::Stage::working) detail::advance_all(*context_->connection);
    if (record_->stage == detail::Stage::failed) throw Error(record_->code, record_->trouble);
    return record_->stage == detail::Stage::done;
  }
  /// The same by the name that MPI gives it.
  bool test() { return poll(); }

  /// Polls until done, and leaves the core to others when that takes long.
  /// @param  seconds  deadline, from now
  /// @throws Error    as poll(), and Errc::deadline with operation, rank, and the peer it waits for
  void wait(double seconds) {
    auto const start = std::chrono::steady_clock::now();
    if (poll()) return;
    Waiting waiting(context_->connection->spin);
    while (!poll()) {
      auto const waited = std::chrono::steady_clock::now() - start;
      if (std::chrono::duration<double>(waited).count() >= seconds) expire(seconds);
      waiting.pause(waited);
    }
  }

  /// Throws the error of a deadline of so many seconds; the operation still stands. When it is
  /// dropped thereafter, the others read this error's words.
  void expire(double seconds) const {
    if (record_ == nullptr) return;
    context_->gave_up = text(record_->text(), " of rank ", context_->rank, " is not done after ",
                             seconds, " s: ", detail::blocked_on(*record_));
    throw Error(Errc::deadline, context_->gave_up);
  }

 private:
  friend Communicator;
  Operation(std::shared_ptr<detail::Context> context, detail::Record& record) noexcept
      : context_(std::move(context)), record_(&record) {}
  void drop() noexcept;

  std::shared_ptr<detail::Context> context_{};
  detail::Record* record_ = nullptr;
};

namespace detail {

/// Breaks a context because its rank gave up; the words of a deadline, when there was one, go out.
inline void give_up(Context& c, std::string const& what) noexcept {
  try {
    std::string reason = text("rank ", c.rank, " ", what);
    if (!c.gave_up.empty()) reason = text("rank ", c.rank, " gave up: ", c.gave_up);
    c.connection->break_down(c, Errc::peer_failed, c.rank, reason);
    advance_all(*c.connection);
  } catch (...) {  // out of memory for words: the others meet their deadline
    c.broken = true;
  }
}

template <class T> [[nodiscard]] MPI_Datatype native_type() {
  if constexpr (std::is_same_v<T, float>) return MPI_FLOAT;
  if constexpr (std::is_same_v<T, double>) return MPI_DOUBLE;
  if constexpr (std::is_integral_v<T>) {
    constexpr bool sign = std::is_signed_v<T>;
    switch (sizeof(T)) {
      case 1:
        return sign ? MPI_INT8_T : MPI_UINT8_T;
      case 2:
        return sign ? MPI_INT16_T : MPI_UINT16_T;
      case 4:
        return sign ? MPI_INT32_T : MPI_UINT32_T;
      default:
        return sign ? MPI_INT64_T : MPI_UINT64_T;
    }
  }
  return MPI_DATATYPE_NULL;
}

}  // namespace detail

inline void Operation::drop() noexcept {
  try {
    detail::give_up(*context_, "dropped " + record_->text() + " before it was done");
    if (record_->stage == detail::Stage::working) detail::fail(*record_);
  } catch (...) {
    context_->broken = true;
  }
}

/// One rank's end of a communicator between processes; models collective::Communicator.
///
/// A rank's communicator, what it was split from or into, and their operations belong to one thread
/// at a time, and are gone before MPI is finalised. MPI makes no progress by itself: operations
/// move when one of them is polled. Operations end in Error(Errc::peer_failed) when a rank aborts,
/// drops an operation, or leaves what others still need; a rank that died or hangs says nothing and
/// is found by the deadline of those who wait for it.
///
/// Bits: `all_reduce` by slices and `reduce_scatter` add in rank order, element by element, as
/// collective::InProcess does.
class Communicator {
 public:
  using operation_type = Operation;

  /// Point-to-point calls of a group start at once here; there is nothing to submit.
  class Group {
   public:
    void submit() const noexcept {}
  };

  /// A communicator of no rank: what a split leaves to ranks without a colour.
  Communicator() = default;
  Communicator(Communicator&&) noexcept = default;
  Communicator& operator=(Communicator&& other) noexcept {
    std::swap(context_, other.context_);
    return *this;
  }
  /// Leaves; never waits for a peer.
  ~Communicator() {
    if (!context_ || !running()) return;
    if (context_->busy != 0) {
      detail::give_up(*context_, "left with operations under way");
    } else {
      try {
        context_->connection->leave(*context_);
      } catch (...) {  // the others meet their deadline, if they still need this rank
      }
    }
  }

  [[nodiscard]] explicit operator bool() const noexcept { return context_ != nullptr; }
  [[nodiscard]] int rank() const noexcept { return context_ ? context_->rank : -1; }
  [[nodiscard]] int size() const noexcept { return context_ ? context_->size() : 0; }
  /// What this rank gave to MPI so far: payload only.
  [[nodiscard]] collective::Traffic traffic() const noexcept {
    return context_ ? context_->traffic : collective::Traffic{};
  }
  [[nodiscard]] Group group() const noexcept { return {}; }

  /// Done when `x` may be used again. A rank may send to itself.
  template <class T, std::size_t N>
  requires collective::Element<std::remove_const_t<T>> Operation send(Group const&,
                                                                      std::span<T, N> x, int peer) {
    using Value = std::remove_const_t<T>;
    return message(detail::Call::send, const_cast<Value*>(x.data()), x.size(),
                   &collective::detail::element_type<Value>, peer);
  }
  template <collective::Element T, std::size_t N>
  Operation receive(Group const&, std::span<T, N> x, int peer) {
    return message(detail::Call::receive, x.data(), x.size(), &collective::detail::element_type<T>,
                   peer);
  }
  template <collective::Element T, std::size_t N> Operation broadcast(std::span<T, N> x, int root) {
    check_peer("broadcast", root);
    return collective(detail::Call::broadcast, x, collective::Reduction::sum, root);
  }
  /// By the algorithm this communicator was made with.
  template <collective::Number T, std::size_t N>
  Operation all_reduce(std::span<T, N> x,
                       collective::Reduction reduction = collective::Reduction::sum) {
    return all_reduce(x, reduction, need().algorithm);
  }
  /// @throws Error  Errc::bad_configuration for iallreduce on a communicator made without it, or
  ///                for an element type that MPI does not know
  template <collective::Number T, std::size_t N>
  Operation all_reduce(std::span<T, N> x, collective::Reduction reduction, AllReduce algorithm) {
    if (algorithm == AllReduce::slices) {
      return collective(detail::Call::all_reduce, x, reduction, 0);
    }
    MPI_Datatype const type = detail::native_type<T>();
    if (need().native == MPI_COMM_NULL || type == MPI_DATATYPE_NULL) {
      throw Error(Errc::bad_configuration,
                  "iallreduce needs a communicator made by World{AllReduce::iallreduce} and an "
                  "element type that MPI knows");
    }
    detail::Record& r =
        begin(detail::Call::all_reduce, x.data(), x.size(), &collective::detail::element_type<T>);
    r.what.reduction = reduction;
    r.number = context_->collectives++;
    r.mine.describe(r.what);
    return start(r, [&] { detail::begin_native(r, type); });
  }
  /// Leaves the reduction in slice(x.size(), rank(), size()) of x; equal bits to all_reduce by
  /// slices.
  template <collective::Number T, std::size_t N>
  Operation reduce_scatter(std::span<T, N> x,
                           collective::Reduction reduction = collective::Reduction::sum) {
    return collective(detail::Call::reduce_scatter, x, reduction, 0);
  }
  template <collective::Element T, std::size_t N> Operation all_gather(std::span<T, N> x) {
    return collective(detail::Call::all_gather, x, collective::Reduction::sum, 0);
  }
  /// Done when every rank has called it.
  Operation barrier() { return enter(begin(detail::Call::barrier, nullptr, 0, nullptr)); }
  /// Ranks of one `color` >= 0 form a communicator, ordered by key, then rank; `part` holds it when
  /// the operation is done and must stay in place until then.
  Operation split(int color, int key, Communicator& part) {
    detail::Record& r = begin(detail::Call::split, nullptr, 0, nullptr);
    r.mine.color = color;
    r.mine.key = key;
    r.mine.proposed = context_->connection->propose();
    r.target = &part;
    r.deliver = [](detail::Record& done) {
      if (done.made) {
        *static_cast<Communicator*>(done.target) = Communicator(std::move(done.made));
      }
    };
    return enter(r);
  }

  /// Ends the communicator and all that were split from it: every other rank's operations end in
  /// Error(Errc::peer_failed) that carries the reason, this rank's in Errc::cancelled.
  void abort(char const* reason) {
    detail::Context& c = need();
    c.gave_up.clear();
    detail::give_up(c, std::string("aborted: ") + reason);
  }

 private:
  friend World;
  explicit Communicator(std::shared_ptr<detail::Context> context) noexcept
      : context_(std::move(context)) {}

  [[nodiscard]] detail::Context& need() const {
    if (context_) return *context_;
    throw Error(Errc::bad_configuration,
                "this communicator has no rank: it is empty or was moved from; use the one that "
                "connect() or split() gave");
  }
  void check_peer(char const* call, int peer) const {
    if (peer >= 0 && peer < need().size()) return;
    std::string const words =
        text(call, " of rank ", rank(), " names rank ", peer, ", but ranks are 0 to ", size() - 1);
    context_->connection->break_down(*context_, Errc::mismatch, -1, words);
    throw Error(Errc::mismatch, words);
  }
  [[nodiscard]] detail::Record& begin(detail::Call call, void* data, std::size_t count,
                                      detail::ElementType const* type) {
    detail::Context& c = need();
    require_callable();
    if (c.busy >= static_cast<int>(detail::Context::depth)) {
      throw Error(Errc::bad_configuration,
                  text(c.busy, " operations of rank ", c.rank,
                       " are under way; wait for some before more are started"));
    }
    detail::Record& r = c.take_record();
    r.what.call = call;
    r.what.count = count;
    r.what.type = type;
    r.data = static_cast<std::byte*>(data);
    return r;
  }
  /// Opens what an operation opens first; an error of MPI breaks the communicator.
  template <class Open> Operation start(detail::Record& r, Open&& open) {
    Operation operation(context_, r);
    context_->connection->append(r);
    try {
      if (!context_->broken) {
        open();
        r.opened = true;
      }
    } catch (Error const& e) {
      context_->connection->break_down(*context_, e.code(), -1, e.what());
    }
    return operation;
  }
  Operation enter(detail::Record& r) {
    r.number = context_->collectives++;
    r.mine.number = r.number;
    r.mine.describe(r.what);
    return start(r, [&] { detail::begin_collective(r); });
  }
  template <class T, std::size_t N>
  Operation collective(detail::Call call, std::span<T, N> x, collective::Reduction reduction,
                       int root) {
    detail::Record& r = begin(call, x.data(), x.size(), &collective::detail::element_type<T>);
    r.what.reduction = reduction;
    r.what.root = root;
    return enter(r);
  }
  Operation message(detail::Call call, void* data, std::size_t count,
                    detail::ElementType const* type, int peer) {
    check_peer(collective::detail::name(call), peer);
    detail::Record& r = begin(call, data, count, type);
    r.peer = peer;
    bool const out = call == detail::Call::send;
    auto& numbers = out ? context_->sent : context_->received;
    r.number = numbers[static_cast<std::size_t>(peer)]++;
    r.mine.describe(r.what);
    return start(r, [&] {
      std::size_t const bytes = count * type->size;
      int const tag = context_->message_tag();
      if (out) {
        detail::open_send(r, peer, detail::Cargo::message, 0, data, bytes, tag);
        detail::count_traffic(r, 1, bytes);
      } else {
        detail::open_receive(r, peer, detail::Cargo::message, 0, data, bytes, tag);
      }
    });
  }

  std::shared_ptr<detail::Context> context_{};
};

}  // namespace stagger::mpi
