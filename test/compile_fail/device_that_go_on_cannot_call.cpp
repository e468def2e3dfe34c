// SPDX-License-Identifier: Apache-2.0
// expect-error -DMISSING=give: stagger: not a Backend for go_on: it needs 'void give\(RankState&, std::uint32_t signal\)'
// expect-error -DMISSING=execute: stagger: not a Backend for go_on: it needs 'void execute\(RankState&, Instruction const&\)'
// expect-error -DMISSING=stopping: stagger: not a Backend for go_on: it needs 'bool stopping\(\)', whether the step has failed
// expect-error -DMISSING=fail: stagger: not a Backend( for go_on)?: it needs 'void fail\(std::exception_ptr why\) noexcept'
// expect-error -DMISSING=timed: stagger: not a Backend for go_on: it needs 'static constexpr bool timed'
// accepted: -DMISSING=none
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <stagger/engine/backend.hpp>

enum class Part { none, give, execute, stopping, fail, timed };

template <bool exists> struct Timed {};
template <> struct Timed<true> {
  static constexpr bool timed = false;
};

template <Part missing> struct BackendWithout : Timed<missing != Part::timed> {
  BackendWithout(auto const&, sg::engine::Machine& all, int) : machine(&all) {}
  void load(std::vector<int> const&) {}
  void drive() {
    for (auto& rank : machine->ranks()) sg::engine::go_on(*this, rank);
  }
  bool start(std::coroutine_handle<>) { return false; }
  void fail(std::exception_ptr) noexcept
    requires(missing != Part::fail)
  {}
  bool ready(sg::Wait const&) { return true; }
  void give(sg::engine::RankState&, std::uint32_t)
    requires(missing != Part::give)
  {}
  void execute(sg::engine::RankState&, sg::Instruction const&)
    requires(missing != Part::execute)
  {}
  bool stopping()
    requires(missing != Part::stopping)
  {
    return false;
  }
  sg::engine::Machine* machine;
};

struct Mine {
  using policy_tag = sg::DeviceTag;
  using Backend = BackendWithout<Part::MISSING>;
  static constexpr sg::DeviceTraits traits{};
  int places() const { return 1; }
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Mine{}, Distance{}); }
