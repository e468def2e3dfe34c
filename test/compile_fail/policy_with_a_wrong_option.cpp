// SPDX-License-Identifier: Apache-2.0
// expect-error -DWRONG=Proven: stagger: not a SchedulePolicy: its 'proven' must be 'static constexpr bool proven'
// expect-error -DWRONG=Slices: stagger: not a SchedulePolicy: its 'slices' must be a member 'int slices'
// expect-error -DWRONG=FactsNotConst: stagger: not a SchedulePolicy: its 'facts' must be 'schedule::Facts facts\(\) const'
// expect-error -DWRONG=AverageCalled: stagger: not a StalenessPolicy: its 'average_state' must be a bool
// expect-error -DWRONG=AverageOfGradients: stagger: not a StalenessPolicy: its 'average_state' must be a bool
// expect-error -DWRONG=ChangeThrows: stagger: not an OptimizerPolicy: its 'change' must take what update takes
// expect-error -DWRONG=ChangeOfFloat: stagger: not an OptimizerPolicy: its 'change' must take what update takes
// expect-error -DWRONG=ChangeNotConst: stagger: not an OptimizerPolicy: its 'change' must take what update takes
// expect-error -DWRONG=Enqueues: stagger: not an OptimizerPolicy: its 'enqueues' must be 'static constexpr bool enqueues'
// expect-error -DWRONG=UsesTimes: stagger: not a GroupingPolicy: its 'uses_times' must be 'static constexpr bool uses_times'
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/single.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/local_sgd.hpp>

struct Proven : sg::schedule::GPipe {
  bool proven() const { return true; }
};
struct Slices : sg::schedule::GPipe {
  int slices() const { return 2; }
};
struct FactsNotConst : sg::schedule::GPipe {
  sg::schedule::Facts facts() { return {}; }
};
struct AverageCalled : sg::staleness::LocalSgd {
  bool average_state() const { return false; }
};
struct AverageOfGradients : sg::staleness::Asynchronous {
  bool average_state = true;
};
struct ChangeThrows : sg::optimizer::Sgd {
  template <class T> void change(sg::OptimizerView<T> const&, double, std::int64_t) const {}
};
struct ChangeOfFloat : sg::optimizer::Sgd {
  void change(sg::OptimizerView<float> const&, double, std::int64_t) const noexcept {}
};
struct ChangeNotConst : sg::optimizer::Sgd {
  template <class T> void change(sg::OptimizerView<T> const&, double, std::int64_t) noexcept {}
};
struct Enqueues : sg::optimizer::Sgd {
  static constexpr bool enqueues() { return true; }
};
struct Timeless : sg::collective::grouping::Single {
  static constexpr bool uses_times() { return false; }
};
using UsesTimes = sg::collective::AllReduce<Timeless>;

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(WRONG{}, Distance{}); }
