// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The queue of NCCL calls of one device, which are made in one order and polled until NCCL
///         has finished them.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/core/backoff.hpp>
#include <stagger/cuda/stream.hpp>
#include <stagger/nccl/error.hpp>

namespace stagger::nccl::detail {

enum class CallKind : std::uint8_t { send, receive, broadcast, all_reduce, all_gather };
[[nodiscard]] constexpr char const* name_of(CallKind kind) noexcept {
  constexpr char const* names[] = {"send", "receive", "broadcast", "all-reduce", "all-gather"};
  return names[static_cast<int>(kind)];
}

struct Call {
  CallKind kind = CallKind::send;
  void const* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclUint8;
  int peer = 0;  // or root
  ncclRedOp_t reduction = ncclSum;
};

/// Aborts from which NCCL has not returned.
inline std::atomic<int> aborts_under_way{0};

/// At its end the process waits for them for a limited time: afterwards CUDA and NCCL shut down,
/// and a thread that is still inside them would use freed memory.
inline void await_aborts_at_exit() {
  [[maybe_unused]] static int const registered = std::atexit([] {
    static_cast<void>(stagger::detail::wait_until([] { return aborts_under_way.load() == 0; }, 5));
  });
}

/// One communicator, shared by its owner and its operations.
struct State {
  static constexpr std::size_t events_kept = 64;

  ncclComm_t comm = nullptr;  // null: finalized, aborted, or never made
  cudaStream_t stream = nullptr;
  int device = 0;
  int rank = 0;
  int size = 1;
  bool in_progress = false;
  std::uint64_t asked = 0;          // batches, counted from 1
  std::uint64_t issued = 0;         // on the stream
  std::uint64_t done = 0;           // on the device
  std::vector<cuda::Event> events;  // of batch n: n % events_kept
  std::exception_ptr failure;
  std::vector<std::pair<std::uint64_t, std::exception_ptr>> refused;  // batches that did nothing
  std::shared_ptr<std::atomic<bool>> aborted;  // whether NCCL has returned from an abort

  State() = default;
  State(State const&) = delete;
  State& operator=(State const&) = delete;
  ~State() { give_up(); }

  void fail(std::exception_ptr why) noexcept {
    if (!failure) failure = std::move(why);
  }
  /// Never throws; NCCL's description of `result` becomes the failure.
  void fail(ncclResult_t result, char const* what) noexcept {
    try {
      detail::fail(result, what, comm, rank);
    } catch (...) {
      fail(std::current_exception());
    }
  }

  /// Notes a batch with an invalid call. NCCL never sees it, and later batches continue.
  void refuse(std::uint64_t number, std::string const& words) noexcept {
    try {
      refused.emplace_back(
          number, raised(Errc::bad_configuration, "rank ", rank, " of ", size, ": ", words));
    } catch (...) {
      fail(std::current_exception());
    }
  }
  void throw_if_refused(std::uint64_t number) const {
    for (auto const& [batch, why] : refused)
      if (batch == number) std::rethrow_exception(why);
  }

  /// Whether NCCL has finished the last call. A failed call counts as finished.
  bool settled() noexcept {
    if (comm == nullptr || failure) return true;
    ncclResult_t answer = ncclSuccess;
    ncclResult_t const result = ncclCommGetAsyncError(comm, &answer);
    if (result != ncclSuccess) answer = result;
    if (answer == ncclInProgress) return false;
    if (answer != ncclSuccess) fail(answer, in_progress ? "carry out a call" : "go on");
    in_progress = false;
    return true;
  }

  /// Passes the communicator to a thread that aborts it, which may take long or never end.
  void give_up() noexcept {
    auto* const gone = std::exchange(comm, nullptr);
    if (gone == nullptr) return;
    aborts_under_way.fetch_add(1);
    try {
      await_aborts_at_exit();
      aborted = std::make_shared<std::atomic<bool>>(false);
      std::thread([gone, done = aborted] {
        static_cast<void>(ncclCommAbort(gone));  // it may never return
        done->store(true, std::memory_order_release);
        aborts_under_way.fetch_sub(1);
      }).detach();
    } catch (...) {  // no memory or no thread: the communicator is never destroyed
      aborts_under_way.fetch_sub(1);
    }
  }
};

/// The queue of one device. The communicators of a device share it, so that their work reaches the
/// device in the order in which it was requested, which is the same on every rank if all make their
/// requests in the same order. Used by one thread at a time.
class Issuer {
 public:
  enum class Kind : std::uint8_t { join, calls, split, finalize };

  struct Batch {
    Kind kind = Kind::calls;
    std::shared_ptr<State> state;
    std::uint64_t number = 0;
    bool begun = false;
    std::vector<Call> calls;
    int colour = 0;  // of a split
    int key = 0;
    std::shared_ptr<State> part;  // its result
  };

  /// Appends a batch. @return its number
  std::uint64_t ask(std::shared_ptr<State> state, Kind kind) {
    return add(std::move(state), kind).number;
  }
  /// @param calls  receives an empty list, whose memory is that of an earlier batch
  std::uint64_t ask_calls(std::shared_ptr<State> state, std::vector<Call>& calls) {
    Batch& batch = add(std::move(state), Kind::calls);
    batch.calls.swap(calls);
    return batch.number;
  }
  std::uint64_t ask_split(std::shared_ptr<State> state, int colour, int key,
                          std::shared_ptr<State> part) {
    Batch& batch = add(std::move(state), Kind::split);
    batch.colour = colour;
    batch.key = key;
    batch.part = std::move(part);
    return batch.number;
  }

  /// While this is on, calls are recorded in a graph: a call is done once it is recorded, without
  /// an event.
  void capturing(bool on) noexcept { capturing_ = on; }

  /// Advances as far as possible without waiting.
  void progress() noexcept {
    while (count_ != 0) {
      Batch& batch = queue_[first_];
      State& state = *batch.state;
      if (!state.settled()) return;
      if (!state.failure && !batch.begun) {
        batch.begun = true;
        try {
          begin(batch);
        } catch (...) {  // no memory
          state.fail(std::current_exception());
        }
        continue;
      }
      if (!state.failure && batch.part && !through(batch)) return;
      if (!state.failure) finish(batch);
      batch.state.reset();
      batch.part.reset();
      batch.calls.clear();
      batch.begun = false;
      first_ = (first_ + 1) % queue_.size();
      --count_;
    }
  }

 private:
  Batch& add(std::shared_ptr<State> state, Kind kind) {
    if (count_ == queue_.size()) {
      std::rotate(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(first_),
                  queue_.end());
      first_ = 0;
      queue_.resize(std::max<std::size_t>(8, 2 * queue_.size()));
    }
    Batch& batch = queue_[(first_ + count_++) % queue_.size()];
    batch.kind = kind;
    batch.number = ++state->asked;
    batch.state = std::move(state);
    return batch;
  }

  static void begin(Batch& batch) {
    State& state = *batch.state;
    if (batch.kind == Kind::join) return;
    if (batch.kind == Kind::calls) return launch(batch);
    if (!usable(state)) return;
    ncclResult_t result = ncclSuccess;
    if (batch.kind == Kind::finalize) {
      result = ncclCommFinalize(state.comm);
    } else {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      result = ncclCommSplit(state.comm, batch.colour < 0 ? NCCL_SPLIT_NOCOLOR : batch.colour,
                             batch.key, &batch.part->comm, &config);
    }
    state.in_progress = true;
    if (result != ncclSuccess && result != ncclInProgress) state.fail(result, "begin a call");
  }

  /// Selects its device. @return whether there is a communicator
  static bool usable(State& state) {
    if (state.failure) return false;
    if (state.comm == nullptr)
      state.fail(raised(Errc::bad_configuration,
                        "the communicator was finalized or never joined; join anew"));
    else if (cudaSetDevice(state.device) != cudaSuccess)
      state.fail(ncclUnhandledCudaError, "select its GPU");
    return !state.failure;
  }

  /// The error of an invalid call, as far as it can be checked here; NCCL would end its
  /// communicator.
  static std::string wrong_with(Call const& c, State const& state) {
    bool const named =
        c.kind == CallKind::send || c.kind == CallKind::receive || c.kind == CallKind::broadcast;
    if (named && (c.peer < 0 || c.peer >= state.size))
      return text("there is no rank ", c.peer, " to exchange anything with; name one from 0 to ",
                  state.size - 1);
    bool const reads = c.kind != CallKind::receive;
    bool const writes = c.kind != CallKind::send;
    if (c.count != 0 && ((reads && c.in == nullptr) || (writes && c.out == nullptr)))
      return text("a call for ", c.count, " elements has no memory; give a span of device memory");
    return {};
  }

  /// Makes all calls as one group, so that they progress together; makes none if one of them is
  /// invalid.
  static void launch(Batch const& batch) {
    State& state = *batch.state;
    for (Call const& call : batch.calls)
      if (auto const words = wrong_with(call, state); !words.empty())
        return state.refuse(batch.number, words);
    if (!usable(state)) return;
    ncclResult_t worst = ncclGroupStart();
    for (Call const& call : batch.calls) {
      ncclResult_t const result = issue(call, state.comm, state.stream);
      if (result != ncclSuccess && result != ncclInProgress) worst = result;
    }
    ncclResult_t const ended = ncclGroupEnd();
    if (worst == ncclSuccess) worst = ended;
    state.in_progress = true;
    if (worst != ncclSuccess && worst != ncclInProgress) state.fail(worst, "begin a call");
  }

  static ncclResult_t issue(Call const& c, ncclComm_t comm, cudaStream_t stream) noexcept {
    switch (c.kind) {
      case CallKind::send:
        return ncclSend(c.in, c.count, c.type, c.peer, comm, stream);
      case CallKind::receive:
        return ncclRecv(c.out, c.count, c.type, c.peer, comm, stream);
      case CallKind::broadcast:
        return ncclBroadcast(c.in, c.out, c.count, c.type, c.peer, comm, stream);
      case CallKind::all_reduce:
        return ncclAllReduce(c.in, c.out, c.count, c.type, c.reduction, comm, stream);
      default:
        return ncclAllGather(c.in, c.out, c.count, c.type, comm, stream);
    }
  }

  /// Whether the communicator of a split has been made.
  static bool through(Batch const& batch) noexcept {
    State& part = *batch.part;
    if (part.comm == nullptr) return true;
    if (!part.settled()) return false;
    if (part.failure) {
      batch.state->fail(part.failure);
      return true;
    }
    static_cast<void>(ncclCommUserRank(part.comm, &part.rank));
    static_cast<void>(ncclCommCount(part.comm, &part.size));
    return true;
  }

  void finish(Batch const& batch) const noexcept {
    State& state = *batch.state;
    if (batch.kind == Kind::finalize) {
      auto* const comm = std::exchange(state.comm, nullptr);
      ncclResult_t const result = ncclCommDestroy(comm);
      if (result != ncclSuccess) return state.fail(result, "destroy a finalized communicator");
    }
    if (capturing_) {
      state.issued = state.done = batch.number;
      return;
    }
    auto& event = state.events[batch.number % State::events_kept];
    if (cudaEventRecord(event.get(), state.stream) != cudaSuccess)
      return state.fail(ncclUnhandledCudaError, "record an event");
    state.issued = batch.number;
  }

  std::vector<Batch> queue_;  // a ring
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  bool capturing_ = false;
};

}  // namespace stagger::nccl::detail
