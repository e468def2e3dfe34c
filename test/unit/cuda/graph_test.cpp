// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/graph.hpp>

#include "catch.hpp"

#include <stdexcept>

#include "cuda_stand_in/stand_in.hpp"

namespace graph_test {

namespace sg = stagger;
namespace si = cuda_stand_in;

namespace {

void increment(sg::cuda::Stream const& stream, int& value) {
  sg::cuda::check(
      cudaLaunchHostFunc(stream.get(), [](void* v) { ++*static_cast<int*>(v); }, &value), "launch");
}

void settle(sg::cuda::Stream const& stream) {
  while (!stream.idle()) {
  }
}

}  // namespace

TEST_CASE(
    "cuda/Graph: recorded once, replayed often, what changes little is taken over, else made anew",
    "[cuda]") {
  si::Session const session;
  {
    sg::cuda::Stream const stream;
    sg::cuda::Graph graph;
    sg::cuda::GraphCounts counts;
    int a = 0;
    int b = 0;
    graph.capture(stream, counts, [&] { increment(stream, a); });
    CHECK(a == 0);
    for (int i = 0; i < 3; ++i) graph.replay(stream, counts);
    settle(stream);
    CHECK(a == 3);
    graph.capture(stream, counts, [&] { increment(stream, b); });
    graph.replay(stream, counts);
    settle(stream);
    CHECK(b == 1);
    CHECK(counts.instantiations == 1);
    CHECK(counts.updates == 1);
    graph.capture(stream, counts, [&] {
      increment(stream, a);
      increment(stream, b);
    });
    graph.replay(stream, counts);
    settle(stream);
    CHECK(a == 4);
    CHECK(b == 2);
    CHECK(counts.captures == 3);
    CHECK(counts.instantiations == 2);
    CHECK(counts.replays == 5);
    CHECK(counts.nodes == 2);
  }
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/Graph: a capture that goes wrong ends, and the graph before it still runs",
          "[cuda]") {
  si::Session const session;
  {
    sg::cuda::Stream const stream;
    sg::cuda::Graph graph;
    sg::cuda::GraphCounts counts;
    int a = 0;
    graph.capture(stream, counts, [&] { increment(stream, a); });
    CHECK_THROWS_AS(graph.capture(stream, counts,
                                  [&] {
                                    increment(stream, a);
                                    throw std::logic_error("a stage");
                                  }),
                    std::logic_error);
    CHECK_THROWS_AS(graph.capture(stream, counts,
                                  [&] {
                                    void* memory = nullptr;
                                    cudaMalloc(&memory, 8);
                                  }),
                    sg::cuda::Error);
    si::fail(si::Call::graph_instantiate, 1, cudaErrorMemoryAllocation);
    CHECK_THROWS_AS(graph.capture(stream, counts,
                                  [&] {
                                    increment(stream, a);
                                    increment(stream, a);
                                  }),
                    sg::cuda::Error);
    graph.replay(stream, counts);
    settle(stream);
    CHECK(a == 1);
    CHECK(counts.replays == 1);
  }
  CHECK(session.left() == si::Live{});
}

}  // namespace graph_test
