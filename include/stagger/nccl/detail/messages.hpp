// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What the GPUs of one process are to do at once, as one group of NCCL's, and in which
/// order a graph does it.

#include <cstddef>
#include <utility>
#include <vector>

#include <stagger/nccl/detail/gpu_set.hpp>

namespace stagger::nccl::detail {

/// Puts messages and sums onto the streams of several GPUs.
///
/// What is enqueued reaches each GPU in the order of `Routes`. Nodes of a graph on different
/// streams, though, have no order but their edges, and a GPU that has begun one message may have no
/// room left for the one that its peer has begun. So while a graph is recorded, each message of a
/// GPU goes behind the one before it.
class Messages {
 public:
  explicit Messages(GpuSet& gpu_set) : gpu_set_(gpu_set) {}

  void begin() {
    joint_.begin();
    operations_.clear();
    ends_.clear();
  }
  /// The part of one GPU in it.
  /// @param call  (Communicator::Group&) -> its last operation
  template <class Call>
  Operation add(std::size_t gpu, cuda::Stream const& stream, Communicator& communicator,
                Call call) {
    Gpu& of = gpu_set_[gpu];
    if (of.captured && of.has_message) stream.wait(of.message);
    auto group = communicator.group(joint_);
    Operation last = call(group);
    group.submit();
    operations_.push_back(last.on_stream());
    ends_.emplace_back(&of, &stream);
    return last;
  }
  /// Waits until all of it is on its streams.
  /// @throws Error  as Operation::wait
  void submit(double seconds) {
    joint_.submit();
    wait_for_all(operations_, seconds);
    for (auto const& [gpu, stream] : ends_) {
      if (!gpu->captured) continue;
      stream->record(gpu->message);
      gpu->has_message = true;
    }
  }

 private:
  GpuSet& gpu_set_;
  nccl::Joint joint_;
  std::vector<Operation> operations_;
  std::vector<std::pair<Gpu*, cuda::Stream const*>> ends_;
};

}  // namespace stagger::nccl::detail
