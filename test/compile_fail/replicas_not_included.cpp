// SPDX-License-Identifier: Apache-2.0
// mistake: policy: replicas without their header
// expect-error: stagger: stages with replicas need one more header: include <stagger/engine/replicas\.hpp>
// see: engine.md#replicated-stages
#include <stagger/stagger.hpp>

namespace sg = stagger;

int main() { return sg::Options{.replicas = {1, 2}}.replicas.empty() ? 1 : 0; }
