// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a collective that does not say what is added up together
// expect-error: stagger: not a CollectivePolicy: it needs 'std::vector<collective::LayerGroup> groups\(
// expect-error -DNO_BY: stagger: not a CollectivePolicy: it needs 'collective::By by', how
// expect-error -DNO_SHARD: stagger: not a CollectivePolicy: it needs 'bool shard_optimizer', whether
// expect-error -DNO_MEASURED: stagger: not a CollectivePolicy: it needs 'int measured_steps', how many
// expect-error -DNO_RENEW: stagger: not a CollectivePolicy: it needs 'std::int64_t renew_every', after
// see: policies.md#collective
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Sums {
  using policy_tag = sg::CollectiveTag;
#ifndef NO_BY
  sg::collective::By by = sg::collective::By::slices;
#endif
#ifndef NO_SHARD
  bool shard_optimizer = false;
#endif
#ifndef NO_MEASURED
  int measured_steps = 0;
#endif
#ifndef NO_RENEW
  int renew_every = 0;
#endif
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Sums{}, Distance{}); }
