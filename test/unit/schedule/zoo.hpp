// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Small tables of every schedule of the catalog, and of some with other options.

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/schedule/catalog.hpp>

namespace zoo {

using namespace stagger;
using namespace stagger::schedule;

/// Every schedule but Auto at P ranks and M microbatches; P and M even, M >= 2P and a multiple of P
/// suit them all.
inline std::vector<std::pair<std::string, Table>> all(int P, int M) {
  std::vector<std::pair<std::string, Table>> tables;
  auto const add = [&](std::string name, auto const& policy) {
    tables.emplace_back(std::move(name), policy.table({P, M, policy.chunks()}));
  };
  catalog_lines.for_each([&]<class S>(CatalogLine<S> const&) {
    if constexpr (!std::is_same_v<S, Auto>) add(std::string(catalog_name<S>), S{});
  });
  add("1f1b deep", OneFOneB{.warmup = Warmup::deep});
  add("1f1b limited", OneFOneB{.in_flight = P - 1});
  add("interleaved 3", Interleaved{3});
  add("interleaved 1", Interleaved{1});
  add("interleaved group", Interleaved{2, M});
  add("zb-h1 2", ZeroBubbleH1{2});
  add("hanayo 2", Hanayo{2});
  add("seq-1f1b 3", Seq1F1B{3});
  add("fifo uneven", Fifo{3, Costs::uniform(1, 2, 1, 0.5)});
  add("forward-only zigzag", ForwardOnly{3, Mapping::zigzag});
  add("forward-only bidirectional", ForwardOnly{1, Mapping::bidirectional});
  return tables;
}

}  // namespace zoo
