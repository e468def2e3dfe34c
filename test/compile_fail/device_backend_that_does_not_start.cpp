// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a back end without `start`
// expect-error: stagger: not a Backend: it needs 'bool start\(std::coroutine_handle<> then\)'
// see: policies.md#device
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Mine {
  using policy_tag = sg::DeviceTag;
  struct Backend {
    Backend(Mine const&, sg::engine::Machine&, int) {}
    void load(std::vector<int> const&) {}
    void drive() {}
    void fail(std::exception_ptr) noexcept {}
  };
  static constexpr sg::DeviceTraits traits{};
  int places() const { return 1; }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
