// SPDX-License-Identifier: Apache-2.0
#include <stagger/program/versions.hpp>

#include "catch.hpp"

#include <algorithm>
#include <random>
#include <vector>

namespace versions_test {

using namespace stagger;
using detail::fix_versions;
using detail::RowIndices;

namespace {

/// A row of F and B in which at most `in_flight` microbatches are in flight; B in order.
struct Row {
  RowIndices forward, end;
  std::uint32_t length = 0;
};

Row row_of(std::uint32_t microbatches, std::uint32_t in_flight, std::mt19937& random) {
  Row row;
  while (row.end.size() < microbatches) {
    auto const ahead = row.forward.size() - row.end.size();
    bool const can = row.forward.size() < microbatches && ahead < in_flight;
    if (can && (ahead == 0 || random() % 2 == 0))
      row.forward.push_back(row.length++);
    else if (ahead != 0)
      row.end.push_back(row.length++);
  }
  return row;
}

template <int Age> StalenessModel aged(int microbatches) {
  StalenessModel model;
  model.microbatches = microbatches;
  model.version = [](void const*, int, int available) { return std::max(0, available - Age); };
  return model;
}

}  // namespace

TEST_CASE("program/fix_versions: every slot holds what the model says, from F to B", "[program]") {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    std::uint32_t const per_update = 1 + static_cast<std::uint32_t>(random() % 3);
    std::uint32_t const minibatches = 1 + static_cast<std::uint32_t>(random() % 6);
    std::uint32_t const microbatches = per_update * minibatches;
    Row const row = row_of(microbatches, 1 + static_cast<std::uint32_t>(random() % 4), random);
    int const age = static_cast<int>(random() % 3);
    auto const counted = static_cast<int>(per_update);
    auto const model = age == 0 ? aged<0>(counted) : age == 1 ? aged<1>(counted) : aged<2>(counted);
    auto const versions = fix_versions(model, {0, row.forward, row.end, row.length});
    CAPTURE(i, per_update, minibatches, age);
    REQUIRE(versions.updates.size() == minibatches);
    std::vector<int> slot(versions.slots, -1);
    std::vector<int> wanted(microbatches);
    slot[0] = 0;
    int made = 0;
    for (std::uint32_t at = 0; at < row.length; ++at) {
      for (std::uint32_t m = 0; m < microbatches; ++m) {
        if (row.forward[m] == at) wanted[m] = std::max(0, made - age);
        if (row.forward[m] == at || row.end[m] == at) REQUIRE(slot[versions.seen[m]] == wanted[m]);
      }
      if (made == static_cast<int>(minibatches)) continue;
      auto const& update = versions.updates[static_cast<std::size_t>(made)];
      auto const last = per_update * static_cast<std::uint32_t>(made + 1) - 1;
      REQUIRE(update.index == row.end[last]);
      if (update.index != at) continue;
      REQUIRE(slot[update.from] == made);
      slot[update.to] = ++made;
    }
    CHECK(slot[0] == static_cast<int>(minibatches));  // the slot that lasts
  }
}

TEST_CASE("program/fix_versions: no more slots than versions that are still read", "[program]") {
  Row row;  // F0 F1 B0 F2 B1 F3 B2 ...: two in flight
  row.forward.push_back(row.length++);
  for (int m = 1; m < 6; ++m) {
    row.forward.push_back(row.length++);
    row.end.push_back(row.length++);
  }
  row.end.push_back(row.length++);
  CHECK(fix_versions(aged<0>(1), {0, row.forward, row.end, row.length}).slots == 2);
  std::mt19937 random(2);
  Row const single = row_of(6, 1, random);
  CHECK(fix_versions(aged<0>(1), {0, single.forward, single.end, single.length}).slots == 1);
}

}  // namespace versions_test
