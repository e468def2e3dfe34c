// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/gpus.hpp>

#include "catch.hpp"

#include <set>
#include <string>
#include <vector>

#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/one_f_one_b.hpp>

#include "cuda/gpus_cases.hpp"

namespace gpus_fault_test {

using namespace gpus_model;

TEST_CASE("cuda/Gpus: GPUs that are not there, or named twice, are refused in words", "[cuda]") {
  si::Session const session;
  auto const make = [](std::vector<int> devices) {
    return words_of([&] {
      static_cast<void>(over(on_gpus(devices), optimizer(), even_cuts(2),
                             made(sg::schedule::GPipe{}), options_with(false)));
    });
  };
  CHECK(has(make({0, 0}), "GPU 0 is named twice"));
  CHECK(has(make({0, 7}), "there is no GPU 7; this process may use 0 to 3"));
  CHECK(make({3, 1}).empty());
  si::set_machine({.devices = 0});
  CHECK(has(make({}), "no GPU that this process may use"));
}

TEST_CASE("cuda/Gpus: whatever CUDA refuses, parameters are those before or after the step",
          "[cuda]") {
  bool const owners = GENERATE(false, true);
  auto const schedule = owners ? made(sg::schedule::Chimera{}) : made(sg::schedule::OneFOneB{});
  std::vector<std::vector<std::byte>> course;
  {
    auto host = pipeline(sg::host::Threads{1}, even_cuts(2), schedule, clipping());
    for (int s = 0; s < 3; ++s) {
      auto const data = batch(s, 4, true);
      sg::run(host.step(data));
      course.push_back(bits(host));
    }
  }
  CAPTURE(owners);
  check_refusals(
      {.calls = {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
                 si::Call::memcpy_async, si::Call::memset_async, si::Call::set_device,
                 si::Call::malloc_from_pool},
       .most = 100,
       .stride = 9},
      [&] { return over(on_gpus({0, 1}), optimizer(), even_cuts(2), schedule, clipping()); },
      [](int s) { return batch(s, 4, true); }, course);
}

TEST_CASE("cuda/Gpus: a stage that throws leaves parameters as before, and the next step is right",
          "[cuda]") {
  si::Session const session;
  int armed = 0;
  auto train = with_trap(on_gpus({0, 1, 2}), &armed);
  auto calm = with_trap(on_gpus({0}), &armed);
  for (int s = 0; s < 3; ++s) {
    auto const data = batch(s, 5, true);
    sg::run(calm.step(data));
    auto const before = bits(train);
    armed = 1 + 2 * s;
    CHECK_THROWS_WITH(sg::run(train.step(data)), "sprung");
    armed = 0;
    CHECK((bits(train) == before));
    sg::run(train.step(data));
    REQUIRE((bits(train) == bits(calm)));
  }
}

TEST_CASE("cuda/Gpus: a tensor that a layer or the loss did not size is named", "[cuda]") {
  auto const before = [] {
    auto host =
        pipeline(sg::host::Threads{1}, even_cuts(2), made(sg::schedule::OneFOneB{}), clipping());
    return bits(host);
  }();
  std::set<std::string> named;
  bool forgets = true;
  for (int nth = 1; forgets; ++nth) {
    CAPTURE(nth);
    si::Session const session;
    auto train = over(on_gpus({0, 1}), optimizer(), even_cuts(2), made(sg::schedule::OneFOneB{}),
                      clipping());
    auto const data = batch(0, 1, true);
    forget_in = nth;
    std::string const says = words_of([&] { sg::run(train.step(data)); });
    forgets = forget_in == 0;
    forget_in = 0;
    if (says.empty()) continue;
    CHECK(has(says, ", as with d") != has(says, ", as with y.resize_like(x)"));
    CHECK(bits(train) == before);
    named.insert(says.substr(0, says.find(" left ")));
  }
  std::set<std::string> all{"the loss"};
  for (int l = 0; l < 7; ++l) {
    all.insert("forward of layer " + std::to_string(l));
    if (l != 0) all.insert("backward of layer " + std::to_string(l));
  }
  CHECK(named == all);
}

TEST_CASE("cuda/Gpus: after the first step of a program nothing is made, allocated or awaited",
          "[cuda]") {
  si::Session const session;
  auto train = over(on_gpus({0, 1, 2, 3}), optimizer(), even_cuts(4), made(sg::schedule::Chimera{}),
                    clipping());
  check_steady(train, batch(0, 4, false));
}

}  // namespace gpus_fault_test
