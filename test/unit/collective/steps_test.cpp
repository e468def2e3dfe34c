// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/steps.hpp>

#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <vector>

#include <stagger/collective/in_process.hpp>

#include "catch.hpp"
#include "collective/ranks.hpp"

using namespace stagger;
using namespace stagger::collective;
using collective_test::poll_all;

namespace {

constexpr AllReduce named[] = {AllReduce::ring, AllReduce::recursive_doubling,
                               AllReduce::halving_doubling, AllReduce::tree};

bool serves(AllReduce a, int n) {
  return a == AllReduce::ring || a == AllReduce::tree || (n & (n - 1)) == 0;
}

/// Runs an algorithm on vectors through the communicator, ranks polled in turn; gives back what
/// each sent.
template <class T>
std::vector<Traffic> run(AllReduce algorithm, std::vector<std::vector<T>>& x,
                         std::vector<std::size_t> const& cuts) {
  auto world = InProcess{algorithm}.connect(static_cast<int>(x.size()));
  std::vector<InProcessOperation> ops;
  for (std::size_t r = 0; r < x.size(); ++r) {
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      ops.push_back(world[r].all_reduce(std::span(x[r]).subspan(cuts[i], cuts[i + 1] - cuts[i])));
    }
  }
  poll_all(ops);
  std::vector<Traffic> sent;
  for (auto const& c : world) sent.push_back(c.traffic());
  return sent;
}

std::vector<std::vector<float>> rough(int ranks, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(ranks) * 31 + static_cast<unsigned>(count));
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> x(static_cast<std::size_t>(ranks), std::vector<float>(count));
  for (auto& v : x) {
    for (auto& e : v) e = normal(random);
  }
  return x;
}

}  // namespace

TEST_CASE(
    "collective/steps: every message sent is the one received, and every rank adds each value once",
    "[collective]") {
  // Played on sets of contributors: an element that meets the same contributor twice would show.
  for (auto algorithm : named) {
    for (int n : {2, 3, 4, 5, 6, 7, 8, 13, 16}) {
      if (!serves(algorithm, n)) continue;
      for (std::size_t count :
           {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{16}, std::size_t{37}}) {
        std::vector<std::vector<std::multiset<int>>> have(static_cast<std::size_t>(n));
        for (int r = 0; r < n; ++r) have[static_cast<std::size_t>(r)].assign(count, {r});
        for (int i = 0; i < step_count(algorithm, n); ++i) {
          auto const before = have;
          for (int r = 0; r < n; ++r) {
            Step const s = step(algorithm, r, n, count, i);
            if (s.to >= 0) {
              Step const other = step(algorithm, s.to, n, count, i);
              REQUIRE(other.from == r);
              REQUIRE(other.in == s.out);
            }
            if (s.from < 0) continue;
            REQUIRE(step(algorithm, s.from, n, count, i).to == r);
            bool const overlap = s.to >= 0 && s.out.first < s.in.last && s.in.first < s.out.last;
            REQUIRE((!overlap || s.arrival == Arrival::exchange_add));
            for (std::size_t e = s.in.first; e < s.in.last; ++e) {
              auto const& theirs = before[static_cast<std::size_t>(s.from)][e];
              auto& mine = have[static_cast<std::size_t>(r)][e];
              if (s.arrival == Arrival::copy)
                mine = theirs;
              else
                mine.insert(theirs.begin(), theirs.end());
            }
          }
        }
        std::multiset<int> everyone;
        for (int r = 0; r < n; ++r) everyone.insert(r);
        for (auto const& rank : have) {
          for (auto const& element : rank) REQUIRE(element == everyone);
        }
      }
    }
  }
}

TEST_CASE("collective/steps: the ring of four sends the chunks of the published table",
          "[collective]") {
  int const reduce[4][3] = {{0, 3, 2}, {1, 0, 3}, {2, 1, 0}, {3, 2, 1}};
  int const gather[4][3] = {{1, 0, 3}, {2, 1, 0}, {3, 2, 1}, {0, 3, 2}};
  for (int rank = 0; rank < 4; ++rank) {
    for (int s = 0; s < 3; ++s) {
      CHECK(step(AllReduce::ring, rank, 4, 8, s).out == slice(8, reduce[rank][s], 4));
      CHECK(step(AllReduce::ring, rank, 4, 8, 3 + s).out == slice(8, gather[rank][s], 4));
    }
  }
}

TEST_CASE("collective/steps: messages and bytes of each algorithm are those of its cost line",
          "[collective]") {
  constexpr std::size_t count = 1680;  // divisible by every N below
  for (int n : {2, 3, 4, 5, 7, 8, 16}) {
    auto const N = static_cast<std::uint64_t>(n);
    auto const log = static_cast<std::uint64_t>(std::ceil(std::log2(n)));
    std::uint64_t const bytes = count * sizeof(float);
    for (auto algorithm : named) {
      if (!serves(algorithm, n)) continue;
      auto x = rough(n, count);
      auto const sent = run(algorithm, x, {0, count});
      Traffic total;
      for (auto const& t : sent) total.messages += t.messages, total.bytes += t.bytes;
      for (auto const& t : sent) {
        if (algorithm == AllReduce::ring) CHECK(t.messages == 2 * (N - 1));
        if (algorithm == AllReduce::recursive_doubling) CHECK(t == Traffic{log, log * bytes});
        if (algorithm == AllReduce::halving_doubling) CHECK(t.messages == 2 * log);
        if (algorithm == AllReduce::ring || algorithm == AllReduce::halving_doubling) {
          if (count % N == 0) CHECK(t.bytes * N == 2 * (N - 1) * bytes);
        }
      }
      if (algorithm == AllReduce::ring) CHECK(total.bytes == 2 * (N - 1) * bytes);
      if (algorithm == AllReduce::tree) {
        CHECK(total == Traffic{2 * (N - 1), 2 * (N - 1) * bytes});
        CHECK(static_cast<std::uint64_t>(step_count(algorithm, n)) == 2 * log);
      }
    }
    auto x = rough(n, count);
    for (auto const& t : run(AllReduce::slices, x, {0, count})) {
      CHECK(t.messages == 2 * (N - 1));
      if (count % N == 0) CHECK(t.bytes * N == 2 * (N - 1) * bytes);
    }
  }
}

TEST_CASE("collective/steps: all ranks end with the same bits, near the sum in double",
          "[collective]") {
  for (auto algorithm : named) {
    for (int n : {1, 2, 3, 4, 6, 8, 16}) {
      if (!serves(algorithm, n)) continue;
      for (std::size_t count :
           {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{17}, std::size_t{40'001}}) {
        auto x = rough(n, count);
        std::vector<double> sum(count), size(count);
        for (auto const& v : x) {
          for (std::size_t i = 0; i < count; ++i)
            sum[i] += double(v[i]), size[i] += std::abs(double(v[i]));
        }
        run(algorithm, x, {0, count});
        for (auto const& v : x) {
          REQUIRE((count == 0 || std::memcmp(v.data(), x[0].data(), count * sizeof(float)) == 0));
        }
        std::size_t off = 0;
        for (std::size_t i = 0; i < count; ++i)
          off += std::abs(double(x[0][i]) - sum[i]) <= 1e-6 * size[i] ? 0 : 1;
        REQUIRE(off == 0);
      }
    }
  }
}

TEST_CASE(
    "collective/steps: doubling, halving-doubling, tree and N = 2 give the same bits for every "
    "grouping (J2)",
    "[collective]") {
  std::mt19937 random(8);
  constexpr std::size_t count = 5000;
  for (auto algorithm : named) {
    for (int n : {2, 4, 8}) {
      auto const input = rough(n, count);
      auto whole = input;
      run(algorithm, whole, {0, count});
      for (int trial = 0; trial < 5; ++trial) {
        std::vector<std::size_t> cuts{0, count};
        for (int i = 0; i < 7; ++i) cuts.push_back(random() % (count + 1));
        std::sort(cuts.begin(), cuts.end());
        auto x = input;
        run(algorithm, x, cuts);
        if (algorithm != AllReduce::ring || n == 2) {
          REQUIRE(std::memcmp(x[0].data(), whole[0].data(), count * sizeof(float)) == 0);
        }
        for (std::size_t i = 0; i < count; ++i)
          REQUIRE(x[0][i] == Approx(whole[0][i]).epsilon(1e-6).margin(4e-6));
      }
    }
  }
}

TEST_CASE(
    "collective/steps: doubling refuses a number of ranks that is not a power of two and names "
    "ring",
    "[collective]") {
  for (auto algorithm : {AllReduce::recursive_doubling, AllReduce::halving_doubling}) {
    for (int n : {3, 6, 12}) {
      try {
        require_supported(algorithm, n);
        FAIL("it was accepted");
      } catch (Error const& e) {
        CHECK(e.code() == Errc::bad_configuration);
        CHECK(std::string(e.what()).find("ring") != std::string::npos);
      }
    }
  }
  CHECK_NOTHROW(require_supported(AllReduce::tree, 6));
}

TEST_CASE("collective/steps: named algorithms agree on threads, with other calls under way",
          "[collective]") {
  for (auto algorithm : named) {
    auto const input = rough(4, 60'000);
    auto expected = input;
    run(algorithm, expected, {0, 60'000});
    auto x = input;
    collective_test::on_threads(4, [&](InProcessCommunicator& c) {
      auto const mine = std::span(x[static_cast<std::size_t>(c.rank())]);
      int told = c.rank(), got = -1;
      auto a = c.all_reduce(mine, Reduction::sum, algorithm);
      auto b = c.send(c.group(), std::span(&told, 1), (c.rank() + 1) % 4);
      auto d = c.receive(c.group(), std::span(&got, 1), (c.rank() + 3) % 4);
      auto e = c.barrier();
      d.wait(20), e.wait(20), b.wait(20), a.wait(20);
      if (got != (c.rank() + 3) % 4) throw std::runtime_error("message of another edge");
    });
    for (auto const& v : x)
      REQUIRE(std::memcmp(v.data(), expected[0].data(), v.size() * sizeof(float)) == 0);
  }
}
