// SPDX-License-Identifier: Apache-2.0
// json_plan_fuzz [COUNT [SEED]]: COUNT mutated plan files (default 10^6) through their reader. A
// file is read, or refused by a stagger::Error that names it; anything else ends the program. What
// was read tiles the layers, uses no device twice, gives a legal order, and comes back from what is
// written.

#include <cstdio>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/cluster/presets.hpp>
#include <stagger/core/error.hpp>
#include <stagger/json/plan.hpp>
#include <stagger/plan/dapple.hpp>
#include <stagger/schedule/proof/verify.hpp>
#include <stagger/train/planned.hpp>

#include "driver.hpp"

namespace {

namespace cluster = stagger::cluster;
namespace json = stagger::json;
namespace plan = stagger::plan;

constexpr std::string_view pieces[] = {"0",
                                       "1",
                                       "2",
                                       "3",
                                       "-1",
                                       "0.5",
                                       "1e308",
                                       "1e999",
                                       "1000000001",
                                       "9000000000000001",
                                       "null",
                                       "true",
                                       "false",
                                       "[",
                                       "]",
                                       "{",
                                       "}",
                                       "\"",
                                       ",",
                                       ":",
                                       "\n",
                                       "\xff",
                                       "\\u0000",
                                       "\"first\":",
                                       "\"last\":",
                                       "\"devices\":",
                                       "\"stages\":",
                                       "\"warmup\":",
                                       "\"microbatches\":",
                                       "\"recompute\":",
                                       "\"gradients\":",
                                       "\"together\"",
                                       "\"overlapped\"",
                                       "\"candidates\":1e300,",
                                       "{\"first\":0,\"last\":0,\"devices\":[0]}",
                                       ",7"};

std::vector<std::string> seeds() {
  cluster::Profile profile{.name = "p", .batch = 1};
  for (int l = 0; l < 6; ++l)
    profile.layers.push_back({.forward_s = 1e-3,
                              .backward_s = 2e-3,
                              .activation_bytes = 100,
                              .parameter_bytes = l < 3 ? 10U : 500'000'000U});
  plan::Workload const work(profile, cluster::preset("dapple-a:2x2"), {.batch = 8});
  return {json::write_plan(plan::Dapple{.budget = 5'000}.plan(work)),
          json::write_plan(plan::Straight{}.plan(work)),
          json::write_plan(plan::DataParallel{}.plan(work)),
          R"({"stages":[{"first":0,"last":3,"devices":[3,1]},{"first":4,"last":5,"devices":[0]}],
              "microbatches":4,"warmup":[3,1]})",
          "{}",
          ""};
}

fuzz::Program const program{
    .name = "json_plan_fuzz", .pieces = pieces, .seeds = seeds(), .longest = 24, .cut = 8};

void require(plan::Plan const& read, std::string const& text) {
  int next = 0;
  std::set<int> used;
  bool small = read.stages.size() <= 8 && read.microbatches <= 16;
  for (auto const& stage : read.stages) {
    if (stage.first != next || stage.last < stage.first) program.fail("layers are left out", text);
    next = stage.last + 1;
    for (int const device : stage.devices)
      if (!used.insert(device).second) program.fail("a device is used twice", text);
    small = small && stage.replicas() <= 16;
  }
  if (!small) return;
  auto const run = stagger::planned(read);
  auto const table = run.schedule.table(
      {.ranks = static_cast<int>(read.stages.size()), .microbatches = read.microbatches});
  if (stagger::schedule::verify(table)) program.fail("its order is refuted", text);
}

bool read(std::string const& text) {
  plan::Plan found;
  try {
    found = json::read_plan(text, "fuzz");
  } catch (stagger::Error const& error) {
    program.refused(error, text);
    return false;
  }
  require(found, text);
  plan::Plan const again = json::read_plan(json::write_plan(found), "fuzz");
  if (!(again == found) || again.latency_s != found.latency_s ||
      again.simulated_s != found.simulated_s || again.candidates != found.candidates)
    program.fail("a written plan reads as another", text);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  long long plans = 0;
  return program.run(
      argc, argv, [&](std::string const& text) { plans += read(text) ? 1 : 0; },
      [&](long long count, unsigned long long seed) {
        std::printf("%lld files with seed %llu: %lld plans read\n", count, seed, plans);
        return plans > 0 && plans < count;
      });
}
