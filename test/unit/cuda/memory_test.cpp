// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/tensor.hpp>

#include "catch.hpp"

#include <optional>
#include <string>
#include <vector>

#include <stagger/cuda/graph.hpp>

#include "cuda_stand_in/stand_in.hpp"

namespace memory_test {

namespace sg = stagger;
namespace si = cuda_stand_in;

TEST_CASE("cuda/Tensor: uploads, copies and downloads in the order of its stream", "[cuda]") {
  si::Session const session;
  si::jitter(GENERATE(0U, 5U));
  {
    auto const pool = std::make_shared<sg::cuda::Pool>();
    sg::cuda::Stream const stream;
    sg::cuda::detail::AtPlace const here({stream.get(), &pool});
    std::vector<float> const from{1, 2, 3, 4, 5, 6};
    std::vector<float> to(6);
    sg::cuda::Tensor<> a({2, 3});
    a.upload(from);
    sg::cuda::Tensor<> b = a;
    b.download(to);
    CHECK(b.extents() == a.extents());
    CHECK_THROWS_AS(b.download(std::span<float>(to).first(5)), sg::Error);
    while (!stream.idle()) {
    }
    CHECK(to == from);
  }
  CHECK(session.left().streams == 0);
  si::reset();  // memory goes back in stream order
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/Tensor: it allocates only when it must hold more than ever before", "[cuda]") {
  si::Session const session;
  {
    auto const pool = std::make_shared<sg::cuda::Pool>();
    sg::cuda::Stream const stream;
    sg::cuda::detail::AtPlace const here({stream.get(), &pool});
    sg::cuda::Tensor<double> a;
    for (std::size_t const n : {4U, 2U, 8U, 1U, 8U}) a.resize({n, 3});
    CHECK(si::calls(si::Call::malloc_from_pool) == 2);
    CHECK(a.bytes() == 8 * 3 * sizeof(double));
    sg::cuda::Tensor<double> const moved = std::move(a);
    CHECK(si::calls(si::Call::malloc_from_pool) == 2);
  }
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/Tensor: without room it stays as it was and says what is free", "[cuda]") {
  si::Session const session;
  si::Machine machine;
  machine.memory_bytes = 1000;
  si::set_machine(machine);
  sg::cuda::Tensor<> a({100});
  auto const* const data = a.data();
  try {
    a.resize({200});
    FAIL();
  } catch (sg::cuda::Error const& error) {
    CHECK(error.result() == cudaErrorMemoryAllocation);
    CHECK(std::string(error.what()).find("the GPU has no 800 bytes more: 600 bytes of ") == 0);
  }
  CHECK(a.data() == data);
  CHECK(a.size() == 100);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("cuda/Tensor: it neither grows nor goes while its stream is captured", "[cuda]") {
  si::Session const session;
  bool const grows = GENERATE(true, false);
  {
    auto const pool = std::make_shared<sg::cuda::Pool>();
    sg::cuda::Stream const stream;
    sg::cuda::detail::AtPlace const here({stream.get(), &pool});
    std::optional<sg::cuda::Tensor<>> a(std::in_place);
    a->resize({100});
    auto const* const data = a->data();
    sg::cuda::Graph graph;
    sg::cuda::GraphCounts counts;
    try {
      graph.capture(stream, counts, [&] {
        sg::cuda::check(cudaMemsetAsync(a->data(), 0, a->bytes(), stream.get()), "clear");
        if (grows)
          a->resize({200});
        else
          a.reset();
      });
      FAIL("no error");
    } catch (sg::cuda::Error const& error) {
      CHECK(error.result() == cudaErrorStreamCaptureUnsupported);
      CHECK(std::string(error.what()).find("while it is captured") != std::string::npos);
    }
    CHECK_FALSE(graph);
    if (grows) CHECK((a->data() == data && a->size() == 100));
    sg::cuda::Tensor<> more({50});  // the next capture knows nothing of it
    graph.capture(stream, counts, [&] {
      sg::cuda::check(cudaMemsetAsync(more.data(), 0, more.bytes(), stream.get()), "clear");
    });
    for (int i = 0; i < 2; ++i) graph.replay(stream, counts);
    while (!stream.idle()) {
    }
    CHECK(counts.captures == 1);
  }
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/Pinned: keeps its capacity, and gives it back", "[cuda]") {
  si::Session const session;
  {
    sg::cuda::Pinned<int> p(10);
    p.resize(3);
    p.resize(10);
    CHECK(si::calls(si::Call::malloc_host) == 1);
    sg::cuda::Pinned<int> q = std::move(p);
    CHECK(q.span().size() == 10);
    si::fail(si::Call::malloc_host, 1, cudaErrorMemoryAllocation);
    CHECK_THROWS_AS(q.resize(100), sg::cuda::Error);
    CHECK(q.size() == 10);
  }
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/Stream: messages have the higher priority, failing half way leaks nothing",
          "[cuda]") {
  si::Session const session;
  {
    sg::cuda::Stream const compute_stream;
    sg::cuda::Stream const message_stream(sg::cuda::Priority::message);
    int compute = 0;
    int message = 0;
    cudaStreamGetPriority(compute_stream.get(), &compute);
    cudaStreamGetPriority(message_stream.get(), &message);
    CHECK(message < compute);  // lower numbers go first
  }
  si::fail(si::Call::stream_create, 1, cudaErrorMemoryAllocation);
  CHECK_THROWS_AS(sg::cuda::Stream(), sg::cuda::Error);
  si::fail(si::Call::event_create, 5, cudaErrorMemoryAllocation);
  CHECK_THROWS_AS(std::vector<sg::cuda::Event>(8), sg::cuda::Error);
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/Pool: one that cannot be set up leaves nothing behind", "[cuda]") {
  si::Session const session;
  for (int const nth : {1, 2}) {
    si::fail(si::Call::pool_set_attribute, nth, cudaErrorNotSupported);
    CHECK_THROWS_AS(sg::cuda::Pool(), sg::cuda::Error);
    CHECK(session.left() == si::Live{});
  }
}

}  // namespace memory_test
