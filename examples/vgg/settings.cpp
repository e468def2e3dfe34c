// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <algorithm>
#include <limits>
#include <thread>

#include <stagger/partition/split_plan.hpp>
#include <stagger/schedule/named.hpp>

#include "command_line.hpp"

namespace vgg {

void Settings::check() const {
  using cli::require;
  if (device != "threads" && device != "mpi" && device != "clock")
    cli::refuse("--device knows no '" + device + "'; there are: threads, mpi, clock");
  require("--width", width, 1, 1024);
  if (!(dropout >= 0 && dropout < 1))
    cli::refuse("--dropout " + cli::number(dropout) +
                " is out of range; use 0 or more, and less than 1");
  require("--steps", steps, 1, 1'000'000'000);
  require("--epochs", epochs, 0, 1'000'000);
  require("--batch", batch, 1, 1000);
  cli::require_positive("--rate", rate);
  require("--seed", seed, 0, std::numeric_limits<std::int64_t>::max());
  require("--evaluate", evaluate, 0, 1'000'000'000);
  if (stages < 1 || stages > layers())
    cli::refuse("--stages " + std::to_string(stages) + " cannot be cut from " +
                stagger::counted(layers(), "layer") + "; use 1 to " + std::to_string(layers()));
  int const chunks = stagger::schedule::Named{schedule}.chunks();
  if (stages % chunks != 0)
    cli::refuse("--stages " + std::to_string(stages) + " cannot be shared by ranks of " +
                std::to_string(chunks) + ", as --schedule " + schedule +
                " has them; use a multiple of " + std::to_string(chunks));
  require("--workers", workers, 1, 1024);
  if (mp < 1 || workers % mp != 0)
    cli::refuse("--mp " + std::to_string(mp) + " does not divide the " +
                stagger::counted(workers, "rank") +
                " of a stage into groups; use a divisor of --workers " + std::to_string(workers));
  if (batch % pipelines() != 0)
    cli::refuse("--batch " + std::to_string(batch) + " cannot be shared by " +
                stagger::counted(pipelines(), "group") +
                " that --period averages; use a multiple of " + std::to_string(pipelines()));
  auto const images = static_cast<std::int64_t>(minibatch().examples);
  require("--microbatches", microbatches, 1, images);
  if (std::int64_t const rows = images / microbatches; rows < workers / pipelines())
    cli::refuse("--workers " + std::to_string(workers) + " cannot share " +
                stagger::counted(rows * pipelines(), "image") + " of a microbatch; use at most " +
                std::to_string(rows * pipelines()) + ", fewer --microbatches or a larger --batch");
  if (!(threshold >= 0))
    cli::refuse("--threshold " + cli::number(threshold) + " is out of range; use 0 or more");
  if (!each_pass() && update != "accumulate")
    cli::refuse("--update knows no '" + update + "'; there are: accumulate, each-pass");
  if (each_pass() && linear)
    cli::refuse("--update each-pass has no dense layers to update with --linear; leave one out");
  if (each_pass() && device == "mpi" && workers / pipelines() != mp)
    cli::refuse("--update each-pass over MPI is for one group alone, and --mp " +
                std::to_string(mp) + " makes several of --workers " + std::to_string(workers) +
                "; give both the same number, let --period average groups, or use --update "
                "accumulate");
  require("--threads", threads, 1, 1024);
}

std::int64_t Settings::ranks() const {
  return stages / stagger::schedule::Named{schedule}.chunks() * workers;
}

std::vector<Settings> Settings::compared() const {
  std::vector<Settings> runs;
  for (std::int64_t size = 1; size <= mp; ++size) {
    if (mp % size != 0) continue;
    runs.push_back(*this);
    runs.back().mp = size;
    if (size < mp) runs.back().picture.clear();
  }
  return runs;
}

std::optional<Settings> parse(int argc, char const* const* argv) {
  Settings s;
  CLI::App app{"Trains a small VGG on images of 32x32 pixels, in a pipeline of stages.", "vgg"};
  cli::prepare(app);

  char const* group = "The model";
  app.add_option("--width", s.width,
                 "Channels of the first convolution; 64 is the published network")
      ->group(group);
  app.add_option("--dropout", s.dropout, "Share of the hidden features dropped while training")
      ->group(group);
  app.add_flag("--linear", s.linear, "Train a linear model of the pixels instead, as one stage")
      ->group(group);

  group = "Training";
  app.add_option("--data", s.data,
                 "Folder with the binary files of CIFAR-10; left out: generated textures")
      ->type_name("DIR")
      ->group(group);
  auto* const steps = app.add_option("--steps", s.steps, "Optimizer steps")->group(group);
  app.add_option("--epochs", s.epochs,
                 "Instead of --steps: how often as many images are drawn as there are; 0: --steps")
      ->excludes(steps)
      ->group(group);
  app.add_option("--batch", s.batch, "Images per step")->group(group);
  app.add_option("--rate", s.rate, "Highest learning rate; a cosine leads from it to a tenth")
      ->group(group);
  app.add_option("--seed", s.seed, "Seed of everything random")->group(group);
  app.add_option("--evaluate", s.evaluate,
                 "Steps from one accuracy on held-out images to the next; 0: at the end only")
      ->group(group);

  group = "The pipeline";
  app.add_option("--stages", s.stages, "Stages to cut the thirteen layers into")->group(group);
  app.add_option("--microbatches", s.microbatches,
                 "Parts of a batch that follow each other through the stages")
      ->group(group);
  app.add_option("--schedule", s.schedule,
                 "Order of forward and backward, such as gpipe, 1f1b or zb-h1")
      ->group(group);
  auto* const workers =
      app.add_option(
             "--workers", s.workers,
             "Ranks that share each stage, with a part of the images each; left out: --mp many")
          ->group(group);
  app.add_option(
         "--mp", s.mp,
         "Of them, the members of a group that shares dense layers, with a part of each layer")
      ->group(group);
  auto* const period =
      app.add_option(
             "--period", s.period,
             "Steps that each group takes alone, on images of its own, before all go on "
             "from the mean of their weights; left out: gradients are added up in each step")
          ->group(group);
  app.add_option("--threshold", s.threshold,
                 "Operations for each number exchanged, above which a dense layer is shared")
      ->group(group);
  app.add_option("--update", s.update,
                 "When dense layers are updated: accumulate, with all others after a batch; or "
                 "each-pass, after each microbatch, as published, and without clipping")
      ->group(group);
  app.add_option("--device", s.device,
                 "threads; mpi: in the processes that mpirun started, or one for each rank, or "
                 "with --period for each group; or clock: in virtual time, on the cluster of "
                 "SplitBrain's paper")
      ->group(group);
  app.add_option("--threads", s.threads,
                 "Threads to run the ranks; 0: one for each, as far as there are processors")
      ->group(group);

  auto* const compare =
      app.add_flag("--compare", s.compare,
                   "Train with groups of each size that divides --mp, 1 among them, and print "
                   "memory, exchanges, accuracy and throughput side by side")
          ->group(group);
  auto* const picture =
      app.add_option("--picture", s.picture,
                     "SVG file with what each member of a group has and exchanges; left out: none")
          ->type_name("FILE")
          ->group(group);

  group = "SplitBrain";
  auto* const paper =
      app.add_flag("--paper", s.paper,
                   "Print its tables, figures and claims, published and as they come out here")
          ->group(group);
  auto* const chart =
      app.add_option("--chart", s.chart,
                     "--paper: SVG file with throughput over memory; left out: none")
          ->type_name("FILE")
          ->group(group);
  app.footer(cli::outputs);

  if (!cli::parsed(app, argc, argv)) return std::nullopt;
  for (auto const* option : app.get_options())
    if (s.paper && option->count() != 0 && option != paper && option != chart)
      cli::refuse(option->get_name() + " is chosen by --paper; leave it out");
  if (workers->count() == 0) s.workers = std::max<std::int64_t>(1, s.mp);
  for (char const* const option : {"--width", "--dropout", "--mp", "--threshold"})
    if (s.linear && app.count(option) != 0)
      cli::refuse(std::string(option) +
                  " is of the network, which --linear replaces; leave one out");
  if (!s.paper && chart->count() != 0)
    cli::refuse("--chart draws what --paper computes; add --paper, or leave it out");
  if (picture->count() != 0 && (s.mp < 2 || s.linear))
    cli::refuse("--picture draws groups that share dense layers; add --mp with 2 or more members");
  if (s.device == "clock" && s.linear)
    cli::refuse("--device clock has the times of the network alone; leave out --linear");
  if (s.device == "clock" && app.count("--threads") != 0)
    cli::refuse("--threads has no use in virtual time; leave it out, or use --device threads");
  if (s.device == "mpi" && app.count("--threads") != 0)
    cli::refuse(
        "--threads has no use in processes of MPI, which run their ranks on one each; leave it "
        "out, or use --device threads");
  if (period->count() != 0) cli::require("--period", s.period, 1, 1'000'000'000);
  if (period->count() != 0 && s.mp >= 1 && s.workers == s.mp)
    cli::refuse("--period averages groups, of which there is one; use more --workers than --mp");
  if (s.linear && app.count("--stages") == 0) s.stages = 1;
  if (s.threads == 0)
    s.threads = std::clamp<std::int64_t>(s.stages * s.workers, 1,
                                         std::max(1U, std::thread::hardware_concurrency()));
  s.check();
  if (app.count("--threshold") != 0 && s.mp == 1 && !s.each_pass())
    cli::refuse("--threshold decides which layers groups share; add --mp with 2 or more members");
  if (compare->count() != 0 && s.mp == 1)
    cli::refuse("--compare needs groups to compare; add --mp with 2 or more members");
  if (compare->count() != 0 && s.each_pass() && s.device == "mpi")
    cli::refuse(
        "--compare has groups of several sizes, and --update each-pass over MPI is for one group "
        "alone; leave one out");
  if (compare->count() != 0 && s.period > 0)
    cli::refuse(
        "--compare has groups of several sizes, and --period makes other batches for each; leave "
        "one out");
  if (picture->count() != 0 &&
      !stagger::partition::plan_split(features_of(s.shape()),
                                      {.group = static_cast<int>(s.mp), .threshold = s.threshold})
           .splits())
    cli::refuse("--picture draws dense layers that groups share, and with --threshold " +
                cli::number(s.threshold) + " they share none; use a smaller one");
  return s;
}

}  // namespace vgg
