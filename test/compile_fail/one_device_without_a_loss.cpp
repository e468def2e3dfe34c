// SPDX-License-Identifier: Apache-2.0
// mistake: policy: training on one device without a loss
// expect-error: stagger: training on one device needs a loss, such as loss::MeanSquaredError<>
// see: concepts.md
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() { auto train = sg::Pipeline{Half{}, Half{}}.on_one_device(sg::optimizer::Sgd{}); }
