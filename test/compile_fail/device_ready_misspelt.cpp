// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a back end that calls `go_on`, and spells `ready` otherwise
// expect-error: stagger: not a Backend for go_on: it needs 'bool ready\(Wait const&\)', whether the signal was given that often
// see: policies.md#device
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <stagger/engine/backend.hpp>

struct Mine {
  using policy_tag = sg::DeviceTag;
  struct Backend {
    static constexpr bool timed = false;
    Backend(Mine const&, sg::engine::Machine& all, int) : machine(&all) {}
    void load(std::vector<int> const&) {}
    void drive() {
      for (auto& rank : machine->ranks()) sg::engine::go_on(*this, rank);
    }
    bool start(std::coroutine_handle<>) { return false; }
    void fail(std::exception_ptr) noexcept {}
    bool is_ready(sg::Wait const&) { return true; }
    void give(sg::engine::RankState&, std::uint32_t) {}
    void execute(sg::engine::RankState&, sg::Instruction const&) {}
    bool stopping() { return false; }
    sg::engine::Machine* machine;
  };
  static constexpr sg::DeviceTraits traits{};
  int places() const { return 1; }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
