// SPDX-License-Identifier: Apache-2.0
#include "cuda_stand_in/stand_in.hpp"

#include "catch.hpp"

#include <atomic>
#include <vector>

#include <cuda_runtime_api.h>

namespace runtime_test {

namespace si = cuda_stand_in;

namespace {

cudaStream_t stream() {
  cudaStream_t made = nullptr;
  REQUIRE(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, 0) == cudaSuccess);
  return made;
}
cudaEvent_t event() {
  cudaEvent_t made = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&made, cudaEventDisableTiming) == cudaSuccess);
  return made;
}

/// Holds a stream back until it is opened.
struct Gate {
  std::atomic<bool> open{false};
  void hold(cudaStream_t s) {
    REQUIRE(cudaLaunchHostFunc(
                s, [](void* gate) { static_cast<Gate*>(gate)->open.wait(false); }, this) ==
            cudaSuccess);
  }
  void release() {
    open = true;
    open.notify_all();
  }
};

}  // namespace

TEST_CASE("cuda_stand_in/stream: work is asynchronous, in order, and an event carries it over",
          "[cuda_stand_in]") {
  si::Session const session;
  si::jitter(GENERATE(0U, 1U, 2U));
  auto* const a = stream();
  auto* const b = stream();
  auto* const e = event();
  Gate gate;
  std::vector<int> from{1, 2, 3};
  std::vector<int> between(3);
  std::vector<int> to(3);
  gate.hold(a);
  auto const bytes = 3 * sizeof(int);
  CHECK(cudaMemcpyAsync(between.data(), from.data(), bytes, cudaMemcpyDefault, a) == cudaSuccess);
  CHECK(cudaEventRecord(e, a) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(b, e, 0) == cudaSuccess);
  CHECK(cudaMemcpyAsync(to.data(), between.data(), bytes, cudaMemcpyDefault, b) == cudaSuccess);
  CHECK(cudaStreamQuery(a) == cudaErrorNotReady);
  CHECK(cudaStreamQuery(b) == cudaErrorNotReady);
  CHECK(cudaEventQuery(e) == cudaErrorNotReady);
  gate.release();
  CHECK(cudaStreamSynchronize(b) == cudaSuccess);
  CHECK(to == from);
  CHECK(cudaEventQuery(e) == cudaSuccess);
  CHECK(cudaStreamSynchronize(a) == cudaSuccess);
  CHECK(cudaEventDestroy(e) == cudaSuccess);
  CHECK(cudaStreamDestroy(a) == cudaSuccess);
  CHECK(cudaStreamDestroy(b) == cudaSuccess);
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda_stand_in/stream: waiting for an event that was never recorded waits for nothing",
          "[cuda_stand_in]") {
  si::Session const session;
  auto* const a = stream();
  auto* const e = event();
  CHECK(cudaStreamWaitEvent(a, e, 0) == cudaSuccess);
  CHECK(cudaStreamSynchronize(a) == cudaSuccess);
  cudaEventDestroy(e);
  cudaStreamDestroy(a);
}

TEST_CASE("cuda_stand_in/stream: what is gone is refused", "[cuda_stand_in]") {
  si::Session const session;
  auto* const a = stream();
  auto* const e = event();
  CHECK(cudaEventDestroy(e) == cudaSuccess);
  CHECK(cudaEventRecord(e, a) == cudaErrorInvalidResourceHandle);
  CHECK(cudaStreamWaitEvent(a, e, 0) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventQuery(e) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventDestroy(e) == cudaErrorInvalidResourceHandle);
  CHECK(cudaStreamDestroy(a) == cudaSuccess);
  CHECK(cudaStreamQuery(a) == cudaErrorInvalidResourceHandle);
  CHECK(cudaLaunchHostFunc(a, [](void*) {}, nullptr) == cudaErrorInvalidResourceHandle);
}

TEST_CASE("cuda_stand_in/event: time lies between two timed events that have happened",
          "[cuda_stand_in]") {
  si::Session const session;
  auto* const a = stream();
  auto* const untimed = event();
  cudaEvent_t start = nullptr;
  cudaEvent_t end = nullptr;
  cudaEventCreateWithFlags(&start, cudaEventDefault);
  cudaEventCreateWithFlags(&end, cudaEventDefault);
  float ms = -1;
  CHECK(cudaEventElapsedTime(&ms, start, end) == cudaErrorInvalidResourceHandle);  // never recorded
  Gate gate;
  cudaEventRecord(start, a);
  gate.hold(a);
  cudaEventRecord(end, a);
  cudaEventRecord(untimed, a);
  while (cudaEventQuery(start) == cudaErrorNotReady) {
  }
  CHECK(cudaEventElapsedTime(&ms, start, end) == cudaErrorNotReady);
  gate.release();
  CHECK(cudaStreamSynchronize(a) == cudaSuccess);
  CHECK(cudaEventElapsedTime(&ms, start, untimed) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventElapsedTime(&ms, start, end) == cudaSuccess);
  CHECK(ms >= 0);
  for (auto* e : {start, end, untimed}) cudaEventDestroy(e);
  cudaStreamDestroy(a);
}

TEST_CASE("cuda_stand_in/memory: it is counted, limited, and corrupted when it goes back",
          "[cuda_stand_in]") {
  si::Session const session;
  si::set_machine({.devices = 1, .memory_bytes = 1000, .driver = 13000});
  void* block = nullptr;
  CHECK(cudaMalloc(&block, 900) == cudaSuccess);
  CHECK(static_cast<unsigned char*>(block)[899] == 0xCD);
  CHECK(session.left().bytes == 900);
  void* more = nullptr;
  CHECK(cudaMalloc(&more, 200) == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaFree(block) == cudaSuccess);
  CHECK(cudaFree(block) == cudaErrorInvalidValue);
  CHECK(session.left() == si::Live{});
}

TEST_CASE(
    "cuda_stand_in/machine: without a driver or a device, counting fails and leaves the count",
    "[cuda_stand_in]") {
  si::Session const session;
  int count = 77;
  si::set_machine({.devices = 2, .memory_bytes = 1, .driver = 0});
  CHECK(cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver);
  si::set_machine({.devices = 0, .memory_bytes = 1, .driver = 13000});
  CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
  CHECK(count == 77);
  si::set_machine({.devices = 2, .memory_bytes = 1, .driver = 13000});
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  CHECK(count == 2);
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
}

TEST_CASE(
    "cuda_stand_in/fail: exactly the n-th call fails, a lost device fails all and runs nothing",
    "[cuda_stand_in]") {
  si::Session const session;
  auto* const a = stream();
  int ran = 0;
  auto const launch = [&] {
    return cudaLaunchHostFunc(a, [](void* n) { ++*static_cast<int*>(n); }, &ran);
  };
  si::fail(si::Call::launch_host_func, 2, cudaErrorLaunchFailure);
  CHECK(launch() == cudaSuccess);
  CHECK(launch() == cudaErrorLaunchFailure);
  CHECK(launch() == cudaSuccess);
  CHECK(cudaStreamSynchronize(a) == cudaSuccess);
  CHECK(ran == 2);
  CHECK(si::calls(si::Call::launch_host_func) == 3);
  Gate gate;
  gate.hold(a);
  launch();
  si::lose_device(cudaErrorIllegalAddress);
  gate.release();
  CHECK(cudaStreamQuery(a) == cudaErrorIllegalAddress);
  CHECK(launch() == cudaErrorIllegalAddress);
  cudaStreamDestroy(a);
  si::reset();
  CHECK(ran == 2);
}

TEST_CASE(
    "cuda_stand_in/graph: two streams are captured, replayed, updated, a changed shape is refused",
    "[cuda_stand_in]") {
  si::Session const session;
  auto* const a = stream();
  auto* const b = stream();
  auto* const forked = event();
  auto* const joined = event();
  int value = 1;
  auto const record = [&](int times) {
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(cudaEventRecord(forked, a) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(b, forked, 0) == cudaSuccess);
    for (int i = 0; i < times; ++i)
      CHECK(cudaLaunchHostFunc(
                b, [](void* v) { *static_cast<int*>(v) *= 3; }, &value) == cudaSuccess);
    CHECK(cudaEventRecord(joined, b) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(a, joined, 0) == cudaSuccess);
    CHECK(
        cudaLaunchHostFunc(a, [](void* v) { *static_cast<int*>(v) += 1; }, &value) == cudaSuccess);
    CHECK(cudaStreamEndCapture(a, &graph) == cudaSuccess);
    return graph;
  };
  auto* const graph = record(1);
  CHECK(value == 1);
  cudaGraphExec_t exec = nullptr;
  CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
  CHECK(cudaGraphLaunch(exec, a) == cudaSuccess);
  CHECK(cudaGraphLaunch(exec, a) == cudaSuccess);
  CHECK(cudaStreamSynchronize(a) == cudaSuccess);
  CHECK(value == 13);
  cudaGraphExecUpdateResultInfo info{};
  auto* const same = record(1);
  auto* const other = record(2);
  CHECK(cudaGraphExecUpdate(exec, same, &info) == cudaSuccess);
  CHECK(cudaGraphExecUpdate(exec, other, &info) == cudaErrorGraphExecUpdateFailure);
  for (auto* g : {graph, same, other}) cudaGraphDestroy(g);
  cudaGraphExecDestroy(exec);
  for (auto* e : {forked, joined}) cudaEventDestroy(e);
  for (auto* s : {a, b}) cudaStreamDestroy(s);
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda_stand_in/graph: memory of a pool that is taken during a capture is the graph's",
          "[cuda_stand_in]") {
  si::Session const session;
  auto* const a = stream();
  cudaMemPoolProps properties{};
  cudaMemPool_t pool = nullptr;
  REQUIRE(cudaMemPoolCreate(&pool, &properties) == cudaSuccess);
  void* before = nullptr;
  REQUIRE(cudaMallocFromPoolAsync(&before, 8, pool, a) == cudaSuccess);
  bool const freed = GENERATE(false, true);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  void* block = nullptr;
  CHECK(cudaMallocFromPoolAsync(&block, 8, pool, a) == cudaSuccess);
  CHECK(cudaMemsetAsync(block, 1, 8, a) == cudaSuccess);
  CHECK(cudaFreeAsync(before, a) == cudaErrorInvalidValue);  // no node of this graph made it
  if (freed) CHECK(cudaFreeAsync(block, a) == cudaSuccess);
  CHECK(cudaStreamEndCapture(a, &graph) == cudaSuccess);
  std::size_t nodes = 0;
  CHECK(cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
  CHECK(nodes == (freed ? 3 : 2));
  cudaGraphExec_t exec = nullptr;
  CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
  CHECK(cudaGraphLaunch(exec, a) == cudaSuccess);
  CHECK(cudaStreamSynchronize(a) == cudaSuccess);
  if (!freed) {
    CHECK(*static_cast<char*>(block) == 1);
    CHECK(cudaGraphLaunch(exec, a) == cudaErrorInvalidValue);  // its memory is still taken
    CHECK(cudaFreeAsync(block, a) == cudaSuccess);
  }
  CHECK(cudaGraphLaunch(exec, a) == cudaSuccess);
  cudaGraphExecUpdateResultInfo info{};
  CHECK(cudaGraphExecUpdate(exec, graph, &info) == cudaErrorGraphExecUpdateFailure);
  CHECK(cudaStreamSynchronize(a) == cudaSuccess);
  CHECK(cudaFreeAsync(before, a) == cudaSuccess);
  cudaGraphDestroy(graph);
  cudaGraphExecDestroy(exec);
  cudaMemPoolDestroy(pool);
  cudaStreamDestroy(a);
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda_stand_in/graph: what CUDA refuses while capturing is refused", "[cuda_stand_in]") {
  si::Session const session;
  auto* const a = stream();
  auto* const b = stream();
  auto* const before = event();
  auto* const inside = event();
  cudaGraph_t graph = nullptr;
  CHECK(cudaEventRecord(before, b) == cudaSuccess);
  auto const begin = [&] {
    REQUIRE(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  };
  begin();
  CHECK(cudaStreamWaitEvent(a, before, 0) == cudaErrorStreamCaptureIsolation);
  CHECK(cudaStreamEndCapture(a, &graph) == cudaErrorStreamCaptureInvalidated);
  begin();
  void* block = nullptr;
  CHECK(cudaMalloc(&block, 8) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamEndCapture(a, &graph) == cudaErrorStreamCaptureInvalidated);
  begin();
  CHECK(cudaEventRecord(inside, a) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(b, inside, 0) == cudaSuccess);
  CHECK(cudaLaunchHostFunc(b, [](void*) {}, nullptr) == cudaSuccess);
  CHECK(cudaStreamEndCapture(a, &graph) == cudaErrorStreamCaptureUnjoined);
  CHECK(cudaEventQuery(inside) == cudaErrorCapturedEvent);
  for (auto* e : {before, inside}) cudaEventDestroy(e);
  for (auto* s : {a, b}) cudaStreamDestroy(s);
}

}  // namespace runtime_test
