// SPDX-License-Identifier: Apache-2.0
#include <stagger/nccl/gpus.hpp>

#include "catch.hpp"

#include <string>
#include <thread>

#include <stagger/schedule/catalog.hpp>

#include "gpus_model.hpp"

using namespace gpus_model;

namespace {

struct Case {
  char const* name;
  int processes;
  int chunks;
  int microbatches;
};

constexpr Case cases[] = {{"1f1b", 4, 1, 6},
                          {"zb-v", 2, 2, 5},
                          {"chimera", 2, 1, 4},
                          {"dualpipe", 4, 1, 8},
                          {"interleaved", 2, 2, 4}};

Made schedule_of(Case const& c) {
  return {[name = std::string(c.name)](sg::Shape shape) {
            return sg::schedule::make_table(name, shape);
          },
          c.chunks};
}

sg::Options options() {
  sg::Options options;
  options.clip_norm = clip;
  options.seed = run_seed;
  options.deadline_s = 60;
  return options;
}

/// Parameters of one layer, which a pipeline shows.
template <class Trainer> std::vector<std::byte> layer_bits(Trainer& train, int layer) {
  std::vector<std::byte> all;
  for (auto const& state : train.parameters())
    if (state.name.rfind(std::to_string(layer) + ".", 0) == 0) {
      all.insert(all.end(), state.value.begin(), state.value.end());
      for (auto const& block : state.state) all.insert(all.end(), block.begin(), block.end());
    }
  return all;
}

}  // namespace

TEST_CASE("nccl/Gpus: a rank in every process has the host's bits", "[nccl]") {
  bool const shapes_change = GENERATE(false, true);
  int number = 0;
  for (auto const& c : cases) {
    if (sanitized && number++ % 3 != 0) continue;
    CAPTURE(c.name, shapes_change);
    si::Session const session;
    si::jitter(3);
    si::in_progress_polls(1);
    astray = 0;
    auto const cuts = even_cuts(c.processes * c.chunks);
    auto host = sg::Pipeline{model()}.with(sg::partition::Cuts{cuts}, schedule_of(c), Loss{},
                                           optimizer(), sg::host::Threads{1}, options());
    std::vector<std::vector<std::byte>> expected;
    std::vector<sg::Metrics> metrics;
    for (int s = 0; s < 3; ++s) {
      auto const data = batch(s, c.microbatches, shapes_change);
      metrics.push_back(sg::run(host.step(data)));
      expected.push_back(bits(host));
    }
    auto const data = batch(9, c.microbatches, shapes_change);
    auto const evaluated = sg::run(host.evaluate(data)).loss;

    auto const invited = sg::nccl::invite(0, [](std::span<std::byte>) {});
    std::vector<std::string> wrong(static_cast<std::size_t>(c.processes));
    std::vector<std::thread> processes;
    for (int p = 0; p < c.processes; ++p)
      processes.emplace_back([&, p] {
        auto& words = wrong[static_cast<std::size_t>(p)];
        try {
          auto gpus = on_gpus({p});
          gpus.launch = sg::collective::Launch{};
          gpus.launch->rank = p;
          gpus.launch->size = c.processes;
          gpus.invitation = &invited;
          gpus.shapes_change = shapes_change;
          auto train = over(gpus, optimizer(), cuts, schedule_of(c), options());
          for (int s = 0; s < 3; ++s) {
            auto const own = batch(s, c.microbatches, shapes_change);
            auto const got = sg::run(train.step(own));
            auto const at = static_cast<std::size_t>(s);
            if (got.loss != metrics[at].loss) words += "loss ";
            if (got.gradient_norm != metrics[at].gradient_norm) words += "norm ";
          }
          train.gather_parameters();
          if (bits(train) != expected.back()) words += "parameters ";
          auto const last = batch(9, c.microbatches, shapes_change);
          if (sg::run(train.evaluate(last)).loss != evaluated) words += "evaluation ";
        } catch (std::exception const& error) {
          words += error.what();
        }
      });
    for (auto& process : processes) process.join();
    for (auto const& words : wrong) CHECK(words.empty());
    for (auto const& words : wrong)
      if (!words.empty()) WARN(words);
    CHECK(astray == 0);
  }
}
