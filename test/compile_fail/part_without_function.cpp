// SPDX-License-Identifier: Apache-2.0
// mistake: policy: an observer by itself
// expect-error: stagger: a policy with PartTag needs part\(\), as that of Observe; to be told of steps, derive from StepObserver and give with\(\) Observe\{std::make_shared<\.\.\.>\(\)\}
// see: policies.md#an-observer
#include <stagger/stagger.hpp>
#include <stagger/train/observe.hpp>

#include "half.hpp"

struct Watch : sg::StepObserver {
  using policy_tag = sg::PartTag;
  Watch() = default;
  Watch(Watch const&) {}
  Watch& operator=(Watch const&) { return *this; }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Watch{}); }
