// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/world.hpp>

#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/collective/in_process.hpp>
#include <stagger/mpi/session.hpp>

#include "catch.hpp"
#include "collective/laws.hpp"
#include "collective/ranks.hpp"

// Runs on as many processes as mpirun starts. Each assertion holds on every rank.

using namespace stagger;
using collective::Reduction;
using collective_test::coded;
using collective_test::patience_s;
using collective_test::thrown_by;
using collective_test::values_of;

namespace {

int processes() {
  int n = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  return n;
}

mpi::Communicator connected(mpi::World policy = {}) {
  auto own = policy.connect(processes());
  return std::move(own.front());
}

double processor_s() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  auto const seconds = [](timeval t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

}  // namespace

static_assert(collective::Communicator<mpi::Communicator>);
static_assert(CollectivePolicy<mpi::World>);

TEST_CASE("mpi/World: every law of communicators holds between processes", "[mpi]") {
  auto c = connected();
  for (auto const& law : collective_test::laws<mpi::Communicator>) {
    INFO(law.name << " on rank " << c.rank() << " of " << c.size());
    REQUIRE(law.check(c) == "");
  }
}

TEST_CASE("mpi/World: all-reduce has the bits of InProcess for every cut into calls (J2)",
          "[mpi]") {
  auto c = connected();
  constexpr std::size_t count = 30000;
  std::vector<float> want;
  {
    auto ranks = collective::InProcess{}.connect(c.size());
    std::vector<std::vector<float>> x;
    std::vector<collective::InProcessOperation> operations;
    for (auto& r : ranks) x.push_back(values_of<float>(r.rank(), count));
    for (std::size_t r = 0; r < x.size(); ++r)
      operations.push_back(ranks[r].all_reduce(std::span(x[r])));
    collective_test::poll_all(operations);
    operations.clear();
    want = x[0];
  }
  for (std::size_t const piece : {std::size_t{1000}, std::size_t{7001}, count}) {
    auto x = values_of<float>(c.rank(), count);
    std::vector<mpi::Operation> operations;
    for (std::size_t at = 0; at < count; at += piece) {
      operations.push_back(
          c.all_reduce(std::span(x).subspan(at, std::min(piece, count - at)), Reduction::sum));
    }
    for (auto& op : operations) op.wait(patience_s);
    REQUIRE(collective_test::same_bits(x, want));
  }
}

TEST_CASE("mpi/World: MPI_Iallreduce by name gives every rank the sum, in parts too", "[mpi]") {
  auto c = connected({.algorithm = mpi::AllReduce::iallreduce});
  REQUIRE(std::string(mpi::name(mpi::AllReduce::iallreduce)) == "iallreduce");
  for (std::size_t const n : {std::size_t{0}, std::size_t{1}, std::size_t{5000}}) {
    std::vector<std::int64_t> x(n, c.rank() + 1);
    c.all_reduce(std::span(x)).wait(patience_s);
    REQUIRE(x == std::vector<std::int64_t>(n, c.size() * (c.size() + 1) / 2));
  }
  mpi::Communicator part;
  c.split(0, -c.rank(), part).wait(patience_s);
  REQUIRE(part.rank() == c.size() - 1 - c.rank());
  float x = 1;
  part.all_reduce(std::span(&x, 1), Reduction::sum, mpi::AllReduce::iallreduce).wait(patience_s);
  REQUIRE(x == static_cast<float>(c.size()));
  auto plain = connected();
  REQUIRE(thrown_by([&] {
            plain.all_reduce(std::span(&x, 1), Reduction::sum, mpi::AllReduce::iallreduce)
                .wait(patience_s);
          }).find("World{AllReduce::iallreduce}") != std::string::npos);
}

TEST_CASE("mpi/World: calls that differ end every rank with both calls", "[mpi]") {
  if (processes() < 2) return;
  auto const differ = [](auto&& odd, auto&& others, char const* a, char const* b) {
    auto c = connected();
    auto const words = thrown_by([&] {
      if (c.rank() == 1)
        odd(c).wait(patience_s);
      else
        others(c).wait(patience_s);
    });
    INFO(words);
    REQUIRE(words.find(coded(Errc::mismatch)) == 0);
    REQUIRE(words.find(a) != std::string::npos);
    REQUIRE(words.find(b) != std::string::npos);
  };
  std::vector<float> x(100000), y(5), z(6);
  std::vector<double> d(5);
  differ([&](auto& c) { return c.all_reduce(std::span(y)); },
         [&](auto& c) { return c.all_reduce(std::span(z)); }, "float32 x 5", "float32 x 6");
  differ([&](auto& c) { return c.all_reduce(std::span(x)); },
         [&](auto& c) { return c.all_reduce(std::span(z)); }, "float32 x 100000", "float32 x 6");
  differ([&](auto& c) { return c.all_reduce(std::span(y)); },
         [&](auto& c) { return c.all_reduce(std::span(d)); }, "float32 x 5", "float64 x 5");
  differ([&](auto& c) { return c.all_reduce(std::span(y)); }, [&](auto& c) { return c.barrier(); },
         "all_reduce", "barrier");
  differ([&](auto& c) { return c.all_reduce(std::span(y), Reduction::min); },
         [&](auto& c) { return c.all_reduce(std::span(y), Reduction::max); }, "min", "max");
}

TEST_CASE("mpi/World: messages whose lengths differ end in mismatch, longer or shorter", "[mpi]") {
  if (processes() < 2) return;
  for (int const sent : {3, 5}) {
    auto c = connected();
    float x[8] = {};
    auto group = c.group();
    auto const words = thrown_by([&] {
      if (c.rank() == 0) {
        c.send(group, std::span<float const>(x, static_cast<std::size_t>(sent)), 1)
            .wait(patience_s);
      } else if (c.rank() == 1) {
        c.receive(group, std::span(x, 4), 0).wait(patience_s);
      }
      c.barrier().wait(patience_s);
    });
    INFO(words);
    REQUIRE(words.find(coded(Errc::mismatch)) == 0);
    REQUIRE(words.find("both ends must agree on type and count") != std::string::npos);
  }
}

TEST_CASE("mpi/World: a rank that leaves, aborts, drops or waits too long ends every other",
          "[mpi]") {
  if (processes() < 2) return;
  std::vector<float> x(200000), y(10);
  auto const after = [&](auto&& fault, char const* named, auto& vector) {
    auto c = connected();
    if (c.rank() == 1) {
      fault(c);
      return;
    }
    auto const words = thrown_by([&] { c.all_reduce(std::span(vector)).wait(patience_s); });
    INFO(words);
    REQUIRE(words.find(coded(Errc::peer_failed)) == 0);
    REQUIRE(words.find(named) != std::string::npos);
    REQUIRE(words.find("all_reduce(float32 x " + std::to_string(vector.size())) !=
            std::string::npos);
  };
  after([](auto&) {}, "rank 1 left before it answered all_reduce", x);
  after([](auto&) {}, "rank 1 left before it answered all_reduce", y);
  after([](auto& c) { c.abort("no more paper"); }, "rank 1 aborted: no more paper", x);
  after(
      [](auto& c) {
        float value = 0;
        auto group = c.group();
        static_cast<void>(c.receive(group, std::span(&value, 1), 0));
      },
      "rank 1 dropped receive(float32 x 1) #0 from rank 0", x);
  after(
      [](auto& c) {
        float value = 0;
        auto const words = thrown_by([&] {
          auto group = c.group();
          c.receive(group, std::span(&value, 1), 0).wait(0.05);
        });
        REQUIRE(
            words.find(coded(Errc::deadline) +
                       "receive(float32 x 1) #0 from rank 0 of rank 1 is not done after 0.05 s: "
                       "it waits for rank 0, which has not answered it") == 0);
      },
      "rank 1 gave up: receive(float32 x 1) #0 from rank 0", x);
}

TEST_CASE("mpi/World: a deadline names the rank that has not called, and the call stands",
          "[mpi]") {
  auto c = connected();
  if (c.size() < 2) return;
  int const late = c.size() - 1;
  std::vector<float> x(50000, 1);
  if (c.rank() == late) {  // until all others have met their deadline
    float ready = 0;
    for (int r = 0; r < late; ++r) {
      auto group = c.group();
      c.receive(group, std::span(&ready, 1), r).wait(patience_s);
    }
  }
  auto all = c.all_reduce(std::span(x));
  if (c.rank() != late) {
    auto const words = thrown_by([&] { all.wait(0.05); });
    INFO(words);
    REQUIRE(words.find(coded(Errc::deadline)) == 0);
    REQUIRE(words.find("it waits for rank " + std::to_string(late) + ", which has not called it") !=
            std::string::npos);
  }
  mpi::Operation call;
  float go = 1;
  auto group = c.group();
  if (c.rank() != late) call = c.send(group, std::span<float const>(&go, 1), late);
  all.wait(patience_s);
  call.wait(patience_s);
  REQUIRE(x[49999] == static_cast<float>(c.size()));
}

TEST_CASE("mpi/World: an abort reaches the parts, and leaving a part does not end the whole",
          "[mpi]") {
  if (processes() < 2) return;
  auto c = connected();
  {
    mpi::Communicator part;
    c.split(0, c.rank(), part).wait(patience_s);
    part.barrier().wait(patience_s);
  }
  c.barrier().wait(patience_s);
  mpi::Communicator part;
  auto const words = thrown_by([&] {
    c.split(0, c.rank(), part).wait(patience_s);
    if (c.rank() == 1) c.abort("enough");
    part.barrier().wait(patience_s);
  });
  INFO(words);
  REQUIRE(words.find(coded(Errc::peer_failed)) == 0);
  REQUIRE(words.find("rank 1 aborted: enough") != std::string::npos);
}

TEST_CASE("mpi/World: the rank that aborts sees its own operations cancelled", "[mpi]") {
  auto c = connected();
  if (c.size() < 2 || c.rank() != 1) return;
  auto barrier = c.barrier();
  c.abort("enough");
  REQUIRE(thrown_by([&] { barrier.wait(patience_s); }).find(coded(Errc::cancelled)) == 0);
}

TEST_CASE("mpi/World: a rank that waits long leaves the core to others", "[mpi]") {
  auto c = connected();
  if (c.size() < 2) return;
  c.barrier().wait(patience_s);
  double const before = processor_s();
  auto const start = std::chrono::steady_clock::now();
  if (c.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(600));
  c.barrier().wait(patience_s);
  double const waited =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // A rank that the machine let begin late has not waited long.
  if (waited > 0.3) REQUIRE(processor_s() - before < 0.5 * waited);
}

TEST_CASE("mpi/World: peers, sizes and empty handles are refused with a sentence", "[mpi]") {
  int const n = processes();
  REQUIRE(thrown_by([&] { static_cast<void>(mpi::World{}.connect(n + 1)); })
              .find("the program has " + std::to_string(n + 1) + " ranks, but MPI started " +
                    std::to_string(n) + " processes") != std::string::npos);
  mpi::Communicator none;
  REQUIRE(none.size() == 0);
  REQUIRE(none.rank() == -1);
  REQUIRE(thrown_by([&] { static_cast<void>(none.barrier()); }).find("has no rank") !=
          std::string::npos);
  auto c = connected();
  float x = 0;
  REQUIRE(thrown_by([&] { static_cast<void>(c.broadcast(std::span(&x, 1), n)); }) ==
          coded(Errc::mismatch) + "broadcast of rank " + std::to_string(c.rank()) + " names rank " +
              std::to_string(n) + ", but ranks are 0 to " + std::to_string(n - 1));
}

TEST_CASE("mpi/Session: one within a program that runs MPI leaves it running", "[mpi]") {
  {
    mpi::Session const inner;
    REQUIRE_FALSE(inner.owns());
    REQUIRE(inner.threads() >= mpi::Threads::serialized);
  }
  REQUIRE(mpi::running());
  int provided = 0;
  MPI_Query_thread(&provided);
  if (provided < MPI_THREAD_MULTIPLE) {
    REQUIRE(thrown_by([] {
              mpi::Session const more(mpi::Threads::multiple);
            }).find("but MPI_THREAD_MULTIPLE is needed") != std::string::npos);
  }
}

TEST_CASE("mpi/World: what travels is counted, payload only (J6)", "[mpi]") {
  auto c = connected();
  auto const n = static_cast<std::uint64_t>(c.size());
  std::vector<float> x(n * 4096);
  c.all_reduce(std::span(x)).wait(patience_s);
  // Each rank sends n - 1 pieces to be added, and its sum to n - 1 others.
  REQUIRE(c.traffic().bytes == 2 * (n - 1) * 4096 * sizeof(float));
  c.reduce_scatter(std::span(x)).wait(patience_s);
  REQUIRE(c.traffic().bytes == 3 * (n - 1) * 4096 * sizeof(float));
}

TEST_CASE("mpi/World: every rank issues the same calls in the same order (J7)", "[mpi]") {
  // Gradients of layers, sent in groups as they become ready: the groups are one rank's decision,
  // though each rank has measured other times.
  auto c = connected();
  collective::Decision<int> decision;
  auto const lengths = decision.decide(
      c,
      [&] {
        return std::vector<int>{3 + c.rank(), 1, 4 + c.rank(), 1, 5};
      },
      patience_s);
  std::size_t total = 0;
  for (int const l : lengths) total += static_cast<std::size_t>(l);
  auto x = values_of<float>(c.rank(), total);
  std::size_t at = 0;
  for (int const l : lengths) {
    c.all_reduce(std::span(x).subspan(at, static_cast<std::size_t>(l))).wait(patience_s);
    at += static_cast<std::size_t>(l);
  }
  REQUIRE(collective_test::same_bits(
      x, collective_test::reduced<float>(Reduction::sum, c.size(), total)));
}
