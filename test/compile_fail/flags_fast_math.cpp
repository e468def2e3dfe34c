// SPDX-License-Identifier: Apache-2.0
// mistake: build: `-ffast-math`
// flags: -ffast-math
// flags: -Ofast
// flags: -ffinite-math-only
// accepted: -ffast-math -DSTAGGER_ALLOW_FAST_MATH
// expect-error: -ffast-math and -ffinite-math-only .* compile without them, or define STAGGER_ALLOW_FAST_MATH
// see: packaging.md
#include <stagger/core/tensor.hpp>
