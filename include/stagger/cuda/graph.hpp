// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A CUDA graph that is recorded, replayed, and updated or made again when the recorded
///         work changes.

#include <cstddef>
#include <cstdint>
#include <exception>

#include <stagger/cuda/stream.hpp>

namespace stagger::cuda {

/// Counts of what has been done with a graph.
struct GraphCounts {
  std::uint64_t captures = 0;        ///< iterations recorded
  std::uint64_t instantiations = 0;  ///< executable graphs made
  std::uint64_t updates = 0;         ///< an executable graph was updated
  std::uint64_t replays = 0;
  std::size_t nodes = 0;  ///< of the last capture
};

/// Owns an executable graph.
class Graph {
 public:
  [[nodiscard]] explicit operator bool() const noexcept { return exec_ != nullptr; }

  /// Records what `body()` enqueues on `origin`, and on streams that wait for `origin` and for
  /// which `origin` waits. Nothing runs. The executable graph is updated if possible, otherwise
  /// made again.
  /// @throws Error a call that CUDA refuses; memory that is taken from a pool or returned to it;
  ///         what `body` throws. The graph is then as before
  template <class Body> void capture(Stream const& origin, GraphCounts& counts, Body body) {
    check(cudaStreamBeginCapture(origin.get(), cudaStreamCaptureModeThreadLocal),
          "begin a capture");
    detail::capture_is_corrupted = false;
    std::exception_ptr failure;
    try {
      body();
    } catch (...) {
      failure = std::current_exception();  // a capture must be ended whatever happens
    }
    cudaGraph_t recorded = nullptr;
    cudaError_t const ended = cudaStreamEndCapture(origin.get(), &recorded);
    detail::Owned<cudaGraph_t> const owned(recorded);
    if (failure) {
      static_cast<void>(cudaGetLastError());
      std::rethrow_exception(failure);
    }
    check(ended, "capture an iteration");
    if (detail::capture_is_corrupted)
      detail::fail(cudaErrorStreamCaptureUnsupported, "capture an iteration");
    ++counts.captures;
    check(cudaGraphGetNodes(recorded, nullptr, &counts.nodes), "count the nodes of a graph");
    make_executable(recorded, counts);
  }

  /// Enqueues the graph on a stream.
  void replay(Stream const& stream, GraphCounts& counts) {
    check(cudaGraphLaunch(exec_.get(), stream.get()), "launch a graph");
    ++counts.replays;
  }

 private:
  [[gnu::cold]] void make_executable(cudaGraph_t graph, GraphCounts& counts) {
    if (exec_ != nullptr) {
      cudaGraphExecUpdateResultInfo info{};
      if (cudaGraphExecUpdate(exec_.get(), graph, &info) == cudaSuccess) {
        ++counts.updates;
        return;
      }
      static_cast<void>(cudaGetLastError());
    }
    cudaGraphExec_t made = nullptr;
    check(cudaGraphInstantiate(&made, graph, 0), "make a graph executable");
    exec_.reset(made);
    ++counts.instantiations;
  }

  detail::Owned<cudaGraphExec_t> exec_;
};

}  // namespace stagger::cuda
