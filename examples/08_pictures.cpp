// SPDX-License-Identifier: Apache-2.0
// Draws the pictures of the documentation: schedules, a prediction above the run of it, and layers
// that a group of ranks shares.
//
// Build:  g++ -std=c++20 -O2 -ffp-contract=off -I include examples/08_pictures.cpp -pthread
// Run:    ./pictures [FOLDER]     (default: the current folder; docs/pictures updates the pages)
// Prints: the names of the files, which are the same on every machine, byte for byte, and the split
//         network as text
// expect: schedules\.svg
// expect: run\.svg
// expect: split\.svg
// expect: 2 +- +- +- +- +1024 -> 256 +- +614\.4 +262400 +4096
// expect: 2 +modulo +16384 +16384 +16384 +16384 +1024 -> 256 +outputs +614\.4 +131200 +4096
// expect: 6 +collect +4096 +4096 +- +- +256 -> 4 +- +11\.8 +1028 +128
#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include <stagger/core/file.hpp>
#include <stagger/report/split_plan.hpp>
#include <stagger/report/svg.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/stagger.hpp>
namespace sg = stagger;
namespace schedule = stagger::schedule;
namespace report = stagger::report;

struct Empty {  // a stage for the virtual clock, which knows its cost
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) { y = x; }
  void backward(sg::Context&, Input const&, Output const& dy, Input& dx, sg::NothingSaved&) {
    dx = dy;
  }
};

report::SvgOptions const look{.theme = report::SvgTheme::automatic, .time_unit = "units of F"};

/// A timeline and its title, kept until the picture is drawn.
struct Panel {
  std::string name;
  schedule::Timeline timeline;
};

void write(std::string const& path, std::vector<Panel> const& panels) {
  std::vector<report::SvgPanel> views;
  for (Panel const& panel : panels) views.push_back({panel.name, &panel.timeline});
  stagger::write_file(path, report::svg(views, look));
  std::printf("%s\n", path.c_str());
}

int main(int argc, char** argv) {
  std::string const folder = argc > 1 ? std::string(argv[1]) + "/" : "";
  auto const plan = [](auto policy, sg::Shape shape) {  // with V stages on a rank, each takes 1 / V
    shape.chunks = policy.chunks();
    double const each = 1.0 / shape.chunks;
    auto const costs = schedule::Costs::uniform(each, each, each);
    return schedule::evaluate(policy.table(shape), costs).timeline;
  };
  sg::Shape const four{.ranks = 4, .microbatches = 8};

  write(folder + "schedules.svg", {{"GPipe", plan(schedule::GPipe{}, four)},
                                   {"1F1B", plan(schedule::OneFOneB{}, four)},
                                   {"ZB-H1", plan(schedule::ZeroBubbleH1{}, four)}});
  write(folder + "first.svg", {{"", plan(schedule::OneFOneB{}, {.ranks = 2, .microbatches = 8})}});
  write(folder + "chunks.svg", {{"1F1B, 4 stages on 4 ranks", plan(schedule::OneFOneB{}, four)},
                                {"Interleaved, 8 stages on 4 ranks",
                                 plan(schedule::Interleaved{.chunks_per_rank = 2}, four)}});

  // The engine under the virtual clock: stage 1 is slower than planned, and all times vary.
  schedule::Costs real{.stages = {{1, 1, 1, 0.1}, {1.3, 1.3, 1.3, 0.1}, {1, 1, 1, 0.1}}};
  auto train = sg::Pipeline{Empty{}, Empty{}, Empty{}}.with(
      sg::sim::VirtualClock{.costs = real, .jitter = 0.15, .seed = 1},
      sg::loss::MeanSquaredError<>{}, sg::Options{.record = true});
  sg::Batch<sg::Tensor<>, sg::Tensor<>> batch;
  batch.inputs.resize(6);
  batch.targets.resize(6);
  sg::run(train.step(batch));
  write(folder + "run.svg",
        {{"planned", plan(schedule::OneFOneB{}, {.ranks = 3, .microbatches = 6})},
         {"run", train.timeline()}});

  // A small network with convolutions, for rows of 16x16x3 pixels, and a group of two ranks.
  std::vector<sg::partition::LayerFeatures> const layers{
      {.parameters = 448, .values = 4096},
      {.parameters = 2320, .values = 1024},
      {.inputs = 1024, .outputs = 256, .parameters = 262400},
      {.element_wise = true},
      {.inputs = 256, .outputs = 256, .parameters = 65792},
      {.element_wise = true},
      {.inputs = 256, .outputs = 4, .parameters = 1028}};
  auto const split = sg::partition::plan_split(layers, {.group = 2, .threshold = 100});
  sg::write_file(
      folder + "split.svg",
      report::svg({split, layers}, 16, {.width = 720, .theme = report::SvgTheme::automatic}));
  std::printf("%ssplit.svg\n", folder.c_str());
  std::printf("On one rank:\n%s\nMember 0 of 2:\n%s",
              report::table({sg::partition::plan_split(layers, {}), layers}, 0, 16).c_str(),
              report::table({split, layers}, 0, 16).c_str());
}
