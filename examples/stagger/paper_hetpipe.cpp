// SPDX-License-Identifier: Apache-2.0
#include "papers.hpp"

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include <stagger/placement/allocation.hpp>
#include <stagger/placement/hybrid_distribution.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>

#include "hetpipe_models.hpp"
#include "pipeline.hpp"

namespace tool {

namespace {

namespace placement = stagger::placement;
namespace report = stagger::report;

/// An allocation of devices to virtual workers: a row of table 3.
struct Allocation {
  char const* name;
  std::array<char const*, 4> published;
  std::vector<std::vector<int>> workers;
};

/// A column of table 4: the kinds of GPU, and the minibatches in flight in each worker.
struct Column {
  char const* kinds;
  double published;
  int in_flight;
};

}  // namespace

std::string paper_hetpipe(bool json) {
  auto const cluster = hetpipe::usable();
  std::vector<Allocation> const allocations{{"node partition",
                                             {"VVVV", "RRRR", "GGGG", "QQQQ"},
                                             placement::NodePartition{}.allocate(cluster, 4)},
                                            {"equal distribution",
                                             {"VRGQ", "VRGQ", "VRGQ", "VRGQ"},
                                             placement::EqualDistribution{}.allocate(cluster, 4)},
                                            {"hybrid distribution",
                                             {"VVQQ", "VVQQ", "RRGG", "RRGG"},
                                             placement::HybridDistribution{}.allocate(cluster, 4)}};
  std::vector<std::pair<hetpipe::Profile, std::array<Column, 4>>> const models{
      {hetpipe::vgg19(), {{{"V", 300, 5}, {"VR", 530, 4}, {"VRQ", 572, 5}, {"VRGQ", 606, 5}}}},
      {hetpipe::resnet152(), {{{"V", 256, 5}, {"VR", 516, 5}, {"VRQ", 538, 6}, {"VRGQ", 580, 7}}}}};

  Json three = Json::array(), four = Json::array();
  report::TextTable groups({"allocation", "worker", "published", "here"});
  report::TextTable speeds({"model", "GPUs", "in flight", "published", "here"});
  for (auto const& allocation : allocations) {
    Json letters = Json::array();
    for (std::size_t w = 0; w < 4; ++w) {
      letters.push_back(placement::letters(cluster, allocation.workers[w]));
      groups.add({allocation.name, "VW" + std::to_string(w + 1), allocation.published[w],
                  letters.back().get<std::string>()});
    }
    three.push_back(
        {{"allocation", allocation.name}, {"published", allocation.published}, {"here", letters}});
  }
  for (auto const& [profile, columns] : models)
    for (auto const& column : columns) {
      auto const workers = hetpipe::workers_of(cluster, column.kinds);
      double const here = hetpipe::throughput(profile, cluster, workers, column.in_flight);
      std::size_t const gpus = workers.size() * workers.front().size();
      speeds.add({profile.name, std::to_string(gpus) + " " + column.kinds,
                  std::to_string(column.in_flight), report::format_fixed(column.published, 0),
                  report::format_fixed(here, 0)});
      four.push_back({{"model", profile.name},
                      {"gpus", gpus},
                      {"kinds", column.kinds},
                      {"in_flight", column.in_flight},
                      {"published_images_per_s", column.published},
                      {"images_per_s", here}});
    }
  if (json) return dump({{"table_3", three}, {"table_4", four}});
  return "HetPipe, table 3: GPUs of each virtual worker\n\n" + groups.str() +
         "\nHetPipe, table 4: images a second, parameters kept locally\n\n" + speeds.str() +
         "\nHere: images of all workers over the slowest stage of the best partition, before "
         "losses "
         "of\n"
         "schedule and parameter servers. Layer times are not published; they follow from the "
         "layers'\n"
         "operations at 55 % (VGG-19) and 33 % (ResNet-152) of each GPU's peak, links of 10 GB/s "
         "in "
         "a\n"
         "node and 3 GB/s between, nine tenths of each memory.\n";
}

}  // namespace tool
