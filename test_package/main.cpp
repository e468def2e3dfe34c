// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "model.hpp"

double train_elsewhere();  // in other.cpp

int main() {
  double const here = train(stagger::schedule::OneFOneB{});
  double const there = train_elsewhere();
  std::printf("stagger %d.%d.%d: loss %g with 1F1B, %g with GPipe\n", STAGGER_VERSION_MAJOR,
              STAGGER_VERSION_MINOR, STAGGER_VERSION_PATCH, here, there);
  return here < 1e-6 && here == there ? 0 : 1;
}
