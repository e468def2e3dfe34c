// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The interface to the other processes of a pipeline.

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <stagger/core/portable.hpp>
#include <stagger/cuda/tensor.hpp>
#include <stagger/model/parameter.hpp>

namespace stagger::collective {
struct Fact;
}

namespace stagger::cuda::detail {

/// Two places (GPUs) between which messages are sent in one direction, and the stream for them.
struct Channel {
  std::pair<int, int> places;                ///< from, to
  std::size_t gpu = 0;                       ///< of this process, on which the stream is
  std::unique_ptr<Stream> stream = nullptr;  ///< null: both places are of other processes
};

/// A GPU of this process as a member of a replica group.
struct Member {
  Member(std::size_t of, std::size_t number_of_it) : gpu(of), number(number_of_it) {}
  std::size_t gpu;
  std::size_t number;  ///< in the group
  Stream stream{Priority::message};
  Tensor<std::byte> received;  ///< gradients of the others
};

/// GPUs that hold the same stage and add up its gradients.
struct ReplicaGroup {
  std::vector<int> places{};                       ///< in the order in which they are added up
  std::vector<std::unique_ptr<Member>> members{};  ///< those of this process
};

/// A block that is sent to another member of a group, and the block received in exchange. Either may
/// be empty.
struct Exchange {
  std::size_t peer = 0;
  Block send{};
  Block receive{};
};

/// Elements of one type that are added up.
struct Summand {
  void* data = nullptr;
  std::size_t size = 0;
  ElementType type = ElementType::f32;
};

/// The processes of one pipeline, each of which has one GPU; stagger/nccl implements it. All
/// processes make the same calls in the same order. Every function throws the error that occurred,
/// and Error(deadline) for processes that do not answer in time.
class Processes {
 public:
  Processes(int rank, int size) : rank_(rank), size_(size) {}
  Processes(Processes const&) = delete;
  Processes& operator=(Processes const&) = delete;
  virtual ~Processes() = default;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  // Between steps; done when they return.

  /// @throws Error  mismatch for the first fact that is not the same everywhere
  virtual void agree(std::span<collective::Fact const> facts) = 0;
  virtual void broadcast(Block block, int root) = 0;
  /// Adds up numbers in host memory, in place.
  virtual void add_up(std::span<double> numbers) = 0;
  /// Connects the channels and groups that were not there in the previous call, so that the first
  /// message allocates nothing.
  /// @param fewest  members of a group that will call `exchange`
  virtual void connect(std::span<Channel const> channels) = 0;
  virtual void connect(std::span<ReplicaGroup const> groups, std::size_t fewest) = 0;

  // In a step: enqueued when they return.

  /// On the stream of a channel; the other process makes the matching call.
  virtual void send(std::size_t channel, std::span<Block const> blocks) = 0;
  virtual void receive(std::size_t channel, std::span<Block const> blocks) = 0;
  /// The same for bytes in host memory, complete when they return.
  virtual void send_now(std::size_t channel, ByteWriter const& bytes) = 0;
  virtual void receive_now(std::size_t channel, ByteWriter& bytes) = 0;
  /// Adds up numbers in device memory, in place, on the GPU's first stream.
  virtual void all_reduce(std::span<double> numbers) = 0;
  /// Likewise among the members of a group, on its stream.
  virtual void all_reduce(std::size_t group, std::span<Summand const> summands) = 0;
  virtual void exchange(std::size_t group, std::span<Exchange const> exchanges) = 0;

  /// While this is on, enqueued work is recorded in a graph.
  virtual void capturing(bool on) noexcept = 0;
  /// Prepares `any`. @pre  no step is in flight
  virtual void prepare_any() = 0;
  [[nodiscard]] virtual bool can_ask_any() const noexcept = 0;
  /// Whether any process answers yes. Waits for no step in flight.
  [[nodiscard]] virtual bool any(bool own) = 0;

  /// @throws Error  what has failed in another process or in a communicator
  virtual void check_failures() = 0;
  /// Aborts everything, for the other processes too, without blocking.
  virtual void abort() noexcept = 0;
  /// Whether no work is left on streams that the engine does not know.
  [[nodiscard]] virtual bool idle() const = 0;

 private:
  int rank_;
  int size_;
};

}  // namespace stagger::cuda::detail
