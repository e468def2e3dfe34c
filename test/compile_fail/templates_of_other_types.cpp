// SPDX-License-Identifier: Apache-2.0
// expect-error -DPIPELINE: stagger: a Pipeline needs at least one stage
// expect-error -DSEQUENTIAL: stagger: a Sequential needs at least one layer
// expect-error -DNEIGHBOURS: stagger: neighbouring layers of a Sequential do not fit
// expect-error -DTENSOR: stagger: a Tensor holds trivially copyable elements
// expect-error -DFIELDS: stagger: fields\(\) of a policy is a std::tie of numbers
// expect-error -DDIVIDE: stagger: a minibatch is divided by rows; give its inputs and targets rows
// expect-error -DVERSIONS: stagger: a policy that does not flush says how many versions a rank keeps
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <string>

#ifdef DIVIDE
#include <stagger/train/divide.hpp>
#endif
#ifdef VERSIONS
#include <stagger/schedule/proof/evaluate.hpp>
#endif

struct Twice {
  using Input = double;
  using Output = double;
  void forward(sg::Context&, double const& x, double& y, sg::NothingSaved&) { y = 2 * x; }
  void backward(sg::Context&, double const&, double const&, double&, sg::NothingSaved&) {}
};
struct Titled : sg::optimizer::Sgd {
  std::string title;
  auto fields() const { return std::tie(title); }
};
struct Endless : sg::schedule::GPipe {
  static constexpr bool flushes = false;
};

int main() {
#ifdef PIPELINE
  auto const pipeline = sg::Pipeline<>{};
#elif defined SEQUENTIAL
  auto const model = sg::Sequential<>{};
#elif defined NEIGHBOURS
  auto const model = sg::Sequential{Half{}, Twice{}};
#elif defined TENSOR
  sg::Tensor<std::string> const words;
#elif defined FIELDS
  auto train = sg::Pipeline{Half{}, Half{}}.with(Titled{}, Distance{});
#elif defined DIVIDE
  sg::Batch<float, float> batch;
  static_cast<void>(sg::divide(1.0F, 1.0F, sg::Division{}, Distance{}, batch));
#elif defined VERSIONS
  static_cast<void>(sg::schedule::evaluate(Endless{}, {2, 4}));
#endif
}
