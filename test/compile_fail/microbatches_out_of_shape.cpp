// SPDX-License-Identifier: Apache-2.0
// expect-error: (nearest_legal_value|not a constant expression)
// expect-error: (array subscript value '10' is outside the bounds of array 'nearest_legal_value'|9, 10, )
// expect-error: even
#include <stagger/schedule/dual_pipe.hpp>
#include <stagger/schedule/proof/verify.hpp>

using namespace stagger;
using namespace stagger::schedule;

// Nine microbatches are not even; the nearest legal number is ten.
static_assert(accepted<verify(DualPipe{}, Shape{4, 9})>);
