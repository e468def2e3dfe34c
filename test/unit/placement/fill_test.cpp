// SPDX-License-Identifier: Apache-2.0
#include <stagger/placement/fill.hpp>

#include <cstddef>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "catch.hpp"

namespace fill_test {

using namespace stagger;
using namespace stagger::placement;

namespace {

using Ids = std::vector<int>;

/// Nodes of eight devices each.
Occupancy eights(Ids taken) { return {Ids(taken.size(), 8), taken}; }

template <class P> Ids place(P policy, Occupancy const& occupied, int devices) {
  return occupied.devices(policy.fill(occupied, devices));
}

}  // namespace

TEST_CASE("placement/fill: six devices as DAPPLE's three rules choose them (figure 5)",
          "[placement]") {
  SECTION("two nodes, three taken of the first") {
    auto const o = eights({3, 0});
    CHECK(place(FreshFirst{}, o, 6) == Ids{8, 9, 10, 11, 12, 13});
    CHECK(place(AppendFirst{}, o, 6) == Ids{3, 4, 5, 6, 7, 8});
    CHECK(place(ScatterFirst{}, o, 6) == Ids{3, 4, 5, 6, 7, 8});
  }
  SECTION("three nodes, two partly taken") {
    auto const o = eights({4, 2, 0});
    CHECK(place(FreshFirst{}, o, 6) == Ids{16, 17, 18, 19, 20, 21});
    CHECK(place(AppendFirst{}, o, 6) == Ids{4, 5, 6, 7, 10, 11});
    CHECK(place(ScatterFirst{}, o, 6) == Ids{4, 5, 6, 10, 11, 12});
  }
  SECTION("four nodes, one full, two partly taken") {
    auto const o = eights({8, 6, 4, 0});
    CHECK(place(FreshFirst{}, o, 6) == Ids{24, 25, 26, 27, 28, 29});
    CHECK(place(AppendFirst{}, o, 6) == Ids{14, 15, 20, 21, 22, 23});
    CHECK(place(ScatterFirst{}, o, 6) == Ids{14, 15, 20, 21, 22, 23});
  }
  SECTION("four fresh nodes") {
    auto const o = eights({0, 0, 0, 0});
    CHECK(place(FreshFirst{}, o, 6) == Ids{0, 1, 2, 3, 4, 5});
    CHECK(place(AppendFirst{}, o, 6) == Ids{0, 1, 2, 3, 4, 5});
    CHECK(place(ScatterFirst{}, o, 6) == Ids{0, 1, 8, 9, 16, 24});
  }
}

TEST_CASE("placement/fill: any choice has the devices asked for, each free and none twice",
          "[placement]") {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    Occupancy o;
    int const nodes = 1 + static_cast<int>(random() % 5);
    for (int n = 0; n < nodes; ++n) {
      o.size.push_back(1 + static_cast<int>(random() % 8));
      o.taken.push_back(static_cast<int>(random() % static_cast<unsigned>(o.size.back() + 1)));
    }
    if (o.free() == 0) continue;
    int const devices = 1 + static_cast<int>(random() % static_cast<unsigned>(o.free()));
    for (auto const& chosen : {FreshFirst{}.fill(o, devices), AppendFirst{}.fill(o, devices),
                               ScatterFirst{}.fill(o, devices)}) {
      Ids const ids = o.devices(chosen);
      REQUIRE(ids.size() == static_cast<std::size_t>(devices));
      CHECK(std::set<int>(ids.begin(), ids.end()).size() == ids.size());
      int first = 0;
      for (std::size_t n = 0; n < o.size.size(); ++n) {
        CHECK(chosen[n] <= o.free(n));
        first += o.size[n];
      }
      CHECK(ids.back() < first);
    }
  }
}

TEST_CASE("placement/fill: what cannot be chosen is refused by number", "[placement]") {
  auto const says = [](auto call, char const* words) {
    try {
      call();
    } catch (Error const& error) {
      CHECK(std::string(error.what()).find(words) != std::string::npos);
      return;
    }
    FAIL("no error");
  };
  says([] { (void)FreshFirst{}.fill(eights({8, 3}), 6); }, "6 devices cannot be chosen of 5");
  says([] { (void)ScatterFirst{}.fill(eights({8, 3}), 0); }, "0 devices");
  says([] { (void)AppendFirst{}.fill({{2}, {3}}, 1); },
       "node 0 has 2 devices, of which 3 are taken");
  says([] { (void)AppendFirst{}.fill({{2}, {}}, 1); }, "1 nodes");
}

TEST_CASE("placement/fill: choices can be made while compiling", "[placement]") {
  STATIC_REQUIRE(ScatterFirst{}.fill(Occupancy{{2, 2}, {0, 0}}, 3) == std::vector<int>{2, 1});
}

}  // namespace fill_test
