// SPDX-License-Identifier: Apache-2.0
// OSP's claims about accuracy, with the network of examples/vgg.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "osp_accuracy.hpp"
#include "papers.hpp"
#include "textures.hpp"

namespace hetero {

std::string accuracy_of_osp_on_textures(Settings const& s) {
  constexpr std::int64_t epoch = 20;  // steps
  auto const steps = s.paper_steps > 0 ? s.paper_steps : 300;
  AccuracyRuns runs{.usual = {.workers = 4, .batch = 8, .looks = 1, .rate = 0.03},
                    .full_rate = 0.03,
                    .edge_rate = 0.08};
  runs.usual.epochs = static_cast<int>(std::max<std::int64_t>(1, steps / epoch));
  runs.usual.halving_epochs = (runs.usual.epochs + 2) / 3;
  auto const first = static_cast<std::uint64_t>(s.seed);
  std::vector<textures::Task> tasks;
  for (std::int64_t n = 0; n < s.seeds; ++n)
    tasks.emplace_back(first + static_cast<std::uint64_t>(n), static_cast<int>(epoch));
  AccuracyClaims<textures::Task> all(tasks, first, runs);
  return all.times() + "\n" + all.claims().str();
}

}  // namespace hetero
