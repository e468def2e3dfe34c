// SPDX-License-Identifier: Apache-2.0
// expect-error: stagger: not a SchedulePolicy: it needs policy_tag = stagger::ScheduleTag
#include <stagger/stagger.hpp>

namespace sg = stagger;

struct Half {
  using Input = float;
  using Output = float;
  void forward(sg::Context&, float const& x, float& y, sg::NothingSaved&) { y = x / 2; }
  void backward(sg::Context&, float const&, float const& dy, float& dx, sg::NothingSaved&) {
    dx = dy / 2;
  }
};

struct Almost {
  using policy_tag = sg::ScheduleTag;
  int chunks() const { return 1; }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Almost{}); }
