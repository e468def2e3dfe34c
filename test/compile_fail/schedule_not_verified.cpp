// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a schedule of your own without the header that verifies it
// expect-error: stagger: the tables of this schedule must be verified before they run: include <stagger/schedule/proof/verify\.hpp>
// see: schedules_own.md#train-with-it
#include <stagger/stagger.hpp>

#include "half.hpp"

struct OneAfterTheOther {
  using policy_tag = sg::ScheduleTag;
  static constexpr bool flushes = true;
  int chunks() const { return 1; }
  sg::schedule::Table table(sg::Shape shape) const {
    using sg::schedule::Kind;
    sg::schedule::Table table{.stages = shape.ranks, .microbatches = shape.microbatches};
    for (int r = 0; r < shape.ranks; ++r) {
      table.begin_row();
      for (int m = 0; m < shape.microbatches; ++m)
        for (auto const kind : {Kind::forward, Kind::backward})
          table.add({.kind = kind, .stage = r, .microbatch = m});
    }
    return table;
  }
};

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(OneAfterTheOther{}, Distance{});
  std::vector<float> inputs{1}, outputs{0};
  sg::run(train.predict(inputs, outputs));
}
