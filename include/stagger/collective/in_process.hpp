// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The collective that needs nothing: ranks of one process talk through its memory.

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/collective/communicator.hpp>
#include <stagger/collective/detail/progress.hpp>
#include <stagger/collective/policy.hpp>
#include <stagger/collective/steps.hpp>
#include <stagger/core/error.hpp>

namespace stagger::collective {

class InProcessCommunicator;

/// An operation of an InProcessCommunicator; models collective::Operation.
///
/// Dropping it before it is done ends the communicator for all ranks. No peer touches its buffer
/// after it is done, has thrown (a deadline apart) or was dropped; dropping waits at most for the
/// block of 64 KiB that a peer is copying at that moment.
class [[nodiscard]] InProcessOperation {
 public:
  InProcessOperation() = default;
  InProcessOperation(InProcessOperation&& other) noexcept
      : record_(std::exchange(other.record_, nullptr)) {}
  InProcessOperation& operator=(InProcessOperation&& other) noexcept {
    std::swap(record_, other.record_);
    return *this;
  }
  ~InProcessOperation();

  /// Moves on all operations of this rank in this communicator and its kin, without blocking.
  /// @return  whether this one is done; always true for an empty handle
  /// @throws Error  what the operation ended with: mismatch, peer_failed, or cancelled on the rank
  /// at fault
  bool poll() {
    if (record_ == nullptr) return true;
    if (record_->stage < detail::Stage::done) detail::advance_all(*record_->end->family);
    if (record_->stage == detail::Stage::failed) throw Error(record_->code, record_->trouble);
    return record_->stage == detail::Stage::done;
  }

  /// Polls until done. Ranks that share a thread use wait_all instead, as nobody else would poll
  /// here.
  /// @param  seconds  deadline, from now
  /// @throws Error    as poll(), and Errc::deadline with operation, rank, peer and where the peer
  /// stands
  void wait(double seconds) {
    auto const start = std::chrono::steady_clock::now();
    for (Backoff backoff(record_ != nullptr && record_->end->world->crowded()); !poll();
         backoff.pause()) {
      if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >=
          seconds)
        expire(seconds);
    }
  }

  /// Throws the error of a deadline of so many seconds; the operation still stands.
  void expire(double seconds) const {
    if (record_ == nullptr) return;
    std::string limit = std::to_string(seconds);
    limit.erase(limit.find_last_not_of('0') + 1);
    if (limit.back() == '.') limit.pop_back();
    throw Error(Errc::deadline, record_->text() + " of rank " + std::to_string(record_->end->rank) +
                                    " is not done after " + limit +
                                    " s: " + detail::blocked_on(*record_));
  }

 private:
  friend InProcessCommunicator;
  explicit InProcessOperation(detail::Record& record) noexcept : record_(&record) {
    ++record.end->holders;
  }

  detail::Record* record_ = nullptr;
};

/// One rank's end of a communicator within a process; models collective::Communicator.
///
/// Ranks may live on threads of their own or share one; then polling drives them interleaved. A
/// rank's communicator, what it was split from or into, and their operations belong to one thread
/// at a time. After the first use nothing allocates: records and edges are pooled. A rank that is
/// destroyed with operations under way, or that others still need, turns into
/// Error(Errc::peer_failed) on those others.
///
/// Bits: `all_reduce` by slices and `reduce_scatter` add in rank order, element by element; every
/// rank gets the same bits, whatever the timing, the number of threads, or how vectors are grouped
/// into calls.
class InProcessCommunicator {
 public:
  using operation_type = InProcessOperation;

  /// Point-to-point calls of a group start at once here; there is nothing to submit.
  class Group {
   public:
    void submit() const noexcept {}
  };

  /// A communicator of no rank: what a split leaves to ranks without a colour.
  InProcessCommunicator() = default;
  InProcessCommunicator(InProcessCommunicator&& other) noexcept
      : end_(std::exchange(other.end_, nullptr)) {}
  InProcessCommunicator& operator=(InProcessCommunicator&& other) noexcept {
    std::swap(end_, other.end_);
    return *this;
  }
  /// Leaves; never waits for a peer to come.
  ~InProcessCommunicator() {
    if (end_ == nullptr) return;
    if (end_->busy()) {
      break_off("rank " + std::to_string(rank()) + " left with operations under way");
    } else {
      end_->world->leave(end_->rank);
    }
    release(end_);
  }

  [[nodiscard]] explicit operator bool() const noexcept { return end_ != nullptr; }
  [[nodiscard]] int rank() const noexcept { return end_ == nullptr ? -1 : end_->rank; }
  [[nodiscard]] int size() const noexcept { return end_ == nullptr ? 0 : end_->world->ranks(); }
  /// What this rank gave to the others so far: payload only.
  [[nodiscard]] Traffic traffic() const noexcept {
    return end_ == nullptr ? Traffic{} : end_->traffic;
  }
  [[nodiscard]] Group group() const noexcept { return {}; }

  /// Done when the peer has copied `x`. A rank may send to itself.
  template <class T, std::size_t N>
  requires Element<std::remove_const_t<T>> InProcessOperation send(Group const&, std::span<T, N> x,
                                                                   int peer) {
    using Value = std::remove_const_t<T>;
    return message(detail::Call::send, const_cast<Value*>(x.data()), x.size(),
                   &detail::element_type<Value>, peer);
  }
  template <Element T, std::size_t N>
  InProcessOperation receive(Group const&, std::span<T, N> x, int peer) {
    return message(detail::Call::receive, x.data(), x.size(), &detail::element_type<T>, peer);
  }

  template <Element T, std::size_t N> InProcessOperation broadcast(std::span<T, N> x, int root) {
    check_peer("broadcast", root);
    return collective(detail::Call::broadcast, x, Reduction::sum, AllReduce::slices, root);
  }
  /// By the algorithm this communicator was made with.
  template <Number T, std::size_t N>
  InProcessOperation all_reduce(std::span<T, N> x, Reduction reduction = Reduction::sum) {
    return collective(detail::Call::all_reduce, x, reduction, need().algorithm, 0);
  }
  /// @throws Error  Errc::bad_configuration for an algorithm that cannot serve size() ranks
  template <Number T, std::size_t N>
  InProcessOperation all_reduce(std::span<T, N> x, Reduction reduction, AllReduce algorithm) {
    require_supported(algorithm, need().world->ranks());
    return collective(detail::Call::all_reduce, x, reduction, algorithm, 0);
  }
  /// Leaves the reduction in slice(x.size(), rank(), size()) of x; equal bits to all_reduce by
  /// slices.
  template <Number T, std::size_t N>
  InProcessOperation reduce_scatter(std::span<T, N> x, Reduction reduction = Reduction::sum) {
    return collective(detail::Call::reduce_scatter, x, reduction, AllReduce::slices, 0);
  }
  template <Element T, std::size_t N> InProcessOperation all_gather(std::span<T, N> x) {
    return collective(detail::Call::all_gather, x, Reduction::sum, AllReduce::slices, 0);
  }
  /// Done when every rank has called it.
  InProcessOperation barrier() { return enter(begin(detail::Call::barrier)); }
  /// Ranks of one `color` >= 0 form a communicator, ordered by key, then rank; `part` holds it when
  /// the operation is done and must stay in place until then.
  InProcessOperation split(int color, int key, InProcessCommunicator& part) {
    detail::Record& r = begin(detail::Call::split);
    r.color = color;
    r.key = key;
    r.data = &part;
    r.deliver = [](detail::Record& done) {
      if (!done.made) return;
      *static_cast<InProcessCommunicator*>(done.data) = InProcessCommunicator(
          *new detail::End(done.made, done.made_rank, done.end->algorithm, done.end->family));
    };
    return enter(r);
  }

  /// Ends the communicator and all that were split from it: every other rank's operations end in
  /// Error(Errc::peer_failed) that carries the reason, this rank's in Errc::cancelled.
  void abort(char const* reason) {
    static_cast<void>(need());
    break_off("rank " + std::to_string(rank()) + " aborted: " + reason);
  }

 private:
  friend InProcessOperation;
  friend struct InProcess;
  explicit InProcessCommunicator(detail::End& end) noexcept : end_(&end) {}

  [[nodiscard]] detail::End& need() const {
    if (end_ != nullptr) return *end_;
    throw Error(Errc::bad_configuration,
                "this communicator has no rank: it is empty or was moved from; use the one "
                "that connect() or split() gave");
  }
  void break_off(std::string reason) noexcept {
    try {
      end_->world->break_down(Errc::peer_failed, end_->rank, std::move(reason));
      detail::advance_all(*end_->family);
    } catch (...) {  // out of memory for words: the others hear the reason, if it was stored
    }
  }
  static void release(detail::End* end) noexcept {
    if (--end->holders == 0) delete end;
  }
  void check_peer(char const* call, int peer) const {
    if (peer >= 0 && peer < need().world->ranks()) return;
    std::string const text = std::string(call) + " of rank " + std::to_string(rank()) +
                             " names rank " + std::to_string(peer) + ", but ranks are 0 to " +
                             std::to_string(size() - 1);
    end_->world->break_down(Errc::mismatch, -1, text);
    throw Error(Errc::mismatch, text);
  }
  [[nodiscard]] detail::Record& begin(detail::Call call) {
    detail::Record& r = need().take_record();
    r.what = detail::Descriptor{};
    r.what.call = call;
    r.data = nullptr;
    r.peer = -1;
    return r;
  }
  InProcessOperation enter(detail::Record& r) {
    r.number = end_->collectives++;
    if (r.what.algorithm != AllReduce::slices) r.turn = end_->turns++;
    InProcessOperation operation(r);
    detail::begin(r);
    return operation;
  }
  template <class T, std::size_t N>
  InProcessOperation collective(detail::Call call, std::span<T, N> x, Reduction reduction,
                                AllReduce algorithm, int root) {
    return collective(call, x.data(), x.size(), &detail::element_type<T>, reduction, algorithm,
                      root);
  }
  InProcessOperation collective(detail::Call call, void* data, std::size_t count,
                                detail::ElementType const* type, Reduction reduction,
                                AllReduce algorithm, int root) {
    detail::Record& r = begin(call);
    r.what.reduction = reduction;
    r.what.algorithm = algorithm;
    r.what.root = root;
    r.what.count = count;
    r.what.type = type;
    r.data = data;
    return enter(r);
  }
  InProcessOperation message(detail::Call call, void* data, std::size_t count,
                             detail::ElementType const* type, int peer) {
    check_peer(detail::name(call), peer);
    detail::Record& r = begin(call);
    r.what.count = count;
    r.what.type = type;
    r.data = data;
    r.peer = peer;
    auto& numbers = call == detail::Call::send ? end_->sent : end_->received;
    r.number = numbers[static_cast<std::size_t>(peer)]++;
    InProcessOperation operation(r);
    detail::begin(r);
    return operation;
  }

  detail::End* end_ = nullptr;
};

inline InProcessOperation::~InProcessOperation() {
  if (record_ == nullptr) return;
  detail::End* const end = record_->end;
  if (record_->stage < detail::Stage::done) {
    try {
      end->world->break_down(Errc::peer_failed, end->rank,
                             "rank " + std::to_string(end->rank) + " dropped " + record_->text() +
                                 " before it was done");
    } catch (...) {
      end->world->break_down(Errc::peer_failed, end->rank, {});
    }
    end->world->quiesce(end->rank);
    detail::Family::remove(*record_);
  }
  end->give_record(*record_);
  InProcessCommunicator::release(end);
}

/// Collective policy: all ranks live in this process.
struct InProcess {
  using policy_tag = CollectiveTag;
  using communicator_type = InProcessCommunicator;
  static constexpr bool offers_all_reduce = true;
  static constexpr bool offers_push_pull = false;

  AllReduce algorithm = AllReduce::slices;  ///< of calls that name none

  /// Communicators of all ranks, in rank order.
  /// @throws Error  Errc::bad_configuration for no rank, or a number the algorithm cannot serve
  [[nodiscard]] std::vector<InProcessCommunicator> connect(int ranks) const {
    auto const world = std::make_shared<detail::World>(ranks);
    require_supported(algorithm, ranks);
    std::vector<InProcessCommunicator> all;
    all.reserve(static_cast<std::size_t>(ranks));
    for (int r = 0; r < ranks; ++r) {
      all.push_back(InProcessCommunicator(
          *new detail::End(world, r, algorithm, std::make_shared<detail::Family>())));
    }
    return all;
  }
};

}  // namespace stagger::collective
