// SPDX-License-Identifier: Apache-2.0
#include "cuda_stand_in/stand_in.hpp"

#include "catch.hpp"

#include <array>
#include <string>
#include <thread>
#include <vector>

#include <nccl.h>

namespace nccl_test {

namespace si = cuda_stand_in;

namespace {

ncclResult_t settle(ncclComm_t comm) {
  ncclResult_t answer = ncclInProgress;
  while (answer == ncclInProgress) {
    REQUIRE(ncclCommGetAsyncError(comm, &answer) == ncclSuccess);
    std::this_thread::yield();
  }
  return answer;
}

/// Ranks that one thread plays, each with a device and a stream. Memory that they use is declared
/// before them: work that hangs reads it until it is aborted, when they end.
struct Ranks {
  explicit Ranks(int count, bool one_device = false) : size(count) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    for (int r = 0; r < count; ++r) {
      cudaSetDevice(one_device ? 0 : r);
      cudaStream_t stream = nullptr;
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0);
      streams.push_back(stream);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t comm = nullptr;
      REQUIRE(ncclCommInitRankConfig(&comm, count, id, r, &config) == ncclInProgress);
      comms.push_back(comm);
    }
  }
  Ranks(Ranks const&) = delete;
  Ranks& operator=(Ranks const&) = delete;
  ~Ranks() {
    for (auto* comm : comms) ncclCommAbort(comm);
    for (auto* stream : streams) cudaStreamDestroy(stream);
  }
  [[nodiscard]] ncclComm_t comm(int r) const { return comms[static_cast<std::size_t>(r)]; }
  [[nodiscard]] cudaStream_t stream(int r) const { return streams[static_cast<std::size_t>(r)]; }
  void ready() const {
    for (auto* c : comms) REQUIRE(settle(c) == ncclSuccess);
  }
  void synchronize() const {
    for (auto* s : streams) REQUIRE(cudaStreamSynchronize(s) == cudaSuccess);
  }
  int size;
  std::vector<ncclComm_t> comms;
  std::vector<cudaStream_t> streams;
};

}  // namespace

TEST_CASE("cuda_stand_in/nccl: sums, gathers, copies and pairs arrive", "[cuda_stand_in]") {
  si::Session const session;
  si::in_progress_polls(GENERATE(0, 3));
  std::array<std::array<float, 3>, 3> data{};
  std::array<std::array<float, 3>, 3> out{};
  Ranks ranks(3);
  ranks.ready();
  auto const fill = [&] {
    for (std::size_t r = 0; r < 3; ++r)
      for (std::size_t i = 0; i < 3; ++i) data[r][i] = static_cast<float>(10 * r + i);
  };
  auto const each = [&](auto call) {
    for (int r = 0; r < 3; ++r) call(static_cast<std::size_t>(r), ranks.comm(r), ranks.stream(r));
    for (int r = 0; r < 3; ++r) REQUIRE(settle(ranks.comm(r)) == ncclSuccess);
    ranks.synchronize();
  };
  fill();
  each([&](std::size_t r, ncclComm_t c, cudaStream_t s) {
    ncclAllReduce(data[r].data(), data[r].data(), 3, ncclFloat, ncclSum, c, s);
  });
  for (auto const& d : data) CHECK(d == std::array<float, 3>{30, 33, 36});
  fill();
  each([&](std::size_t r, ncclComm_t c, cudaStream_t s) {
    ncclAllReduce(data[r].data(), data[r].data(), 3, ncclFloat, ncclMax, c, s);
  });
  for (auto const& d : data) CHECK(d == std::array<float, 3>{20, 21, 22});
  each([&](std::size_t r, ncclComm_t c, cudaStream_t s) {
    ncclAllGather(&data[r][r], out[r].data(), 1, ncclFloat, c, s);
  });
  for (auto const& o : out) CHECK(o == std::array<float, 3>{20, 21, 22});
  each([&](std::size_t r, ncclComm_t c, cudaStream_t s) {
    ncclBroadcast(data[r].data(), out[r].data(), 3, ncclFloat, 1, c, s);
  });
  for (auto const& o : out) CHECK(o == data[1]);
  each([&](std::size_t r, ncclComm_t c, cudaStream_t s) {  // a ring, all at once
    ncclGroupStart();
    ncclSend(data[r].data(), 3, ncclFloat, static_cast<int>((r + 1) % 3), c, s);
    ncclRecv(out[r].data(), 3, ncclFloat, static_cast<int>((r + 2) % 3), c, s);
    ncclGroupEnd();
  });
  for (std::size_t r = 0; r < 3; ++r) CHECK(out[r] == data[(r + 2) % 3]);
}

TEST_CASE("cuda_stand_in/nccl: sends without a group wait for their receives and block each other",
          "[cuda_stand_in]") {
  si::Session const session;
  float value = 1;
  Ranks ranks(2);
  ranks.ready();
  for (int r = 0; r < 2; ++r) {
    REQUIRE(ncclSend(&value, 1, ncclFloat, 1 - r, ranks.comm(r), ranks.stream(r)) ==
            ncclInProgress);
    REQUIRE(settle(ranks.comm(r)) == ncclSuccess);
    REQUIRE(ncclRecv(&value, 1, ncclFloat, 1 - r, ranks.comm(r), ranks.stream(r)) ==
            ncclInProgress);
    REQUIRE(settle(ranks.comm(r)) == ncclSuccess);
  }
  for (int turn = 0; turn < 1000; ++turn) {
    REQUIRE(cudaStreamQuery(ranks.stream(0)) == cudaErrorNotReady);
    REQUIRE(cudaStreamQuery(ranks.stream(1)) == cudaErrorNotReady);
  }
}

TEST_CASE("cuda_stand_in/nccl: what NCCL refuses is refused", "[cuda_stand_in]") {
  si::Session const session;
  float value = 1;
  SECTION("two ranks on one device") {
    Ranks ranks(2, true);
    CHECK(settle(ranks.comm(0)) == ncclInvalidUsage);
    CHECK_FALSE(std::string(ncclGetLastError(ranks.comm(1))).empty());
  }
  SECTION("counts that do not match") {
    std::array<float, 2> two{};
    Ranks ranks(2);
    ranks.ready();
    ncclSend(two.data(), 2, ncclFloat, 1, ranks.comm(0), ranks.stream(0));
    ncclRecv(two.data(), 1, ncclFloat, 0, ranks.comm(1), ranks.stream(1));
    for (int r = 0; r < 2; ++r) {  // nothing but an abort ends the streams' work
      auto answer = settle(ranks.comm(r));
      for (; answer == ncclSuccess; answer = settle(ranks.comm(r))) std::this_thread::yield();
      CHECK(answer == ncclInvalidUsage);
    }
  }
  SECTION("a call while the communicator is in progress") {
    si::in_progress_polls(2);
    Ranks ranks(2);
    CHECK(ncclSend(&value, 1, ncclFloat, 1, ranks.comm(0), ranks.stream(0)) == ncclInvalidUsage);
  }
  SECTION("a send to self that nothing receives") {
    Ranks ranks(1);
    ranks.ready();
    CHECK(ncclSend(&value, 1, ncclFloat, 0, ranks.comm(0), ranks.stream(0)) == ncclInvalidUsage);
  }
  SECTION("ranks of two versions") {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    std::array<ncclComm_t, 2> comms{};
    for (int r = 0; r < 2; ++r) {
      cudaSetDevice(r);
      si::nccl_version(22800 + r);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclCommInitRankConfig(&comms[static_cast<std::size_t>(r)], 2, id, r, &config);
    }
    for (auto* comm : comms) CHECK(settle(comm) == ncclInvalidUsage);
    for (auto* comm : comms) ncclCommAbort(comm);
  }
}

TEST_CASE("cuda_stand_in/nccl: an error of a communicator stays, and is that of its whole group",
          "[cuda_stand_in]") {
  si::Session const session;
  float value = 1;
  Ranks ranks(2);
  Ranks others(2);
  Ranks apart(2);
  for (auto const* all : {&ranks, &others, &apart}) all->ready();
  ncclGroupStart();
  for (int r = 0; r < 2; ++r)
    ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, others.comm(r), others.stream(r));
  CHECK(ncclSend(&value, 1, ncclFloat, 7, ranks.comm(0), ranks.stream(0)) == ncclInvalidArgument);
  ncclSend(&value, 1, ncclFloat, 1, ranks.comm(0), ranks.stream(0));
  CHECK(ncclGroupEnd() == ncclInvalidArgument);
  for (auto* comm : {ranks.comm(0), others.comm(0), others.comm(1)}) {
    CHECK(settle(comm) == ncclInvalidArgument);
    CHECK(ncclSend(&value, 1, ncclFloat, 1, comm, ranks.stream(0)) == ncclInvalidArgument);
    CHECK(settle(comm) == ncclInvalidArgument);
  }
  CHECK(settle(apart.comm(0)) == ncclSuccess);
}

TEST_CASE("cuda_stand_in/nccl: two groups at a time are no way to edit one captured graph",
          "[cuda_stand_in]") {
  si::Session const session;
  si::in_progress_polls(GENERATE(0, 2));
  enum class How {
    apart,
    one_group,
    waits,
    behind
  } const how = GENERATE(How::apart, How::one_group, How::waits, How::behind);
  float value = 1;
  Ranks ranks(2);
  ranks.ready();
  auto const sum = [&](int r) {
    ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, ranks.comm(r), ranks.stream(r));
  };
  for (int r = 0; r < 2; ++r) sum(r);  // connects them
  ranks.ready();
  ranks.synchronize();
  cudaEvent_t events[2] = {};
  for (int r = 0; r < 2; ++r) {
    cudaSetDevice(r);
    cudaEventCreateWithFlags(&events[r], cudaEventDisableTiming);
  }
  REQUIRE(cudaStreamBeginCapture(ranks.stream(0), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  cudaEventRecord(events[0], ranks.stream(0));
  cudaStreamWaitEvent(ranks.stream(1), events[0], 0);
  if (how == How::one_group) ncclGroupStart();
  for (int r = 0; r < 2; ++r) {
    sum(r);
    if (how == How::waits) settle(ranks.comm(r));
  }
  if (how == How::one_group) ncclGroupEnd();
  if (how != How::behind) ranks.ready();
  if (how == How::behind) cudaMemsetAsync(&value, 0, sizeof value, ranks.stream(0));
  ranks.ready();
  auto const misuses = si::take_misuses();
  CHECK(misuses.empty() == (how == How::one_group || how == How::waits));
  if (how == How::apart) CHECK(misuses.front().find("two threads of NCCL's") == 0);
  cudaEventRecord(events[1], ranks.stream(1));
  cudaStreamWaitEvent(ranks.stream(0), events[1], 0);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(ranks.stream(0), &graph) == cudaSuccess);
  cudaGraphDestroy(graph);
  for (auto* event : events) cudaEventDestroy(event);
}

TEST_CASE("cuda_stand_in/nccl: messages of two communicators without an edge replay in any order",
          "[cuda_stand_in]") {
  si::Session const session;
  bool const edges = GENERATE(true, false);
  float value = 1;
  Ranks one(2);
  Ranks two(2);
  one.ready();
  two.ready();
  auto const sum = [&](Ranks const& all, int r) {
    ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, all.comm(r), all.stream(r));
    settle(all.comm(r));
  };
  for (auto const* all : {&one, &two}) {
    for (int r = 0; r < 2; ++r) sum(*all, r);
    all->synchronize();
  }
  cudaGraphExec_t execs[2] = {};
  for (int r = 0; r < 2; ++r) {
    cudaSetDevice(r);
    cudaEvent_t events[3] = {};
    for (auto& event : events) cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaStreamBeginCapture(one.stream(r), cudaStreamCaptureModeThreadLocal);
    cudaEventRecord(events[0], one.stream(r));
    cudaStreamWaitEvent(two.stream(r), events[0], 0);
    sum(one, r);
    cudaEventRecord(events[1], one.stream(r));
    if (edges) cudaStreamWaitEvent(two.stream(r), events[1], 0);
    sum(two, r);
    cudaEventRecord(events[2], two.stream(r));
    cudaStreamWaitEvent(one.stream(r), events[2], 0);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(one.stream(r), &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&execs[r], graph, 0) == cudaSuccess);
    cudaGraphDestroy(graph);
    for (auto* event : events) cudaEventDestroy(event);
  }
  // Each device has room for one sum. If they begin with different ones, both wait for ever.
  bool stuck = false;
  for (int replay = 0; replay < 20 && !stuck; ++replay) {
    for (int r = 0; r < 2; ++r) REQUIRE(cudaGraphLaunch(execs[r], one.stream(r)) == cudaSuccess);
    while (!stuck && (cudaStreamQuery(one.stream(0)) != cudaSuccess ||
                      cudaStreamQuery(one.stream(1)) != cudaSuccess)) {
      stuck = si::incomplete_calls() == 2;
      std::this_thread::yield();
    }
  }
  CHECK(stuck == !edges);
  for (auto* exec : execs) cudaGraphExecDestroy(exec);
}

TEST_CASE("cuda_stand_in/nccl: split orders by key, finalize waits for all, destroy comes after",
          "[cuda_stand_in]") {
  si::Session const session;
  Ranks ranks(4);
  ranks.ready();
  std::array<ncclComm_t, 4> parts{};
  for (int r = 0; r < 4; ++r)
    ncclCommSplit(ranks.comm(r), r == 3 ? NCCL_SPLIT_NOCOLOR : 0, -r,
                  &parts[static_cast<std::size_t>(r)], nullptr);
  ranks.ready();
  CHECK(parts[3] == nullptr);
  for (int r = 0; r < 3; ++r) {
    auto* const part = parts[static_cast<std::size_t>(r)];
    REQUIRE(settle(part) == ncclSuccess);
    int rank = -1;
    int size = 0;
    ncclCommUserRank(part, &rank);
    ncclCommCount(part, &size);
    CHECK(rank == 2 - r);
    CHECK(size == 3);
  }
  for (int r = 0; r < 3; ++r) {
    auto* const part = parts[static_cast<std::size_t>(r)];
    REQUIRE(ncclCommFinalize(part) == ncclInProgress);
    ncclResult_t answer = ncclSuccess;
    ncclCommGetAsyncError(part, &answer);
    CHECK(answer == (r == 2 ? ncclSuccess : ncclInProgress));
  }
  for (int r = 0; r < 3; ++r) {
    CHECK(settle(parts[static_cast<std::size_t>(r)]) == ncclSuccess);
    CHECK(ncclCommDestroy(parts[static_cast<std::size_t>(r)]) == ncclSuccess);
  }
  CHECK(ncclCommDestroy(ranks.comm(0)) == ncclInvalidUsage);
}

}  // namespace nccl_test
