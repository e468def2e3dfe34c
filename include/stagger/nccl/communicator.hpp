// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A communicator of NCCL that never blocks its thread for an unlimited time, its
///         operations, and NCCL's names for element types and reductions.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/core/backoff.hpp>
#include <stagger/cuda/memory.hpp>
#include <stagger/cuda/tensor.hpp>
#include <stagger/nccl/detail/issuer.hpp>
#include <stagger/nccl/error.hpp>
#include <stagger/nccl/invitation.hpp>

namespace stagger::nccl {

/// How the values of several ranks are combined.
enum class Reduction : std::uint8_t { sum, max };

/// NCCL's name for an element type. Specialise it for half-precision types:
///
///     template <> struct stagger::nccl::DataType<__nv_bfloat16> { static constexpr auto value =
///     ncclBfloat16; };
template <class T> struct DataType;

template <class T>
  requires(std::is_arithmetic_v<T> || std::same_as<T, std::byte>)
struct DataType<T> {
  static constexpr ncclDataType_t value = [] {
    if constexpr (std::same_as<T, double>)
      return ncclFloat64;
    else if constexpr (std::same_as<T, float>)
      return ncclFloat32;
    else if constexpr (sizeof(T) == 8)
      return std::is_signed_v<T> ? ncclInt64 : ncclUint64;
    else if constexpr (sizeof(T) == 4)
      return std::is_signed_v<T> ? ncclInt32 : ncclUint32;
    else if constexpr (sizeof(T) == 1)
      return std::is_signed_v<T> ? ncclInt8 : ncclUint8;
    else
      return ncclNumTypes;
  }();
};

/// Whether NCCL can send a type: plain bytes, and all numbers except two-byte integers and long
/// double.
template <class T>
concept Element = requires { DataType<std::remove_cv_t<T>>::value; } &&
                  DataType<std::remove_cv_t<T>>::value != ncclNumTypes;

namespace detail {

template <class T> inline constexpr ncclDataType_t data_type = DataType<std::remove_cv_t<T>>::value;

[[nodiscard]] constexpr ncclRedOp_t reduction(Reduction how) noexcept {
  return how == Reduction::sum ? ncclSum : ncclMax;
}

}  // namespace detail

/// A call that was requested of a communicator and may not be done yet. Poll it, or wait for it.
///
/// If it is dropped, the call continues in the order of its stream and still uses its buffers.
class Operation {
 public:
  Operation() = default;
  Operation(std::shared_ptr<detail::Issuer> issuer, std::shared_ptr<detail::State> state,
            std::uint64_t number, char const* what, bool on_stream = false)
      : issuer_(std::move(issuer)),
        state_(std::move(state)),
        number_(number),
        what_(what),
        on_stream_(on_stream) {}

  /// An operation for the same call that is done as soon as the call is on its stream, so that
  /// kernels can be enqueued after it.
  [[nodiscard]] Operation on_stream() const { return {issuer_, state_, number_, what_, true}; }

  /// Advances it without waiting.
  /// @return whether it is done
  /// @throws Error the error of NCCL or the device; every operation of the communicator then fails
  bool poll() {
    if (!state_) return true;
    detail::State& state = *state_;
    issuer_->progress();
    if (!state.refused.empty()) [[unlikely]]
      state.throw_if_refused(number_);
    if (state.issued >= number_ && (on_stream_ || state.done >= number_)) return true;
    if (!state.failure) static_cast<void>(state.settled());  // progress of peers is noticed here
    if (state.failure) std::rethrow_exception(state.failure);
    if (state.issued < number_ || !state.events[number_ % detail::State::events_kept].done())
      return false;
    state.done = number_;
    return true;
  }

  /// @throws Error            as poll()
  /// @throws stagger::Error   Errc::deadline after this many seconds; it may be waited for again
  void wait(double seconds) {
    if (!stagger::detail::wait_until([this] { return poll(); }, seconds)) expire(seconds);
  }

  /// @throws stagger::Error  Errc::deadline
  [[noreturn]] [[gnu::cold]] void expire(double seconds) const {
    detail::State const& state = *state_;
    raise(Errc::deadline, "rank ", state.rank, " of ", state.size, " waited ", seconds, " s to ",
          what_, ": ",
          state.issued >= number_ ? "it is on the stream and the device has not finished it"
                                  : "NCCL has not enqueued it",
          "; check whether every rank makes the same calls, or abort");
  }

 private:
  std::shared_ptr<detail::Issuer> issuer_;
  std::shared_ptr<detail::State> state_;
  std::uint64_t number_ = 0;
  char const* what_ = "";
  bool on_stream_ = false;
};

/// Orders the work that the communicators of one device enqueue; pass the same one to all of them.
/// For use by one thread at a time.
class Device {
 public:
  /// @param index  GPU of this process
  explicit Device(int index)
      : index_(cuda::select_device(index).index), issuer_(std::make_shared<detail::Issuer>()) {}

  [[nodiscard]] int index() const noexcept { return index_; }
  /// Advances pending calls without waiting.
  void progress() noexcept { issuer_->progress(); }
  /// While on, streams of its communicators are being captured into a graph: an operation is done
  /// once the graph has it, and `Communicator::check` reports the errors of replays.
  void capturing(bool on) noexcept { issuer_->capturing(on); }

 private:
  friend class Communicator;
  int index_;
  std::shared_ptr<detail::Issuer> issuer_;
};

/// One rank's end of a communicator, on one stream. Spans are device memory.
///
/// NCCL returns from every call at once and carries it out later. Calls are queued until NCCL has
/// finished the previous one, and polled together with any operation of the device. A call with an
/// invalid rank or without memory is refused before NCCL sees it; only its own operation fails.
/// After an error of NCCL every operation throws it, and the communicator can only be aborted.
///
/// Sends and receives belong to a group. Those of one group progress together, which is needed when
/// two ranks exchange data.
class Communicator {
 public:
  /// A communicator without ranks: the result of a split with a negative colour.
  Communicator() = default;

  /// Begins to join; `joined()` is done when all ranks have joined.
  /// @param stream  of that device; must live as long as the communicator
  /// @throws Error an error that NCCL reports at once
  Communicator(Device& device, Invitation const& invitation, int size, int rank,
               cuda::Stream const& stream)
      : issuer_(device.issuer_), state_(std::make_shared<detail::State>()) {
    if (size < 1 || rank < 0 || rank >= size)
      raise(Errc::bad_configuration, "there is no rank ", rank, " among ", size,
            " ranks; ranks count from 0");
    cuda::check(cudaSetDevice(device.index()), "select a GPU");
    state_->device = device.index();
    state_->stream = stream.get();
    state_->rank = rank;
    state_->size = size;
    state_->events.resize(detail::State::events_kept);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t const result =
        ncclCommInitRankConfig(&state_->comm, size, invitation.id, rank, &config);
    if (result != ncclSuccess && result != ncclInProgress)
      detail::fail(result, "join a communicator", nullptr, rank);
    state_->in_progress = true;
    joined_ = issuer_->ask(state_, detail::Issuer::Kind::join);
  }
  Communicator(Communicator&&) noexcept = default;
  Communicator& operator=(Communicator&& other) noexcept {
    leave();
    issuer_ = std::move(other.issuer_);
    state_ = std::move(other.state_);
    joined_ = other.joined_;
    warm_ = std::move(other.warm_);
    return *this;
  }
  /// Passes a communicator that was not finalized to a thread that aborts it. Never blocks; the end
  /// of the process waits for such threads for up to 5 s.
  ~Communicator() { leave(); }

  [[nodiscard]] int rank() const noexcept { return state_ ? state_->rank : 0; }
  [[nodiscard]] int size() const noexcept { return state_ ? state_->size : 0; }
  [[nodiscard]] explicit operator bool() const noexcept {
    return state_ && state_->comm != nullptr;
  }

  /// Whether it exists and has no known error.
  [[nodiscard]] bool healthy() const noexcept { return bool(*this) && !state_->failure; }

  /// Checks for errors that no operation reports, such as those of a graph that is being replayed.
  /// @throws Error the error of NCCL
  void check() const {
    if (!state_) return;
    static_cast<void>(state_->settled());
    if (state_->failure) std::rethrow_exception(state_->failure);
  }

  /// Done when every rank has joined.
  [[nodiscard]] Operation joined() const {
    return {issuer_, state_, joined_, "join a communicator"};
  }

  /// Collects sends, receives and sums that progress together.
  class Group {
   public:
    explicit Group(Communicator& of) : of_(of), number_(of.state_->asked + 1) {}
    Group(Group const&) = delete;
    Group& operator=(Group const&) = delete;
    ~Group() { submit(); }
    /// Starts the collected calls.
    void submit() {
      if (std::exchange(submitted_, true)) return;
      of_.issuer_->ask_calls(of_.state_, of_.calls_);
      of_.issuer_->progress();
    }

   private:
    friend Communicator;
    Communicator& of_;
    std::uint64_t number_;
    bool submitted_ = false;
  };
  /// Begins a group. Only one at a time: no other call of this communicator is allowed until it is
  /// submitted.
  [[nodiscard]] Group group() { return Group(*this); }

  template <Element T> Operation send(Group& group, std::span<T> data, int peer) {
    return collect(group, {detail::CallKind::send, data.data(), nullptr, data.size(),
                           detail::data_type<T>, peer});
  }
  template <Element T> Operation receive(Group& group, std::span<T> data, int peer) {
    return collect(group, {detail::CallKind::receive, nullptr, data.data(), data.size(),
                           detail::data_type<T>, peer});
  }
  template <Element T> Operation broadcast(std::span<T> data, int root) {
    return call({detail::CallKind::broadcast, data.data(), data.data(), data.size(),
                 detail::data_type<T>, root});
  }
  template <Element T> Operation all_reduce(std::span<T> data, Reduction how) {
    return call({detail::CallKind::all_reduce, data.data(), data.data(), data.size(),
                 detail::data_type<T>, 0, detail::reduction(how)});
  }
  /// Together with the other calls of the group.
  template <Element T> Operation all_reduce(Group& group, std::span<T> data, Reduction how) {
    return collect(group, {detail::CallKind::all_reduce, data.data(), data.data(), data.size(),
                           detail::data_type<T>, 0, detail::reduction(how)});
  }
  /// @pre  data.size() is a multiple of size(): NCCL supports only equal pieces
  template <Element T> Operation all_gather(std::span<T> data) {
    std::size_t const each = piece(data.size());
    return call({detail::CallKind::all_gather, data.data() + each * index(), data.data(), each,
                 detail::data_type<T>});
  }

  /// Makes the connections to peers now. Otherwise NCCL makes them at the first message, which
  /// allocates; calls that are captured into a graph need connections made before. Both ends of an
  /// edge name each other.
  Operation connect(std::span<int const> peers) {
    cuda::check(cudaSetDevice(need().device), "select a GPU");
    if (warm_.size() < 2 * peers.size()) warm_.resize({2 * peers.size()});
    Group all = group();
    Operation last = joined();
    for (std::size_t i = 0; i < peers.size(); ++i) {
      last = send(all, std::span<std::byte const>(warm_.data() + 2 * i, 1), peers[i]);
      last = receive(all, std::span<std::byte>(warm_.data() + 2 * i + 1, 1), peers[i]);
    }
    return last;
  }

  /// Ranks of one colour form a communicator, ordered by key, then rank; a negative colour joins
  /// none.
  /// @param part    usable when the operation is done
  /// @param stream  of the part, which must live as long as it; null: the same as of this one
  Operation split(int colour, int key, Communicator& part, cuda::Stream const* stream = nullptr) {
    auto made = std::make_shared<detail::State>();
    made->device = need().device;
    made->stream = stream != nullptr ? stream->get() : need().stream;
    cuda::check(cudaSetDevice(made->device), "select a GPU");
    made->events.resize(detail::State::events_kept);
    part = Communicator();
    if (colour >= 0) {
      part.issuer_ = issuer_;
      part.state_ = made;
    }
    return begun(issuer_->ask_split(state_, colour, key, std::move(made)), "split a communicator");
  }

  /// Ends the communicator together with all other ranks; then it can be dropped without an abort.
  /// Graphs that have captured its calls must be destroyed before: NCCL waits for that.
  Operation finalize() {
    need();
    return begun(issuer_->ask(state_, detail::Issuer::Kind::finalize), "finalize a communicator");
  }

  /// Aborts it without the other ranks: operations of this rank fail, and those of others once NCCL
  /// notices. Does not block; NCCL may take long, see `gone`.
  void abort(char const* reason) noexcept {
    if (!state_) return;
    state_->fail(
        raised(Errc::cancelled, "rank ", state_->rank, " aborted its communicator: ", reason));
    state_->give_up();
  }

  /// Waits for at most this many seconds. @return whether NCCL has returned from an abort
  [[nodiscard]] bool gone(double seconds) const {
    if (!state_ || !state_->aborted) return state_ == nullptr || state_->comm == nullptr;
    return stagger::detail::wait_until(
        [done = state_->aborted] { return done->load(std::memory_order_acquire); }, seconds);
  }

 private:
  void leave() noexcept {
    abort("it was dropped before it was finalized");
    state_.reset();
  }

  detail::State& need() {
    if (!state_)
      raise(Errc::bad_configuration, "this rank is not part of the communicator; see its colour");
    return *state_;
  }
  [[nodiscard]] std::size_t index() const noexcept { return static_cast<std::size_t>(rank()); }
  [[nodiscard]] std::size_t piece(std::size_t count) {
    auto const ranks = static_cast<std::size_t>(need().size);
    if (count % ranks != 0)
      raise(Errc::bad_configuration, count, " elements cannot be cut into ", ranks,
            " equal pieces, and NCCL knows no others; pad them to a multiple");
    return count / ranks;
  }

  Operation collect(Group& group, detail::Call const& call) {
    calls_.push_back(call);
    return {issuer_, state_, group.number_, detail::name_of(call.kind)};
  }

  Operation call(detail::Call const& one) {
    need();
    calls_.assign(1, one);
    return begun(issuer_->ask_calls(state_, calls_), detail::name_of(one.kind));
  }

  /// The operation for a batch that was just asked for.
  Operation begun(std::uint64_t number, char const* what) {
    issuer_->progress();
    return {issuer_, state_, number, what};
  }

  std::shared_ptr<detail::Issuer> issuer_;
  std::shared_ptr<detail::State> state_;
  std::uint64_t joined_ = 0;
  std::vector<detail::Call> calls_;  // of the group that is being collected; reused
  cuda::Tensor<std::byte> warm_;
};

}  // namespace stagger::nccl
