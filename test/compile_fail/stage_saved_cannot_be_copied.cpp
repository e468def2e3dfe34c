// SPDX-License-Identifier: Apache-2.0
// mistake: stage: a `Saved` that cannot be copied
// expect-error: stagger: not a Stage: its Input, Output and Saved must be default constructible and copyable
// see: stages.md#saved
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <memory>

struct Layer {
  using Input = float;
  using Output = float;
  struct Saved {
    std::unique_ptr<int> table;
  };
  void forward(sg::Context&, float const& x, float& y, Saved&) { y = x; }
  void backward(sg::Context&, float const&, float const& dy, float& dx, Saved&) { dx = dy; }
};

int main() { auto train = sg::Pipeline{Half{}, Layer{}}.with(Distance{}); }
