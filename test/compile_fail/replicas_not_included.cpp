// SPDX-License-Identifier: Apache-2.0
// expect-error: stagger: stages with replicas need one more header: include <stagger/engine/replicas\.hpp>
#include <stagger/stagger.hpp>

namespace sg = stagger;

int main() { return sg::Options{.replicas = {1, 2}}.replicas.empty() ? 1 : 0; }
