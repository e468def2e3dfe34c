// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/in_process.hpp>

#include <atomic>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "collective/ranks.hpp"

// What happens when ranks disagree, come late, or go.

using namespace stagger;
using namespace stagger::collective;
using collective_test::on_threads;

namespace {

template <class Call> Error error_of(Call&& call) {
  try {
    call();
  } catch (Error const& e) {
    return e;
  }
  return Error(Errc::io, "nothing was thrown");
}

bool says(Error const& e, char const* words) {
  return std::string(e.what()).find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("collective/InProcess: calls that differ end in mismatch on every rank", "[collective]") {
  struct Case {
    char const* what;
    std::vector<char const*> words;
    InProcessOperation (*call)(InProcessCommunicator&, std::span<float>);
  };
  Case const cases[] = {
      {"count",
       {"rank 0 called all_reduce(float32 x 10, sum)",
        "rank 1 called all_reduce(float32 x 12, sum)"},
       [](InProcessCommunicator& c, std::span<float> x) {
         return c.all_reduce(x.first(c.rank() == 1 ? 12 : 10));
       }},
      {"call",
       {"rank 0 called all_reduce(float32 x 12, sum)",
        "rank 1 called broadcast(float32 x 12, root 0)"},
       [](InProcessCommunicator& c, std::span<float> x) {
         return c.rank() == 1 ? c.broadcast(x, 0) : c.all_reduce(x);
       }},
      {"root",
       {"root 0", "root 1"},
       [](InProcessCommunicator& c, std::span<float> x) {
         return c.broadcast(x, c.rank() == 1 ? 1 : 0);
       }},
      {"type",
       {"float32", "int32"},
       [](InProcessCommunicator& c, std::span<float> x) {
         static std::int32_t other[12];
         return c.rank() == 1 ? c.all_reduce(std::span(other)) : c.all_reduce(x);
       }},
      {"reduction",
       {"sum", "max"},
       [](InProcessCommunicator& c, std::span<float> x) {
         return c.all_reduce(x, c.rank() == 1 ? Reduction::max : Reduction::sum);
       }},
      {"algorithm",
       {"ring", "tree"},
       [](InProcessCommunicator& c, std::span<float> x) {
         return c.all_reduce(x, Reduction::sum, c.rank() == 1 ? AllReduce::tree : AllReduce::ring);
       }},
  };
  for (auto const& c : cases) {
    INFO(c.what);
    for (bool threads : {false, true}) {
      std::vector<Error> errors(3, Error(Errc::io, "none"));
      std::vector<std::vector<float>> x(3, std::vector<float>(12));
      auto const note = [&](InProcessCommunicator& comm, InProcessOperation& op, double seconds) {
        errors[static_cast<std::size_t>(comm.rank())] = error_of([&] { op.wait(seconds); });
      };
      if (threads) {
        on_threads(3, [&](InProcessCommunicator& comm) {
          auto op = c.call(comm, x[static_cast<std::size_t>(comm.rank())]);
          note(comm, op, 20);
        });
      } else {
        auto world = InProcess{}.connect(3);
        std::vector<InProcessOperation> ops;
        for (auto& comm : world)
          ops.push_back(c.call(comm, x[static_cast<std::size_t>(comm.rank())]));
        for (std::size_t r = 0; r < 3; ++r) note(world[r], ops[r], 5);
      }
      for (auto const& e : errors) {
        REQUIRE(e.code() == Errc::mismatch);
        if (threads) continue;  // which difference is seen first depends on who comes first
        for (auto const* words : c.words) REQUIRE(says(e, words));
      }
    }
  }
}

TEST_CASE(
    "collective/InProcess: messages that differ in type or count end in mismatch on both ends",
    "[collective]") {
  auto world = InProcess{}.connect(3);
  std::vector<float> x(8);
  std::vector<double> y(8);
  auto send = world[0].send(world[0].group(), std::span(x), 1);
  auto receive = world[1].receive(world[1].group(), std::span(y), 0);
  auto const theirs = error_of([&] { receive.wait(5); });
  auto const mine = error_of([&] { send.wait(5); });
  CHECK(theirs.code() == Errc::mismatch);
  CHECK(mine.code() == Errc::mismatch);
  CHECK(says(mine, "float32 x 8"));
  CHECK(says(mine, "float64 x 8"));
}

TEST_CASE("collective/InProcess: a peer out of range is refused and tells every rank",
          "[collective]") {
  auto world = InProcess{}.connect(2);
  std::vector<float> x(8);
  auto op = world[1].all_reduce(std::span(x));
  auto const e = error_of([&] { auto bad = world[0].broadcast(std::span(x), 2); });
  CHECK(e.code() == Errc::mismatch);
  CHECK(says(e, "rank 2"));
  CHECK(says(e, "0 to 1"));
  CHECK(error_of([&] { op.wait(5); }).code() == Errc::mismatch);
}

TEST_CASE("collective/InProcess: a deadline names operation, ranks and where the peer stands",
          "[collective]") {
  auto world = InProcess{}.connect(2);
  std::vector<float> x(8), y(8);
  {
    auto a = world[0].broadcast(std::span(x), 0);
    auto b = world[1].broadcast(std::span(y), 0);
    wait_all(5, a, b);
  }
  auto op = world[0].all_reduce(std::span(x));
  auto const e = error_of([&] { op.wait(0.01); });
  CHECK(e.code() == Errc::deadline);
  CHECK(says(e, "all_reduce(float32 x 8, sum) #1 of rank 0"));
  CHECK(says(e, "0.01 s"));
  CHECK(says(e, "waits for rank 1, which has not called it"));
  CHECK(says(e, "last finished broadcast #0"));
  auto late = world[1].all_reduce(std::span(y));  // the operation still stands
  wait_all(5, op, late);

  auto lost = world[0].receive(world[0].group(), std::span(x), 1);
  auto const f = error_of([&] { wait_all(0.01, lost); });
  CHECK(f.code() == Errc::deadline);
  CHECK(says(f, "receive(float32 x 8) #0 from rank 1 of rank 0"));
}

TEST_CASE("collective/InProcess: a rank that leaves, aborts or drops its part fails every other",
          "[collective]") {
  for (int how = 0; how < 4; ++how) {
    for (int n : {2, 3, 4}) {
      std::vector<Error> errors(static_cast<std::size_t>(n), Error(Errc::io, "none"));
      on_threads(
          n,
          [&](InProcessCommunicator& c) {
            std::vector<float> x(300'000, 1);
            c.all_reduce(std::span(x)).wait(20);  // everyone was there once
            if (c.rank() == 0) {
              if (how == 0) return;
              if (how == 1) return c.abort("the disk is full");
              if (how == 2) {
                auto op = c.all_reduce(std::span(x));
                static_cast<void>(op.poll());
                return;
              }
              throw std::runtime_error("stage 3 is ill");
            }
            auto op = c.all_reduce(std::span(x));
            errors[static_cast<std::size_t>(c.rank())] = error_of([&] {
              op.wait(20);
              c.barrier().wait(20);
            });
          },
          how == 3);
      for (std::size_t r = 1; r < errors.size(); ++r) {
        INFO(errors[r].what());
        REQUIRE(errors[r].code() == Errc::peer_failed);
        REQUIRE(says(errors[r], "rank 0"));
        if (how == 1) REQUIRE(says(errors[r], "the disk is full"));
      }
    }
  }
}

TEST_CASE("collective/InProcess: what a rank owed before it left is still delivered",
          "[collective]") {
  for (int trial = 0; trial < 200; ++trial) {
    on_threads(3, [](InProcessCommunicator& c) {
      std::vector<int> x(64, 1);
      c.all_reduce(std::span(x)).wait(20);
      if (x[63] != 3) throw std::runtime_error("wrong sum");
    });
  }
}

TEST_CASE("collective/InProcess: a message to a rank that left fails, one taken before does not",
          "[collective]") {
  auto world = InProcess{}.connect(2);
  int a = 4, b = 0;
  auto send = world[0].send(world[0].group(), std::span(&a, 1), 1);
  {
    auto gone = std::move(world[1]);
    auto receive = gone.receive(gone.group(), std::span(&b, 1), 0);
    CHECK(receive.poll());
  }
  CHECK(send.poll());
  auto lost = world[0].send(world[0].group(), std::span(&a, 1), 1);
  CHECK(error_of([&] { lost.wait(5); }).code() == Errc::peer_failed);
}

TEST_CASE(
    "collective/InProcess: an abort reaches the parts, and leaving a part does not end the whole",
    "[collective]") {
  std::vector<Error> errors(4, Error(Errc::io, "none"));
  on_threads(4, [&](InProcessCommunicator& c) {
    InProcessCommunicator part;
    c.split(c.rank() / 2, 0, part).wait(20);
    {
      InProcessCommunicator brief;
      c.split(0, 0, brief).wait(20);
    }
    c.barrier().wait(20);
    int x = 0;
    if (c.rank() == 0) return c.abort("tired");
    errors[static_cast<std::size_t>(c.rank())] = error_of([&] {
      for (;;) part.all_reduce(std::span(&x, 1)).wait(20);
    });
  });
  for (std::size_t r = 1; r < 4; ++r) {
    INFO(errors[r].what());
    CHECK(errors[r].code() == Errc::peer_failed);
  }
  CHECK(says(errors[3], "tired"));
}

TEST_CASE("collective/InProcess: a split that is aborted ends everywhere and touches nothing freed",
          "[collective]") {
  // Who made the part drops it while the others fetch it: the sanitizers are the judges.
  std::atomic<int> wrong{0};
  for (int round = 0; round < 300; ++round)
    on_threads(4, [&](InProcessCommunicator& c) {
      InProcessCommunicator part;
      try {
        auto op = c.split(0, c.rank(), part);
        if (c.rank() == 3) {
          for (int k = 0; k < round % 7; ++k) static_cast<void>(op.poll());
          if (round % 2 == 0) c.abort("now");
        }
        op.wait(20);
        if (part.rank() != c.rank() || part.size() != 4) ++wrong;
      } catch (Error const& e) {
        if (e.code() == Errc::deadline) ++wrong;
      }
    });
  CHECK(wrong == 0);
}

TEST_CASE("collective/InProcess: the rank that aborts sees its own operations cancelled",
          "[collective]") {
  auto world = InProcess{}.connect(2);
  int x = 0;
  auto op = world[0].all_reduce(std::span(&x, 1));
  world[0].abort("enough");
  auto const e = error_of([&] { op.wait(5); });
  CHECK(e.code() == Errc::cancelled);
  CHECK(says(e, "enough"));
}

TEST_CASE("collective/InProcess: buffers given back early are never touched again",
          "[collective]") {
  // Each rank drops its operation at some moment and frees the buffer: the address sanitizer is the
  // judge.
  std::mt19937 random(2);
  for (int trial = 0; trial < 60; ++trial) {
    int const patience = static_cast<int>(random() % 6);
    on_threads(3, [&](InProcessCommunicator& c) {
      std::vector<float> x(400'000, 1);
      auto op = c.all_reduce(std::span(x), Reduction::sum,
                             trial % 2 == 0 ? AllReduce::slices : AllReduce::ring);
      if (c.rank() == trial % 3) {
        for (int i = 0; i < patience; ++i) {
          if (op.poll()) return;
        }
        return;
      }
      try {
        op.wait(20);
      } catch (Error const& e) {
        if (e.code() != Errc::peer_failed) throw;
      }
    });
  }
}

TEST_CASE("collective/InProcess: no rank, an empty handle and a bad algorithm are refused",
          "[collective]") {
  CHECK(error_of([] { auto w = InProcess{}.connect(0); }).code() == Errc::bad_configuration);
  CHECK(error_of([] { InProcessCommunicator().barrier().wait(1); }).code() ==
        Errc::bad_configuration);
  auto const e = error_of([] { auto w = InProcess{AllReduce::recursive_doubling}.connect(6); });
  CHECK(e.code() == Errc::bad_configuration);
  CHECK(says(e, "6"));
  CHECK(says(e, "ring"));
}
