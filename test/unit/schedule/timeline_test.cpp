// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/timeline.hpp>

#include <utility>
#include <vector>

#include "catch.hpp"

namespace timeline_test {

namespace {

using stagger::schedule::Span;
using stagger::schedule::Timeline;

template <class T>
constexpr bool has_rows = requires(T&& timeline) { std::forward<T>(timeline).row(0); };
static_assert(has_rows<Timeline const&> && !has_rows<Timeline>);  // its rows would be gone

TEST_CASE("schedule/Timeline: each row has the spans that were added to it, if any", "[schedule]") {
  Timeline timeline;
  timeline.begin_row();
  std::vector<Span> const three{{{}, 1}, {{}, 2}, {{}, 3}};
  timeline.add_row(three);
  timeline.begin_row();
  timeline.begin_row();
  timeline.add({{}, 4});
  timeline.begin_row();
  std::vector<std::vector<double>> starts;
  for (int r = 0; r < timeline.ranks(); ++r) {
    starts.emplace_back();
    for (Span const& span : timeline.row(r)) starts.back().push_back(span.start_s);
  }
  CHECK(starts == std::vector<std::vector<double>>{{}, {1, 2, 3}, {}, {4}, {}});
}

}  // namespace

}  // namespace timeline_test
