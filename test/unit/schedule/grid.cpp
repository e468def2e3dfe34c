// SPDX-License-Identifier: Apache-2.0
#include "grid.hpp"

#include <stagger/schedule/proof/bound.hpp>

namespace grid {

Evaluation evaluated(Table const& table, Costs const& costs) { return evaluate(table, costs); }

Fault verified(Table const& table, VerifyOptions options) { return verify(table, options); }

double bounded(Table const& table) { return lower_bound(table); }

}  // namespace grid
