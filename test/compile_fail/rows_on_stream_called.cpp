// SPDX-License-Identifier: Apache-2.0
// expect-error: stagger: 'rows_on_stream' of an activation must be 'static constexpr bool rows_on_stream'
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Values : sg::Tensor<> {
  bool rows_on_stream() const { return true; }
};
struct Stage {
  using Input = Values;
  using Output = float;
  void forward(sg::Context&, Values const& x, float& y, sg::NothingSaved&) { y = x[0]; }
  void backward(sg::Context&, Values const&, float const&, Values&, sg::NothingSaved&) {}
};

int main() { auto train = sg::Pipeline{Stage{}, Half{}}.with(Distance{}); }
