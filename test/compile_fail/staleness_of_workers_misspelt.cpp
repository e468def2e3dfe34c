// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a staleness model of several workers with a misspelt member
// expect-error: stagger: not a staleness model of several workers: it needs 'int needs\(int minibatch\) const', how many
// expect-error -DASYNCHRONOUS: stagger: not a staleness model of several workers: it needs 'int needs
// expect-error -DPUSHES: stagger: not a staleness model of several workers: it needs 'staleness::Adds adds', when
// expect-error -DADDS: stagger: not a staleness model of several workers: it needs 'staleness::Pushes pushes'; a model of one pipeline
// expect-error -DMINIBATCHES: stagger: not a staleness model of several workers: it needs 'staleness::Pushes pushes'; a model of one pipeline
// expect-error -DNEEDS: stagger: not a staleness model of several workers: it needs 'staleness::Pushes pushes'; a model of one pipeline
// expect-error -DNO_MINIBATCHES: stagger: not a staleness model of several workers: it needs 'int minibatches\(\) const'
// expect-error -DNO_MISTAKE: stagger: this staleness model is one of several workers .* but there is no parameter server
// see: workers.md#a-model-of-your-own
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  using policy_tag = sg::StalenessTag;
#ifdef ASYNCHRONOUS
  static constexpr bool synchronous = false;
  int microbatches() const { return 1; }
  int version(int, int available) const { return available; }
#else
  static constexpr bool synchronous = true;
#endif
#ifdef PUSHES  // alone
  static constexpr sg::staleness::Pushes pushes = sg::staleness::Pushes::gradients;
#elif defined ADDS
  static constexpr sg::staleness::Adds adds = sg::staleness::Adds::on_arrival;
#elif defined MINIBATCHES
  int minibatches() const { return 1; }
#elif defined NEEDS
  int needs(int step) const { return step; }
#elif defined NO_MINIBATCHES
  static constexpr sg::staleness::Pushes pushes = sg::staleness::Pushes::gradients;
  static constexpr sg::staleness::Adds adds = sg::staleness::Adds::on_arrival;
  int needs(int step) const { return step; }
#else
  static constexpr sg::staleness::Pushes pushes = sg::staleness::Pushes::gradients;
  static constexpr sg::staleness::Adds adds = sg::staleness::Adds::on_arrival;
  int minibatches() const { return 1; }
#ifdef NO_MISTAKE
  int needs(int step) const { return step; }
#else
  int need(int step) const { return step; }
#endif
#endif
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
